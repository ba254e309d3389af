//! The first steps of opening: header, superblocks, manifest; and whether they can be trusted.
//!
//! Nothing is written here: a refused file stays unchanged.

use std::borrow::Cow;

use crate::engine::open::salvage::salvage;
use crate::engine::state::scan::next_frame;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::Decoded;
use crate::format::frames::frame::{FRAME_HEADER_LEN, FrameCheck, SegmentKey};
use crate::format::map::header::{HeaderFault, KNOWN_OPTIONAL, MAGIC, StaticHeader};
use crate::format::map::manifest::{
    AREA_HEADER_LEN, Area, AreaContents, Change, Extents, MAX_AREA_LEN, RECORD_LEN, Use, read_area,
    used_len,
};
use crate::format::map::superblock::{FLAG_SALVAGED, ManifestAt, Superblock};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::format::{EXTENTS_AT, ExtentSize, FORMAT_VERSION, PAGE, PAGE_LEN, SUPERBLOCK_AT};
use crate::types::{Epoch, ExtentNo, LogPosition, Lsn, RunNo, SegmentId};

/// Manifest areas up to this length are read, not viewed.
const READ_WHOLE: usize = 1 << 20;

/// The description of the store before its extents.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
    /// The newest superblock; a substitute if both are damaged.
    pub(crate) superblock: Superblock,
    /// Whether the other superblock names another manifest area. Nothing may be added before both
    /// name the same one (O9).
    pub(crate) is_ahead: bool,
    /// The larger of the durable positions of both slots.
    pub(crate) durable: LogPosition,
    pub(crate) extents: Extents,
    pub(crate) manifest: ManifestAt,
    /// Where the next snapshot of the manifest goes.
    pub(crate) next: Area,
    /// Whether the manifest must be rewritten before a record is added to it.
    pub(crate) rewrite: bool,
    /// The bytes behind the last whole batch of the current area, without the zeros.
    pub(crate) behind: Vec<u8>,
}

/// How the store is opened.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    /// Whether it is opened for writing, so that unknown optional features are refused.
    pub(crate) to_write: bool,
    /// Called before the whole file is searched for segments; an error ends the opening. A writer
    /// gets a random number for the superblocks, a reader zero.
    pub(crate) salvages: &'a dyn Fn() -> Result<u64>,
}

/// Reads everything before the extents.
pub(crate) fn read_base(
    disk: &Disk,
    report: &mut RecoveryReport,
    access: Access<'_>,
) -> Result<Base> {
    let len = disk.len()?;
    let header_page = disk.read_padded(0, PAGE_LEN)?;
    let mut slots = read_slots(disk, report)?;
    let (uuid, extent_size) = identify(&header_page, len, slots.last(), report, access.to_write)?;
    let is_other = |block: &mut Superblock| (block.uuid, block.extent_size) != (uuid, extent_size);
    let others = slots.extract_if(.., is_other);
    report.damaged.extend(others.map(|block| Corruption::new(slot_of(&block), Damage::Misplaced)));
    let durable = slots.iter().map(|block| block.durable).max().unwrap_or_default();
    if len < EXTENTS_AT {
        return Err(Error::Truncated { len, expected: EXTENTS_AT });
    }
    let newest = slots.pop();
    let area_of = |block: &Superblock| (block.manifest.offset, block.manifest.generation);
    let is_ahead = slots.last().map(area_of) != newest.as_ref().map(area_of) && !slots.is_empty();
    let superblock = newest.unwrap_or(Superblock {
        uuid,
        extent_size,
        epoch: Epoch(0),
        durable: LogPosition::default(),
        manifest: ManifestAt::default(),
        next_segment: SegmentId(1),
        next_run_no: RunNo(1),
        next_lsn: Lsn(1),
        boot_id: [0; 16],
        flags: 0,
        salvage: 0,
        dead: 0,
    });
    let mut base = Base {
        uuid,
        extent_size,
        durable,
        extents: Extents::default(),
        manifest: superblock.manifest,
        next: Area::default(),
        rewrite: false,
        behind: Vec::new(),
        superblock,
        is_ahead,
    };
    read_manifest(disk, newest.is_some(), &mut base, report, access)?;
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
    if let [first, second] = slots.as_mut_slice() {
        if first.is_newer_than(second) {
            core::mem::swap(first, second);
        }
        // The slots are written alternately, so their epochs must be consecutive.
        if first.epoch.0.wrapping_add(1) != second.epoch.0 {
            report.damaged.push(Corruption::new(slot_of(first), Damage::Mismatch));
        }
    }
    Ok(slots)
}

/// The slot of a superblock.
fn slot_of(block: &Superblock) -> Place {
    Place::Superblock { slot: u8::from(block.epoch.0 % 2 == 1) }
}

/// The identity of the store, from the header or, if that is damaged, from a superblock.
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
        Err(HeaderFault::Newer { min_reader }) => {
            return Err(Error::UnsupportedVersion { found: min_reader, supported: FORMAT_VERSION });
        }
        Err(HeaderFault::Features { unknown }) => {
            return Err(Error::UnsupportedFeatures { unknown });
        }
        Err(HeaderFault::Foreign) => Damage::Magic,
        Err(HeaderFault::Damaged(damage)) => damage,
    };
    match known {
        Some(block) => {
            report.damaged.push(Corruption::new(Place::Header, damage));
            Ok((block.uuid, block.extent_size))
        }
        None if damage == Damage::Magic || len < PAGE => {
            let most = MAGIC.len().min(usize::try_from(len).unwrap_or(0));
            Err(Error::NotAStore { found: page.iter().copied().take(most).collect(), len })
        }
        None => Err(Error::corrupt(Place::Header, damage)),
    }
}

/// Reads the manifest that the superblock points to. If records are missing, or an extent shows
/// that the manifest is an old one, the segments are looked for in the extents.
fn read_manifest(
    disk: &Disk,
    pointed: bool,
    base: &mut Base,
    report: &mut RecoveryReport,
    access: Access<'_>,
) -> Result<()> {
    let at = base.superblock.manifest;
    let damage = match read_current(disk, pointed, base) {
        Ok(contents) => {
            base.extents = contents.extents;
            base.manifest.records = contents.records;
            let first = contents.records - contents.last_batch.len() as u64;
            let unsynced = if first < at.records { Vec::new() } else { contents.last_batch };
            let is_misplaced = base.extents.unseal_misplaced(base.extent_size);
            if contents.hole || contents.records < at.records {
                Some(Damage::Truncated)
            } else if is_misplaced {
                Some(Damage::Misplaced)
            } else if check_heads(disk, base, &unsynced, report)? {
                Some(Damage::Outdated)
            } else {
                next_area(base).err()
            }
        }
        Err(Error::Corrupt(found)) => {
            // None of those that the superblock counts was read.
            base.manifest.records = 0;
            Some(found.damage)
        }
        Err(error) => return Err(error),
    };
    if let Some(damage) = damage {
        report.damaged.push(Corruption::new(Place::Manifest { offset: at.offset }, damage));
    }
    report.salvaged = damage.is_some();
    if report.salvaged {
        let number = (access.salvages)()?;
        if number != 0 {
            base.superblock.salvage = number;
        }
        (base.rewrite, base.is_ahead) = (true, false);
        base.superblock.flags |= FLAG_SALVAGED;
        salvage(disk, base)?;
    }
    base.next = next_area(base).unwrap_or_else(|_| {
        // Extents that are not the manifest's own must not be written as if they were.
        base.extents.uses.retain(|_, used| !matches!(used, Use::Meta { .. }));
        if !Area::FRONT.contains(&current(base)) {
            let generation = base.manifest.generation;
            base.manifest = ManifestAt { generation, ..ManifestAt::default() };
        }
        other_front(base)
    });
    Ok(())
}

/// Reads the area that the superblock points to.
fn read_current(disk: &Disk, pointed: bool, base: &mut Base) -> Result<AreaContents> {
    let ManifestAt { offset, len, generation, records } = base.superblock.manifest;
    let damaged = |damage| Error::corrupt(Place::Manifest { offset }, damage);
    let end = offset.checked_add(len).filter(|_| len <= MAX_AREA_LEN);
    if !pointed || end.is_none_or(|end| disk.len().is_ok_and(|len| end > len)) {
        return Err(damaged(Damage::Missing));
    }
    let len = usize::try_from(len).unwrap_or(0);
    // Looking at a view makes the system fetch its surroundings, which are larger than most areas.
    let view = if len > READ_WHOLE { disk.map(offset, len, len)? } else { None };
    let bytes = match &view {
        Some(view) => Cow::Borrowed(&**view),
        None => Cow::Owned(disk.read_padded(offset, len)?),
    };
    let mut contents = read_area(&bytes, base.uuid, generation).map_err(damaged)?;
    let whole = AREA_HEADER_LEN + usize::try_from(contents.records).unwrap_or(0) * RECORD_LEN;
    base.rewrite = used_len(&bytes) > whole;
    // A batch with extents behind the end of the file was not synced: it counts as torn.
    let (file, size) = (disk.len()?, base.extent_size);
    let first = contents.records - contents.last_batch.len() as u64;
    let is_behind = |change: &Change| match *change {
        Change::Reserve { extent, .. }
        | Change::Map { extent, .. }
        | Change::Meta { extent, .. } => size.offset_of(extent) >= file,
        _ => false,
    };
    if first >= records && contents.last_batch.iter().any(is_behind) {
        let start = whole - contents.last_batch.len() * RECORD_LEN;
        let before = bytes.get(..start).unwrap_or_default();
        contents = read_area(before, base.uuid, generation).map_err(damaged)?;
        base.rewrite = true;
    }
    let whole = AREA_HEADER_LEN + usize::try_from(contents.records).unwrap_or(0) * RECORD_LEN;
    base.behind = bytes.get(whole..used_len(&bytes)).unwrap_or_default().to_vec();
    Ok(contents)
}

/// Checks the extents that are not sealed segments, and reports missing headers. Returns whether
/// one of them has frames of a segment that is unknown to the manifest and was set aside after the
/// superblock was written. Then records of the manifest are lost, since a segment gets frames only
/// once its record is durable (O4). Earlier contents of a sealed segment's extent were retired
/// before a superblock that says so.
///
/// A free extent, or one of the index, of which the disk cannot read the head has no record. It is
/// left out unless the manifest is in doubt, since it might have been the one that tells.
fn check_heads(
    disk: &Disk,
    base: &mut Base,
    unsynced: &[Change],
    report: &mut RecoveryReport,
) -> Result<bool> {
    let (size, len) = (base.extent_size, disk.len()?);
    let mut missing = Vec::new();
    base.extents.uses.retain(|&extent, used| {
        let is_sealed = matches!(used, Use::Log { sealed: Some(_), .. });
        // The check of the length reports a file that is too short for its durable data.
        let is_kept = is_sealed || used.segment() == Some(base.durable.segment);
        let is_there = is_kept || size.offset_of(extent) < len;
        base.rewrite |= !is_there;
        // Only a segment of the log has what nothing else has.
        let is_log = matches!(used, Use::Log { purpose: Purpose::Log, .. });
        missing.extend((!is_there && is_log).then_some(extent));
        is_there
    });
    for extent in (0..u32::try_from(size.extents_in(len)).unwrap_or(u32::MAX)).map(ExtentNo) {
        let (owner, is_log) = match base.extents.uses.get(&extent) {
            Some(Use::Log { sealed: Some(_), .. }) => continue,
            Some(&Use::Log { segment: id, salt, purpose, .. }) => {
                (Some(SegmentKey { id, salt }), purpose == Purpose::Log)
            }
            _ => (None, false),
        };
        let at = size.offset_of(extent);
        let head = match disk.read_padded(at, SEGMENT_HEADER_LEN as usize + FRAME_HEADER_LEN) {
            // A manifest without a sign of a loss is believed without asking this extent.
            Err(Error::Io { .. }) if !is_log && !base.is_doubtful(report) => continue,
            head => head?,
        };
        let found = base.header_in(&head).map(|header| header.key);
        if let Some(key) = found.filter(|key| Some(*key) != owner)
            && key.id >= base.superblock.next_segment
            && next_frame(&head, &FrameCheck::new(key), SEGMENT_HEADER_LEN).is_some()
        {
            return Ok(true);
        }
        let is_new = unsynced
            .iter()
            .any(|change| matches!(change, Change::Reserve { extent: new, .. } if *new == extent));
        if is_log && found != owner && !is_new {
            missing.push(extent);
        }
    }
    let place = |extent| Corruption::new(Place::Extent { extent }, Damage::Missing);
    report.damaged.extend(missing.into_iter().map(place));
    Ok(false)
}

impl Base {
    /// Whether there is a sign that a newer manifest was lost: a damaged superblock, or something
    /// behind the last batch.
    pub(crate) fn is_doubtful(&self, report: &RecoveryReport) -> bool {
        let of_superblock = |one: &Corruption| matches!(one.place, Place::Superblock { .. });
        !self.behind.is_empty() || report.damaged.iter().any(of_superblock)
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
