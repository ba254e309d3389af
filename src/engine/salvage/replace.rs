//! Salvaging a store into a new file that takes its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::reader::only_reading::OnlyReading;
use crate::engine::salvage::report::SalvageReport;
use crate::engine::salvage::salvage_between;
use crate::engine::setup::options::Options;
use crate::engine::storage::{Creation, FileStorage, OpenedFile, Storage};
use crate::error::{Error, Result};

/// A damaged store that [`salvage_in_place`] replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "what is missing is in the report"]
pub struct Replaced {
    /// What came out, and what is missing.
    pub report: SalvageReport,
    /// The new name of the damaged file.
    pub damaged: PathBuf,
}

/// Replaces the store at `path` by what [`salvage`](crate::salvage) reads out of it, if it does not
/// open because of damage. A store that opens stays as it is, and the call returns `None`.
///
/// It is for programs that must come back by themselves. The new store has the owner and the mode
/// of the old file, which gets another name in the same directory, such as `runs.runlog.damaged`.
/// The call holds the writer lock from the beginning to the end. A crash leaves the old store or
/// the new one at `path`, and may leave a file with the name `.{name}.{pid}.{random}.new`.
///
/// # Errors
/// [`Error::Busy`] if a process has the store open for writing; [`Error::NotFound`] and
/// [`Error::NotRegularFile`]; all errors of [`salvage`](crate::salvage). After an error the damaged
/// store is at `path`.
pub fn salvage_in_place(path: impl AsRef<Path>) -> Result<Option<Replaced>> {
    let path = path.as_ref();
    let OpenedFile::Locked(old) = FileStorage::open_locked(path)? else {
        return Err(Error::Busy { path: path.to_owned(), owner: None });
    };
    if let Some(name) = old.network() {
        return Err(Error::NetworkFileSystem { name });
    }
    let old = Arc::new(old);
    if opens(Arc::<FileStorage>::clone(&old)) {
        return Ok(None);
    }
    let creation = Creation::begin_replacement(path)?;
    let new = Arc::<FileStorage>::clone(creation.storage());
    let report = salvage_between(Arc::<FileStorage>::clone(&old), new)?;
    let damaged = creation.replace(&old)?;
    Ok(Some(Replaced { report, damaged }))
}

/// Whether the store opens for writing. Opening checks a store before its first write, which fails
/// here.
fn opens(store: Arc<dyn Storage>) -> bool {
    let options = Options::new().background(false);
    match options.start(Arc::new(OnlyReading(store)), None) {
        Err(error) => error.is_permission_denied(),
        Ok(log) => {
            drop(log);
            true
        }
    }
}
