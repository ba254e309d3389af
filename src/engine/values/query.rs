//! Which runs a list contains.

use crate::engine::values::pages::Cursor;
use crate::engine::values::setters;
use crate::error::Result;
use crate::index::{Order, RunList, Statuses};
use crate::types::{AgentId, RunStatus, Timestamp};

/// How many runs a page has at most if the query sets no limit.
const PAGE: usize = 100;

/// Which runs a list contains, and in which order: all runs, newest first, by default.
///
/// Use it with [`RunLog::list_runs`](crate::RunLog::list_runs) and
/// [`RunLog::runs`](crate::RunLog::runs). A run must meet all conditions.
///
/// The place of a run in lists, which [`since`](Self::since) and [`until`](Self::until) compare, is
/// the time of its start, or of its first record if that came before
/// ([`RunSummary::created_at`](crate::RunSummary)). Of two runs of the same time, the one that was
/// started later is newer.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-query-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{Outcome, RunQuery, RunStatus};
/// let log = runlog::Options::new().open(&path)?;
/// log.start_run("planner", "run-1", ())?.end(&Outcome::failed())?;
/// let _ = log.start_run("planner", "run-2", ())?;
///
/// let failed = RunQuery::new().agent("planner").status(RunStatus::Failed).limit(10);
/// let page = log.list_runs(&failed)?;
/// assert_eq!(page.runs[0].run, "run-1");
/// assert!(page.next.is_none());
///
/// for run in log.runs(&RunQuery::new().oldest_first()) {
///     println!("{}", run?.run);
/// }
/// # log.close()?;
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunQuery {
    agent: Option<String>,
    statuses: Option<Statuses>,
    held: Option<bool>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    order: Order,
    limit: Option<usize>,
    after: Option<Cursor>,
}

impl Default for RunQuery {
    fn default() -> Self {
        Self::new()
    }
}

impl RunQuery {
    /// All runs, newest first.
    pub fn new() -> Self {
        Self {
            agent: None,
            statuses: None,
            held: None,
            since: None,
            until: None,
            order: Order::Descending,
            limit: None,
            after: None,
        }
    }

    setters! {
        /// Only the runs of this agent. An unknown agent has no runs.
        agent(agent: &str) => agent = Some(agent.to_owned());
        /// Only held runs, or only runs that are not held.
        held(held: bool) => held = Some(held);
        /// Only runs at or after this time.
        since(at: Timestamp) => since = Some(at);
        /// Only runs before this time, not at this time.
        until(at: Timestamp) => until = Some(at);
        /// At most this many runs, in the page or from the iterator in total. Without a limit a
        /// page has up to 100 runs, and the iterator returns all.
        limit(limit: usize) => limit = Some(limit);
        /// Only the runs after this place, in the order of the query. `None` stands for the
        /// beginning.
        after(after: impl Into<Option<Cursor>>) => after = after.into();
    }

    /// Only the runs of this status. Several calls allow several statuses.
    #[must_use]
    pub fn status(mut self, status: RunStatus) -> Self {
        self.statuses = Some(self.statuses.unwrap_or(Statuses::NONE).with(status));
        self
    }

    /// Only ended runs, whatever their status. The same as allowing each status of an ended run.
    #[must_use]
    pub fn ended(mut self) -> Self {
        let ended = Statuses::ALL.each().filter(|status| status.is_ended());
        self.statuses = Some(ended.fold(self.statuses.unwrap_or(Statuses::NONE), Statuses::with));
        self
    }

    /// Lists the oldest runs first.
    #[must_use]
    pub fn oldest_first(mut self) -> Self {
        self.order = Order::Ascending;
        self
    }

    pub(crate) fn page_limit(&self) -> usize {
        self.limit.unwrap_or(PAGE)
    }

    pub(crate) fn total_limit(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// The list that this query describes.
    pub(crate) fn list(&self) -> Result<RunList<'_>> {
        if let Some(agent) = &self.agent {
            AgentId::check(agent)?;
        }
        let mut list = RunList {
            agent: self.agent.as_deref(),
            statuses: self.statuses.unwrap_or(Statuses::ALL),
            held: self.held,
            order: self.order,
            ..RunList::ALL
        };
        list = self.since.map_or(list, |at| list.since(at));
        list = self.until.map_or(list, |at| list.until(at));
        Ok(self.after.map_or(list, |after| list.behind(after.key())))
    }
}
