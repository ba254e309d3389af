//! Putting a store in order while it is opened.
//!
//! R0 superblock, R1 manifest ([`base`], [`salvage`]); R2 floor, R3 sealed segments, R4 unsealed
//! ones ([`log`], by the table in [`decide`]); R5 torn tails are closed, never overwritten; R6
//! whether the index can be trusted; R7 everything durable and a new epoch, before the first
//! acknowledgement.
//!
//! It keeps I3, I6 and I9 (ARCHITECTURE.md).

pub(crate) mod candidate_segments;
pub(crate) mod create;
mod decide;
pub(crate) mod finish;
pub(crate) mod front_matter;
pub(crate) mod replay;
pub(crate) mod salvage;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

pub(crate) use crate::engine::state::scan::{Item, lex, payload_of, rebuild_directory};

use crate::engine::background::{Upkeep, checking_ahead};
use crate::engine::checkpoint::IndexSlot;
use crate::engine::open::finish::finish;
use crate::engine::open::front_matter::{Base, read_base};
use crate::engine::open::replay::{RecoveredLog, recover_log};
use crate::engine::open::salvage::drop_index;
use crate::engine::reclaim::evictions;
use crate::engine::setup::observer::{Activity, Watch};
use crate::engine::setup::options::Options;
use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::state::active_runs::HotRuns;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::{Core, Tail};
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::state::tail::Stores;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::{IndexRecovery, RecoveryReport};
use crate::engine::write::append_queue::Turns;
use crate::engine::write::group_commit::CommitQueue;
use crate::engine::write::{Engine, Keeper};
use crate::error::{Error, Result, unless_damaged};
use crate::format::frame::{FRAME_HEADER_LEN, SegmentKey};
use crate::format::manifest::Use;
use crate::format::segment::Purpose;
use crate::format::superblock::{FLAG_CLEAN, FLAG_INDEX_OPENING};
use crate::format::{DirectoryBuilder, NUMBERS_END};
use crate::types::{ExtentNo, Lsn, RunNo, SegmentId};

/// All segments that the manifest knows, by number.
struct Known {
    sealed: Vec<Arc<Segment>>,
    unsealed: BTreeMap<SegmentId, Arc<Segment>>,
    retired: Vec<Arc<Segment>>,
}

impl Known {
    /// The sealed segment of this purpose with the largest number.
    fn last_sealed(&self, purpose: Purpose) -> Option<&Arc<Segment>> {
        self.sealed.iter().rev().find(|segment| segment.purpose() == purpose)
    }
}

/// Opens the store in `disk`.
pub(crate) fn open(disk: Disk, options: Options, path: Option<PathBuf>) -> Result<Arc<Engine>> {
    let _watch = Watch::begin(options.observer.as_ref(), Activity::Recovery);
    let mut report = RecoveryReport::default();
    let base = read_base(&disk, &mut report)?;
    report.clean = base.superblock.flags & FLAG_CLEAN != 0;
    let boot_id = options.environment.boot();
    report.same_boot = boot_id != [0; 16] && boot_id == base.superblock.boot_id;
    let known = segments(&disk, &base);
    check_length(&disk, &base, &known)?;
    // R2, as far as it does not depend on frames: what superblocks and SEAL records say.
    let last = known.last_sealed(Purpose::Log);
    let end = last.map(|segment| segment.position(base.extent_size.bytes_u32()));
    let floor = end.unwrap_or_default().max(base.durable);
    let through = last.map(|segment| segment.id());
    let catalog = Catalog::new(known.sealed.clone(), through, None);
    report.sealed_segments = known.sealed.len() as u64;
    let ahead = if options.background { known.sealed.clone() } else { Vec::new() };
    checking_ahead(&ahead, || {
        let mut unread = None;
        let mut name_of = |run_no: RunNo| match catalog.ask(|catalog| catalog.row(run_no)) {
            Ok(row) => row.map(|row| (row.agent, row.run)),
            Err(Error::Corrupt(_)) => None,
            Err(error) => {
                unread = Some(error);
                None
            }
        };
        let log = recover_log(&known.unsealed, floor, &mut name_of, &mut report)?;
        if let Some(error) = unread {
            // Nothing is written yet. Records of which only the name could not be read are there.
            return Err(error);
        }
        let engine = build(disk, options, path, base, known, catalog, log, &mut report)?;
        finish(engine, report)
    })
}

/// The segments as the manifest has them. Retired ones keep their place until they are freed.
fn segments(disk: &Disk, base: &Base) -> Known {
    let mut known = Known { sealed: Vec::new(), unsealed: BTreeMap::new(), retired: Vec::new() };
    let new = |extent, key, purpose| {
        Arc::new(Segment::new(disk.clone(), base.extent_size, extent, key, purpose))
    };
    let mut sealed = BTreeMap::new();
    for (&extent, used) in &base.extents.uses {
        match *used {
            Use::Log { segment, salt, purpose, sealed: at } => {
                let found = new(extent, SegmentKey { id: segment, salt }, purpose);
                match at {
                    Some(at) => {
                        found.seal(at);
                        found.note(Mark::Durable);
                        sealed.insert(segment, found);
                    }
                    // A compaction that never counted: what it copied is where it was.
                    None if purpose == Purpose::Output => known.retired.push(found),
                    None => {
                        known.unsealed.insert(segment, found);
                    }
                }
            }
            Use::Retired { segment: id, salt } => {
                known.retired.push(new(extent, SegmentKey { id, salt }, Purpose::Log));
            }
            Use::Index { .. } | Use::Meta { .. } => {}
        }
    }
    known.sealed = sealed.into_values().collect();
    known
}

/// Refuses a file that ends before what it says is durable.
fn check_length(disk: &Disk, base: &Base, known: &Known) -> Result<()> {
    let len = disk.len()?;
    let sealed = known.sealed.iter().filter_map(|segment| {
        let seal = u64::from(segment.sealed()?.seal);
        Some(segment.file_offset() + seal + FRAME_HEADER_LEN as u64)
    });
    let open = known.unsealed.get(&base.durable.segment).map(|segment| {
        segment.file_offset() + u64::from(base.durable.offset.min(base.extent_size.bytes_u32()))
    });
    match sealed.chain(open).max() {
        Some(expected) if expected > len => Err(Error::Truncated { len, expected }),
        _ => Ok(()),
    }
}

/// The engine as recovery found it; nothing was written yet.
#[expect(clippy::too_many_arguments, reason = "the parts of a store, put together once")]
fn build(
    disk: Disk,
    options: Options,
    path: Option<PathBuf>,
    mut base: Base,
    known: Known,
    catalog: Catalog,
    log: RecoveredLog,
    report: &mut RecoveryReport,
) -> Result<(Engine, RecoveredLog)> {
    let is_index = |used: &Use| matches!(used, Use::Index { .. });
    let has_index = base.extents.index_len > 0 || base.extents.uses.values().any(is_index);
    let keep_index = has_index
        && options.index
        && base.superblock.flags & FLAG_INDEX_OPENING == 0
        && base.extents.index_map().is_some();
    if has_index && !keep_index {
        drop_index(&mut base.extents);
        base.rewrite = true;
    }
    report.index = match (has_index || report.salvaged, keep_index) {
        (_, true) => IndexRecovery::Kept,
        (true, false) => IndexRecovery::Dropped,
        (false, false) => IndexRecovery::None,
    };
    let (uuid, extent_size, len) = (base.uuid, base.extent_size, disk.len()?);
    let (extents, at, next) = (base.extents.clone(), base.manifest, base.next);
    // The free extents within the file: those of a store that was killed may have blocks.
    let is_within = |extent: &ExtentNo| extent_size.offset_of(*extent) < len;
    let freed: BTreeSet<ExtentNo> = extents.free().take_while(is_within).collect();
    let keeper = Keeper {
        manifest: ManifestLog::resume(disk.clone(), uuid, extent_size, extents, at, next),
        superblock: base.superblock,
        disk: disk.clone(),
        spare: None,
        may_move: freed.len() as u64,
        freed,
    };
    let core = first_core(&disk, &base, known, catalog, &log)?;
    let slot = match (options.index, keep_index) {
        (false, _) => IndexSlot::Off,
        (true, true) => IndexSlot::Stored,
        (true, false) => IndexSlot::Absent,
    };
    let engine = Engine {
        disk,
        upkeep: Upkeep::new(options.background),
        options,
        path,
        uuid,
        extent_size,
        index: Mutex::new(slot),
        noting: Mutex::new(()),
        compacting: Mutex::default(),
        rows: Mutex::new(()),
        core: Mutex::new(core),
        turns: Turns::default(),
        reserved: Mutex::default(),
        keeper: Arc::new(Mutex::new(keeper)),
        commit: CommitQueue::default(),
        report: RecoveryReport::default(),
        sealing: false.into(),
    };
    write_again(&engine, &log, base.rewrite)?;
    Ok((engine, log))
}

/// Writes again what counts and may not be durable (O19). With `rewrite` the manifest moves, before
/// anything is added to it: what follows its last whole batch is not to be trusted.
fn write_again(engine: &Engine, log: &RecoveredLog, rewrite: bool) -> Result<()> {
    let mut keeper = engine.keeper.lock();
    if rewrite {
        keeper.manifest.distrust_area();
    }
    keeper.write_again()?;
    for found in &log.segments {
        found.write_again(&engine.disk, log.floor)?;
    }
    if rewrite { keeper.commit(&[]) } else { Ok(()) }
}

/// The core as recovery begins: the catalog, and a tail that is nowhere yet.
fn first_core(
    disk: &Disk,
    base: &Base,
    known: Known,
    catalog: Catalog,
    log: &RecoveredLog,
) -> Result<Core> {
    let (next_segment, next_run_no, next_lsn) = unused_numbers(base, &known, log)?;
    let of_log = log.segments.iter().flat_map(|found| found.builder.evictions());
    let mut deleted: HashSet<RunNo> = of_log.map(|eviction| eviction.run_no).collect();
    for segment in catalog.segments() {
        deleted.extend(evictions(segment)?);
    }
    let mut suspects = BTreeSet::new();
    if !deleted.is_empty() {
        suspects.extend(catalog.segments().iter().map(|segment| segment.id()));
    }
    let key = SegmentKey { id: SegmentId(0), salt: 0 };
    let nowhere = Segment::new(disk.clone(), base.extent_size, ExtentNo(0), key, Purpose::Log);
    let builder = DirectoryBuilder::default();
    let (segment, stores) = (Arc::new(nowhere), Stores::default());
    let tail = Tail { segment, offset: 0, allocated: 0, stores, builder };
    Ok(Core {
        tail,
        has_next: false,
        unapplied: VecDeque::new(),
        catalog: Arc::new(catalog),
        hot: HotRuns::default(),
        deleted: Arc::new(deleted),
        suspects,
        retired: known.retired,
        next_segment,
        next_run_no,
        next_lsn,
        promised: (next_run_no, next_lsn),
        closed: false,
        buffer: Vec::new(),
    })
}

/// The first numbers that were never used: of segments, of runs, of the order of the log.
fn unused_numbers(
    base: &Base,
    known: &Known,
    log: &RecoveredLog,
) -> Result<(SegmentId, RunNo, Lsn)> {
    let block = &base.superblock;
    let segments = known.sealed.iter().chain(known.unsealed.values()).chain(&known.retired);
    let used = segments.map(|segment| segment.id().0).max().unwrap_or(0);
    let next_segment = block.next_segment.max(SegmentId(used.saturating_add(1)));
    let mut run_no = block.next_run_no.max(log.next_run_no).max(RunNo(1));
    let mut lsn = block.next_lsn.max(log.next_lsn).max(Lsn(1));
    for purpose in [Purpose::Log, Purpose::Output] {
        let Some(last) = known.last_sealed(purpose) else { continue };
        if let Some(directory) = unless_damaged(last.directory())? {
            run_no = run_no.max(directory.next_run_no());
            lsn = lsn.max(Lsn(directory.last_lsn().0.saturating_add(2)));
        }
    }
    for segment in known.unsealed.values() {
        if let Some(header) = unless_damaged(segment.header())? {
            (run_no, lsn) = (run_no.max(header.next_run_no), lsn.max(header.next_lsn));
        }
    }
    Ok((next_segment, run_no, lsn.min(Lsn(NUMBERS_END))))
}
