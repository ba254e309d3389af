//! Reading a run: views, ranges, both directions, snapshots, pins, and damage that stays confined.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::thread;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::{FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, ContentType, Corruption, Durability, Error, LogPosition, Metadata, NewRecord, Options,
    Outcome, Payload, Place, Reader, ReaderOptions, Record, RunId, RunLog, RunQuery, RunStatus,
    Seq, Timestamp, Trace,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

use crate::support::frames::of_kind;

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

fn memory() -> RunLog {
    options().create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

/// The bytes of record `number` of run `run`.
fn payload(run: u64, number: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(run << 32 | number);
    let mut bytes = vec![0; random.index(1500)];
    random.fill(&mut bytes);
    bytes
}

/// Appends `count` records to `runs` runs in turn.
fn interleaved(log: &RunLog, runs: u64, count: u64) {
    let writers: Vec<_> =
        (0..runs).map(|run| log.start_run("agent", &format!("run-{run}"), ()).unwrap()).collect();
    for number in 0..count {
        for (run, writer) in (0..).zip(&writers) {
            writer.append(&payload(run, number)).unwrap();
        }
    }
}

fn seqs(trace: Trace) -> Vec<u64> {
    trace.map(|record| record.unwrap().seq().0).collect()
}

fn corruption(error: Error) -> Corruption {
    match error {
        Error::Corrupt(corruption) => corruption,
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_that_was_said_of_a_record_comes_back() {
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let own = ContentType::from_code(200);
    let records = [
        NewRecord::new(b""),
        NewRecord::new(&all_bytes).kind("tool_call").content_type(own).at(Timestamp(-7)),
        NewRecord::json(b"{ \"a\" : 1.0 }\r\n").kind("turn").at(Timestamp(i64::MAX)),
        NewRecord::new(b"\xff\xfe\0").content_type(ContentType::TEXT),
    ];
    let mut lsns = BTreeSet::new();
    for record in &records {
        lsns.insert(run.append_record(record).unwrap().lsn);
    }
    let found: Vec<Record> = log.trace("run").unwrap().map(Result::unwrap).collect();
    assert_eq!(found.len(), records.len());
    for ((seq, record), wanted) in (0..).zip(&found).zip(&records) {
        assert_eq!(record.payload(), wanted.payload());
        assert_eq!(record.seq(), Seq(seq));
        assert!(lsns.contains(&record.lsn()));
        assert!(!record.is_late());
    }
    assert_eq!(found[1].kind(), Some("tool_call"));
    assert_eq!((found[1].content_type(), found[1].timestamp()), (own, Timestamp(-7)));
    assert_eq!((found[0].kind(), found[0].content_type()), (None, ContentType::BYTES));
    assert_eq!((found[2].content_type(), found[2].timestamp().0), (ContentType::JSON, i64::MAX));
    assert_eq!(found[2].json::<serde_json::Value>().unwrap()["a"], 1.0);
    let payload: Payload = found[1].clone().into_payload();
    assert!(*payload == *all_bytes && !payload.is_view());
    let shown = format!("{:?}{:?}", found[2], log.trace("run").unwrap());
    assert!(!shown.contains("1.0"), "payloads do not belong into logs: {shown}");
}

#[test]
fn json_goes_in_and_out_as_the_value_it_is() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Call<'a> {
        tool: &'a str,
        arguments: Vec<u32>,
    }
    let log = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let call = Call { tool: "ls", arguments: vec![1, 2] };
    run.append_json(&call).unwrap();
    let record = log.trace("run").unwrap().next().unwrap().unwrap();
    assert_eq!(record.content_type(), ContentType::JSON);
    assert_eq!(record.json::<Call<'_>>().unwrap(), call);
    assert_eq!(record.payload(), br#"{"tool":"ls","arguments":[1,2]}"#);
}

#[test]
fn ranges_and_directions_agree_with_those_of_a_vector() {
    let log = memory();
    interleaved(&log, 3, 60);
    let whole: Vec<u64> = (0..60).collect();
    let trace = || log.trace("run-1").unwrap();
    for low in (0..64).step_by(3) {
        for high in (low..64).step_by(5) {
            let cut = |low: u64, high: u64| {
                let at = |seq: u64| usize::try_from(seq.min(60)).unwrap();
                whole[at(low)..at(high).max(at(low))].to_vec()
            };
            let wanted = cut(low, high);
            assert_eq!(seqs(trace().range(Seq(low)..Seq(high)).unwrap()), wanted);
            let back = trace().range(Seq(low)..Seq(high)).unwrap().rev();
            let back: Vec<_> = back.map(|record| record.unwrap().seq().0).collect();
            assert!(back.into_iter().rev().eq(wanted.iter().copied()));
            assert_eq!(seqs(trace().range(Seq(low)..=Seq(high)).unwrap()), cut(low, high + 1));
            assert_eq!(seqs(trace().range(Seq(low)..).unwrap()), cut(low, 60));
            assert_eq!(seqs(trace().range(..Seq(high)).unwrap()), cut(0, high));
            let twice = trace().range(Seq(low)..).unwrap().range(..Seq(high)).unwrap();
            assert_eq!(seqs(twice), wanted, "a range of a range");
        }
    }
    assert_eq!(seqs(trace().range(..).unwrap()), whole);
}

#[test]
fn payloads_of_sealed_segments_are_views_of_the_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    interleaved(&log, 1, 200);
    let views = |log: &RunLog| -> Vec<bool> {
        let records = log.trace("run-0").unwrap();
        records.map(|record| record.unwrap().into_payload().is_view()).collect()
    };
    let sealed = log.stats().unwrap().sealed_segments;
    let found = views(&log);
    assert!(sealed > 1);
    assert!(found[..100].iter().all(|view| *view), "{found:?}");
    log.close().unwrap();
    let log = options().open(&path).unwrap();
    assert!(views(&log)[..100].iter().all(|view| *view));
    // The bytes are the file's own.
    let record = log.trace("run-0").unwrap().nth(3).unwrap().unwrap();
    let file = fs::read(&path).unwrap();
    let wanted = payload(0, 3);
    assert!(file.windows(wanted.len()).any(|bytes| bytes == wanted));
    assert_eq!(record.payload(), wanted);
}

/// Goal: a held record has the same bytes until it is dropped (I8), although the run is deleted,
/// its segments are freed, and their extents are reused for other records.
#[test]
fn a_record_that_is_kept_keeps_its_bytes_while_its_segment_is_reclaimed_and_reused() {
    let folder = TempDir::new().unwrap();
    let log = options().create(folder.path().join("store")).unwrap();
    let mut kept: Vec<(u64, u64, Payload)> = Vec::new();
    let mut longest = 0;
    for round in 0..40 {
        let id = format!("run-{round}");
        let run = log.start_run("agent", &id, ()).unwrap();
        for number in 0..100 {
            run.append(&payload(round, number)).unwrap();
        }
        run.end(&Outcome::completed()).unwrap();
        // One record of each run is kept for a few rounds.
        let record = log.trace(&id).unwrap().nth(50).unwrap().unwrap();
        kept.push((round, 50, record.into_payload()));
        log.delete_run(&id).unwrap();
        log.sync().unwrap();
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
        for (run, number, bytes) in &kept {
            assert!(**bytes == payload(*run, *number), "run {run} after round {round}");
        }
        if kept.len() > 5 {
            kept.remove(0);
        }
        if round == 20 {
            longest = log.stats().unwrap().file_len;
        }
    }
    assert!(kept.iter().any(|(_, _, bytes)| bytes.is_view()));
    let stats = log.stats().unwrap();
    assert!(stats.retired_extents > 0, "the kept records pin their segments: {stats:?}");
    assert!(stats.file_len <= longest + 4 * EXTENT, "extents are used again: {stats:?}");
    kept.clear();
    log.reclaim().unwrap();
    let stats = log.stats().unwrap();
    assert_eq!(stats.retired_extents, 0, "{stats:?}");
    assert!(log.verify().unwrap().is_clean());
}

/// A run that comes, fills segments and is deleted.
fn interleaved_as(log: &RunLog, round: u64) {
    let id = format!("filler-{round}");
    let run = log.start_run("agent", &id, ()).unwrap();
    for number in 0..100 {
        run.append(&payload(round, number)).unwrap();
    }
    run.end(&Outcome::completed()).unwrap();
    log.delete_run(&id).unwrap();
}

/// A closed store of four interleaved runs, 40 records each.
fn closed_store() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    interleaved(&log, 4, 40);
    log.close().unwrap();
    storage.to_bytes()
}

fn open(bytes: Vec<u8>) -> RunLog {
    options().open_storage(Arc::new(MemoryStorage::from_bytes(bytes))).unwrap()
}

/// A trace has the records in front of the damage, and then the damage.
fn assert_ends_at(reader: &Reader, run: u64, place: LogPosition) {
    let id = format!("run-{run}");
    let mut items: Vec<_> = reader.trace(&id).unwrap().collect();
    assert_eq!(corruption(items.pop().unwrap().unwrap_err()).place, Place::Frame(place));
    for (seq, item) in (0..).zip(&items) {
        assert_eq!(item.as_ref().unwrap().payload(), payload(run, seq));
    }
    let mut backwards = reader.trace(&id).unwrap().rev();
    assert_eq!(corruption(backwards.next().unwrap().unwrap_err()).place, Place::Frame(place));
    assert_eq!(backwards.filter(Result::is_ok).count(), items.len());
    let before = Seq(items.len() as u64);
    assert!(reader.trace(&id).unwrap().range(..before).unwrap().all(|item| item.is_ok()));
}

/// Of all records this one is an error, in both directions.
fn assert_costs(log: &RunLog, victim: &FrameHeader) {
    assert!(!log.verify().unwrap().is_clean());
    let mut errors = Vec::new();
    for run in 0..4 {
        let id = format!("run-{run}");
        let forward: Vec<_> = log.trace(&id).unwrap().collect();
        assert_eq!(forward.len(), 40, "as many items as there were records");
        let mut backward: Vec<_> = log.trace(&id).unwrap().rev().collect();
        backward.reverse();
        for (seq, (one, other)) in (0..).zip(forward.into_iter().zip(backward)) {
            match (one, other) {
                (Ok(one), Ok(other)) => {
                    assert_eq!(one.seq(), Seq(seq));
                    assert_eq!(one.payload(), payload(run, seq));
                    assert_eq!(other.payload(), one.payload());
                }
                (Err(one), Err(_)) => errors.push((id.clone(), seq, corruption(one))),
                (one, other) => panic!("{one:?} forwards and {other:?} backwards"),
            }
        }
    }
    let [(id, seq, told)] = errors.as_slice() else { panic!("{:?}: {errors:?}", victim.position) };
    assert_eq!(told.run.as_ref().map(RunId::as_str), Some(id.as_str()));
    assert_eq!((told.seq, Seq(*seq)), (Some(victim.seq), victim.seq));
}

#[test]
fn a_damaged_record_costs_itself_and_nothing_else() {
    let bytes = closed_store();
    let records = of_kind(&bytes, FrameKind::Record);
    assert_eq!(records.len(), 160);
    let open_segment = records[records.len() - 1].1.position.segment;
    for (range, header) in records.iter().skip(3).step_by(8) {
        let payload = (header.payload_len != 0).then_some(FRAME_HEADER_LEN);
        for byte in (0..FRAME_HEADER_LEN).step_by(5).chain(payload) {
            let mut damaged = bytes.clone();
            damaged[range.start + byte] ^= 0x04;
            if header.position.segment == open_segment && byte < FRAME_HEADER_LEN {
                // No directory lists the frame, so other frames may be missing beside it.
                let storage = Arc::new(MemoryStorage::from_bytes(damaged.clone()));
                let refused = options().open_storage(storage.clone()).unwrap_err();
                let Error::Damaged(told) = refused else { panic!("{refused}") };
                assert_eq!(told.place, Place::Frame(header.position));
                assert_eq!(storage.to_bytes(), damaged);
                let reader = ReaderOptions::new().open_storage(storage).unwrap();
                (0..4).for_each(|run| assert_ends_at(&reader, run, header.position));
            } else {
                assert_costs(&open(damaged), header);
            }
        }
    }
}

#[test]
fn a_range_that_begins_or_ends_at_a_damaged_record_has_the_records_around_it() {
    let bytes = closed_store();
    let records = of_kind(&bytes, FrameKind::Record);
    let (victim, _) = records.iter().find(|(_, header)| header.seq == Seq(20)).unwrap();
    let mut damaged = bytes.clone();
    damaged[victim.start + 8] ^= 1;
    let log = open(damaged);
    let id = (0..4)
        .map(|run| format!("run-{run}"))
        .find(|id| log.trace(id).unwrap().any(|record| record.is_err()))
        .unwrap();
    let found = |low: u64, high: u64| -> Vec<Option<u64>> {
        let trace = log.trace(&id).unwrap().range(Seq(low)..Seq(high)).unwrap();
        trace.map(|record| record.ok().map(|record| record.seq().0)).collect()
    };
    assert_eq!(found(18, 23), [Some(18), Some(19), None, Some(21), Some(22)]);
    assert_eq!(found(20, 22), [None, Some(21)]);
    assert_eq!(found(18, 21), [Some(18), Some(19), None]);
    assert_eq!(found(21, 23), [Some(21), Some(22)]);
    assert_eq!(found(18, 20), [Some(18), Some(19)]);
    let back = log.trace(&id).unwrap().range(Seq(19)..Seq(22)).unwrap().rev();
    let back: Vec<_> = back.map(|record| record.ok().map(|record| record.seq().0)).collect();
    assert_eq!(back, [Some(21), None, Some(19)]);
}

#[test]
fn records_of_runs_without_a_start_and_after_the_end_are_marked() {
    let log = memory();
    let all = Allow::everything();
    let outcome = Outcome::completed();
    log.append_to("agent", "run", &NewRecord::new(b"0"), all).unwrap();
    let batch = [NewRecord::new(b"1"), NewRecord::new(b"2")];
    log.append_batch_to("agent", "run", &batch, all).unwrap();
    log.end_run("agent", "run", &outcome, all).unwrap();
    let large = vec![3; 20_000];
    log.append_to("agent", "run", &NewRecord::new(&large), all).unwrap();
    let batch = [NewRecord::new(b"4"), NewRecord::new(b"5")];
    log.append_batch_to("agent", "run", &batch, all).unwrap();
    let late: Vec<bool> =
        log.trace("run").unwrap().map(|record| record.unwrap().is_late()).collect();
    assert_eq!(late, [false, false, false, true, true, true]);
    let summary = log.run("run").unwrap();
    assert_eq!((summary.records, summary.late_records, summary.started), (6, 3, false));
    assert_eq!(summary.bytes, 3 + 20_000 + 2);
    assert!(log.metadata("run").unwrap().is_none());
    log.end_run("agent", "never", &outcome, all).unwrap();
    let summary = log.run("never").unwrap();
    assert!(!summary.started && summary.status.is_ended());
    assert_eq!(log.trace("never").unwrap().count(), 0);
}

#[test]
fn whoever_still_uses_a_deleted_run_is_told_that_it_is_gone() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage).unwrap();
    for checkpoint in [false, true] {
        let run = log.start_run("agent", "run", ()).unwrap();
        run.append(b"x").unwrap();
        let trace = log.trace("run").unwrap();
        run.end(&Outcome::completed()).unwrap();
        if checkpoint {
            interleaved_as(&log, 1);
            log.checkpoint().unwrap();
        }
        log.delete_run("run").unwrap();
        let gone = |error: Error| assert!(error.is_not_found(), "{error:?}");
        gone(run.append(b"y").unwrap_err());
        gone(run.append(&[0; 20_000]).unwrap_err());
        gone(run.append_batch(&[NewRecord::new(b"y"); 2]).unwrap_err());
        gone(run.end(&Outcome::completed()).unwrap_err());
        gone(log.delete_run("run").unwrap_err());
        gone(log.writer("run").unwrap_err());
        gone(log.outcome("run").unwrap_err());
        assert_eq!(trace.count(), 1);
        // The id is free again, for another run.
        let again = log.start_run("agent", "run", b"again").unwrap();
        again.append(b"again").unwrap();
        gone(run.append(b"y").unwrap_err());
        assert_eq!(log.run("run").unwrap().records, 1);
        again.end(&Outcome::completed()).unwrap();
        log.delete_run("run").unwrap();
    }
    assert!(log.verify().unwrap().is_clean());
}

/// Goal: whatever is done at the same time, no caller sees damage, and a run disappears only by its
/// own deletion. Method: writers with their own runs, readers of everything, and one thread that
/// checkpoints, reclaims, verifies and adopts, on the smallest extents.
#[test]
fn threads_that_write_read_delete_and_reclaim_at_once_never_see_damage() {
    let folder = TempDir::new().unwrap();
    let log = Options::new().extent_size(EXTENT).create(folder.path().join("store")).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let log = &log;
                scope.spawn(move || write_and_delete(log, writer))
            })
            .collect();
        for reader in 0..2 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut random = SplitMix64::new(reader);
                while !done.load(Ordering::SeqCst) {
                    read_anything(log, &mut random);
                }
            });
        }
        let (log, finished) = (&log, &done);
        scope.spawn(move || {
            while !finished.load(Ordering::SeqCst) {
                log.checkpoint().unwrap();
                log.reclaim().unwrap();
                assert_eq!(log.adopt_orphans().unwrap().runs, []);
                let report = log.verify().unwrap();
                assert!(report.is_clean(), "{:?}", report.problems);
                log.stats().unwrap();
            }
        });
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        for result in results {
            result.unwrap();
        }
    });
    assert_eq!(log.list_runs(&RunQuery::new().limit(1000)).unwrap().runs.len(), 3 * 10);
    assert!(log.verify().unwrap().is_clean());
}

/// Starts runs, appends to them, ends them, and deletes all but the last ten.
fn write_and_delete(log: &RunLog, writer: u64) {
    let agent = format!("agent-{writer}");
    let unsynced = || Metadata::default().durability(Durability::Process);
    let outcome = Outcome::completed().durability(Durability::Process);
    for number in 0..150 {
        let id = format!("{writer}-{number}");
        let run = log.start_run(&agent, &id, unsynced()).unwrap();
        for seq in 0..20 {
            run.append(&payload(writer << 16 | number, seq)).unwrap();
        }
        run.end(&outcome).unwrap();
        assert_eq!(log.run(&id).unwrap().records, 20);
        for (seq, record) in (0..).zip(log.trace(&id).unwrap()) {
            assert!(record.unwrap().payload() == payload(writer << 16 | number, seq));
        }
        if number >= 10 {
            let old = format!("{writer}-{}", number - 10);
            log.delete_run(&old).unwrap();
            assert!(log.run(&old).unwrap_err().is_not_found());
        }
    }
}

/// Reads runs of others, which may be deleted at any time.
fn read_anything(log: &RunLog, random: &mut SplitMix64) {
    let mut cursor = None;
    let mut seen = BTreeSet::new();
    loop {
        let page = log.list_runs(&RunQuery::new().limit(7).after(cursor)).unwrap();
        for run in &page.runs {
            assert!(seen.insert(run.run.clone()), "{} was listed twice", run.run);
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let ids: Vec<&RunId> = seen.iter().collect();
    if ids.is_empty() {
        return;
    }
    let id = ids[random.index(ids.len())];
    match log.trace(id) {
        Ok(trace) => {
            let (writer, number) = id.as_str().split_once('-').unwrap();
            let run: u64 = writer.parse::<u64>().unwrap() << 16 | number.parse::<u64>().unwrap();
            for (seq, record) in (0..).zip(trace) {
                assert!(record.unwrap().payload() == payload(run, seq));
            }
        }
        Err(error) => assert!(error.is_not_found(), "{error:?}"),
    }
    if let Err(error) = log.outcome(id) {
        assert!(error.is_not_found(), "{error:?}");
    }
    for agent in log.agents(None, 10).unwrap() {
        log.list_runs(&RunQuery::new().agent(agent.as_str()).limit(5)).unwrap();
    }
    log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10)).unwrap();
}
