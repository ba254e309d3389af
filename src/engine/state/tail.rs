//! The end of the log, and how frames get into the file there: written, or stored into a map of it.
//!
//! A store needs no system call, which is most of the cost of an append. It is as safe as a write:
//!
//! - **Space comes first.** Frames are stored only onto zeros that this process wrote. So a full
//!   disk is an error of the call that writes zeros, and a store finds its pages in memory.
//! - **Zeros are written ahead of the tail**, never onto a written byte, mostly by a thread
//!   ([`zeros`]).
//! - **A frame or a batch is one store**, and stores are in the order of the log, so that a kill
//!   tears the last one only. Whatever it leaves of that, the log ends at the first bad frame.
//!
//! Frames that wait for a sync are written nevertheless: a sync write-protects the pages that it
//! stores, so the next store into one of them causes a fault. Zeros go ahead of them too, since
//! syncing blocks that were written before is cheaper. Long frames are written without zeros, which
//! would cost more than the call.

mod zeros;

use std::sync::Arc;

use self::zeros::Target;
pub(crate) use self::zeros::Zeros;
use crate::engine::setup::options::TailWriter;
use crate::engine::state::segment::Segment;
use crate::engine::storage::TailWindow;
use crate::error::Result;
use crate::format::DirectoryBuilder;
use crate::format::codec::len_u32;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::types::{Durability, LogPosition};

/// Frames with a greater total length are written. On ext4, where zeros are written in large
/// folios, both ways cost the same at 8 to 16 KiB; on tmpfs, which has no large folios, at 2 KiB.
pub(crate) const MAX_STORED: usize = 8 << 10;

/// The first allocation in an extent, and the least amount by which it grows.
pub(crate) const FIRST_STEP: u32 = 64 << 10;

/// Whether frames can be stored into the tail's segment.
#[derive(Debug)]
enum Stores {
    /// The file was not asked yet; the options want this way.
    Unasked(TailWriter),
    /// No: the file does not permit it, or the options forbid it.
    Refused,
    /// Yes, in front of the end of the zeros.
    Window(Arc<dyn TailWindow>),
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
    pub(crate) zeros: Arc<Zeros>,
    pub(crate) builder: DirectoryBuilder,
}

impl Tail {
    /// The end of a log that has no segment yet.
    pub(crate) fn new(segment: Segment, writer: TailWriter) -> Self {
        let zeros = Arc::new(Zeros::new(segment.disk()));
        let (stores, builder) = (Stores::Unasked(writer), DirectoryBuilder::default());
        Self { segment: Arc::new(segment), offset: 0, allocated: 0, stores, zeros, builder }
    }

    /// Moves into a segment without frames, which is allocated up to `allocated`.
    pub(crate) fn begin(&mut self, segment: Arc<Segment>, allocated: u32, writer: TailWriter) {
        self.zeros.stop();
        (self.segment, self.offset, self.allocated) = (segment, SEGMENT_HEADER_LEN, allocated);
        (self.stores, self.builder) = (Stores::Unasked(writer), DirectoryBuilder::default());
    }

    /// The earliest position of the next frame: everything in front of it was written.
    pub(crate) fn end(&self) -> LogPosition {
        self.segment.position(self.offset)
    }

    /// Whether the next `len` bytes of the tail, which are allocated, should be stored; if so,
    /// there are zeros. A failure changes nothing.
    pub(crate) fn stores_next(&mut self, len: usize, level: Durability) -> Result<bool> {
        self.ask_for_window();
        let Stores::Window(_) = self.stores else { return Ok(false) };
        // Zeros go ahead of frames for a sync too: syncing blocks that were never written changes
        // the file's map of blocks each time.
        let (most, at_once) = match level {
            Durability::Process => (MAX_STORED, zeros::AHEAD),
            Durability::Disk => (zeros::AHEAD as usize, zeros::BLOCK),
        };
        if len > most {
            return Ok(false);
        }
        let end = self.offset.saturating_add(len_u32(len));
        let has_zeros = end <= self.zeros.end() || self.zeros.write_to(end, at_once)?;
        Ok(has_zeros && level == Durability::Process)
    }

    /// Stores one frame at the end of the log, onto zeros: a head of whole words, and the rest.
    #[inline]
    pub(crate) fn put_frame(&self, head: &[u8], rest: &[u8]) -> Result<()> {
        let Stores::Window(window) = &self.stores else {
            return Err(crate::error::Error::Poisoned);
        };
        let at = self.offset as usize;
        assert!(at + head.len() + rest.len() <= self.zeros.end() as usize, "zeros went ahead");
        self.segment.disk().store_frame(&**window, self.segment.file_offset(), at, head, rest)
    }

    /// Whether the next `len` bytes should be stored and have zeros already.
    #[inline]
    pub(crate) fn has_zeros_for(&self, len: usize) -> bool {
        len <= MAX_STORED && self.offset as usize + len <= self.zeros.end() as usize
    }

    fn ask_for_window(&mut self) {
        let Stores::Unasked(writer) = self.stores else { return };
        let len = self.segment.extent_size().bytes_u32() as usize;
        let window = match writer {
            TailWriter::Pwrite => None,
            _ => self.segment.disk().map_tail(self.segment.file_offset(), len),
        };
        self.stores = window.map_or(Stores::Refused, |window| {
            let (segment, at) = (self.segment.id(), self.segment.file_offset());
            let (extent_size, allocated) = (self.segment.extent_size(), self.allocated);
            let seen = Arc::clone(&window);
            let tail = Target { segment, at, extent_size, window: seen, allocated };
            self.zeros.begin(self.offset, tail);
            Stores::Window(window)
        });
    }

    /// Puts frames into the file at the end of the log, as one store if `stored`.
    pub(crate) fn put(&self, bytes: &[u8], stored: bool) -> Result<()> {
        if stored {
            return self.put_frame(bytes, &[]);
        }
        self.zeros.skip_to(self.offset.saturating_add(len_u32(bytes.len())));
        let at = self.segment.file_offset() + u64::from(self.offset);
        self.segment.disk().write(at, bytes)
    }

    /// Stops storing until the file is asked again.
    pub(crate) fn stop_storing(&mut self) {
        self.zeros.stop();
        if let Stores::Window(_) = self.stores {
            self.stores = Stores::Unasked(TailWriter::Auto);
        }
    }

    /// Stops storing, and drops the view.
    pub(crate) fn close(&mut self) {
        self.zeros.stop();
        self.stores = Stores::Refused;
        self.segment = Arc::new(self.segment.without_view());
    }

    /// How frames of the tail reach the file.
    pub(crate) fn writer(&mut self) -> TailWriter {
        self.ask_for_window();
        match self.stores {
            Stores::Window(_) => TailWriter::Mapped,
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
        self.zeros.allow(goal);
        Ok(())
    }
}
