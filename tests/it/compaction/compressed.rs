//! Compressed ended runs: all ways of reading return the same bytes, damage stays confined, and
//! work is done only once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use runlog::format::frames::frame::FLAG_PLAIN;
use runlog::format::{FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compacted, Compaction, Compression, ContentType, Durability, Error, Metadata, NewRecord,
    Options, Outcome, Retention, RunLog, RunStatus, Seq, SpaceReturn, Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy, SplitMix64};

use runlog_sim::settings;

use crate::support::frames::{all_frames, of_kind};

const EXTENT: u64 = 64 << 10;
const ZSTD: Compression = Compression::Zstd { level: 3 };
const WORDS: [&str; 12] = [
    "the tool ",
    "answers ",
    "{\"path\":\"src/lib.rs\"}",
    "error: ",
    "expected ",
    "found ",
    "0x2f ",
    "\n    ",
    "and ",
    "again ",
    "plan ",
    "step ",
];

fn plain() -> Options {
    let environment = runlog::env::Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(3)));
    let by_hand = Compaction::new().automatic(false);
    Options::new()
        .extent_size(EXTENT)
        .background(false)
        .compaction(by_hand)
        .environment(environment)
}

fn options() -> Options {
    plain().compression(ZSTD)
}

fn create(options: &Options) -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    (storage, log)
}

/// Text as agents write it: with repeated words.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let mut text = Vec::new();
    while text.len() < len {
        text.extend_from_slice(WORDS[random.index(WORDS.len())].as_bytes());
        if random.below(8) == 0 {
            text.extend_from_slice(format!("{:x} ", random.next_u64()).as_bytes());
        }
    }
    text.truncate(len);
    text
}

/// Bytes that compression cannot shorten.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(seed).fill(&mut bytes);
    bytes
}

/// All that a record is.
#[derive(Debug, Clone, PartialEq)]
struct Rec {
    seq: u64,
    kind: String,
    content: u8,
    at: i64,
    late: bool,
    payload: Vec<u8>,
}

/// Runs by their ids.
type Runs = BTreeMap<String, Vec<Rec>>;

/// One append: the run, and the record.
#[derive(Debug, Clone)]
struct Step {
    run: usize,
    kind: String,
    content: u8,
    at: i64,
    payload: Vec<u8>,
}

fn run_id(run: usize) -> String {
    format!("run-{run}")
}

fn append(log: &RunLog, step: &Step, late: bool, runs: &mut Runs) {
    let id = run_id(step.run);
    let record = NewRecord::new(&step.payload)
        .kind(&step.kind)
        .content_type(ContentType::from_code(step.content))
        .at(Timestamp(step.at));
    let _ = log.append_to("agent", &id, &record, Allow::everything()).unwrap();
    let records = runs.entry(id).or_default();
    records.push(Rec {
        seq: records.len() as u64,
        kind: step.kind.clone(),
        content: step.content,
        at: step.at,
        late,
        payload: step.payload.clone(),
    });
}

fn end(log: &RunLog, runs: &Runs) {
    for id in runs.keys() {
        let done = Outcome::completed().durability(Durability::Process);
        let _ = log.end_run("agent", id, &done, Allow::everything()).unwrap();
    }
}

/// This many runs with this many records each, interleaved.
fn steps(runs: usize, records: usize, len: usize) -> Vec<Step> {
    let step = |number: usize| Step {
        run: number % runs,
        kind: ["turn", "", "tool_call"][number % 3].to_owned(),
        content: number as u8,
        at: if number % 50 == 7 { i64::MIN + 1 } else { 1_000 + number as i64 * 7 },
        payload: text(number as u64, len / 2 + number * 31 % len),
    };
    (0..runs * records).map(step).collect()
}

/// Writes these, ends all runs, and fills the segment.
fn fill(log: &RunLog, steps: &[Step]) -> Runs {
    let mut runs = Runs::new();
    steps.iter().for_each(|step| append(log, step, false, &mut runs));
    end(log, &runs);
    roll(log);
    runs
}

/// Writes until everything that was written before is in full segments that the catalog covers, and
/// leaves nothing else.
pub(super) fn roll(log: &RunLog) {
    let full = log.stats().unwrap().end.segment;
    let filler = noise(1, 6_000);
    while log.stats().unwrap().end.segment <= full {
        let _ = log.append_to("filler", "filler", &NewRecord::new(&filler), Allow::everything());
    }
    let done = Outcome::completed().durability(Durability::Process);
    let _ = log.end_run("filler", "filler", &done, Allow::everything()).unwrap();
    let _ = log.delete_run(("filler", "filler")).unwrap();
    log.checkpoint().unwrap();
}

fn rec(seq: u64, record: &runlog::Record) -> Rec {
    Rec {
        seq,
        kind: record.kind().unwrap_or("").to_owned(),
        content: record.content_type().code(),
        at: record.timestamp().0,
        late: record.is_late(),
        payload: record.payload().to_vec(),
    }
}

fn read(log: &RunLog, id: &str) -> Vec<Rec> {
    let records = log.trace(("agent", id)).unwrap().map(Result::unwrap);
    records.map(|record| rec(record.seq().0, &record)).collect()
}

/// Reads all runs in every way there is.
fn assert_same(log: &RunLog, runs: &Runs) {
    for (id, expected) in runs {
        let name = ("agent", id.as_str());
        assert_eq!(&read(log, id), expected, "{id}");
        let back = log.trace(name).unwrap().rev().map(Result::unwrap);
        let back: Vec<Rec> = back.map(|record| rec(record.seq().0, &record)).collect();
        assert!(back.iter().rev().eq(expected), "{id} backwards");
        let mut trace = log.trace(name).unwrap();
        for record in expected {
            let view = trace.next_view().unwrap().unwrap();
            assert_eq!(view.payload(), record.payload, "{id} views");
            assert_eq!(view.kind().unwrap_or(""), record.kind, "{id} views");
        }
        assert!(trace.next_view().is_none());
        let middle = expected.len() / 2;
        let range = Seq(middle as u64)..Seq(middle as u64 + 3);
        let range = log.trace(name).unwrap().range(range).unwrap().map(Result::unwrap);
        let range: Vec<Rec> = range.map(|record| rec(record.seq().0, &record)).collect();
        assert!(range.iter().eq(expected.iter().skip(middle).take(3)), "{id} range");
        let summary = log.run(name).unwrap();
        let bytes: usize = expected.iter().map(|record| record.payload.len()).sum();
        let wanted = (expected.len() as u64, bytes as u64, RunStatus::Completed);
        assert_eq!((summary.records, summary.bytes, summary.status), wanted, "{id}");
    }
}

fn assert_clean(log: &RunLog) {
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn ended_runs_become_blocks_and_read_as_before_in_every_way() {
    let (storage, log) = create(&options());
    let runs = fill(&log, &steps(5, 120, 600));
    assert_same(&log, &runs);
    let before = log.stats().unwrap().live_bytes;
    let done = log.compact().unwrap();
    assert!(done.outputs < done.segments, "{done:?}");
    assert!(log.stats().unwrap().live_bytes < before / 2);
    let image = storage.to_bytes();
    let packed = [FrameKind::Block, FrameKind::Piece].map(|kind| of_kind(&image, kind).len());
    assert!(packed[0] >= 5 && packed[1] > 10, "{packed:?}");
    assert_same(&log, &runs);
    assert_clean(&log);
    // Also with nothing in memory, without an index, and without the option.
    log.close().unwrap();
    for options in [options(), plain(), plain().index(false), plain()] {
        let log = options.open_storage(storage.clone()).unwrap();
        assert_same(&log, &runs);
        assert_clean(&log);
        log.close().unwrap();
    }
}

#[test]
fn runs_are_moved_in_progress_and_compressed_once_their_end_is_in_the_tail() {
    let (storage, log) = create(&options());
    let mut runs = Runs::new();
    steps(3, 200, 600).iter().for_each(|step| append(&log, step, false, &mut runs));
    roll(&log);
    let _ = log.compact().unwrap();
    assert!(of_kind(&storage.to_bytes(), FrameKind::Block).is_empty());
    end(&log, &runs);
    let _ = log.compact().unwrap();
    assert!(!of_kind(&storage.to_bytes(), FrameKind::Block).is_empty());
    assert_same(&log, &runs);
    // Late records follow the blocks.
    for late in steps(3, 30, 600) {
        append(&log, &late, true, &mut runs);
    }
    assert_same(&log, &runs);
    roll(&log);
    assert_same(&log, &runs);
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
    assert_clean(&log);
}

#[test]
fn large_records_are_compressed_and_what_does_not_shrink_stays() {
    let (storage, log) = create(&options());
    let mut steps = steps(2, 6, 60_000);
    steps[3].payload = noise(9, 50_000);
    let runs = fill(&log, &steps);
    let stored = log.run(("agent", "run-0")).unwrap().bytes;
    let _ = log.compact().unwrap();
    let image = storage.to_bytes();
    let chunks = of_kind(&image, FrameKind::Chunk);
    // Those of the record that is noise; 11 others were in chunks, too.
    let noise: usize = chunks.iter().map(|(_, header)| header.payload_len as usize).sum();
    assert_eq!(noise, 50_000);
    assert!(chunks.iter().all(|(_, header)| header.flags & FLAG_PLAIN != 0));
    assert_eq!(log.run(("agent", "run-0")).unwrap().bytes, stored);
    assert_same(&log, &runs);
    assert_clean(&log);
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
}

#[test]
fn what_was_compressed_or_found_not_worth_it_is_left_alone() {
    // A segment that only moves to the front of the file counts as work too.
    let keep = Compaction::new().automatic(false).space_return(SpaceReturn::Keep);
    let options = || options().compaction(keep);
    let (storage, log) = create(&options());
    let mut steps = steps(4, 150, 500);
    for (number, step) in steps.iter_mut().enumerate().filter(|(number, _)| number % 4 == 3) {
        // One of the four runs is incompressible.
        step.payload = noise(number as u64, 700);
    }
    let runs = fill(&log, &steps);
    assert_ne!(log.compact().unwrap(), Compacted::default());
    for _ in 0..3 {
        assert_eq!(log.compact().unwrap(), Compacted::default());
    }
    log.close().unwrap();
    let log = options().open_storage(storage.clone()).unwrap();
    assert_eq!(log.compact().unwrap(), Compacted::default());
    assert_same(&log, &runs);
    // A rebuilt directory says the same.
    assert_clean(&log);
}

#[test]
fn full_segments_are_compressed_by_themselves_and_once() {
    let (_, log) = create(&options().compaction(Compaction::new()));
    let mut all = Runs::new();
    let mut live = Vec::new();
    for turn in 0..12 {
        let mut steps = steps(3, 60, 600);
        steps.iter_mut().for_each(|step| step.run += 3 * turn);
        all.extend(fill(&log, &steps));
        log.reclaim().unwrap();
        let stats = log.stats().unwrap();
        live.push(stats.log_extents);
    }
    // 12 x 180 records of 600 bytes are 1.3 MB: 20 extents if they are not compressed.
    let (before, written) =
        (log.stats().unwrap(), |log: &RunLog| log.stats().unwrap().io.bytes_written);
    assert!(before.live_bytes < 700_000, "{live:?} {before:?}");
    let turns: Vec<u64> = (0..8)
        .map(|_| {
            let bytes = written(&log);
            log.reclaim().unwrap();
            log.checkpoint().unwrap();
            written(&log) - bytes
        })
        .collect();
    assert!(turns[4..].iter().all(|bytes| *bytes < 16 << 10), "over and over: {turns:?}");
    assert_same(&log, &all);
    assert_clean(&log);
}

#[test]
fn policies_count_what_runs_take_in_the_file_and_their_space_comes_back() {
    let (_, log) = create(&options());
    let runs = fill(&log, &steps(8, 60, 600));
    let _ = log.compact().unwrap();
    let live = log.stats().unwrap().live_bytes;
    // The run in progress counts too.
    let kept = log.gc(&Retention::new().max_bytes(live / 2)).unwrap();
    assert!((3..=6).contains(&kept.plan.evict.len()), "{kept:?}");
    log.reclaim().unwrap();
    let _ = log.compact().unwrap();
    assert!(log.stats().unwrap().live_bytes < live * 3 / 4);
    let left: Runs =
        runs.into_iter().filter(|(id, _)| log.trace(("agent", id.as_str())).is_ok()).collect();
    assert_eq!(left.len(), 8 - kept.plan.evict.len());
    assert_same(&log, &left);
    assert_clean(&log);
}

#[test]
fn an_erased_run_leaves_nothing_and_its_neighbours_everything() {
    let (storage, log) = create(&options());
    let mut runs = fill(&log, &steps(6, 40, 600));
    let _ = log.compact().unwrap();
    let _ = log.erase_run(("agent", "run-3")).unwrap();
    runs.remove("run-3");
    assert_same(&log, &runs);
    log.close().unwrap();
    let number = |header: &FrameHeader| header.run_no;
    let left = all_frames(&storage.to_bytes());
    let blocks = left.iter().filter(|(_, header)| header.kind == FrameKind::Block);
    let numbers: std::collections::BTreeSet<_> = blocks.map(|(_, header)| number(header)).collect();
    assert_eq!(numbers.len(), 5, "a block has records of one run");
}

/// The distance of the bits that are flipped.
fn stride() -> usize {
    usize::try_from(settings::stride(997, 397)).unwrap().min(61)
}

/// A small store with one run in blocks, another one beside it; its file, and what is in it.
fn two_runs() -> (Vec<u8>, Runs) {
    let (storage, log) = create(&options());
    let runs = fill(&log, &steps(2, 90, 400));
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
    log.close().unwrap();
    (storage.to_bytes(), runs)
}

/// Reads a run of a damaged store: records must be right, and missing ones must be reported.
fn lost(log: &RunLog, id: &str, expected: &[Rec]) -> Vec<u64> {
    let mut lost = Vec::new();
    for item in log.trace(("agent", id)).unwrap() {
        match item {
            Ok(record) => {
                assert_eq!(rec(record.seq().0, &record), expected[record.seq().0 as usize]);
            }
            Err(Error::Corrupt(corruption)) => {
                assert_eq!(corruption.run.as_ref().map(runlog::RunId::as_str), Some(id));
                lost.push(corruption.seq.expect("blocks say which records they have").0);
            }
            Err(other) => panic!("{other}"),
        }
    }
    lost
}

#[test]
fn each_flipped_bit_of_a_block_costs_its_records_and_is_told_of_each_of_them() {
    let (image, runs) = two_runs();
    let blocks = of_kind(&image, FrameKind::Block);
    assert!(blocks.len() >= 2);
    let (Range { start, .. }, header) = blocks[1].clone();
    let first = header.seq.0;
    let records: Vec<u64> = (first..first + u64::from(header.extra)).collect();
    let end = start + header.header_len() + header.payload_len as usize;
    let mut costly = 0;
    let stride = stride();
    for bit in (start * 8..end * 8).step_by(stride) {
        let mut flipped = image.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let log = plain().open_storage(Arc::new(SimDisk::untracked(flipped))).unwrap();
        let mut gone: Vec<(String, Vec<u64>)> = Vec::new();
        for (id, expected) in &runs {
            let lost = lost(&log, id, expected);
            if !lost.is_empty() {
                gone.push((id.clone(), lost));
            }
        }
        let [(id, seqs)] = gone.as_slice() else { panic!("bit {bit}: {gone:?}") };
        assert_eq!(seqs, &records, "bit {bit} of {id}");
        let problems = log.verify().unwrap().problems;
        let told = problems.iter().filter_map(|problem| Some(problem.seq?.0));
        assert_eq!(told.collect::<Vec<_>>(), records, "bit {bit}");
        costly += 1;
    }
    assert!(costly > 100);
}

#[test]
fn the_space_of_real_sessions_comes_down_to_less_than_a_third() {
    let (_, log) = create(&options().extent_size(1 << 20));
    let mut steps = steps(6, 400, 1_500);
    for step in steps.iter_mut().step_by(40) {
        step.payload = text(step.at as u64, 40_000);
    }
    let mut runs = Runs::new();
    steps.iter().for_each(|step| append(&log, step, false, &mut runs));
    end(&log, &runs);
    roll(&log);
    let _ = log.compact().unwrap();
    let bytes: usize = runs.values().flatten().map(|record| record.payload.len()).sum();
    let stats = log.stats().unwrap();
    let live = stats.live_bytes;
    assert!(live * 10 < bytes as u64 * 3, "{live} of {bytes}");
    assert_same(&log, &runs);
}

#[test]
fn levels_that_are_none_are_refused_and_nothing_is_touched() {
    for level in [0, -1, 20] {
        let storage = Arc::new(MemoryStorage::new());
        let options = plain().compression(Compression::Zstd { level });
        let error = options.create_storage(storage.clone()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(storage.to_bytes().is_empty());
    }
    let metadata = Metadata::new(b"kept");
    let (_, log) = create(&plain().compression(Compression::Zstd { level: 19 }));
    let _ = log.start_run("agent", "run", metadata).unwrap();
}

#[test]
fn what_does_not_become_fewer_segments_is_tried_and_not_written() {
    let (_, log) = create(&options().compaction(Compaction::new()));
    let mut steps = steps(4, 120, 600);
    for (number, step) in steps.iter_mut().enumerate() {
        step.payload = noise(number as u64, 600);
    }
    let runs = fill(&log, &steps);
    // The work that the deletion of the filler leaves.
    for _ in 0..4 {
        log.reclaim().unwrap();
    }
    let written = |log: &RunLog| log.stats().unwrap().io.bytes_written;
    let bytes = written(&log);
    for _ in 0..4 {
        log.reclaim().unwrap();
        log.checkpoint().unwrap();
    }
    assert!(written(&log) - bytes < EXTENT / 2, "{}", written(&log) - bytes);
    assert_same(&log, &runs);
    // An explicit request orders and marks it.
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
    assert_clean(&log);
}
