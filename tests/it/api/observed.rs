//! What an observer is told: how each activity ended and how long it took, and each failure of the
//! background work, which no call returns.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runlog::env::{Environment, Step};
use runlog::{
    Activity, Compression, Error, IoAction, Options, Outcome, RunLog, TailWriter, Timestamp,
};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;
use crate::support::tap::Tap;
use crate::support::told::{End, Told};

/// So long that only a thread that is never woken waits for it.
const NEVER: Duration = Duration::from_secs(20);

/// A disk whose syncs take time.
#[derive(Debug, Clone)]
struct Synced {
    disk: SimDisk,
    clock: SimClock,
    /// How long a sync takes, in nanoseconds.
    takes: i64,
    /// Syncs on a background thread panic.
    panics: Arc<AtomicBool>,
}

impl Synced {
    fn new(takes: i64) -> Self {
        let clock = SimClock::new(Timestamp(5_000_000_000));
        Self { disk: SimDisk::new(), clock, takes, panics: Arc::default() }
    }

    fn storage(&self) -> Arc<Tap> {
        let synced = self.clone();
        Tap::new(Arc::new(self.disk.clone()), move |call| {
            if call.kind == OpKind::Sync {
                synced.clock.advance(synced.takes);
                let is_background = std::thread::current().name() == Some("runlog-sync");
                let panics = is_background && synced.panics.load(Ordering::SeqCst);
                assert!(!panics, "the test said so");
            }
            Ok(())
        })
    }
}

fn options(clock: &SimClock, told: &Arc<Told>) -> Options {
    let environment =
        Environment::system().clock(Arc::new(clock.clone())).entropy(Arc::new(SimEntropy::new(7)));
    let told: Arc<Told> = Arc::clone(told);
    let options = Options::new().extent_size(64 << 10).background(false).observer(told);
    options.environment(environment).tail_writer(TailWriter::Pwrite)
}

fn only(ends: Vec<End>, activity: Activity) -> End {
    let mut ends = ends.into_iter().filter(|end| end.activity == activity);
    let end = ends.next().unwrap_or_else(|| panic!("no end of {activity}"));
    assert!(ends.next().is_none(), "one end of {activity}");
    end
}

#[test]
fn the_end_of_an_activity_tells_how_it_went_and_how_long_it_took() {
    let (storage, told) = (Synced::new(3_000_000), Arc::new(Told::default()));
    let log = options(&storage.clock, &told).create_storage(storage.storage()).unwrap();
    let recovery = only(told.take(), Activity::Recovery);
    assert!(recovery.result.is_ok() && recovery.took >= Duration::from_millis(3));
    let run = log.start_run("agent", "run", ()).unwrap();
    told.take();

    let _ = run.append(b"one").unwrap();
    log.sync().unwrap();
    let sync = only(told.take(), Activity::Sync);
    assert!(sync.result.is_ok());
    assert_eq!(sync.took, Duration::from_millis(3));

    // The clock is set back meanwhile, which does not count as time.
    storage.clock.set(Timestamp(0));
    let _ = run.append(b"two").unwrap();
    storage.disk.fail_next(OpKind::Sync, ErrorKind::TimedOut);
    let answered = log.sync().unwrap_err();
    let sync = only(told.take(), Activity::Sync);
    let failure = sync.result.unwrap_err();
    assert_eq!(sync.took, Duration::from_millis(3));
    assert_eq!(failure.io_kind(), Some(ErrorKind::TimedOut));
    assert!(matches!(failure, Error::Io { action: IoAction::Sync, .. }), "{failure:?}");
    assert_eq!(answered.to_string(), failure.to_string(), "the call answers the same");
}

#[test]
fn an_opening_that_fails_ends_with_its_error() {
    let (disk, told) = (SimDisk::from_image(vec![7; 1 << 20]), Arc::new(Told::default()));
    let clock = SimClock::new(Timestamp(1));
    let refused = options(&clock, &told).open_storage(Arc::new(disk)).unwrap_err();
    assert!(refused.is_not_a_store());
    let recovery = only(told.take(), Activity::Recovery);
    assert!(recovery.result.unwrap_err().is_not_a_store());
}

#[test]
fn a_failure_to_close_is_told_also_when_the_last_handle_is_dropped() {
    for dropped in [false, true] {
        let (storage, told) = (Synced::new(0), Arc::new(Told::default()));
        let log = options(&storage.clock, &told).create_storage(storage.storage()).unwrap();
        drop(log.start_run("agent", "run", ()).unwrap());
        told.take();
        storage.disk.fail_next(OpKind::Sync, ErrorKind::TimedOut);
        if dropped {
            drop(log);
        } else {
            assert!(log.close().is_err());
        }
        let close = only(told.take(), Activity::Close);
        assert_eq!(close.result.unwrap_err().io_kind(), Some(ErrorKind::TimedOut));
    }
    let (storage, told) = (Synced::new(0), Arc::new(Told::default()));
    let log = options(&storage.clock, &told).create_storage(storage.storage()).unwrap();
    told.take();
    drop(log);
    assert!(only(told.take(), Activity::Close).result.is_ok());
}

/// Goal: a bug that makes a background thread panic is noticed, wakes the waiters for that thread,
/// and stores nothing of what it may have left half done.
#[test]
fn a_background_thread_that_panics_is_told_and_poisons_the_store() {
    let (storage, told) = (Synced::new(0), Arc::new(Told::default()));
    let options = options(&storage.clock, &told).background(true).sync_interval(None);
    let log = options.create_storage(storage.storage()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let (failures, failed) = channel();
    told.send_failures(failures);
    storage.panics.store(true, Ordering::SeqCst);
    // After half of a segment the thread sets the next one aside.
    let mut appended = Vec::new();
    while appended.len() < 100
        && let Ok(record) = run.append(&[b'x'; 500])
    {
        appended.push(record);
    }
    while log.health().poisoned.is_none() {
        let failure = failed.recv_timeout(NEVER).expect("the panic is told");
        assert_eq!(failure.activity, Activity::Reserve);
        assert!(matches!(failure.result, Err(Error::Panicked)));
    }
    let last = appended.last().expect("the first ones are appended");
    assert!(last.ticket.wait().unwrap_err().is_poisoned());
    assert!(run.append(b"next").unwrap_err().is_poisoned());
    let poison = log.health().poisoned.expect("the store is poisoned");
    assert!(poison.why.contains("panicked"), "{poison:?}");
    assert!(log.trace("run").unwrap().next().unwrap().is_ok(), "reads go on");
    drop(run);
    assert!(log.close().unwrap_err().is_poisoned());
    let opened = self::options(&storage.clock, &Arc::default()).open_storage(storage.storage());
    assert_eq!(opened.unwrap().trace("run").unwrap().count(), appended.len());
}

/// A store with work for each step of the background, and what tells of it.
struct Store {
    log: RunLog,
    disk: SimDisk,
    clock: SimClock,
    background: Background,
    told: Arc<Told>,
}

impl Store {
    /// Deterministic: each one makes the same calls.
    fn new() -> Self {
        let (disk, clock) = (SimDisk::new(), SimClock::new(Timestamp(5_000_000_000)));
        let (background, told) = (Background::default(), Arc::<Told>::default());
        let options = options(&clock, &told).scheduler(Arc::new(background.clone()));
        let options = options.compression(Compression::Zstd { level: 1 }).index_cache(1 << 20);
        let log = options.create_storage(Arc::new(disk.clone())).unwrap();
        Self { log, disk, clock, background, told }
    }

    /// Starts runs, of which some end and are deleted, in several segments.
    fn live(&self, name: &str) {
        for number in 0..24 {
            let run = format!("{name}-{number}");
            let writer = self.log.start_run("agent", &run, ()).unwrap();
            for _ in 0..4 {
                let _ = writer.append(&[b'x'; 5_000]).unwrap();
            }
            let ended = writer.end(&Outcome::completed()).unwrap();
            drop(ended);
            self.clock.advance(1_000);
        }
        for number in (0..24).filter(|number| number % 4 != 3) {
            self.log.delete_run(("agent", format!("{name}-{number}").as_str())).unwrap();
        }
    }

    fn run(&self, step: Step) {
        assert!(self.background.run(step));
    }
}

/// The background work in the order in which most of it has something to do.
const WORK: [Step; 14] = [
    Step::Reserve,
    Step::Sync,
    Step::Checkpoint,
    Step::Reclaim,
    Step::GiveBack,
    Step::Compact,
    Step::Compress,
    Step::Reserve,
    Step::Sync,
    Step::Checkpoint,
    Step::Compact,
    Step::Reclaim,
    Step::GiveBack,
    Step::Reserve,
];

/// Runs the script with background work up to the step with this number; calls `within` around that
/// step.
fn work(upto: usize, within: impl FnOnce(&Store)) {
    let store = Store::new();
    let mut within = Some(within);
    for (number, step) in WORK.into_iter().enumerate() {
        if number % 7 == 0 {
            store.live(if number == 0 { "early" } else { "late" });
        }
        if number == upto {
            store.told.take();
            within.take().expect("once")(&store);
            return;
        }
        store.run(step);
    }
}

/// Goal: no failure of a background step is swallowed.
///
/// Method: each call of the disk in each step fails once. The step returns nothing; so either the
/// observer was told, or the step has done everything that it does without the failure.
#[test]
fn each_call_that_fails_in_the_background_is_told() {
    let kinds = [
        OpKind::Read,
        OpKind::Write,
        OpKind::SetLen,
        OpKind::Allocate,
        OpKind::Punch,
        OpKind::Sync,
    ];
    let (mut failed, mut problems) = (0, Vec::new());
    for (number, step) in WORK.into_iter().enumerate() {
        let undisturbed = Mutex::new(None);
        work(number, |store| {
            let _ = store.disk.take_counts();
            store.run(step);
            *undisturbed.lock().unwrap() = Some((store.disk.counts(), store.disk.image()));
        });
        let (counts, image) = undisturbed.into_inner().unwrap().expect("the step was run");
        for kind in kinds {
            for call in 0..counts.of(kind) {
                work(number, |store| {
                    store.disk.fail_nth(kind, call, ErrorKind::TimedOut);
                    store.run(step);
                    let told = store.told.take_failures();
                    if told.is_empty() && store.disk.image() != image {
                        problems.push(format!("step {number}, {step:?}: {kind:?} {call}"));
                    }
                    failed += 1;
                });
            }
        }
    }
    assert!(problems.is_empty(), "{} of {failed}:\n{}", problems.len(), problems.join("\n"));
    assert!(failed > 100, "{failed} failures");
}
