//! The other way into the file: frames of the tail that are stored into a map of it.
//!
//! A store costs no system call, which is most of what an append costs. It is as good as a write:
//!
//! - **Space is there before.** Frames are stored only onto zeros that this process wrote. So a
//!   full disk is an error of the call that writes zeros, and the store finds its pages in memory.
//! - **Zeros go in front of the tail**, never onto a byte that was written. In small writes: more
//!   at once lands in large folios of the page cache, which the kernel writes whole at each sync.
//! - **One frame is one store, in the order of the log**, so that a kill tears the last frame only.
//!   (All frames of a batch in one store could leave its COMMIT without a record.)
//!
//! What waits for a sync is written all the same: a sync write-protects the pages that it stores,
//! and the next store into one of them costs a fault. Zeros go ahead of that too, since a sync of
//! blocks that were written once before costs less. Long frames are written without zeros, which
//! would cost more than the call.

use std::sync::Arc;

use crate::engine::setup::options::TailWriter;
use crate::engine::state::log_state::Tail;
use crate::engine::storage::TailWindow;
use crate::engine::write::Engine;
use crate::error::Result;
use crate::format::ExtentSize;
use crate::format::codec::len_u32;
use crate::format::frame::FRAME_HEADER_LEN;
use crate::types::Durability;

/// Frames that are longer together are written. On ext4, where zeros are written in large folios,
/// both ways cost the same at 8 to 16 KiB; on tmpfs, which has no such thing, at 2 KiB.
const MAX_STORED: usize = 8 << 10;

/// How far zeros go ahead at least.
const FIRST_ZEROS: u32 = 4 << 10;

/// How far zeros go ahead of what waits for a sync: they take a call for each block.
const MOST_FOR_SYNCS: u32 = 64 << 10;

/// Whether the tail's segment can be stored into.
#[derive(Debug, Default)]
pub(crate) enum Stores {
    /// Nobody has asked yet.
    #[default]
    Unasked,
    /// It cannot, or is not to be.
    Refused,
    /// It can.
    Window {
        /// The segment's extent.
        window: Arc<dyn TailWindow>,
        /// Between the end of the log and here there are zeros that this process wrote.
        zeroed: u32,
        /// How far zeros go ahead the next time: further each time, as long as all is stored.
        ahead: u32,
    },
}

/// How far zeros go ahead at most. With 64 KiB, one append in two hundred would stop to write them.
fn most_zeros(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 16).clamp(FIRST_ZEROS, 128 << 10)
}

impl Engine {
    /// Whether a frame with so long a payload may be stored.
    pub(crate) fn is_short(&self, payload: usize) -> bool {
        let most = (self.extent_size.inline_limit() as usize).min(MAX_STORED - FRAME_HEADER_LEN);
        payload <= most
    }
}

impl Tail {
    /// Whether the next `len` bytes of the tail, which are allocated, are to be stored. Sees to it
    /// that there are zeros. A failure has changed nothing.
    pub(crate) fn stores_next(
        &mut self,
        engine: &Engine,
        len: usize,
        level: Durability,
    ) -> Result<bool> {
        if level != Durability::Process || len > MAX_STORED {
            if level == Durability::Disk {
                self.zero_for_syncs(engine, len)?;
            }
            if let Stores::Window { ahead, .. } = &mut self.stores {
                *ahead = FIRST_ZEROS;
            }
            return Ok(false);
        }
        self.ask_for_window(engine);
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
        *ahead = (*ahead * 2).min(most_zeros(engine.extent_size));
        window.pause();
        self.zero_to(engine, goal, u32::MAX)?;
        Ok(true)
    }

    /// Writes zeros behind those that are there up to `goal`, so many with one call.
    fn zero_to(&mut self, engine: &Engine, goal: u32, at_once: u32) -> Result<()> {
        let Stores::Window { zeroed, .. } = &mut self.stores else { return Ok(()) };
        let mut from = self.offset.max(*zeroed);
        while from < goal {
            let next = (from + 1).checked_next_multiple_of(at_once).unwrap_or(goal).min(goal);
            let at = self.segment.file_offset() + u64::from(from);
            engine.disk.zero(at, (next - from) as usize)?;
            (*zeroed, from) = (next, next);
        }
        Ok(())
    }

    /// Sees to it that frames that wait for a sync are written over zeros: a sync of blocks that
    /// were never written has to change the file's map of blocks too, each time. Block by block,
    /// since zeros that are written together would be synced together each time one of them
    /// changes.
    fn zero_for_syncs(&mut self, engine: &Engine, len: usize) -> Result<()> {
        self.ask_for_window(engine);
        let Stores::Window { zeroed, .. } = &self.stores else { return Ok(()) };
        let end = self.offset.saturating_add(len_u32(len));
        let most = most_zeros(engine.extent_size).min(MOST_FOR_SYNCS);
        if end <= *zeroed || len > most as usize {
            return Ok(());
        }
        self.zero_to(engine, end.next_multiple_of(most).min(self.allocated), FIRST_ZEROS)
    }

    /// Puts one frame into the file at the end of the log, where zeros went ahead: a head of whole
    /// words, and the rest.
    #[inline]
    pub(crate) fn put_frame(&self, engine: &Engine, head: &[u8], rest: &[u8]) -> Result<()> {
        self.store_at(engine, self.offset as usize, head, rest)
    }

    #[inline]
    fn store_at(&self, engine: &Engine, at: usize, head: &[u8], rest: &[u8]) -> Result<()> {
        let Stores::Window { window, zeroed, .. } = &self.stores else {
            return Err(crate::error::Error::Poisoned);
        };
        assert!(at + head.len() + rest.len() <= *zeroed as usize, "zeros went ahead");
        engine.disk.store_frame(&**window, self.segment.file_offset(), at, head, rest)
    }

    /// Whether the next `len` bytes are to be stored, and zeros went ahead of them already.
    pub(crate) fn has_zeros_for(&self, len: usize) -> bool {
        let Stores::Window { zeroed, .. } = &self.stores else { return false };
        len <= MAX_STORED && self.offset as usize + len <= *zeroed as usize
    }

    fn ask_for_window(&mut self, engine: &Engine) {
        if !matches!(self.stores, Stores::Unasked) {
            return;
        }
        let len = engine.extent_size.bytes_u32() as usize;
        let window = match engine.options.tail_writer {
            TailWriter::Pwrite => None,
            _ => engine.disk.map_tail(self.segment.file_offset(), len),
        };
        self.stores = match window {
            Some(window) => Stores::Window { window, zeroed: 0, ahead: FIRST_ZEROS },
            None => Stores::Refused,
        };
    }

    /// Puts frames into the file at the end of the log, frame by frame if they are to be stored.
    pub(crate) fn put(
        &self,
        engine: &Engine,
        bytes: &[u8],
        lens: impl Iterator<Item = usize>,
        stored: bool,
    ) -> Result<()> {
        if !stored {
            let at = self.segment.file_offset() + u64::from(self.offset);
            return engine.disk.write(at, bytes);
        }
        let (mut at, mut rest) = (self.offset as usize, bytes);
        for len in lens {
            let (frame, behind) = rest.split_at(len);
            self.store_at(engine, at, frame, &[])?;
            (at, rest) = (at + len, behind);
        }
        assert!(rest.is_empty(), "the frames are all of the bytes");
        Ok(())
    }

    /// How frames of the tail reach the file.
    pub(crate) fn writer(&mut self, engine: &Engine) -> TailWriter {
        self.ask_for_window(engine);
        match self.stores {
            Stores::Window { .. } => TailWriter::Mapped,
            _ => TailWriter::Pwrite,
        }
    }
}
