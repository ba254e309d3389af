//! Finds and opens the store of a command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use runlog::{Options, Place, Reader, ReaderOptions, RunLog, TailWriter};

use crate::confirm;
use crate::failure::Failure;
use crate::message::damaged;

/// The environment variable that names the store.
const VARIABLE: &str = "RUNLOG_STORE";

/// The default store.
const DEFAULT: &str = "runs.runlog";

/// The longest record and document that a store accepts by default.
pub(crate) const MAX_RECORD: u64 = 64 << 20;

/// `--store`, else the environment, else `./runs.runlog`. An empty variable is ignored.
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

/// Opens a store to be read, also while another process writes it. Changes nothing of the file.
pub(crate) fn open_to_read(path: &Path) -> Result<Reader, Failure> {
    Ok(Reader::open(path)?)
}

/// How many bytes of the file a command keeps that reads most of it.
const SHARED_BYTES: usize = 4 << 20;

/// The same for a command that reads the records of most runs.
pub(crate) fn open_to_read_most(path: &Path) -> Result<Reader, Failure> {
    Ok(ReaderOptions::new().shared_bytes(SHARED_BYTES).open(path)?)
}

/// Tells of damage at which the log of the reader ends. Returns whether there is any.
pub(crate) fn tell_early_end(log: &Reader) -> bool {
    let report = log.recovery_report();
    let found = report.damaged.iter().find(|found| {
        matches!(found.place, Place::Frame(_)) && found.run.is_none() && found.seq.is_none()
    });
    if let Some(found) = found {
        damaged(&format!("records may be missing: {found}"));
    }
    found.is_some()
}

/// Opens a store that must exist, for a command that changes it.
pub(crate) fn open_existing(path: &Path) -> Result<RunLog, Failure> {
    Ok(Options::new().open_existing(path)?)
}

/// Opens a store for a command that writes into it. The name of a missing one may be mistyped: it
/// is created only with `create`, or if a person at a terminal says so.
pub(crate) fn open_to_write(path: &Path, create: bool) -> Result<RunLog, Failure> {
    // Imports append many records with each call: a map of the end of the log only costs.
    let options = Options::new().tail_writer(TailWriter::Pwrite);
    if create {
        return Ok(options.open(path)?);
    }
    match options.open_existing(path) {
        Err(error @ runlog::Error::NotFound { .. }) => {
            if confirm::asked(&format!("{error}; make it?"))? {
                return Ok(options.open(path)?);
            }
            Err(Failure::said(format!("{error}; --create makes one")))
        }
        opened => Ok(opened?),
    }
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
