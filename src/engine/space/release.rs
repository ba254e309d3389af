//! Giving back the blocks that no frame will be in: behind the directory of a sealed segment, once
//! the catalog has it (it is durable then, and its holders keep the extent); and, when the store is
//! closed, behind the end of the log and in segments that were set aside. Who writes there later
//! allocates first ([`Mark::Allocated`](crate::engine::state::segment::Mark)).
//!
//! These bytes read as zeros before and after, so that a crash or a failure costs space only.

use crate::engine::setup::options::SpaceReturn;
use crate::engine::state::segment::Segment;
use crate::engine::write::Engine;
use crate::error::Result;

/// The blocks of file systems; less is not worth a call.
const BLOCK: u32 = 4096;

impl Engine {
    /// Gives back what is behind the directory of a sealed segment.
    pub(crate) fn trim_sealed(&self, segment: &Segment) -> Result<()> {
        let Some(sealed) = segment.sealed() else { return Ok(()) };
        let seal = segment.read_header(sealed.seal)?;
        let len = u32::try_from(seal.frame_len()).unwrap_or(u32::MAX);
        self.trim(segment, sealed.seal.saturating_add(len))
    }

    /// Gives back what was allocated for appends that will not come. The store is closed.
    pub(crate) fn trim_unused(&self) -> Result<()> {
        let core = self.core.lock();
        self.trim(&core.tail.segment, core.tail.offset)?;
        for segment in self.reserved.lock().iter() {
            self.trim(segment, BLOCK)?;
        }
        Ok(())
    }

    /// Gives back the whole blocks of a segment's extent from `end` on.
    fn trim(&self, segment: &Segment, end: u32) -> Result<()> {
        let (start, size) = (end.next_multiple_of(BLOCK), self.extent_size.bytes_u32());
        if start >= size || self.options.compaction.space == SpaceReturn::Keep {
            return Ok(());
        }
        let at = segment.file_offset() + u64::from(start);
        let len = self.disk.len()?.saturating_sub(at).min(u64::from(size - start));
        if len == 0 { Ok(()) } else { self.disk.punch(at, len) }
    }
}
