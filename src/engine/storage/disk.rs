//! The storage as the engine uses it: errors that name the failed action, counters, and poison.
//!
//! - **A failed write or sync is final** (I10): the kernel may have dropped the pages and marked
//!   them clean. From then on each write and sync is refused. A failed write of the index does not
//!   poison, since the index can be rebuilt.
//! - **Only this file decides and reports poison** ([`OnPoison`], [`Witness`]), whichever call
//!   failed.
//! - **A forked child changes nothing** ([`Disk::check_open`]): file, lock and maps belong to its
//!   parent.
//! - **Syncs run one after another**: the kernel reports a failed write-back to one caller only,
//!   and the next caller must not take a sync without an error for success.

pub(crate) mod pieces;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use self::pieces::{Piece, Pieces};
use crate::engine::storage::{Region, Storage, TailWindow, ZEROS, fork};
use crate::error::{Error, IoAction, Result};

/// How many calls the storage got since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IoCounters {
    /// Reads by system call.
    pub reads: u64,
    /// Bytes read by system call.
    pub bytes_read: u64,
    /// Frames and directories read through a map. A trace adds its count when it is dropped.
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

/// Counters with the names of the fields of [`IoCounters`].
macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn read(&self) -> IoCounters {
                IoCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters!(reads, bytes_read, mapped_reads, writes, bytes_written, stores, syncs);

/// The storage with errors and counters. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    storage: Arc<dyn Storage>,
    shared: Arc<Shared>,
    /// See [`fork::generation`].
    forks: u64,
    /// Whether it may have views.
    has_views: bool,
    /// Copies that are shared, where there are no views.
    pieces: Option<Arc<Pieces>>,
}

#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    state: State,
    on_poison: OnceLock<Weak<dyn OnPoison>>,
    witness: OnceLock<Arc<dyn Witness>>,
    syncing: Mutex<()>,
}

/// Read by each append and record; apart from the counters, which each append changes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct State {
    poisoned: AtomicBool,
    closed: AtomicBool,
}

/// A component whose callers wait for a sync.
pub(crate) trait OnPoison: Send + Sync {
    /// Reports that no sync will succeed from now on. It is called once, by the thread that met the
    /// failure, possibly with locks of the engine held.
    fn poisoned(&self);
}

/// Is told the results of calls that the store depends on, possibly with locks of the engine held.
pub(crate) trait Witness: core::fmt::Debug + Send + Sync {
    /// `why` is about to poison the store, unless it is already poisoned.
    fn poisons(&self, why: &Error);

    /// The file system was asked for `len` bytes; `is_given` tells whether it granted them.
    fn asked_for_space(&self, len: u64, is_given: bool);
}

impl Disk {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        let (shared, forks) = (Arc::default(), fork::generation());
        Self { storage, shared, forks, has_views: true, pieces: None }
    }

    /// The same without views, for a process that only reads.
    pub(crate) fn without_views(storage: Arc<dyn Storage>) -> Self {
        Self { has_views: false, ..Self::new(storage) }
    }

    /// The same with copies of pieces of the file, up to so many bytes.
    pub(crate) fn sharing(self, bytes: usize) -> Self {
        Self { pieces: Pieces::new(bytes).map(Arc::new), ..self }
    }

    /// Whether it may have views.
    pub(crate) fn has_views(&self) -> bool {
        self.has_views
    }

    /// The storage itself.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.storage)
    }

    pub(crate) fn len(&self) -> Result<u64> {
        told(IoAction::Read { offset: 0 }, self.storage.len())
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.bytes_read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        told(IoAction::Read { offset }, self.storage.read_at(offset, buf))
    }

    /// Reads `len` bytes; bytes behind the end of the file read as zero.
    pub(crate) fn read_padded(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.read_data(offset, len, offset.saturating_add(len as u64))
    }

    /// The same for a range with only zeros from `end` on, which are not read.
    pub(crate) fn read_data(&self, offset: u64, len: usize, end: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let there = self.len()?.min(end).saturating_sub(offset).min(len as u64);
        let there = usize::try_from(there).unwrap_or(len);
        if let Some(head) = bytes.get_mut(..there)
            && !head.is_empty()
        {
            self.read(offset, head)?;
        }
        Ok(bytes)
    }

    /// A copy of `len` bytes at `offset`, where the segment with this salt is, as of now or of an
    /// earlier call. `None` if no copies are kept, or they did not pay. The caller checks what it
    /// takes from them.
    pub(crate) fn piece(&self, offset: u64, salt: u64, len: usize) -> Option<Arc<Piece>> {
        let (piece, spare) = self.pieces.as_ref()?.find(offset, salt, len)?;
        piece.fill(|| {
            let mut bytes = spare.unwrap_or_default();
            bytes.resize(len, 0);
            match self.read(offset, &mut bytes) {
                Ok(()) => bytes,
                Err(_) => Vec::new(),
            }
        });
        Some(piece)
    }

    /// Where the data of the range ends, as far as is known without reading: zeros follow.
    pub(crate) fn data_end(&self, offset: u64, len: u64) -> u64 {
        let end = offset.saturating_add(len);
        self.storage.data_end(offset, len).map_or(end, |found| found.clamp(offset, end))
    }

    /// Whether looking at the range through a view would take space.
    pub(crate) fn looking_takes_space(&self, offset: u64, len: usize) -> bool {
        self.storage.looking_takes_space(offset, len as u64).unwrap_or(true)
    }

    /// A view of the range, of which only the first `used` bytes will be looked at. `None` if the
    /// storage has no views, or looking would take space.
    pub(crate) fn map(&self, offset: u64, len: usize, used: usize) -> Result<Option<Region>> {
        if self.looking_takes_space(offset, used) {
            return Ok(None);
        }
        told(IoAction::Read { offset }, self.storage.map(offset, len))
    }

    /// Maps for reading what the page cache has of a range; returns how many bytes.
    pub(crate) fn prefault(&self, offset: u64, len: usize) -> u64 {
        if self.has_views { self.storage.prefault(offset, len) } else { 0 }
    }

    /// Counts reads through a map.
    pub(crate) fn count_mapped(&self, looks: u64) {
        self.shared.counters.mapped_reads.fetch_add(looks, Ordering::Relaxed);
    }

    /// Writes data that must not be lost: a failure poisons the store.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        self.write_unguarded(offset, data).inspect_err(|error| self.poison(error))
    }

    /// Writes data that can be rebuilt: a failure is only reported.
    pub(crate) fn write_unguarded(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_open()?;
        self.shared.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        let written = told(IoAction::Write { offset }, self.storage.write_at(offset, data));
        written.inspect_err(|error| self.miss_space(data.len() as u64, error))
    }

    /// Writes zeros where nothing was written yet. A failure changes nothing.
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

    /// A window for stores, or `None` if the storage has none.
    pub(crate) fn map_tail(&self, offset: u64, len: usize) -> Option<Arc<dyn TailWindow>> {
        self.storage.map_tail(offset, len).ok().flatten()
    }

    /// Stores a frame that must not be lost, in two parts, of which the first consists of whole
    /// words, at `at` of a window that begins at `offset` of the file. A failure poisons the store.
    /// Only one thread may call this at a time, after it has checked the disk.
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
        let done = window.store_frame(at, head, rest);
        told(IoAction::Write { offset: offset + at as u64 }, done)
            .inspect_err(|error| self.poison(error))
    }

    /// Makes everything durable that was written before the call. A failure poisons the store.
    pub(crate) fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.shared.syncing.lock();
        self.check()?;
        self.shared.counters.syncs.fetch_add(1, Ordering::Relaxed);
        told(IoAction::Sync, self.storage.sync()).inspect_err(|error| self.poison(error))
    }

    /// Whether this process is a forked child of the one that opened the store.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        fork::current() != self.forks
    }

    /// An error after a failed write or sync, once the store is closed, or in a forked child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.state.poisoned.load(Ordering::Acquire) && !self.is_inherited() {
            return Err(Error::Poisoned);
        }
        self.check_open()
    }

    /// An error if the store is closed, or in a forked child.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() || self.is_inherited() { Err(Error::Closed) } else { Ok(()) }
    }

    /// From now on nothing is written, and the results of reads do not count.
    pub(crate) fn close(&self) {
        self.shared.state.closed.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state.closed.load(Ordering::Acquire)
    }

    /// Replaces an error after the store was closed: the file may have been released.
    pub(crate) fn unless_closed<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if self.is_closed() => self.check().and(Err(error)),
            result => result,
        }
    }

    /// Closes the file; see [`Storage::release`]. Returns how many views of it live.
    pub(crate) fn release(&self) -> usize {
        self.storage.release()
    }

    /// Sets the receiver of poison. Only the first call counts.
    pub(crate) fn on_poison(&self, told: Weak<dyn OnPoison>) {
        let _ = self.shared.on_poison.set(told);
    }

    /// Sets the witness of calls. Only the first call counts.
    pub(crate) fn witnessed_by(&self, witness: Arc<dyn Witness>) {
        let _ = self.shared.witness.set(witness);
    }

    /// Stops all acknowledgements. On a closed store it does nothing: a failure caused by releasing
    /// the file says nothing about earlier writes.
    pub(crate) fn poison(&self, why: &Error) {
        if self.is_closed() {
            return;
        }
        // Before the flag, so that a caller that finds the store poisoned can find out why.
        if let Some(witness) = self.shared.witness.get() {
            witness.poisons(why);
        }
        let was = self.shared.state.poisoned.swap(true, Ordering::AcqRel);
        if !was && let Some(told) = self.shared.on_poison.get().and_then(Weak::upgrade) {
            told.poisoned();
        }
    }

    pub(crate) fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check_open()?;
        let action = IoAction::Allocate { offset: offset + len };
        let allocated = told(action, self.storage.allocate(offset, len));
        match (&allocated, self.shared.witness.get()) {
            (Ok(()), Some(witness)) => witness.asked_for_space(len, true),
            (Ok(()), None) => {}
            (Err(error), _) => self.miss_space(len, error),
        }
        allocated
    }

    /// Reports to the witness that a call failed because space was missing, if that was the reason.
    fn miss_space(&self, len: u64, error: &Error) {
        if let Some(witness) = self.shared.witness.get().filter(|_| error.is_disk_full()) {
            witness.asked_for_space(len, false);
        }
    }

    pub(crate) fn set_len(&self, len: u64) -> Result<()> {
        self.check_open()?;
        told(IoAction::Release { offset: len }, self.storage.set_len(len))
    }

    pub(crate) fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.check_open()?;
        told(IoAction::Release { offset }, self.storage.punch(offset, len))
    }

    pub(crate) fn counters(&self) -> IoCounters {
        self.shared.counters.read()
    }
}

/// Adds the action to an error.
#[inline]
fn told<T>(action: IoAction, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::io(action, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is released while it is written.
    #[derive(Debug, Default)]
    struct Overtaken(OnceLock<Disk>);

    impl Overtaken {
        fn refuse<T>(&self) -> std::io::Result<T> {
            self.0.get().expect("the disk on top of it").close();
            Err(std::io::ErrorKind::NotConnected.into())
        }
    }

    impl Storage for Overtaken {
        fn len(&self) -> std::io::Result<u64> {
            self.refuse()
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            self.refuse()
        }

        fn write_at(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
            self.refuse()
        }

        fn sync(&self) -> std::io::Result<()> {
            self.refuse()
        }

        fn set_len(&self, _: u64) -> std::io::Result<()> {
            Ok(())
        }

        fn allocate(&self, _: u64, _: u64) -> std::io::Result<()> {
            Ok(())
        }

        fn punch(&self, _: u64, _: u64) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_or_sync_that_the_end_of_the_store_overtakes_is_told_as_closed_not_as_poison() {
        let calls: [fn(&Disk) -> Result<()>; 2] = [|disk| disk.write(0, &[1]), Disk::sync];
        for call in calls {
            let storage = Arc::new(Overtaken::default());
            let disk = Disk::new(storage.clone());
            storage.0.set(disk.clone()).unwrap();
            assert!(matches!(disk.unless_closed(call(&disk)), Err(Error::Closed)));
            assert!(matches!(disk.check(), Err(Error::Closed)));
        }
    }
}
