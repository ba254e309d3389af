//! Compressed ended runs: all ways of reading return the same bytes, damage stays confined, and
//! work is done only once.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::prelude::*;
use runlog::format::frames::frame::{
    FLAG_COMPRESSED, FLAG_PLAIN, FRAME_HEADER_LEN, SegmentKey, frame_len,
};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compacted, Compaction, Compression, ContentType, Durability, Error, LogPosition,
    Metadata, NewRecord, Options, Outcome, Retention, RunLog, RunStatus, Seq, SpaceReturn,
    Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy, SplitMix64};

use runlog_sim::settings;

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
fn noise(seed: u64, len: usize) -> Vec<u8> {
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
        content: (number % 6) as u8,
        at: 1_000 + number as i64 * 7,
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
fn roll(log: &RunLog) {
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
        let mut back: Vec<Rec> = log
            .trace(name)
            .unwrap()
            .rev()
            .map(Result::unwrap)
            .map(|record| rec(record.seq().0, &record))
            .collect();
        back.reverse();
        assert_eq!(&back, expected, "{id} backwards");
        let kept: Vec<runlog::Record> = log.trace(name).unwrap().map(Result::unwrap).collect();
        let mut trace = log.trace(name).unwrap();
        for (record, kept) in expected.iter().zip(&kept) {
            let view = trace.next_view().unwrap().unwrap();
            assert_eq!(view.payload(), record.payload, "{id} views");
            assert_eq!(view.kind().unwrap_or(""), record.kind, "{id} views");
            assert_eq!(view.lsn(), kept.lsn());
            assert_eq!(kept.payload(), record.payload, "{id} kept");
            assert_eq!(&*kept.clone().into_payload(), record.payload, "{id} payloads");
        }
        assert!(trace.next_view().is_none());
        let lsns: Vec<_> = kept.iter().map(runlog::Record::lsn).collect();
        assert!(lsns.is_sorted_by(|one, next| one < next), "{id}");
        let middle = expected.len() as u64 / 2;
        let (low, high) = (Bound::Included(Seq(middle)), Bound::Excluded(Seq(middle + 3)));
        let range = log.trace(name).unwrap().range((low, high)).unwrap();
        let found: Vec<u64> = range.map(|record| record.unwrap().seq().0).collect();
        let wanted = (middle..middle + 3).filter(|seq| *seq < expected.len() as u64);
        assert_eq!(found, wanted.collect::<Vec<_>>(), "{id} range");
        // From both ends to the middle.
        let mut trace = log.trace(name).unwrap();
        let mut count = 0;
        while let Some(record) = if count % 2 == 0 { trace.next() } else { trace.next_back() } {
            let record = record.unwrap();
            assert_eq!(record.payload(), expected[record.seq().0 as usize].payload);
            count += 1;
        }
        assert_eq!(count, expected.len());
        let summary = log.run(name).unwrap();
        assert_eq!(summary.records, expected.len() as u64);
        let bytes: usize = expected.iter().map(|record| record.payload.len()).sum();
        assert_eq!(summary.bytes, bytes as u64, "{id}");
        assert_eq!(summary.status, RunStatus::Completed);
    }
}

fn assert_clean(log: &RunLog) {
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// The headers of all frames in segments, and where they are in the file.
fn frames(image: &[u8]) -> Vec<(usize, SegmentKey, FrameHeader)> {
    let extents = image[EXTENTS_AT as usize..].chunks_exact(EXTENT as usize);
    let mut found = Vec::new();
    for (number, extent) in extents.enumerate() {
        let Ok(header) = SegmentHeader::decode(&extent[..SEGMENT_HEADER_LEN as usize]) else {
            continue;
        };
        let mut at = SEGMENT_HEADER_LEN as usize;
        while let Ok(frame) = FrameHeader::decode(&extent[at..], header.key, at as u32) {
            let start = EXTENTS_AT as usize + number * EXTENT as usize + at;
            found.push((start, header.key, frame));
            at += frame.frame_len();
            if at + FRAME_HEADER_LEN > extent.len() {
                break;
            }
        }
    }
    found
}

fn image(storage: &MemoryStorage) -> Vec<u8> {
    use runlog::storage::Storage;
    let mut image = vec![0; storage.len().unwrap() as usize];
    storage.read_at(0, &mut image).unwrap();
    image
}

pub(crate) fn of_kind(image: &[u8], kind: FrameKind) -> Vec<(usize, SegmentKey, FrameHeader)> {
    frames(image).into_iter().filter(|(_, _, header)| header.kind == kind).collect()
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
    let image = image(&storage);
    assert!(of_kind(&image, FrameKind::Block).len() > 10);
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

fn arbitrary_step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        1 => Just(0),
        6 => 0..400_usize,
        4 => 400..8_000_usize,
        1 => 8_000..40_000_usize,
    ];
    (0..3_usize, "[a-z_]{0,12}", any::<u8>(), any::<i64>(), any::<u64>(), len, 0..5_u8).prop_map(
        |(run, kind, content, at, seed, len, sort)| {
            let payload = if sort == 0 { noise(seed, len) } else { text(seed, len) };
            // Any timestamp, except for the values without a meaning.
            let at = if sort == 1 { at.max(i64::MIN + 1) } else { 1 + i64::from(content) };
            Step { run, kind, content, at, payload }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_appended_comes_back(
        first in prop::collection::vec(arbitrary_step(), 1..60),
        late in prop::collection::vec(arbitrary_step(), 0..12),
        twice in any::<bool>(),
    ) {
        let (storage, log) = create(&options());
        let mut runs = fill(&log, &first);
        if twice {
            log.compact().unwrap();
        }
        for step in &late {
            if runs.contains_key(&run_id(step.run)) {
                append(&log, step, true, &mut runs);
            }
        }
        roll(&log);
        log.compact().unwrap();
        assert_same(&log, &runs);
        assert_clean(&log);
        log.close().unwrap();
        let log = plain().index(false).open_storage(storage).unwrap();
        assert_same(&log, &runs);
    }
}

#[test]
fn runs_in_progress_are_moved_and_never_compressed() {
    let (storage, log) = create(&options());
    let mut runs = Runs::new();
    steps(3, 200, 600).iter().for_each(|step| append(&log, step, false, &mut runs));
    roll(&log);
    let _ = log.compact().unwrap();
    assert!(of_kind(&image(&storage), FrameKind::Block).is_empty());
    // After their end they are compressed, including those that were moved before.
    end(&log, &runs);
    roll(&log);
    let _ = log.compact().unwrap();
    assert!(!of_kind(&image(&storage), FrameKind::Block).is_empty());
    assert_same(&log, &runs);
    assert_clean(&log);
}

#[test]
fn a_run_of_which_only_the_end_is_in_the_tail_is_compressed() {
    let (storage, log) = create(&options());
    let mut runs = Runs::new();
    steps(3, 200, 600).iter().for_each(|step| append(&log, step, false, &mut runs));
    roll(&log);
    end(&log, &runs);
    let _ = log.compact().unwrap();
    assert!(!of_kind(&image(&storage), FrameKind::Block).is_empty());
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
fn a_trace_goes_on_where_it_was_while_its_run_is_compressed_and_deleted() {
    let (_, log) = create(&options());
    let runs = fill(&log, &steps(3, 150, 500));
    let name = ("agent", "run-1");
    let mut early = log.trace(name).unwrap();
    let first: Vec<Rec> =
        early.by_ref().take(70).map(Result::unwrap).map(|r| rec(r.seq().0, &r)).collect();
    let _ = log.compact().unwrap();
    let mut blocks = log.trace(name).unwrap();
    let kept = blocks.next().unwrap().unwrap();
    let _ = log.delete_run(name).unwrap();
    log.reclaim().unwrap();
    let _ = log.compact().unwrap();
    let rest = early.map(Result::unwrap).map(|r| rec(r.seq().0, &r));
    assert_eq!(first.into_iter().chain(rest).collect::<Vec<_>>(), runs["run-1"]);
    let others = blocks.map(Result::unwrap).map(|r| rec(r.seq().0, &r));
    assert_eq!(others.collect::<Vec<_>>(), runs["run-1"][1..]);
    assert_eq!(kept.payload(), runs["run-1"][0].payload);
}

#[test]
fn large_records_are_compressed_chunk_by_chunk() {
    let (storage, log) = create(&options());
    let mut steps = steps(2, 6, 60_000);
    steps[3].payload = noise(9, 50_000);
    let runs = fill(&log, &steps);
    let stored = log.run(("agent", "run-0")).unwrap().bytes;
    let _ = log.compact().unwrap();
    let image = image(&storage);
    let chunks = of_kind(&image, FrameKind::Chunk);
    let packed = |header: &FrameHeader| header.flags & FLAG_COMPRESSED != 0;
    assert!(chunks.iter().filter(|(_, _, header)| packed(header)).count() > 20);
    let plain: Vec<_> = chunks.iter().filter(|(_, _, header)| !packed(header)).collect();
    assert!(!plain.is_empty() && plain.iter().all(|(_, _, header)| header.flags & FLAG_PLAIN != 0));
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
    assert!(before.live_bytes < 600_000, "{live:?} {before:?}");
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
fn a_store_that_was_compressed_goes_on_without_the_option() {
    let (storage, log) = create(&options());
    let mut runs = fill(&log, &steps(4, 80, 600));
    let _ = log.compact().unwrap();
    log.close().unwrap();
    let log = plain().open_storage(storage.clone()).unwrap();
    let mut more = steps(3, 60, 500);
    more.iter_mut().for_each(|step| step.run += 10);
    runs.extend(fill(&log, &more));
    let blocks = of_kind(&image(&storage), FrameKind::Block).len();
    let _ = log.compact().unwrap();
    assert_eq!(of_kind(&image(&storage), FrameKind::Block).len(), blocks);
    // Dead runs are freed, and blocks are moved unchanged.
    for run in [0, 2, 11] {
        let _ = log.delete_run(("agent", run_id(run).as_str())).unwrap();
        runs.remove(&run_id(run));
    }
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
    assert_clean(&log);
    log.close().unwrap();
    let log = options().open_storage(storage).unwrap();
    let _ = log.compact().unwrap();
    assert_same(&log, &runs);
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
    let left = frames(&image(&storage));
    let blocks = left.iter().filter(|(_, _, header)| header.kind == FrameKind::Block);
    let numbers: std::collections::BTreeSet<_> =
        blocks.map(|(_, _, header)| number(header)).collect();
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
    (image(&storage), runs)
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
    assert!(blocks.len() >= 4);
    let (start, _, header) = blocks[1];
    let first = header.seq.0;
    let records: Vec<u64> = (first..first + u64::from(header.extra)).collect();
    let end = start + FRAME_HEADER_LEN + header.payload_len as usize;
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
    assert!(costly > 200);
}

/// Replaces the payload of a block's frame, and corrects all checks of the frame.
fn with_payload(image: &[u8], block: (usize, SegmentKey, FrameHeader), payload: &[u8]) -> Vec<u8> {
    let (start, key, mut header) = block;
    let mut image = image.to_vec();
    assert_eq!(frame_len(payload.len()), header.frame_len(), "what follows stays where it is");
    header.payload_len = payload.len() as u32;
    header.payload_crc = crc32fast_of(payload);
    let at = LogPosition { segment: key.id, offset: header.position.offset };
    assert_eq!(header.position, at);
    image[start..start + FRAME_HEADER_LEN].copy_from_slice(&header.encode(key.salt));
    let end = start + FRAME_HEADER_LEN + payload.len();
    image[start + FRAME_HEADER_LEN..end].copy_from_slice(payload);
    image
}

/// The crc32 of the format.
fn crc32fast_of(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn a_block_that_lies_under_valid_checks_costs_its_records_at_most() {
    let (image, runs) = two_runs();
    let block = of_kind(&image, FrameKind::Block)[1];
    let (start, _, header) = block;
    let from = start + FRAME_HEADER_LEN;
    let whole = image[from..from + header.payload_len as usize].to_vec();
    let count = usize::try_from(header.extra).unwrap();
    let stride = stride();
    for bit in 0..whole.len() * 8 {
        if bit > 64 * 8 && bit % stride != 0 {
            continue;
        }
        let mut payload = whole.clone();
        payload[bit / 8] ^= 1 << (bit % 8);
        if bit < 36 * 8 {
            // The bytes before it have their own check.
            let check = crc32fast_of(&payload[..36]);
            payload[36..40].copy_from_slice(&check.to_le_bytes());
        }
        let image = with_payload(&image, block, &payload);
        let log = plain().open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
        let gone: usize = runs.iter().map(|(id, expected)| lost(&log, id, expected).len()).sum();
        let problems = log.verify().unwrap().problems;
        // A bit that zstd does not use changes nothing.
        assert!(gone <= count, "bit {bit}");
        assert_eq!(gone > 0, problems.iter().any(|problem| problem.seq.is_some()), "bit {bit}");
        // As a victim it is moved unchanged, or stays; nothing else is lost.
        let _ = log.delete_run(("agent", "run-1")).unwrap();
        let _ = log.compact().unwrap();
        assert!(lost(&log, "run-0", &runs["run-0"]).len() <= count, "bit {bit}");
    }
}

#[test]
fn damaged_directories_of_compressed_segments_are_rebuilt() {
    let (mut image, runs) = two_runs();
    let seals = of_kind(&image, FrameKind::Seal);
    let with_blocks: Vec<_> =
        of_kind(&image, FrameKind::Block).iter().map(|(_, key, _)| key.id).collect();
    let mut damaged = 0;
    for (start, key, _) in seals {
        if with_blocks.contains(&key.id) {
            image[start + FRAME_HEADER_LEN + 70] ^= 1;
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    for index in [true, false] {
        let disk = Arc::new(SimDisk::untracked(image.clone()));
        let log = plain().index(index).open_storage(disk).unwrap();
        assert_same(&log, &runs);
    }
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
        assert!(image(&storage).is_empty());
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
