//! Finding the segments of a damaged store: by its manifest, if that can be trusted; else by the
//! headers of segments; and where a header is lost, by the frames themselves.

use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::engine::open::front_matter::{Base, identify, read_base, read_slots};
use crate::engine::salvage::around::Around;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::frame::{FRAME_ALIGN, FRAME_HEADER_LEN, FrameCheck, SegmentKey};
use crate::format::map::manifest::Use;
use crate::format::map::superblock::{FLAG_COPY, ManifestAt};
use crate::format::segments::lost_key::key_of_frame;
use crate::format::segments::segment::{MAGIC, Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{EXTENTS_AT, ExtentSize, FORMAT_VERSION, PAGE, PAGE_LEN, SUPERBLOCK_AT};
use crate::types::{ExtentNo, LogPosition};

/// What superblocks of every version begin with; the digit of the version follows.
const SUPERBLOCK: &[u8; 7] = b"RLOGSUP";
/// Segments begin at multiples of this, whatever the size of the extents is.
const SMALLEST: u64 = EXTENTS_AT;
/// So many whole frames show that a segment begins at a place.
const PROOF: u32 = 3;
/// How many bytes of payloads are checked in the search for lost keys, for each byte of a file. In
/// a file that no one made on purpose no byte is checked twice.
const EFFORT: usize = 4;

/// A segment of the damaged store.
#[derive(Debug)]
pub(crate) struct Found {
    /// Where it starts in the file.
    pub(crate) at: u64,
    pub(crate) check: FrameCheck,
    pub(crate) purpose: Purpose,
    /// Where its log ends, if the manifest says that.
    pub(crate) end: Option<u32>,
    /// The manifest says that it does not count: its runs were deleted, or have been moved.
    pub(crate) retired: bool,
    /// The manifest lists it as a part of the log, and its header must be there and is lost.
    pub(crate) is_headless: bool,
}

impl Found {
    /// One of which the manifest says nothing.
    fn new(at: u64, check: FrameCheck, purpose: Purpose) -> Self {
        Self { at, check, purpose, end: None, retired: false, is_headless: false }
    }
}

/// What was found in front of the frames.
#[derive(Debug)]
pub(crate) struct Located {
    /// Shows zeros in the place of what cannot be read.
    pub(crate) disk: Disk,
    pub(crate) around: Arc<Around>,
    pub(crate) extent_size: ExtentSize,
    /// Whether the file still says how large its extents are.
    pub(crate) is_size_known: bool,
    pub(crate) segments: Vec<Found>,
    /// Whether the manifest is whole and up to date.
    pub(crate) has_manifest: bool,
    /// Segments whose headers are lost.
    pub(crate) lost_headers: u64,
    /// What cannot be read of extents that may have been segments: nothing tells.
    pub(crate) unread: Vec<Range<u64>>,
    /// Extents of segments that the file does not have any more: it was cut off.
    pub(crate) lost: Vec<Range<u64>>,
    /// What was durable, as far as the superblocks tell.
    pub(crate) durable: LogPosition,
    /// Whether frames tell it too. Those of a copy say what was durable in the store.
    pub(crate) by_frames: bool,
    pub(crate) damaged: Vec<Corruption>,
}

/// Looks for the segments.
///
/// # Errors
/// [`Error::UnsupportedVersion`], [`Error::UnsupportedFeatures`], [`Error::NotAStore`] if nothing
/// shows that the file was a store, and [`Error::Truncated`].
pub(crate) fn locate(plain: &Disk, around: &Arc<Around>) -> Result<Located> {
    let mut report = RecoveryReport::default();
    let refuse =
        || -> Result<Base> { Err(Error::corrupt(Place::Manifest { offset: 0 }, Damage::Missing)) };
    let disk = Disk::without_views(Arc::<Around>::clone(around));
    let mut base = read_base(plain, &mut report, false);
    if matches!(base, Err(Error::Io { .. })) {
        report = RecoveryReport::default();
        base = read_base(&disk, &mut report, false);
        if base.as_ref().is_ok_and(|base| may_be_old(base, around)) {
            base = refuse().and(base);
        }
    }
    match base {
        Ok(base) => {
            let of_extent = |one: &Corruption| match one.place {
                Place::Extent { extent } => Some(extent),
                _ => None,
            };
            let without_header: HashSet<_> = report.damaged.iter().filter_map(of_extent).collect();
            let mut located = Located {
                disk,
                around: Arc::clone(around),
                extent_size: base.extent_size,
                is_size_known: true,
                segments: Vec::new(),
                has_manifest: true,
                lost_headers: 0,
                unread: Vec::new(),
                lost: Vec::new(),
                durable: base.durable,
                by_frames: base.superblock.flags & FLAG_COPY == 0,
                damaged: report.damaged,
            };
            let len = located.disk.len()?;
            for (&extent, used) in &base.extents.uses {
                let is_cut_off = located.range_of(extent).start >= len;
                let is_headless = is_cut_off || without_header.contains(&extent);
                located.take_listed(extent, *used, is_headless)?;
            }
            let is_cut_off = |extent: &ExtentNo| !base.extents.uses.contains_key(extent);
            let cut_off = without_header.into_iter().filter(is_cut_off);
            located.lost = cut_off.map(|extent| located.range_of(extent)).collect();
            Ok(located)
        }
        Err(Error::Damaged(_) | Error::Corrupt(_) | Error::NotAStore { .. }) => {
            without_manifest(disk, around, report.damaged)
        }
        Err(error) => Err(error),
    }
}

/// Whether a newer manifest may be in what could not be read: its last records, or the head of an
/// extent with a segment of which they tell.
fn may_be_old(base: &Base, around: &Around) -> bool {
    let is_unread = |range| !around.unread_in(&range).is_empty();
    let ManifestAt { offset, len, .. } = base.manifest;
    is_unread(offset..offset.saturating_add(len))
        || ((base.lacks_slot || !base.behind.is_empty()) && is_unread(EXTENTS_AT..u64::MAX))
}

/// Looks for the segments in all extents.
fn without_manifest(disk: Disk, around: &Arc<Around>, damaged: Vec<Corruption>) -> Result<Located> {
    let page = disk.read_padded(0, PAGE_LEN)?;
    let mut report = RecoveryReport { damaged, ..RecoveryReport::default() };
    let mut again = RecoveryReport::default();
    let slots = read_slots(&disk, &mut again)?;
    let durable = slots.iter().map(|block| block.durable).max().unwrap_or_default();
    let by_frames = slots.last().is_none_or(|block| block.flags & FLAG_COPY == 0);
    let known = match identify(&page, disk.len()?, slots.last(), &mut again, false) {
        Ok(known) => Some(known),
        Err(error @ (Error::UnsupportedVersion { .. } | Error::UnsupportedFeatures { .. })) => {
            return Err(error);
        }
        Err(error) => {
            refuse_newer(&disk)?;
            if let Error::Corrupt(damage) = error {
                report.damaged.push(damage);
            }
            None
        }
    };
    for damage in again.damaged {
        if !report.damaged.contains(&damage) {
            report.damaged.push(damage);
        }
    }
    let is_size_known = known.is_some();
    let (uuid, extent_size) = match known {
        Some((uuid, size)) => (Some(uuid), size),
        None => identity_by_segments(&disk)?,
    };
    let mut located = Located {
        disk,
        around: Arc::clone(around),
        extent_size,
        is_size_known,
        segments: Vec::new(),
        has_manifest: false,
        lost_headers: 0,
        unread: Vec::new(),
        lost: Vec::new(),
        durable,
        by_frames,
        damaged: report.damaged,
    };
    located.search(uuid)?;
    if located.segments.is_empty() && !is_size_known {
        if let Some(error) = around.first_failure() {
            return Err(error);
        }
        let found = page.into_iter().take(16).collect();
        return Err(Error::NotAStore { found, len: located.disk.len()? });
    }
    Ok(located)
}

/// Refuses a store whose superblocks are of another version: its header does not check, and its
/// segments may be read wrongly.
fn refuse_newer(disk: &Disk) -> Result<()> {
    for slot in 0..2 {
        let head = disk.read_padded(SUPERBLOCK_AT + slot * PAGE, SUPERBLOCK.len() + 1)?;
        let Some(version) = head.strip_prefix(SUPERBLOCK).and_then(|rest| rest.first()) else {
            continue;
        };
        let found = u32::from(version.wrapping_sub(b'0'));
        if (FORMAT_VERSION + 1..10).contains(&found) {
            return Err(Error::UnsupportedVersion { found, supported: FORMAT_VERSION });
        }
    }
    Ok(())
}

/// The store that most segments in the file belong to, and the size of its extents, as far as the
/// places of the segments tell: a size that is too large only hides segments without a header.
fn identity_by_segments(disk: &Disk) -> Result<(Option<[u8; 16]>, ExtentSize)> {
    let len = disk.len()?;
    let mut stores: HashMap<[u8; 16], (u64, u32)> = HashMap::new();
    let mut at = EXTENTS_AT;
    while at < len {
        let head = disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
        if let Ok(header) = SegmentHeader::decode(&head) {
            let (count, zeros) = stores.entry(header.uuid).or_insert((0, u32::MAX));
            *count += 1;
            *zeros = zeros_of(at).min(*zeros);
        }
        at += SMALLEST;
    }
    let most = stores.into_iter().max_by_key(|(uuid, (count, _))| (*count, *uuid));
    let (uuid, by_headers) = match most {
        Some((uuid, (_, zeros))) => (Some(uuid), zeros),
        None => (None, u32::MAX),
    };
    let zeros = by_headers.min(zeros_by_frames(disk, len)?);
    let log2 = zeros.clamp(ExtentSize::MIN.log2().into(), ExtentSize::MAX.log2().into());
    let size = u8::try_from(log2).ok().and_then(ExtentSize::from_log2);
    Ok((uuid, size.unwrap_or(ExtentSize::MAX)))
}

/// How many times two divides the distance of a place from the first extent.
fn zeros_of(at: u64) -> u32 {
    (at - EXTENTS_AT).trailing_zeros()
}

/// The same of all places at which segments begin according to the frames in the file.
fn zeros_by_frames(disk: &Disk, len: u64) -> Result<u32> {
    let most = usize::try_from(ExtentSize::MAX.bytes()).unwrap_or(usize::MAX);
    let step = most / 4;
    let mut bases: HashMap<u64, u32> = HashMap::new();
    // A frame may begin in one piece and end in the next.
    let (mut piece_at, mut next) = (EXTENTS_AT, EXTENTS_AT);
    while piece_at < len {
        if disk.data_end(piece_at, step as u64) > piece_at {
            let bytes = disk.read_padded(piece_at, 2 * step)?;
            let mut effort = EFFORT * step;
            let mut at = usize::try_from(next.saturating_sub(piece_at)).unwrap_or(0);
            while at < step {
                let rest = bytes.get(at..).unwrap_or_default();
                let claimed = rest.first_chunk::<20>().map_or(0, |head| {
                    u64::from(u32::from_le_bytes([head[16], head[17], head[18], head[19]]))
                });
                let here = piece_at + at as u64;
                let base = here.checked_sub(claimed).filter(|base| *base >= EXTENTS_AT);
                let base = base.filter(|base| claimed >= 64 && base.is_multiple_of(SMALLEST));
                let offset = u32::try_from(claimed).unwrap_or(u32::MAX);
                let whole = base.and_then(|base| {
                    let (_, len) = whole_frame(rest, offset, &mut effort)?;
                    Some((base, len))
                });
                if let Some((base, len)) = whole {
                    *bases.entry(base).or_default() += 1;
                    at += len;
                } else {
                    at += FRAME_ALIGN;
                }
            }
            next = piece_at + at as u64;
        }
        piece_at += step as u64;
    }
    let proven = bases.into_iter().filter(|(_, frames)| *frames >= PROOF);
    Ok(proven.map(|(base, _)| zeros_of(base)).min().unwrap_or(u32::MAX))
}

/// The key of the frame at the beginning of `rest`, and its length, if all of it checks.
fn whole_frame(
    rest: &[u8],
    offset: u32,
    effort: &mut usize,
) -> Option<((SegmentKey, bool), usize)> {
    let (key, header) = key_of_frame(rest, offset)?;
    let padded = rest.get(FRAME_HEADER_LEN..header.frame_len())?;
    *effort = effort.checked_sub(padded.len())?;
    header.check_payload(&FrameCheck::new(key), padded).ok()?;
    let of_log = header.durable != LogPosition::default();
    Some(((key, of_log), header.frame_len()))
}

impl Located {
    /// Where an extent is in the file.
    fn range_of(&self, extent: ExtentNo) -> Range<u64> {
        let at = self.extent_size.offset_of(extent);
        at..at.saturating_add(self.extent_size.bytes())
    }

    /// Takes a segment that the manifest lists.
    fn take_listed(&mut self, extent: ExtentNo, used: Use, is_headless: bool) -> Result<()> {
        let (key, purpose, sealed, retired) = match used {
            Use::Log { segment: id, salt, purpose, sealed } => {
                // Outputs count once they are sealed; until then their frames are in the victims.
                let is_begun = purpose == Purpose::Output && sealed.is_none();
                (SegmentKey { id, salt }, purpose, sealed, is_begun)
            }
            Use::Retired { segment: id, salt } => {
                (SegmentKey { id, salt }, Purpose::Log, None, true)
            }
            Use::Index { .. } | Use::Meta { .. } => return Ok(()),
        };
        let at = self.extent_size.offset_of(extent);
        let head = self.disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
        let is_whole = SegmentHeader::decode(&head).is_ok_and(|header| header.key == key);
        self.lost_headers += u64::from(!is_whole && !retired);
        let end = sealed.map(|sealed| sealed.end);
        let check = FrameCheck::new(key);
        self.segments.push(Found { at, check, purpose, end, retired, is_headless });
        Ok(())
    }

    /// Takes the segments in all extents, by their headers or by their frames.
    fn search(&mut self, uuid: Option<[u8; 16]>) -> Result<()> {
        let len = usize::try_from(self.extent_size.bytes()).unwrap_or(usize::MAX);
        let count = self.extent_size.extents_in(self.disk.len()?);
        for extent in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(ExtentNo) {
            let at = self.extent_size.offset_of(extent);
            if self.disk.data_end(at, len as u64) == at {
                continue;
            }
            let head = self.disk.read_padded(at, 2 * SEGMENT_HEADER_LEN as usize)?;
            let header = SegmentHeader::decode(&head).ok();
            if let Some(SegmentHeader { key, purpose, .. }) =
                header.filter(|header| Some(header.uuid) == uuid)
            {
                let check = FrameCheck::new(key);
                self.segments.push(Found::new(at, check, purpose));
                continue;
            }
            let (header, first) = head.split_at(SEGMENT_HEADER_LEN as usize);
            let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
            // The writer zeroes the header, and nothing else, before it frees an extent.
            let is_freed = is_zero(header) && !is_zero(first);
            let of_another = SegmentHeader::decode(header).is_ok();
            if is_freed || of_another {
                continue;
            }
            // Or it had begun to write the header of the next owner.
            let uuid = uuid.as_ref().or_else(|| header.get(MAGIC.len()..)?.first_chunk());
            let is_begun = |id| match uuid {
                Some(uuid) => !is_zero(header) && SegmentHeader::is_broken_off(header, uuid, id),
                None => false,
            };
            let bytes = self.disk.read_padded(at, len)?;
            let lost = key_by_frames(&bytes).filter(|(key, _)| !is_begun(key.id));
            if let Some((key, purpose)) = lost {
                let check = FrameCheck::new(key);
                self.segments.push(Found::new(at, check, purpose));
                self.lost_headers += 1;
            } else {
                self.unread.extend(self.around.unread_in(&(at..at + len as u64)));
            }
        }
        Ok(())
    }
}

/// The key that most whole frames of an extent have, and what the segment is for: frames of outputs
/// say nothing of what was durable.
fn key_by_frames(extent: &[u8]) -> Option<(SegmentKey, Purpose)> {
    let mut keys: HashMap<(u32, u64), (u32, SegmentKey, Purpose)> = HashMap::new();
    let mut effort = EFFORT * extent.len();
    let mut at = SEGMENT_HEADER_LEN as usize;
    while let Some(rest) = extent.get(at..).filter(|rest| rest.len() >= FRAME_HEADER_LEN) {
        let offset = u32::try_from(at).ok()?;
        let Some(((key, of_log), len)) = whole_frame(rest, offset, &mut effort) else {
            at += FRAME_ALIGN;
            continue;
        };
        let purpose = if of_log { Purpose::Log } else { Purpose::Output };
        keys.entry((key.id.0, key.salt)).or_insert((0, key, purpose)).0 += 1;
        at += len;
    }
    let most = keys.into_values().max_by_key(|(frames, key, _)| (*frames, key.id, key.salt));
    most.map(|(_, key, purpose)| (key, purpose))
}
