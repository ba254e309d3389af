//! The engine behind a store: opened at first use, and one for all stores of a folder.
//!
//! The file admits one writer, while callers could create any number of stores of the original for
//! one folder. So the process keeps a table of the open folders, with weak references to the
//! engines. Dropping the last store closes the file. A caller that comes then waits until it is
//! closed, and opens it again.
//!
//! Memory and locks belong to the log, not to the store: all stores on one log share one
//! [`Opened`].

use core::fmt;
use core::hash::{Hash, Hasher};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::DefaultHasher;
use std::io;
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::error::RunStoreError;
use super::fold::Remembered;
use super::folder;
use crate::of_log::{Locked, OfLogs};
use runlog::{Error, Options, RunLog, RunNo};

/// The name of the file within the folder.
pub(super) const FILE: &str = "runs.runlog";

/// How many runs may be started or ended at the same time.
const BOUNDARIES: usize = 64;

/// Folders that are open in this process, by canonical path.
static FOLDERS: Mutex<BTreeMap<PathBuf, Arc<Folder>>> = Mutex::new(BTreeMap::new());

/// The shared state of each log with a store.
static LOGS: OfLogs<(), Opened> = OfLogs::new();

/// A folder, and whether it is open.
struct Folder {
    state: Mutex<State>,
    closed: Condvar,
}

enum State {
    Closed,
    /// Open, or being closed if no handle holds it any more.
    Open(Weak<Opened>),
}

/// An engine, and what the store remembers of its runs.
pub(super) struct Opened {
    /// Taken when it is dropped.
    log: Option<RunLog>,
    /// The folds of runs without a checkpoint. Any of them may be missing.
    pub(super) folds: Mutex<HashMap<RunNo, Remembered>>,
    /// Runs that are known not to be foreign, by a hash of their ids. Any of them may be missing.
    pub(super) ours: Mutex<HashSet<u64>>,
    boundaries: [Mutex<()>; BOUNDARIES],
    /// See [`Opened::share_removal`]. Taken after `boundaries`.
    removal: RwLock<()>,
    /// Where it is registered, if it is.
    registered: Option<(PathBuf, Arc<Folder>)>,
    /// The process that has it open.
    process: u32,
}

impl Opened {
    fn new(log: RunLog) -> Self {
        Self {
            log: Some(log),
            folds: Mutex::default(),
            ours: Mutex::default(),
            boundaries: core::array::from_fn(|_| Mutex::new(())),
            removal: RwLock::default(),
            registered: None,
            process: id(),
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
    pub(super) fn lock_boundary(&self, agent: &str, run: &str) -> Locked<MutexGuard<'_, ()>> {
        let place = usize::try_from(hash_of(agent, run) % BOUNDARIES as u64).unwrap_or(0);
        Locked::new(self.log(), || self.boundaries[place].lock())
    }

    /// No run is removed while the guard lives, so that records can be appended: none may come into
    /// a run between its last check and its deletion.
    pub(super) fn share_removal(&self) -> Locked<RwLockReadGuard<'_, ()>> {
        Locked::new(self.log(), || self.removal.read())
    }

    /// No records are appended while the guard lives, so that a run can be removed.
    pub(super) fn lock_removal(&self) -> Locked<RwLockWriteGuard<'_, ()>> {
        Locked::new(self.log(), || self.removal.write())
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
        let log = self.log.take();
        // A task that is woken may open the folder again, which waits until it is marked closed.
        let held = log.as_ref().map(RunLog::hold_wakes);
        drop(log);
        if let Some((path, folder)) = self.registered.take() {
            folder.close(&path, id() != self.process);
        }
        drop(held);
    }
}

impl Folder {
    /// Marks it closed. In a forked child a lock of the parent may stay locked.
    fn close(self: Arc<Self>, path: &Path, is_inherited: bool) {
        if is_inherited {
            if let Some(mut state) = self.state.try_lock() {
                *state = State::Closed;
            }
            return;
        }
        *self.state.lock() = State::Closed;
        self.closed.notify_all();
        self.forget(path);
    }

    /// Removes a folder that is not open from the table, unless another caller has it.
    fn forget(self: Arc<Self>, path: &Path) {
        let mut folders = FOLDERS.lock();
        // The table and this hold it. Others get it through the table only.
        if Arc::strong_count(&self) == 2 {
            folders.remove(path);
        }
        // Under the lock, so that of two callers at once the second one removes it.
        drop(self);
        drop(folders);
    }

    /// The engine of this folder, opened by `open` unless it is open.
    fn opened(
        self: &Arc<Self>,
        path: &Path,
        open: impl FnOnce(&Path) -> runlog::Result<RunLog>,
    ) -> runlog::Result<Arc<Opened>> {
        let mut state = self.state.lock();
        while let State::Open(opened) = &*state {
            if let Some(opened) = opened.upgrade() {
                return Ok(opened);
            }
            self.closed.wait(&mut state);
        }
        let mut opened = Opened::new(open(&path.join(FILE))?);
        opened.registered = Some((path.to_owned(), Arc::clone(self)));
        let opened = Arc::new(opened);
        LOGS.insert(opened.log(), (), &opened);
        *state = State::Open(Arc::downgrade(&opened));
        Ok(opened)
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
            let folder = Arc::clone(FOLDERS.lock().entry(path.clone()).or_insert_with(|| {
                Arc::new(Folder { state: Mutex::new(State::Closed), closed: Condvar::new() })
            }));
            let opened = folder.opened(&path, |file| {
                if create { options.open(file) } else { options.open_existing(file) }
            });
            if opened.is_err() {
                folder.forget(&path);
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
