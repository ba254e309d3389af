//! A disk that is full, or fills up, after a store was closed and reopened: closing released the
//! space that was allocated ahead, so everything needs space again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::{
    Activity, Batch, Compaction, Durability, Error, NewRecord, Observer, Options, Outcome, Phase,
    Result, Retention, Rule, RunLog, SpaceReturn,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy, Survivors};

const EXTENT: u64 = 64 << 10;
const BLOCK: u64 = 4096;

fn options() -> Options {
    let environment = runlog::env::Environment::system()
        .clock(Arc::new(SimClock::new(runlog::Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(7)));
    Options::new().extent_size(EXTENT).background(false).environment(environment)
}

/// Missing space does not poison the store.
fn done_or_full<T>(what: &str, done: Result<T>) -> bool {
    match done {
        Ok(_) => true,
        Err(Error::DiskFull { .. }) => false,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

#[test]
fn a_roll_on_a_disk_that_is_full_since_the_store_was_reopened_refuses_the_append_alone() {
    for count in (20..300).step_by(10) {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().create_storage(Arc::new(disk.clone())).unwrap();
        for number in 0..count {
            let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
            let _ = run.append(b"x").unwrap();
        }
        log.close().unwrap();
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        disk.set_capacity(disk.allocated());
        let run = log.writer(("agent", "run-0")).unwrap();
        let (mut records, mut last) = (1, true);
        for len in [14_000, 8_000, 4_000, 1_000] {
            last = done_or_full(&format!("{count} runs, {len} bytes"), run.append(&vec![1; len]));
            records += usize::from(last);
        }
        disk.set_capacity(u64::MAX);
        let _ = run.append(&[1; 14_000]).unwrap();
        assert_eq!(log.trace("run-0").unwrap().count(), records + 1, "{count} runs, {last}");
    }
}

/// A store of runs that ended, reopened after it was closed and the disk became full.
fn reopened_on_a_full_disk(count: usize, is_held: bool, index: bool) -> (RunLog, Vec<String>) {
    let options = options().index(index);
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let names: Vec<String> = (0..count).map(|number| format!("run-{number}")).collect();
    for name in &names {
        let run = log.start_run("agent", name, ()).unwrap();
        let _ = run.append(&[1; 600]).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
        if is_held {
            assert!(log.hold(name.as_str(), "is looked at").unwrap());
        }
    }
    log.close().unwrap();
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    disk.set_capacity(disk.allocated());
    (log, names)
}

/// Deletes all runs with one call, which takes less space than one call for each.
fn evict_all(log: &RunLog, names: &[String]) -> Result<usize> {
    let runs: Vec<_> = names.iter().map(|name| (name.as_str().into(), Rule::Deleted)).collect();
    Ok(log.evict(&runs)?.plan.evict.len())
}

#[test]
fn runs_of_a_store_that_was_reopened_on_a_full_disk_can_be_deleted() {
    for count in (1..300).step_by(8) {
        let (log, names) = reopened_on_a_full_disk(count, false, true);
        for name in &names {
            let deleted = log.delete_run(name.as_str());
            let _ = deleted.unwrap_or_else(|error| panic!("{name} of {count}: {error}"));
        }
        // Without an index there is nothing that could make way.
        let (log, names) = reopened_on_a_full_disk(count, false, false);
        let evicted = evict_all(&log, &names);
        assert_eq!(evicted.unwrap_or_else(|error| panic!("{count}: {error}")), count);
    }
}

/// Nothing can be deleted before it is released, so a release makes room like a deletion.
#[test]
fn held_runs_of_a_store_that_was_reopened_on_a_full_disk_can_be_released_and_deleted() {
    for count in (1..300).step_by(7) {
        let (log, names) = reopened_on_a_full_disk(count, true, true);
        for name in &names {
            let released = log.release(name.as_str());
            assert!(released.unwrap_or_else(|error| panic!("{name} of {count}: {error}")));
        }
        let evicted = evict_all(&log, &names);
        assert_eq!(evicted.unwrap_or_else(|error| panic!("{count}: {error}")), count);
    }
}

#[test]
fn a_power_loss_that_keeps_only_what_came_last_leaves_a_store_that_opens_on_a_full_disk() {
    let disk = SimDisk::new();
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"kept").unwrap();
    let _ = log.start_run("agent", "gone", ()).unwrap().end(&Outcome::completed()).unwrap();
    // That leaves an empty tail; the next call sets a segment aside behind it.
    let _ = log.erase_run("gone").unwrap();
    drop(log.start_run("agent", "run", ()).unwrap());
    let stats = log.stats().unwrap();
    assert!(stats.reserved_extents == 1 && stats.durable == stats.end);
    disk.set_capacity(disk.allocated());
    while log.stats().unwrap().end.segment == stats.end.segment {
        let _ = run.append(&[7; 4000]).unwrap();
    }
    assert_eq!(log.stats().unwrap().durable, stats.durable, "nothing was synced");
    // A power loss closes nothing cleanly.
    core::mem::forget((run, log));
    disk.lose_power(Survivors::OnlyLast, 1);
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(log.trace("run").unwrap().count(), 1);
    let _ = log.writer(("agent", "run")).unwrap().append(b"goes on").unwrap();
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_power_loss_on_a_full_disk_that_forgets_what_was_freed_poisons_nothing() {
    for seed in 0..24 {
        let disk = SimDisk::new();
        let manual = Compaction::new().automatic(false).space_return(SpaceReturn::Keep);
        let options = || options().compaction(manual);
        let log = options().create_storage(Arc::new(disk.clone())).unwrap();
        for _ in 0..40 {
            let _ = log.docs().put("space", "key", &NewRecord::new(&[7; 6000])).unwrap();
        }
        log.checkpoint().unwrap();
        disk.set_capacity(disk.allocated());
        log.reclaim().unwrap();
        assert!(log.stats().unwrap().free_extents > 2);
        assert!(!done_or_full(
            "large",
            log.docs().put("space", "large", &NewRecord::new(&[7; 2 << 20]))
        ));
        core::mem::forget(log);
        disk.lose_power(Survivors::AllButOneOp, seed);
        // Others took the released space.
        disk.set_capacity(disk.allocated());
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        log.reclaim().unwrap();
        let _ = log.docs().put("space", "key", &NewRecord::new(b"short")).unwrap();
    }
}

/// Goal: a program can record why it stops on a disk without any other space.
#[test]
fn a_short_urgent_batch_takes_of_the_space_that_is_kept_back_and_a_long_one_does_not() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    disk.set_capacity(disk.allocated());
    for len in [8_000, 1_000, 100, 0] {
        while done_or_full("fill", run.append(&vec![1; len])) {}
    }
    let commit = |len: usize, is_urgent: bool| {
        let payload = vec![2; len];
        let mut batch = Batch::new();
        batch.append("agent", "run", NewRecord::new(&payload));
        if is_urgent {
            batch.urgent();
        }
        done_or_full("batch", log.commit(&batch))
    };
    let count = log.trace("run").unwrap().count();
    let long = usize::try_from(EXTENT / 64).unwrap();
    assert!(!commit(0, false), "an ordinary batch finds no space");
    assert!(!commit(long, true), "neither does a long one that is urgent");
    assert!(commit(long - 128, true), "a short one does");
    assert!(!commit(0, false), "what it left is not for others");
    let _ = run.end(&Outcome::failed()).unwrap();
    let log = reopened(log, &disk);
    assert_eq!(log.trace("run").unwrap().count(), count + 1);
    assert!(log.verify().unwrap().is_clean());
}

fn reopened(log: RunLog, disk: &SimDisk) -> RunLog {
    log.close().unwrap();
    options().open_storage(Arc::new(disk.clone())).unwrap()
}

/// A store of several segments that are partly dead, and of a tail with a long directory.
fn closed_store(tail: usize) -> SimDisk {
    let disk = SimDisk::untracked(Vec::new());
    let manual = options().compaction(Compaction::new().automatic(false));
    let log = manual.create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..8 {
        let run = log.start_run("agent", &format!("old-{number}"), ()).unwrap();
        for _ in 0..20 {
            let _ = run.append(&[b'.'; 2_000]).unwrap();
        }
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    let _ = log.docs().put("space", "key", &NewRecord::new(b"value")).unwrap();
    for number in 0..tail {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        let _ = run.append(b"x").unwrap();
    }
    log.close().unwrap();
    disk
}

/// Does some of everything that takes space, with this many free blocks for each call; returns how
/// many calls found space.
fn use_space(log: &RunLog, disk: &SimDisk, blocks: u64) -> usize {
    let run = log.writer(("agent", "run-0")).unwrap();
    let synced = NewRecord::new(&[1; 3_000]).durability(Durability::Disk);
    let mut batch = Batch::new();
    batch.append("agent", "run-1", NewRecord::new(b"step"));
    batch.put("space", "key", NewRecord::new(b"next"));
    type Call<'a> = &'a dyn Fn() -> Result<()>;
    let calls: [(&str, Call<'_>); 15] = [
        ("append", &|| run.append(&[1; 8_000]).map(drop)),
        ("append less", &|| run.append(&[1; 4_000]).map(drop)),
        ("append and sync", &|| run.append_record(&synced).map(drop)),
        ("append several", &|| run.append_batch(&[NewRecord::new(&[2; 4_000]); 3]).map(drop)),
        ("append in chunks", &|| run.append(&[3; 30_000]).map(drop)),
        ("start", &|| log.start_run("agent", "new", ()).map(drop)),
        ("batch", &|| log.commit(&batch).map(drop)),
        ("put", &|| log.docs().put("space", "other", &NewRecord::new(&[4; 30_000])).map(drop)),
        ("hold", &|| log.hold("run-1", "because").map(drop)),
        ("release", &|| log.release("run-1").map(drop)),
        ("sync", &|| log.sync()),
        ("checkpoint", &|| log.checkpoint()),
        ("gc", &|| log.gc(&Retention::new().keep_newest(4)).map(drop)),
        ("compact", &|| log.compact().map(drop)),
        ("reclaim", &|| log.reclaim()),
    ];
    let mut done = 0;
    for (name, call) in calls {
        disk.set_capacity(disk.allocated().saturating_add(blocks.saturating_mul(BLOCK)));
        done += usize::from(done_or_full(name, call()));
    }
    done
}

/// Whichever allocation is the first without space.
#[test]
fn a_disk_that_becomes_full_at_any_allocation_after_reopening_poisons_nothing() {
    let manual = options().compaction(Compaction::new().automatic(false));
    let (mut refused, mut done) = (0, 0);
    for tail in (2..200).step_by(6) {
        for blocks in [0, 1, 2, 4, 7, 15, 17, 23, 33] {
            let disk = closed_store(tail);
            let log = manual.open_storage(Arc::new(disk.clone())).unwrap();
            for _ in 0..3 {
                let found_space = use_space(&log, &disk, blocks);
                (refused, done) = (refused + 15 - found_space, done + found_space);
            }
            assert!(log.verify().unwrap().is_clean(), "{tail} {blocks}");
            assert_eq!(use_space(&log, &disk, u64::MAX), 15, "{tail} {blocks}");
            log.close().unwrap();
        }
    }
    assert!(refused > 2_000 && done > 2_000, "{refused} refused, {done} done");
}

#[test]
fn an_erase_that_met_a_full_disk_is_finished_by_the_next() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let other = log.start_run("agent", "other", ()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..30 {
        let _ = run.append(&b"a secret ".repeat(300)).unwrap();
        let _ = other.append(&[b'.'; 3_000]).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
    disk.set_capacity(disk.allocated());
    let refused = log.erase_run("run");
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    let has_secret = || disk.image().windows(8).any(|part| part == b"a secret");
    assert!(has_secret());
    disk.set_capacity(u64::MAX);
    assert_eq!(log.erase_run("run").unwrap().pinned_extents, 0);
    assert!(!has_secret());
    assert_eq!(log.trace("other").unwrap().count(), 30);
    assert!(matches!(log.erase_run("run"), Err(Error::RunNotFound { .. })));
}

/// Ends a test that builds the index without end.
#[derive(Debug, Default)]
struct FewBuilds(AtomicU64);

impl Observer for FewBuilds {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::IndexRebuild && phase.is_begin() {
            assert!(self.0.fetch_add(1, Ordering::Relaxed) < 50, "the index is built without end");
        }
    }
}

/// A store with large extents that was reopened, of which the disk is full now: the tail is
/// allocated in steps, and the next segment is set aside as a whole.
fn full_within_large_extents() -> (RunLog, Vec<String>) {
    let large = options().extent_size(4 << 20).observer(Arc::new(FewBuilds::default()));
    let disk = Arc::new(SimDisk::untracked(Vec::new()));
    let log = large.create_storage(disk.clone()).unwrap();
    let old = log.start_run("agent", "old", ()).unwrap();
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        let _ = old.append(&[b'.'; 50_000]).unwrap();
    }
    log.checkpoint().unwrap();
    drop(old);
    log.close().unwrap();
    let log = large.open_storage(disk.clone()).unwrap();
    // What is set aside was not allocated again. It becomes the tail, and another one is set aside.
    let tail = log.stats().unwrap().end.segment;
    let old = log.writer("old").unwrap();
    while log.stats().unwrap().end.segment == tail {
        let _ = old.append(&[b'.'; 50_000]).unwrap();
    }
    let mut names = Vec::new();
    while names.len() < 6_000 {
        let name = format!("run-{}", names.len());
        let run = log.start_run("agent", &name, ()).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
        names.push(name);
    }
    disk.set_capacity(disk.allocated());
    while done_or_full("append", old.append(&[b'.'; 1_000])) {}
    drop(old);
    (log, names)
}

#[test]
fn retention_ends_on_a_full_disk_whose_next_segment_is_set_aside() {
    let (log, names) = full_within_large_extents();
    let collected = log.gc(&Retention::new().keep_newest(1)).unwrap();
    assert_eq!(collected.plan.evict.len(), names.len() - 1);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn all_runs_can_be_deleted_on_a_full_disk_whose_next_segment_is_set_aside() {
    let (log, names) = full_within_large_extents();
    for name in &names {
        let _ = log.delete_run(&**name).unwrap();
    }
    assert!(log.verify().unwrap().is_clean());
}
