//! The end of the log, and how frames get into the file there: written, or stored into a map of it.
//!
//! A store needs no system call, which is most of the cost of an append. It is as safe as a write:
//!
//! - **Space comes first.** Frames are stored only onto zeros that this process wrote. So a full
//!   disk is an error of the call that writes zeros, and a store finds its pages in memory.
//! - **Zeros are written ahead of the tail**, never onto a written byte, and in small writes:
//!   larger writes land in large folios of the page cache, which the kernel writes as a whole at
//!   each sync.
//! - **A frame or a batch is one store**, and stores are in the order of the log, so that a kill
//!   tears the last one only. Whatever it leaves of that, the log ends at the first bad frame.
//!
//! Frames that wait for a sync are written nevertheless: a sync write-protects the pages that it
//! stores, so the next store into one of them causes a fault. Zeros go ahead of them too, since
//! syncing blocks that were written before is cheaper. Long frames are written without zeros, which
//! would cost more than the call.

use std::sync::Arc;

use crate::engine::setup::options::TailWriter;
use crate::engine::state::segment::Segment;
use crate::engine::storage::TailWindow;
use crate::error::Result;
use crate::format::codec::len_u32;
use crate::format::{DirectoryBuilder, ExtentSize};
use crate::types::{Durability, LogPosition};

/// Frames with a greater total length are written. On ext4, where zeros are written in large
/// folios, both ways cost the same at 8 to 16 KiB; on tmpfs, which has no large folios, at 2 KiB.
pub(crate) const MAX_STORED: usize = 8 << 10;

/// The least distance that zeros go ahead.
const FIRST_ZEROS: u32 = 4 << 10;

/// How far zeros go ahead of frames for a sync at most. Each block takes a call.
const MOST_FOR_SYNCS: u32 = 64 << 10;

/// The first allocation in an extent, and the least amount by which it grows.
pub(crate) const FIRST_STEP: u32 = 64 << 10;

/// Whether frames can be stored into the tail's segment.
#[derive(Debug)]
enum Stores {
    /// The file was not asked yet; the options want this way.
    Unasked(TailWriter),
    /// No: the file does not permit it, or the options forbid it.
    Refused,
    /// Yes.
    Window {
        /// The segment's extent.
        window: Arc<dyn TailWindow>,
        /// From the end of the log up to here there are zeros that this process wrote.
        zeroed: u32,
        /// How far the next zeros go ahead: further each time, as long as all frames are stored.
        ahead: u32,
    },
}

/// How far zeros go ahead at most. With 64 KiB, one append in 200 would stop to write them.
fn most_zeros(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 16).clamp(FIRST_ZEROS, 128 << 10)
}

/// The end of the log.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: Arc<Segment>,
    /// The offset of the next frame.
    pub(crate) offset: u32,
    /// Space is allocated up to here.
    pub(crate) allocated: u32,
    stores: Stores,
    pub(crate) builder: DirectoryBuilder,
}

impl Tail {
    /// The end of a log at `offset` of this segment, which is allocated up to `allocated`.
    pub(crate) fn new(
        segment: Arc<Segment>,
        (offset, allocated): (u32, u32),
        builder: DirectoryBuilder,
        writer: TailWriter,
    ) -> Self {
        Self { segment, offset, allocated, stores: Stores::Unasked(writer), builder }
    }

    /// The earliest position of the next frame: everything in front of it was written.
    pub(crate) fn end(&self) -> LogPosition {
        self.segment.position(self.offset)
    }

    /// Whether the next `len` bytes of the tail, which are allocated, should be stored; if so, it
    /// writes zeros there. A failure changes nothing.
    pub(crate) fn stores_next(&mut self, len: usize, level: Durability) -> Result<bool> {
        if level != Durability::Process || len > MAX_STORED {
            if level == Durability::Disk {
                self.zero_for_syncs(len)?;
            }
            if let Stores::Window { ahead, .. } = &mut self.stores {
                *ahead = FIRST_ZEROS;
            }
            return Ok(false);
        }
        self.ask_for_window();
        let end = self.offset.saturating_add(len_u32(len));
        let Stores::Window { window, zeroed, ahead } = &mut self.stores else {
            return Ok(false);
        };
        if end <= *zeroed {
            return Ok(true);
        }
        let goal = end.next_multiple_of(*ahead).min(self.allocated);
        if goal < end {
            return Ok(false);
        }
        *ahead = (*ahead * 2).min(most_zeros(self.segment.extent_size()));
        window.pause();
        self.zero_to(goal, u32::MAX)?;
        Ok(true)
    }

    /// Writes zeros from the end of the existing ones up to `goal`, `at_once` bytes per call.
    fn zero_to(&mut self, goal: u32, at_once: u32) -> Result<()> {
        let Stores::Window { zeroed, .. } = &mut self.stores else { return Ok(()) };
        let mut from = self.offset.max(*zeroed);
        while from < goal {
            let next = (from + 1).checked_next_multiple_of(at_once).unwrap_or(goal).min(goal);
            let at = self.segment.file_offset() + u64::from(from);
            self.segment.disk().zero(at, (next - from) as usize)?;
            (*zeroed, from) = (next, next);
        }
        Ok(())
    }

    /// Writes zeros for frames that wait for a sync: syncing blocks that were never written also
    /// changes the file's map of blocks each time. It writes block by block, since zeros that are
    /// written together would be synced together whenever one of them changes.
    fn zero_for_syncs(&mut self, len: usize) -> Result<()> {
        self.ask_for_window();
        let Stores::Window { zeroed, .. } = &self.stores else { return Ok(()) };
        let end = self.offset.saturating_add(len_u32(len));
        let most = most_zeros(self.segment.extent_size()).min(MOST_FOR_SYNCS);
        if end <= *zeroed || len > most as usize {
            return Ok(());
        }
        self.zero_to(end.next_multiple_of(most).min(self.allocated), FIRST_ZEROS)
    }

    /// Stores one frame at the end of the log, onto zeros: a head of whole words, and the rest.
    #[inline]
    pub(crate) fn put_frame(&self, head: &[u8], rest: &[u8]) -> Result<()> {
        self.store_at(self.offset as usize, head, rest)
    }

    #[inline]
    fn store_at(&self, at: usize, head: &[u8], rest: &[u8]) -> Result<()> {
        let Stores::Window { window, zeroed, .. } = &self.stores else {
            return Err(crate::error::Error::Poisoned);
        };
        assert!(at + head.len() + rest.len() <= *zeroed as usize, "zeros went ahead");
        self.segment.disk().store_frame(&**window, self.segment.file_offset(), at, head, rest)
    }

    /// Whether the next `len` bytes should be stored and have zeros already.
    #[inline]
    pub(crate) fn has_zeros_for(&self, len: usize) -> bool {
        let Stores::Window { zeroed, .. } = &self.stores else { return false };
        len <= MAX_STORED && self.offset as usize + len <= *zeroed as usize
    }

    fn ask_for_window(&mut self) {
        let Stores::Unasked(writer) = self.stores else { return };
        let len = self.segment.extent_size().bytes_u32() as usize;
        let window = match writer {
            TailWriter::Pwrite => None,
            _ => self.segment.disk().map_tail(self.segment.file_offset(), len),
        };
        self.stores = match window {
            Some(window) => Stores::Window { window, zeroed: 0, ahead: FIRST_ZEROS },
            None => Stores::Refused,
        };
    }

    /// Puts frames into the file at the end of the log, as one store if `stored`.
    pub(crate) fn put(&self, bytes: &[u8], stored: bool) -> Result<()> {
        if stored {
            return self.store_at(self.offset as usize, bytes, &[]);
        }
        let at = self.segment.file_offset() + u64::from(self.offset);
        self.segment.disk().write(at, bytes)
    }

    /// Stops storing, and drops the view.
    pub(crate) fn close(&mut self) {
        self.stores = Stores::Refused;
        self.segment = Arc::new(self.segment.without_view());
    }

    /// How frames of the tail reach the file.
    pub(crate) fn writer(&mut self) -> TailWriter {
        self.ask_for_window();
        match self.stores {
            Stores::Window { .. } => TailWriter::Mapped,
            _ => TailWriter::Pwrite,
        }
    }

    /// Allocates more of the tail's extent, in steps that grow with it.
    pub(crate) fn grow(&mut self, wanted: usize) -> Result<()> {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let step = FIRST_STEP.max(self.allocated / 2);
        let goal = wanted.max(self.allocated.saturating_add(step));
        let goal = goal.next_multiple_of(FIRST_STEP).min(self.segment.extent_size().bytes_u32());
        self.allocate_to(goal)
    }

    /// Allocates the tail's extent up to `goal`.
    pub(crate) fn allocate_to(&mut self, goal: u32) -> Result<()> {
        if goal <= self.allocated {
            return Ok(());
        }
        let at = self.segment.file_offset() + u64::from(self.allocated);
        self.segment.disk().allocate(at, u64::from(goal - self.allocated))?;
        self.allocated = goal;
        Ok(())
    }
}
