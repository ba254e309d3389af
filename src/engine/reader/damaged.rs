//! What was damaged when a view was built: whether it is whole again, which the superblocks and the
//! manifest do not tell. A file may be restored in place.

use core::ops::Range;

use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Place, Result, unless_damaged};
use crate::format::PAGE;
use crate::format::frames::frame::SegmentKey;
use crate::format::map::manifest::used_len;
use crate::format::map::superblock::ManifestAt;
use crate::types::{ExtentNo, LogPosition};

/// The ranges of the file that a view takes for damaged.
#[derive(Debug, Clone, Default)]
pub(super) struct Damaged {
    ranges: Vec<Range<u64>>,
    /// A check of their bytes.
    check: u32,
}

impl Damaged {
    /// What the report of a view and its segments tell. Nothing if all is whole.
    pub(super) fn of(
        disk: &Disk,
        state: &LogState,
        report: &RecoveryReport,
        (manifest, unsealed): (ManifestAt, &[(ExtentNo, SegmentKey)]),
    ) -> Result<Self> {
        let mut ranges = Vec::new();
        // Noise in a segment that was set aside makes the one in front of it look closed.
        if report.is_clean() && !state.unapplied.iter().any(|segment| segment.is_sealed_here()) {
            return Ok(Self::default());
        }
        let is_damaged =
            |place: fn(&Place) -> bool| report.damaged.iter().any(|damage| place(&damage.place));
        if report.salvaged || is_damaged(|place| matches!(place, Place::Manifest { .. })) {
            ranges.push(manifest.offset..manifest.offset.saturating_add(manifest.len));
        }
        if report.salvaged || is_damaged(|place| matches!(place, Place::Header)) {
            ranges.push(0..PAGE);
        }
        // Segments that the view has nothing of: their headers, or what is behind the end.
        let size = state.tail.segment.extent_size();
        let extents = report.damaged.iter().filter_map(|damage| match damage.place {
            Place::Extent { extent } => Some(extent),
            _ => None,
        });
        let left_out = unsealed.iter().filter(|(_, key)| state.segment(key.id).is_none());
        let first_pages = extents.chain(left_out.map(|(extent, _)| *extent));
        ranges.extend(first_pages.map(|extent| {
            let at = size.offset_of(extent);
            at..at + PAGE
        }));
        for damage in &report.damaged {
            if let Place::Frame(at) = damage.place
                && let Some(segment) = state.segment(at.segment)
            {
                ranges.push(frame_at(&segment, at.offset)?);
            }
        }
        for segment in state.catalog.segments().iter().chain(&state.unapplied) {
            let Some(at) = segment.sealed() else { continue };
            if segment.directory_damage().is_some() || segment.is_sealed_here() {
                ranges.push(frame_at(segment, first_odd(segment, at.seal)?)?);
            }
        }
        let check = check_of(disk, &ranges)?;
        Ok(Self { ranges, check })
    }

    /// The same with the check of an earlier look, if that was at the same places: what became
    /// whole since is noticed then.
    pub(super) fn unless_seen(self, earlier: Option<&Self>) -> Self {
        match earlier {
            Some(earlier) if earlier.ranges == self.ranges => earlier.clone(),
            _ => self,
        }
    }

    /// Whether other bytes are there by now.
    pub(super) fn has_changed(&self, disk: &Disk) -> Result<bool> {
        Ok(!self.ranges.is_empty() && check_of(disk, &self.ranges)? != self.check)
    }
}

/// What has to change before something else can be read at a place that does not check: a frame of
/// which the header checks, or what stands in place of a header.
fn frame_at(segment: &Segment, offset: u32) -> Result<Range<u64>> {
    let at = segment.file_offset() + u64::from(offset);
    let header = unless_damaged(segment.read_header(offset))?;
    Ok(at..at + header.map_or(PAGE, |header| header.frame_len() as u64))
}

/// The first place at or behind `offset` where no whole frame is.
fn first_odd(segment: &Segment, mut offset: u32) -> Result<u32> {
    while let Some((header, _)) = unless_damaged(segment.read_frame(offset))? {
        offset = offset.saturating_add(u32::try_from(header.frame_len()).unwrap_or(u32::MAX));
    }
    Ok(offset)
}

/// A place behind the frames of a view that does not check, with a whole frame behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) at: LogPosition,
    /// The bytes of the segment that are not zero end here.
    written: u32,
    /// A check of what stands at both places.
    check: u32,
}

impl Gap {
    /// What is there now.
    pub(super) fn at(segment: &Segment, offset: u32) -> Result<Self> {
        let written = u32::try_from(used_len(&segment.read_all()?)).unwrap_or(u32::MAX);
        Self::between(segment, offset, written)
    }

    fn between(segment: &Segment, offset: u32, written: u32) -> Result<Self> {
        let (at, end) = (segment.file_offset(), segment.extent_size().end_of(segment.extent()));
        let from = at + u64::from(written);
        let ranges = [frame_at(segment, offset)?, from..(from + PAGE).min(end)];
        let check = check_of(segment.disk(), &ranges)?;
        Ok(Self { at: segment.position(offset), written, check })
    }

    /// Whether the same is there now, and nothing was written behind it.
    pub(super) fn is_still_there(&self, segment: &Segment) -> Result<bool> {
        Ok(Self::between(segment, self.at.offset, self.written)? == *self)
    }
}

/// Whether a segment of an earlier view may be used again: not if its directory was damaged and is
/// whole by now.
pub(super) fn may_stay(segment: &Segment) -> bool {
    segment.directory_damage().is_none() || segment.stored_directory().is_err()
}

fn check_of(disk: &Disk, ranges: &[Range<u64>]) -> Result<u32> {
    let mut check = crc32fast::Hasher::new();
    // What was cut off may be zeros.
    check.update(&disk.len()?.to_le_bytes());
    for range in ranges {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        check.update(&disk.read_padded(range.start, len)?);
    }
    Ok(check.finalize())
}
