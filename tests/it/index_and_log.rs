//! The index and the log that it was built from. Opening compares them, and an index of another
//! state of the log gives no answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use runlog::env::Step;
use runlog::format::map::manifest::{Change, RECORD_LEN, SealedAt, Use, read_area};
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Activity, Compaction, Compression, IndexRecovery, Observer, Options, Outcome, Phase, RunLog,
};
use runlog_sim::{CrashImages, SimDisk, Survivors};

use super::support::background::Background;
use super::trust::add_changes;

const EXTENT: u64 = 64 << 10;
const PAGE: usize = 4096;
/// The records of a run.
const RECORDS: u8 = 8;

/// Counts the builds of an index.
#[derive(Debug, Default)]
struct Builds(AtomicUsize);

impl Observer for Builds {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::IndexRebuild && phase.is_begin() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
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

/// The newest superblock, and how many records its manifest has.
fn manifest(image: &[u8]) -> (Superblock, u64) {
    let slots = [PAGE, 2 * PAGE].map(|at| Superblock::decode(&image[at..at + PAGE]));
    let newest = slots.into_iter().flatten().max_by_key(|block| block.epoch).unwrap();
    let at = usize::try_from(newest.manifest.offset).unwrap();
    let area = &image[at..at + usize::try_from(newest.manifest.len).unwrap()];
    let records = read_area(area, newest.uuid, newest.manifest.generation).unwrap().records;
    (newest, records)
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
        let (newest, records) = manifest(&image);
        // What the superblock counts is not taken for torn.
        if newest.manifest.records >= records {
            continue;
        }
        let area = usize::try_from(newest.manifest.offset).unwrap();
        image[area + 64 + (usize::try_from(records).unwrap() - 1) * RECORD_LEN + 20] ^= 1;
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

/// A process is over, or is killed, before it has built an index.
#[test]
fn an_index_of_a_compacted_store_goes_on_where_its_build_was_broken_off() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
    (0..300).for_each(|run| fill(&log, &name(run)));
    assert!(log.compact().unwrap().outputs > 200);
    log.close().unwrap();
    let disk = SimDisk::recording_from(disk.image());
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    log.checkpoint().unwrap();
    let operations = disk.op_count();
    drop(log);
    let recording = disk.take_recording();
    let mut images = CrashImages::new(&recording);
    let mut image = Vec::new();
    let mut goes_on = 0;
    for part in 1..8 {
        images.seek(operations * part / 8);
        images.image_into(Survivors::Everything, 1, &mut image);
        let disk = SimDisk::untracked(image.clone());
        let builds = Arc::new(Builds::default());
        let options = options().observer(builds.clone());
        let log = options.open_storage(Arc::new(disk)).unwrap();
        log.checkpoint().unwrap();
        let is_kept = log.recovery_report().index == IndexRecovery::Kept;
        goes_on += usize::from(is_kept && builds.0.load(Ordering::Relaxed) == 0);
        assert!((0..300).step_by(37).all(|run| is_whole(&log, run)), "{part} of 8");
        assert!(log.verify().unwrap().is_clean(), "{part} of 8");
    }
    assert!(goes_on >= 4, "{goes_on} of 7 went on");
}

/// Another status of the runs that ended in the last full segment, all checksums right.
fn with_other_directory(mut image: Vec<u8>, is_sealed: bool) -> Vec<u8> {
    let (newest, _) = manifest(&image);
    let area = &image[usize::try_from(newest.manifest.offset).unwrap()..];
    let area = &area[..usize::try_from(newest.manifest.len).unwrap()];
    let read = read_area(area, newest.uuid, newest.manifest.generation).unwrap();
    let sealed = read.extents.uses.iter().filter_map(|(extent, used)| match used {
        Use::Log { segment, salt, purpose, sealed: Some(at) } => {
            Some((*segment, *extent, *salt, *purpose, *at))
        }
        _ => None,
    });
    let (segment, extent, salt, purpose, at) = sealed.max_by_key(|one| one.0).unwrap();
    let start = usize::try_from(EXTENTS_AT + u64::from(extent.0) * EXTENT).unwrap();
    let header = SegmentHeader::decode(&image[start..]).unwrap();
    let seal = start + at.seal as usize;
    let mut frame = FrameHeader::decode(&image[seal..], header.key, at.seal).unwrap();
    assert_eq!(frame.kind, FrameKind::Seal);
    let directory = seal + 72;
    let runs = u32::from_le_bytes(image[directory + 8..directory + 12].try_into().unwrap());
    let entries = (0..runs as usize).map(|run| directory + 64 + run * 136);
    let ended: Vec<usize> = entries.filter(|entry| image[entry + 32] & 4 != 0).collect();
    assert!(!ended.is_empty());
    for entry in ended {
        image[entry + 34] = 2;
    }
    frame.payload_crc = crc32fast::hash(&image[directory..][..frame.payload_len as usize]);
    image[seal..seal + 72].copy_from_slice(&frame.encode(salt));
    let mut changes =
        vec![Change::Free { extent }, Change::Reserve { extent, segment, salt, purpose }];
    if is_sealed {
        let at = SealedAt { digest: frame.payload_crc, ..at };
        changes.push(Change::Seal { extent, segment, at });
    }
    add_changes(&mut image, &changes);
    image
}

#[test]
fn an_index_that_was_built_from_another_directory_is_never_asked() {
    for is_sealed in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        (0..6).for_each(|run| fill(&log, &name(run)));
        log.close().unwrap();
        let image = with_other_directory(storage.to_bytes(), is_sealed);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
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
