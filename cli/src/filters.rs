//! Which runs and records a command is about: the options that `ls`, `search`, `export` and `usage`
//! share.

use runlog::{ReadLog, RunQuery, RunStatus, RunSummary, Timestamp};

use crate::failure::Failure;
use crate::find::{self, RunArgs};
use crate::status;
use crate::times::parse_time;

/// The options that choose runs, and times.
///
/// [`Filters::query`] leaves the times out, since each command compares another one with them.
#[derive(Debug, clap::Args)]
pub(crate) struct Filters {
    /// Only the runs of this agent; of a run that is named, its agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,

    /// Only the runs with this status; may be repeated.
    #[arg(long, value_parser = status::any())]
    status: Vec<RunStatus>,

    /// Only what is of this time or later: 2026-01-31, 2026-01-31T12:00:00Z, yesterday, or 7d for
    /// the last seven days. In `ls` and `export` by the start of a run, in `search` by the time of
    /// a record, in `usage` of a message.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,

    /// Only what is from before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,

    /// Only the runs that are held.
    #[arg(long)]
    held: bool,
}

impl Filters {
    /// Whether most runs may be chosen.
    pub(crate) fn may_choose_most(&self) -> bool {
        let Self { agent, status, since, held, .. } = self;
        agent.is_none() && status.is_empty() && since.is_none() && !held
    }

    /// The runs, whatever their times are.
    pub(crate) fn query(&self) -> RunQuery {
        let mut query = RunQuery::new();
        if let Some(agent) = &self.agent {
            query = query.agent(agent);
        }
        for status in &self.status {
            query = query.status(*status);
        }
        if self.held { query.held(true) } else { query }
    }

    /// The runs that started in the time.
    pub(crate) fn started(&self) -> RunQuery {
        let mut query = self.query();
        if let Some(at) = self.since {
            query = query.since(at);
        }
        if let Some(at) = self.until {
            query = query.until(at);
        }
        query
    }

    /// The same as [`Filters::query`], of a run that was found by its name.
    pub(crate) fn takes(&self, run: &RunSummary) -> bool {
        (self.status.is_empty() || self.status.contains(&run.status)) && (run.held || !self.held)
    }

    /// Whether something of this time is wanted.
    pub(crate) fn takes_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }

    /// Whether a run may have records or messages of a time that is wanted. `last` is its last one.
    pub(crate) fn may_have(&self, last: Timestamp) -> bool {
        self.since.is_none_or(|since| last >= since)
    }

    /// That the agent has runs: its name may be mistyped.
    pub(crate) fn check(&self, log: &impl ReadLog) -> Result<(), Failure> {
        self.agent.as_deref().map_or(Ok(()), |agent| find::agent(log, agent))
    }

    /// A run that the user names.
    pub(crate) fn named(&self, run: &str) -> RunArgs {
        RunArgs { run: run.to_owned(), agent: self.agent.clone() }
    }
}
