//! The first step of opening: the static header, the superblocks and the manifest.
//!
//! One of them that does not check refuses the store, except one superblock of two and a torn end
//! of the manifest. This file writes nothing, so a refused store stays unchanged.

use std::borrow::Cow;

use crate::engine::state::scan::next_frame;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::Decoded;
use crate::format::frames::frame::{FrameCheck, LONG_HEADER_LEN, SegmentKey};
use crate::format::map::header::{HeaderFault, KNOWN_OPTIONAL, MAGIC, StaticHeader};
use crate::format::map::manifest::{
    AREA_HEADER_LEN, Area, AreaContents, Change, Extents, MAX_AREA_LEN, RECORD_LEN, Use, read_area,
    used_len,
};
use crate::format::map::superblock::{FLAG_CLEAN, FLAG_COPY, ManifestAt, Superblock};
use crate::format::segments::directory::IdHash;
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{
    EXTENTS_AT, ExtentSize, FORMAT_VERSION, MANIFEST_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT,
};
use crate::types::{ExtentNo, LogPosition};

/// Manifest areas up to this length are read, not viewed.
const READ_WHOLE: usize = 1 << 20;

/// The description of the store before its extents.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
    /// The newest superblock that checks.
    pub(crate) superblock: Superblock,
    /// Whether the other superblock does not check. It may have been the newer one.
    pub(crate) lacks_slot: bool,
    /// Whether the other superblock names another manifest area. Recovery adds no record before
    /// both name the same one (O9).
    pub(crate) is_ahead: bool,
    /// The larger of the durable positions of both slots.
    pub(crate) durable: LogPosition,
    pub(crate) extents: Extents,
    pub(crate) manifest: ManifestAt,
    /// Where the next snapshot of the manifest goes.
    pub(crate) next: Area,
    /// Whether the area ends torn, so that the manifest moves before a record is added to it.
    pub(crate) rewrite: bool,
    /// The bytes of the records that the superblock does not count.
    pub(crate) uncounted: Vec<u8>,
    /// The last batch, if the superblock does not count it: the only one that no sync may cover.
    pub(crate) last_batch: Vec<Change>,
    /// The bytes behind the last whole batch of the current area, without the zeros.
    pub(crate) behind: Vec<u8>,
}

impl Base {
    /// A segment in this extent.
    pub(crate) fn segment(
        &self,
        disk: &Disk,
        extent: ExtentNo,
        key: SegmentKey,
        purpose: Purpose,
    ) -> Segment {
        let ids = IdHash::new(self.uuid);
        Segment::new(disk.clone(), self.extent_size, extent, key, purpose, ids)
    }

    /// Whether the store was closed in order. Without the other superblock that is unknown.
    pub(crate) fn is_clean(&self) -> bool {
        self.superblock.flags & FLAG_CLEAN != 0 && !self.lacks_slot
    }

    /// Whether the store may have given out numbers that the file does not show: the file is a
    /// copy, or the newer superblock is lost.
    pub(crate) fn lacks_numbers(&self) -> bool {
        self.superblock.flags & FLAG_COPY != 0 || self.lacks_slot
    }
}

/// Reads everything before the extents. A reader needs the manifest only: it takes the identity of
/// the store from a superblock if the static header is damaged.
pub(crate) fn read_base(disk: &Disk, report: &mut RecoveryReport, to_write: bool) -> Result<Base> {
    let len = disk.len()?;
    let header_page = disk.read_padded(0, PAGE_LEN)?;
    let mut slots = read_slots(disk, report)?;
    let (uuid, extent_size) = identify(&header_page, len, slots.last(), report, to_write)?;
    let is_other = |block: &mut Superblock| (block.uuid, block.extent_size) != (uuid, extent_size);
    let others = slots.extract_if(.., is_other);
    report.damaged.extend(others.map(|block| Corruption::new(slot_of(&block), Damage::Misplaced)));
    if len < EXTENTS_AT {
        return Err(Error::damaged(Place::Manifest { offset: MANIFEST_AT }, Damage::Truncated));
    }
    let durable = slots.iter().map(|block| block.durable).max().unwrap_or_default();
    let Some(superblock) = slots.pop() else {
        return Err(Error::damaged(Place::Superblock { slot: 0 }, Damage::Missing));
    };
    let area_of = |block: &Superblock| (block.manifest.offset, block.manifest.generation);
    let is_ahead = slots.last().is_some_and(|other| area_of(other) != area_of(&superblock));
    let mut base = Base {
        uuid,
        extent_size,
        superblock,
        lacks_slot: slots.is_empty(),
        is_ahead,
        durable,
        extents: Extents::default(),
        manifest: superblock.manifest,
        next: Area::default(),
        rewrite: false,
        uncounted: Vec::new(),
        last_batch: Vec::new(),
        behind: Vec::new(),
    };
    read_manifest(disk, &mut base)?;
    Ok(base)
}

/// The valid superblocks, the newer one last.
pub(crate) fn read_slots(disk: &Disk, report: &mut RecoveryReport) -> Result<Vec<Superblock>> {
    let mut slots = Vec::new();
    for slot in 0..2u8 {
        let page = disk.read_padded(SUPERBLOCK_AT + u64::from(slot) * PAGE, PAGE_LEN)?;
        let place = Place::Superblock { slot };
        match Superblock::decode(&page) {
            Ok(block) if slot_of(&block) == place => slots.push(block),
            Ok(_) => report.damaged.push(Corruption::new(place, Damage::Misplaced)),
            Err(damage) => report.damaged.push(Corruption::new(place, damage)),
        }
    }
    if let [first, second] = slots.as_mut_slice()
        && first.is_newer_than(second)
    {
        core::mem::swap(first, second);
    }
    Ok(slots)
}

/// The slot of a superblock.
fn slot_of(block: &Superblock) -> Place {
    Place::Superblock { slot: u8::from(block.epoch.0 % 2 == 1) }
}

/// The identity of the store, from the static header. A reader takes it from a superblock if the
/// header is damaged.
pub(crate) fn identify(
    page: &[u8],
    len: u64,
    known: Option<&Superblock>,
    report: &mut RecoveryReport,
    to_write: bool,
) -> Result<([u8; 16], ExtentSize)> {
    let damage = match StaticHeader::decode(page) {
        Ok(header) => match header.optional & !KNOWN_OPTIONAL {
            unknown if unknown == 0 || !to_write => return Ok((header.uuid, header.extent_size)),
            unknown => return Err(Error::UnsupportedFeatures { unknown }),
        },
        Err(HeaderFault::Version { found }) => {
            return Err(Error::UnsupportedVersion { found, supported: FORMAT_VERSION });
        }
        Err(HeaderFault::Features { unknown }) => {
            return Err(Error::UnsupportedFeatures { unknown });
        }
        Err(HeaderFault::Foreign) => Damage::Magic,
        Err(HeaderFault::Damaged(damage)) => damage,
    };
    match known {
        Some(block) if !to_write => {
            report.damaged.push(Corruption::new(Place::Header, damage));
            Ok((block.uuid, block.extent_size))
        }
        None if damage == Damage::Magic || len < PAGE => {
            let most = MAGIC.len().min(usize::try_from(len).unwrap_or(0));
            Err(Error::NotAStore { found: page.iter().copied().take(most).collect(), len })
        }
        _ => Err(Error::damaged(Place::Header, damage)),
    }
}

/// Reads the manifest that the superblock points to.
fn read_manifest(disk: &Disk, base: &mut Base) -> Result<()> {
    let at = base.superblock.manifest;
    let damaged = |damage| Error::damaged(Place::Manifest { offset: at.offset }, damage);
    let contents = read_current(disk, base)?;
    if contents.hole || contents.records < at.records {
        return Err(damaged(Damage::Truncated));
    }
    base.extents = contents.extents;
    base.manifest.records = contents.records;
    if contents.records - contents.last_batch.len() as u64 >= at.records {
        base.last_batch = contents.last_batch;
    }
    if has_unknown_segment(disk, base)? {
        return Err(damaged(Damage::Outdated));
    }
    base.next = next_area(base).map_err(damaged)?;
    Ok(())
}

/// Reads the area that the superblock points to.
fn read_current(disk: &Disk, base: &mut Base) -> Result<AreaContents> {
    let ManifestAt { offset, len, generation, records } = base.superblock.manifest;
    let damaged = |damage| Error::damaged(Place::Manifest { offset }, damage);
    let file = disk.len()?;
    let end = offset.checked_add(len).filter(|end| len <= MAX_AREA_LEN && *end <= file);
    if end.is_none() {
        return Err(damaged(Damage::Missing));
    }
    let len = usize::try_from(len).unwrap_or(0);
    // Looking at a view makes the system fetch its surroundings, which are larger than most areas.
    let view = if len > READ_WHOLE { disk.map(offset, len, len)? } else { None };
    let bytes = match &view {
        Some(view) => Cow::Borrowed(&**view),
        None => Cow::Owned(disk.read_padded(offset, len)?),
    };
    let end_of = |records: u64| {
        AREA_HEADER_LEN
            .saturating_add(usize::try_from(records).unwrap_or(0).saturating_mul(RECORD_LEN))
    };
    let mut contents = read_area(&bytes, base.uuid, generation).map_err(damaged)?;
    // A power cut may keep the record of an extent and lose the length of the file.
    let is_behind = |change: &Change| match *change {
        Change::Reserve { extent, .. }
        | Change::Map { extent, .. }
        | Change::Meta { extent, .. } => base.extent_size.offset_of(extent) >= file,
        _ => false,
    };
    let first = contents.records - contents.last_batch.len() as u64;
    if first >= records && contents.last_batch.iter().any(is_behind) {
        let before = bytes.get(..end_of(first)).unwrap_or_default();
        contents = read_area(before, base.uuid, generation).map_err(damaged)?;
    }
    let (used, whole) = (used_len(&bytes), end_of(contents.records));
    base.rewrite = used > whole;
    base.behind = bytes.get(whole..used).unwrap_or_default().to_vec();
    base.uncounted = bytes.get(end_of(records)..whole).unwrap_or_default().to_vec();
    Ok(contents)
}

/// Whether an extent has frames of a segment that the manifest does not know and that was set aside
/// after the superblock was written. Then records of the manifest are lost, since a segment gets
/// frames only after its record is durable (O4).
fn has_unknown_segment(disk: &Disk, base: &Base) -> Result<bool> {
    let count = base.extent_size.extents_in(disk.len()?);
    for extent in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(ExtentNo) {
        let owner = base.extents.uses.get(&extent);
        if matches!(owner, Some(Use::Log { sealed: Some(_), .. })) {
            continue;
        }
        let at = base.extent_size.offset_of(extent);
        let head = match disk.read_padded(at, SEGMENT_HEADER_LEN as usize + LONG_HEADER_LEN) {
            // Who needs the extent reads it again.
            Err(Error::Io { .. }) => continue,
            head => head?,
        };
        if let Some(SegmentHeader { key, .. }) = base.header_in(&head)
            && key.id >= base.superblock.next_segment
            && owner.and_then(Use::segment) != Some(key.id)
            && next_frame(&head, &FrameCheck::new(key), SEGMENT_HEADER_LEN).is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Base {
    /// The header of a segment of this store, if these bytes begin with one.
    pub(crate) fn header_in(&self, head: &[u8]) -> Option<SegmentHeader> {
        SegmentHeader::decode(head).ok().filter(|header| header.uuid == self.uuid)
    }
}

/// The area that the superblock points to.
fn current(base: &Base) -> Area {
    Area { offset: base.manifest.offset, len: base.manifest.len }
}

fn other_front(base: &Base) -> Area {
    let [first, second] = Area::FRONT;
    if current(base) == first { second } else { first }
}

/// The area for the next snapshot. It is damage if META extents belong to neither area, or if the
/// current area is not an area of the manifest.
fn next_area(base: &Base) -> Decoded<Area> {
    let mut areas = base.extents.areas(base.extent_size)?;
    if !Area::FRONT.contains(&current(base)) && !areas.contains(&current(base)) {
        return Err(Damage::Misplaced);
    }
    areas.retain(|area| *area != current(base));
    match areas.as_slice() {
        [] => Ok(other_front(base)),
        [next] => Ok(*next),
        _ => Err(Damage::Mismatch),
    }
}
