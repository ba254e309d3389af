//! A storage for a process that only reads.

use std::fmt;
use std::io;
use std::sync::Arc;

use runlog::storage::{MemoryStorage, Storage};

type Read = dyn Fn(&MemoryStorage, u64, &mut [u8]) -> io::Result<()> + Send + Sync;

/// Calls out at each read, and panics if it is asked to change anything.
pub(crate) struct OnlyReads {
    storage: Arc<MemoryStorage>,
    read: Box<Read>,
}

impl OnlyReads {
    /// Calls out in front of each read, with its place and its length.
    pub(crate) fn new(
        storage: Arc<MemoryStorage>,
        before: impl Fn(u64, usize) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let read = move |storage: &MemoryStorage, offset, buf: &mut [u8]| {
            before(offset, buf.len())?;
            storage.read_at(offset, buf)
        };
        Arc::new(Self { storage, read: Box::new(read) })
    }

    /// Calls out within each read, with its place and its length. Of what changes meanwhile the
    /// read has the first sector as it was before, and the others as they are afterwards: the
    /// system copies the pages of a read one after the other.
    pub(crate) fn split(
        storage: Arc<MemoryStorage>,
        within: impl Fn(u64, usize) + Send + Sync + 'static,
    ) -> Arc<Self> {
        const SECTOR: usize = 512;
        let read = move |storage: &MemoryStorage, offset, buf: &mut [u8]| {
            storage.read_at(offset, buf)?;
            let before = buf.to_vec();
            within(offset, buf.len());
            storage.read_at(offset, buf)?;
            let mut pieces = buf.chunks_mut(SECTOR).zip(before.chunks(SECTOR));
            if let Some((piece, before)) = pieces.find(|(piece, before)| piece != before) {
                piece.copy_from_slice(before);
            }
            Ok(())
        };
        Arc::new(Self { storage, read: Box::new(read) })
    }
}

impl fmt::Debug for OnlyReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlyReads").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl Storage for OnlyReads {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.read)(&self.storage, offset, buf)
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
