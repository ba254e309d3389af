//! A process that only reads: what it sees beside a writer, of a closed store, and of one whose
//! writer died.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use runlog::storage::MemoryStorage;
use runlog::{
    Compaction, Compression, Error, NewRecord, Options, Outcome, Reader, ReaderOptions, Retention,
    RunLog, RunQuery, RunStatus, Seq,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

/// The payload of a record, of which each byte says whose it is.
pub(crate) fn payload(run: &str, seq: u64) -> Vec<u8> {
    let mut rng =
        SplitMix64::new(seq ^ run.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte)));
    let len = match rng.below(40) {
        0 => 9_000 + rng.below(9_000),
        1..=4 => rng.below(3_000),
        _ => rng.below(200),
    };
    let mut bytes = format!("{run}/{seq}/").into_bytes();
    bytes.extend((0..len).map(|_| rng.below(256) as u8));
    bytes
}

/// What the writer has done so far of a run.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Done {
    /// Records that are acknowledged, and records of which the append has begun.
    pub(crate) acknowledged: u64,
    begun: u64,
    /// Since when it is being deleted, and since when it is.
    pub(crate) deleting: bool,
    pub(crate) deleted: bool,
    pub(crate) ended: bool,
    ending: bool,
}

pub(crate) type Shared = Arc<Mutex<BTreeMap<String, Done>>>;

pub(crate) fn writes(log: &RunLog, shared: &Shared, seed: u64, steps: u64, at: &AtomicU64) {
    let mut rng = SplitMix64::new(seed);
    let mut open: Vec<(String, runlog::RunWriter)> = Vec::new();
    let change = |run: &str, change: &dyn Fn(&mut Done)| {
        change(shared.lock().unwrap().entry(run.to_owned()).or_default());
    };
    for step in 0..steps {
        at.store(step, Ordering::Relaxed);
        if open.is_empty() || rng.below(12) == 0 && open.len() < 24 {
            let run = format!("run-{seed}-{step}");
            change(&run, &|_| {});
            let agent = format!("agent-{}", rng.below(3));
            open.push((run.clone(), log.start_run(&agent, &run, ()).unwrap()));
        }
        let place = rng.below(open.len() as u64) as usize;
        let (run, writer) = &open[place];
        let seq = shared.lock().unwrap()[run].acknowledged;
        match rng.below(24) {
            0 => {
                change(run, &|done| done.ending = true);
                writer.end(&Outcome::completed()).unwrap();
                change(run, &|done| done.ended = true);
                open.swap_remove(place);
            }
            1 => {
                // A batch counts whole or not at all.
                let count = 2 + rng.below(6);
                change(run, &|done| done.begun += count);
                let payloads: Vec<_> = (seq..seq + count).map(|seq| payload(run, seq)).collect();
                let records: Vec<_> = payloads.iter().map(|bytes| NewRecord::new(bytes)).collect();
                writer.append_batch(&records).unwrap();
                change(run, &|done| done.acknowledged += count);
            }
            2 => {
                let ended: Vec<String> = {
                    let shared = shared.lock().unwrap();
                    let of_mine = |(run, done): &(&String, &Done)| {
                        done.ended && !done.deleting && run.starts_with(&format!("run-{seed}-"))
                    };
                    shared.iter().filter(of_mine).map(|(run, _)| run.clone()).collect()
                };
                if ended.len() > 6 {
                    let run = &ended[rng.below(ended.len() as u64) as usize];
                    change(run, &|done| done.deleting = true);
                    log.delete_run(run.as_str()).unwrap();
                    change(run, &|done| done.deleted = true);
                }
            }
            3 if rng.below(8) == 0 => drop(log.compact().unwrap()),
            4 => {
                let value = format!("{seed}-{step}");
                log.docs()
                    .put("docs", &format!("{}", rng.below(9)), &NewRecord::new(value.as_bytes()))
                    .unwrap();
            }
            _ => {
                change(run, &|done| done.begun += 1);
                let level = if rng.below(30) == 0 {
                    runlog::Durability::Disk
                } else {
                    runlog::Durability::Process
                };
                writer
                    .append_record(&NewRecord::new(&payload(run, seq)).durability(level))
                    .unwrap();
                change(run, &|done| done.acknowledged += 1);
            }
        }
    }
}

/// Asks for one run, and compares the answer with what the writer had done before the refresh, and
/// what it has begun after the answer.
fn check_run(reader: &Reader, shared: &Shared, run: &str, before: &Done, rng: &mut SplitMix64) {
    let trace = match reader.trace(run) {
        Ok(trace) => trace,
        Err(Error::RunNotFound { .. } | Error::Evicted { .. }) => {
            let now = shared.lock().unwrap()[run].clone();
            assert!(
                now.deleting || before.acknowledged == 0 && !before.ended,
                "{run} is missing: {before:?} {now:?}"
            );
            return;
        }
        Err(error) => panic!("{run}: {error}"),
    };
    let backward = rng.below(4) == 0;
    let items: Vec<_> = if backward { trace.rev().collect() } else { trace.collect() };
    let now = shared.lock().unwrap()[run].clone();
    let (mut seqs, mut gone) = (Vec::new(), false);
    for item in items {
        match item {
            Ok(record) => {
                assert!(!gone, "a record behind the end");
                let seq = record.seq().0;
                assert_eq!(record.payload(), payload(run, seq), "{run} {seq}");
                seqs.push(seq);
            }
            Err(Error::Evicted { .. }) => gone = true,
            Err(error) => panic!("{run}: {error} after {seqs:?}"),
        }
    }
    if gone {
        assert!(now.deleting, "{run} was not deleted");
        return;
    }
    if backward {
        seqs.reverse();
    }
    let count = seqs.len() as u64;
    assert!(seqs.iter().copied().eq(0..count), "{run}: {seqs:?}");
    assert!(count >= before.acknowledged, "{run}: {count} of {before:?}");
    assert!(count <= now.begun, "{run}: {count} of {now:?}");
    assert!(!before.deleted, "{run} was deleted");
}

fn reads(reader: &Reader, shared: &Shared, seed: u64, over: &AtomicBool) -> u64 {
    let (mut rng, mut looks) = (SplitMix64::new(seed), 0);
    loop {
        let is_last = over.load(Ordering::Acquire);
        let before = shared.lock().unwrap().clone();
        reader.refresh().unwrap();
        let runs: Vec<&String> = before.keys().collect();
        for _ in 0..8 {
            if runs.is_empty() {
                break;
            }
            let newest = rng.below(3) == 0;
            let place = if newest { runs.len() - 1 } else { rng.below(runs.len() as u64) as usize };
            check_run(reader, shared, runs[place], &before[runs[place]], &mut rng);
            looks += 1;
        }
        // A list has each living run once, with its status.
        let listed: Vec<_> = reader.runs(&RunQuery::new()).map(|run| run.unwrap()).collect();
        let now = shared.lock().unwrap().clone();
        let ids: BTreeMap<&str, RunStatus> =
            listed.iter().map(|run| (run.run.as_str(), run.status)).collect();
        assert_eq!(ids.len(), listed.len(), "a run is listed twice");
        for (run, done) in &before {
            let found = ids.get(run.as_str());
            if !now[run].deleting && (done.acknowledged > 0 || done.ended) {
                assert!(found.is_some(), "{run} is not listed");
            }
            if done.deleted {
                assert_eq!(found, None, "{run} was deleted");
            }
            if done.ended
                && let Some(status) = found
            {
                assert_eq!(*status, RunStatus::Completed, "{run}");
            }
            if !now[run].ending
                && let Some(status) = found
            {
                assert_eq!(*status, RunStatus::InProgress, "{run}");
            }
        }
        looks += 1;
        if is_last {
            return looks;
        }
    }
}

pub(crate) fn options() -> Options {
    Options::new().extent_size(64 << 10).compaction(Compaction::new())
}

#[test]
fn readers_beside_writers_see_all_that_was_acknowledged_and_nothing_else() {
    let (dir, steps) = (TempDir::new().unwrap(), 3_000);
    let path = dir.path().join("store");
    let log = options().open(&path).unwrap();
    let (shared, over) = (Shared::default(), AtomicBool::new(false));
    let at = AtomicU64::new(0);
    let looks = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let options = ReaderOptions::new().shared_bytes([0, 1 << 20][seed as usize % 2]);
                let reader = options.open(&path).unwrap();
                let (shared, over) = (&shared, &over);
                scope.spawn(move || reads(&reader, shared, seed, over))
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let (log, shared, at) = (&log, &shared, &at);
                scope.spawn(move || writes(log, shared, seed, steps, at))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
    });
    assert!(looks > 20, "only {looks} looks");
    // The store itself says the same.
    let reader = Reader::open(&path).unwrap();
    let report = reader.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let of = |runs: Vec<runlog::Result<runlog::RunSummary>>| -> Vec<_> {
        runs.into_iter().map(|run| run.unwrap()).collect()
    };
    let mine = of(log.runs(&RunQuery::new()).collect());
    assert_eq!(of(reader.runs(&RunQuery::new()).collect()), mine);
    for run in &mine {
        let one: Vec<_> =
            log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect();
        let other: Vec<_> =
            reader.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect();
        assert_eq!(one, other);
        let from = Seq(one.len() as u64 / 2);
        assert_eq!(
            reader.trace(run).unwrap().range(from..).unwrap().count(),
            one.len() - one.len() / 2
        );
    }
    for key in 0..9 {
        let key = key.to_string();
        let of = |found: Option<runlog::Document>| {
            found.map(|found| (found.version(), found.payload().to_vec()))
        };
        assert_eq!(
            of(reader.docs().get("docs", &key).unwrap()),
            of(log.docs().get("docs", &key).unwrap())
        );
    }
    for policy in [Retention::new().keep_newest(3), Retention::new().max_bytes(100 << 10)] {
        // The background work may still move runs, which changes what their frames take.
        let same = (0..1000).any(|_| {
            let before = log.gc_plan(&policy).unwrap();
            reader.refresh().unwrap();
            let found = reader.gc_plan(&policy).unwrap();
            found == before && log.gc_plan(&policy).unwrap() == before
        });
        assert!(same, "the plans differ: {policy:?}");
    }
    log.close().unwrap();
}

#[test]
fn a_plan_counts_what_the_frames_of_a_run_take_after_a_compaction() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new()
        .extent_size(64 << 10)
        .background(false)
        .compression(Compression::Zstd { level: 3 });
    let log = options.create_storage(storage.clone()).unwrap();
    // One that has ended stays in memory beside one in progress with the same id.
    let ended = log.start_run("a", "same", ()).unwrap();
    let running = log.start_run("b", "same", ()).unwrap();
    let text = b"again and again ".repeat(20);
    for round in 0..60 {
        for run in [&ended, &running] {
            run.append_batch(&[NewRecord::new(&text), NewRecord::new(&text)]).unwrap();
        }
        let filler = log.start_run("c", &format!("filler-{round}"), ()).unwrap();
        filler.append(&[7; 3_000]).unwrap();
        filler.end(&Outcome::completed()).unwrap();
    }
    ended.end(&Outcome::completed()).unwrap();
    for again in 0..3 {
        for round in (again * 20)..(again * 20 + 20) {
            log.delete_run(&format!("filler-{round}")).unwrap();
        }
        running.append(&[8; 7_000]).unwrap();
        log.checkpoint().unwrap();
        log.compact().unwrap();
        running.append_batch(&[NewRecord::new(&text), NewRecord::new(&text)]).unwrap();
        let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
        for most in [1, 1 << 10, 16 << 10, 64 << 10] {
            let policy = Retention::new().max_bytes(most);
            assert_eq!(log.gc_plan(&policy).unwrap(), reader.gc_plan(&policy).unwrap(), "{again}");
        }
    }
    let plan = log.gc_plan(&Retention::new().max_bytes(1)).unwrap();
    let bytes = plan.evict.iter().find(|run| run.run.as_str() == "same").unwrap().bytes;
    assert!(bytes < 60 * 2 * text.len() as u64 / 4, "{bytes} bytes are not compressed");
    log.delete_run(("a", "same")).unwrap();
    assert_eq!(log.receipts(1).unwrap()[0].bytes, bytes);
    drop((ended, running));
    log.close().unwrap();
}
