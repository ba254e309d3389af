//! What a program can ask of a store, for writing or for reading.

use crate::engine::api::runs::Runs;
use crate::engine::api::stats::Stats;
use crate::engine::read::documents::{Document, DocumentPage};
use crate::engine::read::receipts::Receipt;
use crate::engine::read::trace::Trace;
use crate::engine::retain::GcPlan;
use crate::engine::values::pages::{HeldRun, RunPage};
use crate::engine::values::query::RunQuery;
use crate::engine::values::summary::RunSummary;
use crate::engine::values::{RunMetadata, RunOutcome};
use crate::engine::verify::VerifyReport;
use crate::error::Result;
use crate::gc::Retention;
use crate::types::{AgentId, RunRef, Version};

/// The questions that a [`RunLog`](crate::RunLog) and a [`Reader`](crate::Reader) answer alike, for
/// code that works with either.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-read-log-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{Options, ReadLog, Reader};
///
/// fn steps(log: &impl ReadLog, run: &str) -> runlog::Result<usize> {
///     Ok(log.trace(run)?.count())
/// }
///
/// let log = Options::new().open(&path)?;
/// log.start_run("agent", "run", ())?.append(b"a step")?;
/// let reader = Reader::open(&path)?;
/// assert_eq!((steps(&log, "run")?, steps(&reader, "run")?), (1, 1));
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
///
/// The methods have the meaning, the limits and the errors of those of [`RunLog`](crate::RunLog)
/// with the same names. A reader answers as of its last refresh, or later.
pub trait ReadLog: Clone {
    /// The records of a run; see [`RunLog::trace`](crate::RunLog::trace).
    fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace>;

    /// The agent of a run; see [`RunLog::agent_of`](crate::RunLog::agent_of).
    fn agent_of(&self, run: &str) -> Result<AgentId>;

    /// What is known of a run; see [`RunLog::run`](crate::RunLog::run).
    fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary>;

    /// The metadata of a run; see [`RunLog::metadata`](crate::RunLog::metadata).
    fn metadata<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunMetadata>>;

    /// How a run ended; see [`RunLog::outcome`](crate::RunLog::outcome).
    fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunOutcome>>;

    /// A page of runs; see [`RunLog::list_runs`](crate::RunLog::list_runs).
    fn list_runs(&self, query: &RunQuery) -> Result<RunPage>;

    /// All runs that match a query; see [`RunLog::runs`](crate::RunLog::runs).
    fn runs(&self, query: &RunQuery) -> Runs<Self> {
        Runs::new(self.clone(), query.clone())
    }

    /// Agents that have runs; see [`RunLog::agents`](crate::RunLog::agents).
    fn agents(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentId>>;

    /// The runs that are held; see [`RunLog::held_runs`](crate::RunLog::held_runs).
    fn held_runs(&self) -> Result<Vec<HeldRun>>;

    /// Receipts of deleted runs; see [`RunLog::receipts`](crate::RunLog::receipts).
    fn receipts(&self, limit: usize) -> Result<Vec<Receipt>>;

    /// What a policy would evict now; see [`RunLog::gc_plan`](crate::RunLog::gc_plan).
    fn gc_plan(&self, policy: &Retention) -> Result<GcPlan>;

    /// The current value of a document; see [`crate::Documents::get`].
    fn document(&self, namespace: &str, key: &str) -> Result<Option<Document>>;

    /// The current version of a document; see [`crate::Documents::version_of`].
    fn document_version(&self, namespace: &str, key: &str) -> Result<Option<Version>>;

    /// A page of documents of a namespace; see [`crate::Documents::list`].
    fn list_documents(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DocumentPage>;

    /// Numbers about the store; see [`RunLog::stats`](crate::RunLog::stats).
    fn stats(&self) -> Result<Stats>;

    /// Checks everything; see [`RunLog::verify`](crate::RunLog::verify).
    fn verify(&self) -> Result<VerifyReport>;
}
