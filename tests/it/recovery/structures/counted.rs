//! A file in memory that counts what is done to it, and ends what does too much.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::storage::{MemoryStorage, Storage};

/// How much a file may grow.
const ROOM: u64 = 32 << 20;

/// What was done to a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

/// A file in memory.
#[derive(Debug)]
pub(crate) struct Counted {
    file: MemoryStorage,
    longest: u64,
    calls: AtomicU64,
    bytes: AtomicU64,
    most: Done,
}

impl Counted {
    /// A file of which no more than `most` may be done to it.
    pub(crate) fn new(bytes: Vec<u8>, most: Done) -> Self {
        let longest = bytes.len() as u64 + ROOM;
        let file = MemoryStorage::from_bytes(bytes);
        Self { file, longest, calls: AtomicU64::new(0), bytes: AtomicU64::new(0), most }
    }

    /// Begins to count anew, for the next process that opens the file.
    pub(crate) fn count_anew(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// An error like that of a full disk for what would end at `end`.
    fn room(&self, end: Option<u64>) -> io::Result<()> {
        match end {
            Some(end) if end <= self.longest => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    pub(crate) fn done(&self) -> Done {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Done { calls: load(&self.calls), bytes: load(&self.bytes) }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.file.to_bytes()
    }

    /// A panic within a call of the index is caught and costs the index: so whoever looks at
    /// [`Counted::done`] later finds it too.
    fn count(&self, bytes: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.check();
    }

    /// Panics if more was done than may be.
    pub(crate) fn check(&self) {
        let done = self.done();
        let bounded = done.calls <= self.most.calls && done.bytes <= self.most.bytes;
        assert!(bounded, "{done:?} for a file of {:?} bytes", self.file.len());
    }
}

impl Storage for Counted {
    fn len(&self) -> io::Result<u64> {
        self.count(0);
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.count(buf.len() as u64);
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.count(data.len() as u64);
        self.room(offset.checked_add(data.len() as u64))?;
        self.file.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.count(0);
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.count(0);
        self.room(Some(len))?;
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count(0);
        self.room(offset.checked_add(len))?;
        self.file.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.count(0);
        self.file.punch(offset, len)
    }
}
