//! On a disk that is full from any allocation on, everything that deletes does so, and gives the
//! space back. Method: each store is filled until nothing fits any more, with the disk full from
//! one allocation on, then from the next; then its deletions are called, once.
//!
//! Stores of more than 8 extents set one aside for compaction; in smaller ones the index gives way.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use runlog::{Error, NewRecord, RunLog, RunQuery};
use runlog_sim::{Op, SimDisk, SplitMix64};
use runlog_stores::checkpoints::{Checkpointer, SessionLog, TenantId, ThreadKey};
use runlog_stores::consume_once::{Begin, ConsumeOnce, EffectLedger};
use runlog_stores::run_store::{RetentionConfig, RunStatus, RunStore};
use runlog_stores::sessions::{EngineSessionStore, SessionStore};
use runlog_stores::trajectory::{RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord};
use serde_json::json;

use super::run_store_world::{NOW, ended, started, success, turn};
use super::support::{block_on, options};

type Done = Result<(), Box<dyn StdError>>;

/// A store, and one way to delete all of it but for a little.
struct Case {
    name: &'static str,
    /// Writes something new with a number and about so many bytes.
    fill: fn(&RunLog, usize, usize) -> Done,
    /// Deletes what was written under numbers below this one.
    delete: fn(&RunLog, usize) -> Done,
    /// How many there are still.
    left: fn(&RunLog) -> usize,
}

/// How many things are written while there is space, and how many after that, if there is.
#[derive(Clone, Copy)]
struct Size {
    first: usize,
    count: usize,
    /// The part of them that must fit again once they are deleted.
    least_part: usize,
}

const LARGE: Size = Size { first: 80, count: COUNT, least_part: 2 };
const SMALL: Size = Size { first: 12, count: 40, least_part: 3 };
const COUNT: usize = 120;
const LEN: usize = 5_000;

fn is_full(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let by_engine = error.downcast_ref::<Error>().is_some_and(Error::is_disk_full);
        let by_system = error.downcast_ref::<io::Error>();
        if by_engine || by_system.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Gives back what can be given back. What moves needs space itself.
fn reclaim(log: &RunLog) {
    match log.reclaim() {
        Err(Error::DiskFull { .. }) => {}
        reclaimed => reclaimed.unwrap(),
    }
}

/// Text that nothing compresses.
fn text(number: usize, len: usize) -> String {
    let mut random = SplitMix64::new(number as u64);
    let mut text = String::new();
    while text.len() < len {
        text.push_str(&format!("{:x} ", random.next_u64()));
    }
    text
}

fn key() -> ThreadKey {
    ThreadKey::new(TenantId::default(), "t").unwrap()
}

fn checkpoints(log: &RunLog) -> Checkpointer<String> {
    Checkpointer::new(log)
}

fn put(log: &RunLog, number: usize, len: usize) -> Done {
    let store = checkpoints(log);
    Ok(store.put(&store.checkpoint(&key(), number, text(number, len), None)?)?)
}

fn history(log: &RunLog) -> usize {
    checkpoints(log).list_history(&key(), 999).unwrap().len()
}

fn append(log: &RunLog, number: usize, len: usize) -> Done {
    SessionLog::new(log).append(&key(), &[text(number, len)])?;
    Ok(())
}

fn events(log: &RunLog) -> usize {
    SessionLog::<String>::new(log).load_since(&key(), 0).unwrap().len()
}

fn sessions(log: &RunLog) -> EngineSessionStore {
    EngineSessionStore::new(log)
}

fn save(log: &RunLog, number: usize, len: usize) -> Done {
    let (store, id) = (sessions(log), number.to_string());
    block_on(store.save(&json!({ "id": id })))?;
    Ok(block_on(store.save_artifacts(&id, &json!(text(number, len))))?)
}

fn record(log: &RunLog, number: usize, len: usize) -> Done {
    let (store, run) = (TrajectoryLog::new(log, "a")?, RunIdentity::root(format!("run-{number}")));
    let outcome = text(number, len);
    let payloads = [
        TrajectoryPayload::RunStarted { identity: run.clone() },
        TrajectoryPayload::TurnStarted,
        TrajectoryPayload::RunEnded { outcome, new_messages: vec![] },
    ];
    for (seq, payload) in (0..).zip(payloads) {
        store.record(&TrajectoryRecord::new(&run, seq, 1_700_000_000_000, payload))?;
    }
    Ok(())
}

fn runs(log: &RunLog) -> RunStore {
    RunStore::on(log.clone(), RetentionConfig { max_per_agent: 1, max_age_days: 0 })
}

fn run(log: &RunLog, number: usize, len: usize) -> Done {
    let (store, name) = (runs(log), format!("run {number}"));
    store.write_started(&started("a", &name, NOW))?;
    store.append_turns("a", &name, &[turn(1, &text(number, len))])?;
    Ok(store.write_ended(&ended("a", &name, NOW + 1, success()))?)
}

const CASES: [Case; 10] = [
    Case {
        name: "collect runs",
        fill: run,
        delete: |log, _| {
            runs(log).try_gc()?;
            Ok(())
        },
        left: |log| {
            let all = runs(log).list_runs("a");
            all.iter().filter(|run| run.status == RunStatus::Completed).count().saturating_sub(1)
        },
    },
    Case {
        name: "prune",
        fill: put,
        delete: |log, _| {
            checkpoints(log).prune(&key(), Some(1), None)?;
            Ok(())
        },
        left: |log| history(log).saturating_sub(1),
    },
    Case {
        name: "delete a thread of checkpoints",
        fill: put,
        delete: |log, _| {
            checkpoints(log).delete_thread(&key())?;
            Ok(())
        },
        left: history,
    },
    Case {
        name: "archive events",
        fill: append,
        delete: |log, _| {
            SessionLog::<String>::new(log).archive_before(&key(), u64::MAX)?;
            Ok(())
        },
        left: events,
    },
    Case {
        name: "delete a thread of events",
        fill: append,
        delete: |log, _| {
            SessionLog::<String>::new(log).delete_thread(&key())?;
            Ok(())
        },
        left: events,
    },
    Case {
        name: "delete sessions",
        fill: save,
        delete: |log, count| {
            let store = sessions(log);
            for number in 0..count {
                block_on(store.delete(&number.to_string()))?;
            }
            Ok(())
        },
        left: |log| block_on(sessions(log).list()).unwrap().len(),
    },
    Case {
        name: "delete loop checkpoints",
        fill: |log, number, len| {
            let checkpoint = json!({ "messages": text(number, len) });
            Ok(block_on(sessions(log).save_loop_checkpoint(&number.to_string(), &checkpoint))?)
        },
        delete: |log, count| {
            let store = sessions(log);
            for number in 0..count {
                block_on(store.delete_loop_checkpoint(&number.to_string()))?;
            }
            Ok(())
        },
        left: |log| {
            let store = sessions(log);
            let is_there = |number: usize| {
                block_on(store.load_loop_checkpoint(&number.to_string())).unwrap().is_some()
            };
            (0..9 * COUNT).filter(|number| is_there(*number)).count()
        },
    },
    Case {
        name: "clear consumed ids",
        fill: |log, number, len| {
            Ok(ConsumeOnce::new(log).consume(&number.to_string(), &text(number, len))?)
        },
        delete: |log, _| Ok(ConsumeOnce::new(log).clear()?),
        left: |log| {
            let ids = ConsumeOnce::new(log);
            (0..9 * COUNT).filter(|number| ids.consumed(&number.to_string()).unwrap()).count()
        },
    },
    Case {
        name: "clear effects",
        fill: |log, number, len| {
            let (ledger, effect) = (EffectLedger::new(log), number.to_string());
            let Begin::Go(claim) = ledger.begin(&effect, "worker")? else { panic!("{number}") };
            Ok(ledger.complete(&claim, text(number, len).as_bytes())?)
        },
        delete: |log, _| Ok(EffectLedger::new(log).clear()?),
        left: |log| {
            log.docs().list("\0effects/default", "", None, usize::MAX).unwrap().documents.len()
        },
    },
    Case {
        name: "delete trajectories",
        fill: record,
        delete: |log, _| {
            let store = TrajectoryLog::new(log, "a")?;
            store.settle_ends()?;
            log.adopt_orphans()?;
            for run in log
                .list_runs(&RunQuery::new().agent("a").limit(999))?
                .runs
                .iter()
                .filter(|run| run.status.is_ended())
            {
                log.delete_run(("a", run.run.as_str()))?;
            }
            Ok(())
        },
        left: |log| {
            let runs = log.list_runs(&RunQuery::new().agent("a").limit(999)).unwrap().runs;
            runs.iter().filter(|run| run.status.is_ended()).count()
        },
    },
];

impl Case {
    /// A store that has an index, and an extent that is set aside for compaction.
    fn begun(&self, disk: &SimDisk, size: Size) -> RunLog {
        let log = options().create_storage(Arc::new(disk.clone())).unwrap();
        (0..size.first).for_each(|number| (self.fill)(&log, number, LEN).unwrap());
        log.checkpoint().unwrap();
        log
    }

    /// Writes until nothing fits any more, or there is enough; answers how much was stored, and
    /// how many numbers were used.
    fn fill(&self, log: &RunLog, size: Size) -> (usize, usize) {
        let (mut stored, mut number, mut len) = (size.first, size.first, LEN);
        while stored < size.count && len > 0 {
            match (self.fill)(log, number, len) {
                Ok(()) => stored += 1,
                Err(error) if is_full(&*error) => len /= 4,
                Err(error) => panic!("{}: {error:?}", self.name),
            }
            number += 1;
        }
        (stored, number)
    }

    /// The numbers of the operations that allocate, of a script on a disk that is never full.
    fn allocations(&self, size: Size) -> Vec<usize> {
        let disk = SimDisk::recording();
        let log = self.begun(&disk, size);
        let first = disk.op_count();
        self.fill(&log, size);
        drop(log);
        let recording = disk.take_recording();
        let ops = recording.ops.iter().enumerate().skip(first);
        ops.filter(|(_, op)| matches!(op, Op::Allocate { .. })).map(|(number, _)| number).collect()
    }

    /// Whether everything can be deleted on a disk that is full from an operation on.
    fn try_full(&self, from: usize, size: Size, reopens: bool) -> Result<(), String> {
        let disk = SimDisk::untracked(Vec::new());
        let mut log = self.begun(&disk, size);
        disk.fill_from(from);
        let (stored, numbers) = self.fill(&log, size);
        let context = format!("{}, full from {from}, reopened: {reopens}", self.name);
        if reopens {
            log.close().unwrap();
            log = options().open_storage(Arc::new(disk.clone())).unwrap();
        }
        let there = (self.left)(&log);
        if let Err(error) = (self.delete)(&log, numbers) {
            return Err(format!("{context}, {stored} stored: {error:?}"));
        }
        let left = (self.left)(&log);
        if left > 0 {
            return Err(format!("{context}: {left} are left"));
        }
        reclaim(&log);
        // What was there fits again, but for what is smaller than the unit of space. What this
        // supersedes gives space in turn.
        let fits = |number: &usize| {
            let fill = |number| (self.fill)(&log, number, LEN).is_ok();
            fill(1000 + number) || {
                reclaim(&log);
                fill(2000 + number)
            }
        };
        let fitting = (0..there).take_while(fits).count();
        println!("{context}: {stored} stored, {there} there, {fitting} fit again");
        // What is dead in part moves only if there is an extent for it, of which small stores set
        // none aside.
        if size.least_part * fitting < there {
            return Err(format!("{context}: {fitting} of {there} fit again"));
        }
        assert!(log.verify().unwrap().is_clean(), "{context}");
        Ok(())
    }
}

fn in_full_disks<'c>(cases: impl Iterator<Item = &'c Case>, size: Size, reopens: bool) {
    let mut failed = Vec::new();
    for case in cases {
        let allocations = case.allocations(size);
        assert!(!allocations.is_empty(), "{}", case.name);
        // Reopening changes little: every other one will do.
        let step = 1 + usize::from(reopens);
        let from = allocations.iter().step_by(step);
        failed.extend(from.filter_map(|from| case.try_full(*from, size, reopens).err()));
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn on_a_disk_that_is_full_from_any_allocation_on_each_store_deletes_and_gives_space_back() {
    in_full_disks(CASES.iter(), LARGE, false);
}

#[test]
fn on_a_disk_that_is_full_since_the_store_was_reopened_each_store_deletes_as_well() {
    in_full_disks(CASES.iter(), LARGE, true);
}

#[test]
fn in_a_store_that_sets_no_extent_aside_each_deletion_succeeds_since_the_index_gives_way() {
    in_full_disks(CASES.iter(), SMALL, false);
}

#[test]
fn the_same_holds_for_small_stores_that_were_reopened() {
    in_full_disks(CASES.iter(), SMALL, true);
}

#[test]
fn in_a_store_of_one_segment_deletions_use_what_is_kept_back_and_then_say_that_the_disk_is_full() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    disk.set_capacity(disk.allocated());
    let (mut count, mut len) = (0, LEN);
    while len > 0 {
        let value = text(count, len);
        match log.docs().put("space", &count.to_string(), &NewRecord::new(value.as_bytes())) {
            Ok(_) => count += 1,
            Err(Error::DiskFull { .. }) => len /= 4,
            Err(error) => panic!("{error:?}"),
        }
    }
    let delete = |number: usize| log.docs().delete("space", &number.to_string());
    let deleted = (0..count).take_while(|number| delete(*number).is_ok()).count();
    // There is no other segment, so nothing can become free, whatever is deleted.
    assert!(deleted >= 10, "{deleted} of {count}");
    if deleted < count {
        let full = delete(deleted).unwrap_err();
        assert!(full.is_disk_full(), "{full:?}");
        assert!(log.docs().get("space", &deleted.to_string()).unwrap().is_some());
    }
    assert!(log.verify().unwrap().is_clean());
    // One segment more is enough for all of it.
    disk.set_capacity(disk.allocated() + (64 << 10));
    (0..count).for_each(|number| assert_eq!(delete(number).unwrap(), number >= deleted));
    log.reclaim().unwrap();
    log.docs().put("space", "new", &NewRecord::new(text(0, LEN).as_bytes())).unwrap();
}
