//! What is deleted gives its space back by itself, whatever the store looks like: how large its
//! extents are, how many segments a run lies in, and who still reads.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use runlog::env::{Scheduler, Steps};
use runlog::format::EXTENTS_AT;
use runlog::{
    Activity, Compaction, Durability, Error, Metadata, NewRecord, Options, Outcome, Rule, RunLog,
    RunRef, Trace,
};
use runlog_sim::SimDisk;

use crate::support::told::Ends;

pub(super) const EXTENT: u64 = 64 << 10;

/// The work is done in the calls that change something.
pub(super) fn options(extent: u64) -> Options {
    Options::new().extent_size(extent).background(false)
}

pub(super) fn unsynced() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

pub(super) fn text(run: usize, number: usize, len: usize) -> Vec<u8> {
    format!("{run}/{number}/what agents say/").bytes().cycle().take(len).collect()
}

/// Runs that are interleaved and ended; their names.
fn fill(log: &RunLog, prefix: &str, runs: usize, records: usize) -> Vec<String> {
    let names: Vec<String> = (0..runs).map(|run| format!("{prefix}-{run}")).collect();
    let writers: Vec<_> =
        names.iter().map(|name| log.start_run("agent", name, unsynced()).unwrap()).collect();
    for number in 0..records {
        for (run, writer) in writers.iter().enumerate() {
            let _ = writer.append(&text(run, number, 1000)).unwrap();
        }
    }
    for writer in &writers {
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    names
}

/// Of a document each version but the last is dead, and small extents are full soon.
#[test]
fn documents_that_are_written_over_and_over_take_bounded_space() {
    for extent in [64 << 10, 256 << 10, 512 << 10, 1 << 20] {
        for documents in [1, 10] {
            let log = options(extent).create_storage(Arc::new(SimDisk::untracked(Vec::new())));
            let log = log.unwrap();
            for number in 0..8000 {
                let (key, value) = (format!("key-{}", number % documents), text(7, number, 2000));
                let _ = log.docs().put("space", &key, &NewRecord::new(&value)).unwrap();
                if number % 500 == 0 {
                    let stats = log.stats().unwrap();
                    assert!(stats.dead_bytes < (6 << 20) + 6 * extent, "{number}: {stats:?}");
                }
            }
            log.close().unwrap();
        }
    }
}

/// A daemon's run goes on for as long as the store; most of the others are deleted at once, in no
/// order.
fn one_long_run_beside_many(disk: &SimDisk) -> RunLog {
    let log = options(EXTENT).create_storage(Arc::new(disk.clone())).unwrap();
    let long = log.start_run("agent", "daemon", unsynced()).unwrap();
    let mut names = Vec::new();
    for group in 0..240 {
        for run in 0..6 {
            let name = format!("run-{group}-{run}");
            let writer = log.start_run("agent", &name, unsynced()).unwrap();
            for number in 0..10 {
                let len = 900 + (group * 7 + run * 13) % 200;
                let _ = writer.append(&text(run, number, len)).unwrap();
            }
            let _ = writer.end(&Outcome::completed()).unwrap();
            let _ = long.append(b"a line of the daemon").unwrap();
            names.push(name);
        }
    }
    log.checkpoint().unwrap();
    let gone = names.iter().enumerate().filter(|(at, _)| at * 5 % 9 != 0);
    let gone: Vec<_> = gone.map(|(_, name)| (RunRef::from(name.as_str()), Rule::Deleted)).collect();
    let _ = log.evict(&gone).unwrap();
    log
}

#[test]
fn a_run_that_lies_in_very_many_segments_keeps_no_space_of_others() {
    let disk = SimDisk::untracked(Vec::new());
    let log = one_long_run_beside_many(&disk);
    let (stats, io) = (log.stats().unwrap(), log.stats().unwrap().io);
    assert!(stats.live_bytes > 20 * EXTENT && stats.dead_bytes < stats.live_bytes, "{stats:?}");
    assert!(log.verify().unwrap().is_clean());
    // A step that gains nothing finds that out without the frames.
    log.reclaim().unwrap();
    let read = log.stats().unwrap().io.bytes_read - io.bytes_read;
    assert!(read < 2 * stats.file_len, "{read} of {} bytes", stats.file_len);
    log.close().unwrap();
    let log = options(EXTENT).open_storage(Arc::new(disk)).unwrap();
    let daemon = log.trace("daemon").unwrap();
    assert_eq!(
        daemon.map(Result::unwrap).filter(|record| !record.payload().is_empty()).count(),
        1440
    );
    let run = log.start_run("agent", "more", ()).unwrap();
    let _ = run.append(b"more").unwrap();
    let stats = log.stats().unwrap();
    assert!(stats.io.bytes_read < 3 * stats.file_len, "{stats:?}");
}

#[test]
fn a_run_of_eight_that_lie_in_very_many_segments_keeps_no_space_of_the_others() {
    let log = options(EXTENT).create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
    let names = fill(&log, "run", 8, 1000);
    log.checkpoint().unwrap();
    for name in &names[1..] {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    let stats = log.stats().unwrap();
    assert!(stats.dead_bytes < stats.live_bytes / 2, "{stats:?}");
    let kept = log.trace(names[0].as_str()).unwrap();
    assert!(
        kept.zip(0..).all(|(record, number)| record.unwrap().payload() == text(0, number, 1000))
    );
    assert!(log.verify().unwrap().is_clean());
}

/// A store with deleted runs that traces hold, and these traces.
pub(super) fn held(log: &RunLog) -> Vec<Trace> {
    let names: Vec<String> =
        (0..8).flat_map(|turn| fill(log, &format!("turn-{turn}"), 1, 200)).collect();
    // Nothing that is deleted has frames in the tail.
    let _ = fill(log, "front", 1, 100);
    log.sync().unwrap();
    log.checkpoint().unwrap();
    let mut held = Vec::new();
    for name in &names {
        let mut trace = log.trace(name.as_str()).unwrap();
        let _ = trace.next().unwrap().unwrap();
        held.push(trace);
    }
    for name in &names {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    // The second time nothing is suspected any more; what is dead is retired.
    for _ in 0..2 {
        log.reclaim().unwrap();
    }
    assert!(log.stats().unwrap().retired_extents > 20);
    held
}

#[test]
fn appends_take_the_space_that_readers_have_let_go() {
    let log = options(EXTENT).create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
    let held = held(&log);
    let before = log.stats().unwrap();
    drop(held);
    let _ = fill(&log, "more", 1, 400);
    let after = log.stats().unwrap();
    assert_eq!(after.retired_extents, 0, "{after:?}");
    assert!(after.file_len <= before.file_len, "{before:?} {after:?}");
}

#[test]
fn a_full_disk_has_room_once_the_readers_of_what_was_deleted_have_gone() {
    let disk = SimDisk::untracked(Vec::new());
    let (ended, ends) = channel();
    let threads = options(EXTENT).background(true).observer(Arc::new(Ends(ended)));
    let log = threads.create_storage(Arc::new(disk.clone())).unwrap();
    let held = held(&log);
    disk.set_capacity(disk.allocated());
    let run = log.start_run("agent", "on", unsynced()).unwrap();
    let is_full = |number| match run.append(&text(0, number, 1000)) {
        Ok(_) => false,
        Err(Error::DiskFull { .. }) => true,
        Err(error) => panic!("{error}"),
    };
    assert!((0..10_000).any(is_full));
    assert!(is_full(0), "the readers are still there");
    drop(held);
    // The first one may find it full, and asks for the space.
    while is_full(0) {
        // So long that only a store that does nothing waits for it. A refused append is told too.
        let ended = || ends.recv_timeout(Duration::from_secs(20)).expect("the space is freed");
        while ended() != Activity::Reclaim {}
    }
}

#[test]
fn a_segment_that_cannot_be_read_does_not_keep_the_space_of_others() {
    for start in [1000, EXTENT / 2] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options(EXTENT).create_storage(Arc::new(disk.clone())).unwrap();
        let names = fill(&log, "run", 8, 400);
        log.checkpoint().unwrap();
        let at = EXTENTS_AT + 20 * EXTENT;
        disk.fail_reads_in(at + start..at + EXTENT / 2 + 1000, ErrorKind::Other);
        delete(&log, names[1..].iter().cloned());
        let stats = log.stats().unwrap();
        assert!(stats.dead_bytes < 6 * EXTENT, "{stats:?}");
        disk.clear_faults();
        log.reclaim().unwrap();
        assert!(log.stats().unwrap().dead_bytes < 3 * EXTENT && log.verify().unwrap().is_clean());
        assert_eq!(log.trace(names[0].as_str()).unwrap().map(Result::unwrap).count(), 400);
    }
}

#[test]
fn dead_segments_are_freed_whatever_run_lies_in_them() {
    for segments in [40, 90, 200] {
        let log = options(EXTENT).create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
        let long = log.start_run("agent", "daemon", unsynced()).unwrap();
        let mut names = Vec::new();
        for number in 0..2 * segments {
            let name = format!("run-{number}");
            let writer = log.start_run("agent", &name, unsynced()).unwrap();
            for record in 0..30 {
                let _ = writer.append(&text(number, record, 950)).unwrap();
            }
            let _ = writer.end(&Outcome::completed()).unwrap();
            let _ = long.append(b"a line of the daemon").unwrap();
            names.push(name);
        }
        log.checkpoint().unwrap();
        // Ten segments in a row are half dead, and the next ten are not.
        let gone = names.iter().enumerate().filter(|(at, _)| at % 40 < 20 && at % 2 == 0);
        let gone: Vec<_> =
            gone.map(|(_, name)| (RunRef::from(name.as_str()), Rule::Deleted)).collect();
        let read = log.stats().unwrap().io.bytes_read;
        let _ = log.evict(&gone).unwrap();
        let stats = log.stats().unwrap();
        let deleted = gone.len() as u64 * 30 * 950;
        assert!(stats.dead_bytes < deleted / 2, "{segments}: {deleted} deleted, {stats:?}");
        let read = stats.io.bytes_read - read;
        assert!(read < 8 * stats.file_len, "{segments}: read {read}, {stats:?}");
        assert!(log.verify().unwrap().is_clean());
    }
}

/// An ended run of five records, as long as this together.
pub(super) fn one_run(log: &RunLog, name: &str, len: usize) {
    let run = log.start_run("agent", name, unsynced()).unwrap();
    for number in 0..5 {
        let _ = run.append(&text(number, len, len / 5)).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
}

/// Segments with two runs each.
pub(super) fn two_in_each(log: &RunLog, keep: impl Fn(usize) -> usize, segments: usize) {
    for segment in 0..segments {
        one_run(log, &format!("keep-{segment}"), keep(segment));
        one_run(log, &format!("gone-{segment}"), 59_000 - keep(segment));
    }
    log.checkpoint().unwrap();
}

pub(super) fn delete(log: &RunLog, names: impl IntoIterator<Item = String>) {
    let names: Vec<String> = names.into_iter().collect();
    let gone: Vec<_> =
        names.iter().map(|name| (RunRef::from(name.as_str()), Rule::Deleted)).collect();
    let _ = log.evict(&gone).unwrap();
}

/// A step wants room for many outputs, and must not fail where there is room for few.
#[test]
fn a_nearly_full_disk_keeps_no_dead_space() {
    for (room, keep) in [(0, 20_000), (0, 28_000), (4, 28_000), (8, 28_000), (4, 38_000)] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options(EXTENT).create_storage(Arc::new(disk.clone())).unwrap();
        two_in_each(&log, |_| keep, 60);
        disk.set_capacity(disk.allocated() + room * EXTENT);
        delete(&log, (0..60).map(|segment| format!("gone-{segment}")));
        log.reclaim().unwrap();
        let stats = log.stats().unwrap();
        // Runs of 38,000 bytes fit one extent only by themselves.
        let most = if keep > 30_000 { 30 } else { 6 };
        assert!(stats.dead_bytes < most * EXTENT, "room {room}, {keep}: {stats:?}");
        assert!(log.verify().unwrap().is_clean());
    }
}

/// No two of these runs fit one segment, so nothing gains, and it is read to see that.
#[test]
fn segments_that_gain_nothing_are_read_few_times() {
    for segments in [100, 400] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options(EXTENT).create_storage(Arc::new(disk)).unwrap();
        two_in_each(&log, |segment| 36_000 - segment * 7 % 500, segments);
        let before = log.stats().unwrap();
        delete(&log, (0..segments).map(|segment| format!("gone-{segment}")));
        let after = log.stats().unwrap();
        let read = after.io.bytes_read - before.io.bytes_read;
        assert!(read < 4 * before.file_len, "{read} of {}", before.file_len);
    }
}

/// By their bytes they fit fewer segments, but each run stays in one piece.
#[test]
fn segments_that_do_not_fit_with_others_do_not_keep_emptier_ones() {
    for lengths in [&[53_000, 12_000][..], &[53_000, 53_000, 53_000, 13_000]] {
        let log = options(EXTENT).create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
        two_in_each(&log, |segment| lengths[segment % lengths.len()], 180);
        let names: Vec<String> = (0..180).map(|segment| format!("gone-{segment}")).collect();
        for some in names.chunks(17) {
            delete(&log, some.iter().cloned());
        }
        let stats = log.stats().unwrap();
        assert!(stats.dead_bytes < 28 * EXTENT, "{lengths:?}: {stats:?}");
    }
}

/// Two runs go on for as long as the store: one is in each segment, the other one in some.
#[test]
fn two_runs_that_lie_in_many_segments_keep_no_space_of_the_others() {
    let log = options(EXTENT).create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
    let some = log.start_run("agent", "some", unsynced()).unwrap();
    let each = log.start_run("agent", "each", unsynced()).unwrap();
    let mut gone = Vec::new();
    for segment in 0..600 {
        let _ = each.append(b"a line").unwrap();
        if segment % 4 == 0 {
            let _ = some.append(b"a beat").unwrap();
        }
        for part in 0..5 {
            let name = format!("run-{segment}-{part}");
            let run = log.start_run("agent", &name, unsynced()).unwrap();
            for record in 0..12 {
                let len = 850 + (segment * 37 + part * 11) % 90;
                let _ = run.append(&text(segment, record, len)).unwrap();
            }
            let _ = run.end(&Outcome::completed()).unwrap();
            gone.extend((part > 0).then_some(name));
        }
    }
    log.checkpoint().unwrap();
    delete(&log, gone);
    let stats = log.stats().unwrap();
    assert!(stats.dead_bytes < stats.live_bytes / 4, "{stats:?}");
    assert!(stats.file_len < 200 * EXTENT, "{stats:?}");
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn compact_fails_on_a_full_disk_only_if_nothing_has_changed() {
    for (holds, room) in [(false, 0), (false, 4), (true, 10), (true, 20)] {
        let disk = SimDisk::untracked(Vec::new());
        let manual = options(EXTENT).compaction(Compaction::new().automatic(false));
        let log = manual.create_storage(Arc::new(disk.clone())).unwrap();
        let names: Vec<String> =
            (0..20).flat_map(|group| fill(&log, &format!("group-{group}"), 4, 60)).collect();
        log.checkpoint().unwrap();
        let held: Vec<Trace> = names.iter().map(|name| log.trace(name.as_str()).unwrap()).collect();
        let held = held.into_iter().map(|mut trace| (trace.next().unwrap().unwrap(), trace));
        let held: Vec<_> = held.collect();
        if holds {
            delete(&log, names.iter().step_by(2).cloned());
        } else {
            drop(held);
        }
        disk.set_capacity(disk.allocated() + room * EXTENT);
        let before = log.stats().unwrap().io.bytes_written;
        let done = log.compact();
        let written = log.stats().unwrap().io.bytes_written - before;
        match done {
            Ok(done) => assert!(holds && done.bytes > 0 && done.bytes <= written, "{done:?}"),
            Err(Error::DiskFull { .. }) => assert!(written < EXTENT / 8, "{written}"),
            Err(error) => panic!("{error}"),
        }
        assert!(log.verify().unwrap().is_clean());
    }
}

/// Threads that come to nothing before the process is over.
#[derive(Debug)]
struct TooLate;

impl Scheduler for TooLate {
    fn begin(&self, _: Steps) {}
}

/// Each process writes some versions of a document of its own.
#[test]
fn many_short_processes_keep_bounded_dead_space() {
    let too_late = Options::new().extent_size(EXTENT).scheduler(Arc::new(TooLate));
    for (options, puts, len) in [
        (options(EXTENT), 40, 20_000),
        (too_late.clone(), 4, 20_000),
        (too_late.clone(), 40, 20_000),
        (too_late, 1000, 20),
    ] {
        let disk = SimDisk::untracked(Vec::new());
        options.create_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
        let all = if len < 100 { 120_000 } else { 4000 };
        for process in 0..all / puts {
            let log = options.open_storage(Arc::new(disk.clone())).unwrap();
            for put in 0..puts {
                let number = process * puts + put;
                let value = text(7, number, len);
                let value = NewRecord::new(&value).durability(Durability::Process);
                let _ = log.docs().put("space", &format!("key-{}", number / 6), &value).unwrap();
            }
            let stats = log.stats().unwrap();
            let most = stats.live_bytes + (24 << 20);
            assert!(stats.dead_bytes <= most, "{puts} {process}: {stats:?}");
            log.close().unwrap();
        }
        let log = options.open_storage(Arc::new(disk)).unwrap();
        assert!(log.verify().unwrap().is_clean());
        let documents = log.docs().list("space", "", None, 100_000).unwrap().documents;
        assert_eq!(documents.len(), all.div_ceil(6));
    }
}
