//! The first steps of opening: header, superblocks, manifest; and salvage where these are damaged.
//!
//! Nothing is written here: a file that is refused stays as it was.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::scan::{Item, lex, payload_of};
use crate::engine::disk::Disk;
use crate::engine::report::RecoveryReport;
use crate::engine::segment::{Segment, next_frame};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frame::{FrameCheck, SegmentKey};
use crate::format::header::{HeaderFault, KNOWN_OPTIONAL, MAGIC, StaticHeader};
use crate::format::manifest::{Change, Extents, SealedAt, Use, read_area, used_len};
use crate::format::origin::Origin;
use crate::format::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::superblock::{ManifestAt, Superblock};
use crate::format::{
    Directory, EXTENTS_AT, ExtentSize, FORMAT_VERSION, FrameKind, PAGE, PAGE_LEN, SUPERBLOCK_AT,
};
use crate::types::{Epoch, ExtentNo, LogPosition, Lsn, RunNo, SegmentId};

/// No store gets to write this many manifests.
const LAST_GENERATION: u64 = 1 << 62;

/// Manifest areas up to this length are read, not viewed.
const READ_WHOLE: usize = 1 << 20;

/// What the file says of itself in front of its extents.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
    /// The newest superblock; made up if both are damaged.
    pub(crate) superblock: Superblock,
    /// The larger of the durable positions of both slots.
    pub(crate) durable: LogPosition,
    pub(crate) extents: Extents,
    pub(crate) manifest: ManifestAt,
    /// The manifest must be written anew before anything is added to it.
    pub(crate) rewrite: bool,
}

/// Reads everything in front of the extents.
pub(crate) fn read_base(disk: &Disk, report: &mut RecoveryReport) -> Result<Base> {
    let len = disk.len()?;
    let header_page = disk.read_padded(0, PAGE_LEN)?;
    let mut slots = Vec::new();
    for slot in 0..2u8 {
        let page = disk.read_padded(SUPERBLOCK_AT + u64::from(slot) * PAGE, PAGE_LEN)?;
        match Superblock::decode(&page) {
            Ok(block) => slots.push(block),
            Err(Damage::Magic) if page.iter().all(|&byte| byte == 0) => {}
            Err(damage) => {
                report.damaged.push(Corruption::new(Place::Superblock { slot }, damage));
            }
        }
    }
    let identity = identify(&header_page, len, &slots, report)?;
    slots.retain(|block| block.uuid == identity.0);
    slots.sort_by_key(|block| block.epoch);
    let durable = slots.iter().map(|block| block.durable).max().unwrap_or_default();
    let (uuid, extent_size) = identity;
    if len < EXTENTS_AT {
        return Err(Error::Truncated { len, expected: EXTENTS_AT });
    }
    let newest = slots.pop();
    let superblock = newest.unwrap_or_else(|| blank_superblock(uuid, extent_size));
    let mut base = Base {
        uuid,
        extent_size,
        durable,
        extents: Extents::default(),
        manifest: superblock.manifest,
        rewrite: false,
        superblock,
    };
    read_manifest(disk, newest.is_some(), &mut base, report)?;
    Ok(base)
}

/// The identity of the store, from the header or, if that is damaged, from a superblock.
fn identify(
    page: &[u8],
    len: u64,
    slots: &[Superblock],
    report: &mut RecoveryReport,
) -> Result<([u8; 16], ExtentSize)> {
    let known = slots.iter().max_by_key(|block| block.epoch);
    let damage = match StaticHeader::decode(page) {
        // A store is always opened to be written.
        Ok(header) => match header.optional & !KNOWN_OPTIONAL {
            0 => return Ok((header.uuid, header.extent_size)),
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
            let found =
                page.iter().copied().take(MAGIC.len().min(usize::try_from(len).unwrap_or(0)));
            Err(Error::NotAStore { found: found.collect(), len })
        }
        None => Err(Error::corrupt(Place::Header, damage)),
    }
}

fn blank_superblock(uuid: [u8; 16], extent_size: ExtentSize) -> Superblock {
    Superblock {
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
    }
}

/// Reads the manifest that the superblock points to. What is missing is looked for in the extents.
fn read_manifest(
    disk: &Disk,
    pointed: bool,
    base: &mut Base,
    report: &mut RecoveryReport,
) -> Result<()> {
    let at = base.superblock.manifest;
    let offset = at.offset;
    let place = Place::Manifest { offset };
    let sane = at.len <= 1 << 32
        && at.offset.checked_add(at.len).is_some_and(|end| end <= disk.len().unwrap_or(0));
    if !sane || at.generation > LAST_GENERATION {
        // Nothing of such a pointer may size or place what is written next.
        base.manifest = ManifestAt::default();
    }
    let contents = if pointed && sane {
        let len = usize::try_from(at.len).unwrap_or(0);
        // Looking at a view of a place that nobody looked at lately has the system fetch what is
        // around it, which for most areas is more than they are.
        let view = if len > READ_WHOLE { disk.map(at.offset, len)? } else { None };
        let bytes = match &view {
            Some(view) => Cow::Borrowed(&**view),
            None => Cow::Owned(disk.read_padded(at.offset, len)?),
        };
        let torn = |records: u64| tail_is_torn(&bytes, records);
        match read_area(&bytes, base.uuid, at.generation) {
            Ok(contents) => {
                let whole = !contents.hole && contents.records >= at.records;
                Ok((whole, torn(contents.records), contents))
            }
            Err(damage) => Err(damage),
        }
    } else {
        Err(Damage::Missing)
    };
    match contents {
        Ok((whole, torn, contents)) => {
            base.extents = contents.extents;
            base.manifest.records = contents.records;
            if !whole {
                report.damaged.push(Corruption::new(place, Damage::Truncated));
                report.salvaged = true;
            }
            // A record that was being written when the store went down may have been that of a
            // segment; whoever is in the extents tells.
            if torn || !whole {
                base.rewrite = true;
                salvage(disk, base, whole)?;
            }
        }
        Err(damage) => {
            report.damaged.push(Corruption::new(place, damage));
            report.salvaged = true;
            base.rewrite = true;
            salvage(disk, base, false)?;
        }
    }
    if report.salvaged {
        drop_index(&mut base.extents);
    }
    Ok(())
}

/// Whether something that is not a record follows the last whole batch.
fn tail_is_torn(area: &[u8], records: u64) -> bool {
    use crate::format::manifest::{AREA_HEADER_LEN, RECORD_LEN};
    let skip = AREA_HEADER_LEN + usize::try_from(records).unwrap_or(0) * RECORD_LEN;
    used_len(area) > skip
}

/// Takes over every segment of this store that the manifest lost, and lets go of those that it has
/// and that are gone. `whole` tells that the manifest lost no more than the batch that was being
/// written; else it may be an old one, and what it says of an extent may be long past.
///
/// What is in an extent tells: the header of a segment is there from before its first frame until
/// it is zeroed, which comes before the extent is free.
fn salvage(disk: &Disk, base: &mut Base, whole: bool) -> Result<()> {
    if !whole {
        drop_index(&mut base.extents);
    }
    let newest = base.extents.uses.values().filter_map(segment_of).max();
    let owned: Vec<(ExtentNo, Use)> =
        base.extents.uses.iter().map(|(&extent, &used)| (extent, used)).collect();
    let mut outputs = Vec::new();
    for (extent, used) in owned {
        if is_gone(disk, base, (extent, used), newest, whole)? {
            base.change(extent, Change::Free { extent })?;
        } else if let Use::Log { segment: id, salt, purpose: Purpose::Output, sealed: None } = used
        {
            outputs.push((extent, SegmentKey { id, salt }));
        }
    }
    let count = base.extent_size.extents_in(disk.len()?);
    let mut known: BTreeSet<SegmentId> =
        base.extents.uses.values().filter_map(segment_of).collect();
    for number in 0..u32::try_from(count).unwrap_or(u32::MAX) {
        let extent = ExtentNo(number);
        if base.extents.uses.contains_key(&extent) {
            continue;
        }
        let at = base.extent_size.offset_of(extent);
        let head = disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
        let Ok(header) = SegmentHeader::decode(&head) else { continue };
        if header.uuid != base.uuid || header.key.id.0 == 0 || known.contains(&header.key.id) {
            continue;
        }
        let SegmentKey { id: segment, salt } = header.key;
        let purpose = header.purpose;
        base.change(extent, Change::Reserve { extent, segment, salt, purpose })?;
        match purpose {
            Purpose::Log => _ = known.insert(segment),
            Purpose::Output => outputs.push((extent, header.key)),
        }
    }
    for (_, key) in &outputs {
        known.remove(&key.id);
    }
    salvage_outputs(disk, base, known, outputs)
}

/// Whether an extent has another owner by now than the manifest says, or none. `newest` is the
/// last segment that the manifest knows: what came to the extent later has a larger number.
fn is_gone(
    disk: &Disk,
    base: &Base,
    (extent, used): (ExtentNo, Use),
    newest: Option<SegmentId>,
    whole: bool,
) -> Result<bool> {
    let at = base.extent_size.offset_of(extent);
    let head = disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
    let found = SegmentHeader::decode(&head).ok().filter(|header| header.uuid == base.uuid);
    let is_later = found.as_ref().is_some_and(|header| Some(header.key.id) > newest);
    let Use::Log { segment: id, salt, .. } = used else { return Ok(is_later) };
    let key = SegmentKey { id, salt };
    Ok(match found {
        Some(header) if header.key == key => false,
        Some(_) => is_later,
        // A file that was cut off is told by whoever compares its length. But what was freed later
        // may have been cut off rightly.
        None if at.saturating_add(SEGMENT_HEADER_LEN.into()) > disk.len()? => !whole,
        None if head.iter().all(|&byte| byte == 0) => true,
        None => {
            let len = usize::try_from(base.extent_size.bytes()).unwrap_or(usize::MAX);
            let bytes = disk.read_padded(at, len)?;
            next_frame(&bytes, &FrameCheck::new(key), 0).is_none()
        }
    })
}

/// Decides which outputs of compactions count: those of which a segment that they replace is gone.
/// These go only after the outputs counted, and only when no output of a compaction that did not
/// come to its end is left. As long as all of them are there, they say the same, and the outputs
/// may not have been finished.
///
/// An output that is complete and does not count is not gone: what it replaces says the same. If
/// an output counts that replaces it, that is replaced too.
fn salvage_outputs(
    disk: &Disk,
    base: &mut Base,
    mut known: BTreeSet<SegmentId>,
    mut outputs: Vec<(ExtentNo, SegmentKey)>,
) -> Result<()> {
    let mut replaced: BTreeMap<SegmentId, BTreeSet<SegmentId>> = BTreeMap::new();
    // What an output replaces was there before it.
    outputs.sort_by_key(|(_, key)| key.id);
    for (extent, key) in outputs {
        let segment = Segment::new(disk.clone(), base.extent_size, extent, key, Purpose::Output);
        let Some((at, origin)) = read_output(&segment)? else {
            base.change(extent, Change::Retire { extent })?;
            continue;
        };
        let counts = origin.victims.iter().any(|victim| !known.contains(victim));
        let mut victims: BTreeSet<SegmentId> = origin.victims.iter().copied().collect();
        victims.extend(origin.victims.iter().filter_map(|id| replaced.get(id)).flatten());
        if counts {
            base.change(extent, Change::Seal { extent, segment: key.id, at })?;
            retire_all(base, &victims)?;
        } else {
            base.change(extent, Change::Retire { extent })?;
        }
        known.insert(key.id);
        replaced.insert(key.id, victims);
    }
    Ok(())
}

fn retire_all(base: &mut Base, victims: &BTreeSet<SegmentId>) -> Result<()> {
    let replaced = |used: &Use| segment_of(used).is_some_and(|id| victims.contains(&id));
    let extents: Vec<ExtentNo> = base
        .extents
        .uses
        .iter()
        .filter_map(|(&extent, used)| replaced(used).then_some(extent))
        .collect();
    extents.into_iter().try_for_each(|extent| base.change(extent, Change::Retire { extent }))
}

/// The end and the origin of an output, if both are there and its directory is whole.
fn read_output(segment: &Segment) -> Result<Option<(SealedAt, Origin)>> {
    let extent = segment.read_all()?;
    let items = lex(&extent, segment.frames());
    let whole = |kind: FrameKind| {
        items.iter().rev().find_map(move |item| match item {
            Item::Frame(lexed) if lexed.header.kind == kind && lexed.payload.is_ok() => Some(lexed),
            _ => None,
        })
    };
    let (Some(seal), Some(origin)) = (whole(FrameKind::Seal), whole(FrameKind::Origin)) else {
        return Ok(None);
    };
    let directory = Directory::new(payload_of(&extent, &seal.header));
    let origin = Origin::decode(payload_of(&extent, &origin.header));
    let (Ok(directory), Ok(origin)) = (directory, origin) else { return Ok(None) };
    let header = &seal.header;
    let sealed = SealedAt {
        end: header.extra,
        seal: header.position.offset,
        digest: header.payload_crc,
        has_evictions: directory.eviction_count() > 0,
    };
    Ok(Some((sealed, origin)))
}

impl Base {
    fn change(&mut self, extent: ExtentNo, change: Change) -> Result<()> {
        let place = Place::Extent { extent };
        self.extents.apply(change).map_err(|damage| Error::corrupt(place, damage))
    }
}

fn segment_of(used: &Use) -> Option<SegmentId> {
    match used {
        Use::Log { segment, .. } => Some(*segment),
        _ => None,
    }
}

/// Frees all extents of the index.
pub(crate) fn drop_index(extents: &mut Extents) {
    extents.uses.retain(|_, used| !matches!(used, Use::Index { .. }));
    extents.index_len = 0;
}
