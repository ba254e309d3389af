//! Stores into the file through writable maps, for the tail of the log.
//!
//! One window of 256 MiB is mapped at a time, the one with the tail; an older one lives until its
//! last reference is dropped. A range that crosses two windows gets its own map.
//!
//! - No `&mut [u8]` is ever made. Words of 8 bytes are stored one by one, as atomics: so stores
//!   concurrent with views ([`Region`](super::Region)) are defined, and a kill tears only between
//!   words.
//! - A store stays within its window, and within the file: behind its end it would cause a SIGBUS.
//!   The caller of [`Storage::map_tail`](super::Storage::map_tail) allocates the range.
//! - The window lets go of stored pages from time to time and before a sync. Otherwise the sync
//!   write-protects them one by one, and stops every processor of this program for each.
//! - A window holds the file handle, and all windows are dropped before the lock is released.
//! - It works only on ext4 and tmpfs. On others (btrfs, zfs, xfs after a reflink copy) a store into
//!   allocated space may find the disk full, which causes a SIGBUS. The caller writes there.

#![allow(unsafe_code, reason = "a store through a raw pointer; the block says what it needs")]

use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::io;
use std::sync::{Arc, Weak};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;

use crate::engine::storage::TailWindow;
use crate::engine::storage::handle::Handle;
use crate::engine::storage::mmap_read::WINDOW_LEN;

/// The bytes of one store.
const WORD: usize = 8;

/// Ranges to let go of begin and end at multiples of this, the unit that the kernel maps at once: a
/// store into one half of a unit would map the other half again.
const FOLIO: usize = 64 << 10;

/// How much the window lets go of at once. Letting go stops the other processors too.
const RELEASED: usize = 256 << 10;

/// The same before a sync.
const RELEASED_FOR_SYNC: usize = 64 << 10;

/// The current writable map of one file.
#[derive(Debug, Default)]
pub(super) struct TailMaps {
    current: Mutex<Option<(u64, Arc<Writable>)>>,
    /// The newest window, which is the one that takes stores.
    last: Mutex<Weak<Window>>,
}

/// One writable map and the handle that keeps it sound.
struct Writable {
    map: MmapRaw,
    handle: Arc<Handle>,
}

/// A part of a map: the range for the tail's segment.
#[derive(Debug)]
struct Window {
    writable: Arc<Writable>,
    /// Where the part starts in the map, and in the file.
    start: usize,
    offset: u64,
    len: usize,
    /// Nothing was stored behind this offset.
    stored: AtomicUsize,
    /// The window has let go of everything before this offset.
    released: AtomicUsize,
}

impl TailMaps {
    /// A window for stores into `offset..offset + len`, or `None` if that is not supported.
    pub(super) fn window(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        len: usize,
    ) -> Option<Arc<dyn TailWindow>> {
        let may_store = usize::BITS >= u64::BITS && handle.file_system().keeps_space();
        if !may_store || !offset.is_multiple_of(WORD as u64) {
            return None;
        }
        let last = offset.checked_add(len as u64)?.checked_sub(1)?;
        let number = offset / WINDOW_LEN;
        let (writable, start) = if last / WINDOW_LEN == number {
            let writable = self.numbered(handle, number)?;
            (writable, usize::try_from(offset % WINDOW_LEN).ok()?)
        } else {
            (Arc::new(Writable::map(handle, offset, len)?), 0)
        };
        let (stored, released) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let window = Arc::new(Window { writable, start, offset, len, stored, released });
        *self.last.lock() = Arc::downgrade(&window);
        Some(window)
    }

    /// Drops the current map, when no more stores will come and no window lives.
    pub(super) fn close(&self) {
        *self.current.lock() = None;
    }

    /// Lets go of stored pages before a sync.
    pub(super) fn let_go(&self) {
        let last = self.last.lock().upgrade();
        if let Some(last) = last {
            last.let_go(RELEASED_FOR_SYNC);
        }
    }

    fn numbered(&self, handle: &Arc<Handle>, number: u64) -> Option<Arc<Writable>> {
        let mut current = self.current.lock();
        if let Some((mapped, writable)) = &*current
            && *mapped == number
        {
            return Some(Arc::clone(writable));
        }
        let len = usize::try_from(WINDOW_LEN).ok()?;
        let writable = Arc::new(Writable::map(handle, number * WINDOW_LEN, len)?);
        *current = Some((number, Arc::clone(&writable)));
        Some(writable)
    }
}

impl Writable {
    fn map(handle: &Arc<Handle>, offset: u64, len: usize) -> Option<Self> {
        let map = MmapOptions::new().offset(offset).len(len).map_raw(&handle.file).ok()?;
        (map.as_mut_ptr().align_offset(WORD) == 0 && map.len() >= len)
            .then(|| Self { map, handle: Arc::clone(handle) })
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").field("len", &self.map.len()).finish_non_exhaustive()
    }
}

impl Window {
    /// Stores words one by one. The caller has checked that they lie within the window and the
    /// file, and that `at` is a multiple of their length.
    #[inline]
    fn put(&self, at: usize, words: &[[u8; WORD]]) {
        assert!(at.is_multiple_of(WORD) && at + words.len() * WORD <= self.len);
        let first = self.writable.map.as_mut_ptr().wrapping_add(self.start + at);
        for (place, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word).to_le();
            // The map is writable and shared, and lives as long as `self` does. The word lies
            // within it: `start + len` of the window does by construction, and the words lie
            // within `len` as asserted above. It is aligned: the map, `start` and `at` are. The
            // length of the file only grows beyond `known_len`, up to which the caller goes, while
            // the writer lock is held, which is released after the last window is dropped. The
            // views of `mmap_read.rs` are other maps, in which no reader looks at bytes of the
            // tail before the store is over, as `Storage::map_tail` demands.
            // SAFETY: the word is aligned, within the map and within the file, and this process
            // changes these bytes through atomics of this size alone.
            let target = unsafe { AtomicU64::from_ptr(first.wrapping_add(place * WORD).cast()) };
            target.store(word, Ordering::Relaxed);
        }
    }
}

impl Window {
    /// Drops stored pages from the page table, if they are at least `least` bytes.
    fn let_go(&self, least: usize) {
        let (stored, released) =
            (self.stored.load(Ordering::Relaxed), self.released.load(Ordering::Relaxed));
        if stored.saturating_sub(released) < least {
            return;
        }
        self.released.store(stored, Ordering::Relaxed);
        let whole = |at: usize| (self.start + at.min(self.len)) / FOLIO * FOLIO;
        let (start, end) = (whole(released), whole(stored));
        if start < end {
            let advise = UncheckedAdvice::DontNeed;
            // SAFETY: the map is a shared one of a file, and the range lies within it. To let go of
            // pages drops entries of the page table, and no byte: the next access finds what was
            // stored, also a store at this moment.
            let _ = unsafe { self.writable.map.unchecked_advise_range(advise, start, end - start) };
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.let_go(1);
    }
}

impl TailWindow for Window {
    fn store(&self, at: usize, data: &[u8]) -> io::Result<()> {
        self.store_frame(at, data, &[])
    }

    fn store_frame(&self, at: usize, head: &[u8], rest: &[u8]) -> io::Result<()> {
        let (words, last) = rest.as_chunks::<WORD>();
        let len = head.len() + rest.len().next_multiple_of(WORD);
        let whole = at.is_multiple_of(WORD) && head.len().is_multiple_of(WORD);
        let end = at.checked_add(len).filter(|end| whole && *end <= self.len);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        if self.offset.saturating_add(end as u64) > self.writable.handle.known_len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.put(at, head.as_chunks::<WORD>().0);
        self.put(at + head.len(), words);
        if !last.is_empty() {
            let mut filled = [0; WORD];
            filled[..last.len()].copy_from_slice(last);
            self.put(at + head.len() + words.len() * WORD, &[filled]);
        }
        // After a kill, the words of this call are stored before those of the next: a thread's
        // stores stop in program order, and this fence keeps the compiler to that order.
        compiler_fence(Ordering::SeqCst);
        self.stored.store(end, Ordering::Relaxed);
        Ok(())
    }

    fn pause(&self) {
        self.let_go(RELEASED);
    }

    fn map_ahead(&self, start: usize, end: usize) {
        let end = end.min(self.len);
        if start < end {
            // Older kernels refuse it: then each store maps its page.
            let range = (self.start + start, end - start);
            let _ = self.writable.map.advise_range(Advice::PopulateWrite, range.0, range.1);
        }
    }
}
