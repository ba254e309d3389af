//! A store whose process does not live long: between any two calls it is closed and opened again,
//! or killed, or neither.

use std::cell::RefCell;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use runlog::env::Environment;
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog, Timestamp};
use runlog_sim::{SimClock, SimEntropy};
use runlog_stores::run_store::{
    AgentOutcome, OutcomeStatus, RetentionConfig, RunEnded, RunRecord, RunStarted, RunStore,
    RunTermination, RunTurn,
};

/// 2026-01-01, in nanoseconds.
pub(crate) const NOW: i64 = 1_767_225_600_000_000_000;
pub(crate) const DAY: i64 = 86_400_000_000_000;

/// What happens between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Long,
    ClosedAndOpened,
    Killed,
}

/// The options of a store that does everything by itself and as a seed says.
pub(crate) fn options(clock: &SimClock) -> Options {
    let options = Options::new().extent_size(64 << 10).max_record_len(2 << 20);
    options.background(false).environment(
        Environment::system().clock(Arc::new(clock.clone())).entropy(Arc::new(SimEntropy::new(5))),
    )
}

pub(crate) struct World {
    life: Life,
    pub(crate) clock: SimClock,
    retention: RetentionConfig,
    now: RefCell<(Arc<MemoryStorage>, RunLog)>,
}

impl World {
    pub(crate) fn new(life: Life, retention: RetentionConfig) -> Self {
        let clock = SimClock::new(Timestamp(NOW));
        let storage = Arc::new(MemoryStorage::new());
        let log = options(&clock).create_storage(storage.clone()).unwrap();
        Self { life, clock, retention, now: RefCell::new((storage, log)) }
    }

    /// The store, after whatever happens between two calls.
    pub(crate) fn store(&self) -> RunStore {
        let mut now = self.now.borrow_mut();
        let (storage, log) = &mut *now;
        match self.life {
            Life::Long => {}
            Life::ClosedAndOpened => {
                log.clone().close().unwrap();
                *log = options(&self.clock).open_storage(storage.clone()).unwrap();
            }
            Life::Killed => {
                *storage = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
                *log = options(&self.clock).open_storage(storage.clone()).unwrap();
            }
        }
        RunStore::on(log.clone(), self.retention)
    }

    /// The log behind it, as it is.
    pub(crate) fn log(&self) -> RunLog {
        self.now.borrow().1.clone()
    }
}

/// Does a test in all lives.
pub(crate) fn in_all_lives(retention: RetentionConfig, test: impl Fn(&World)) {
    for life in [Life::Long, Life::ClosedAndOpened, Life::Killed] {
        println!("life: {life:?}");
        let world = World::new(life, retention);
        test(&world);
        assert!(world.log().verify().unwrap().is_clean());
    }
}

/// Does a test in all lives, with the usual retention.
pub(crate) fn in_lives(test: impl Fn(&World)) {
    in_all_lives(RetentionConfig::default(), test);
}

pub(crate) fn time(nanos: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(nanos)
}

pub(crate) fn started(agent: &str, run: &str, at: i64) -> RunStarted {
    RunStarted {
        run_id: run.to_owned(),
        agent_id: agent.to_owned(),
        intent: format!("the intent of {run}"),
        started_at: time(at),
        ..RunStarted::default()
    }
}

pub(crate) fn ended(agent: &str, run: &str, at: i64, termination: RunTermination) -> RunEnded {
    RunEnded {
        run_id: run.to_owned(),
        agent_id: agent.to_owned(),
        termination,
        ended_at: time(at),
        ..RunEnded::default()
    }
}

pub(crate) fn outcome(status: OutcomeStatus) -> RunTermination {
    let outcome = AgentOutcome { status, ..AgentOutcome::default() };
    RunTermination::Outcome { status, outcome }
}

pub(crate) fn success() -> RunTermination {
    outcome(OutcomeStatus::Success)
}

pub(crate) fn turn(index: usize, prompt: &str) -> RunRecord {
    RunRecord::Turn(RunTurn { index, prompt: Some(prompt.to_owned()), ..RunTurn::default() })
}

pub(crate) fn ids(store: &RunStore, agent: &str) -> Vec<String> {
    store.list_runs(agent).into_iter().map(|run| run.run_id).collect()
}
