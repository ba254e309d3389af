//! Recovery: opening a store after whatever a crash left, in five steps (section 20 of FORMAT.md).
//!
//! 0. Read everything: superblocks and manifest ([`front_matter`]), unsealed segments ([`replay`]).
//!    Damage that the table in [`decide`] refuses returns an error here, before any write. Then the
//!    floor becomes durable in a superblock, if no frame that counts states it.
//! 1. Segments behind the end of the log are retired.
//! 2. What counts above the floor is written again, and a torn segment gets its SEAL frame.
//! 3. The manifest learns of the sealed segments, and of the segment in which the log goes on.
//! 4. A superblock begins the new epoch.
//!
//! Steps 1 to 4 are in [`finish`]. Each ends with a sync, and the first acknowledgement follows the
//! last. Recovery maintains I3, I6 and I9 (ARCHITECTURE.md).

pub(crate) mod create;
mod decide;
pub(crate) mod finish;
pub(crate) mod front_matter;
pub(crate) mod replay;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;

use crate::engine::Engine;
use crate::engine::checkpoint::IndexSlot;
use crate::engine::open::finish::finish;
use crate::engine::open::front_matter::{Base, read_base};
use crate::engine::open::replay::{RecoveredLog, recover_log};
use crate::engine::setup::Setup;
use crate::engine::setup::due::Due;
use crate::engine::setup::health::Monitor;
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::{Options, SpaceReturn, TailWriter};
use crate::engine::space::Space;
use crate::engine::space::allocator::Allocator;
use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::state::active_runs::ActiveRuns;
use crate::engine::state::catalog::{Catalog, locate};
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::state::segment_directory::evictions;
use crate::engine::state::tail::Tail;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::{IndexRecovery, RecoveryReport};
use crate::engine::write::Log;
use crate::error::{Damage, Error, Place, Result};
use crate::format::frames::frame::SegmentKey;
use crate::format::map::manifest::{SealedAt, Use};
use crate::format::map::superblock::{FLAG_COPY, FLAG_INDEX_OPENING};
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::Purpose;
use crate::index::Locator;
use crate::types::{ExtentNo, LogPosition, Lsn, RunNo, SegmentId};

/// All segments in the manifest, by id.
pub(crate) struct Known {
    pub(crate) sealed: Vec<Arc<Segment>>,
    pub(crate) unsealed: BTreeMap<SegmentId, Arc<Segment>>,
    pub(crate) retired: Vec<Arc<Segment>>,
}

impl Known {
    /// The sealed segment of this purpose with the largest id.
    pub(crate) fn last_sealed(&self, purpose: Purpose) -> Option<&Arc<Segment>> {
        self.sealed.iter().rev().find(|segment| segment.purpose() == purpose)
    }

    /// The floor as far as superblocks and SEAL records state it.
    pub(crate) fn floor(&self, base: &Base, durable_only: bool) -> Floor {
        let last = self.last_sealed(Purpose::Log);
        let end = last.map(|segment| segment.position(base.extent_size.bytes_u32()));
        Floor { at: end.unwrap_or_default().max(base.durable), durable_only }
    }
}

/// Everything in front of it was durable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) at: LogPosition,
    /// Whether only what is in front of the floor counts.
    pub(crate) durable_only: bool,
}

/// Opens the store in `disk`.
pub(crate) fn open(disk: Disk, options: Options, path: Option<PathBuf>) -> Result<Arc<Engine>> {
    let monitor = Arc::new(Monitor::new(&options));
    disk.witnessed_by(Arc::<Monitor>::clone(&monitor));
    let recover = || recover(disk, options, path, Arc::clone(&monitor));
    monitor.watch(Activity::Recovery, recover)
}

fn recover(
    disk: Disk,
    options: Options,
    path: Option<PathBuf>,
    monitor: Arc<Monitor>,
) -> Result<Arc<Engine>> {
    let mut report = RecoveryReport::default();
    let base = read_base(&disk, &mut report, true)?;
    report.clean = base.is_clean();
    let known = segments(&disk, &base, &|_, _, _| None);
    check_length(&disk, &base, &known)?;
    report.sealed_segments = known.sealed.len() as u64;
    let mut ahead = if options.background { known.sealed.clone() } else { Vec::new() };
    // The newest first: these are asked for most.
    ahead.reverse();
    let (locator, reserved) = (Arc::<Locator>::default(), Once::new());
    let check = |segment: &Segment| {
        reserved.call_once(|| {
            // A table that grows takes twice as long.
            let runs = |one: Option<&Arc<Segment>>| Some(one?.directory().ok()?.run_count());
            let least = runs(ahead.first()).min(runs(ahead.last())).unwrap_or(0);
            locator.reserve(ahead.len() * least as usize);
        });
        let _ = locate(&locator, segment, None);
    };
    checking_ahead((&ahead, check), 1, |_| {
        let floor = known.floor(&base, false);
        let log = recover_log(&known.unsealed, floor, &mut report)?;
        if let Some(refused) = log.refused {
            return Err(Error::Damaged(refused));
        }
        let (uuid, extent_size) = (base.uuid, base.extent_size);
        let setup = Arc::new(Setup { options, monitor, uuid, extent_size });
        let through = known.last_sealed(Purpose::Log).map(|segment| segment.id());
        let catalog = Catalog::new(known.sealed.clone(), through, None, Arc::clone(&locator));
        // Up to here recovery only reads.
        let mut engine = build(disk, setup, path, &base, known, catalog, &log, &mut report)?;
        finish(&engine, &base, log)?;
        let state = engine.log.state.lock();
        let sealed = state.catalog.segments().iter().chain(&state.unapplied);
        report.damaged.extend(sealed.filter_map(|segment| segment.quarantine().cloned()));
        drop(state);
        engine.report = report;
        Ok(Arc::new(engine))
    })
}

/// The segments in the manifest. Retired ones keep their place until they are freed.
///
/// `reuse` returns a known sealed segment with this place, key and seal.
pub(crate) fn segments(
    disk: &Disk,
    base: &Base,
    reuse: &dyn Fn(ExtentNo, SegmentKey, SealedAt) -> Option<Arc<Segment>>,
) -> Known {
    let mut known = Known { sealed: Vec::new(), unsealed: BTreeMap::new(), retired: Vec::new() };
    let new = |extent, key, purpose| Arc::new(base.segment(disk, extent, key, purpose));
    let mut sealed = BTreeMap::new();
    for (&extent, used) in &base.extents.uses {
        match *used {
            Use::Log { segment, salt, purpose, sealed: at } => {
                let key = SegmentKey { id: segment, salt };
                if let Some(found) = at.and_then(|at| reuse(extent, key, at)) {
                    sealed.insert(segment, found);
                    continue;
                }
                let found = new(extent, key, purpose);
                match at {
                    Some(at) => {
                        found.seal(at);
                        found.note(Mark::Durable);
                        sealed.insert(segment, found);
                    }
                    // An output that never counted: the originals of its copies are still there.
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

/// Refuses a file that ends before its durable data.
pub(crate) fn check_length(disk: &Disk, base: &Base, known: &Known) -> Result<()> {
    let len = disk.len()?;
    let sealed = known.sealed.iter().filter_map(|one| Some((one, one.sealed()?.directory())));
    let open = known.unsealed.get(&base.durable.segment);
    let open = open.map(|one| (one, base.durable.offset.min(base.extent_size.bytes_u32())));
    let is_behind =
        |(segment, end): &(&Arc<Segment>, u32)| segment.file_offset() + u64::from(*end) > len;
    match sealed.chain(open).find(is_behind) {
        Some((segment, end)) => {
            Err(Error::damaged(Place::Frame(segment.position(end)), Damage::Truncated))
        }
        None => Ok(()),
    }
}

/// The engine as recovery found it. Nothing is written.
#[expect(clippy::too_many_arguments, reason = "the parts of a store, put together once")]
fn build(
    disk: Disk,
    setup: Arc<Setup>,
    path: Option<PathBuf>,
    base: &Base,
    known: Known,
    catalog: Catalog,
    log: &RecoveredLog,
    report: &mut RecoveryReport,
) -> Result<Engine> {
    let mut extents = base.extents.clone();
    let is_index = |used: &Use| matches!(used, Use::Index { .. });
    let has_index = extents.index_len > 0 || extents.uses.values().any(is_index);
    let keep_index = has_index
        && setup.options.index
        && base.superblock.flags & FLAG_INDEX_OPENING == 0
        && extents.index_map(base.extent_size).is_some();
    let drops_index = has_index && !keep_index;
    if drops_index {
        extents.drop_index();
    }
    report.index = match (has_index, keep_index) {
        (_, true) => IndexRecovery::Kept,
        (true, false) => IndexRecovery::Dropped,
        (false, false) => IndexRecovery::None,
    };
    let (uuid, extent_size, len) = (base.uuid, base.extent_size, disk.len()?);
    // The free extents within the file may have blocks if the store was killed, also of an erasure.
    let mut freed = extents.free_within(extent_size, len);
    let may_move = freed.len() as u64;
    let keeps = setup.options.compaction.space == SpaceReturn::Keep;
    // A backup that broke off leaves bytes in a copy, which counts as clean.
    let is_copy = base.superblock.flags & FLAG_COPY != 0;
    if keeps && report.clean && !is_copy {
        freed.clear();
    }
    let mut manifest =
        ManifestLog::resume(disk.clone(), uuid, extent_size, extents, base.manifest, base.next);
    if base.rewrite || drops_index {
        manifest.distrust_area();
    }
    let allocator = Allocator {
        manifest,
        superblock: base.superblock,
        disk: disk.clone(),
        compaction_reserve: None,
        may_move,
        keeps,
        freed,
    };
    let writer = setup.options.tail_writer;
    let mut state = first_state(&disk, (base, writer), known, catalog, log)?;
    if base.lacks_numbers() {
        state.leave_numbers_out(RunNo(0), setup.options.environment.random()?);
    }
    let slot = match (setup.options.index, keep_index) {
        (false, _) => IndexSlot::Off,
        (true, true) => IndexSlot::Stored,
        (true, false) => IndexSlot::Absent,
    };
    let due = Arc::new(Due::new(setup.options.background));
    let space = Arc::new(Space {
        setup: Arc::clone(&setup),
        due: Arc::clone(&due),
        allocator: Ranked::of(&disk, Rank::Allocator, allocator),
        disk,
    });
    Ok(Engine::new(Log::new(setup, due, space, state), slot, path))
}

/// The state at the beginning of recovery: the catalog, and a tail without a place.
pub(crate) fn first_state(
    disk: &Disk,
    (base, writer): (&Base, TailWriter),
    known: Known,
    catalog: Catalog,
    log: &RecoveredLog,
) -> Result<LogState> {
    let (next_segment, next_run_no, next_lsn) = unused_numbers(base, &known, log);
    let of_log = log.segments.iter().flat_map(|found| found.builder.evictions());
    let mut deleted: RunSet = of_log.map(|eviction| eviction.run_no).collect();
    for segment in catalog.segments() {
        match evictions(segment) {
            // Whatever asks for the runs of a quarantined segment fails.
            Err(Error::Corrupt(_)) => {}
            found => deleted.extend(found?),
        }
    }
    let mut suspects = BTreeSet::new();
    if !deleted.is_empty() {
        suspects.extend(catalog.segments().iter().map(|segment| segment.id()));
    }
    let is_known = deleted.is_empty() || base.is_clean();
    let dead = if is_known { base.superblock.dead } else { u64::MAX };
    let key = SegmentKey { id: SegmentId(0), salt: 0 };
    let nowhere = base.segment(disk, ExtentNo(0), key, Purpose::Log);
    Ok(LogState {
        tail: Tail::new(nowhere, writer),
        has_next: false,
        unapplied: VecDeque::new(),
        catalog: Arc::new(catalog),
        active: ActiveRuns::default(),
        deleted: Arc::new(deleted),
        suspects,
        dead,
        retired: known.retired,
        next_segment,
        next_run_no,
        next_lsn,
        stated: LogPosition::default(),
        promised: (next_run_no, next_lsn),
        closed: false,
        buffer: Vec::new(),
    })
}

/// The first numbers that were never used: of segments, of runs, of the order of the log. The
/// superblock promises numbers before frames get them (O18).
fn unused_numbers(base: &Base, known: &Known, log: &RecoveredLog) -> (SegmentId, RunNo, Lsn) {
    let block = &base.superblock;
    let segments = known.sealed.iter().chain(known.unsealed.values()).chain(&known.retired);
    let used = segments.map(|segment| segment.id().0).max().unwrap_or(0);
    let next_segment = block.next_segment.max(SegmentId(used.saturating_add(1)));
    let mut run_no = block.next_run_no.max(log.next_run_no).max(RunNo(1));
    for at in known.sealed.iter().filter_map(|segment| segment.sealed()) {
        run_no = run_no.max(at.next_run_no);
    }
    (next_segment, run_no, block.next_lsn.max(log.next_lsn).max(Lsn(1)))
}

/// Checking fewer directories takes less time than starting a thread.
const WORTH_A_THREAD: usize = 16;

/// Does `work` while at most so many other threads check segments ahead: each lookup needs the
/// directories of all of them. `work` may help by calling what it is given. Checked directories are
/// kept, and an error is returned to the caller that needs the directory, so this changes only the
/// time.
pub(crate) fn checking_ahead<R>(
    (segments, check): (&[Arc<Segment>], impl Fn(&Segment) + Sync),
    threads: usize,
    work: impl FnOnce(&dyn Fn()) -> R,
) -> R {
    let (next, others) = (AtomicUsize::new(0), thread::available_parallelism());
    let others = others.map_or(1, |processors| processors.get().saturating_sub(1).max(1));
    let check_all = || {
        while let Some(segment) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(segment);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.min(others).min(segments.len() / WORTH_A_THREAD) {
            let thread = thread::Builder::new().name("runlog-check".to_owned());
            // Without the thread it only takes longer.
            let _ = thread.spawn_scoped(scope, check_all);
        }
        let done = work(&check_all);
        next.store(segments.len(), Ordering::Relaxed);
        done
    })
}
