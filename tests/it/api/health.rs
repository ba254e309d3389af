//! What a store reports as wrong: poison and its cause, a full disk since when, repeated failures,
//! stalled compaction, and when it last synced.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use runlog::env::{Environment, Step};
use runlog::storage::Storage;
use runlog::{Activity, Options, Outcome, RunLog, SegmentId, TailWriter, Timestamp};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;

const EXTENT: u64 = 64 << 10;
const SECOND: i64 = 1_000_000_000;
const BEGIN: Timestamp = Timestamp(5 * SECOND);

/// A store whose background work runs when a test says so.
struct Store {
    log: RunLog,
    disk: SimDisk,
    clock: SimClock,
    background: Background,
}

impl Store {
    fn new() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let (disk, clock) = (SimDisk::new(), SimClock::new(BEGIN));
        let background = Background::default();
        let environment = Environment::system()
            .clock(Arc::new(clock.clone()))
            .entropy(Arc::new(SimEntropy::new(7)));
        let options = Options::new().extent_size(EXTENT).environment(environment);
        let options = options.tail_writer(TailWriter::Pwrite);
        let options = change(options.scheduler(Arc::new(background.clone())));
        let log = options.create_storage(Arc::new(disk.clone())).unwrap();
        Self { log, disk, clock, background }
    }

    fn run(&self, step: Step) {
        assert!(self.background.run(step));
    }

    /// Writes runs that end, each of so many bytes.
    fn fill(&self, name: &str, count: usize, len: usize) {
        for number in 0..count {
            let run = self.log.start_run("agent", &format!("{name}-{number}"), ()).unwrap();
            let _ = run.append(&vec![b'x'; len]).unwrap();
            let _ = run.end(&Outcome::completed()).unwrap();
        }
        self.run(Step::Sync);
        self.run(Step::Checkpoint);
    }

    /// Deletes these of the runs.
    fn delete(&self, name: &str, numbers: impl Iterator<Item = usize>) {
        for number in numbers {
            self.log.delete_run(("agent", format!("{name}-{number}").as_str())).unwrap();
        }
    }

    fn set_time(&self, seconds: i64) -> Timestamp {
        let time = Timestamp(seconds * SECOND);
        self.clock.set(time);
        time
    }
}

#[test]
fn a_store_that_does_its_work_is_well_and_says_when_it_synced_last() {
    let store = Store::new();
    assert!(store.log.health().is_well());
    store.fill("run", 8, 20_000);
    for step in Step::ALL {
        store.run(step);
    }
    let before = store.log.health();
    assert!(before.is_well(), "{before:?}");
    let (sync, checkpoint) = (before.last_sync.unwrap(), before.last_checkpoint.unwrap());
    // Time passes, and the clock is set.
    store.clock.advance(3 * SECOND);
    store.set_time(1);
    let after = store.log.health();
    let later = Duration::from_secs(3);
    assert_eq!(after.last_sync.unwrap().ago, sync.ago + later);
    assert_eq!(after.last_checkpoint.unwrap().ago, checkpoint.ago + later);
    drop(store.log.start_run("agent", "more", ()).unwrap());
    assert_eq!(store.log.health().last_sync.unwrap().ago, Duration::ZERO);
}

#[test]
fn a_poisoned_store_says_why_and_since_when_also_after_it_was_closed() {
    let store = Store::new();
    let run = store.log.start_run("agent", "run", ()).unwrap();
    let at = store.set_time(77);
    store.disk.fail_next(OpKind::Write, ErrorKind::TimedOut);
    assert!(run.append(b"lost").is_err());
    store.set_time(99);
    store.disk.fail_next(OpKind::Write, ErrorKind::NotConnected);
    assert!(run.append(b"refused").unwrap_err().is_poisoned());
    store.run(Step::Sync);
    let health = store.log.health();
    let poison = health.poisoned.clone().expect("it is poisoned");
    assert_eq!(poison.at, at);
    assert!(poison.why.starts_with("cannot write the store at 0x"), "{poison:?}");
    assert!(poison.why.ends_with("timed out"), "{poison:?}");
    assert!(!health.is_well());
    assert_eq!(health.failures, [], "what follows from it is no failure of its own");
    drop(run);
    let other = store.log.clone();
    assert!(store.log.close().unwrap_err().is_poisoned());
    assert_eq!(other.health().poisoned, Some(poison));
}

#[test]
fn a_full_disk_is_told_from_the_first_refusal_until_space_is_given_again() {
    let store = Store::with(|options| options.index(false));
    store.fill("run", 8, 20_000);
    store.run(Step::Reserve);
    store.disk.set_capacity(store.disk.allocated());
    let at = store.set_time(77);
    let run = store.log.start_run("agent", "last", ()).unwrap();
    let refused = loop {
        if let Err(error) = run.append(&[b'x'; 4_000]) {
            break error;
        }
    };
    assert!(refused.is_disk_full());
    store.set_time(88);
    store.run(Step::Reserve);
    let health = store.log.health();
    assert_eq!(health.disk_full_since, Some(at));
    let reserve = health.failures.iter().find(|failing| failing.activity == Activity::Reserve);
    let reserve = reserve.expect("no segment could be set aside");
    assert!(reserve.why.contains("no space left"), "{reserve:?}");
    assert_eq!((reserve.since, reserve.last), (at, Timestamp(88 * SECOND)));
    assert_eq!(reserve.count, 2, "{reserve:?}");
    assert!(!health.is_well());

    store.disk.set_capacity(u64::MAX);
    assert_eq!(store.log.health().disk_full_since, Some(at), "nothing was asked for since");
    let _ = run.append(&[b'x'; 4_000]).unwrap();
    let health = store.log.health();
    assert!(health.is_well(), "{health:?}");
}

#[test]
fn an_activity_that_fails_is_counted_until_it_succeeds() {
    let store = Store::with(|options| options.index(false));
    store.fill("run", 8, 20_000);
    let mut first = None;
    for attempt in 1..=3 {
        let at = store.set_time(100 + attempt);
        store.disk.fail_next(OpKind::Allocate, ErrorKind::Interrupted);
        store.run(Step::Reserve);
        let health = store.log.health();
        let [failing] = &health.failures[..] else { panic!("{health:?}") };
        let since = *first.get_or_insert(at);
        assert_eq!((failing.activity, failing.count), (Activity::Reserve, attempt as u64));
        assert_eq!((failing.since, failing.last), (since, at));
        assert!(failing.why.contains("allocate space"), "{failing:?}");
        assert_eq!(health.poisoned, None);
        assert_eq!(health.disk_full_since, None, "it failed for another reason");
    }
    store.run(Step::Reserve);
    assert!(store.log.health().is_well());
}

#[test]
fn compaction_that_has_no_space_for_a_copy_says_so_until_it_has() {
    let store = Store::with(|options| options.index(false));
    store.fill("run", 18, 20_000);
    store.run(Step::Reserve);
    store.delete("run", (0..18).filter(|number| number % 3 != 0));
    store.run(Step::Sync);
    store.run(Step::Checkpoint);
    let at = store.set_time(77);
    store.disk.set_capacity(0);
    store.run(Step::Compact);
    store.disk.set_capacity(u64::MAX);
    let health = store.log.health();
    assert_eq!(health.poisoned, None);
    let stalled = health.compaction.clone().expect("it is stalled");
    assert_eq!(stalled.since, at);
    assert!(stalled.why.as_ref().unwrap().contains("no space left"), "{stalled:?}");
    assert!(!health.is_well());
    store.set_time(88);
    store.run(Step::Compact);
    assert_eq!(store.log.health().compaction, None);
}

#[test]
fn compaction_that_cannot_move_damaged_segments_names_them_until_their_runs_are_gone() {
    let store = Store::with(|options| options.index(false));
    store.fill("run", 18, 20_000);
    store.delete("run", (0..18).filter(|number| number % 3 != 0));
    store.run(Step::Sync);
    store.run(Step::Checkpoint);
    // A byte in the middle of the payload of the run that lives in the first segment.
    let image = store.disk.image();
    let start = EXTENT as usize + 5_000;
    store.disk.write_at(start as u64, &[!image[start]]).unwrap();
    let at = store.set_time(77);
    store.run(Step::Compact);
    let health = store.log.health();
    let stalled = health.compaction.clone().expect("it is stalled");
    assert_eq!((stalled.since, stalled.why), (at, None));
    assert_eq!(stalled.damaged, [SegmentId(1)]);
    assert!(!health.is_well());
    assert!(!store.log.verify().unwrap().is_clean());
    store.delete("run", [0, 3].into_iter());
    store.run(Step::Compact);
    store.run(Step::Compact);
    assert_eq!(store.log.health().compaction, None);
}
