//! The operations of which two run at the same time.

use runlog::env::Step;
use runlog::{
    Allow, Batch, Durability, Error, Expected, NewRecord, Outcome, Receipt, Retention, Rule,
    RunLog, RunPage, RunQuery, RunRef, RunStatus,
};

use super::Store;

/// What an operation answered, without numbers that depend on who came first.
pub(super) type Answer = String;

pub(super) type Operation = (&'static str, fn(&Store) -> Answer);

pub(super) static LARGE: [u8; 40_000] = [7; 40_000];

pub(super) const OPERATIONS: &[Operation] = &[
    ("start", |s| say(s.log.start_run("a", "new", b"m"), |_| String::new())),
    ("start again", |s| say(s.log.start_run("a", "going 1", b"going 1"), |_| String::new())),
    ("start deleted", |s| say(s.log.start_run("a", "ended 1", b"again"), |_| String::new())),
    ("append", |s| say(s.writer.append(b"one"), |done| done.seq.to_string())),
    ("append durably", |s| {
        let record = NewRecord::new(b"two").durability(Durability::Disk);
        say(s.writer.append_record(&record), |done| done.seq.to_string())
    }),
    ("append large", |s| say(s.writer.append(&LARGE), |done| done.seq.to_string())),
    ("append batch", |s| {
        let records = [NewRecord::new(b"three"), NewRecord::new(&[9; 3000])];
        say(s.writer.append_batch(&records), |done| done.seq.to_string())
    }),
    ("append late", |s| {
        let record = NewRecord::new(b"late");
        let done = s.log.append_to("a", "ended 2", &record, Allow::everything());
        say(done, |done| done.seq.to_string())
    }),
    ("append unstarted", |s| {
        let record = NewRecord::new(b"first");
        let done = s.log.append_to("b", "new", &record, Allow::everything());
        say(done, |done| done.seq.to_string())
    }),
    ("end", |s| say(s.writer.end(&Outcome::completed()), |_| String::new())),
    ("end other", |s| {
        let done = s.log.end_run("a", "going 2", &Outcome::completed(), Allow::nothing());
        say(done, |_| String::new())
    }),
    ("delete", |s| say(s.log.delete_run(("a", "ended 1")), |done| done.bytes.to_string())),
    ("delete late", |s| say(s.log.delete_run(("a", "ended 2")), |_| String::new())),
    ("delete going", |s| say(s.log.delete_run(("a", "going 1")), |_| String::new())),
    ("erase", |s| match s.log.erase_run(("a", "ended 1")) {
        // Either of two erasures may remove the remains of a deleted run.
        Err(Error::RunNotFound { .. }) => "ok 0".to_owned(),
        erased => say(erased, |done| done.bytes.to_string()),
    }),
    ("hold", |s| say(s.log.hold(("a", "ended 1"), "why"), |changed| changed.to_string())),
    ("release", |s| say(s.log.release(("a", "held")), |changed| changed.to_string())),
    ("put", |s| say(s.log.docs().put("s", "d 1", &NewRecord::new(b"put")), |_| String::new())),
    ("put large", |s| {
        say(s.log.docs().put("s", "d 1", &NewRecord::new(&LARGE)), |_| String::new())
    }),
    ("put new", |s| {
        let value = NewRecord::new(b"new");
        say(s.log.docs().put_if("s", "d new", &value, Expected::Absent), |_| String::new())
    }),
    ("put if", |s| {
        // What it expects is what was there before either operation.
        let expected = Expected::Version(s.version);
        say(s.log.docs().put_if("s", "d 1", &NewRecord::new(b"if"), expected), |_| String::new())
    }),
    ("remove", |s| say(s.log.docs().delete("s", "d 1"), |there| there.to_string())),
    ("batch", |s| {
        let mut batch = Batch::new();
        batch.put("s", "d 1", NewRecord::new(b"batch"));
        batch.delete("s", "d 2");
        batch.append("a", "going 1", NewRecord::new(b"batch"));
        say(s.log.commit(&batch), |_| String::new())
    }),
    ("batch large", |s| {
        let mut batch = Batch::new();
        batch.put("s", "d 3", NewRecord::new(&LARGE));
        batch.append("a", "going 2", NewRecord::new(&LARGE));
        say(s.log.commit(&batch), |_| String::new())
    }),
    ("erase document", |s| say(s.log.docs().erase("s", "d 1"), |done| done.bytes.to_string())),
    ("plan", |s| {
        let plan = s.log.gc_plan(&Retention::new().keep_newest(3));
        say(plan, |plan| names(plan.evict.iter().map(|one| one.run.to_string())))
    }),
    ("collect", |s| {
        let done = s.log.gc(&Retention::new().keep_newest(3));
        say(done, |done| names(done.plan.evict.iter().map(|one| one.run.to_string())))
    }),
    ("evict", |s| {
        let runs = [("a", "ended 1"), ("a", "ended 3"), ("a", "going 1")];
        let runs = runs.map(|run| (RunRef::from(run), Rule::Deleted));
        say(s.log.evict(&runs), |done| names(done.plan.evict.iter().map(|one| one.run.to_string())))
    }),
    ("compact", |s| say(s.log.compact(), |_| String::new())),
    ("reclaim", |s| say(s.log.reclaim(), |()| String::new())),
    ("checkpoint", |s| say(s.log.checkpoint(), |()| String::new())),
    ("sync", |s| say(s.log.sync(), |()| String::new())),
    ("adopt", |s| {
        say(s.log.adopt_orphans(), |done| names(done.runs.iter().map(|run| run.1.to_string())))
    }),
    ("verify", |s| say(s.log.verify(), |found| format!("{:?}", found.problems))),
    ("stats", |s| say(s.log.stats(), |stats| stats.runs.to_string())),
    ("trace", |s| trace(&s.log, ("a", "going 1"))),
    ("trace ended", |s| trace(&s.log, ("a", "ended 1"))),
    ("run", |s| say(s.log.run(("a", "ended 2")), |run| run.records.to_string())),
    ("outcome", |s| say(s.log.outcome(("a", "going 1")), |found| found.is_some().to_string())),
    ("list", |s| say(s.log.list_runs(&RunQuery::new().limit(100)), listed)),
    ("list agent", |s| say(s.log.list_runs(&RunQuery::new().agent("a").limit(100)), listed)),
    ("in progress", |s| {
        let query = RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(100);
        say(s.log.list_runs(&query), listed)
    }),
    ("held", |s| say(s.log.held_runs(), |held| names(held.iter().map(|one| one.run.to_string())))),
    ("receipts", |s| {
        say(s.log.receipts(100), |kept: Vec<Receipt>| {
            names(kept.iter().map(|one| one.run.to_string()))
        })
    }),
    ("get", |s| {
        say(s.log.docs().get("s", "d 1"), |found| {
            found.map_or("none".to_owned(), |found| crc32fast::hash(found.payload()).to_string())
        })
    }),
    ("list documents", |s| {
        say(s.log.docs().list("s", "", None, 100), |page| {
            names(page.documents.iter().map(|one| format!("{} {}", one.key, one.bytes)))
        })
    }),
    ("reserve", |s| step(s, Step::Reserve)),
    ("checkpoint in the background", |s| step(s, Step::Checkpoint)),
    ("reclaim in the background", |s| step(s, Step::Reclaim)),
    ("give back", |s| step(s, Step::GiveBack)),
    ("compact in the background", |s| step(s, Step::Compact)),
    ("sync in the background", |s| step(s, Step::Sync)),
];

fn step(store: &Store, step: Step) -> Answer {
    store.background.run(step).to_string()
}

pub(super) fn say<T>(result: runlog::Result<T>, told: impl FnOnce(T) -> String) -> Answer {
    match result {
        Ok(value) => format!("ok {}", told(value)),
        Err(Error::Conflict { .. }) => "Conflict".to_owned(),
        Err(error) => {
            let text = format!("{error:?}");
            let end = text.find([' ', '(']).unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

pub(super) fn names(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.join(", ")
}

fn listed(page: RunPage) -> String {
    names(page.runs.iter().map(|one| format!("{} {}", one.run, one.status)))
}

pub(super) fn trace(log: &RunLog, run: (&str, &str)) -> Answer {
    say(log.trace(run), |trace| {
        let (mut count, mut all) = (0, crc32fast::Hasher::new());
        for record in trace {
            match record {
                Ok(record) => all.update(record.payload()),
                Err(error) => return format!("record {count}: {error:?}"),
            }
            count += 1;
        }
        format!("{count} records, {:08x}", all.finalize())
    })
}
