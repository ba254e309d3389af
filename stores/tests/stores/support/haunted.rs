//! A disk on which something happens in front of one of its calls, for what comes between two
//! steps.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use runlog::storage::Storage;
use runlog::{Options, RunLog};
use runlog_sim::SimDisk;

/// What a storage is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Read,
    /// A write, a sync, or whatever else is an operation of the disk.
    Change,
}

/// A disk on which something happens in front of one of its calls.
pub(crate) struct Haunted {
    pub(crate) disk: SimDisk,
    reads: AtomicUsize,
    changes: AtomicUsize,
    ghost: Mutex<Option<Ghost>>,
}

/// In front of which call, by number, and what.
type Ghost = (Ask, usize, Box<dyn FnOnce() + Send>);

impl Haunted {
    /// A store on a new disk.
    pub(crate) fn new(options: Options) -> (Arc<Self>, RunLog) {
        let (reads, changes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let haunted =
            Arc::new(Self { disk: SimDisk::new(), reads, changes, ghost: Mutex::new(None) });
        let log = options.sync_interval(None).create_storage(haunted.clone()).unwrap();
        (haunted, log)
    }

    /// Does something in front of a call, counted from now.
    pub(crate) fn before(&self, ask: Ask, number: usize, what: impl FnOnce() + Send + 'static) {
        let number = self.count(ask).load(Ordering::SeqCst) + number;
        *self.ghost.lock().unwrap() = Some((ask, number, Box::new(what)));
    }

    /// Whether that has happened.
    pub(crate) fn is_over(&self) -> bool {
        self.ghost.lock().unwrap().is_none()
    }

    /// How often something is asked for meanwhile.
    pub(crate) fn counted(&self, ask: Ask, during: impl FnOnce()) -> usize {
        let before = self.count(ask).load(Ordering::SeqCst);
        during();
        self.count(ask).load(Ordering::SeqCst) - before
    }

    fn count(&self, ask: Ask) -> &AtomicUsize {
        match ask {
            Ask::Read => &self.reads,
            Ask::Change => &self.changes,
        }
    }

    fn meet(&self, ask: Ask) -> &SimDisk {
        let number = self.count(ask).fetch_add(1, Ordering::SeqCst);
        let mut ghost = self.ghost.lock().unwrap();
        let is_now = ghost.as_ref().is_some_and(|(of, at, _)| *of == ask && *at == number);
        let now = if is_now { ghost.take() } else { None };
        drop(ghost);
        if let Some((_, _, what)) = now {
            what();
        }
        &self.disk
    }
}

impl std::fmt::Debug for Haunted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Haunted").finish_non_exhaustive()
    }
}

impl Storage for Haunted {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.meet(Ask::Read).read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.meet(Ask::Change).write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.meet(Ask::Change).sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.meet(Ask::Change).set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.meet(Ask::Change).allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.meet(Ask::Change).punch(offset, len)
    }
}
