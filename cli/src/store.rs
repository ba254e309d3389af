//! Which store a command means, and opening it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use runlog::{Options, RunLog};

use crate::failure::Failure;

/// The environment variable that names the store.
const VARIABLE: &str = "RUNLOG_STORE";

/// The store where nothing else is said.
const DEFAULT: &str = "runs.runlog";

/// The longest record and document that a store takes by default.
pub(crate) const MAX_RECORD: u64 = 64 << 20;

/// `--store`, else the environment, else `./runs.runlog`. An empty variable counts as none.
pub(crate) fn path(option: Option<&Path>) -> PathBuf {
    chosen(option, std::env::var_os(VARIABLE))
}

fn chosen(option: Option<&Path>, variable: Option<OsString>) -> PathBuf {
    match (option, variable) {
        (Some(path), _) => path.to_path_buf(),
        (None, Some(path)) if !path.is_empty() => PathBuf::from(path),
        (None, _) => PathBuf::from(DEFAULT),
    }
}

/// Opens a store that must be there.
pub(crate) fn open_existing(path: &Path) -> Result<RunLog, Failure> {
    Ok(Options::new().open_existing(path)?)
}

/// Opens a store, making it where it is missing.
pub(crate) fn open_or_create(path: &Path) -> Result<RunLog, Failure> {
    Ok(Options::new().open(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_wins_over_the_environment() {
        let (option, variable) = (Path::new("a"), Some(OsString::from("b")));
        assert_eq!(chosen(Some(option), variable.clone()), PathBuf::from("a"));
        assert_eq!(chosen(None, variable), PathBuf::from("b"));
        assert_eq!(chosen(None, Some(OsString::new())), PathBuf::from(DEFAULT));
        assert_eq!(chosen(None, None), PathBuf::from(DEFAULT));
    }
}
