//! A list shows one moment of the call, whatever other calls do meanwhile.
//!
//! Method: each query runs once for each of its reads of the storage, and at that read another
//! handle does something: the answer must be the one from before or the one from after. The store
//! has no index, because the index is read under a lock that writers need.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use runlog::env::Environment;
use runlog::format::EXTENTS_AT;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Error, NewRecord, Options, Outcome, Retention, RunLog, RunPage, RunQuery, RunStatus,
    Timestamp,
};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;
use crate::support::callout::{Points, beside};
use crate::support::tap::Tap;

const EXTENT: u64 = 64 << 10;

#[derive(Default)]
struct Plan {
    reads: usize,
    /// Reads of other lengths do not count.
    lens: Range<usize>,
    at: Option<usize>,
    act: Option<Box<dyn FnOnce() + Send>>,
}

/// What happens at one of the reads of a store.
#[derive(Clone, Default)]
struct Interruption {
    plan: Arc<Mutex<Plan>>,
    /// No extent takes a write.
    is_full: Arc<AtomicBool>,
}

impl Interruption {
    /// A store of these bytes, at whose reads this happens.
    fn open(&self, options: &Options, bytes: Vec<u8>) -> RunLog {
        let interruption = self.clone();
        let memory = Arc::new(MemoryStorage::from_bytes(bytes));
        let storage = Tap::new(memory, move |call| {
            if call.is_read() {
                interruption.meet(call.len as usize);
            }
            let is_full = interruption.is_full.load(Ordering::Relaxed);
            if call.kind == OpKind::Write && call.offset >= EXTENTS_AT && is_full {
                return Err(ErrorKind::StorageFull.into());
            }
            Ok(())
        });
        options.open_storage(storage).unwrap()
    }

    /// Calls `act` at the read with this number from here on, counting only reads of this length.
    fn plan(&self, at: usize, lens: Range<usize>, act: impl FnOnce() + Send + 'static) {
        let act: Box<dyn FnOnce() + Send> = Box::new(act);
        *self.plan.lock().unwrap() = Plan { reads: 0, lens, at: Some(at), act: Some(act) };
    }

    /// Whether there was no such read.
    fn is_over(&self) -> bool {
        self.plan.lock().unwrap().act.take().is_some()
    }

    fn meet(&self, len: usize) {
        let act = {
            let mut plan = self.plan.lock().unwrap();
            plan.reads += usize::from(plan.lens.contains(&len));
            let due = plan.at == Some(plan.reads);
            plan.act.take_if(|_| due)
        };
        if let Some(act) = act {
            act();
        }
    }
}

fn options(index: bool) -> Options {
    let environment = Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(7)));
    Options::new().extent_size(EXTENT).background(false).index(index).environment(environment)
}

/// The image of a store with runs that go on and runs that have ended, in several segments.
fn image(index: bool) -> Vec<u8> {
    let memory = Arc::new(MemoryStorage::new());
    let log = options(index).create_storage(memory.clone()).unwrap();
    for run in 0..8 {
        let writer = log.start_run(&format!("agent-{run}"), &format!("run-{run}"), ()).unwrap();
        for _ in 0..4 {
            let _ = writer.append(&[b'x'; 9_000]).unwrap();
        }
        if run % 2 == 1 {
            let _ = writer.end(&Outcome::completed()).unwrap();
        }
        if run == 1 || run == 3 {
            let _ = log.hold(format!("run-{run}").as_str(), "a reason").unwrap();
        }
        let _ = log.docs().put("space", &format!("key-{run}"), &NewRecord::new(b"value")).unwrap();
    }
    log.checkpoint().unwrap();
    // In memory it has ended; in the catalog it is in progress. The directories of runs in memory
    // are read at the opening; those of the runs before it are not.
    end(&log, "run-6");
    log.close().unwrap();
    memory.to_bytes()
}

fn names(page: RunPage) -> String {
    page.runs.iter().map(|run| format!("{}/{} {:?}; ", run.agent, run.run, run.status)).collect()
}

type Question = fn(&RunLog) -> String;

const QUESTIONS: [(&str, Question); 8] = [
    ("in_progress", |log| {
        names(
            log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(100))
                .unwrap(),
        )
    }),
    ("in_progress, two", |log| {
        names(
            log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(2))
                .unwrap(),
        )
    }),
    ("all_runs", |log| names(log.list_runs(&RunQuery::new().limit(100)).unwrap())),
    ("all_runs, three", |log| names(log.list_runs(&RunQuery::new().limit(3)).unwrap())),
    ("runs", |log| names(log.list_runs(&RunQuery::new().agent("agent-2").limit(50)).unwrap())),
    ("agents", |log| format!("{:?}", log.agents(None, 100).unwrap())),
    ("list", |log| format!("{:?}", log.docs().list("space", "key", None, 100).unwrap())),
    ("gc_plan", |log| {
        let plan = log.gc_plan(&Retention::new().keep_newest(1)).unwrap();
        plan.evict.iter().map(|run| format!("{} ", run.run)).collect()
    }),
];

type Action = fn(&RunLog);

fn end(log: &RunLog, run: &str) {
    let _ = log.writer(run).unwrap().end(&Outcome::completed()).unwrap();
}

const ACTIONS: [(&str, Action); 7] = [
    ("end", |log| end(log, "run-2")),
    ("end and delete", |log| {
        end(log, "run-2");
        let _ = log.delete_run("run-2").unwrap();
    }),
    ("end, delete and forget", |log| {
        end(log, "run-2");
        let _ = log.delete_run("run-2").unwrap();
        log.compact().unwrap();
    }),
    ("start", |log| drop(log.start_run("agent-9", "run-9", ()).unwrap())),
    ("checkpoint", |log| {
        let writer = log.start_run("agent-8", "filler", ()).unwrap();
        for _ in 0..10 {
            let _ = writer.append(&[b'x'; 9_000]).unwrap();
        }
        log.checkpoint().unwrap();
    }),
    ("delete a document", |log| assert!(log.docs().delete("space", "key-4").unwrap())),
    ("gc", |log| {
        let _ = log.gc(&Retention::new().keep_newest(0)).unwrap();
        log.compact().unwrap();
    }),
];

/// Runs the query while something else is done at each read; returns how often.
fn ask(image: &[u8], (asked, question): (&str, Question), (done, action): (&str, Action)) -> usize {
    let (before, after) = {
        let log = Interruption::default().open(&options(false), image.to_vec());
        let before = question(&log);
        action(&log);
        (before, question(&log))
    };
    for at in 1.. {
        let interruption = Interruption::default();
        let log = interruption.open(&options(false), image.to_vec());
        let other = log.clone();
        interruption.plan(at, 0..usize::MAX, move || action(&other));
        let answer = question(&log);
        assert!(answer == before || answer == after, "{asked} beside {done}, read {at}: {answer}");
        if interruption.is_over() {
            return at - 1;
        }
    }
    unreachable!("there is an end to the reads")
}

#[test]
fn lists_are_of_one_moment() {
    let image = image(false);
    for question in QUESTIONS {
        let asked: usize = ACTIONS.iter().map(|action| ask(&image, question, *action)).sum();
        assert!(asked > ACTIONS.len(), "{} reads something", question.0);
    }
}

#[test]
fn a_check_beside_a_close_reports_no_damage() {
    let image = image(true);
    // The first read of this length is that of the manifest, with its lock held.
    for at in 2.. {
        let interruption = Interruption::default();
        let log = interruption.open(&options(true).index_cache(0), image.clone());
        let other = log.clone();
        // At the reads of whole segments: the index is closed before it is compared.
        interruption.plan(at, 8 << 10..usize::MAX, move || {
            let _ = other.close().unwrap();
        });
        match log.verify() {
            Ok(report) => {
                assert!(report.is_clean(), "read {at}: {:?}", report.problems);
                let is_over = interruption.is_over();
                assert_eq!(report.index_checked, is_over, "read {at}");
                if is_over {
                    assert!(at > 3);
                    break;
                }
            }
            Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
        }
    }
}

/// A checkpoint drops an index that it cannot write. Before that, appends seal the segment that is
/// read.
#[test]
fn a_check_beside_appends_and_an_index_that_is_dropped_reports_no_damage() {
    let image = image(true);
    let mut dropped = 0;
    for at in 2.. {
        let interruption = Interruption::default();
        let log = interruption.open(&options(true).index_cache(0), image.clone());
        let (other, is_full) = (log.clone(), Arc::clone(&interruption.is_full));
        interruption.plan(at, 8 << 10..usize::MAX, move || {
            let end = other.stats().unwrap().end.segment;
            while other.stats().unwrap().end.segment == end {
                let _ = other.writer("run-0").unwrap().append(&[b'y'; 9_000]).unwrap();
            }
            other.sync().unwrap();
            is_full.store(true, Ordering::Relaxed);
            other.checkpoint().unwrap();
            is_full.store(false, Ordering::Relaxed);
            assert_eq!(other.stats().unwrap().index_extents, 0);
        });
        let report = log.verify().unwrap();
        assert!(report.is_clean(), "read {at}: {:?}", report.problems);
        if interruption.is_over() {
            assert!(dropped > 1, "{dropped}");
            break;
        }
        dropped += usize::from(!report.index_checked);
    }
}

#[test]
fn a_check_beside_deletions_and_compactions_reports_no_damage() {
    let image = image(false);
    let actions = ACTIONS.iter().filter(|action| action.0.starts_with("end, ") || action.0 == "gc");
    for (done, action) in actions {
        for at in 1.. {
            let interruption = Interruption::default();
            let log = interruption.open(&options(false), image.clone());
            let other = log.clone();
            // At the headers of segments: no other read is so short.
            interruption.plan(at, 1..200, move || action(&other));
            let report = log.verify().unwrap();
            assert!(report.is_clean(), "{done}, read {at}: {:?}", report.problems);
            if interruption.is_over() {
                assert!(at > 3, "few segments");
                break;
            }
        }
    }
}

#[test]
fn held_runs_come_in_one_order() {
    let held = |index| {
        let log = Interruption::default().open(&options(index), image(index));
        let _ = log.hold("run-2", "late").unwrap();
        let held = log.held_runs().unwrap();
        held.into_iter().map(|held| held.run.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(held(true), ["run-1", "run-2", "run-3"]);
    assert_eq!(held(false), held(true));
}

#[test]
fn a_run_that_an_append_begins_is_no_orphan_of_another_life() {
    for point in 0.. {
        let points = Points::new(SimDisk::untracked(Vec::new()));
        let environment = Environment::system()
            .clock(Arc::new(points.with(SimClock::new(Timestamp(1_000_000_000)))))
            .entropy(Arc::new(points.with(SimEntropy::new(7))));
        let options = Options::new().extent_size(EXTENT).environment(environment);
        let options = options.scheduler(Arc::new(Background::default()));
        let log = options.create_storage(points.storage()).unwrap();
        let mut allow = Allow::nothing();
        allow.unstarted = true;
        let append = || {
            let record = NewRecord::new(b"first");
            format!("{:?}", log.append_to("agent", "new", &record, allow).map(|done| done.seq))
        };
        let adopt = || format!("{:?}", log.adopt_orphans().map(|done| done.runs.len()));
        let done = beside(&points, point, append, adopt);
        if !done.held {
            break;
        }
        assert_eq!(done.answers, ["Ok(Seq(0))", "Ok(0)"], "at call-out {point}");
    }
}
