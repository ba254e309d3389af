//! Followers: each event once, in the order of the log, from any cursor, beside any work.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{
    Compression, Error, Follow, Follower, LogCursor, LogEvent, LogEventKind, Lsn, NewRecord,
    Options, Outcome, Reader, ReaderOptions, RunLog, RunNo, RunRef,
};
use tempfile::TempDir;

use crate::readers::replicas::options;
use crate::support::allocations::most_of;
use crate::support::crowd::{Beside, Ledger, RunKey, work_beside};

/// All that is in the log by now.
pub(crate) fn all(follower: &mut Follower) -> Vec<LogEvent> {
    core::iter::from_fn(|| follower.try_next().unwrap()).collect()
}

/// All that is in the log by now, and after how many events each error came. Further calls tell
/// nothing again.
pub(crate) fn all_and_errors(follower: &mut Follower) -> (Vec<LogEvent>, Vec<(usize, Error)>) {
    let (mut events, mut errors, mut nothing) = (Vec::new(), Vec::new(), 0);
    while nothing < 3 {
        match follower.try_next() {
            Ok(Some(event)) => events.push(event),
            Ok(None) => nothing += 1,
            Err(error) => errors.push((events.len(), error)),
        }
    }
    (events, errors)
}

/// An event in short.
pub(crate) fn told(event: &LogEvent) -> String {
    let what = match &event.kind {
        LogEventKind::Started(metadata) => format!("started {}", text(metadata.payload())),
        LogEventKind::Record(record) => format!("{} {}", record.seq(), text(record.payload())),
        LogEventKind::Ended(outcome) => format!("ended {}", outcome.status()),
        LogEventKind::Deleted { rule, .. } => format!("deleted {rule}"),
        other => format!("{other:?}"),
    };
    format!("{}/{}: {what}", event.agent, event.run)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(crate) fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// A store with a little of everything.
pub(crate) fn store() -> (Arc<MemoryStorage>, RunLog, Vec<&'static str>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let one = log.start_run("a", "one", runlog::Metadata::new(b"goal")).unwrap();
    let two = log.start_run("b", "two", ()).unwrap();
    one.append(b"x").unwrap();
    two.append(b"y").unwrap();
    let batch = [NewRecord::new(b"p"), NewRecord::new(b"q")];
    one.append_batch(&batch).unwrap();
    log.docs().put("documents", "are", &NewRecord::new(b"no runs")).unwrap();
    one.end(&Outcome::failed()).unwrap();
    log.delete_run("one").unwrap();
    two.append(b"z").unwrap();
    let expected = vec![
        "a/one: started goal",
        "b/two: started ",
        "a/one: 0 x",
        "b/two: 0 y",
        "a/one: 1 p",
        "a/one: 2 q",
        "a/one: ended failed",
        "a/one: deleted deleted",
        "b/two: 1 z",
    ];
    drop((one, two));
    (storage, log, expected)
}

#[test]
fn a_follower_that_kept_up_is_told_everything_in_the_order_of_the_log() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let mut outside = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let mut inside = log.follow(Follow::Everything, LogCursor::START).unwrap();
    let mut events = [Vec::new(), Vec::new()];
    let mut look = || {
        for (events, follower) in events.iter_mut().zip([&mut outside, &mut inside]) {
            events.extend(all(follower).iter().map(told));
        }
    };
    let one = log.start_run("a", "one", runlog::Metadata::new(b"goal")).unwrap();
    look();
    one.append(b"x").unwrap();
    one.append_batch(&[NewRecord::new(b"p"), NewRecord::new(b"q")]).unwrap();
    look();
    one.end(&Outcome::completed()).unwrap();
    look();
    log.delete_run("one").unwrap();
    look();
    let expected = [
        "a/one: started goal",
        "a/one: 0 x",
        "a/one: 1 p",
        "a/one: 2 q",
        "a/one: ended completed",
        "a/one: deleted deleted",
    ];
    assert_eq!(events[0], expected);
    assert_eq!(events[1], expected);
    log.close().unwrap();
    assert!(inside.try_next().unwrap().is_none());
    assert!(inside.next().is_none(), "the store of this process is closed");
}

#[test]
fn a_follower_goes_on_from_each_cursor_and_is_told_each_event_once() {
    let (storage, log, expected) = store();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let events = all(&mut reader.follow(Follow::Everything, LogCursor::START).unwrap());
    // What was deleted before anybody followed it is left out.
    let expected: Vec<_> = expected
        .into_iter()
        .filter(|event| !event.starts_with("a/one") || event.contains("deleted"))
        .collect();
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), expected);
    for (number, event) in events.iter().enumerate() {
        let cursor: LogCursor = event.cursor.to_string().parse().unwrap();
        let rest = all(&mut reader.follow(Follow::Everything, cursor).unwrap());
        assert_eq!(rest.iter().map(told).collect::<Vec<_>>(), expected[number + 1..]);
    }
    let end = reader.end_cursor().unwrap();
    assert!(all(&mut reader.follow(Follow::Everything, end).unwrap()).is_empty());
    log.start_run("c", "new", ()).unwrap();
    let new = all(&mut reader.follow(Follow::Everything, end).unwrap());
    assert_eq!(new.iter().map(told).collect::<Vec<_>>(), ["c/new: started "]);
    // A cursor of another store is no place in this one.
    let (_, other, _) = store();
    let foreign = other.follow(Follow::Everything, end);
    assert!(foreign.unwrap_err().is_invalid_input());
}

#[test]
fn an_agent_or_a_run_is_followed_alone() {
    let (storage, log, _) = store();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let follow = |what: Follow<'_>| -> Vec<String> {
        let mut follower = reader.follow(what, LogCursor::START).unwrap();
        all(&mut follower).iter().map(told).collect()
    };
    let two = ["b/two: started ", "b/two: 0 y", "b/two: 1 z"];
    assert_eq!(follow(Follow::Agent("b")), two);
    assert_eq!(follow(Follow::Run(RunRef::from("two"))), two);
    assert_eq!(follow(Follow::Run(RunRef::from(("b", "two")))), two);
    assert_eq!(follow(Follow::Agent("a")), ["a/one: deleted deleted"]);
    assert!(follow(Follow::Run(RunRef::from(("a", "two")))).is_empty());
    assert!(follow(Follow::Run(RunRef::from("later"))).is_empty());
    assert!(reader.follow(Follow::Agent(""), LogCursor::START).is_err());
    log.close().unwrap();
}

#[test]
fn large_and_compressed_records_are_told_whole() {
    let storage = Arc::new(MemoryStorage::new());
    let options = small().compression(Compression::Zstd { level: 3 });
    let log = options.create_storage(storage.clone()).unwrap();
    let mut expected = Vec::new();
    let runs: Vec<_> = (0..4).map(|run| format!("run-{run}")).collect();
    let writers: Vec<_> = runs.iter().map(|run| log.start_run("agent", run, ()).unwrap()).collect();
    for seq in 0..60 {
        for (run, writer) in runs.iter().zip(&writers) {
            let len = if seq == 7 { 40_000 } else { 300 };
            let bytes: Vec<u8> =
                format!("{run} {seq} again ").into_bytes().into_iter().cycle().take(len).collect();
            writer.append(&bytes).unwrap();
            expected.push((run.clone(), seq, bytes));
        }
    }
    for writer in &writers[..3] {
        writer.end(&Outcome::completed()).unwrap();
    }
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let records = |from: LogCursor| -> Vec<(String, u64, Vec<u8>)> {
        let events = all(&mut reader.follow(Follow::Everything, from).unwrap());
        let records = events.into_iter().filter_map(|event| match event.kind {
            LogEventKind::Record(record) => {
                Some((event.run.to_string(), record.seq().0, record.payload().to_vec()))
            }
            _ => None,
        });
        records.collect()
    };
    assert!(records(LogCursor::START) == expected);
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let middle = (0..150).map(|_| follower.try_next().unwrap().unwrap().cursor).last().unwrap();
    let before = records(middle);
    // Filled up, so that what was written is compacted.
    let last = &writers[3];
    let full = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == full {
        last.append(&[b'f'; 5_000]).unwrap();
    }
    log.compact().unwrap();
    let is_old = |run: &str, seq: u64| run != "run-3" || seq < 60;
    let mut after = records(middle);
    after.retain(|(run, seq, _)| is_old(run, *seq));
    assert!(after == before);
    let mut rest: Vec<_> = all(&mut follower)
        .into_iter()
        .filter_map(|event| match event.kind {
            LogEventKind::Record(record) => {
                Some((event.run.to_string(), record.seq().0, record.payload().to_vec()))
            }
            _ => None,
        })
        .collect();
    rest.retain(|(run, seq, _)| is_old(run, *seq));
    assert!(rest == before);
    drop(writers);
    log.close().unwrap();
}

/// What a follower was told of a run.
#[derive(Debug, Default)]
struct Told {
    records: u64,
    ended: bool,
    deleted: bool,
}

/// Follows until the end, and starts again now and then from a stored cursor.
fn follows(begin: impl Fn(LogCursor) -> Follower, over: &AtomicBool) -> HashMap<RunKey, Told> {
    let (mut follower, mut last, mut restarts) = (begin(LogCursor::START), Lsn(0), 0);
    let mut runs: HashMap<RunKey, Told> = HashMap::new();
    let mut numbers: HashMap<RunKey, RunNo> = HashMap::new();
    for count in 1_u64.. {
        let is_last = over.load(Ordering::Acquire);
        let Some(event) = follower.next_within(Some(Duration::from_millis(1))).unwrap() else {
            if is_last {
                assert!(restarts > 1, "only {count} events");
                break;
            }
            continue;
        };
        let key = RunKey::from_run(event.run.as_str());
        let run = runs.entry(key).or_default();
        assert_eq!(*numbers.entry(key).or_insert(event.number), event.number);
        match &event.kind {
            LogEventKind::Started(_) => assert_eq!((run.records, run.ended), (0, false)),
            LogEventKind::Record(record) => {
                key.check(run.records, record);
                assert!(record.lsn() > last, "out of order");
                assert!(!run.deleted, "told behind its deletion");
                (run.records, last) = (run.records + 1, record.lsn());
            }
            LogEventKind::Ended(_) => run.ended = true,
            LogEventKind::Deleted { .. } => run.deleted = true,
            _ => {}
        }
        if count % 499 == 0 {
            let cursor = follower.cursor().to_string();
            assert_eq!(cursor, event.cursor.to_string());
            follower = begin(cursor.parse().unwrap());
            restarts += 1;
        }
    }
    runs
}

#[test]
fn followers_beside_writers_compaction_and_deletions_are_told_each_record_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    let (log, ledger) = (options().open(&path).unwrap(), Ledger::default());
    let outside: Beside<'_, _> = Box::new(|over| {
        let reader = Reader::open(&path).unwrap();
        follows(|from| reader.follow(Follow::Everything, from).unwrap(), over)
    });
    let inside: Beside<'_, _> =
        Box::new(|over| follows(|from| log.follow(Follow::Everything, from).unwrap(), over));
    for told in work_beside(&log, &ledger, 4_000, vec![outside, inside]) {
        for (run, done) in ledger.all() {
            let Some(told) = told.get(&run) else { panic!("{run:?} was not told: {done:?}") };
            assert_eq!(told.deleted, done.deleted, "{run:?}");
            if !done.deleted {
                assert_eq!((told.records, told.ended), (done.acknowledged, done.ended), "{run:?}");
            }
        }
    }
    log.close().unwrap();
}

#[test]
fn followers_that_come_and_go_while_nothing_is_written_leave_nothing() {
    let (_storage, log, _) = store();
    let come_and_go = |count: usize| {
        let follow = || drop(log.follow(Follow::Everything, LogCursor::START).unwrap());
        most_of(|| (0..count).for_each(|_| follow())).1
    };
    let (few, many) = (come_and_go(100), come_and_go(4000));
    assert!(many < few + (32 << 10), "{few} bytes for 100 of them, {many} for 4,000");
}
