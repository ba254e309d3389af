//! Finding the segments by the contents of the extents, if the manifest cannot be trusted. Section
//! 20 of FORMAT.md has the rules (R1) and their reasons.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::open::front_matter::Base;
use crate::engine::state::scan::{Item, Lexed, directory_in, lex, next_frame, payload_of};
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::format::FrameKind;
use crate::format::frames::frame::{FRAME_HEADER_LEN, FrameCheck, SegmentKey};
use crate::format::frames::origin::Origin;
use crate::format::layout::PAGE_LEN;
use crate::format::map::manifest::{Change, Extents, SealedAt, Use};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::types::{ExtentNo, RunNo, SegmentId};

/// Adds every segment of this store that the manifest lost, and removes those that are gone.
pub(crate) fn salvage(disk: &Disk, base: &mut Base) -> Result<()> {
    drop_index(&mut base.extents);
    let newest = base.extents.uses.values().filter_map(Use::segment).max();
    let mut outputs = Vec::new();
    for (extent, used) in base.extents.uses.clone() {
        if is_gone(disk, base, (extent, used), newest)? {
            base.change(extent, Change::Free { extent })?;
        } else if let Use::Log { segment: id, salt, purpose: Purpose::Output, sealed: None } = used
        {
            outputs.push((extent, SegmentKey { id, salt }));
        }
    }
    let count = base.extent_size.extents_in(disk.len()?);
    let mut known: BTreeSet<SegmentId> =
        base.extents.uses.values().filter_map(segment_of).collect();
    let mut found: BTreeMap<SegmentId, Vec<(ExtentNo, SegmentHeader)>> = BTreeMap::new();
    for extent in (0..u32::try_from(count).unwrap_or(u32::MAX)).map(ExtentNo) {
        if base.extents.uses.contains_key(&extent) {
            continue;
        }
        let at = base.extent_size.offset_of(extent);
        let head = disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
        let header = base.header_in(&head).filter(|header| !known.contains(&header.key.id));
        if let Some(header) = header {
            found.entry(header.key.id).or_default().push((extent, header));
        }
    }
    for (_, rivals) in found {
        for (extent, SegmentHeader { key, purpose, .. }) in that_count(disk, base, rivals)? {
            let SegmentKey { id: segment, salt } = key;
            base.change(extent, Change::Reserve { extent, segment, salt, purpose })?;
            match purpose {
                Purpose::Log => _ = known.insert(segment),
                Purpose::Output => outputs.push((extent, key)),
            }
        }
    }
    for (_, key) in &outputs {
        known.remove(&key.id);
    }
    salvage_outputs(disk, base, known, outputs)
}

/// The segments with one id that may count. A segment without frames does not count: if setting a
/// segment aside failed, its header remains while its id was given out again. The other segment
/// with the id may be gone by now, and its replacements must not take this header for it.
fn that_count(
    disk: &Disk,
    base: &Base,
    rivals: Vec<(ExtentNo, SegmentHeader)>,
) -> Result<Vec<(ExtentNo, SegmentHeader)>> {
    let mut used = Vec::with_capacity(rivals.len());
    for rival in rivals {
        if has_frames(disk, base, rival.0, rival.1.key)? {
            used.push(rival);
        }
    }
    // All have one purpose. Outputs themselves show which of them is whole.
    if let Some(of_log) = used.iter().position(|(_, header)| header.purpose == Purpose::Log) {
        used = vec![used.swap_remove(of_log)];
    }
    Ok(used)
}

/// Whether an extent has a frame of this segment.
fn has_frames(disk: &Disk, base: &Base, extent: ExtentNo, key: SegmentKey) -> Result<bool> {
    let at = base.extent_size.offset_of(extent);
    let all = usize::try_from(base.extent_size.bytes()).unwrap_or(usize::MAX);
    // The first page shows it, unless it is damaged or has no frame.
    for len in [PAGE_LEN, all] {
        let bytes = disk.read_padded(at, len)?;
        if next_frame(&bytes, &FrameCheck::new(key), 0).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an extent has another owner than in the manifest, or none. `newest` is the last segment
/// in the manifest: later owners have larger ids.
fn is_gone(
    disk: &Disk,
    base: &Base,
    (extent, used): (ExtentNo, Use),
    newest: Option<SegmentId>,
) -> Result<bool> {
    let at = base.extent_size.offset_of(extent);
    // An extent that was freed later may have been cut off.
    if at.saturating_add(SEGMENT_HEADER_LEN.into()) > disk.len()? {
        return Ok(true);
    }
    let head = disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
    let found = base.header_in(&head);
    let is_later = found.as_ref().is_some_and(|header| Some(header.key.id) > newest);
    let Use::Log { segment: id, salt, .. } = used else { return Ok(is_later) };
    let key = SegmentKey { id, salt };
    Ok(match found {
        Some(header) if header.key == key => false,
        Some(_) => is_later,
        None if SegmentHeader::is_broken_off(&head, &base.uuid, id) => true,
        None => !has_frames(disk, base, extent, key)?,
    })
}

/// Decides which outputs of compactions count, and retires the segments that they replace.
fn salvage_outputs(
    disk: &Disk,
    base: &mut Base,
    mut known: BTreeSet<SegmentId>,
    outputs: Vec<(ExtentNo, SegmentKey)>,
) -> Result<()> {
    let mut replaced: BTreeMap<SegmentId, BTreeSet<SegmentId>> = BTreeMap::new();
    let mut found = Vec::with_capacity(outputs.len());
    for (extent, key) in outputs {
        let segment = Segment::new(disk.clone(), base.extent_size, extent, key, Purpose::Output);
        found.push((extent, key, read_output(&segment)?));
    }
    // The victims of an output are older. Of several with one id at most one is whole.
    let doubt = |it: &Option<Output>| it.as_ref().map_or(2, |it| u8::from(!it.is_whole));
    found.sort_by_key(|(_, key, output)| (key.id, doubt(output)));
    let (groups, mut taken) = (Groups::of(&found), known.clone());
    for (extent, key, output) in &found {
        let (extent, segment) = (*extent, key.id);
        if !taken.insert(segment) {
            base.change(extent, Change::Free { extent })?;
            continue;
        }
        let Some(output) = output else {
            base.change(extent, Change::Retire { extent })?;
            continue;
        };
        let mut victims: BTreeSet<SegmentId> = output.origin.victims.iter().copied().collect();
        victims.extend(output.origin.victims.iter().filter_map(|id| replaced.get(id)).flatten());
        if groups.counts(output, &known) {
            base.change(extent, Change::Seal { extent, segment, at: output.at })?;
            retire_all(base, &victims)?;
        } else {
            base.change(extent, Change::Retire { extent })?;
        }
        known.insert(segment);
        replaced.insert(segment, victims);
    }
    Ok(())
}

/// For each compaction with a whole output, by group and victims: a number above the ordinals of
/// its other outputs.
struct Groups<'a>(BTreeMap<(SegmentId, &'a [SegmentId]), u32>);

impl<'a> Groups<'a> {
    fn of(found: &'a [(ExtentNo, SegmentKey, Option<Output>)]) -> Self {
        let mut groups = BTreeMap::new();
        let all = found.iter().filter_map(|(_, _, output)| output.as_ref());
        for Output { origin, .. } in all.filter(|output| output.is_whole) {
            let outputs = if origin.last { u32::from(origin.ordinal) } else { u32::MAX };
            let known = groups.entry((origin.group, &*origin.victims)).or_default();
            *known = outputs.max(*known);
        }
        Self(groups)
    }

    /// Whether an output counts. An output that is not whole was damaged later, or was not finished
    /// and must not replace the remaining victims. Another output of its group decides, or that all
    /// victims are gone.
    fn counts(&self, output: &Output, known: &BTreeSet<SegmentId>) -> bool {
        let Origin { group, victims, ordinal, .. } = &output.origin;
        let is_gone = |victim: &SegmentId| !known.contains(victim);
        let others = self.0.get(&(*group, &**victims));
        if output.is_whole || others.is_some_and(|outputs| u32::from(*ordinal) < *outputs) {
            return victims.iter().any(is_gone);
        }
        !victims.is_empty() && victims.iter().all(is_gone)
    }
}

fn retire_all(base: &mut Base, victims: &BTreeSet<SegmentId>) -> Result<()> {
    for (extent, used) in base.extents.uses.clone() {
        if segment_of(&used).is_some_and(|id| victims.contains(&id)) {
            base.change(extent, Change::Retire { extent })?;
        }
    }
    Ok(())
}

/// The description in an output.
struct Output {
    at: SealedAt,
    origin: Origin,
    /// Whether its directory is whole. If not, the output was not finished or was damaged later.
    is_whole: bool,
}

/// An output, if its ORIGIN is whole. Without a SEAL frame it ends behind its last frame, and its
/// directory is rebuilt from its frames.
fn read_output(segment: &Segment) -> Result<Option<Output>> {
    let extent = segment.read_all()?;
    let items = lex(&extent, segment.frames());
    let frames = items.iter().filter_map(Item::frame);
    let of_kind = |kind| frames.clone().rfind(|lexed| lexed.header.kind == kind);
    let origin = of_kind(FrameKind::Origin).filter(|lexed| lexed.payload.is_ok());
    let origin = origin.and_then(|lexed| Origin::decode(payload_of(&extent, &lexed.header)).ok());
    let Some(origin) = origin else { return Ok(None) };
    let seal = of_kind(FrameKind::Seal).filter(|Lexed { header, .. }| {
        (SEGMENT_HEADER_LEN..=header.position.offset).contains(&header.extra)
    });
    let Some(seal) = seal else {
        // Where the manifest states the end, it states a SEAL frame there, which the extent must
        // have room for.
        let most = extent.len().saturating_sub(FRAME_HEADER_LEN);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let end = frames.map(Lexed::end).max().unwrap_or(SEGMENT_HEADER_LEN).min(most);
        let next_run_no = RunNo(0);
        let at = SealedAt { end, seal: end, digest: 0, has_evictions: true, next_run_no };
        return Ok(Some(Output { at, origin, is_whole: false }));
    };
    let header = &seal.header;
    let directory = directory_in(&extent, seal);
    let at = SealedAt {
        end: header.extra,
        seal: header.position.offset,
        digest: header.payload_crc,
        has_evictions: directory.as_ref().is_none_or(|known| known.eviction_count() > 0),
        next_run_no: RunNo(0),
    };
    Ok(Some(Output { at, origin, is_whole: directory.is_some() }))
}

impl Base {
    /// The header of a segment of this store, if these bytes begin with one.
    pub(crate) fn header_in(&self, head: &[u8]) -> Option<SegmentHeader> {
        SegmentHeader::decode(head).ok().filter(|header| header.uuid == self.uuid)
    }

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
