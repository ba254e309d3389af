//! What keeps the space of one segment, or of one step, keeps no space of others, and is not tried
//! again and again.

use std::io::ErrorKind;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runlog::env::Step;
use runlog::format::frames::frame::LONG_HEADER_LEN;
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{Activity, Compaction, Options, RunLog, RunQuery, SpaceReturn};
use runlog_sim::{OpKind, SimDisk};

use crate::compaction::growth::{EXTENT, delete, held, one_run, options, two_in_each};
use crate::support::background::Background;
use crate::support::frames::frames_in;
use crate::support::tap::Tap;
use crate::support::told::Ends;

/// The disk cannot read the directory of one segment any more when the store is opened.
fn with_unread_directory(disk: &SimDisk, automatic: bool) -> RunLog {
    let options = options(EXTENT).compaction(Compaction::new().automatic(automatic));
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    two_in_each(&log, |_| 20_000, 40);
    for number in 0..20 {
        one_run(&log, &format!("dead-{number}"), 59_000);
    }
    log.checkpoint().unwrap();
    log.close().unwrap();
    let end = EXTENTS_AT + 21 * EXTENT;
    disk.fail_reads_in(end - 8000..end, ErrorKind::Other);
    options.open_storage(Arc::new(disk.clone())).unwrap()
}

#[test]
fn a_directory_that_cannot_be_read_does_not_keep_the_space_of_others() {
    for automatic in [true, false] {
        let disk = SimDisk::untracked(Vec::new());
        let log = with_unread_directory(&disk, automatic);
        delete(&log, (0..20).map(|number| format!("dead-{number}")));
        delete(&log, (0..40).map(|number| format!("gone-{number}")));
        log.reclaim().unwrap();
        if automatic {
            let stalled = log.health().compaction.expect("one segment stays");
            assert!(stalled.damaged.len() == 1 && stalled.why.is_none(), "{stalled:?}");
        } else {
            assert!(!log.health().failures.is_empty(), "{:?}", log.health());
            let _ = log.compact().unwrap();
        }
        disk.set_faults_aside(true);
        let stats = log.stats().unwrap();
        // The segments beside it stay too: runs begin in one and end in the next.
        assert!(stats.dead_bytes < 6 * EXTENT, "{stats:?}");
        // Once it can be read, it is freed too.
        log.reclaim().unwrap();
        let _ = log.compact().unwrap();
        let stats = log.stats().unwrap();
        assert!(stats.dead_bytes < 3 * EXTENT, "{stats:?}");
        assert!(log.verify().unwrap().is_clean());
        assert_eq!(log.health().compaction, None);
    }
}

/// It has a deleted run, and only the eviction says so.
#[test]
fn the_evictions_that_an_unread_segment_needs_are_kept() {
    for automatic in [true, false] {
        let disk = SimDisk::untracked(Vec::new());
        let log = with_unread_directory(&disk, automatic);
        let is_there = |log: &RunLog| log.run("gone-20").is_ok();
        assert!(is_there(&log));
        let _ = log.delete_run("gone-20").unwrap();
        for turn in 0..8 {
            let names = [0, 1, 2].map(|number| format!("more-{turn}-{number}"));
            names.iter().for_each(|name| one_run(&log, name, 40_000));
            log.checkpoint().unwrap();
            delete(&log, names);
            log.reclaim().unwrap();
        }
        let _ = log.compact().unwrap();
        let copy = SimDisk::untracked(disk.image());
        let log = options(EXTENT).index(false).open_storage(Arc::new(copy)).unwrap();
        assert!(!is_there(&log) && log.verify().unwrap().is_clean());
        let left = log.list_runs(&RunQuery::new().limit(1000)).unwrap().runs.len();
        assert_eq!(left, 40 + 39 + 20);
    }
}

/// A compaction moves no segment with damage. Nothing of this one is needed any more: its directory
/// still says what it deleted, which is gone, and its receipts are not kept.
#[test]
fn a_segment_of_evictions_with_a_damaged_one_is_freed_once_nothing_needs_them() {
    let disk = SimDisk::untracked(Vec::new());
    let manual = || options(EXTENT).index(false).compaction(Compaction::new().automatic(false));
    let log = manual().create_storage(Arc::new(disk.clone())).unwrap();
    let names: Vec<String> = (0..1200).map(|number| format!("run-{number}")).collect();
    names.iter().for_each(|name| one_run(&log, name, 10));
    log.checkpoint().unwrap();
    for name in &names {
        log.delete_run(name.as_str()).unwrap();
    }
    one_run(&log, "kept", 10);
    log.close().unwrap();
    let mut image = disk.image();
    let of_evictions = |number: &usize| {
        let frames = frames_in(&image, *number);
        let (_, last) = frames.last().expect("a segment has evictions alone");
        let mut all = frames.iter().map(|(_, frame)| frame.kind);
        last.kind == FrameKind::Seal && all.all(is_of_evictions)
    };
    let frames = frames_in(&image, (0..).find(of_evictions).unwrap());
    let segment = frames[0].1.position.segment;
    let damaged = frames[9].0.start + LONG_HEADER_LEN + 2;
    image[damaged] ^= 1;
    let disk = SimDisk::untracked(image);
    let log = manual().receipts(0, Duration::ZERO).open_storage(Arc::new(disk.clone())).unwrap();
    log.reclaim().unwrap();
    let _ = log.compact().unwrap();
    let image = disk.image();
    let ids = (0..).map(|number| frames_in(&image, number)).take_while(|all| !all.is_empty());
    let mut ids = ids.map(|frames| frames[0].1.position.segment);
    assert!(ids.all(|id| id != segment), "{:?}", log.stats().unwrap());
    assert!(log.run("kept").is_ok() && log.verify().unwrap().is_clean());
}

fn is_of_evictions(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Evict | FrameKind::Seal | FrameKind::Watermark)
}

/// The blocks stay with the file, and what follows does not depend on them.
#[test]
fn a_disk_that_takes_no_blocks_back_keeps_no_dead_space() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options(EXTENT).create_storage(Arc::new(disk.clone())).unwrap();
    drop(held(&log));
    let before = disk.counts().of(OpKind::Punch);
    disk.fail_next(OpKind::Punch, ErrorKind::Other);
    log.reclaim().unwrap();
    assert!(disk.counts().of(OpKind::Punch) > before);
    assert_eq!(log.stats().unwrap().retired_extents, 0);
}

/// No two of these runs fit one segment. At this rate the thread pauses for minutes after it has
/// read the first of them.
#[test]
fn dead_segments_do_not_wait_for_the_pause_after_a_step_that_gained_nothing() {
    let slow = Compaction::new().bytes_per_second(Some(1000));
    let (ended, ends) = channel();
    let options = options(EXTENT).compaction(slow).background(true).observer(Arc::new(Ends(ended)));
    let log = options.create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
    two_in_each(&log, |segment| 36_000 - segment * 7 % 500, 60);
    for number in 0..20 {
        one_run(&log, &format!("dead-{number}"), 59_000);
    }
    one_run(&log, "last", 59_000);
    log.checkpoint().unwrap();
    // So long that only a store that does nothing waits for it.
    let wait_for = |activity| {
        let next = || ends.recv_timeout(Duration::from_secs(20)).expect("something is done");
        while next() != activity {}
    };
    delete(&log, (0..60).map(|segment| format!("gone-{segment}")));
    wait_for(Activity::Compaction);
    let before = log.stats().unwrap().log_extents;
    for number in 0..20 {
        let _ = log.delete_run(format!("dead-{number}").as_str()).unwrap();
    }
    // Some stay with what deleted them, until the index has that.
    while log.stats().unwrap().log_extents > before - 14 {
        wait_for(Activity::Reclaim);
    }
    log.close().unwrap();
}

/// Each crash that tears the end of the log leaves a segment with little in it, and nothing is
/// deleted that would ask for a compaction.
#[test]
fn what_crashes_leave_is_merged_without_a_deletion() {
    let unused = || options(EXTENT).index(false).scheduler(Arc::new(Background::default()));
    let disk = SimDisk::untracked(Vec::new());
    let log = unused().create_storage(Arc::new(disk.clone())).unwrap();
    drop(log.start_run("agent", "run", ()).unwrap());
    let tear = |log: RunLog, disk: &SimDisk| {
        let (end, mut image) = (log.stats().unwrap().end, disk.image());
        let is_tail = |at: &usize| {
            SegmentHeader::decode(&image[*at..]).is_ok_and(|header| header.key.id == end.segment)
        };
        let extent = usize::try_from(EXTENT).unwrap();
        let mut starts = (extent..image.len()).step_by(extent);
        let torn = starts.find(is_tail).unwrap() + end.offset as usize;
        image[torn..torn + 100].fill(0xff);
        SimDisk::untracked(image)
    };
    let mut disk = tear(log, &disk);
    let crashes = 30;
    for _ in 0..crashes {
        let log = unused().open_storage(Arc::new(disk.clone())).unwrap();
        let _ = log.writer(("agent", "run")).unwrap().append(b"a record").unwrap();
        log.sync().unwrap();
        disk = tear(log, &disk);
    }
    let (ended, ends) = channel();
    let threads = options(EXTENT).background(true).observer(Arc::new(Ends(ended)));
    let log = threads.open_storage(Arc::new(disk)).unwrap();
    while log.stats().unwrap().sealed_segments > 8 {
        let ended = ends.recv_timeout(Duration::from_secs(20));
        let _ = ended.expect("what crashes left is merged");
    }
    assert_eq!(log.trace("run").unwrap().flatten().count(), crashes);
    assert!(log.verify().unwrap().is_clean());
}

/// The compaction is held at its first output, while enough segments for a checkpoint are written.
#[test]
fn a_checkpoint_does_not_wait_for_the_end_of_a_compaction() {
    let background = Background::default();
    let ((began, begins), (goes_on, go_on)) = (channel(), channel::<()>());
    let hold = Mutex::new(Some((began, go_on)));
    let storage = Tap::new(Arc::new(MemoryStorage::new()), move |call| {
        let is_compacting = std::thread::current().name() == Some("compacting");
        if is_compacting
            && call.kind == OpKind::Write
            && call.len > EXTENT / 4
            && let Some((began, go_on)) = hold.lock().unwrap().take()
        {
            began.send(()).unwrap();
            go_on.recv().unwrap();
        }
        Ok(())
    });
    // Shortening the file does a checkpoint of its own.
    let compaction = Compaction::new().space_return(SpaceReturn::Keep);
    let options = Options::new().extent_size(EXTENT).compaction(compaction);
    let options = options.scheduler(Arc::new(background.clone()));
    let log = options.create_storage(storage).unwrap();
    two_in_each(&log, |_| 20_000, 40);
    delete(&log, (0..40).map(|number| format!("gone-{number}")));
    log.checkpoint().unwrap();
    let applied = || log.stats().unwrap().index_applied;
    let before = applied();
    let steps = background.clone();
    let compacting = std::thread::Builder::new().name("compacting".to_owned());
    let compacting = compacting.spawn(move || steps.run(Step::Compact)).unwrap();
    begins.recv_timeout(Duration::from_secs(60)).unwrap();
    for number in 0..8 {
        one_run(&log, &format!("meanwhile-{number}"), 59_000);
    }
    background.run(Step::Sync);
    assert_eq!(applied(), before);
    goes_on.send(()).unwrap();
    assert!(compacting.join().unwrap());
    assert!(applied() > before, "{:?} after {before:?}", applied());
}
