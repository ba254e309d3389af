//! Opening and creating stores, and referring to an open store without keeping it open.

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::background::WeakOpen;
use crate::engine::open;
use crate::engine::open::create::write_store;
use crate::engine::setup::host::owner_page;
use crate::engine::setup::options::Options;
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, OpenedFile, Storage};
use crate::error::{Error, Result};
use crate::format::map::owner;
use crate::format::{OWNER_AT, PAGE_LEN};

impl Options {
    /// Opens the store at `path`, and creates it if there is no file.
    ///
    /// # Errors
    /// [`Error::Busy`] if the store is already open, [`Error::Locked`] if this process has closed
    /// it and still holds views of it; [`Error::NotAStore`], [`Error::Damaged`] or
    /// [`Error::UnsupportedVersion`] and the like if the file is not a usable store, which then was
    /// not changed. [`Error::NeedsFeature`] if the program lacks the level of
    /// [`Options::compression`], and [`Error::InvalidArgument`] for a level that zstd does not
    /// have.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        match self.open_existing(path) {
            Err(Error::NotFound { .. }) => match self.create(path) {
                // Another process was faster and created it.
                Err(Error::AlreadyExists { .. }) => self.open_existing(path),
                created => created,
            },
            opened => opened,
        }
    }

    /// Opens the store at `path`, which must exist.
    ///
    /// # Errors
    /// Those of [`Options::open`], [`Error::NotFound`], and [`Error::NetworkFileSystem`].
    pub fn open_existing(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        self.compression.check()?;
        match FileStorage::open_locked(path)? {
            OpenedFile::Locked(storage) => {
                self.check_file_system(&storage)?;
                self.start(Arc::new(storage), Some(path))
            }
            OpenedFile::Busy(storage) => {
                let (path, live_views) = (path.to_owned(), storage.live_views());
                if live_views > 0 {
                    return Err(Error::Locked { path, live_views });
                }
                let disk = Disk::new(Arc::new(storage));
                let page = disk.read_padded(OWNER_AT, PAGE_LEN).unwrap_or_default();
                let owner = owner::decode(&page).ok();
                Err(Error::Busy { path, owner })
            }
        }
    }

    /// Creates a store at `path`, where no file may exist. After a crash either the whole store is
    /// there, or nothing. The file gets the mode 0600.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; [`Error::InvalidArgument`] for an extent size that is not allowed.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        self.compression.check()?;
        let creation = Creation::begin(path)?;
        self.check_file_system(creation.storage())?;
        write_store(&**creation.storage(), self)?;
        self.start(creation.finish()?, Some(path))
    }

    /// Opens the store in a storage of the caller, such as memory or a simulated disk.
    ///
    /// # Errors
    /// Those of [`Options::open`].
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn open_storage(&self, storage: Arc<dyn Storage>) -> Result<RunLog> {
        self.compression.check()?;
        self.start(storage, None)
    }

    /// Creates a store in an empty storage of the caller.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the storage is not empty.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn create_storage(&self, storage: Arc<dyn Storage>) -> Result<RunLog> {
        self.compression.check()?;
        let disk = Disk::new(Arc::clone(&storage));
        if disk.len()? != 0 {
            return Err(Error::InvalidArgument {
                what: "the storage of a new store must be empty",
            });
        }
        write_store(&*storage, self)?;
        self.start(storage, None)
    }

    /// Refuses a file that other machines may write too.
    fn check_file_system(&self, storage: &FileStorage) -> Result<()> {
        match storage.network() {
            Some(name) if !self.network_file_systems => Err(Error::NetworkFileSystem { name }),
            _ => Ok(()),
        }
    }

    pub(crate) fn start(&self, storage: Arc<dyn Storage>, path: Option<&Path>) -> Result<RunLog> {
        let disk = Disk::new(storage);
        let engine = open::open(disk, self.clone(), path.map(Path::to_owned))?;
        engine.log.disk.write(OWNER_AT, &owner_page(engine.log.setup.now()))?;
        RunLog::start(engine)
    }
}

/// A reference to an open store that does not keep it open. [`RunLog::downgrade`] returns it.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-weak-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let log = runlog::Options::new().open(&path)?;
/// let weak = log.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(log);
/// assert!(weak.upgrade().is_none());
/// runlog::Options::new().open_existing(&path)?; // the file is released
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct WeakRunLog {
    open: WeakOpen,
}

impl RunLog {
    /// A reference to this store that does not keep it open, for tables of open stores.
    pub fn downgrade(&self) -> WeakRunLog {
        WeakRunLog { open: self.open.downgrade() }
    }
}

impl WeakRunLog {
    /// Whether a handle keeps the store open, or the last one is being dropped. It never waits.
    pub fn is_open(&self) -> bool {
        self.open.is_open()
    }

    /// A handle of the store; `None` once the store is closed.
    ///
    /// If the store is being closed, this waits until closing has ended. After `None` this process
    /// may open the file again, which fails with [`Error::Locked`] as long as the program holds
    /// views of the file. An [`Observer`] of the store must not call this, but may ask
    /// [`WeakRunLog::is_open`].
    ///
    /// [`Observer`]: crate::Observer
    pub fn upgrade(&self) -> Option<RunLog> {
        Some(RunLog { open: self.open.upgrade()? })
    }
}

impl fmt::Debug for WeakRunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRunLog").finish_non_exhaustive()
    }
}
