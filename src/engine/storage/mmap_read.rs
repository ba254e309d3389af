//! Read-only views of the file through memory maps. Apart from `mmap_append.rs` and `fork.rs` this
//! is the only file of the crate with `unsafe`, so the prefetch hint is here too.
//!
//! The file is mapped in windows of 256 MiB. Each is mapped when it is first needed, and kept as
//! long as the storage lives: one map per segment would reach the kernel's limit of about 65,000
//! maps. A window may extend behind the end of the file. A range that crosses two windows gets its
//! own map.
//!
//! - [`crate::engine::storage::FileStorage`] returns only ranges within the file.
//! - As long as a window maps the file, the writer lock is held, so that no other writer can change
//!   bytes.
//! - On other systems than Linux, on 32-bit targets, without free maps of the process, and on file
//!   systems without maps the answer is `None`, and the caller reads.

#![allow(unsafe_code, reason = "mapping a file is unsafe by nature; each block says what it needs")]

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use memmap2::{Advice, Mmap, MmapOptions};
use parking_lot::RwLock;

use super::{Owner, Region};
use crate::engine::storage::handle::Handle;

/// How much of the file one window covers.
pub(super) const WINDOW_LEN: u64 = 256 << 20;

/// The most windows that are kept: 4 TiB of file. The rest of the file is read, not mapped.
const MAX_WINDOWS: usize = 1 << 14;

/// The windows of one file that are mapped so far, by number.
#[derive(Debug, Default)]
pub(super) struct Windows {
    slots: RwLock<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    numbered: Vec<Option<Arc<Window>>>,
    /// The windows of ranges that cross two numbered windows.
    others: Vec<Weak<Window>>,
}

/// One map of the file.
#[derive(Debug)]
pub(super) struct Window {
    map: Mmap,
    /// Keeps the writer lock. It is dropped after the map.
    _handle: Arc<Handle>,
}

impl Window {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Windows {
    /// A view of this range, which lies within the file; `None` if it cannot be mapped.
    pub(super) fn view(&self, handle: &Arc<Handle>, offset: u64, len: usize) -> Option<Region> {
        if usize::BITS < u64::BITS || !cfg!(target_os = "linux") {
            return None;
        }
        let last = offset.checked_add(len as u64)?.checked_sub(1)?;
        let number = usize::try_from(offset / WINDOW_LEN).ok()?;
        if last / WINDOW_LEN != number as u64 {
            let mut slots = self.slots.write();
            let window = Arc::new(Window::map(handle, offset, len)?);
            slots.others.retain(|other| other.strong_count() > 0);
            slots.others.push(Arc::downgrade(&window));
            return Region::of(Owner::Window(window), 0..len);
        }
        let window = self.window(handle, number)?;
        let start = usize::try_from(offset % WINDOW_LEN).ok()?;
        Region::of(Owner::Window(window), start..start + len)
    }

    /// Maps the pages of a range that are in the page cache; returns how many bytes.
    pub(super) fn prefault(&self, handle: &Arc<Handle>, offset: u64, len: usize) -> u64 {
        let (number, start) = (offset / WINDOW_LEN, offset % WINDOW_LEN);
        // A range that crosses two windows gets a map of its own when it is read.
        if !cfg!(target_os = "linux") || start + len as u64 > WINDOW_LEN {
            return 0;
        }
        let (Ok(number), Ok(start)) = (usize::try_from(number), usize::try_from(start)) else {
            return 0;
        };
        self.window(handle, number).map_or(0, |window| window.prefault(start, len))
    }

    /// The window with this number, mapped if necessary.
    fn window(&self, handle: &Arc<Handle>, number: usize) -> Option<Arc<Window>> {
        if let Some(Some(window)) = self.slots.read().numbered.get(number) {
            return Some(Arc::clone(window));
        }
        if number >= MAX_WINDOWS {
            return None;
        }
        let mut slots = self.slots.write();
        if slots.numbered.len() <= number {
            slots.numbered.resize(number + 1, None);
        }
        let slot = slots.numbered.get_mut(number)?;
        if slot.is_none() {
            let len = usize::try_from(WINDOW_LEN).ok()?;
            *slot = Some(Arc::new(Window::map(handle, number as u64 * WINDOW_LEN, len)?));
        }
        slot.clone()
    }

    /// Drops all windows without views; returns the others.
    pub(super) fn close(&self) -> Vec<Weak<Window>> {
        let Slots { numbered, others } = core::mem::take(&mut *self.slots.write());
        let mut windows: Vec<_> = numbered.iter().flatten().map(Arc::downgrade).collect();
        windows.extend(others);
        windows
    }
}

impl Window {
    fn map(handle: &Arc<Handle>, offset: u64, len: usize) -> Option<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        // Bytes of the map are reached only through a `Region`, and `FileStorage::map` makes one
        // only for a range within the length of the file at that time. That the file is not cut
        // off or rewritten there as long as the region lives is the duty that `Storage::map` puts
        // on its caller, the engine. The writer lock keeps other writers out (only locked files
        // are mapped), and the window keeps the lock. A program that ignores the lock and cuts the
        // file off can end this process with SIGBUS; no system call can rule that out, and the
        // documentation of the crate says so.
        // SAFETY: the map is read-only and shared, no code turns it into a mutable one, and the
        // bytes that are handed out of it neither change nor go.
        let map = unsafe { options.map(&handle.file) }.ok()?;
        Some(Self { map, _handle: Arc::clone(handle) })
    }
}

#[cfg(target_os = "linux")]
impl Window {
    /// Maps the pages of a range of the window that are in the page cache, each group of them by
    /// one call; returns how many bytes. Older kernels refuse it.
    fn prefault(&self, start: usize, len: usize) -> u64 {
        unsafe extern "C" {
            fn mincore(address: *mut c_void, len: usize, pages: *mut u8) -> c_int;
        }
        let page = rustix::param::page_size();
        let start = start / page * page;
        let mut pages = vec![0_u8; len.div_ceil(page)];
        let address = self.map.as_ptr().wrapping_add(start);
        // SAFETY: the signature is that of the system. The range lies within the map and begins at
        // a page; `pages` has a byte for each of its pages. The call writes only these bytes.
        if unsafe { mincore(address.cast_mut().cast(), len, pages.as_mut_ptr()) } != 0 {
            return 0;
        }
        let (mut at, mut mapped) = (start, 0);
        for group in pages.chunk_by(|one, next| one & 1 == next & 1) {
            let bytes = group.len() * page;
            if group[0] & 1 == 1 && self.map.advise_range(Advice::PopulateRead, at, bytes).is_ok() {
                mapped += bytes as u64;
            }
            at += bytes;
        }
        mapped
    }
}

#[cfg(not(target_os = "linux"))]
impl Window {
    fn prefault(&self, _: usize, _: usize) -> u64 {
        0
    }
}

/// Prefetches the first 384 bytes, if there are that many: a header and a small payload.
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(bytes) = bytes.first_chunk::<384>() {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for at in [0, 64, 128, 192, 256, 320] {
            // SAFETY: a prefetch reads nothing as far as the program can tell, and never faults;
            // the pointer is to a byte of `bytes` all the same. Each x86-64 processor can do it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>((&raw const bytes[at]).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
