//! The bytes of format version 2, pinned in five ways.
//!
//! - `tests/golden/v2.runlog` is a whole store without an index. Every later version must give the
//!   answers about it that are written down here, and this version must still produce exactly
//!   these bytes. Only the owner page is not compared: it names the process and the machine.
//! - `tests/golden/v2-index.pages` is the same store with an index, as a list of the pages that are
//!   not zero. Its redb pages are read, not compared.
//! - `tests/golden/v2-torn.pages` is a small store that was not closed, with a record that a crash
//!   tore and two whole ones behind it. Every later version must recover from it in the same way.
//! - `tests/golden/v2-slices.pages` is a compacted store with a slice, which every later version
//!   must read. The bytes are up to the version of the encoder that wrote them.
//! - The blocks marked `hex` in `docs/FORMAT.md` are compared with a store that is made here.
//!
//! After a wanted change of the format, `RUNLOG_BLESS=1 cargo test --test it format_golden` writes
//! all of them anew. The literal answers below are changed by hand.

mod hex;
mod story;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use runlog::env::Environment;
use runlog::format::FrameKind;
use runlog::format::map::owner;
use runlog::storage::MemoryStorage;
use runlog::{
    Activity, Allow, Compression, ContentType, Durability, Error, IndexRecovery, LogPosition,
    Metadata, NewRecord, Options, Outcome, Owner, RunLog, RunQuery, RunStatus, SegmentId, Seq,
    Timestamp,
};
use runlog_sim::{SimClock, SimEntropy};

use self::hex::with_bytes_of;
use self::story::{ODD, Told, story};
use crate::support::frames::of_kind;
use crate::support::told::Told as Observed;

/// The clock of the golden stores starts here: 2026-01-01T00:00:00Z.
const BEGIN: i64 = 1_767_225_600_000_000_000;
const MILLISECOND: i64 = 1_000_000;

/// The length of the pages that lists of pages are made of, and of those in front of the extents.
const PAGE: usize = 4096;

/// Where the torn record of the torn store is.
const TORN_AT: u32 = 344;

/// What the store says of each run: agent, run, status, whether it was started; when it started,
/// ended and was last written to, in milliseconds after the beginning; records, late records,
/// payload bytes; and the crc32 of all that its trace gives. Newest first.
type Answer =
    (&'static str, &'static str, RunStatus, bool, (i64, Option<i64>, i64), (u64, u64, u64), u32);

#[rustfmt::skip]
const ANSWERS: [Answer; 6] = [
    ("coder", "imported", RunStatus::Interrupted, false,
        (11, Some(851), 851), (2, 0, 3), 1_167_856_288),
    ("coder", "long", RunStatus::Completed, true,
        (6, Some(853), 853), (120, 0, 84_000), 3_207_085_208),
    (ODD, ODD, RunStatus::Cancelled, true,
        (4, Some(850), 850), (1, 0, 2), 3_887_279_160),
    ("coder", "run-1", RunStatus::InProgress, true,
        (3, None, 30), (4, 0, 36_392), 2_352_981_051),
    ("planner", "batched", RunStatus::Failed, true,
        (2, Some(848), 849), (4, 1, 9_015), 2_652_932_141),
    ("planner", "run-1", RunStatus::Completed, true,
        (1, Some(847), 847), (7, 0, 56), 3_650_427_633),
];

struct World {
    clock: SimClock,
    options: Options,
}

impl World {
    fn new(seed: u64, index: bool) -> Self {
        let clock = SimClock::new(Timestamp(BEGIN));
        let environment = Environment::system()
            .clock(Arc::new(clock.clone()))
            .entropy(Arc::new(SimEntropy::new(seed)));
        let options = Options::new()
            .extent_size(64 << 10)
            .background(false)
            .index(index)
            .environment(environment);
        Self { clock, options }
    }

    fn tick(&self) {
        self.clock.advance(MILLISECOND);
    }
}

fn record((kind, content, payload, _): &Told) -> NewRecord<'_> {
    NewRecord::new(payload).kind(kind).content_type(ContentType::from_code(*content))
}

/// Writes the story: all starts, then the records of all runs in turn, ends, late records, and the
/// deletion.
fn write_story(log: &RunLog, world: &World) {
    let story = story();
    for tale in &story {
        if let Some((payload, content)) = tale.metadata {
            world.tick();
            let metadata = Metadata::new(payload).content_type(ContentType::from_code(content));
            log.start_run(tale.agent, tale.run, metadata).unwrap();
        }
    }
    let longest = story.iter().map(|tale| tale.records.len()).max().unwrap();
    for turn in 0..longest {
        for tale in &story {
            let allow = Allow::nothing().unstarted(tale.metadata.is_none());
            world.tick();
            if tale.in_one_batch {
                let batch: Vec<_> =
                    tale.records.iter().filter(|told| !told.3).map(record).collect();
                if turn == 0 {
                    let _ = log.append_batch_to(tale.agent, tale.run, &batch, allow).unwrap();
                }
            } else if let Some(told) = tale.records.get(turn) {
                let _ = log.append_to(tale.agent, tale.run, &record(told), allow).unwrap();
            }
        }
    }
    for tale in &story {
        if let Some((status, payload, content)) = tale.outcome {
            world.tick();
            let outcome =
                Outcome::new(status).bytes(payload).content_type(ContentType::from_code(content));
            let _ = log.end_run(tale.agent, tale.run, &outcome, Allow::nothing()).unwrap();
        }
        for told in tale.records.iter().filter(|told| told.3) {
            world.tick();
            let allow = Allow::nothing().after_end(true);
            let _ = log.append_to(tale.agent, tale.run, &record(told), allow).unwrap();
        }
    }
    world.tick();
    log.delete_run(("planner", "doomed")).unwrap();
}

/// The golden store as this version writes it.
fn write_golden(index: bool) -> Vec<u8> {
    let world = World::new(1, index);
    let storage = Arc::new(MemoryStorage::new());
    let log = world.options.create_storage(storage.clone()).unwrap();
    write_story(&log, &world);
    log.close().unwrap();
    with_fixed_owner(storage.to_bytes())
}

/// The owner page names the process and the machine, so a fixed one stands in for it.
fn with_fixed_owner(mut bytes: Vec<u8>) -> Vec<u8> {
    let page = owner::encode(&Owner::new(1, "golden", Timestamp(BEGIN)));
    bytes[3 * PAGE..4 * PAGE].copy_from_slice(&page);
    bytes
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

const GOLDEN: &str = "tests/golden/v2.runlog";
const GOLDEN_PAGES: &str = "tests/golden/v2-index.pages";
const SLICES_PAGES: &str = "tests/golden/v2-slices.pages";
const TORN_PAGES: &str = "tests/golden/v2-torn.pages";

fn blessing() -> bool {
    runlog_sim::settings::blesses()
}

/// A golden file; written anew first if that is asked for.
fn golden(path: &str) -> Vec<u8> {
    static BLESS: Once = Once::new();
    BLESS.call_once(|| {
        if blessing() {
            std::fs::write(in_repository(GOLDEN), write_golden(false)).unwrap();
            std::fs::write(in_repository(GOLDEN_PAGES), to_pages(&write_golden(true))).unwrap();
            std::fs::write(in_repository(SLICES_PAGES), to_pages(&write_slices())).unwrap();
            std::fs::write(in_repository(TORN_PAGES), to_pages(&write_torn())).unwrap();
        }
    });
    std::fs::read(in_repository(path)).unwrap()
}

/// Everything that a trace gives, as one number.
fn digest(log: &RunLog, agent: &str, run: &str) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    for record in log.trace((agent, run)).unwrap() {
        let record = record.unwrap();
        crc.update(&record.seq().0.to_le_bytes());
        crc.update(&record.lsn().0.to_le_bytes());
        crc.update(&record.timestamp().0.to_le_bytes());
        crc.update(&[record.content_type().code(), record.is_late().into()]);
        crc.update(record.kind().unwrap_or("").as_bytes());
        crc.update(record.payload());
    }
    crc.finalize()
}

/// Compares everything that the store says with the story and with [`ANSWERS`].
fn check_answers(log: &RunLog) {
    let since = |at: Timestamp| (at.0 - BEGIN) / MILLISECOND;
    let page = log.list_runs(&RunQuery::new().limit(100)).unwrap();
    let found: Vec<_> = page
        .runs
        .iter()
        .map(|run| {
            (
                run.agent.as_str(),
                run.run.as_str(),
                run.status,
                run.started,
                (since(run.started_at), run.ended_at.map(since), since(run.last_at)),
                (run.records, run.late_records, run.bytes),
                digest(log, run.agent.as_str(), run.run.as_str()),
            )
        })
        .collect();
    assert_eq!(found, ANSWERS);
    for tale in story().iter().filter(|tale| tale.run != "doomed") {
        let key = (tale.agent, tale.run);
        let told: Vec<Told> = log
            .trace(key)
            .unwrap()
            .zip(0..)
            .map(|(record, seq)| {
                let record = record.unwrap();
                assert_eq!(record.seq(), Seq(seq));
                let known = tale.records.iter().map(|told| told.0);
                let kind = known.into_iter().find(|kind| *kind == record.kind().unwrap_or(""));
                let content = record.content_type().code();
                (kind.unwrap(), content, record.payload().to_vec(), record.is_late())
            })
            .collect();
        assert!(told == tale.records, "records of {key:?}");
        let metadata = log.metadata(key).unwrap();
        let expected = tale.metadata.map(|(bytes, code)| (code, bytes.to_vec()));
        let metadata = metadata.map(|said| (said.content_type().code(), said.into_payload()));
        assert_eq!(metadata, expected, "metadata of {key:?}");
        let outcome = log.outcome(key).unwrap();
        let outcome = outcome
            .as_ref()
            .map(|outcome| (outcome.status(), outcome.payload(), outcome.content_type().code()));
        assert_eq!(outcome, tale.outcome);
    }
    let agents: Vec<String> =
        log.agents(None, 10).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(agents, [ODD, "coder", "planner"]);
    assert!(matches!(log.agent_of("run-1"), Err(Error::Ambiguous { .. })));
    assert_eq!(log.agent_of("long").unwrap(), "coder");
    assert!(matches!(log.run(("planner", "doomed")), Err(Error::RunNotFound { .. })));
    let open = log
        .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10))
        .unwrap()
        .runs;
    assert_eq!(open.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), ["run-1"]);
    let coders = log.list_runs(&RunQuery::new().agent("coder").limit(10)).unwrap().runs;
    let coders: Vec<&str> = coders.iter().map(|run| run.run.as_str()).collect();
    assert_eq!(coders, ["imported", "long", "run-1"]);
    let stats = log.stats().unwrap();
    assert_eq!((stats.sealed_segments, stats.runs, stats.deleted_runs), (2, 6, 1));
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Opens a copy of the golden store, checks it, writes to it, and checks what was written.
fn check_copy(bytes: &[u8], options: &Options, index: IndexRecovery) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.runlog");
    std::fs::write(&path, bytes).unwrap();
    let log = options.open_existing(&path).unwrap();
    let report = log.recovery_report();
    assert!(report.clean && report.is_clean(), "{report}");
    assert_eq!(report.index, index);
    check_answers(&log);
    let run = log.writer(("coder", "run-1")).unwrap();
    assert_eq!(run.append(b"more").unwrap().seq, Seq(4));
    drop(run);
    log.close().unwrap();
    let log = options.open_existing(&path).unwrap();
    assert_eq!(log.trace(("coder", "run-1")).unwrap().count(), 5);
    assert_eq!(log.adopt_orphans().unwrap().runs.len(), 1);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn the_golden_store_of_version_2_gives_the_answers_that_are_written_down() {
    let bytes = golden(GOLDEN);
    for index in [true, false] {
        check_copy(&bytes, &Options::new().index(index).background(false), IndexRecovery::None);
    }
    check_copy(&bytes, &Options::new(), IndexRecovery::None);
}

#[test]
fn the_golden_store_with_an_index_gives_the_same_answers() {
    let bytes = from_pages(&golden(GOLDEN_PAGES));
    check_copy(&bytes, &Options::new().background(false), IndexRecovery::Kept);
    check_copy(&bytes, &Options::new().index(false), IndexRecovery::Dropped);
    // Whether it was kept is decided when it is opened.
    let told = Arc::new(Observed::default());
    let storage = Arc::new(MemoryStorage::from_bytes(bytes));
    let options = Options::new().background(false).observer(told.clone());
    let log = options.open_storage(storage).unwrap();
    log.checkpoint().unwrap();
    check_answers(&log);
    assert!(log.stats().unwrap().index_open);
    let ends = told.take();
    assert!(ends.iter().all(|end| end.activity != Activity::IndexRebuild && end.result.is_ok()));
}

#[test]
fn this_version_still_writes_the_golden_store_byte_for_byte() {
    let written = write_golden(false);
    assert_same(&written, &golden(GOLDEN), GOLDEN);
    assert!(written.len() < 400 << 10, "{} bytes", written.len());
}

/// What a run says again and again: 80 records, each with those before it.
fn said_again() -> Vec<Vec<u8>> {
    let mut history = Vec::new();
    let record = |number: u32| {
        for word in 0..12 {
            let said = number.wrapping_mul(0x9e37_79b1) ^ u32::wrapping_mul(word, 0x85eb_ca6b);
            history.extend_from_slice(format!("{said:08x} said the agent; ").as_bytes());
        }
        [format!("{{\"turn\":{number},\"all\":\"").as_bytes(), &history, b"\"}"].concat()
    };
    (0..80).map(record).collect()
}

/// A store that was compacted after its run ended.
fn write_slices() -> Vec<u8> {
    let world = World::new(5, false);
    let options = world.options.clone().compression(Compression::Zstd { level: 3 });
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    let run = log.start_run("planner", "sliced", Metadata::new(b"{}")).unwrap();
    for said in said_again() {
        world.tick();
        let _ = run.append_record(&NewRecord::new(&said).kind("turn")).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
    // The segment of the end becomes full.
    let filler = vec![7; 8_000];
    for _ in 0..9 {
        let allow = Allow::everything();
        let _ = log.append_to("planner", "filler", &NewRecord::new(&filler), allow).unwrap();
    }
    let _ = log.compact().unwrap();
    log.close().unwrap();
    with_fixed_owner(storage.to_bytes())
}

#[test]
fn the_golden_store_with_a_slice_is_read() {
    let bytes = from_pages(&golden(SLICES_PAGES));
    for bytes in [bytes, write_slices()] {
        assert!(!of_kind(&bytes, FrameKind::Piece).is_empty());
        let storage = Arc::new(MemoryStorage::from_bytes(bytes));
        let log = Options::new().background(false).open_storage(storage).unwrap();
        let found: Vec<Vec<u8>> = log
            .trace(("planner", "sliced"))
            .unwrap()
            .map(|record| record.unwrap().payload().to_vec())
            .collect();
        assert!(found == said_again());
        assert_eq!(digest(&log, "planner", "sliced"), 3_806_091_139);
        assert!(log.verify().unwrap().is_clean());
    }
}

/// A store that was not closed: two durable records, then three that were not, the first of these
/// torn.
fn write_torn() -> Vec<u8> {
    let world = World::new(3, false);
    let storage = Arc::new(MemoryStorage::new());
    let log = world.options.create_storage(storage.clone()).unwrap();
    let run = log.start_run("planner", "torn", ()).unwrap();
    for (payload, durability) in [
        ("kept", Durability::Process),
        ("synced", Durability::Disk),
        ("broken", Durability::Process),
        ("behind", Durability::Process),
        ("last", Durability::Process),
    ] {
        world.tick();
        let _ = run.append_record(&NewRecord::new(payload.as_bytes()).durability(durability));
    }
    let mut bytes = storage.to_bytes();
    let at = bytes.windows(6).position(|window| window == b"broken").unwrap();
    bytes[at] ^= 1;
    with_fixed_owner(bytes)
}

/// What a run gives: payloads, and `None` for a record that is damaged.
fn told_by(log: &RunLog, run: &str) -> Vec<Option<Vec<u8>>> {
    let told = log.trace(run).unwrap();
    told.map(|record| record.ok().map(|record| record.payload().to_vec())).collect()
}

#[test]
fn the_golden_store_that_a_power_loss_tore_ends_in_front_of_the_torn_record() {
    let storage = Arc::new(MemoryStorage::from_bytes(from_pages(&golden(TORN_PAGES))));
    let environment = Environment::system();
    let options = Options::new().background(false).environment(environment);
    let log = options.open_storage(storage.clone()).unwrap();
    let report = log.recovery_report();
    let at = LogPosition { segment: SegmentId(1), offset: TORN_AT };
    assert_eq!(report.torn, Some(at));
    assert!(!report.clean && report.damaged.is_empty(), "{report}");
    let expected = [Some(b"kept".to_vec()), Some(b"synced".to_vec())];
    assert_eq!(told_by(&log, "torn"), expected);
    assert_eq!(log.writer("torn").unwrap().append(b"after").unwrap().seq, Seq(2));
    // Killed again: what counts is the same, and the log goes on behind the evidence.
    let again = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
    let log = options.open_storage(again).unwrap();
    assert_eq!(told_by(&log, "torn")[..2], expected);
    assert_eq!(told_by(&log, "torn")[2..], [Some(b"after".to_vec())]);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_store_with_an_unknown_optional_feature_is_not_opened_to_be_written() {
    let mut bytes = golden(GOLDEN);
    bytes[32] = 4;
    let crc = crc32fast::hash(&bytes[..80]);
    bytes[80..84].copy_from_slice(&crc.to_le_bytes());
    let storage = Arc::new(MemoryStorage::from_bytes(bytes.clone()));
    let refused = Options::new().open_storage(storage.clone());
    assert!(matches!(refused, Err(Error::UnsupportedFeatures { unknown: 4 })));
    assert!(storage.to_bytes() == bytes, "the store was touched");
}

fn assert_same(written: &[u8], golden: &[u8], name: &str) {
    let differs = written.iter().zip(golden).position(|(left, right)| left != right);
    if let Some(at) = differs {
        panic!(
            "{name} differs at {at:#x}: {:#04x} is written, not {:#04x}",
            written[at], golden[at]
        );
    }
    assert_eq!(written.len(), golden.len(), "the length of {name}");
}

/// The length of the store, then each page that is not zero, behind its number.
fn to_pages(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    for (number, page) in (0u64..).zip(bytes.chunks(PAGE)) {
        if page.iter().any(|&byte| byte != 0) {
            out.extend(number.to_le_bytes());
            out.extend(page);
            out.resize(out.len().next_multiple_of(8), 0);
        }
    }
    out
}

fn from_pages(pages: &[u8]) -> Vec<u8> {
    let number = |at: usize| {
        let bytes = pages[at..at + 8].try_into().unwrap();
        usize::try_from(u64::from_le_bytes(bytes)).unwrap()
    };
    let mut bytes = vec![0; number(0)];
    for at in (8..pages.len()).step_by(8 + PAGE) {
        let start = number(at) * PAGE;
        let page = &pages[at + 8..at + 8 + PAGE];
        bytes[start..start + PAGE].copy_from_slice(page);
    }
    bytes
}

#[test]
fn a_list_of_pages_becomes_the_store_it_was_made_of() {
    let mut bytes = vec![0; 5 * PAGE];
    (bytes[4096], bytes[4 * 4096 + 4095]) = (1, 2);
    let pages = to_pages(&bytes);
    assert_eq!(pages.len(), 8 + 2 * (8 + 4096));
    assert_eq!(from_pages(&pages), bytes);
}

/// The store of the worked example in the specification.
fn write_example() -> Vec<u8> {
    let world = World::new(7, false);
    let storage = Arc::new(MemoryStorage::new());
    let log = world.options.create_storage(storage.clone()).unwrap();
    world.tick();
    let metadata = Metadata::json(br#"{"goal":"tea"}"#);
    let run = log.start_run("planner", "run-1", metadata).unwrap();
    world.tick();
    let note = NewRecord::json(br#"{"say":"boil water"}"#).kind("turn");
    let _ = run.append_record(&note).unwrap();
    drop(run);
    log.close().unwrap();
    with_fixed_owner(storage.to_bytes())
}

#[test]
fn the_bytes_in_the_specification_are_those_that_are_written() {
    let store = write_example();
    let path = in_repository("docs/FORMAT.md");
    let (right, shown) = with_bytes_of(&std::fs::read_to_string(&path).unwrap(), &store);
    if blessing() {
        std::fs::write(&path, &right).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    for (number, (line, right)) in (1..).zip(text.lines().zip(right.lines())) {
        assert_eq!(line, right, "docs/FORMAT.md:{number}");
    }
    assert!(shown >= 96, "the specification shows only {shown} bytes");
}
