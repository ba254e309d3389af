//! Runs whose records repeat one another: what is the same is stored once, and every byte comes
//! back.

use std::sync::Arc;

use runlog::format::FrameKind;
use runlog::salvage_storage;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compaction, Compression, Durability, Error, Follow, LogCursor, LogEventKind, NewRecord,
    Options, Outcome, RunLog, Seq, TailWriter,
};
use runlog_sim::{SimDisk, SplitMix64};

use super::compressed::{noise, roll};
use crate::support::frames::of_kind;

const ZSTD: Compression = Compression::Zstd { level: 3 };

fn options(extent: u64) -> Options {
    let by_hand = Compaction::new().automatic(false);
    let options = Options::new().extent_size(extent).background(false).compaction(by_hand);
    options.compression(ZSTD)
}

/// Text without repetitions of more than some bytes, in lines.
fn line(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut text = format!("{{\"type\":\"message\",\"id\":\"{:016x}\",", random.next_u64());
    while text.len() < len {
        let words = ["the ", "file ", "src/", "error ", "of ", "tool "];
        text.push_str(words[random.index(words.len())]);
        text.push_str(&format!("{:x} ", random.below(1 << 20)));
    }
    text.truncate(len.saturating_sub(2));
    text.push_str("}\n");
    text.into_bytes()
}

/// Records of a run that say all of its history each time, with an id at both ends.
fn histories(seed: u64, count: u64, message: usize) -> Vec<Vec<u8>> {
    let mut history = line(seed, 4 * message);
    let record = |number: u64| {
        history.extend(line(seed + 1_000 + number, message / 2 + number as usize * 13 % message));
        let id = format!("{:016x}", SplitMix64::new(seed ^ number << 20).next_u64());
        [id.as_bytes(), &history, b"]", id.as_bytes()].concat()
    };
    (0..count).map(record).collect()
}

fn append_all(log: &RunLog, run: &str, records: &[Vec<u8>]) {
    for (number, record) in records.iter().enumerate() {
        let kind = ["progress", ""][number % 2];
        let record = NewRecord::new(record).kind(kind);
        let _ = log.append_to("agent", run, &record, Allow::everything()).unwrap();
    }
    let done = Outcome::completed().durability(Durability::Process);
    let _ = log.end_run("agent", run, &done, Allow::everything()).unwrap();
}

fn assert_same(log: &RunLog, run: &str, records: &[Vec<u8>]) {
    let trace = log.trace(("agent", run)).unwrap().map(Result::unwrap);
    let found: Vec<runlog::Record> = trace.collect();
    assert_eq!(found.len(), records.len(), "{run}");
    for (number, (found, record)) in found.iter().zip(records).enumerate() {
        assert!(found.payload() == record, "{run} {number}");
        assert_eq!(found.kind().unwrap_or(""), ["progress", ""][number % 2]);
    }
    let back = log.trace(("agent", run)).unwrap().rev().map(Result::unwrap);
    assert!(back.zip(records.iter().rev()).all(|(found, record)| found.payload() == record));
}

fn assert_clean(log: &RunLog) {
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// The stored bytes of all runs.
fn live(log: &RunLog) -> u64 {
    log.stats().unwrap().live_bytes
}

#[test]
fn what_records_repeat_is_stored_once_at_each_extent_size() {
    for (extent, count, message) in [(64 << 10, 60, 300), (1 << 20, 150, 700), (4 << 20, 150, 900)]
    {
        let storage = Arc::new(MemoryStorage::new());
        let log = options(extent).create_storage(storage.clone()).unwrap();
        let runs: Vec<_> = (0..3).map(|run| histories(run * 77, count, message)).collect();
        for (number, records) in runs.iter().enumerate() {
            append_all(&log, &format!("run-{number}"), records);
        }
        roll(&log);
        let payload: usize = runs.iter().flatten().map(Vec::len).sum();
        let _ = log.compact().unwrap();
        assert!(!of_kind(&storage.to_bytes(), FrameKind::Piece).is_empty(), "{extent}");
        assert!(live(&log) * 8 < payload as u64, "{} of {payload}", live(&log));
        for (number, records) in runs.iter().enumerate() {
            assert_same(&log, &format!("run-{number}"), records);
        }
        assert_clean(&log);
        // Packed once, a store has nothing left to pack.
        let _ = log.compact().unwrap();
        let settled = log.compact().unwrap();
        assert_eq!(settled.bytes, 0, "{settled:?}");
        log.close().unwrap();
        let log = options(extent).open_storage(storage.clone()).unwrap();
        for (number, records) in runs.iter().enumerate() {
            assert_same(&log, &format!("run-{number}"), records);
        }
        // The directory of an output is a function of its frames.
        assert_clean(&log);
    }
}

/// A compacted store of one run, and its records.
fn packed(records: &[Vec<u8>], extent: u64) -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(extent).create_storage(storage.clone()).unwrap();
    append_all(&log, "run", records);
    roll(&log);
    for _ in 0..2 {
        let _ = log.compact().unwrap();
    }
    assert_same(&log, "run", records);
    log.close().unwrap();
    storage.to_bytes()
}

/// The sequences of the records that cannot be read; the others are as they were.
fn lost(log: &RunLog, records: &[Vec<u8>]) -> Vec<u64> {
    let mut lost = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let seq = Seq(number as u64);
        let mut one = log.trace(("agent", "run")).unwrap().range(seq..Seq(seq.0 + 1)).unwrap();
        match one.next().unwrap() {
            Ok(found) => assert!(found.payload() == *record, "{number}"),
            Err(Error::Corrupt(corruption)) => {
                assert_eq!(corruption.seq, Some(seq));
                lost.push(seq.0);
            }
            Err(other) => panic!("{other}"),
        }
    }
    lost
}

#[test]
fn a_damaged_piece_costs_the_records_that_need_it_and_each_is_told() {
    // Each third record repeats the one before.
    let mut records: Vec<Vec<u8>> = (0..60).map(|seed| line(seed, 2_500)).collect();
    for number in (2..60).step_by(3) {
        records[number] = records[number - 1].clone();
    }
    let image = packed(&records, 64 << 10);
    let pieces = of_kind(&image, FrameKind::Piece);
    assert!(pieces.len() > 10, "{}", pieces.len());
    let mut all = 0;
    for (at, _) in pieces {
        let mut damaged = image.clone();
        damaged[(at.start + at.end) / 2] ^= 4;
        let log = options(64 << 10).open_storage(Arc::new(SimDisk::untracked(damaged))).unwrap();
        let lost = lost(&log, &records);
        // A piece has 2 KiB, so parts of one record or two, and of a record that repeats one.
        assert!((1..=4).contains(&lost.len()), "{lost:?}");
        let problems = log.verify().unwrap().problems;
        let told: Vec<u64> = problems.iter().filter_map(|problem| Some(problem.seq?.0)).collect();
        assert_eq!(told, lost);
        assert_eq!(problems.len(), lost.len() + 1, "and the piece itself");
        all += lost.len();
    }
    assert!(all >= records.len());
}

#[test]
fn a_history_whose_bytes_most_records_need_survives_a_damaged_sector() {
    let records = histories(5, 300, 300);
    let image = packed(&records, 1 << 20);
    let pieces = of_kind(&image, FrameKind::Piece);
    let mut starts: Vec<u64> = pieces.iter().map(|(_, header)| header.seq.0).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len() * 2, pieces.len(), "each piece is there twice");
    for (at, _) in pieces {
        let mut damaged = image.clone();
        let sector = (at.start + at.end) / 2 / 512 * 512;
        damaged[sector.max(at.start)..(sector + 512).min(at.end)].fill(0xa5);
        let log = options(1 << 20).open_storage(Arc::new(SimDisk::untracked(damaged))).unwrap();
        assert_eq!(lost(&log, &records), [0; 0]);
        assert!(!log.verify().unwrap().is_clean());
    }
}

#[test]
fn salvage_brings_out_what_slices_have_with_and_without_directories() {
    let records = histories(9, 80, 250);
    let image = packed(&records, 64 << 10);
    let directories = of_kind(&image, FrameKind::Seal);
    for damage in [false, true] {
        let mut damaged = image.clone();
        for (at, header) in directories.iter().filter(|_| damage) {
            let payload = at.start + header.header_len();
            damaged[payload..at.end].fill(0x5a);
        }
        let out = Arc::new(MemoryStorage::new());
        let report = salvage_storage(Arc::new(SimDisk::untracked(damaged)), out.clone()).unwrap();
        assert_eq!(report.records, records.len() as u64, "{report:?}");
        let log = options(64 << 10).open_storage(out).unwrap();
        assert_same(&log, "run", &records);
    }
}

#[test]
fn a_record_longer_than_an_extent_does_not_keep_its_segments_from_being_compacted() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(storage.clone()).unwrap();
    append_all(&log, "first", &[b"x".to_vec()]);
    let mut large: Vec<u8> =
        (0..53).flat_map(|seed| [line(seed, 1_000), noise(seed, 1_000)].concat()).collect();
    large.truncate(105_496);
    append_all(&log, "run", std::slice::from_ref(&large));
    append_all(&log, "small", &[b"x".to_vec()]);
    roll(&log);
    let compacted = log.compact().unwrap();
    assert!(compacted.segments > 1, "{compacted:?}");
    assert!(log.health().is_well(), "{:?}", log.health());
    assert_same(&log, "run", &[large]);
    assert_clean(&log);
}

/// If it took a time that grows with the square of the length, this would take minutes.
#[test]
fn lines_of_dashes_are_packed_as_fast_as_other_text() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(4 << 20).create_storage(storage.clone()).unwrap();
    let dashes = [&[b'-'; 79][..], b"\n"].concat().repeat(50_000);
    append_all(&log, "run", &[dashes.clone(), line(1, 500), dashes.clone()]);
    roll(&log);
    let _ = log.compact().unwrap();
    assert_same(&log, "run", &[dashes.clone(), line(1, 500), dashes]);
}

#[test]
fn a_follower_tells_each_record_that_a_damaged_piece_leaves_from_any_cursor() {
    let records: Vec<Vec<u8>> = (0..30).map(|seed| line(seed, 2_500)).collect();
    let mut image = packed(&records, 64 << 10);
    let (at, _) = of_kind(&image, FrameKind::Piece)[4].clone();
    image[(at.start + at.end) / 2] ^= 1;
    let log = options(64 << 10).open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
    let gone = lost(&log, &records);
    let (mut told, mut damaged) = (Vec::new(), 0);
    let mut follower = log.follow(Follow::Everything, LogCursor::START).unwrap();
    loop {
        match follower.try_next() {
            Ok(Some(event)) => {
                if let LogEventKind::Record(record) = &event.kind
                    && event.run.as_str() == "run"
                {
                    assert!(record.payload() == records[record.seq().0 as usize]);
                    told.push(record.seq().0);
                }
            }
            Ok(None) => break,
            Err(Error::Corrupt(_)) => {
                damaged += 1;
                follower = log.follow(Follow::Everything, follower.cursor()).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    let whole: Vec<u64> = (0..30).filter(|seq| !gone.contains(seq)).collect();
    assert_eq!(told, whole);
    assert_eq!(damaged, gone.len());
}

#[test]
fn a_piece_that_cannot_be_read_is_read_from_its_other_place() {
    let records = histories(5, 300, 300);
    let image = packed(&records, 1 << 20);
    let pieces = of_kind(&image, FrameKind::Piece);
    let half = pieces.len() / 2;
    for (at, _) in [pieces[0].clone(), pieces[half].clone()] {
        let disk = SimDisk::untracked(image.clone());
        let sector = (at.start + at.end) as u64 / 2 / 512 * 512;
        let log = options(1 << 20).tail_writer(TailWriter::Pwrite);
        let log = log.open_storage(Arc::new(disk.clone())).unwrap();
        disk.fail_reads_in(sector..sector + 512, std::io::ErrorKind::Other);
        assert_eq!(lost(&log, &records), [0; 0]);
    }
}

#[test]
fn a_step_takes_as_many_segments_as_become_one_and_records_that_cross_them() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(storage.clone()).unwrap();
    // Records in chunks, in more than 32 segments.
    let large = line(1, 20_000);
    let records: Vec<Vec<u8>> =
        (0..160).map(|seed| [line(seed, 100), large.repeat(2)].concat()).collect();
    append_all(&log, "run", &records);
    roll(&log);
    let _ = log.compact().unwrap();
    assert_same(&log, "run", &records);
    let pieces = of_kind(&storage.to_bytes(), FrameKind::Piece);
    let slices: std::collections::BTreeSet<u64> = pieces.iter().map(|(_, of)| of.lsn.0).collect();
    assert_eq!(slices.len(), 1, "one step has all of it");
    let chunks = of_kind(&storage.to_bytes(), FrameKind::Chunk);
    assert!(chunks.is_empty(), "{}", chunks.len());
}

#[test]
fn erasing_a_run_leaves_no_piece_of_it_and_all_of_others() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(storage.clone()).unwrap();
    let runs = [histories(1, 40, 200), histories(2, 40, 200)];
    append_all(&log, "stays", &runs[0]);
    append_all(&log, "goes", &runs[1]);
    roll(&log);
    let _ = log.compact().unwrap();
    let of = |run: &str| log.run(("agent", run)).unwrap().number();
    let (stays, goes) = (of("stays"), of("goes"));
    let numbers = || -> Vec<_> {
        let pieces = of_kind(&storage.to_bytes(), FrameKind::Piece);
        pieces.iter().map(|(_, header)| header.run_no).collect()
    };
    assert!(numbers().contains(&goes));
    let _ = log.erase_run(("agent", "goes")).unwrap();
    assert!(numbers().contains(&stays) && !numbers().contains(&goes));
    assert_same(&log, "stays", &runs[0]);
    assert_clean(&log);
}
