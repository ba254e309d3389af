//! The trajectories of agent runs: the records of a recorder, in its order.
//!
//! - [`TrajectoryLog`]: records go in ([`TrajectoryLog::record`], [`TrajectoryLog::record_bytes`],
//!   and [`TrajectorySink`] for async callers), trajectories come out
//!   ([`TrajectoryLog::trajectory`]), and so do the relatives of a run ([`TrajectoryLog::parent`],
//!   [`TrajectoryLog::children`]).
//! - [`TrajectoryRecord`], [`TrajectoryPayload`], [`RunIdentity`], [`AgentMessage`],
//!   [`ToolResult`]: the records as types, with the JSON of clark-agent.
//! - [`Item`], [`StoredRecord`], [`Hole`], [`Restart`]: the items of a trajectory.
//! - [`Unreadable`]: why a record is not one of these types. Its bytes are still available.
//!
//! # What becomes of what
//!
//! | recorded | in the engine |
//! |---|---|
//! | a record of run R | a record of run R, with the `kind` of its payload as kind |
//! | the first `run_started` of R | R starts with the identity as metadata, and gets the record |
//! | `run_ended` | R gets the record, and is ended with the outcome as payload |
//! | R as a child of P | one record of a special kind in P, which trajectories do not show |
//! | a record without a run | a record of the run `<agent>` of the agent `\0unattributed` |
//!
//! All runs belong to the agent of the log. A run that ended is completed, unless its outcome is
//! the name of another status: "failed", "cancelled", "interrupted".
//!
//! A record after the end is stored and marked as late. A second `run_started` of a run is a record
//! like any other; the trajectory has a [`Restart`] in front of it, so that the two trajectories
//! stay apart. A run without a `run_started` is stored too, as one that was not started.
//!
//! **Invariant:** bytes are stored as they came, and are never serialised again.
//!
//! **Invariant:** missing sequences are reported at their place, as a [`Hole`].
//!
//! # Which call survives what
//!
//! What a returned call wrote survives the death of the process. After [waiting for
//! it](Recorded::wait), or with [`TrajectorySink::record_durable`], it survives power loss. A call
//! writes up to four things, each whole or not at all: the link in the parent, the start, the
//! record, and the end. A crash in between leaves a link to a run that does not exist
//! ([`Relative::summary`] is `None`), a started run without records, or a run with a `run_ended`
//! that is in progress. Repeating the call completes the first two, and
//! [`TrajectoryLog::settle_ends`] the third.
//!
//! # Deleting
//!
//! The engine deletes runs: [`RunLog::delete_run`], [`RunLog::gc`]. The links to the children of a
//! run are part of it, and are deleted with it. A child keeps the name of its parent; a parent
//! keeps the names of its children. A run that only its children name is in progress, without a
//! start, until it is recorded, or until [`RunLog::adopt_orphans`] ends it. For policies too, a run
//! that was started again after its end ended at its first end.

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
use runlog::{AgentId, Error, Result, RunId, RunLog, RunQuery, RunStatus};
use states::States;

/// The agent of the runs that have the records without a run.
const UNATTRIBUTED: &str = "\0unattributed";

/// The kind of a link to a child. No payload has it.
const CHILD: &str = "\0child";

/// The state of the runs of an agent, shared by all trajectory logs of that agent on a log: calls
/// for the same run wait for one another, and a repeated call is recognised by the one before it.
static LOGS: OfLogs<AgentId, Inner> = OfLogs::new();

/// The trajectories of one agent, in a store that may have other data too. Cheap to clone. All logs
/// for the same agent on the same [`RunLog`] are the same log.
///
/// Any number of threads may record at the same time. The records of a run are in the order of the
/// calls: a call is before another if it returned before that one began.
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
    /// The state of the runs that are being recorded.
    states: Mutex<States>,
}

impl TrajectoryLog {
    /// The trajectories of this agent. The name is free: that of an agent or of a conversation. It
    /// reads and writes nothing yet.
    ///
    /// # Errors
    /// [`Error::InvalidId`] for a name that is empty or too long; [`Error::InvalidArgument`] for a
    /// name that begins with NUL, which the log reserves.
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

    /// The log of the engine, for lists, deletions, holds and policies.
    pub fn store(&self) -> &RunLog {
        &self.inner.log
    }

    /// The trajectory of a run, as of now: its records, and the holes between them.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub fn trajectory(&self, run: &str) -> Result<Trajectory> {
        let agent = self.agent().clone();
        let trace = self.inner.log.trace((agent.as_str(), run))?;
        Ok(Trajectory::new(self.clone(), trace, true))
    }

    /// The records without a run. Several recorders may have made them, each with its own sequence,
    /// so holes are not reported.
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
    /// `run_ended`: the process died between the record and the end. Returns these runs. Call it
    /// after opening the store, before [`RunLog::adopt_orphans`], which would end them as
    /// interrupted. It reads the last record of each run in progress.
    ///
    /// # Durability
    /// [`runlog::Durability::Process`].
    ///
    /// # Errors
    /// [`Error::DiskFull`], and the other errors of ending a run; runs that were ended before stay
    /// ended.
    pub fn settle_ends(&self) -> Result<Vec<RunId>> {
        let mut settled = Vec::new();
        let in_progress = RunQuery::new()
            .agent(self.agent().as_str())
            .status(RunStatus::InProgress)
            .oldest_first();
        for run in self.inner.log.runs(&in_progress) {
            let run = run?;
            if self.settle_end(&run)? {
                settled.push(run.run);
            }
        }
        Ok(settled)
    }
}

impl fmt::Debug for TrajectoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrajectoryLog").field("agent", self.agent()).finish_non_exhaustive()
    }
}
