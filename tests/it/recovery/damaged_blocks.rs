//! Compressed blocks that cannot be read: each record of them is an error.

use std::sync::Arc;

use runlog::format::frames::frame::LONG_HEADER_LEN;
use runlog::format::{EXTENTS_AT, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Compression, Durability, Error, Follow, LogCursor, LogEvent, LogEventKind, Metadata, NewRecord,
    Options, Outcome, ReaderOptions,
};
use runlog_sim::SplitMix64;

use crate::readers::following::all_and_errors;
use crate::support::frames::{EXTENT, frames_in};

const RECORDS: u64 = 3_000;

/// Characters that compress to about three quarters, so that a block has bytes.
fn payload(random: &mut SplitMix64) -> Vec<u8> {
    (0..60).map(|_| b'a' + u8::try_from(random.below(26)).unwrap()).collect()
}

/// A compressed run in one block or more.
fn compressed() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(1 << 20).background(false);
    let options = options.compression(Compression::Zstd { level: 1 });
    let log = options.create_storage(storage.clone()).unwrap();
    let mut random = SplitMix64::new(5);
    let metadata = Metadata::new(b"").durability(Durability::Process);
    let run = log.start_run("agent", "run", metadata).unwrap();
    for _ in 0..RECORDS {
        let _ = run.append_record(&NewRecord::new(&payload(&mut random))).unwrap();
    }
    let _ = run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    let filler = log.start_run("agent", "filler", ()).unwrap();
    while log.stats().unwrap().sealed_segments == 0 {
        let _ = filler.append(&[7; 5_000]).unwrap();
    }
    log.compact().unwrap();
    log.close().unwrap();
    storage.to_bytes()
}

/// Changes a byte of the payload of each block.
fn with_blocks(image: &[u8], place: usize) -> Vec<u8> {
    let segments = (image.len() - usize::try_from(EXTENTS_AT).unwrap()) / EXTENT;
    let frames: Vec<_> = (0..segments).flat_map(|number| frames_in(image, number)).collect();
    let (mut image, mut changed) = (image.to_vec(), 0);
    for (at, _) in frames.iter().filter(|(_, header)| header.kind == FrameKind::Block) {
        image[at.start + LONG_HEADER_LEN + place] ^= 1;
        changed += 1;
    }
    assert!(changed > 0, "no block");
    image
}

/// All records of the run are lost, one by one.
fn check(what: &str, image: Vec<u8>, cursors: &[(u64, LogCursor)]) {
    let reader = ReaderOptions::new().open_storage(Arc::new(MemoryStorage::from_bytes(image)));
    let reader = reader.unwrap();
    for is_back in [false, true] {
        let trace = reader.trace("run").unwrap();
        let items: Vec<_> = if is_back { trace.rev().collect() } else { trace.collect() };
        assert_eq!(items.len() as u64, RECORDS, "{what}");
        let mut seqs: Vec<_> = items
            .iter()
            .map(|item| match item {
                Err(Error::Corrupt(found)) => found.seq.map(|seq| seq.0),
                item => panic!("{what}: {item:?}"),
            })
            .collect();
        if is_back {
            seqs.reverse();
        }
        assert_eq!(seqs, (0..RECORDS).map(Some).collect::<Vec<_>>(), "{what}");
    }
    for (known, from) in cursors {
        let mut follower = reader.follow(Follow::Everything, *from).unwrap();
        let (events, errors) = all_and_errors(&mut follower);
        let is_record = |event: &&LogEvent| matches!(event.kind, LogEventKind::Record(_));
        let mut records = events.iter().filter(is_record);
        assert!(records.all(|event| event.run.as_str() == "filler"), "{what}");
        let is_of_run = |error: &Error| match error {
            Error::Corrupt(found) => found.run.as_ref().is_some_and(|run| run.as_str() == "run"),
            error => panic!("{what}: {error}"),
        };
        let lost = errors.iter().filter(|(_, error)| is_of_run(error)).count() as u64;
        // If the block cannot be opened at all, the orders of its records are unknown.
        assert!([RECORDS, RECORDS - known].contains(&lost), "{what}: {lost} are lost");
    }
}

/// A follower that begins anew behind each event and each error misses no event.
fn check_restarts(image: &[u8]) {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let mut all = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let (all, _) = all_and_errors(&mut all);
    let (mut cursor, mut found, mut failed) = (LogCursor::START, Vec::new(), 0);
    loop {
        let mut follower = reader.follow(Follow::Everything, cursor).unwrap();
        match follower.try_next() {
            Ok(Some(event)) => found.push(event),
            Ok(None) => break,
            Err(_) => failed += 1,
        }
        cursor = follower.cursor();
    }
    let shown = |events: &[LogEvent]| events.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    assert_eq!(shown(&found), shown(&all));
    assert!(failed > 0);
}

/// The cursor behind so many records of the run.
fn behind(image: &[u8], records: usize) -> LogCursor {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let mut events = reader.follow(Follow::Agent("agent"), LogCursor::START).unwrap();
    let is_of_run = |event: &LogEvent| {
        event.run.as_str() == "run" && matches!(event.kind, LogEventKind::Record(_))
    };
    let mut of_run = core::iter::from_fn(|| events.try_next().unwrap()).filter(is_of_run);
    of_run.nth(records - 1).unwrap().cursor
}

#[test]
fn each_record_of_a_damaged_block_is_an_error() {
    let image = compressed();
    let (start, within) = ((0, LogCursor::START), (100, behind(&image, 100)));
    check("compressed bytes", with_blocks(&image, 100), &[start, within]);
    // Without the head, the orders are unknown: a follower reports also records before its cursor.
    let without_heads = with_blocks(&image, 2);
    check_restarts(&without_heads);
    check("the head", without_heads, &[start, (0, within.1)]);
}
