//! Giving back the blocks that no frame will ever be in, or none for now.
//!
//! - Behind the directory of a sealed segment: what was kept for ends, and what was too short for
//!   the record that came next. Given back once the segment is in the catalog: it is durable then,
//!   and whoever holds it keeps its extent from being used again meanwhile.
//! - When the store is closed, behind the end of the log, and in segments that were set aside. Who
//!   writes there after the next open allocates first ([`Mark::Allocated`](super::segment::Mark)).
//!
//! Nobody looks at these bytes, and they read as zeros before and after, so that neither a crash in
//! between nor a failure changes anything but space.

use super::options::SpaceReturn;
use super::segment::Segment;
use super::shared::Engine;
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
