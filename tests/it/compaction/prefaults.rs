//! Segments that are mapped before they are read delay no erasure, and take no space.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use runlog::env::Step;
use runlog::storage::MemoryStorage;
use runlog::{Options, Outcome, Retention, RunLog};
use runlog_sim::OpKind;

use crate::support::background::Background;
use crate::support::tap::{Call, Tap};

const EXTENT: u64 = 64 << 10;

fn options(background: &Background) -> Options {
    Options::new().extent_size(EXTENT).scheduler(Arc::new(background.clone()))
}

/// Runs with as many bytes as a segment.
fn fill(log: &RunLog) {
    for number in 0..8 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        for _ in 0..16 {
            let _ = run.append(&[1; 4000]).unwrap();
        }
        let _ = run.end(&Outcome::completed()).unwrap();
    }
}

#[test]
fn an_erasure_waits_for_a_segment_that_is_being_mapped_and_reports_no_reader() {
    let (background, (begun, begins)) = (Background::default(), mpsc::channel());
    let after = move |call: Call, _: &[u8]| {
        if call.kind == OpKind::Read {
            begun.send(()).unwrap();
            std::thread::park_timeout(Duration::from_millis(200));
        }
    };
    let storage = Tap::around(Arc::new(MemoryStorage::new()), |_| Ok(()), after);
    let log = options(&background).create_storage(storage.clone()).unwrap();
    fill(&log);
    log.close().unwrap();
    let log = options(&background).open_storage(storage).unwrap();
    std::thread::scope(|scope| {
        // The first step locates the runs.
        scope.spawn(|| [(); 2].map(|()| background.run(Step::Prefault)));
        begins.recv().unwrap();
        for number in (0..8).rev() {
            assert_eq!(log.erase_run(&format!("run-{number}")).unwrap().pinned_extents, 0);
        }
        assert!(log.stats().unwrap().pinned.is_empty());
    });
}

#[cfg(target_os = "linux")]
#[test]
fn mapping_segments_takes_back_no_space_on_a_tmpfs() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let (path, background) = (folder.path().join("store"), Background::default());
    let log = options(&background).create(&path).unwrap();
    fill(&log);
    assert!(log.gc(&Retention::new().keep_newest(4)).unwrap().freed_extents > 0);
    log.close().unwrap();
    let log = options(&background).open(&path).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    for _ in 0..32 {
        assert!(background.run(Step::Prefault));
    }
    assert_eq!(blocks(), before);
    log.close().unwrap();
}

/// A segment that is set aside has a smaller id than an output that is made before it is full.
#[test]
fn each_segment_is_mapped_once_it_is_sealed_although_an_output_has_a_larger_id() {
    let (background, (mapped, maps)) = (Background::default(), mpsc::channel());
    let after = move |call: Call, _: &[u8]| {
        if call.kind == OpKind::Read {
            mapped.send(call.offset).unwrap();
        }
    };
    let storage = Tap::around(Arc::new(MemoryStorage::new()), |_| Ok(()), after);
    let log = options(&background).create_storage(storage).unwrap();
    let map_all = || {
        for _ in 0..100 {
            background.run(Step::Prefault);
        }
    };
    let write = |run: &str, records: usize| {
        let run = log.start_run("agent", run, ()).unwrap();
        for _ in 0..records {
            let _ = run.append(&[1; 8000]).unwrap();
        }
    };
    fill(&log);
    for step in [Step::Reserve, Step::Sync, Step::Checkpoint] {
        background.run(step);
    }
    let _ = log.gc(&Retention::new().keep_newest(1)).unwrap();
    // The tail and the next segment get extents in front of what lives, which then moves there.
    write("front", 10);
    for step in [Step::Reserve, Step::Sync, Step::Checkpoint, Step::Compact] {
        background.run(step);
    }
    map_all();
    let (before, _) = (log.stats().unwrap(), maps.try_iter().count());
    write("more", 20);
    for step in [Step::Sync, Step::Checkpoint] {
        background.run(step);
    }
    map_all();
    let sealed = log.stats().unwrap().sealed_segments - before.sealed_segments;
    assert!(sealed > 1);
    assert_eq!(maps.try_iter().count() as u64, sealed);
}
