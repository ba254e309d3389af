//! The place where the trajectories of agent runs live: what a recorder saw, in its order.
//!
//! - [`TrajectoryLog`]: records go in ([`TrajectoryLog::record`], [`TrajectoryLog::record_bytes`],
//!   and [`TrajectorySink`] for async callers), trajectories come out
//!   ([`TrajectoryLog::trajectory`]), and so do the relatives of a run ([`TrajectoryLog::parent`],
//!   [`TrajectoryLog::children`]).
//! - [`TrajectoryRecord`], [`TrajectoryPayload`], [`RunIdentity`], [`AgentMessage`],
//!   [`ToolResult`]: the records as types, with the JSON of clark-agent.
//! - [`Item`], [`StoredRecord`], [`Hole`], [`Restart`]: what a trajectory consists of.
//! - [`Unreadable`]: why a record is not one of these types. Its bytes are there all the same.
//!
//! # What becomes of what
//!
//! | recorded | in the engine |
//! |---|---|
//! | a record of run R | a record of run R, with the `kind` of its payload as kind |
//! | the first `run_started` of R | R is started with the identity as metadata, gets the record |
//! | `run_ended` | R gets the record, and is ended with the outcome as payload |
//! | that R is a child of P | one record of its own kind in P, which trajectories do not show |
//! | a record without a run | a record of the run `<agent>` of the agent `\0unattributed` |
//!
//! All runs are of the agent that the log was made for. A run that ended is completed, unless its
//! outcome is the name of another status: "failed", "cancelled", "interrupted".
//!
//! A record after the end is kept, marked as late. A `run_started` of a run that was started
//! already is a record like any other; the trajectory has a [`Restart`] in front of it, so that the
//! two trajectories stay apart. A run that no `run_started` came for is kept too, as one that was
//! not started.
//!
//! **Invariant:** bytes are stored as they came and never serialised again.
//!
//! **Invariant:** sequences that are missing are told in their place, as a [`Hole`].
//!
//! # Which call survives what
//!
//! A call that has returned survives the death of the process; one that was [waited
//! for](Recorded::wait), or made with [`TrajectorySink::record_durable`], survives power loss.
//! A call writes up to three things, each whole or not there: the link in the parent, the start,
//! the record; and an end behind the record. A crash in between leaves, in this order,
//! a link to a run that is not there ([`Relative::summary`] is `None`), a run that is started and
//! empty, or a run with a `run_ended` that is in progress. The same call again completes the first
//! two, and [`TrajectoryLog::settle_ends`] the third.
//!
//! # Deleting
//!
//! Runs are deleted by the engine: [`RunLog::delete_run`], [`RunLog::gc`]. The links to the
//! children of a run are part of it, and go with it. A child keeps the name of its parent; a parent
//! keeps the names of its children. A run that only its children have named is in progress, without
//! a start, until it is recorded, or until [`RunLog::adopt_orphans`] ends it. A run that was
//! started again after its end counts as ended when it ended first, also for policies.

mod envelope;
mod holes;
mod links;
mod payload;
mod read;
mod sink;
mod states;
mod unreadable;

use core::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

pub use links::{Children, Relative};
pub use payload::{
    AgentMessage, RunIdentity, SCHEMA_VERSION, ToolResult, TrajectoryPayload, TrajectoryRecord,
};
pub use read::{Hole, HoleCause, Item, Restart, StoredRecord, Trajectory};
pub use sink::{Recorded, Recording, TrajectorySink};
pub use unreadable::{Unreadable, Why};

use crate::of_log::OfLogs;
use runlog::{AgentId, Error, Result, RunId, RunLog};
use states::States;

/// The agent of the runs that have what was recorded without a run.
const UNATTRIBUTED: &str = "\0unattributed";

/// The kind of a record that says which run is a child of this one. No payload has it.
const CHILD: &str = "\0child";

/// What is known of the runs of an agent: one for all trajectory logs of that agent on a log, since
/// calls for the same run wait for one another, and a repeated call is known by the one before it.
static LOGS: OfLogs<AgentId, Inner> = OfLogs::new();

/// The trajectories of one agent, in a store that may have anything else in it too. Cheap to clone;
/// all clones are the same log, and so are all that were made for the same agent on the same
/// [`RunLog`].
///
/// Any number of threads may record at once. The records of a run are in the order of the calls;
/// a call is ordered before another if it returned before that one began.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-traj-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::trajectory::{
///     Item, RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord,
/// };
///
/// let store = runlog::Options::new().open(&path)?;
/// let log = TrajectoryLog::new(&store, "planner")?;
/// let run = RunIdentity::root("run-1");
/// let payloads = [
///     TrajectoryPayload::RunStarted { identity: run.clone() },
///     TrajectoryPayload::TurnStarted,
///     TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] },
/// ];
/// for (seq, payload) in (0..).zip(payloads) {
///     log.record(&TrajectoryRecord::new(&run, seq, 1_700_000_000_000, payload))?;
/// }
/// for item in log.trajectory("run-1")? {
///     match item? {
///         Item::Record(record) => println!("{}", String::from_utf8_lossy(record.bytes())),
///         Item::Hole(hole) => println!("{:?} are missing", hole.missing),
///         other => println!("{other:?}"),
///     }
/// }
/// # drop(log); store.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TrajectoryLog {
    inner: Arc<Inner>,
}

struct Inner {
    log: RunLog,
    agent: AgentId,
    /// What is known of the runs that are recorded now.
    states: Mutex<States>,
}

impl TrajectoryLog {
    /// The trajectories of this agent, which can be any name: of an agent, of a conversation.
    /// Nothing is read or written yet.
    ///
    /// # Errors
    /// [`Error::InvalidId`] for a name that is empty or too long; [`Error::InvalidArgument`] for
    /// one that begins with NUL, which this log uses itself.
    pub fn new(log: &RunLog, agent: &str) -> Result<Self> {
        let agent = AgentId::new(agent)?;
        if agent.as_str().starts_with('\0') {
            return Err(Error::InvalidArgument {
                what: "the name of an agent with trajectories does not begin with NUL",
            });
        }
        let inner = LOGS.get_or(log, agent.clone(), || {
            let (log, states) = (log.clone(), Mutex::default());
            Inner { log, agent, states }
        });
        Ok(Self { inner })
    }

    /// The agent.
    pub fn agent(&self) -> &AgentId {
        &self.inner.agent
    }

    /// The store, for what is not about trajectories: lists, deletions, holds, policies.
    pub fn store(&self) -> &RunLog {
        &self.inner.log
    }

    /// The trajectory of a run, as of now: its records, and what is missing between them.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub fn trajectory(&self, run: &str) -> Result<Trajectory> {
        let agent = self.agent().clone();
        let trace = self.inner.log.trace((agent.as_str(), run))?;
        Ok(Trajectory::new(self.clone(), trace, true))
    }

    /// What was recorded without a run. Several recorders may have taken part, each with its own
    /// sequence, so that nothing is said of holes.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn unattributed(&self) -> Result<Trajectory> {
        let key = (UNATTRIBUTED, self.agent().as_str());
        let trace = match self.inner.log.trace(key) {
            Ok(trace) => Some(trace),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        Ok(Trajectory::of(self.clone(), trace, false))
    }

    /// Ends the runs of this agent that are in progress although their last record is a
    /// `run_ended`: the process died between the record and the end. Answers which. To be called
    /// when a store was opened, before [`RunLog::adopt_orphans`], which would take them for
    /// interrupted. Reads the last record of each run in progress.
    ///
    /// # Durability
    /// [`runlog::Durability::Process`].
    ///
    /// # Errors
    /// [`Error::DiskFull`] and whatever an end can meet; runs that were ended before stay so.
    pub fn settle_ends(&self) -> Result<Vec<RunId>> {
        let mut settled = Vec::new();
        let mut after = None;
        loop {
            let page = self.inner.log.in_progress(after.as_ref(), 256)?;
            for run in page.runs.iter().filter(|run| run.agent == *self.agent()) {
                if self.settle_end(run)? {
                    settled.push(run.run.clone());
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(settled),
            }
        }
    }
}

impl fmt::Debug for TrajectoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrajectoryLog").field("agent", self.agent()).finish_non_exhaustive()
    }
}
