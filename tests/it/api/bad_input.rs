//! Bad input: each case returns a typed error and changes neither the store nor the file.
//!
//! - Ids, kinds, records, metadata, outcomes and batches at their limits and one over.
//! - Files that are not stores, are incomplete or newer, or are not regular files.
//! - A full disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use runlog::format::map::header::StaticHeader;
use runlog::format::{ExtentSize, MAX_OUTCOME};
use runlog::storage::MemoryStorage;
use runlog::{
    AgentId, Allow, ContentType, Cursor, Durability, Error, IdKind, MAX_ID_LEN, MAX_KIND_LEN,
    NewRecord, Options, Outcome, Result, RunLog, RunQuery, RunStatus, Seq, SizedThing, Timestamp,
};
use runlog_sim::{SimDisk, SplitMix64};
use tempfile::TempDir;

/// The smallest extents, so that little data fills many.
const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

fn memory() -> RunLog {
    options().create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

fn payloads(log: &RunLog, agent: &str, run: &str) -> Vec<Vec<u8>> {
    let trace = log.trace((agent, run)).unwrap();
    trace.map(|record| record.unwrap().payload().to_vec()).collect()
}

#[track_caller]
fn assert_too_large<T: core::fmt::Debug>(result: Result<T>, wanted: SizedThing, over: u64) {
    match result {
        Err(Error::TooLarge { what, len, max }) => {
            assert_eq!((what, len), (wanted, over));
            assert!(len > max);
        }
        other => panic!("{other:?}"),
    }
}

fn is_invalid_id<T>(result: &Result<T>, wanted: IdKind, wanted_len: usize) -> bool {
    matches!(
        result,
        Err(Error::InvalidId { kind, len, max: MAX_ID_LEN })
            if *kind == wanted && *len == wanted_len
    )
}

#[test]
fn empty_and_too_long_ids_are_refused_wherever_an_id_goes_in() {
    let log = memory();
    let oversized = "x".repeat(MAX_ID_LEN + 1);
    let (record, done) = (NewRecord::new(b"x"), Outcome::completed());
    let all = Allow::everything();
    for bad in ["", oversized.as_str()] {
        let len = bad.len();
        assert!(is_invalid_id(&log.start_run(bad, "run", ()), IdKind::Agent, len));
        assert!(is_invalid_id(&log.start_run("agent", bad, ()), IdKind::Run, len));
        assert!(is_invalid_id(&log.append_to(bad, "run", &record, all), IdKind::Agent, len));
        assert!(is_invalid_id(&log.append_to("agent", bad, &record, all), IdKind::Run, len));
        let batch = [record, record];
        assert!(is_invalid_id(&log.append_batch_to(bad, "run", &batch, all), IdKind::Agent, len));
        assert!(is_invalid_id(&log.append_batch_to("agent", bad, &batch, all), IdKind::Run, len));
        assert!(is_invalid_id(&log.end_run(bad, "run", &done, all), IdKind::Agent, len));
        assert!(is_invalid_id(&log.end_run("agent", bad, &done, all), IdKind::Run, len));
        assert!(is_invalid_id(&log.trace(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.trace((bad, "run")), IdKind::Agent, len));
        assert!(is_invalid_id(&log.run(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.agent_of(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.writer(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.metadata(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.outcome(bad), IdKind::Run, len));
        assert!(is_invalid_id(&log.delete_run(bad), IdKind::Run, len));
        assert!(is_invalid_id(
            &log.list_runs(&RunQuery::new().agent(bad).limit(10)),
            IdKind::Agent,
            len
        ));
    }
    assert_eq!(log.list_runs(&RunQuery::new().limit(10)).unwrap().runs, []);
    assert_eq!(log.stats().unwrap().runs, 0);
}

#[test]
fn ids_of_one_and_of_512_bytes_are_accepted() {
    let log = memory();
    let ascii = "x".repeat(MAX_ID_LEN);
    let emoji = "\u{1f680}".repeat(MAX_ID_LEN / 4);
    assert_eq!(emoji.len(), MAX_ID_LEN);
    for id in ["x", ascii.as_str(), emoji.as_str()] {
        let run = log.start_run(id, id, ()).unwrap();
        run.append(id.as_bytes()).unwrap();
        assert_eq!(log.agent_of(id).unwrap(), id);
        assert_eq!(payloads(&log, id, id), [id.as_bytes()]);
    }
    assert!(AgentId::new(&"\u{1f680}".repeat(MAX_ID_LEN / 4 + 1)).is_err());
}

/// Ids that are difficult as file names, in a shell, or for normalization.
fn strange_ids() -> Vec<String> {
    let mut ids: Vec<String> = [
        ".",
        "..",
        "/",
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "C:\\con",
        "a\nb",
        "a\r\nb",
        "\n",
        "\0",
        "a\0",
        "a\0b",
        "a",
        "A",
        " ",
        " a",
        "a ",
        "\t",
        "\u{7f}",
        "\u{1b}[31m",
        "'",
        "\"",
        "`rm -rf`",
        "$HOME",
        "%00",
        "%2e",
        "*",
        "?",
        "a:b",
        "a|b",
        "-rf",
        "--",
        "{}",
        "null",
        "\u{fffd}",
        "\u{feff}a",
        "e\u{301}",
        "\u{e9}",
        "\u{202e}abc",
        "\u{1f680}",
        "\u{10ffff}",
        "\u{80}",
        "\u{200b}",
        "0",
        "00",
        "\u{1}",
        "~",
    ]
    .map(str::to_owned)
    .to_vec();
    ids.push("/".repeat(MAX_ID_LEN));
    ids.push("\0".repeat(MAX_ID_LEN));
    ids
}

#[test]
fn ids_with_any_character_at_all_are_kept_raw_and_apart() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store.runlog");
    let ids = strange_ids();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    let check = |log: &RunLog| {
        let agents = log.agents(None, 1000).unwrap();
        assert_eq!(agents.iter().map(AgentId::as_str).collect::<Vec<_>>(), sorted);
        for id in &ids {
            assert_eq!(log.agent_of(id).unwrap(), id.as_str(), "{id:?}");
            let page = log.list_runs(&RunQuery::new().agent(id).limit(10)).unwrap();
            assert_eq!(page.runs.len(), 1, "{id:?}");
            assert_eq!((&*page.runs[0].run.to_string(), page.runs[0].records), (id.as_str(), 20));
            let records = payloads(log, id, id);
            assert!(records.iter().all(|record| record == id.as_bytes()), "{id:?}");
            assert_eq!(records.len(), 20);
            assert_eq!(log.metadata(id).unwrap().unwrap().payload(), id.as_bytes());
        }
        assert!(log.verify().unwrap().is_clean());
    };
    let log = options().open(&path).unwrap();
    let writers: Vec<_> =
        ids.iter().map(|id| log.start_run(id, id, id.as_bytes()).unwrap()).collect();
    for _ in 0..20 {
        for (id, run) in ids.iter().zip(&writers) {
            run.append(id.as_bytes()).unwrap();
        }
    }
    check(&log);
    log.checkpoint().unwrap();
    check(&log);
    assert!(log.stats().unwrap().sealed_segments > 1);
    drop(writers);
    log.close().unwrap();
    let log = options().open(&path).unwrap();
    check(&log);
    log.close().unwrap();
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(names, [path], "no id became a file");
}

#[test]
fn record_kinds_have_at_most_64_bytes_of_any_kind() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let longest = "k".repeat(MAX_KIND_LEN);
    let kinds = [longest.as_str(), "a", "\0", "a/b\n", "\u{1f680}"];
    for kind in kinds {
        run.append_record(&NewRecord::new(b"x").kind(kind)).unwrap();
    }
    run.append_record(&NewRecord::new(b"x").kind("")).unwrap();
    let oversized = "k".repeat(MAX_KIND_LEN + 1);
    let bad = NewRecord::new(b"x").kind(&oversized);
    let refused = |result: Result<_>| {
        let len = MAX_KIND_LEN + 1;
        let kind = IdKind::RecordKind;
        matches!(result, Err(Error::InvalidId { kind: k, len: l, .. }) if (k, l) == (kind, len))
    };
    assert!(refused(run.append_record(&bad)));
    assert!(refused(run.append_batch(&[NewRecord::new(b"good"), bad])));
    assert!(refused(log.append_to("agent", "run", &bad, Allow::nothing())));
    let found: Vec<_> =
        log.trace("run").unwrap().map(|record| record.unwrap().kind().map(str::to_owned)).collect();
    let mut expected: Vec<_> = kinds.iter().map(|kind| Some((*kind).to_owned())).collect();
    expected.push(None);
    assert_eq!(found, expected);
}

#[test]
fn a_record_at_the_limit_of_the_options_is_stored_and_one_byte_more_is_not() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().max_record_len(1000).create_storage(storage).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let (fits, over) = (vec![1; 1000], vec![2; 1001]);
    run.append(&fits).unwrap();
    assert_too_large(run.append(&over), SizedThing::Record, 1001);
    let batch = [NewRecord::new(&fits), NewRecord::new(&over)];
    assert_too_large(run.append_batch(&batch), SizedThing::Record, 1001);
    assert_eq!(run.append(b"").unwrap().seq, Seq(1));
    assert_eq!(payloads(&log, "agent", "run"), [fits, Vec::new()]);
}

#[test]
fn a_record_of_many_extents_is_stored_and_one_byte_over_the_limit_is_not() {
    let max = 3_u64 << 20;
    let options = options().max_record_len(max);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut payload = vec![0; usize::try_from(max).unwrap() + 1];
    SplitMix64::new(7).fill(&mut payload);
    assert_too_large(run.append(&payload), SizedThing::Record, max + 1);
    payload.pop();
    let longest = "k".repeat(MAX_KIND_LEN);
    run.append_record(&NewRecord::new(&payload).kind(&longest)).unwrap();
    run.append_batch(&[NewRecord::new(&payload).kind(&longest), NewRecord::new(b"x")]).unwrap();
    let records = payloads(&log, "agent", "run");
    assert!(records == [payload.clone(), payload, b"x".to_vec()]);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn records_around_the_lengths_at_which_they_are_cut_into_chunks_come_back_whole() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let inline = ExtentSize::MIN.inline_limit() as usize;
    let mut expected = Vec::new();
    for chunks in 1..=3 {
        for len in chunks * inline - 2..=chunks * inline + 2 {
            for kind in ["", "k"] {
                let mut payload = vec![0; len];
                SplitMix64::new(len as u64).fill(&mut payload);
                run.append_record(&NewRecord::new(&payload).kind(kind)).unwrap();
                expected.push(payload);
            }
        }
    }
    assert!(payloads(&log, "agent", "run") == expected);
}

#[test]
fn metadata_over_the_limit_is_refused_and_starts_nothing() {
    let log = memory();
    let max = ExtentSize::MIN.max_metadata() as usize;
    let (fits, over) = (vec![1; max], vec![1; max + 1]);
    let refused = log.start_run("agent", "over", over.as_slice());
    assert_too_large(refused, SizedThing::Metadata, max as u64 + 1);
    assert!(matches!(log.run("over"), Err(Error::RunNotFound { .. })));
    log.start_run("agent", "fits", fits.as_slice()).unwrap();
    assert_eq!(log.metadata("fits").unwrap().unwrap().payload(), fits);
    assert_eq!(log.list_runs(&RunQuery::new().limit(10)).unwrap().runs.len(), 1);
}

#[test]
fn an_outcome_over_the_limit_is_refused_and_the_run_goes_on() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let max = MAX_OUTCOME as usize;
    let over = Outcome::failed().bytes(&vec![1; max + 1]).content_type(ContentType::TEXT);
    assert_too_large(run.end(&over), SizedThing::Outcome, max as u64 + 1);
    let odd = Outcome::new(RunStatus::InProgress);
    assert!(matches!(run.end(&odd), Err(Error::InvalidArgument { .. })));
    assert_eq!(log.run("run").unwrap().status, RunStatus::InProgress);
    run.append(b"still going").unwrap();
    let fits = Outcome::failed().bytes(&vec![1; max]).content_type(ContentType::TEXT);
    run.end(&fits).unwrap();
    let outcome = log.outcome("run").unwrap().unwrap();
    assert_eq!((outcome.status(), outcome.payload()), (RunStatus::Failed, fits.payload()));
    assert_eq!(outcome.content_type(), ContentType::TEXT);
}

#[test]
fn a_batch_that_is_empty_or_too_large_stores_nothing() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    assert!(matches!(run.append_batch(&[]), Err(Error::InvalidArgument { .. })));
    let payload = [5; 200];
    let many = vec![NewRecord::new(&payload); 100];
    match run.append_batch(&many) {
        Err(Error::TooLarge { what: SizedThing::Batch, len, max }) => {
            assert_eq!(max, u64::from(ExtentSize::MIN.max_batch()));
            assert!(len > max);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(log.run("run").unwrap().records, 0);
    assert_eq!(run.append_batch(&many[..1]).unwrap().seq, Seq(0));
    assert_eq!(run.append_batch(&many[..50]).unwrap().seq, Seq(50));
    let large = vec![6; 30_000];
    let mixed = [NewRecord::new(b"a"), NewRecord::new(&large), NewRecord::new(b"")];
    assert_eq!(run.append_batch(&mixed).unwrap().seq, Seq(53));
    let records = payloads(&log, "agent", "run");
    assert_eq!(records.len(), 54);
    assert!(records[51..] == [b"a".to_vec(), large, Vec::new()]);
}

#[test]
fn what_is_refused_by_ids_does_not_bring_its_run_into_being() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().max_record_len(1000).create_storage(storage).unwrap();
    let (all, over, kind) = (Allow::everything(), vec![0; 1001], "k".repeat(65));
    let large = NewRecord::new(&over);
    let fine = NewRecord::new(b"x");
    let many = vec![NewRecord::new(&over[..1000]); 1000];
    assert_too_large(log.append_to("agent", "run", &large, all), SizedThing::Record, 1001);
    assert!(log.append_to("agent", "run", &fine.kind(&kind), all).is_err());
    assert!(log.append_batch_to("agent", "run", &[], all).is_err());
    assert!(log.append_batch_to("agent", "run", &[fine, large], all).is_err());
    assert!(log.append_batch_to("agent", "run", &many, all).is_err());
    let outcome = Outcome::failed().bytes(&[0; 5000]);
    assert!(log.end_run("agent", "run", &outcome, all).is_err());
    assert!(log.end_run("agent", "run", &Outcome::new(RunStatus::InProgress), all).is_err());
    assert!(matches!(log.run("run"), Err(Error::RunNotFound { .. })));
    assert!(log.agents(None, 10).unwrap().is_empty());
}

#[test]
fn what_is_not_allowed_by_ids_is_an_error_that_says_why() {
    let log = memory();
    let (record, nothing) = (NewRecord::new(b"x"), Allow::nothing());
    let missing = log.append_to("agent", "run", &record, nothing);
    assert!(matches!(missing, Err(Error::RunNotFound { agent: Some(_), .. })));
    let missing = log.end_run("agent", "run", &Outcome::completed(), nothing);
    assert!(matches!(missing, Err(Error::RunNotFound { .. })));
    let unstarted = Allow::nothing().unstarted(true);
    log.append_to("agent", "run", &record, unstarted).unwrap();
    log.end_run("agent", "run", &Outcome::completed(), unstarted).unwrap();
    let ended = log.append_to("agent", "run", &record, unstarted);
    assert!(matches!(ended, Err(Error::RunEnded { status: RunStatus::Completed, .. })));
    let late = log.append_to("agent", "run", &record, Allow::everything()).unwrap();
    assert_eq!(late.seq, Seq(1));
    let summary = log.run("run").unwrap();
    assert!(!summary.started);
    assert_eq!((summary.records, summary.late_records), (2, 1));
    let late: Vec<_> = log.trace("run").unwrap().map(|record| record.unwrap().is_late()).collect();
    assert_eq!(late, [false, true]);
}

#[test]
fn values_that_are_not_json_are_a_typed_error_and_the_bytes_stay_readable() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let no_json = std::collections::BTreeMap::from([((1, 2), "keys of JSON are strings")]);
    assert!(matches!(run.append_json(&no_json), Err(Error::Json { .. })));
    run.append_record(&NewRecord::json(b"{\"torn\":")).unwrap();
    let record = log.trace("run").unwrap().next().unwrap().unwrap();
    assert!(matches!(record.json::<serde_json::Value>(), Err(Error::Json { .. })));
    assert_eq!(record.payload(), b"{\"torn\":");
    assert_eq!(log.run("run").unwrap().records, 1);
}

#[test]
fn extreme_times_limits_and_cursors_do_no_harm() {
    let log = memory();
    for (run, at) in [("first", i64::MIN), ("zero", 0), ("last", i64::MAX)] {
        let metadata = runlog::Metadata::new(b"").at(Timestamp(at));
        let run = log.start_run("agent", run, metadata).unwrap();
        run.append_record(&NewRecord::new(b"x").at(Timestamp(at))).unwrap();
        run.end(&Outcome::completed().at(Timestamp(at))).unwrap();
    }
    for checkpoint in [false, true] {
        if checkpoint {
            fill_a_segment(&log);
            log.checkpoint().unwrap();
        }
        let names = |limit| {
            let page = log.list_runs(&RunQuery::new().agent("agent").limit(limit)).unwrap();
            page.runs.iter().map(|run| run.run.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(usize::MAX), ["last", "zero", "first"]);
        assert_eq!(names(0), [""; 0]);
        assert_eq!(log.list_runs(&RunQuery::new().limit(0)).unwrap().runs, []);
        assert_eq!(
            log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(0))
                .unwrap()
                .runs,
            []
        );
        assert!(log.agents(None, 0).unwrap().is_empty());
        let trace = log.trace("zero").unwrap();
        assert_eq!(trace.range(Seq(u64::MAX)..).unwrap().count(), 0);
        let trace = log.trace("zero").unwrap();
        assert_eq!(trace.range(..=Seq(u64::MAX)).unwrap().count(), 1);
        let trace = log.trace("zero").unwrap();
        assert_eq!(trace.range(Seq(5)..Seq(2)).unwrap().count(), 0);
    }
    for text in ["", ".", "1", "1.", ".1", "a.b", "1.2.3", "1.-2", "99999999999999999999.1"] {
        let parsed = text.parse::<Cursor>();
        assert!(matches!(parsed, Err(Error::InvalidArgument { .. })), "{text:?}");
    }
    let cursor: Cursor = format!("{}.{}", i64::MIN, u64::MAX).parse().unwrap();
    assert_eq!(
        log.list_runs(&RunQuery::new().agent("agent").limit(10).after(cursor)).unwrap().runs.len(),
        1
    );
}

/// Appends to a run of its own until a segment was sealed.
fn fill_a_segment(log: &RunLog) {
    let before = log.stats().unwrap().sealed_segments;
    let run = log.start_run("filler", "filler", ()).unwrap();
    while log.stats().unwrap().sealed_segments == before {
        run.append(&[0; 4000]).unwrap();
    }
}

#[test]
fn files_of_other_programs_are_refused_and_untouched() {
    let folder = TempDir::new().unwrap();
    let mut noise = vec![0; 200_000];
    SplitMix64::new(1).fill(&mut noise);
    let files: [(&str, Vec<u8>); 8] = [
        ("empty", Vec::new()),
        ("one byte", vec![0x93]),
        ("zeros", vec![0; 1 << 20]),
        ("jsonl", b"{\"a\":1}\n".repeat(20_000)),
        ("sqlite", [&b"SQLite format 3\0"[..], &[0; 8176]].concat()),
        ("png", [&b"\x89PNG\r\n\x1a\n"[..], &[1; 5000]].concat()),
        ("noise", noise),
        ("text", b"hello".to_vec()),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        for opened in [options().open(&path), options().open_existing(&path)] {
            match opened {
                Err(Error::NotAStore { found, len }) => {
                    assert_eq!(found, bytes[..bytes.len().min(16)], "{name}");
                    assert_eq!(len, bytes.len() as u64, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(fs::read(&path).unwrap() == bytes, "{name} was touched");
    }
    let empty = options().open_storage(Arc::new(MemoryStorage::new()));
    assert!(matches!(empty, Err(Error::NotAStore { len: 0, .. })));
}

/// The runs of the small store: agent, run, records.
type Runs = Vec<(String, String, Vec<Vec<u8>>)>;

/// A closed store of a few segments with an index, and what is in it.
fn small_store() -> (Vec<u8>, Runs) {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let mut random = SplitMix64::new(3);
    let mut runs = Runs::new();
    for number in 0..30 {
        let (agent, run) = (format!("agent-{}", number % 4), format!("run-{number}"));
        let writer = log.start_run(&agent, &run, b"metadata").unwrap();
        let mut records = Vec::new();
        for _ in 0..10 {
            let mut payload = vec![0; random.index(1200)];
            random.fill(&mut payload);
            writer.append(&payload).unwrap();
            records.push(payload);
        }
        if number % 3 != 0 {
            writer.end(&Outcome::completed()).unwrap();
        }
        runs.push((agent, run, records));
    }
    log.close().unwrap();
    (storage.to_bytes(), runs)
}

/// Everything that was in the small store, whole.
fn assert_whole(log: &RunLog, runs: &Runs, what: &str) {
    for (agent, run, records) in runs {
        assert_eq!(log.agent_of(run).unwrap(), agent.as_str(), "{what}");
        assert!(payloads(log, agent, run) == *records, "{what}: {run}");
    }
    assert_eq!(
        log.list_runs(&RunQuery::new().limit(1000)).unwrap().runs.len(),
        runs.len(),
        "{what}"
    );
}

#[test]
fn a_file_that_was_cut_off_anywhere_is_refused_untouched_or_is_whole_all_the_same() {
    let (bytes, runs) = small_store();
    let step = 512;
    let cuts = (0..bytes.len()).step_by(step).chain((1..5000).step_by(97));
    let (mut refused, mut opened) = (0, 0);
    for cut in cuts.chain([bytes.len() - 1, bytes.len()]) {
        let storage = Arc::new(MemoryStorage::from_bytes(bytes[..cut].to_vec()));
        let what = format!("{cut} of {} bytes", bytes.len());
        match options().open_storage(storage.clone()) {
            Ok(log) => {
                opened += 1;
                assert_whole(&log, &runs, &what);
                assert!(log.verify().unwrap().is_clean(), "{what}: {:?}", log.verify());
            }
            Err(Error::NotAStore { .. }) => {
                assert!(cut < 4096, "{what}");
                assert!(storage.to_bytes() == bytes[..cut], "{what}: touched");
            }
            Err(error) => {
                refused += 1;
                assert!(error.is_damaged(), "{what}: {error:?}");
                assert!(storage.to_bytes() == bytes[..cut], "{what}: touched");
            }
        }
    }
    println!("{refused} cuts refused, {opened} opened whole");
    assert!(refused > 100 && opened > 0);
}

/// The small store with another static header.
fn with_header(change: impl FnOnce(&mut StaticHeader)) -> Vec<u8> {
    let (mut bytes, _) = small_store();
    let mut header = StaticHeader::decode(&bytes[..4096]).unwrap();
    change(&mut header);
    bytes[..4096].copy_from_slice(&header.encode());
    bytes
}

#[test]
fn files_of_newer_versions_are_refused_and_untouched() {
    let newer = with_header(|header| (header.version, header.min_reader) = (7, 2));
    let needs = with_header(|header| header.required = 1 << 40);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    for (bytes, is_version) in [(newer, true), (needs, false)] {
        fs::write(&path, &bytes).unwrap();
        let error = options().open(&path).unwrap_err();
        assert!(error.is_newer_format());
        match error {
            Error::UnsupportedVersion { found: 2, supported: 1 } => assert!(is_version),
            Error::UnsupportedFeatures { unknown } => {
                assert!(!is_version);
                assert_eq!(unknown, 1 << 40);
            }
            other => panic!("{other:?}"),
        }
        assert!(fs::read(&path).unwrap() == bytes, "touched");
    }
    let still_readable = with_header(|header| header.version = 7);
    options().open_storage(Arc::new(MemoryStorage::from_bytes(still_readable))).unwrap();
}

#[test]
fn paths_that_are_no_regular_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let refused = |path: &Path| {
        for opened in [options().open(path), options().open_existing(path)] {
            assert!(
                matches!(&opened, Err(Error::NotRegularFile { path: told }) if told == path),
                "{opened:?}"
            );
        }
        let created = options().create(path);
        assert!(
            matches!(created, Err(Error::AlreadyExists { .. } | Error::NotRegularFile { .. })),
            "{created:?}"
        );
    };
    refused(folder.path());
    let store = folder.path().join("store");
    options().create(&store).unwrap().close().unwrap();
    let bytes = fs::read(&store).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&store, &link).unwrap();
    refused(&link);
    assert!(fs::read(&store).unwrap() == bytes, "touched through a link");
    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink(folder.path().join("nothing"), &dangling).unwrap();
    refused(&dangling);
    assert!(!folder.path().join("nothing").exists(), "created through a link");
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    if made.is_ok_and(|status| status.success()) {
        refused(&fifo);
    }
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(&socket);
    refused(Path::new("/dev/null"));
}

#[test]
fn paths_that_lead_nowhere_are_refused() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let opened = options().open_existing(&missing);
    assert!(matches!(opened, Err(Error::NotFound { path }) if path == missing));
    assert!(!missing.exists());
    let orphan = missing.join("store");
    for result in [options().open(&orphan), options().create(&orphan)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. } | Error::Io { .. }), "{error:?}");
    }
    let through_file = folder.path().join("file").join("store");
    fs::write(folder.path().join("file"), b"x").unwrap();
    for result in [options().open(&through_file), options().open_existing(&through_file)] {
        assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    }
    let nameless = options().open("").unwrap_err();
    assert!(!matches!(nameless, Error::NotAStore { .. } | Error::Corrupt(_)), "{nameless:?}");
    let long = folder.path().join("x".repeat(300));
    assert!(matches!(options().open(long), Err(Error::Io { .. })));
}

#[test]
fn a_file_that_may_not_be_read_is_refused_and_untouched() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    options().create(&path).unwrap().close().unwrap();
    let bytes = fs::read(&path).unwrap();
    for mode in [0o000, 0o400, 0o200] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        if fs::OpenOptions::new().read(true).write(true).open(&path).is_ok() {
            // The superuser may do everything.
            return;
        }
        match options().open(&path) {
            Err(Error::Io { source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
            }
            other => panic!("{other:?}"),
        }
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn creating_over_something_that_is_there_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    log.start_run("agent", "run", ()).unwrap();
    assert!(matches!(options().create(&path), Err(Error::AlreadyExists { .. })));
    log.close().unwrap();
    assert!(matches!(options().create(&path), Err(Error::AlreadyExists { .. })));
    let log = options().open_existing(&path).unwrap();
    assert_eq!(log.agent_of("run").unwrap(), "agent");
    let other = folder.path().join("other");
    fs::write(&other, b"precious").unwrap();
    assert!(matches!(options().create(&other), Err(Error::AlreadyExists { .. })));
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    let full = Arc::new(MemoryStorage::from_bytes(vec![1; 100]));
    let created = options().create_storage(full.clone());
    assert!(matches!(created, Err(Error::InvalidArgument { .. })));
    assert_eq!(full.to_bytes(), [1; 100]);
}

#[test]
fn extent_sizes_that_are_not_allowed_create_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let bad = [0, 1, 4096, 32 << 10, (64 << 10) + 1, 3 << 16, 128 << 20, u64::MAX];
    for size in bad {
        let options = Options::new().extent_size(size);
        for result in [options.open(&path), options.create(&path)] {
            assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{size}: {result:?}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{size}");
    }
    for size in [64 << 10, 128 << 10, 64 << 20] {
        let log = Options::new().extent_size(size).create(&path).unwrap();
        assert_eq!(log.stats().unwrap().extent_len, size);
        log.close().unwrap();
        let log = Options::new().extent_size(4 << 20).open(&path).unwrap();
        assert_eq!(log.stats().unwrap().extent_len, size, "the file's own size counts");
        log.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_second_handle_is_told_who_holds_the_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().open(&path).unwrap();
    for second in [options().open(&path), options().open_existing(&path)] {
        let error = second.unwrap_err();
        assert!(error.is_busy());
        let Error::Busy { owner: Some(owner), .. } = error else { panic!("{error:?}") };
        assert_eq!(owner.pid, std::process::id());
    }
    log.start_run("agent", "run", ()).unwrap();
    log.close().unwrap();
    assert_eq!(options().open(&path).unwrap().agent_of("run").unwrap(), "agent");
}

#[test]
fn a_new_store_does_not_fit_on_a_full_disk_and_leaves_nothing() {
    for limit in [0, 1000, 70_000] {
        let storage = Arc::new(MemoryStorage::with_limit(limit));
        let created = options().create_storage(storage.clone());
        assert!(created.unwrap_err().is_disk_full(), "{limit}");
    }
}

/// Appends until the disk is full; answers what was acknowledged.
fn append_until_full(log: &RunLog, run: &runlog::RunWriter) -> Vec<Vec<u8>> {
    let mut acknowledged = payloads(log, run.agent().as_str(), run.run().as_str());
    for number in 0.. {
        let payload = vec![u8::try_from(number % 251).unwrap(); 900];
        match run.append(&payload) {
            Ok(appended) => {
                assert_eq!(appended.seq.0, acknowledged.len() as u64);
                acknowledged.push(payload);
            }
            Err(error) => {
                assert!(error.is_disk_full(), "{error:?}");
                return acknowledged;
            }
        }
    }
    unreachable!()
}

#[test]
fn on_a_full_disk_appends_fail_whole_and_runs_can_still_be_ended() {
    for limit in [200_000, 300_000, 450_000, 1_000_000] {
        let storage = Arc::new(MemoryStorage::with_limit(limit));
        let log = options().create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let others: Vec<_> =
            (0..5).map(|n| log.start_run("agent", &format!("other-{n}"), ()).unwrap()).collect();
        let acknowledged = append_until_full(&log, &run);
        let large = vec![1; 100_000];
        assert!(run.append(&large).unwrap_err().is_disk_full());
        let batch = [NewRecord::new(&[2; 4000]); 3];
        assert!(run.append_batch(&batch).unwrap_err().is_disk_full());
        let metadata = [3; 4000];
        assert!(log.start_run("agent", "new", &metadata).unwrap_err().is_disk_full());
        assert!(log.run("new").unwrap_err().is_not_found());
        let by_ids = log.append_to("agent", "new", &NewRecord::new(&large), Allow::everything());
        assert!(by_ids.unwrap_err().is_disk_full());
        assert_eq!(payloads(&log, "agent", "run"), acknowledged);
        run.end(&Outcome::failed().bytes(b"disk full").content_type(ContentType::TEXT)).unwrap();
        for other in &others {
            other.end(&Outcome::cancelled()).unwrap();
        }
        assert_eq!(payloads(&log, "agent", "run"), acknowledged);
        assert!(log.verify().unwrap().is_clean(), "{limit}");
        drop((run, others));
        let _ = log.close();
        let log = options().open_storage(storage).unwrap();
        assert_eq!(payloads(&log, "agent", "run"), acknowledged);
        assert_eq!(log.run("run").unwrap().status, RunStatus::Failed);
        assert_eq!(
            log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(100))
                .unwrap()
                .runs
                .len(),
            0
        );
        assert!(log.verify().unwrap().is_clean(), "{limit}");
    }
}

#[test]
fn when_space_returns_appends_work_again() {
    let disk = SimDisk::new();
    let mut capacity = 300_000;
    disk.set_capacity(capacity);
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..5 {
        let acknowledged = append_until_full(&log, &run);
        assert_eq!(payloads(&log, "agent", "run"), acknowledged);
        capacity += 200_000;
        disk.set_capacity(capacity);
        let next = run.append_record(&NewRecord::new(&[7; 900]).durability(Durability::Disk));
        assert_eq!(next.unwrap().seq.0, acknowledged.len() as u64);
    }
    let acknowledged = append_until_full(&log, &run);
    run.end(&Outcome::completed()).unwrap();
    assert!(log.verify().unwrap().is_clean());
    drop((run, log));
    disk.set_capacity(capacity + 1_000_000);
    let log = options().open_storage(Arc::new(disk)).unwrap();
    assert_eq!(payloads(&log, "agent", "run"), acknowledged);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn on_a_full_disk_deleting_runs_makes_room() {
    let disk = SimDisk::new();
    disk.set_capacity(600_000);
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let mut ended = Vec::new();
    let full = (0..10_000).find_map(|number| {
        let id = format!("run-{number}");
        let run = match log.start_run("agent", &id, ()) {
            Ok(run) => run,
            Err(error) => return Some(error),
        };
        ended.push(id);
        let error = (0..10).find_map(|_| run.append(&[9; 900]).err());
        run.end(&Outcome::completed()).unwrap();
        error
    });
    assert!(full.unwrap().is_disk_full());
    for id in &ended {
        log.delete_run(id).unwrap();
    }
    log.sync().unwrap();
    log.checkpoint().unwrap();
    log.reclaim().unwrap();
    let run = log.start_run("agent", "after", ()).unwrap();
    for _ in 0..100 {
        run.append(&[1; 900]).unwrap();
    }
    run.end(&Outcome::completed()).unwrap();
    assert_eq!(log.list_runs(&RunQuery::new().limit(10_000)).unwrap().runs.len(), 1);
    assert!(log.verify().unwrap().is_clean());
}
