//! What was damaged when a view was built: whether it is whole again, which the superblocks and the
//! manifest do not tell. A file may be restored in place.

use core::ops::Range;
use std::collections::HashSet;

use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Place, Result};
use crate::format::PAGE;
use crate::format::frames::frame::SegmentKey;
use crate::format::map::superblock::ManifestAt;
use crate::types::{ExtentNo, LogPosition, SegmentId};

/// After so many looks in vain they become rare: one of so many for each that many bytes. A
/// follower looks 25 times a second.
const SOON: u64 = 8;
const RARELY: u64 = 25;
const MUCH: u64 = 4 << 20;

/// The ranges of the file that a view takes for damaged.
#[derive(Debug, Clone, Default)]
pub(super) struct Damaged {
    /// Each with a check of its bytes.
    ranges: Vec<(Range<u64>, u32)>,
    /// The length of the file, if segments were looked for in all of it.
    len: Option<u64>,
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
        let tail = (&state.tail.segment, state.tail.offset);
        let sealed = state.catalog.segments().iter().chain(&state.unapplied);
        let sealed = sealed.filter_map(|one| Some((one, one.sealed()?.end)));
        let frames = report.damaged.iter().filter_map(|damage| match damage.place {
            Place::Frame(frame) => Some(frame.segment),
            _ => None,
        });
        let with_damage: HashSet<SegmentId> = frames.collect();
        for (segment, end) in sealed.chain([tail]) {
            let at = segment.file_offset();
            if segment.quarantine().is_some() || segment.is_sealed_here() {
                // The directory was made of all frames.
                // A page more shows that a file that was cut off has grown again.
                let last = (at + segment.data_end() as u64).max(at + u64::from(end));
                let extent_end = segment.extent_size().end_of(segment.extent());
                ranges.push(at..(last + PAGE).min(extent_end.max(last)));
            } else if with_damage.contains(&segment.id()) {
                ranges.push(at..at + u64::from(end));
            }
        }
        let file_len = disk.len()?;
        let check = |range: Range<u64>| Ok((range.clone(), check_of(disk, file_len, &range)?));
        let ranges = ranges.into_iter().map(check).collect::<Result<_>>()?;
        let len = report.salvaged.then_some(file_len);
        Ok(Self { ranges, len })
    }

    /// The same with the check of an earlier look, if that was at the same places: what became
    /// whole since is noticed then.
    pub(super) fn unless_seen(self, earlier: Option<&Self>) -> Self {
        let places =
            |all: &Self| all.ranges.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>();
        match earlier {
            Some(earlier) if places(earlier) == places(&self) => earlier.clone(),
            _ => self,
        }
    }

    /// How many bytes that are.
    pub(super) fn len(&self) -> u64 {
        self.ranges.iter().map(|(range, _)| range.end.saturating_sub(range.start)).sum()
    }

    /// Whether other bytes are there by now.
    pub(super) fn has_changed(&self, disk: &Disk) -> Result<bool> {
        if self.ranges.is_empty() && self.len.is_none() {
            return Ok(false);
        }
        let file_len = disk.len()?;
        if self.len.is_some_and(|len| len != file_len) {
            return Ok(true);
        }
        for (range, check) in &self.ranges {
            if check_of(disk, file_len, range)? != *check {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an earlier view had much to look at, and the same, but for single pages: a writer
    /// that goes on sets other segments aside.
    pub(super) fn is_as_long(&self, earlier: &Self) -> bool {
        let is_long =
            |(range, _): &&(Range<u64>, u32)| range.end.saturating_sub(range.start) > PAGE;
        let of = |all: &Self| all.ranges.iter().filter(is_long).cloned().collect::<Vec<_>>();
        let now = of(self);
        !now.is_empty() && now == of(earlier)
    }
}

/// A place behind the frames of a view that does not check, with a whole frame behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) at: LogPosition,
    /// A check of all that the segment has from there on: what is behind it decides too whether the
    /// log ends here.
    check: u32,
}

impl Gap {
    /// What is there now.
    pub(super) fn at(segment: &Segment, offset: u32) -> Result<Self> {
        let from = segment.file_offset() + u64::from(offset);
        let end = segment.extent_size().end_of(segment.extent());
        let check = check_of(segment.disk(), segment.disk().len()?, &(from..end))?;
        Ok(Self { at: segment.position(offset), check })
    }

    /// Whether the same is there now, and nothing was written behind it.
    pub(super) fn is_still_there(&self, segment: &Segment) -> Result<bool> {
        Ok(Self::at(segment, self.at.offset)? == *self)
    }
}

/// Whether a segment of an earlier view may be used again: not if its directory was made of its
/// frames, since more of them may be whole by now.
pub(super) fn may_stay(segment: &Segment) -> bool {
    segment.quarantine().is_none()
}

/// Repeats a look that may be in vain: at once while a frame may still be being written, and rarely
/// once it is likely that it stays as it is, so that who polls takes no time of the processor.
#[derive(Debug, Default)]
pub(super) struct Vain {
    at: LogPosition,
    looks: u64,
}

impl Vain {
    /// Whether to look again at something at this place; more rarely if it is more than [`MUCH`]
    /// bytes and not urgent, else 0.
    pub(super) fn is_due(&mut self, at: LogPosition, bytes: u64) -> bool {
        if self.at != at {
            *self = Self { at, looks: 0 };
        }
        self.looks += 1;
        self.looks <= SOON || self.looks.is_multiple_of(RARELY * bytes.div_ceil(MUCH).max(1))
    }
}

fn check_of(disk: &Disk, file_len: u64, range: &Range<u64>) -> Result<u32> {
    let mut check = crc32fast::Hasher::new();
    // What was cut off may be zeros. The rest of the file may grow.
    let end = file_len.clamp(range.start, range.end.max(range.start));
    check.update(&end.to_le_bytes());
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
    check.update(&disk.read_padded(range.start, len)?);
    Ok(check.finalize())
}
