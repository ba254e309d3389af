//! What a process that only reads finds in a store: step 0 of recovery, in memory, and whether the
//! writer has overtaken it meanwhile (section 24 of FORMAT.md).

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::open::front_matter::{Base, read_base};
use crate::engine::open::replay::{Recovered, RecoveredLog, recover_log};
use crate::engine::open::{Known, check_length, checking_ahead, first_state, segments};
use crate::engine::setup::options::TailWriter;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Error, Result};
use crate::format::frames::frame::SegmentKey;
use crate::format::map::extents::Extents;
use crate::format::map::manifest::{AREA_HEADER_LEN, RECORD_LEN, SealedAt, Use};
use crate::format::map::superblock::{CHECKED_LEN, ManifestAt, Superblock};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::format::{ExtentSize, PAGE, SUPERBLOCK_AT};
use crate::types::{ExtentNo, LogPosition, SegmentId};

/// How often a view is built again because the writer was faster. Each time it has changed the
/// manifest in between, of which it takes some milliseconds to do the least.
const ATTEMPTS: usize = 64;

/// What tells that the store has changed: the superblocks, and the place of the next record of the
/// manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    superblocks: Vec<u8>,
    manifest: ManifestAt,
    /// What stood behind the last whole batch when that was read, without zeros: nothing, or a
    /// part of a batch that was being written, or that a crash tore.
    behind: Vec<u8>,
}

impl Seen {
    /// Whether the writer has changed the state of the extents since.
    pub(super) fn has_changed(&self, disk: &Disk) -> Result<bool> {
        if read_superblocks(disk)? != self.superblocks {
            return Ok(true);
        }
        let mut known = self.behind.clone();
        let now = read_behind(disk, self.manifest, known.len() + RECORD_LEN)?;
        known.resize(now.len(), 0);
        Ok(now != known)
    }
}

/// All of a store as of one moment.
pub(super) struct View {
    pub(super) uuid: [u8; 16],
    pub(super) extent_size: ExtentSize,
    pub(super) state: LogState,
    pub(super) seen: Seen,
    pub(super) extents: Extents,
    pub(super) superblock: Superblock,
    pub(super) report: RecoveryReport,
    /// The damage at which the log ends, if a writer would refuse the store for it.
    pub(super) lost_end: Option<Corruption>,
    /// Everything in front of it was durable.
    pub(super) floor: LogPosition,
    /// The segments that were read frame by frame.
    unsealed: Vec<(ExtentNo, SegmentKey)>,
}

impl View {
    /// Whether a segment that was read frame by frame was retired meanwhile, so that its bytes may
    /// have been zeros or another segment's.
    fn is_gone(&self, disk: &Disk) -> Result<bool> {
        if !self.seen.has_changed(disk)? {
            return Ok(false);
        }
        let uses = match read_base(disk, &mut RecoveryReport::default(), false) {
            Ok(base) => base.extents.uses,
            // It is being changed.
            Err(Error::Damaged(_) | Error::Corrupt(_)) => return Ok(true),
            Err(error) => return Err(error),
        };
        let is_owner = |(extent, key): &(ExtentNo, SegmentKey)| {
            matches!(uses.get(extent), Some(&Use::Log { segment, salt, .. })
                if segment == key.id && salt == key.salt)
        };
        Ok(!self.unsealed.iter().all(is_owner))
    }
}

/// How views are built.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) durable_only: bool,
    /// The most bytes that all runs in the order of lists may take.
    pub(super) list_bytes: usize,
}

/// What of an earlier view may be used again.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    pub(super) segments: HashMap<ExtentNo, Arc<Segment>>,
    /// Its catalog, of which the locator is used again.
    pub(super) catalog: Arc<Catalog>,
}

impl Earlier {
    fn segment(&self, extent: ExtentNo, key: SegmentKey, at: SealedAt) -> Option<Arc<Segment>> {
        let found = self.segments.get(&extent)?;
        (found.key() == key && found.sealed().is_some_and(|known| known.is_same(&at)))
            .then(|| Arc::clone(found))
    }
}

/// Builds a view. What does not check counts as damage if it is the same twice in a row: no writer
/// repairs it, and in the second view the segment still counts, so that the bytes were its own.
/// Without a view, the superblocks and the manifest must be the same, too.
pub(super) fn build(disk: &Disk, wanted: Wanted, earlier: &Earlier) -> Result<View> {
    let mut before = None;
    for _ in 0..ATTEMPTS {
        let built = build_once(disk, wanted, earlier);
        let found = match &built {
            Ok(view) => Ok(view.report.damaged.clone()),
            Err(error @ (Error::Damaged(_) | Error::Corrupt(_))) => {
                Err((error.to_string(), read_owners(disk)?))
            }
            Err(_) => return built,
        };
        let is_whole = found == Ok(Vec::new());
        if is_whole || before.as_ref() == Some(&found) {
            match &built {
                // What took zeros for the end of the log saw perhaps an extent that was punched.
                Ok(view) if view.is_gone(disk)? => {}
                _ => return built,
            }
        }
        before = Some(found);
    }
    Err(Error::Overtaken { attempts: ATTEMPTS as u64 })
}

fn build_once(disk: &Disk, wanted: Wanted, earlier: &Earlier) -> Result<View> {
    let mut report = RecoveryReport::default();
    let mut superblocks = read_superblocks(disk)?;
    let mut base = read_base(disk, &mut report, false)?;
    // The floor must not be older than a RETIRE: what was retired is dead by evictions below it.
    for _ in 0..ATTEMPTS {
        let now = read_superblocks(disk)?;
        if !wanted.durable_only || now == superblocks {
            break;
        }
        (superblocks, report) = (now, RecoveryReport::default());
        base = read_base(disk, &mut report, false)?;
    }
    let seen = Seen { superblocks, manifest: base.manifest, behind: base.behind.clone() };
    report.clean = base.is_clean();
    let known = segments(disk, &base, &|extent, key, at| earlier.segment(extent, key, at));
    let floor = known.floor(&base, wanted.durable_only);
    let through = known.last_sealed(Purpose::Log).map(|segment| segment.id());
    // All of them now: later their bytes may be another segment's.
    let unread = known.sealed.iter().filter(|segment| !segment.has_directory());
    let check = |segment: &Segment| _ = segment.directory();
    checking_ahead((&unread.cloned().collect::<Vec<_>>(), check), usize::MAX, |check| check());
    for segment in &known.sealed {
        match segment.directory() {
            Err(Error::Corrupt(damage)) => report.damaged.push(damage),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    let catalog = earlier.catalog.of_others(known.sealed.clone(), through, None);
    let catalog = catalog.without_stale_places().with_list_bytes(wanted.list_bytes);
    report.sealed_segments = known.sealed.len() as u64;
    let unsealed = known.unsealed.values().map(|segment| (segment.extent(), segment.key()));
    let unsealed: Vec<_> = unsealed.collect();
    let log = recover_log(&known.unsealed, floor, &mut report)?;
    // Everything in front of it is whole, and is as it was at some moment.
    let cut_off = match check_length(disk, &base, &known) {
        Err(Error::Damaged(damage)) => Some(damage),
        checked => checked.map(|()| None)?,
    };
    let lost_end = log.refused.clone().or(cut_off);
    report.damaged.extend(lost_end.clone());
    let floor = log.floor;
    let extents = base.extents.clone();
    let state = assemble(disk, &base, known, catalog, log)?;
    let (uuid, extent_size) = (base.uuid, base.extent_size);
    let superblock = base.superblock;
    Ok(View {
        uuid,
        extent_size,
        state,
        seen,
        extents,
        superblock,
        report,
        lost_end,
        floor,
        unsealed,
    })
}

/// The state of the store, with the runs of its unsealed segments in memory.
fn assemble(
    disk: &Disk,
    base: &Base,
    known: Known,
    catalog: Catalog,
    log: RecoveredLog,
) -> Result<LogState> {
    let mut state = first_state(disk, (base, TailWriter::Pwrite), known, catalog, &log)?;
    // What is retired says nothing, and nothing is kept for it.
    state.retired.clear();
    let mut next = SegmentId(1).max(state.catalog.through().map_or(SegmentId(1), behind));
    // Bytes behind the last frame may be one that a writer is writing, so the log goes on there.
    let is_open = log.segments.last().is_some_and(|last| last.sealed.is_none());
    for found in log.segments {
        next = behind(found.segment.id());
        take_in(&mut state, found)?;
    }
    if !is_open {
        // The log goes on in a segment that is not there yet.
        let key = SegmentKey { id: next, salt: 0 };
        let segment = base.segment(disk, ExtentNo(u32::MAX), key, Purpose::Log);
        state.begin(Arc::new(segment), SEGMENT_HEADER_LEN, TailWriter::Pwrite);
    }
    Ok(state)
}

fn behind(id: SegmentId) -> SegmentId {
    SegmentId(id.0.saturating_add(1))
}

/// Takes over what was found in an unsealed segment. Only the last one has no SEAL frame, and stays
/// open.
fn take_in(state: &mut LogState, found: Recovered) -> Result<()> {
    let runs = found.builder.runs().iter().map(|built| built.entry.run_no);
    state.remember(found.segment.id(), &found.builder, runs)?;
    state.begin(Arc::clone(&found.segment), found.end, TailWriter::Pwrite);
    (state.tail.offset, state.tail.builder) = (found.end, found.builder);
    let Some(at) = found.sealed else { return Ok(()) };
    found.segment.seal(at);
    // Now, as for those that the manifest knows.
    found.segment.directory()?;
    state.take_sealed(found.segment);
    Ok(())
}

/// The part of both superblocks that their checks cover.
fn read_superblocks(disk: &Disk) -> Result<Vec<u8>> {
    let len = CHECKED_LEN + 4;
    let mut both = disk.read_padded(SUPERBLOCK_AT, len)?;
    both.extend(disk.read_padded(SUPERBLOCK_AT + PAGE, len)?);
    Ok(both)
}

/// What says who owns which extent: the superblocks, and all records that they do not count.
fn read_owners(disk: &Disk) -> Result<Vec<u8>> {
    let (mut all, most) = (read_superblocks(disk)?, usize::try_from(disk.len()?));
    let slots: Vec<_> = all.chunks(CHECKED_LEN + 4).map(Superblock::decode).collect();
    for Superblock { manifest, .. } in slots.into_iter().flatten() {
        all.extend(read_behind(disk, manifest, most.unwrap_or(usize::MAX))?);
    }
    Ok(all)
}

/// What an area has behind its last whole batch.
fn read_behind(disk: &Disk, at: ManifestAt, len: usize) -> Result<Vec<u8>> {
    let offset = AREA_HEADER_LEN as u64 + at.records.saturating_mul(RECORD_LEN as u64);
    let room = usize::try_from(at.len.saturating_sub(offset)).unwrap_or(usize::MAX);
    disk.read_padded(at.offset.saturating_add(offset), len.min(room))
}
