//! Directories that do not check: built again exactly, or their segment is quarantined.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use runlog::format::FrameKind;
use runlog::format::segments::directory::TRAILER_LEN;
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compaction, Compression, Error, NewRecord, Options, Outcome, Place, ReadLog, Reader,
    ReaderOptions, Retention, RunLog, RunQuery, SegmentId,
};

use crate::support;
use crate::support::frames::{EXTENT, Frame, frames_in};

fn options() -> Options {
    Options::new()
        .extent_size(EXTENT as u64)
        .compression(Compression::None)
        .background(false)
        .compaction(Compaction::new().automatic(false))
}

fn fill(log: &RunLog, run: &str, records: u8) {
    let writer = log.start_run("agent", run, b"metadata").unwrap();
    (0..records).for_each(|record| drop(writer.append(&[record; 3_000]).unwrap()));
    let _ = writer.end(&Outcome::completed()).unwrap();
}

/// A closed store with an index: runs in several segments, deleted ones, held ones, a run that goes
/// on, documents, a large record, and segments that a compaction wrote.
fn store() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let long = log.start_run("agent", "long", ()).unwrap();
    for number in 0..16 {
        fill(&log, &format!("run-{number}"), 8);
        let _ = long.append(&[number; 100]).unwrap();
        let value = [number; 500];
        let _ = log.docs().put("space", &format!("key-{}", number % 5), &NewRecord::new(&value));
    }
    let _ = long.append(&[7; 200_000]).unwrap();
    log.hold("run-3", "a reason").unwrap();
    log.hold("long", "it goes on").unwrap();
    assert!(log.docs().delete("space", "key-4").unwrap());
    (0..6).filter(|run| *run != 3).for_each(|run| {
        let _ = log.delete_run(format!("run-{run}").as_str()).unwrap();
    });
    log.checkpoint().unwrap();
    assert!(log.compact().unwrap().outputs > 0);
    fill(&log, "last", 40);
    let _ = long.append(b"in the tail").unwrap();
    log.checkpoint().unwrap();
    drop(long);
    log.close().unwrap();
    storage.to_bytes()
}

/// The numbers of the sealed segments of an image, as [`frames_in`] counts them, and their SEALs.
fn seals(image: &[u8]) -> Vec<(usize, Frame)> {
    let last = |number| Some((number, frames_in(image, number).pop()?));
    let segments = (0..image.len() / EXTENT).filter_map(last);
    segments.filter(|(_, frame)| frame.1.kind == FrameKind::Seal).collect()
}

fn damage(image: &mut [u8], frame: &Frame) {
    image[frame.0.start + frame.1.header_len() + 5] ^= 1;
}

/// Where the last offset that a directory lists is.
fn last_offset(image: &[u8], (range, seal): &Frame) -> usize {
    let payload = range.start + seal.header_len();
    let trailer = payload + seal.payload_len as usize - TRAILER_LEN;
    let places = u32::from_le_bytes(image[trailer + 8..trailer + 12].try_into().unwrap());
    let entries = &image[payload..payload + places as usize];
    payload + entries.len() - 4 * (entries.rchunks(4).position(|word| word != [0; 4]).unwrap() + 1)
}

/// Damages the first entry of the directory of a segment, and the names in its frames. Returns the
/// segment.
fn damage_names(image: &mut [u8], number: usize) -> SegmentId {
    let frames = frames_in(image, number);
    let is_lost = |kind| {
        use FrameKind::{Bind, Evict, Seal, Start};
        matches!(kind, Seal | Bind | Start | Evict)
    };
    frames.iter().filter(|frame| is_lost(frame.1.kind)).for_each(|frame| damage(image, frame));
    frames[0].1.position.segment
}

/// Damages the tables of the directory of a segment too, so that the segment is quarantined.
fn quarantine(image: &mut [u8], number: usize) -> SegmentId {
    let (range, seal) = frames_in(image, number).pop().unwrap();
    image[range.start + seal.kind.header_len(0) + seal.payload_len as usize - 8] ^= 1;
    damage_names(image, number)
}

fn opened(image: &[u8], options: &Options) -> RunLog {
    options.clone().open_storage(Arc::new(MemoryStorage::from_bytes(image.to_vec()))).unwrap()
}

fn reader(image: &[u8]) -> Reader {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    ReaderOptions::new().open_storage(storage).unwrap()
}

/// All that a store answers, also of runs that are deleted or never were.
fn answers(log: &impl ReadLog) -> BTreeMap<String, String> {
    let mut all = support::answers::answers(log, "space");
    for run in ["run-0", "run-1", "never"] {
        let found = log.run(run).map_err(|error| error.to_string());
        all.insert(run.to_owned(), format!("{found:?}"));
    }
    all
}

fn segment_of(error: &Error) -> Option<SegmentId> {
    match error {
        Error::Corrupt(found) => match found.place {
            Place::Directory { segment } => Some(segment),
            _ => None,
        },
        _ => None,
    }
}

fn assert_lost<T: core::fmt::Debug>(result: runlog::Result<T>, segment: SegmentId) {
    let error = result.expect_err("it needs the segment");
    assert_eq!(segment_of(&error), Some(segment), "{error:?}");
}

#[test]
fn one_damaged_directory_changes_no_answer() {
    let image = store();
    let (indexed, plain) = (options(), options().index(false));
    let healthy = answers(&opened(&image, &indexed));
    let all = seals(&image);
    assert!(all.len() > 8, "{}", all.len());
    for (_, seal) in all {
        let [mut header, mut entry, mut offset] = [(); 3].map(|()| image.clone());
        header[seal.0.start + 9] ^= 1;
        damage(&mut entry, &seal);
        offset[last_offset(&image, &seal)] ^= 8;
        for image in [header, entry, offset] {
            let of = seal.1.position.segment;
            assert_eq!(answers(&opened(&image, &plain)), healthy, "{of}: without an index");
            assert_eq!(answers(&reader(&image)), healthy, "{of}: a reader");
            let log = opened(&image, &indexed);
            log.checkpoint().unwrap();
            assert_eq!(answers(&log), healthy, "{of}: with an index");
            assert_eq!(log.health().quarantined, []);
            let place = Place::Directory { segment: of };
            let problems = log.verify().unwrap().problems;
            assert!(problems.iter().any(|found| found.place == place), "{problems:?}");
            // The segment can move, and the copy has a whole directory.
            let _ = log.compact().unwrap();
            assert_eq!(answers(&log), healthy, "{of}: behind a compaction");
        }
    }
}

/// The key of the hashes of ids is in the superblocks too.
#[test]
fn a_reader_finds_runs_by_their_ids_although_the_static_header_is_damaged() {
    let image = store();
    let healthy = answers(&opened(&image, &options()));
    let mut damaged = image.clone();
    damaged[40] ^= 1;
    assert_eq!(answers(&reader(&damaged)), healthy);
}

/// Also those of outputs: without the manifest nothing else does.
#[test]
fn each_seal_frame_states_the_next_run_number_of_its_directory() {
    let image = store();
    let all = seals(&image);
    for (_, (range, seal)) in &all {
        let trailer = range.start + seal.header_len() + seal.payload_len as usize - TRAILER_LEN;
        let stated = image[trailer + 40..trailer + 48].try_into().unwrap();
        assert_eq!(seal.seq.0, u64::from_le_bytes(stated), "{}", seal.position);
    }
    assert!(all.len() > 8);
}

#[test]
fn a_quarantined_segment_is_never_taken_for_an_empty_one() {
    let image = store();
    for (number, seal) in seals(&image) {
        let mut image = image.clone();
        let lost = quarantine(&mut image, number);
        assert_eq!(lost, seal.1.position.segment);
        let log = opened(&image, &options().index(false));
        assert_lost(log.run("never").map(drop), lost);
        assert_lost(log.trace("run-9").map(drop), lost);
        assert_lost(log.runs(&RunQuery::new()).collect::<runlog::Result<Vec<_>>>(), lost);
        assert_lost(log.start_run("agent", "new", ()).map(drop), lost);
        assert_lost(log.docs().get("space", "key-0").map(drop), lost);
        assert_lost(log.docs().put("space", "key-9", &NewRecord::new(b"new")).map(drop), lost);
        assert_lost(log.gc(&Retention::new().keep_newest(0)).map(drop), lost);
        assert_eq!(log.health().quarantined, [lost]);
        assert!(!log.health().is_well());
        let reader = reader(&image);
        assert_lost(reader.run("never").map(drop), lost);
        assert_lost(reader.runs(&RunQuery::new()).collect::<runlog::Result<Vec<_>>>(), lost);
        assert_lost(reader.docs().get("space", "key-0").map(drop), lost);
        let place = Place::Directory { segment: lost };
        for problems in [log.verify().unwrap().problems, reader.verify().unwrap().problems] {
            assert!(problems.iter().any(|found| found.place == place), "{problems:?}");
        }
    }
}

/// The index covers the segment, so it answers for the runs there.
#[test]
fn with_an_index_only_what_needs_the_directory_of_a_quarantined_segment_fails() {
    let image = store();
    let healthy = opened(&image, &options());
    let names: Vec<String> =
        healthy.runs(&RunQuery::new()).map(|run| run.unwrap().run.to_string()).collect();
    for (number, _) in seals(&image) {
        let mut image = image.clone();
        let lost = quarantine(&mut image, number);
        let log = opened(&image, &options());
        log.checkpoint().unwrap();
        let (mut whole, mut failed) = (0, 0);
        for name in &names {
            // The tail has frames of these two.
            if name == "long" || name == "last" {
                continue;
            }
            assert_eq!(log.run(name.as_str()).unwrap(), healthy.run(name.as_str()).unwrap());
            match log.trace(name.as_str()) {
                Ok(trace) => {
                    let records = trace.collect::<Result<Vec<_>, _>>().unwrap();
                    assert_eq!(records.len(), healthy.trace(name.as_str()).unwrap().count());
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(segment_of(&error), Some(lost));
                    failed += 1;
                }
            }
        }
        assert!(whole > 0, "{lost}: {failed} failed");
        assert!(matches!(log.run("run-1"), Err(Error::RunNotFound { .. })));
        fill(&log, "new", 2);
        assert_eq!(log.trace("new").unwrap().count(), 2);
    }
}

#[test]
fn a_damaged_entry_that_cannot_be_built_again_costs_its_run_alone() {
    let image = store();
    let healthy = opened(&image, &options());
    let names = healthy.list_runs(&RunQuery::new()).unwrap().runs;
    let names: Vec<String> = names.iter().map(|run| run.run.to_string()).collect();
    for (number, _) in seals(&image) {
        let mut image = image.clone();
        let segment = damage_names(&mut image, number);
        let log = opened(&image, &options());
        log.checkpoint().unwrap();
        let mut failed = Vec::new();
        for name in &names {
            match log.trace(name.as_str()) {
                Ok(trace) => {
                    assert_eq!(trace.count(), healthy.trace(name.as_str()).unwrap().count())
                }
                Err(error) => {
                    assert_eq!(segment_of(&error), Some(segment), "{name}: {error}");
                    failed.push(name);
                }
            }
        }
        assert!(failed.len() <= 1, "{segment}: {failed:?}");
        assert!(log.health().quarantined.is_empty());
        assert!(matches!(log.run("never"), Err(Error::RunNotFound { .. })));
    }
}

/// The tail has frames of the run `long`, and the directory says how it went on before.
#[test]
fn a_run_in_the_tail_that_needs_a_quarantined_segment_takes_no_call() {
    let image = store();
    let held = |frames: &[Frame], run| frames.iter().any(|frame| frame.1.run_no == run);
    let long = opened(&image, &options()).run("long").unwrap().number();
    let mut tried = 0;
    for (number, _) in seals(&image) {
        if !held(&frames_in(&image, number), long) {
            continue;
        }
        let mut image = image.clone();
        let lost = quarantine(&mut image, number);
        let log = opened(&image, &options());
        log.checkpoint().unwrap();
        assert_lost(log.writer("long").map(drop), lost);
        assert_lost(log.start_run("agent", "long", ()).map(drop), lost);
        let record = NewRecord::new(b"more");
        assert_lost(log.append_to("agent", "long", &record, Allow::everything()).map(drop), lost);
        assert_lost(
            log.end_run("agent", "long", &Outcome::completed(), Allow::everything()).map(drop),
            lost,
        );
        assert_lost(log.delete_run("long").map(drop), lost);
        assert_lost(log.hold("long", "why").map(drop), lost);
        assert_lost(log.held_runs().map(drop), lost);
        assert_lost(log.run("long").map(drop), lost);
        assert_lost(log.trace("long").map(drop), lost);
        assert_lost(log.erase_run("run-9").map(drop), lost);
        assert_lost(log.erase_run("long").map(drop), lost);
        assert!(log.run("run-9").is_ok(), "a refused erasure deletes nothing");
        let plan = log.gc(&Retention::new().keep_newest(0)).unwrap().plan;
        assert!(plan.evict.iter().all(|run| run.run.as_str() != "long"));
        fill(&log, "another", 2);
        tried += 1;
    }
    assert!(tried > 2, "{tried}");
}

#[test]
fn no_work_moves_or_frees_a_quarantined_segment_or_what_it_may_need() {
    let image = store();
    let evictions = |image: &[u8]| {
        let frames = (0..image.len() / EXTENT).flat_map(|number| frames_in(image, number));
        frames.filter(|frame| frame.1.kind == FrameKind::Evict).count()
    };
    for (number, _) in seals(&image) {
        let mut image = image.clone();
        let lost = quarantine(&mut image, number);
        let frames = frames_in(&image, number);
        let extent = frames[0].0.start..frames.last().unwrap().0.end;
        let before = image[extent.clone()].to_vec();
        let storage = Arc::new(MemoryStorage::from_bytes(image.clone()));
        let log = options().open_storage(storage.clone()).unwrap();
        log.checkpoint().unwrap();
        let _ = log.gc(&Retention::new().keep_newest(0)).unwrap();
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
        let _ = log.compact();
        assert_lost(log.erase_run("run-9").map(drop), lost);
        assert_lost(log.docs().erase("space", "key-0").map(drop), lost);
        log.close().unwrap();
        let after = storage.to_bytes();
        assert_eq!(after[extent], before, "{lost}");
        assert!(evictions(&after) >= evictions(&image), "{lost}: a deletion is forgotten");
        let log = opened(&after, &options());
        log.checkpoint().unwrap();
        assert!(matches!(log.run("run-1"), Err(Error::RunNotFound { .. })), "{lost}");
        assert_eq!(log.health().quarantined, [lost]);
    }
}

#[test]
fn an_eviction_stays_while_a_quarantined_segment_may_have_frames_of_its_run() {
    let options = options().receipts(0, Duration::ZERO);
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    // The second segment has the eviction, and nothing else that lives.
    fill(&log, "gone", 30);
    let _ = log.delete_run("gone").unwrap();
    fill(&log, "filler", 40);
    let _ = log.delete_run("filler").unwrap();
    fill(&log, "kept", 40);
    log.checkpoint().unwrap();
    log.close().unwrap();
    let whole = storage.to_bytes();
    let mut image = whole.clone();
    let (number, _) = seals(&image)[0];
    let lost = quarantine(&mut image, number);
    let start = frames_in(&whole, number)[0].0.start - SEGMENT_HEADER_LEN as usize;
    let extent = start..start + EXTENT;
    let storage = Arc::new(MemoryStorage::from_bytes(image));
    let log = options.open_storage(storage.clone()).unwrap();
    log.checkpoint().unwrap();
    let _ = log.compact().unwrap();
    log.reclaim().unwrap();
    assert_eq!(log.health().quarantined, [lost]);
    log.close().unwrap();
    // The medium gives the right bytes again.
    let mut image = storage.to_bytes();
    image[extent.clone()].copy_from_slice(&whole[extent]);
    let log = opened(&image, &options.index(false));
    for run in ["gone", "filler"] {
        assert!(matches!(log.run(run), Err(Error::RunNotFound { .. })), "{run}");
    }
    assert_eq!(log.trace("kept").unwrap().count(), 40);
}

/// A checkpoint reads the directories that the index lacks, and no others.
#[test]
fn a_quarantined_segment_stops_a_checkpoint_and_leaves_the_index() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (0..6).for_each(|run| fill(&log, &format!("run-{run}"), 8));
    log.checkpoint().unwrap();
    let covered = seals(&storage.to_bytes()).len();
    (6..9).for_each(|run| fill(&log, &format!("run-{run}"), 8));
    // The manifest has all full segments as sealed.
    log.sync().unwrap();
    let image = storage.to_bytes();
    let all = seals(&image);
    assert!(covered > 1 && all.len() > covered, "{covered} of {}", all.len());
    let mut stopped = 0;
    for (number, _) in &all {
        let mut image = image.clone();
        let lost = quarantine(&mut image, *number);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        for opened in 0..2 {
            let log = options().open_storage(storage.clone());
            let log = log.unwrap_or_else(|error| panic!("{lost}, opened {opened}: {error}"));
            match log.checkpoint() {
                Ok(()) => assert!(log.stats().unwrap().index_open),
                Err(error) => {
                    assert_eq!(segment_of(&error), Some(lost));
                    stopped += 1;
                }
            }
            let kept = log.recovery_report().index;
            assert_eq!(kept, runlog::IndexRecovery::Kept, "{lost}, opened {opened}");
            log.close().unwrap();
        }
    }
    assert!(stopped > 1, "{stopped}");
}
