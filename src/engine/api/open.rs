//! Opening and creating stores.

use std::path::Path;
use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::open;
use crate::engine::open::create::write_store;
use crate::engine::setup::host;
use crate::engine::setup::options::Options;
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, OpenedFile, Storage};
use crate::error::{Error, Owner, Result};
use crate::format::map::owner;
use crate::format::{OWNER_AT, PAGE_LEN};

impl Options {
    /// Opens the store at `path`, and creates it if there is nothing.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is open already, [`Error::NotAStore`], [`Error::Truncated`] and the
    /// like if it is not a store; then it was not touched. [`Error::NeedsFeature`] if the program
    /// lacks the codec of [`Options::compression`], and [`Error::InvalidArgument`] for a level that
    /// there is not.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        match self.open_existing(path) {
            Err(Error::NotFound { .. }) => match self.create(path) {
                // Another process was faster.
                Err(Error::AlreadyExists { .. }) => self.open_existing(path),
                created => created,
            },
            opened => opened,
        }
    }

    /// Opens the store at `path`, which must be there.
    ///
    /// # Errors
    /// As [`Options::open`], and [`Error::NotFound`].
    pub fn open_existing(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        self.compression.check()?;
        match FileStorage::open_locked(path)? {
            OpenedFile::Locked(storage) => self.start(Arc::new(storage), Some(path)),
            OpenedFile::Busy(storage) => {
                let disk = Disk::new(Arc::new(storage));
                let page = disk.read_padded(OWNER_AT, PAGE_LEN).unwrap_or_default();
                let owner = owner::decode(&page).ok();
                Err(Error::Busy { path: path.to_owned(), owner })
            }
        }
    }

    /// Creates a store at `path`, where nothing may be. It appears whole or not at all, with the
    /// mode 0600.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; [`Error::InvalidArgument`] for an extent size that is not allowed.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<RunLog> {
        let path = path.as_ref();
        self.compression.check()?;
        let creation = Creation::begin(path)?;
        write_store(creation.storage(), self)?;
        self.start(Arc::new(creation.finish()?), Some(path))
    }

    /// Opens the store in a storage of the caller's: memory, a simulated disk.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_storage(&self, storage: Arc<dyn Storage>) -> Result<RunLog> {
        self.compression.check()?;
        self.start(storage, None)
    }

    /// Creates a store in an empty storage of the caller's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the storage is not empty.
    pub fn create_storage(&self, storage: Arc<dyn Storage>) -> Result<RunLog> {
        self.compression.check()?;
        let disk = Disk::new(Arc::clone(&storage));
        if disk.len()? != 0 {
            return Err(Error::InvalidArgument { what: "the storage of a new store is empty" });
        }
        write_store(&*storage, self)?;
        self.start(storage, None)
    }

    fn start(&self, storage: Arc<dyn Storage>, path: Option<&Path>) -> Result<RunLog> {
        let disk = Disk::new(storage);
        let engine = open::open(disk, self.clone(), path.map(Path::to_owned))?;
        let (pid, since) = (std::process::id(), engine.log.setup.now());
        let page = owner::encode(&Owner { pid, host: host::host_name(), since });
        engine.log.disk.write(OWNER_AT, &page)?;
        RunLog::start(engine)
    }
}
