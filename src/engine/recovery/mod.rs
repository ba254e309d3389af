//! Putting a store in order while it is opened.
//!
//! R0 superblock, R1 manifest ([`base`]); R2 floor, R3 sealed segments, R4 unsealed ones ([`log`],
//! by the table in [`decide`]); R5 torn tails are closed, never overwritten; R6 whether the index
//! can be trusted; R7 everything durable and a new epoch, before the first acknowledgement.
//!
//! Invariants: recovering twice gives the same (I3), also when a crash interrupts it, since nothing
//! is overwritten that a second recovery would need; nothing below the floor is cut (I6); no bytes
//! make it panic (I9).

mod base;
mod check;
mod decide;
mod homes;
mod log;
mod numbers;
mod scan;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

pub(crate) use self::check::{SegmentCheck, check_sealed, check_tail};
pub(crate) use self::scan::{Item, lex, payload_of, rebuild_directory};

use self::base::{Base, drop_index, read_base};
use self::homes::Homes;
use self::log::{Recovered, RecoveredLog, recover_log};
use self::numbers::fresh_numbers;
use super::catalog::Catalog;
use super::commit::CommitQueue;
use super::core::{Core, Sealing, Tail};
use super::disk::Disk;
use super::hot::{HotRun, HotRuns};
use super::index_slot::IndexSlot;
use super::manifest_log::ManifestLog;
use super::observer::{Activity, Watch};
use super::options::Options;
use super::report::{IndexRecovery, RecoveryReport};
use super::segment::Segment;
use super::shared::{Engine, Keeper};
use super::stores::Stores;
use super::turns::Turns;
use super::upkeep::{Upkeep, Wanted, checking_ahead};
use crate::error::{Corruption, Error, Place, Result};
use crate::format::frame::SegmentKey;
use crate::format::manifest::{Extents, Use};
use crate::format::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::format::superblock::{FLAG_CLEAN, FLAG_INDEX_OPENING};
use crate::format::{DirectoryBuilder, ExtentSize};
use crate::index::{Catalog as _, DirectoryScan};
use crate::types::{ExtentNo, LogPosition, RunNo, SegmentId};

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
    let boot_id = options.environment.boot_id.map_or([0; 16], |boot| boot.0);
    report.same_boot = boot_id != [0; 16] && boot_id == base.superblock.boot_id;
    let known = segments(&disk, &base);
    check_length(&disk, &base, &known)?;
    let floor = floor(&base, &known);
    let through = known.last_sealed(Purpose::Log).map(|segment| segment.id());
    let catalog = Catalog::new(known.sealed.clone(), through, None);
    report.sealed_segments = known.sealed.len() as u64;
    let same_boot = report.same_boot;
    let ahead = if options.background { known.sealed.clone() } else { Vec::new() };
    checking_ahead(&ahead, || {
        let mut name_of = |run_no: RunNo| {
            let row = DirectoryScan::new(&catalog).row(run_no).ok().flatten()?;
            Some((row.agent, row.run))
        };
        let log = recover_log(&known.unsealed, floor, same_boot, &mut name_of, &mut report)?;
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
                        found.note_durable();
                        sealed.insert(segment, found);
                    }
                    // A compaction that never counted: what it copied is where it was.
                    None if purpose == Purpose::Output => known.retired.push(found),
                    None => {
                        known.unsealed.insert(segment, found);
                    }
                }
            }
            Use::Retired => {
                let key = SegmentKey { id: SegmentId(0), salt: 0 };
                known.retired.push(new(extent, key, Purpose::Log));
            }
            Use::Index { .. } | Use::Meta => {}
        }
    }
    known.sealed = sealed.into_values().collect();
    known
}

/// Refuses a file that ends before what it says is durable.
fn check_length(disk: &Disk, base: &Base, known: &Known) -> Result<()> {
    let len = disk.len()?;
    let sealed = known.sealed.iter().filter_map(|segment| {
        let at = segment.sealed()?;
        Some(
            segment.file_offset()
                + u64::from(at.seal)
                + crate::format::frame::FRAME_HEADER_LEN as u64,
        )
    });
    let open = known.unsealed.get(&base.durable.segment).map(|segment| {
        segment.file_offset() + u64::from(base.durable.offset.min(base.extent_size.bytes_u32()))
    });
    match sealed.chain(open).max() {
        Some(expected) if expected > len => Err(Error::Truncated { len, expected }),
        _ => Ok(()),
    }
}

/// R2, as far as it does not depend on frames: what superblocks and SEALED records say.
fn floor(base: &Base, known: &Known) -> LogPosition {
    let sealed = known.last_sealed(Purpose::Log);
    let sealed = sealed.map(|segment| segment.position(base.extent_size.bytes_u32()));
    sealed.unwrap_or_default().max(base.durable)
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
) -> Result<(Engine, Vec<Recovered>)> {
    let has_index = has_index(&base.extents);
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
    let extent_size = base.extent_size;
    let (manifest, keeper_disk) = (manifest_log(&disk, &base), disk.clone());
    let keeper = Keeper {
        manifest,
        superblock: base.superblock,
        disk: keeper_disk,
        spare: None,
        freed: BTreeSet::new(),
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
        uuid: base.uuid,
        extent_size,
        index: Mutex::new(slot),
        noting: Mutex::new(()),
        compacting: Mutex::default(),
        core: Mutex::new(core),
        turns: Turns::default(),
        ahead: Mutex::new(None),
        keeper: Arc::new(Mutex::new(keeper)),
        commit: CommitQueue::default(),
        report: RecoveryReport::default(),
        sealing: false.into(),
    };
    if base.rewrite {
        // Before anything is added: what follows the last whole batch is not to be trusted.
        let mut keeper = engine.keeper.lock();
        keeper.manifest.distrust_area();
        keeper.commit(&[])?;
    }
    Ok((engine, log.segments))
}

/// The core as recovery begins: the catalog, and a tail that is nowhere yet.
fn first_core(
    disk: &Disk,
    base: &Base,
    known: Known,
    catalog: Catalog,
    log: &RecoveredLog,
) -> Result<Core> {
    let fresh = fresh_numbers(base, &known, log)?;
    let mut deleted = HashSet::new();
    let mut suspects = BTreeSet::new();
    for segment in catalog.segments() {
        if segment.sealed().is_some_and(|sealed| sealed.has_evictions) {
            gather_evictions(segment, &mut deleted)?;
        }
    }
    deleted.extend(
        log.segments.iter().flat_map(|found| found.builder.evictions()).map(|found| found.run_no),
    );
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
        reserved: VecDeque::new(),
        ahead: false,
        sealing: VecDeque::new(),
        unapplied: VecDeque::new(),
        catalog: Arc::new(catalog),
        hot: HotRuns::default(),
        deleted: Arc::new(deleted),
        shrunk: suspects.clone(),
        suspects,
        retired: known.retired,
        next_segment: fresh.segment,
        next_run_no: fresh.run_no,
        next_lsn: fresh.lsn,
        closed: false,
        writing_pieces: BTreeMap::new(),
        buffer: Vec::new(),
    })
}

fn has_index(extents: &Extents) -> bool {
    extents.index_len > 0 || extents.uses.values().any(|used| matches!(used, Use::Index { .. }))
}

fn manifest_log(disk: &Disk, base: &Base) -> ManifestLog {
    let extents = base.extents.clone();
    ManifestLog::resume(disk.clone(), base.uuid, base.extent_size, extents, base.manifest)
}

fn gather_evictions(segment: &Arc<Segment>, deleted: &mut HashSet<RunNo>) -> Result<()> {
    let directory = segment.directory(rebuild_directory)?;
    for index in 0..directory.eviction_count() {
        let found = directory
            .eviction(index)
            .map_err(|damage| Error::corrupt(Place::Directory { segment: segment.id() }, damage))?;
        deleted.insert(found.run_no);
    }
    Ok(())
}

/// Closes what is torn, finds the tail, and makes everything durable (R5, R7).
fn finish(
    (mut engine, mut found): (Engine, Vec<Recovered>),
    mut report: RecoveryReport,
) -> Result<Arc<Engine>> {
    {
        let mut core = engine.core.lock();
        core.close_beyond(&engine, &mut found)?;
        let mut homes = Homes::new(&core.catalog, found.iter().map(|found| &found.segment));
        let last_used = found.iter().rposition(|found| !found.unused);
        let mut open = None;
        for (number, recovered) in found.into_iter().enumerate() {
            let is_last = Some(number) == last_used || (last_used.is_none() && number == 0);
            if recovered.unused && !is_last {
                core.prepare_reserved(&engine, recovered.segment)?;
                continue;
            }
            let keep = is_last && recovered.sealed.is_none() && !recovered.torn;
            core.take_over(&engine, recovered, keep, &mut homes)?;
            if keep {
                open = Some(());
            }
        }
        if open.is_none() {
            let next = match core.reserved.pop_front() {
                Some(next) => next,
                None => engine.reserve_now(&mut core)?,
            };
            core.begin(next, SEGMENT_HEADER_LEN);
        }
        engine.disk.sync()?;
        let end = core.end_of_log();
        engine.commit.begin(end);
        let damaged = core.directory_damage();
        report.damaged.extend(damaged);
        let boot_id = engine.options.environment.boot_id.map_or([0; 16], |boot| boot.0);
        let opening = matches!(*engine.index.lock(), IndexSlot::Stored);
        let mut keeper = engine.keeper.lock();
        let (next_segment, next_run_no) = (core.next_segment, core.next_run_no);
        let next_lsn = core.next_lsn;
        keeper.write_superblock(|block| {
            block.boot_id = boot_id;
            block.durable = end;
            block.flags = if opening { FLAG_INDEX_OPENING } else { 0 };
            (block.next_segment, block.next_run_no) = (next_segment, next_run_no);
            block.next_lsn = next_lsn;
        })?;
        if !core.suspects.is_empty() || !core.retired.is_empty() {
            engine.upkeep.want(Wanted::RECLAIM);
        }
    }
    engine.report = report;
    let engine = Arc::new(engine);
    engine.note_seals()?;
    Ok(engine)
}

impl Core {
    /// A segment that was set aside and not used yet. Its header may have been lost.
    fn prepare_reserved(&mut self, engine: &Engine, segment: Arc<Segment>) -> Result<()> {
        if segment.header().is_err() {
            engine.write_segment_header(&segment, self.next_run_no, self.next_lsn)?;
        }
        self.reserved.push_back(segment);
        Ok(())
    }

    /// Takes a scanned segment over: as the tail, or sealed, by its own SEAL frame or by one that
    /// is written now.
    fn take_over(
        &mut self,
        engine: &Engine,
        found: Recovered,
        keep: bool,
        homes: &mut Homes,
    ) -> Result<()> {
        if found.builder.is_empty() && !keep {
            self.suspects.insert(found.segment.id());
        }
        // Without its header it was never used: what else is there is an earlier owner's.
        if found.end == SEGMENT_HEADER_LEN && found.segment.header().is_err() {
            engine.write_segment_header(&found.segment, self.next_run_no, self.next_lsn)?;
        }
        self.remember(&found, homes)?;
        // Space behind the end may never have been allocated: `fits` sees to it again.
        let allocated = found.end.next_multiple_of(4096).min(engine.extent_size.bytes_u32());
        self.tail = Tail {
            segment: Arc::clone(&found.segment),
            offset: found.end,
            allocated,
            stores: Stores::default(),
            builder: found.builder,
        };
        if keep {
            return Ok(());
        }
        let Some(at) = found.sealed else {
            let seal = if found.torn { self.seal_behind(engine)? } else { found.end };
            return self.seal_tail(engine, seal);
        };
        self.adopt_seal(engine, &found.segment, at);
        Ok(())
    }

    /// Where the SEAL frame of a torn segment goes: behind all evidence. Room for the directory was
    /// always kept there.
    fn seal_behind(&self, engine: &Engine) -> Result<u32> {
        let len = crate::format::frame::frame_len(self.tail.builder.encoded_len());
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let end = engine.extent_size.bytes_u32();
        let seal = end.saturating_sub(len);
        let at = self.tail.segment.file_offset() + u64::from(seal);
        engine.disk.allocate(at, u64::from(end - seal))?;
        Ok(seal.max(self.tail.offset))
    }

    /// Closes the segments behind the one in which the log ends, durably, before that one is
    /// closed: once that is closed, a recovery after a crash would go on behind it, and take
    /// frames that do not count for the log.
    fn close_beyond(&mut self, engine: &Engine, found: &mut [Recovered]) -> Result<()> {
        let mut any = false;
        for found in found.iter_mut().filter(|found| found.beyond && !found.unused) {
            self.tail.segment = Arc::clone(&found.segment);
            self.tail.offset = found.end;
            let seal = self.seal_behind(engine)?;
            found.sealed = Some(self.write_seal(engine, &found.segment, seal)?);
            any = true;
        }
        if any { engine.disk.sync() } else { Ok(()) }
    }

    /// A segment whose SEAL frame is there, but of which the manifest does not know.
    fn adopt_seal(
        &mut self,
        engine: &Engine,
        segment: &Arc<Segment>,
        at: crate::format::manifest::SealedAt,
    ) {
        segment.seal(at);
        self.settle_entries(segment.id());
        let covered_at = segment.position(engine.extent_size.bytes_u32());
        self.sealing.push_back(Sealing { segment: Arc::clone(segment), at, covered_at });
        engine.sealing.store(true, core::sync::atomic::Ordering::Release);
        self.unapplied.push_back(Arc::clone(segment));
    }

    /// Brings the runs of a scanned segment into memory.
    fn remember(&mut self, found: &Recovered, homes: &mut Homes) -> Result<()> {
        for built in found.builder.runs() {
            let entry = &built.entry;
            if self.deleted.contains(&entry.run_no) {
                continue;
            }
            if self.hot.get(entry.run_no).is_none() {
                let known = match entry.created_at {
                    // A run that begins here has nothing in older segments.
                    Some(_) => None,
                    None => homes.row(entry.run_no)?,
                };
                let run = match known {
                    Some(row) => HotRun::from_row(row),
                    None => {
                        let at = entry.created_at.unwrap_or(entry.last_at);
                        let (agent, run) = (entry.agent.clone(), entry.run.clone());
                        let mut new = HotRun::new(entry.run_no, agent, run, at);
                        new.document = entry.document;
                        new
                    }
                };
                self.hot.insert(run);
            }
            if let Some(run) = self.hot.get_mut(entry.run_no) {
                run.next_seq = run.next_seq.max(entry.next_seq);
                run.started |= entry.start.is_some();
            }
            if let Some(end) = entry.end {
                self.hot.set_status(entry.run_no, end.status);
            }
        }
        Ok(())
    }

    /// Directories that had to be rebuilt.
    fn directory_damage(&self) -> Vec<Corruption> {
        let segments = self.catalog.segments().iter().chain(&self.unapplied);
        segments.filter_map(|segment| segment.directory_damage().cloned()).collect()
    }
}

/// The size of the extents that a new store gets.
pub(crate) fn extent_size(options: &Options) -> Result<ExtentSize> {
    ExtentSize::from_bytes(options.extent_size).ok_or(Error::InvalidArgument {
        what: "the extent size is a power of two from 64 KiB to 64 MiB",
    })
}
