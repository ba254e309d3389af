//! Bad input: ids, kinds, records, metadata, outcomes and batches at their limits and one over.
//! Each case returns a typed error and changes nothing.

use std::fs;
use std::sync::Arc;

use runlog::format::{ExtentSize, MAX_OUTCOME};
use runlog::storage::MemoryStorage;
use runlog::{
    AgentId, Allow, ContentType, Cursor, Error, IdKind, MAX_ID_LEN, MAX_KIND_LEN, NewRecord,
    Options, Outcome, Result, RunLog, RunQuery, RunStatus, Seq, SizedThing, Timestamp,
};
use runlog_sim::SplitMix64;
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
            assert_eq!((&*page.runs[0].run.to_string(), page.runs[0].records), (id.as_str(), 25));
            let records = payloads(log, id, id);
            assert!(records.iter().all(|record| record == id.as_bytes()), "{id:?}");
            assert_eq!(records.len(), 25);
            assert_eq!(log.metadata(id).unwrap().unwrap().payload(), id.as_bytes());
        }
        assert!(log.verify().unwrap().is_clean());
    };
    let log = options().open(&path).unwrap();
    let writers: Vec<_> =
        ids.iter().map(|id| log.start_run(id, id, id.as_bytes()).unwrap()).collect();
    for _ in 0..25 {
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
