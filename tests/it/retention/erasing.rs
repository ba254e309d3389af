//! Of an erased run the file has no byte, whatever happens meanwhile, and whatever a crash leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::format::FrameKind;
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compaction, Error, NewRecord, Options, Outcome, Place, RunLog, SegmentId, SpaceReturn,
};
use runlog_sim::{CrashImages, SimDisk, SplitMix64, Survivors};

use crate::support::background::Background;
use crate::support::callout::{Points, beside};
use crate::support::frames::{Frame, frames_in, unindexed};

const SECRET: &[u8] = b"a secret of some length";

fn options(space: SpaceReturn) -> Options {
    let compaction = Compaction::new().automatic(false).space_return(space);
    Options::new().extent_size(64 << 10).background(false).compaction(compaction)
}

fn has_secret(image: &[u8]) -> bool {
    image.windows(SECRET.len()).any(|part| part == SECRET)
}

/// Writes a run that ends.
fn fill(log: &RunLog, run: &str, payload: &[u8]) {
    let writer = log.start_run("agent", run, ()).unwrap();
    (0..4).for_each(|_| drop(writer.append(payload).unwrap()));
    let _ = writer.end(&Outcome::completed()).unwrap();
}

/// Of a run that cannot be erased again nothing is left, at each operation at which the erasure is
/// broken off, once the store was opened and has freed what is dead.
#[test]
fn what_a_crash_leaves_of_an_erasure_goes_after_the_next_opening() {
    for space in [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink] {
        let disk = SimDisk::recording();
        let log = options(space).create_storage(Arc::new(disk.clone())).unwrap();
        fill(&log, "run", SECRET);
        (0..5).for_each(|run| fill(&log, &format!("other-{run}"), &[7; 8000]));
        log.checkpoint().unwrap();
        let begin = disk.op_count();
        assert_eq!(log.erase_run("run").unwrap().pinned_extents, 0);
        let end = disk.op_count();
        drop(log);
        let recording = disk.take_recording();
        let (mut images, mut gone) = (CrashImages::new(&recording), 0);
        for at in begin..=end {
            images.seek(at);
            for survivors in [Survivors::Everything, Survivors::Nothing] {
                let storage = Arc::new(MemoryStorage::from_bytes(images.image(survivors, 1)));
                let log = options(space).open_storage(storage.clone()).unwrap();
                log.reclaim().unwrap();
                let image = storage.to_bytes();
                if let Err(Error::RunNotFound { .. }) = log.erase_run("run") {
                    assert!(!has_secret(&image), "{space:?}, {at} of {end}, {survivors:?}");
                    gone += 1;
                }
                assert!(!has_secret(&storage.to_bytes()), "{space:?}, {at} of {end}");
            }
        }
        assert!(gone > 10, "{gone}");
    }
}

/// The next opening does not look for them, because the store was closed.
#[test]
fn closing_clears_what_is_left_of_an_erasure_in_any_number_of_extents() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options(SpaceReturn::Keep).create_storage(Arc::new(disk.clone())).unwrap();
    let mut random = SplitMix64::new(7);
    let names: Vec<String> = (0..80).map(|number| format!("run-{number}")).collect();
    for name in &names {
        let writer = log.start_run("agent", name, ()).unwrap();
        // Two segments, of which one has nothing else.
        let mut payload = SECRET.to_vec();
        payload.resize(9_000, 0);
        // It is stored as it is.
        random.fill(&mut payload[SECRET.len()..]);
        (0..14).for_each(|_| drop(writer.append(&payload).unwrap()));
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    for name in names.iter().step_by(2) {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    log.reclaim().unwrap();
    let free = log.stats().unwrap().free_extents;
    assert!(free > 30, "{free}");
    let have = |image: &[u8]| image.chunks(64 << 10).filter(|extent| has_secret(extent)).count();
    // A kill leaves it to the next opening what of it was an erasure.
    let storage = Arc::new(MemoryStorage::from_bytes(disk.image()));
    // Its thread does not come to it.
    let threads = options(SpaceReturn::Keep).scheduler(Arc::new(Background::default()));
    threads.open_storage(storage.clone()).unwrap().close().unwrap();
    let image = storage.to_bytes();
    let (left, extents) = (have(&image), image.len() / (64 << 10));
    assert!(left + free as usize <= extents, "{left} of {extents}, {free} free");
}

/// Beside the append of a large record, which chooses free extents for its chunks: they have bytes
/// of the run, from before it was moved.
#[test]
fn an_erasure_empties_free_extents_also_while_another_call_has_chosen_them() {
    for point in 0.. {
        let disk = SimDisk::new();
        let points = Points::new(disk.clone());
        let storage = points.storage();
        let log = options(SpaceReturn::Keep).create_storage(storage).unwrap();
        fill(&log, "first", &[1; 7000]);
        fill(&log, "run", SECRET);
        (0..3).for_each(|run| fill(&log, &format!("other-{run}"), &[7; 7000]));
        let large = log.start_run("agent", "large", ()).unwrap();
        log.checkpoint().unwrap();
        let _ = log.delete_run("first").unwrap();
        assert!(log.compact().unwrap().segments > 0);
        let left = AtomicUsize::new(0);
        let append = || format!("{:?}", large.append(&[9; 400_000]).map(drop));
        let erase = || {
            let erased = log.erase_run("run").map(|erased| erased.pinned_extents);
            left.store(usize::from(has_secret(&disk.image())), Ordering::Relaxed);
            format!("{erased:?}")
        };
        let done = beside(&points, point, append, erase);
        assert_eq!(done.answers, ["Ok(())", "Ok(0)"], "at {point}");
        assert_eq!(left.into_inner(), 0, "bytes are left at {point}");
        if !done.held {
            assert!(point > 20, "{point} points");
            break;
        }
    }
}

fn put(log: &RunLog, key: &str, value: &[u8]) {
    let _ = log.docs().put("space", key, &NewRecord::new(value)).unwrap();
}

/// The segment that an error names.
fn refused<T>(erased: runlog::Result<T>) -> Option<SegmentId> {
    match erased.map(drop).unwrap_err() {
        Error::Corrupt(found) => match found.place {
            Place::Directory { segment } => Some(segment),
            _ => None,
        },
        _ => None,
    }
}

/// The frames of the first segment.
fn frames_with(image: &[u8], kinds: &[FrameKind], payload: &[u8]) -> Vec<Frame> {
    let frames = frames_in(image, 0);
    let has_payload =
        |(at, _): &&Frame| image[at.clone()].windows(payload.len()).any(|part| part == payload);
    let run_no = frames.iter().find(has_payload).unwrap().1.run_no;
    let is_wanted = |(_, frame): &Frame| frame.run_no == run_no && kinds.contains(&frame.kind);
    frames.into_iter().filter(is_wanted).collect()
}

#[test]
fn frames_that_a_directory_lists_can_be_lost_without_a_doubt_about_others() {
    let disk = SimDisk::untracked(Vec::new());
    let log = unindexed().create_storage(Arc::new(disk.clone())).unwrap();
    put(&log, "before", b"in front of it");
    fill(&log, "lost", &[b'l'; 300]);
    (0..9).for_each(|_| put(&log, "large", &[7; 8000]));
    put(&log, "key", SECRET);
    log.close().unwrap();
    let mut image = disk.image();
    let lost = frames_with(&image, &[FrameKind::Record], &[b'l'; 300]);
    lost.iter().for_each(|(at, _)| image[at.start] ^= 1);
    let disk = SimDisk::untracked(image);
    let log = unindexed().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(!log.verify().unwrap().is_clean());
    assert_eq!(log.docs().erase("space", "key").unwrap().bytes, SECRET.len() as u64);
    assert!(!has_secret(&disk.image()));
    assert_eq!(refused(log.erase_run("lost")), Some(SegmentId(1)));
    assert!(matches!(log.erase_run("never"), Err(Error::RunNotFound { .. })));
}

/// Documents are written in batches and evicted: of the frames for that no directory tells.
#[test]
fn an_erasure_reads_no_payload_of_segments_that_are_whole() {
    let (storage, extent) = (Arc::new(MemoryStorage::new()), 1 << 20);
    let options = options(SpaceReturn::Keep).extent_size(extent).index(false);
    let log = options.create_storage(storage).unwrap();
    for number in 0..160 {
        put(&log, &format!("key {number}"), b"small");
        put(&log, &format!("key {number}"), &[7; 15_000]);
    }
    log.checkpoint().unwrap();
    let segments = log.stats().unwrap().sealed_segments;
    let read = || log.stats().unwrap().io.bytes_read;
    for most in [segments * extent / 2, extent / 8] {
        let before = read();
        let _ = log.docs().erase("space", "never").unwrap();
        assert!(segments > 1 && read() - before < most, "{} of {most}", read() - before);
    }
}

/// Loses power in front of the record of these bytes: what was written behind it is stored, and no
/// sync has returned since.
fn lose_power_at(disk: &SimDisk, payload: &[u8]) {
    let image = disk.image();
    let at = image.windows(payload.len()).position(|part| part == payload).unwrap();
    disk.write_at(at as u64 - 48, &vec![0; 48 + payload.len()]).unwrap();
}

/// A run of which one segment has the beginning and the next one records behind a torn tail, and
/// nothing else of it; the run `late` has the first frames behind that. `next` says when the log
/// is in another segment.
fn with_orphans(disk: &SimDisk) -> RunLog {
    let log = unindexed().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"durable").unwrap();
    let segment = || log.stats().unwrap().end.segment;
    let early = log.start_run("agent", "early", ()).unwrap();
    while segment() == SegmentId(1) {
        let _ = early.append(&[1; 7000]).unwrap();
    }
    let _ = early.end(&Outcome::completed()).unwrap();
    let stays = log.start_run("agent", "stays", ()).unwrap();
    let _ = stays.append(b"it stays").unwrap();
    log.sync().unwrap();
    let _ = stays.append(&[b't'; 300]).unwrap();
    let _ = run.append(SECRET).unwrap();
    put(&log, "key", SECRET);
    let image = disk.image();
    drop((run, early, stays, log));
    disk.write_at(0, &image).unwrap();
    lose_power_at(disk, &[b't'; 300]);
    let log = unindexed().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(log.recovery_report().torn.is_some(), "{}", log.recovery_report());
    assert_eq!(log.stats().unwrap().end.segment, SegmentId(3));
    assert!(!has_secret(&disk.image()));
    let _ = log.writer("run").unwrap().end(&Outcome::completed()).unwrap();
    log
}

/// Opening the store leaves no byte of them, because erasing looks only at what directories list.
#[test]
fn records_behind_a_torn_tail_are_gone_once_the_store_is_open() {
    let disk = SimDisk::untracked(Vec::new());
    let log = with_orphans(&disk);
    assert_eq!(log.trace("stays").unwrap().map(Result::unwrap).count(), 1);
    assert!(log.verify().unwrap().is_clean());
}

/// Segments that are dead give the room that the living of another one need to move.
#[test]
fn an_erasure_on_a_full_disk_frees_what_needs_no_room_and_then_moves_the_rest() {
    let disk = SimDisk::untracked(Vec::new());
    let log = with_orphans(&disk);
    let segment = || log.stats().unwrap().end.segment;
    let big = log.start_run("agent", "big", ()).unwrap();
    while segment() < SegmentId(7) {
        let _ = big.append(&[b'b'; 7000]).unwrap();
    }
    let _ = big.end(&Outcome::completed()).unwrap();
    while segment() < SegmentId(8) {
        put(&log, "behind", &[7; 7000]);
    }
    log.sync().unwrap();
    disk.set_capacity(disk.allocated());
    let erased = log.erase_run("big");
    assert!(erased.is_ok(), "{erased:?}");
    assert!(!disk.image().windows(100).any(|part| part == [b'b'; 100]));
    assert!(!has_secret(&disk.image()));
    assert_eq!(log.trace("stays").unwrap().map(Result::unwrap).count(), 1);
}

#[test]
fn an_erasure_can_be_broken_off_anywhere() {
    let prepared = SimDisk::untracked(Vec::new());
    let log = unindexed().create_storage(Arc::new(prepared.clone())).unwrap();
    fill(&log, "first", &[1; 7000]);
    fill(&log, "run", SECRET);
    fill(&log, "stays", &[7; 7000]);
    log.sync().unwrap();
    drop(log);
    let disk = SimDisk::recording_from(prepared.image());
    let log = unindexed().open_storage(Arc::new(disk.clone())).unwrap();
    let begin = disk.op_count();
    assert_eq!(log.erase_run("run").unwrap().pinned_extents, 0);
    let end = disk.op_count();
    drop(log);
    assert!(!has_secret(&disk.image()));
    let recording = disk.take_recording();
    let mut images = CrashImages::new(&recording);
    for at in begin..=end {
        images.seek(at);
        let left = Arc::new(MemoryStorage::from_bytes(images.image(Survivors::Everything, 1)));
        let log = unindexed().open_storage(left.clone()).unwrap();
        let erased = log.erase_run("run");
        assert!(matches!(erased, Ok(_) | Err(Error::RunNotFound { .. })), "{at}: {erased:?}");
        assert!(!has_secret(&left.to_bytes()), "{at} of {begin} to {end}");
    }
    for full in begin..end {
        let disk = SimDisk::untracked(prepared.image());
        let log = unindexed().open_storage(Arc::new(disk.clone())).unwrap();
        disk.fill_from(disk.op_count() + full - begin);
        let first = log.erase_run("run").map(drop);
        disk.set_capacity(u64::MAX);
        let again = log.erase_run("run").map(drop);
        let is_gone = matches!(again, Ok(()) | Err(Error::RunNotFound { .. }));
        assert!(is_gone && !has_secret(&disk.image()), "{full}: {first:?}, {again:?}");
    }
}
