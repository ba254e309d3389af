//! A storage for a process that only reads.

use std::fmt;
use std::io;
use std::sync::Arc;

use runlog::storage::{MemoryStorage, Storage};

/// Calls out in front of each read, with its place and its length; panics if it is asked to change
/// anything.
pub(crate) struct OnlyReads<F> {
    storage: Arc<MemoryStorage>,
    before: F,
}

impl<F: Fn(u64, usize) -> io::Result<()>> OnlyReads<F> {
    pub(crate) fn new(storage: Arc<MemoryStorage>, before: F) -> Arc<Self> {
        Arc::new(Self { storage, before })
    }
}

impl<F> fmt::Debug for OnlyReads<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlyReads").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl<F: Fn(u64, usize) -> io::Result<()> + Send + Sync + 'static> Storage for OnlyReads<F> {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.before)(offset, buf.len())?;
        self.storage.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        unreachable!("a reader writes nothing")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("a reader syncs nothing")
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("a reader changes no length")
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader allocates nothing")
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader punches nothing")
    }
}
