//! The storage as the engine sees it: errors with the action that failed, counters, and poison.
//!
//! - **A failed write or sync is final** (I10): the kernel may have dropped the pages and marked
//!   them clean, so trying again would lie. From then on each write and sync is refused. A failed
//!   write of the index poisons nothing, since the index can be rebuilt.
//! - **Syncs are one after another**: the kernel tells a failed write-back to one caller only, and
//!   the next must not take its silence for success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::storage::{Region, Storage, TailWindow};
use crate::error::{Error, IoAction, Result};

/// How often the storage was asked for something since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct IoCounters {
    /// Reads by system call.
    pub reads: u64,
    /// Bytes read by system call.
    pub bytes_read: u64,
    /// Frames and directories looked at through a map of the file. A trace adds its own when it
    /// is dropped.
    pub mapped_reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Frames that were stored through a map of the file, without a system call.
    pub stores: u64,
    /// Syncs.
    pub syncs: u64,
}

/// Zeros to write in front of the tail.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    mapped_reads: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    stores: AtomicU64,
    syncs: AtomicU64,
}

/// The storage with errors and counters. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    storage: Arc<dyn Storage>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    poisoned: AtomicBool,
    syncing: Mutex<()>,
}

impl Disk {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, shared: Arc::default() }
    }

    pub(crate) fn len(&self) -> Result<u64> {
        self.storage.len().map_err(|source| Error::io(IoAction::Read { offset: 0 }, source))
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.bytes_read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.storage
            .read_at(offset, buf)
            .map_err(|source| Error::io(IoAction::Read { offset }, source))
    }

    /// Reads `len` bytes; what lies behind the end of the file reads as zero.
    pub(crate) fn read_padded(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let there = self.len()?.saturating_sub(offset).min(len as u64);
        let there = usize::try_from(there).unwrap_or(len);
        if let Some(head) = bytes.get_mut(..there)
            && !head.is_empty()
        {
            self.read(offset, head)?;
        }
        Ok(bytes)
    }

    /// Where the data of the range ends, as far as that is known without reading: there are only
    /// zeros behind.
    pub(crate) fn data_end(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len);
        self.storage.data_end(offset, len).map_or(end, |found| found.clamp(offset, end))
    }

    /// A view of the range, or `None` where the storage has none.
    pub(crate) fn map(&self, offset: u64, len: usize) -> Result<Option<Region>> {
        self.storage.map(offset, len).map_err(|source| Error::io(IoAction::Read { offset }, source))
    }

    /// Counts looks at bytes through a map.
    pub(crate) fn count_mapped(&self, looks: u64) {
        self.shared.counters.mapped_reads.fetch_add(looks, Ordering::Relaxed);
    }

    /// Writes what must not be lost: a failure poisons the store.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        self.write_unguarded(offset, data).inspect_err(|_| self.poison())
    }

    /// Writes what can be rebuilt: a failure is told and nothing else.
    pub(crate) fn write_unguarded(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.shared.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.storage
            .write_at(offset, data)
            .map_err(|source| Error::io(IoAction::Write { offset }, source))
    }

    /// Writes zeros to where nothing was written yet. A failure changes nothing.
    pub(crate) fn zero(&self, offset: u64, len: usize) -> Result<()> {
        self.check()?;
        let mut at = 0;
        while at < len {
            let zeros = ZEROS.get(..len - at).unwrap_or(&ZEROS);
            self.write_unguarded(offset + at as u64, zeros)?;
            at += zeros.len();
        }
        Ok(())
    }

    /// A window for stores, or `None` where the storage has none.
    pub(crate) fn map_tail(&self, offset: u64, len: usize) -> Option<Arc<dyn TailWindow>> {
        self.storage.map_tail(offset, len).ok().flatten()
    }

    /// Stores a frame that must not be lost, at a place of a window that is at `offset` of the
    /// file: a failure poisons the store. One thread at a time.
    pub(crate) fn store(
        &self,
        window: &dyn TailWindow,
        offset: u64,
        at: usize,
        data: &[u8],
    ) -> Result<()> {
        self.check()?;
        let stores = &self.shared.counters.stores;
        stores.store(stores.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        window.store(at, data).map_err(|source| {
            self.poison();
            Error::io(IoAction::Write { offset: offset + at as u64 }, source)
        })
    }

    /// As [`Disk::store`], for a frame in two parts, the first of which is made of whole words.
    #[inline]
    pub(crate) fn store_frame(
        &self,
        window: &dyn TailWindow,
        offset: u64,
        at: usize,
        head: &[u8],
        rest: &[u8],
    ) -> Result<()> {
        let stores = &self.shared.counters.stores;
        stores.store(stores.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        window.store_frame(at, head, rest).map_err(|source| {
            self.poison();
            Error::io(IoAction::Write { offset: offset + at as u64 }, source)
        })
    }

    /// Makes everything durable that was written before the call. A failure poisons the store.
    pub(crate) fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.shared.syncing.lock();
        self.check()?;
        self.shared.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.storage.sync().map_err(|source| {
            self.poison();
            Error::io(IoAction::Sync, source)
        })
    }

    /// Refuses if an earlier write or sync failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.poisoned.load(Ordering::Acquire) { Err(Error::Poisoned) } else { Ok(()) }
    }

    fn poison(&self) {
        self.shared.poisoned.store(true, Ordering::Release);
    }

    pub(crate) fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.storage
            .allocate(offset, len)
            .map_err(|source| Error::io(IoAction::Allocate { offset: offset + len }, source))
    }

    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        self.storage
            .set_len(len)
            .map_err(|source| Error::io(IoAction::Release { offset: len }, source))
    }

    pub(crate) fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.storage
            .punch(offset, len)
            .map_err(|source| Error::io(IoAction::Release { offset }, source))
    }

    pub(crate) fn counters(&self) -> IoCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoCounters {
            reads: load(&self.shared.counters.reads),
            bytes_read: load(&self.shared.counters.bytes_read),
            mapped_reads: load(&self.shared.counters.mapped_reads),
            writes: load(&self.shared.counters.writes),
            bytes_written: load(&self.shared.counters.bytes_written),
            stores: load(&self.shared.counters.stores),
            syncs: load(&self.shared.counters.syncs),
        }
    }
}
