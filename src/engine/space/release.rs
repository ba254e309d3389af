//! Releasing blocks that no frame will use. Behind the directory of a sealed segment they are
//! released once the catalog has the segment: it is durable then, and its holders keep the extent.
//! When the store is closed, they are also released behind the reserve at the end of the log and in
//! segments that are set aside; later writers allocate first
//! ([`Mark::Allocated`](crate::engine::state::segment::Mark)).
//!
//! These bytes read as zeros before and after, so a crash or a failure costs only space.

use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::SpaceReturn;
use crate::engine::space::Space;
use crate::error::Result;
use crate::types::ExtentNo;

/// The blocks of file systems. A smaller range is not worth a call.
const BLOCK: u32 = 4096;

/// The most bytes that one call returns to the file system, unless an extent is larger. One call
/// for several extents costs less, but appends may wait for it.
const GIVEN_BACK_AT_ONCE: u64 = 16 << 20;

/// The most bytes that closing returns to the file system: a gigabyte takes a fifth of a second.
const GIVEN_BACK_AT_CLOSE: u64 = 256 << 20;

impl Space {
    /// Returns the blocks of freed extents to the file system, in small steps: this takes longer
    /// than all other work of freeing, and beginning a segment may wait for one step.
    pub(crate) fn give_back_freed(&self) -> Result<()> {
        self.setup.watch(Activity::GiveBack, || {
            while !self.due.is_stopping() && self.give_back_some()? {}
            Ok(())
        })
    }

    /// The same at closing, limited to a short time: the rest follows after the next opening. If
    /// free extents keep their blocks, all of it, because only erased runs are left then, and the
    /// next opening after a proper close does not look for them.
    pub(crate) fn give_back_at_close(&self) -> Result<()> {
        let mut steps =
            GIVEN_BACK_AT_CLOSE / self.setup.extent_size.bytes().max(GIVEN_BACK_AT_ONCE);
        let keeps = self.setup.options.compaction.space == SpaceReturn::Keep;
        self.setup.watch(Activity::GiveBack, || {
            while (keeps || steps > 0) && self.give_back_some()? {
                steps = steps.saturating_sub(1);
            }
            Ok(())
        })
    }

    /// Cuts off some of the free extents at the end of the file; if there are none, punches out
    /// some adjacent free extents. Returns whether there were any.
    fn give_back_some(&self) -> Result<bool> {
        let space = self.setup.options.compaction.space;
        // Held throughout, so that no other thread begins to use one of them.
        let mut allocator = self.allocator.lock();
        let (len, most) =
            (self.disk.len()?, self.setup.extent_size.bytes().max(GIVEN_BACK_AT_ONCE));
        if space == SpaceReturn::Shrink {
            // The reserve, if it is the last extent, keeps the file from shrinking.
            let last = allocator.manifest.last_in_use();
            let reserve = &mut allocator.compaction_reserve;
            if let Some(extent) = reserve.take_if(|extent| Some(*extent) == last) {
                allocator.let_go(extent);
            }
            let end = allocator.manifest.end_in_use();
            if len > end {
                allocator.sync()?;
                self.disk.set_len(end.max(len.saturating_sub(most)))?;
                return Ok(true);
            }
        }
        // An extent that is in use again or behind the end of the file has no blocks to return.
        let is_free = |extent: &ExtentNo| {
            let is_there = self.setup.extent_size.offset_of(*extent) < len;
            is_there && allocator.freed.contains(extent) && allocator.manifest.is_free(*extent)
        };
        let Some(first) = allocator.freed.iter().copied().find(is_free) else {
            allocator.freed.clear();
            return Ok(false);
        };
        let is_near = |extent: &ExtentNo| {
            self.setup.extent_size.end_of(*extent) - self.setup.extent_size.offset_of(first) <= most
        };
        let some =
            (first.0..).map(ExtentNo).take_while(|extent| is_near(extent) && is_free(extent));
        let last = some.last().unwrap_or(first);
        allocator.sync()?;
        allocator.punch(first, u64::from(last.0 - first.0) + 1)?;
        allocator.freed = allocator.freed.split_off(&ExtentNo(last.0 + 1));
        Ok(true)
    }

    /// Returns the blocks of all free extents, whatever the options say.
    pub(crate) fn give_back_all(&self) -> Result<()> {
        let mut allocator = self.allocator.lock();
        allocator.sync()?;
        let count = self.setup.extent_size.extents_in(self.disk.len()?);
        for extent in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(ExtentNo) {
            if allocator.manifest.is_free(extent) {
                allocator.punch(extent, 1)?;
            }
        }
        self.disk.sync()
    }

    /// Leaves only zeros behind `end` of the extent that is at `extent` in the file, whatever the
    /// options say.
    pub(crate) fn clear_behind(&self, extent: u64, end: u32) -> Result<()> {
        let size = self.setup.extent_size.bytes_u32();
        let block = end.next_multiple_of(BLOCK).min(size);
        self.disk.zero(extent + u64::from(end), block.saturating_sub(end) as usize)?;
        let at = extent + u64::from(block);
        let len = self.disk.len()?.saturating_sub(at).min(u64::from(size - block));
        if len == 0 { Ok(()) } else { self.disk.punch(at, len) }
    }

    /// Releases the blocks behind `end` of the extent that is at `extent` in the file.
    pub(crate) fn trim(&self, extent: u64, end: u32) -> Result<()> {
        let (start, size) = (end.next_multiple_of(BLOCK), self.setup.extent_size.bytes_u32());
        if start >= size || self.setup.options.compaction.space == SpaceReturn::Keep {
            return Ok(());
        }
        let at = extent + u64::from(start);
        let len = self.disk.len()?.saturating_sub(at).min(u64::from(size - start));
        if len == 0 { Ok(()) } else { self.disk.punch(at, len) }
    }
}
