//! The index and the log that it was built from. Opening compares them, and an index of another
//! state of the log gives no answers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use runlog::env::Step;
use runlog::format::frames::frame::LONG_HEADER_LEN;
use runlog::format::map::manifest::{Change, RECORD_LEN, SealedAt, Use};
use runlog::format::map::superblock::FLAG_INDEX_OPENING;
use runlog::format::segments::directory::TRAILER_LEN;
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Activity, Compaction, Compression, IndexRecovery, Observer, Options, Outcome, Phase, Retention,
    RunLog, RunQuery,
};
use runlog_sim::{CrashImages, OpKind, SimDisk, Survivors};

use crate::support::background::Background;
use crate::support::frames;
use crate::support::manifest::{Manifest, add_changes, newest};
use crate::support::tap::Tap;

const EXTENT: u64 = 64 << 10;
/// The records of a run.
const RECORDS: u8 = 8;

/// Counts the builds of an index, and all failures.
#[derive(Debug, Default)]
struct Builds(AtomicUsize, AtomicUsize);

impl Builds {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn failures(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl Observer for Builds {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::IndexRebuild && phase.is_begin() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        self.1.fetch_add(usize::from(phase.failure().is_some()), Ordering::Relaxed);
    }
}

/// Keeps what the file is when a step of a compaction has ended.
#[derive(Debug)]
struct AfterSteps {
    storage: Arc<MemoryStorage>,
    images: Mutex<Vec<Vec<u8>>>,
}

impl Observer for AfterSteps {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::Compaction && !phase.is_begin() {
            self.images.lock().unwrap().push(self.storage.to_bytes());
        }
    }
}

fn options() -> Options {
    let compaction = Compaction::new().automatic(false);
    let options = Options::new().extent_size(EXTENT).compression(Compression::None);
    options.background(false).compaction(compaction)
}

fn fill(log: &RunLog, run: &str) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for record in 0..RECORDS {
        let _ = writer.append(&[record; 5000]).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

fn name(run: usize) -> String {
    format!("run-{run}")
}

fn is_whole(log: &RunLog, run: usize) -> bool {
    let trace = log.trace(name(run).as_str());
    trace.is_ok_and(|trace| trace.filter(Result::is_ok).count() == usize::from(RECORDS))
}

#[test]
fn the_deletion_of_most_runs_builds_an_index_of_the_rest_also_before_the_old_one_is_open() {
    let (storage, builds) = (Arc::new(MemoryStorage::new()), Arc::new(Builds::default()));
    let counted = options().observer(builds.clone());
    let log = counted.clone().create_storage(storage.clone()).unwrap();
    for run in 0..2100 {
        let _ = log.start_run("agent", &name(run), ()).unwrap().end(&Outcome::completed()).unwrap();
    }
    log.close().unwrap();
    let idle = counted.scheduler(Arc::new(Background::default()));
    let log = idle.open_storage(storage).unwrap();
    let gone = log.gc(&Retention::new().keep_newest(100)).unwrap().plan.evict.len();
    assert_eq!((gone, builds.count(), builds.failures()), (2000, 2, 0));
    assert_eq!(
        (log.runs(&RunQuery::new()).count(), log.verify().unwrap().problems.len()),
        (100, 0)
    );
}

/// The directory with a deletion is damaged, and built again from the frames.
#[test]
fn an_opening_does_not_read_the_index_because_a_directory_is_damaged() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (0..4).for_each(|run| fill(&log, &name(run)));
    let _ = log.delete_run(name(0).as_str()).unwrap();
    (4..8).for_each(|run| fill(&log, &name(run)));
    log.checkpoint().unwrap();
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let extents = 0..image.len() / frames::EXTENT;
    let of_evict = extents.map(|number| frames::frames_in(&image, number)).find(|found| {
        let kinds = found.iter().map(|frame| frame.1.kind);
        kinds.filter(|kind| matches!(kind, FrameKind::Evict | FrameKind::Seal)).count() == 2
    });
    let seal = of_evict.unwrap().pop().unwrap();
    assert_eq!(seal.1.kind, FrameKind::Seal);
    image[seal.0.end - 8] ^= 1;
    let storage = Arc::new(MemoryStorage::from_bytes(image));
    for opened in 0..2 {
        let steps = Background::default();
        let idle = options().scheduler(Arc::new(steps.clone()));
        let log = idle.open_storage(storage.clone()).unwrap();
        assert!(!log.stats().unwrap().index_open, "opened {opened}");
        assert!(log.run(name(0).as_str()).is_err(), "opened {opened}");
        Step::ALL.into_iter().for_each(|step| assert!(steps.run(step)));
        assert!(log.run(name(0).as_str()).is_err(), "opened {opened}");
        assert_eq!(log.runs(&RunQuery::new()).count(), 7, "opened {opened}");
        log.close().unwrap();
    }
}

/// The last batch of the manifest is damaged, and taken for one that was not written whole. The
/// segments that the compaction replaced count again, of which the index has no places any more.
#[test]
fn a_compaction_that_the_manifest_lost_costs_no_run_the_index_knows_of_it() {
    let storage = Arc::new(MemoryStorage::new());
    let steps = Background::default();
    let after = Arc::new(AfterSteps { storage: storage.clone(), images: Mutex::default() });
    let automatic = options().compaction(Compaction::new()).observer(after.clone());
    let automatic = automatic.scheduler(Arc::new(steps.clone()));
    let log = automatic.create_storage(storage.clone()).unwrap();
    (0..20).for_each(|run| fill(&log, &name(run)));
    log.checkpoint().unwrap();
    let deleted = [1, 3, 4, 7, 9];
    for run in deleted {
        let _ = log.delete_run(name(run).as_str()).unwrap();
    }
    (20..22).for_each(|run| fill(&log, &name(run)));
    log.checkpoint().unwrap();
    assert!(steps.run(Step::Compact));
    let images = core::mem::take(&mut *after.images.lock().unwrap());
    let mut tried = 0;
    for (step, mut image) in images.into_iter().enumerate() {
        let Manifest { block, contents, end, .. } = Manifest::of(&image).unwrap();
        // What the superblock counts is not taken for torn.
        if block.manifest.records >= contents.records {
            continue;
        }
        image[end - RECORD_LEN + 20] ^= 1;
        tried += 1;
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        for opened in 0..3 {
            let log = options().open_storage(storage.clone()).unwrap();
            for run in (0..22).filter(|run| !deleted.contains(run)) {
                assert!(is_whole(&log, run), "step {step}, opened {opened}: run-{run}");
            }
            assert!(log.verify().unwrap().is_clean(), "step {step}, opened {opened}");
            log.checkpoint().unwrap();
            log.close().unwrap();
        }
    }
    assert!(tried > 2, "{tried} steps");
}

/// Another status of the runs that ended in the last full segment, all checksums right.
fn with_other_directory(mut image: Vec<u8>, is_sealed: bool) -> Vec<u8> {
    let read = Manifest::of(&image).unwrap().contents;
    let sealed = read.extents.uses.iter().filter_map(|(extent, used)| match used {
        Use::Log { segment, salt, purpose, sealed: Some(at) } => {
            Some((*segment, *extent, *salt, *purpose, *at))
        }
        _ => None,
    });
    let (segment, extent, salt, purpose, at) = sealed.max_by_key(|one| one.0).unwrap();
    let start = usize::try_from(EXTENTS_AT + u64::from(extent.0) * EXTENT).unwrap();
    let header = SegmentHeader::decode(&image[start..]).unwrap();
    let seal = start + at.end as usize;
    let mut frame = FrameHeader::decode(&image[seal..], header.key, at.end).unwrap();
    assert_eq!(frame.kind, FrameKind::Seal);
    let directory = &mut image[seal + LONG_HEADER_LEN..][..frame.payload_len as usize];
    let field = |directory: &[u8], at: usize| {
        u32::from_le_bytes(directory[at..at + 4].try_into().unwrap()) as usize
    };
    let trailer = directory.len() - TRAILER_LEN;
    let (tables, runs) = (field(directory, trailer + 8), field(directory, trailer + 12));
    let mut changed = 0;
    for slot in 0..runs {
        let entry = 8 * field(directory, tables + 4 * slot);
        let [flags, ids, agent] = [4, 6, 8].map(|at| field(directory, entry + at) & 0xffff);
        if flags & 4 == 0 {
            continue;
        }
        changed += 1;
        directory[entry + 10] = 2;
        let parts = field(directory, entry + 12);
        let marks = [(1, 8), (2, 12), (4, 20), (8, 12)];
        let marks: usize =
            marks.iter().map(|(flag, len)| len * usize::from(flags & flag != 0)).sum();
        let head = 40 + marks + 8 * usize::from(parts > 0) + 24 * parts + ids + agent;
        let mut check = crc32fast::Hasher::new();
        check.update(&salt.to_le_bytes());
        check.update(&at.end.to_le_bytes());
        check.update(&u32::try_from(entry).unwrap().to_le_bytes());
        check.update(&directory[entry + 4..entry + head]);
        directory[entry..entry + 4].copy_from_slice(&check.finalize().to_le_bytes());
    }
    assert!(changed > 0);
    frame.payload_crc = crc32fast::hash(directory);
    image[seal..seal + LONG_HEADER_LEN].copy_from_slice(&frame.encode(salt));
    let mut changes =
        vec![Change::Free { extent }, Change::Reserve { extent, segment, salt, purpose }];
    if is_sealed {
        let at = SealedAt { digest: frame.payload_crc, ..at };
        changes.push(Change::Seal { extent, segment, at });
    }
    add_changes(&mut image, &changes);
    image
}

/// A store of six runs whose index was built before a directory became another one.
fn with_index_of_another_directory(is_sealed: bool) -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (0..6).for_each(|run| fill(&log, &name(run)));
    log.close().unwrap();
    let image = with_other_directory(storage.to_bytes(), is_sealed);
    Arc::new(MemoryStorage::from_bytes(image))
}

#[test]
fn an_index_that_was_built_from_another_directory_is_never_asked() {
    for is_sealed in [false, true] {
        let storage = with_index_of_another_directory(is_sealed);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let log = options().open_storage(storage.clone()).unwrap();
            let status = |run| log.run(name(run).as_str()).unwrap().status;
            answers.push((0..6).map(status).collect::<Vec<_>>());
            log.close().unwrap();
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{is_sealed}: {answers:?}");
    }
}

/// The checkpoint that finds it reports a failure, and the index that replaces it is a good one.
#[test]
fn an_index_that_was_built_from_another_directory_is_told_and_replaced() {
    for is_sealed in [false, true] {
        let storage = with_index_of_another_directory(is_sealed);
        for is_replaced in [false, true] {
            let builds = Arc::new(Builds::default());
            let options = options().observer(builds.clone());
            let log = options.open_storage(storage.clone()).unwrap();
            log.checkpoint().unwrap();
            let expected = if is_replaced { (0, 0) } else { (1, 1) };
            assert_eq!((builds.failures(), builds.count()), expected, "{is_sealed}");
            log.close().unwrap();
        }
    }
}

/// The life of a healthy store, and after which of its operations what was done: each call, or the
/// step of the background. The store is closed in between.
fn life(disk: &SimDisk) -> Vec<(&'static str, usize)> {
    let steps = Background::default();
    let options = || options().compaction(Compaction::new()).scheduler(Arc::new(steps.clone()));
    let mut log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let mut done = Vec::new();
    for round in 0..6 {
        let runs = round * 6..round * 6 + 6;
        runs.clone().for_each(|run| fill(&log, &name(run)));
        done.push(("append", disk.op_count()));
        log.checkpoint().unwrap();
        done.push((if round == 0 { "build" } else { "checkpoint" }, disk.op_count()));
        for run in runs.filter(|run| run % 3 != 0) {
            let _ = log.delete_run(name(run).as_str()).unwrap();
        }
        done.push(("delete", disk.op_count()));
        assert!(steps.run(Step::Checkpoint));
        done.push(("checkpoint", disk.op_count()));
        assert!(steps.run(Step::Compact));
        done.push(("compact", disk.op_count()));
        assert!(steps.run(Step::Reclaim) && steps.run(Step::GiveBack));
        done.push(("reclaim", disk.op_count()));
        if round % 2 == 1 {
            log.close().unwrap();
            log = options().open_storage(Arc::new(disk.clone())).unwrap();
            log.checkpoint().unwrap();
            done.push(("open", disk.op_count()));
        }
    }
    core::mem::forget(log);
    done
}

/// Whether the newest superblock says that the index is being opened.
fn is_opening(image: &[u8]) -> bool {
    newest(image).unwrap().flags & FLAG_INDEX_OPENING != 0
}

/// A kill leaves a store without an index while the first one is made, and costs it while redb
/// opens it.
#[test]
fn a_healthy_store_keeps_its_index_whenever_it_is_closed_or_killed_outside_of_a_compaction() {
    let disk = SimDisk::recording();
    let done = life(&disk);
    let recording = disk.take_recording();
    let mut images = CrashImages::new(&recording);
    let (mut image, mut start, mut kept, mut has_index) = (Vec::new(), 0, 0, false);
    for (what, end) in done {
        let is_counted = has_index && what != "build";
        let within = (start + 1..end).step_by(5).filter(|_| is_counted);
        has_index |= what == "build";
        for operations in within.chain(has_index.then_some(end)) {
            images.seek(operations);
            images.image_into(Survivors::Everything, 1, &mut image);
            if is_opening(&image) {
                continue;
            }
            let builds = Arc::new(Builds::default());
            let options = options().observer(builds.clone());
            let disk = SimDisk::untracked(core::mem::take(&mut image));
            let log = options.open_storage(Arc::new(disk)).unwrap();
            log.checkpoint().unwrap();
            let context = format!("{operations} operations, within {what}");
            assert_eq!(log.recovery_report().damaged, [], "{context}");
            assert_eq!(log.recovery_report().index, IndexRecovery::Kept, "{context}");
            // A kill between the manifest and the index costs one build.
            let most = usize::from(what == "compact");
            assert_eq!(builds.failures(), 0, "{context}");
            assert!(builds.count() <= most, "{context}");
            if operations == end {
                assert!(log.verify().unwrap().is_clean(), "{context}");
            }
            kept += 1;
        }
        start = end;
    }
    assert!(kept > 200, "{kept}");
}

/// A store with an index, closed.
fn with_index() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (0..20).for_each(|run| fill(&log, &name(run)));
    log.close().unwrap();
    storage.to_bytes()
}

/// What opens, writes and dies again, before anything needs the index, or before the thread that
/// opens it does its first step.
#[test]
fn a_process_that_dies_before_it_opens_the_index_costs_no_build_of_it() {
    for has_threads in [false, true] {
        let storage = Arc::new(MemoryStorage::from_bytes(with_index()));
        let builds = Arc::new(Builds::default());
        let open = || {
            let options = options().observer(builds.clone());
            let options = match has_threads {
                true => options.scheduler(Arc::new(Background::default())),
                false => options,
            };
            options.open_storage(storage.clone()).unwrap()
        };
        for life in 0..5 {
            let log = open();
            assert_eq!(log.recovery_report().index, IndexRecovery::Kept, "life {life}");
            let _ = log.start_run("agent", &format!("short-{life}"), ()).unwrap();
            let killed = storage.to_bytes();
            drop(log);
            storage.set_len(0).unwrap();
            storage.write_at(0, &killed).unwrap();
        }
        let log = open();
        log.checkpoint().unwrap();
        assert_eq!(log.recovery_report().index, IndexRecovery::Kept);
        assert_eq!((builds.failures(), builds.count()), (0, 0), "threads: {has_threads}");
        assert!(log.verify().unwrap().is_clean());
    }
}

/// Keeps what a process leaves that dies as it first looks at the index.
#[derive(Debug)]
struct DiesAtIndex {
    disk: SimDisk,
    index: Vec<Range<u64>>,
    /// The store is open: to open it, the beginning of each extent is read.
    is_open: AtomicBool,
    looks: AtomicUsize,
    left: Mutex<Option<[Vec<u8>; 2]>>,
}

impl DiesAtIndex {
    fn new(image: Vec<u8>) -> Arc<Self> {
        let of_index = Manifest::of(&image).unwrap().uses(|used| matches!(used, Use::Index { .. }));
        let starts = of_index.into_iter().map(|(start, _)| start as u64);
        let index = starts.map(|start| start..start + EXTENT).collect();
        let disk = SimDisk::from_image(image);
        let (is_open, looks, left) = Default::default();
        Arc::new(Self { disk, index, is_open, looks, left })
    }

    fn storage(self: &Arc<Self>) -> Arc<Tap> {
        let dies = Arc::clone(self);
        Tap::new(Arc::new(self.disk.clone()), move |call| {
            if matches!(call.kind, OpKind::Read | OpKind::Write) {
                dies.look(call.offset);
            }
            Ok(())
        })
    }

    fn look(&self, offset: u64) {
        if self.index.iter().any(|extent| extent.contains(&offset))
            && self.is_open.load(Ordering::Relaxed)
            && self.looks.fetch_add(1, Ordering::Relaxed) == 0
        {
            let lost = self.disk.crash(Survivors::Nothing, 1);
            *self.left.lock().unwrap() = Some([self.disk.image(), lost]);
        }
    }
}

/// redb may end the process when it opens a damaged index. The next opening must not try it again,
/// or the store would never open: neither after the death of the process nor after a loss of power.
#[test]
fn an_index_that_ended_the_process_which_opened_it_is_dropped_unread() {
    let storage = DiesAtIndex::new(with_index());
    assert!(!storage.index.is_empty());
    let options = || options().scheduler(Arc::new(Background::default()));
    let log = options().open_storage(storage.storage()).unwrap();
    storage.is_open.store(true, Ordering::Relaxed);
    log.checkpoint().unwrap();
    let left = storage.left.lock().unwrap().take().unwrap();
    for image in left {
        let storage = DiesAtIndex::new(image);
        let log = options().open_storage(storage.storage()).unwrap();
        storage.is_open.store(true, Ordering::Relaxed);
        assert_eq!(log.recovery_report().index, IndexRecovery::Dropped);
        assert!((0..20).all(|run| is_whole(&log, run)));
        assert_eq!(storage.looks.load(Ordering::Relaxed), 0, "looks at a dropped index");
    }
}

/// Whenever a process dies that makes the first index, nothing has failed.
#[test]
fn an_index_whose_first_build_was_broken_off_is_built_again_without_a_failure() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
    (0..20).for_each(|run| fill(&log, &name(run)));
    log.close().unwrap();
    let disk = SimDisk::recording_from(disk.image());
    let options = || options().scheduler(Arc::new(Background::default()));
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    let opened = disk.op_count();
    log.checkpoint().unwrap();
    let built = disk.op_count();
    drop(log);
    let recording = disk.take_recording();
    let mut images = CrashImages::new(&recording);
    for operations in opened..built {
        images.seek(operations);
        for survivors in [Survivors::Everything, Survivors::Nothing] {
            let disk = SimDisk::untracked(images.image(survivors, 1));
            let builds = Arc::new(Builds::default());
            let options = options().observer(builds.clone());
            let log = options.open_storage(Arc::new(disk)).unwrap();
            let is_kept = log.recovery_report().index == IndexRecovery::Kept;
            log.checkpoint().unwrap();
            let context = format!("{survivors:?}, {operations} of {opened} to {built}");
            assert_eq!(builds.failures(), 0, "{context}");
            assert_eq!(builds.count(), usize::from(!is_kept), "{context}");
            assert!(log.verify().unwrap().is_clean(), "{context}");
        }
    }
}
