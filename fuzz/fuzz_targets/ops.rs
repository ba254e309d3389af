//! Any order of calls against a model of plain collections: after kills and reopenings, everything
//! that was acknowledged is there, and nothing else.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Durability, Error, NewRecord, Outcome, Retention, RunLog, RunQuery, RunStatus,
};
use runlog_fuzz::surroundings::options;

const AGENT: &str = "agent";
/// The most calls of one input.
const CALLS: usize = 200;

#[derive(Debug, Arbitrary)]
enum Op {
    Start {
        run: u8,
    },
    Append {
        run: u8,
        len: u16,
        fill: u8,
        disk: bool,
    },
    AppendUnstarted {
        run: u8,
        fill: u8,
    },
    Batch {
        run: u8,
        lens: [u8; 3],
        fill: u8,
    },
    Large {
        run: u8,
        len: u16,
    },
    End {
        run: u8,
    },
    Delete {
        run: u8,
    },
    Adopt,
    Sync,
    Checkpoint,
    Reclaim,
    Compact,
    Collect {
        keep: u8,
    },
    Hold {
        run: u8,
        held: bool,
    },
    Erase {
        run: u8,
    },
    Verify,
    /// The process is killed.
    Crash,
    Reopen,
}

#[derive(Debug, Default, Clone)]
struct Run {
    payloads: Vec<Vec<u8>>,
    ended: Option<RunStatus>,
    touched: bool,
    started: bool,
    held: bool,
}

struct Store {
    storage: Arc<MemoryStorage>,
    log: RunLog,
    runs: BTreeMap<u8, Run>,
}

fn id(run: u8) -> String {
    format!("run {}", run % 12)
}

impl Store {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).expect("memory can be written");
        Self { storage, log, runs: BTreeMap::new() }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Start { run } => self.start(run),
            Op::Append { run, len, fill, disk } => {
                let payload = vec![fill; usize::from(len % 3_000)];
                let level = if disk { Durability::Disk } else { Durability::Process };
                self.append(run, payload, level, Allow::nothing());
            }
            Op::AppendUnstarted { run, fill } => {
                self.append(run, vec![fill; 9], Durability::Process, Allow::everything());
            }
            Op::Large { run, len } => {
                let payload = vec![3; 8_000 + usize::from(len)];
                self.append(run, payload, Durability::Process, Allow::nothing());
            }
            Op::Batch { run, lens, fill } => self.batch(run, lens, fill),
            Op::End { run } => self.end(run),
            Op::Delete { run } => self.delete(run),
            Op::Adopt => self.adopt(),
            Op::Sync => self.log.sync().expect("memory can be synced"),
            Op::Checkpoint => self.log.checkpoint().expect("a checkpoint works"),
            Op::Reclaim => self.log.reclaim().expect("reclaiming works"),
            Op::Compact => drop(self.log.compact().expect("compacting works")),
            Op::Collect { keep } => self.collect(keep),
            Op::Hold { run, held } => self.hold(run, held),
            Op::Erase { run } => self.erase(run),
            Op::Verify => self.verify(),
            Op::Crash => {
                let image = self.storage.to_bytes();
                self.open(Arc::new(MemoryStorage::from_bytes(image)));
            }
            Op::Reopen => {
                self.log.clone().close().expect("closing works");
                self.open(self.storage.clone());
            }
        }
    }

    fn open(&mut self, storage: Arc<MemoryStorage>) {
        self.log = options().open_storage(storage.clone()).expect("what was written opens");
        self.storage = storage;
        assert!(self.log.recovery_report().is_clean(), "{:?}", self.log.recovery_report());
        self.runs.values_mut().for_each(|run| run.touched = false);
        self.compare();
    }

    fn start(&mut self, run: u8) {
        let started = self.log.start_run(AGENT, &id(run), b"metadata");
        match self.runs.get_mut(&(run % 12)) {
            Some(Run { ended: Some(_), started: false, .. }) => {
                assert!(matches!(started, Err(Error::RunEnded { .. })), "{started:?}");
            }
            Some(known) => {
                started.expect("a run can be started again with the same metadata");
                (known.touched, known.started) = (true, true);
            }
            None => {
                started.expect("a new run can be started");
                let new = Run { touched: true, started: true, ..Run::default() };
                self.runs.insert(run % 12, new);
            }
        }
    }

    fn append(&mut self, run: u8, payload: Vec<u8>, level: Durability, allow: Allow) {
        let record = NewRecord::new(&payload).durability(level);
        let appended = self.log.append_to(AGENT, &id(run), &record, allow);
        let known = self.runs.get(&(run % 12));
        let accepted = known.map_or(allow.unstarted, |run| run.ended.is_none() || allow.after_end);
        assert_eq!(appended.is_ok(), accepted, "{appended:?}");
        if accepted {
            let known = self.runs.entry(run % 12).or_default();
            known.payloads.push(payload);
            known.touched = true;
        }
    }

    fn batch(&mut self, run: u8, lens: [u8; 3], fill: u8) {
        let payloads = lens.map(|len| vec![fill; usize::from(len)]);
        let records: Vec<NewRecord<'_>> =
            payloads.iter().map(|payload| NewRecord::new(payload)).collect();
        let appended = self.log.append_batch_to(AGENT, &id(run), &records, Allow::nothing());
        let known = self.runs.get_mut(&(run % 12)).filter(|run| run.ended.is_none());
        assert_eq!(appended.is_ok(), known.is_some(), "{appended:?}");
        if let Some(known) = known {
            known.payloads.extend(payloads);
            known.touched = true;
        }
    }

    fn end(&mut self, run: u8) {
        let ended = self.log.end_run(AGENT, &id(run), &Outcome::failed(), Allow::nothing());
        let known = self.runs.get_mut(&(run % 12));
        let accepted = known
            .as_ref()
            .is_some_and(|run| run.ended.is_none() || run.ended == Some(RunStatus::Failed));
        assert_eq!(ended.is_ok(), accepted, "{ended:?}");
        if let (true, Some(known)) = (accepted, known) {
            known.ended = Some(RunStatus::Failed);
        }
    }

    fn delete(&mut self, run: u8) {
        let deleted = self.log.delete_run((AGENT, id(run).as_str()));
        assert_eq!(deleted.is_ok(), self.goes(run), "{deleted:?}");
    }

    /// Marks a run as deleted if it may be; returns whether it may.
    fn goes(&mut self, run: u8) -> bool {
        let known = self.runs.get(&(run % 12));
        let goes = known.is_some_and(|run| run.ended.is_some() && !run.held);
        if goes {
            self.runs.remove(&(run % 12));
        }
        goes
    }

    fn erase(&mut self, run: u8) {
        let erased = self.log.erase_run((AGENT, id(run).as_str()));
        let (goes, is_there) = (self.goes(run), self.runs.contains_key(&(run % 12)));
        // Of a run that was deleted before it removes what remains.
        let removes = !is_there && erased.as_ref().is_ok_and(|erased| erased.bytes == 0);
        assert!(erased.is_ok() == goes || removes, "{erased:?}");
    }

    fn hold(&mut self, run: u8, held: bool) {
        let name = id(run);
        let changed = match held {
            true => self.log.hold((AGENT, name.as_str()), "fuzzing"),
            false => self.log.release((AGENT, name.as_str())),
        };
        match self.runs.get_mut(&(run % 12)) {
            Some(known) => {
                assert_eq!(changed.expect("a run that is there"), known.held != held);
                known.held = held;
            }
            None => assert!(matches!(changed, Err(Error::RunNotFound { .. })), "{changed:?}"),
        }
    }

    fn collect(&mut self, keep: u8) {
        let keep = u64::from(keep % 4) + 1;
        let policy = Retention::new().keep_newest(keep);
        let collected = self.log.gc(&policy).expect("collecting works");
        let completed = self.runs.values().filter(|run| run.ended.is_some()).count() as u64;
        let mut gone = 0;
        for evicted in collected.plan.evict.iter() {
            let number = (0..12).find(|run| evicted.run == id(*run).as_str());
            assert!(self.goes(number.expect("it was started")), "{evicted:?}");
            gone += 1;
        }
        assert!(gone <= completed.saturating_sub(keep), "{gone} of {completed}");
    }

    fn adopt(&mut self) {
        let adopted = self.log.adopt_orphans().expect("adopting works");
        let orphans = self.runs.values_mut().filter(|run| run.ended.is_none() && !run.touched);
        let mut count = 0;
        for run in orphans {
            run.ended = Some(RunStatus::Interrupted);
            count += 1;
        }
        assert_eq!(adopted.runs.len(), count, "{adopted:?}");
    }

    fn verify(&self) {
        let report = self.log.verify().expect("memory can be read");
        assert!(report.is_clean(), "{:?}", report.problems);
    }

    fn compare(&self) {
        let listed = self.log.list_runs(&RunQuery::new().limit(100)).expect("a list").runs;
        assert_eq!(listed.len(), self.runs.len());
        for (number, run) in &self.runs {
            let ids = (AGENT, id(*number));
            let ids = (ids.0, ids.1.as_str());
            let summary = self.log.run(ids).expect("the run is there");
            assert_eq!(summary.status, run.ended.unwrap_or(RunStatus::InProgress));
            assert_eq!(summary.records, run.payloads.len() as u64);
            let records = self.log.trace(ids).expect("the run is there");
            let back: Vec<Vec<u8>> =
                records.map(|record| record.expect("a record").payload().to_vec()).collect();
            assert!(back == run.payloads, "run {number} is as it was appended");
        }
    }
}

fuzz_target!(|ops: Vec<Op>| {
    let mut store = Store::new();
    for op in ops.iter().take(CALLS) {
        store.apply(op);
    }
    store.compare();
    store.verify();
    store.apply(&Op::Crash);
    store.apply(&Op::Reopen);
});
