//! The manifest on a full disk.

use std::sync::Arc;

use runlog::format::map::manifest::{Change, RecordKey, encode_batch};
use runlog::format::segments::segment::Purpose;
use runlog::{ExtentNo, Options, Outcome, RunLog, SegmentId};
use runlog_sim::SimDisk;

use crate::support::manifest::Manifest;
use crate::support::world::EXTENT;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// A run of about a segment.
fn fill(log: &RunLog, run: &str) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for record in 0..8 {
        let _ = writer.append(&payload(run, record)).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

fn payload(run: &str, record: usize) -> Vec<u8> {
    format!("{run} {record} ").repeat(500).into_bytes()
}

#[track_caller]
fn assert_filled(log: &RunLog, runs: std::ops::Range<usize>) {
    for run in runs {
        let run = format!("run-{run}");
        let trace = log.trace(run.as_str()).unwrap();
        let records: Vec<Vec<u8>> = trace.map(|one| one.unwrap().payload().to_vec()).collect();
        let wanted: Vec<Vec<u8>> = (0..8).map(|record| payload(&run, record)).collect();
        assert!(records == wanted, "{run}");
    }
}

/// From the first areas to wider ones and on, by commits that each meet a full disk.
#[test]
fn a_full_disk_never_keeps_the_manifest_from_telling_what_was_freed() {
    for runs in [120, 150, 220, 280, 330, 450, 560, 640] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        disk.set_capacity(disk.allocated());
        let extents = log.stats().unwrap().log_extents;
        for run in 0..runs - 4 {
            let _ = log.delete_run(format!("run-{run}").as_str()).unwrap();
        }
        log.reclaim().unwrap();
        let stats = log.stats().unwrap();
        assert!(stats.log_extents < extents / 2, "{runs}: {stats:?}");
        assert_filled(&log, runs - 4..runs);
        assert!(log.verify().unwrap().is_clean());
    }
}

/// A record of the manifest that was being written, on a disk without a free block.
#[test]
fn a_torn_manifest_is_opened_on_a_full_disk() {
    for runs in [60, 140, 250, 330, 500, 620] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        drop(log);
        let mut image = disk.image();
        let Manifest { block, contents, end, .. } = Manifest::of(&image).unwrap();
        let key = RecordKey { generation: block.manifest.generation, index: contents.records };
        let (extent, segment, salt) = (ExtentNo(9999), SegmentId(9999), u64::MAX);
        let reserve = Change::Reserve { extent, segment, salt, purpose: Purpose::Log };
        let record = encode_batch(&[reserve], key);
        image[end..end + 20].copy_from_slice(&record[..20]);
        let disk = SimDisk::from_image(image);
        disk.set_capacity(disk.allocated());
        for _ in 0..2 {
            let log = options().index(false).open_storage(Arc::new(disk.clone())).unwrap();
            assert_filled(&log, 0..runs);
        }
    }
}
