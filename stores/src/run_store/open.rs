//! The engine behind a store: opened at first use, and one for all stores of a folder.
//!
//! The file admits one writer, while callers could create any number of stores of the original for
//! one folder. So the process keeps a table of the open folders, with weak references to their
//! logs. Dropping the last handle of the log closes the file: a store has one, and so has a caller
//! that asked for it. A caller that comes then waits until it is closed, and opens it again.
//!
//! Memory and locks belong to the log, not to the store: all stores on one log share one
//! [`Opened`].

use core::fmt;
use core::hash::{Hash, Hasher};
use std::collections::{BTreeMap, HashMap};
use std::hash::DefaultHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::RunStoreError;
use super::fold::Remembered;
use super::folder;
use crate::of_log::OfLogs;
use runlog::{Error, Options, RunLog, RunNo, RunWriter, WeakRunLog};

/// The name of the file within the folder.
pub(super) const FILE: &str = "runs.runlog";

/// How many runs may be started or ended at the same time.
const BOUNDARIES: usize = 64;

/// Folders that are open in this process, by canonical path.
static FOLDERS: Mutex<BTreeMap<PathBuf, Arc<Folder>>> = Mutex::new(BTreeMap::new());

/// The shared state of each log with a store.
static LOGS: OfLogs<(), Opened> = OfLogs::new();

/// The log of a folder, if it is open.
#[derive(Default)]
struct Folder(Mutex<Option<WeakRunLog>>);

/// An engine, and what the store remembers of its runs.
pub(super) struct Opened {
    /// Taken when it is dropped.
    log: Option<RunLog>,
    /// The folds of runs without a checkpoint. Any of them may be missing.
    pub(super) folds: Mutex<HashMap<RunNo, Remembered>>,
    /// Writers of runs that are not foreign, by a hash of their ids. Any of them may be missing. A
    /// writer stays that of its run, whatever run has the ids later.
    pub(super) writers: Mutex<HashMap<u64, Arc<RunWriter>>>,
    boundaries: [Mutex<()>; BOUNDARIES],
    /// See [`Opened::share_removal`]. Taken after `boundaries`.
    removal: RwLock<()>,
}

impl Opened {
    fn new(log: RunLog) -> Self {
        Self {
            log: Some(log),
            folds: Mutex::default(),
            writers: Mutex::default(),
            boundaries: core::array::from_fn(|_| Mutex::new(())),
            removal: RwLock::default(),
        }
    }

    /// The state of this log, shared by all stores on it.
    pub(super) fn on(log: RunLog) -> Arc<Self> {
        let of = log.clone();
        LOGS.get_or(&of, (), || Self::new(log))
    }

    pub(super) fn log(&self) -> &RunLog {
        self.log.as_ref().expect("the log is taken by `drop` only")
    }

    /// No other call starts or ends this run while the guard lives.
    pub(super) fn lock_boundary(&self, agent: &str, run: &str) -> MutexGuard<'_, ()> {
        let place = usize::try_from(hash_of(agent, run) % BOUNDARIES as u64).unwrap_or(0);
        self.boundaries[place].lock()
    }

    /// No run is removed while the guard lives, so that records can be appended: none may come into
    /// a run between its last check and its deletion.
    pub(super) fn share_removal(&self) -> RwLockReadGuard<'_, ()> {
        self.removal.read()
    }

    /// No records are appended while the guard lives, so that a run can be removed.
    pub(super) fn lock_removal(&self) -> RwLockWriteGuard<'_, ()> {
        self.removal.write()
    }
}

pub(super) fn hash_of(agent: &str, run: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (agent, run).hash(&mut hasher);
    hasher.finish()
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("log", &self.log).finish_non_exhaustive()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.writers.get_mut().clear();
        drop(self.log.take());
        forget_closed();
    }
}

/// Removes the folders that are not open, and that no call is opening, from the table.
fn forget_closed() {
    FOLDERS.lock().retain(|_, folder| {
        // The table alone holds it, so no call has it locked.
        let is_open = || folder.0.lock().as_ref().is_some_and(WeakRunLog::is_open);
        Arc::strong_count(folder) > 1 || is_open()
    });
}

impl Folder {
    /// The engine of this folder, opened by `open` unless it is open.
    fn opened(
        &self,
        path: &Path,
        open: impl FnOnce(&Path) -> runlog::Result<RunLog>,
    ) -> runlog::Result<Arc<Opened>> {
        let mut known = self.0.lock();
        if let Some(log) = known.as_ref().and_then(WeakRunLog::upgrade) {
            return Ok(Opened::on(log));
        }
        let log = open(&path.join(FILE))?;
        *known = Some(log.downgrade());
        Ok(Opened::on(log))
    }
}

/// Where a store has its engine from.
pub(super) enum Source {
    /// A folder; it is opened when it is needed.
    Folder { options: Box<Options>, opened: Mutex<Option<Arc<Opened>>> },
    /// A log that the caller has opened.
    Log(Arc<Opened>),
}

impl Source {
    /// The engine; `None` if there is no store and none should be created.
    pub(super) fn opened(&self, root: &Path, create: bool) -> io::Result<Option<Arc<Opened>>> {
        let (options, known) = match self {
            Self::Folder { options, opened } => (&**options, opened),
            Self::Log(opened) => return Ok(Some(Arc::clone(opened))),
        };
        let mut known = known.lock();
        if known.is_none() {
            if create {
                folder::prepare(root)?;
            }
            let Some(path) = folder::canonical(root)? else { return Ok(None) };
            let folder = Arc::clone(FOLDERS.lock().entry(path.clone()).or_default());
            let opened = folder.opened(&path, |file| {
                if create { options.open(file) } else { options.open_existing(file) }
            });
            drop(folder);
            if opened.is_err() {
                forget_closed();
            }
            *known = match opened {
                Err(Error::NotFound { .. }) if !create => return Ok(None),
                opened => Some(opened.map_err(RunStoreError::from)?),
            };
        }
        Ok(known.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_store::{RetentionConfig, RunStore};

    #[test]
    fn a_folder_without_a_store_is_not_kept_once_it_was_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let store = RunStore::new(dir.path().to_owned(), RetentionConfig::default());
        let path = folder::canonical(dir.path()).unwrap().unwrap();
        let is_kept = || FOLDERS.lock().contains_key(&path);
        assert!(store.try_list_runs("agent").unwrap().is_empty());
        assert!(!is_kept());
        drop(store.log().unwrap());
        assert!(is_kept());
        drop(store);
        assert!(!is_kept());
    }
}
