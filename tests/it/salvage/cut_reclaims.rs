//! Power cuts while segments are retired and freed, and then the loss of the superblocks and the
//! manifest: salvage finds segments by their headers, and takes retired ones for living ones.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use runlog::salvaged::Caveat;
use runlog::storage::MemoryStorage;
use runlog::{Compaction, Options, Outcome, ReaderOptions, RunLog, RunQuery, salvage_storage};
use runlog_sim::{CrashImages, SimDisk, Survivors};

use crate::support::background::Background;

const FRONT: usize = 64 << 10;

/// The payloads of the records of each run.
type Runs = BTreeMap<String, Vec<Vec<u8>>>;

fn runs(storage: Arc<MemoryStorage>) -> Runs {
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let all = reader.runs(&RunQuery::new()).map(|run| run.unwrap().run);
    let records = |name: &str| {
        let records = reader.trace(name).unwrap();
        records.map(|record| record.unwrap().payload().to_vec()).collect()
    };
    all.map(|run| (run.to_string(), records(run.as_str()))).collect()
}

/// A store that frees nothing by itself.
fn store(disk: &SimDisk) -> RunLog {
    let options = Options::new().extent_size(1 << 16).index(false);
    let options =
        options.compaction(Compaction::new().automatic(false)).receipts(0, Duration::ZERO);
    let options = options.scheduler(Arc::new(Background::default()));
    options.create_storage(Arc::new(disk.clone())).unwrap()
}

/// Adds an ended run of three records and about 21 kB.
fn add(log: &RunLog, name: &str) {
    let writer = log.start_run("agent", name, ()).unwrap();
    for record in 0..3_u8 {
        let _ = writer.append(&[name.as_bytes(), &[record; 7_000]].concat()).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

fn delete(log: &RunLog, name: &str, numbers: Range<usize>) {
    for number in numbers {
        log.delete_run(format!("{name}-{number}").as_str()).unwrap();
    }
}

/// Cuts the power at each boundary of `work`, loses the front, and salvages. The runs that `work`
/// does not delete come out as they were, once, and no others except `deleted` ones. Returns how
/// many of these came back: each time the report says that deletions may be incomplete.
fn came_back(disk: &SimDisk, log: &RunLog, deleted: &str, work: impl FnOnce()) -> usize {
    log.sync().unwrap();
    let first = disk.op_count();
    let mut kept = runs(Arc::new(MemoryStorage::from_bytes(disk.image())));
    kept.retain(|name, _| !name.starts_with(deleted));
    work();
    assert_eq!(log.runs(&RunQuery::new()).count(), kept.len());
    let recording = disk.take_recording();
    assert!(recording.ops.len() > first + 4, "{first}, {}", recording.ops.len());
    let mut crashes = CrashImages::new(&recording);
    crashes.seek(first);
    let (mut came_back, mut image) = (0, Vec::new());
    loop {
        for (seed, survivors) in (0..14).zip(Survivors::ALL.into_iter().cycle()) {
            crashes.image_into(survivors, seed, &mut image);
            image[..FRONT].fill(0);
            let told = format!("boundary {}, {survivors:?}, {seed}", crashes.boundary());
            let out = Arc::new(MemoryStorage::new());
            let broken = Arc::new(MemoryStorage::from_bytes(image.clone()));
            let report = salvage_storage(broken, out.clone()).unwrap();
            let mut found = runs(out);
            let all = found.len();
            found.retain(|name, _| !name.starts_with(deleted));
            came_back += all - found.len();
            assert!(found == kept, "{told}: {:?}, {report:?}", found.keys());
            assert!(report.caveats.contains(&Caveat::NoManifest), "{told}: {report:?}");
        }
        if !crashes.advance() {
            return came_back;
        }
    }
}

/// The runs are in segments without evictions; the segment that evicts them dies with them.
#[test]
fn a_run_whose_segments_are_freed_stays_deleted_without_the_manifest() {
    let disk = SimDisk::recording();
    let log = store(&disk);
    (0..9).for_each(|number| add(&log, &format!("old-{number}")));
    delete(&log, "old", 0..9);
    (0..3).for_each(|number| add(&log, &format!("mid-{number}")));
    (0..6).for_each(|number| add(&log, &format!("new-{number}")));
    delete(&log, "mid", 0..3);
    (6..12).for_each(|number| add(&log, &format!("new-{number}")));
    let back = came_back(&disk, &log, "old", || {
        assert_eq!(log.stats().unwrap().deleted_runs, 12);
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
        assert_eq!(log.stats().unwrap().deleted_runs, 3);
    });
    assert_eq!(back, 0);
}

/// Victims and outputs have the same frames, and victims evict runs of one another.
#[test]
fn without_the_manifest_a_compaction_that_was_cut_brings_out_each_record_once() {
    let disk = SimDisk::recording();
    let log = store(&disk);
    for number in 0..12 {
        add(&log, &format!("new-{number}"));
        add(&log, &format!("old-{number}"));
        if number > 2 {
            delete(&log, "old", number - 3..number - 2);
        }
    }
    let _ = came_back(&disk, &log, "old", || {
        delete(&log, "old", 9..12);
        log.checkpoint().unwrap();
        assert!(log.compact().unwrap().segments > 2);
        log.checkpoint().unwrap();
    });
}
