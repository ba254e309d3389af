//! Read-only views of the file through memory maps. Besides `mmap_append.rs` and `fork.rs` the only
//! file of the crate with `unsafe`, so that the hint to fetch bytes of a view is here too.
//!
//! The file is mapped in windows of 256 MiB, each when it is first asked for, and kept as long as
//! the storage lives: a map for each segment would meet the kernel's limit of about 65,000 maps. A
//! window may reach behind the end of the file. A range that crosses two windows gets its own map.
//!
//! - [`crate::engine::storage::FileStorage`] hands out ranges within the file only.
//! - A window holds the file handle and with it the writer lock, so that no other writer can change
//!   bytes as long as a [`Region`] shows them.
//! - Where maps are not to be had (32-bit targets, a limit of the process, a file system without
//!   them) the answer is `None`, and the caller reads.

#![allow(unsafe_code, reason = "mapping a file is unsafe by nature; each block says what it needs")]

use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};
use parking_lot::RwLock;

use super::{Owner, Region};
use crate::engine::storage::handle::Handle;

/// How much of the file one window covers.
pub(super) const WINDOW_LEN: u64 = 256 << 20;

/// How many windows are kept: 4 TiB of file. What lies behind is read, not mapped.
const MAX_WINDOWS: usize = 1 << 14;

/// The windows of one file that were asked for so far, by their number.
#[derive(Debug, Default)]
pub(super) struct Windows {
    slots: RwLock<Vec<Option<Arc<Window>>>>,
}

/// One map and what keeps it sound.
#[derive(Debug)]
pub(super) struct Window {
    map: Mmap,
    _handle: Arc<Handle>,
}

impl Window {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Windows {
    /// A view of `offset..offset + len`, which must lie within the file and not be empty; `None`
    /// where it cannot be mapped.
    pub(super) fn view(&self, handle: &Arc<Handle>, offset: u64, len: usize) -> Option<Region> {
        if usize::BITS < u64::BITS {
            return None;
        }
        let last = offset.checked_add(len as u64)?.checked_sub(1)?;
        let number = usize::try_from(offset / WINDOW_LEN).ok()?;
        if last / WINDOW_LEN != number as u64 {
            let window = Window::map(handle, offset, len)?;
            return Region::of(Owner::Window(Arc::new(window)), 0..len);
        }
        let window = self.window(handle, number)?;
        let start = usize::try_from(offset % WINDOW_LEN).ok()?;
        Region::of(Owner::Window(window), start..start + len)
    }

    /// The window with this number, mapped now if it was not before.
    fn window(&self, handle: &Arc<Handle>, number: usize) -> Option<Arc<Window>> {
        if let Some(Some(window)) = self.slots.read().get(number) {
            return Some(Arc::clone(window));
        }
        if number >= MAX_WINDOWS {
            return None;
        }
        let mut slots = self.slots.write();
        if slots.len() <= number {
            slots.resize(number + 1, None);
        }
        let slot = slots.get_mut(number)?;
        if slot.is_none() {
            let len = usize::try_from(WINDOW_LEN).ok()?;
            *slot = Some(Arc::new(Window::map(handle, number as u64 * WINDOW_LEN, len)?));
        }
        slot.clone()
    }
}

impl Window {
    fn map(handle: &Arc<Handle>, offset: u64, len: usize) -> Option<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        // SAFETY: the map is read-only and shared, and no code turns it into a mutable one. Its
        // bytes are reached only through a `Region`, and `FileStorage::map` makes one only for a
        // range within the length of the file at that time. That the file is not cut off or
        // rewritten there as long as the region lives is the duty that `Storage::map` puts on
        // its caller, the engine; other writers are kept out by the writer lock, which `_handle`
        // keeps held as long as the map lives (only locked files are mapped). A program that
        // ignores the lock and cuts the file off can end this process with SIGBUS; no system
        // call can rule that out, and the documentation of the crate says so.
        let map = unsafe { options.map(handle.file()) }.ok()?;
        Some(Self { map, _handle: Arc::clone(handle) })
    }
}

/// Has the first 384 bytes, if there are as many, fetched from memory: a header and a small
/// payload. Only a hint.
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
