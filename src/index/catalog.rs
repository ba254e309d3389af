//! The questions that the engine asks. The index answers them, or, where it is missing, the
//! directories themselves.

use core::ops::Bound;

use super::fence::IndexError;
use super::row::{RowSummary, RunRow, RunState, Span};
use crate::types::{AgentId, RunNo, RunRef, Timestamp};

/// Which runs a list is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunFilter<'a> {
    /// All.
    All,
    /// Those of one agent.
    Agent(&'a str),
}

/// Answers from sealed segments. [`super::IndexSnapshot`] and [`super::DirectoryScan`] give the
/// same answers to every question here, as of the same segments.
pub(crate) trait Catalog {
    /// The numbers of the runs that are named so: none, one, or one for each agent that uses the
    /// id. Sorted by agent.
    fn run_numbers(&self, run: RunRef<'_>) -> Result<Vec<RunNo>, IndexError>;

    /// What is known of a run.
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError>;

    /// Which segments hold frames of a run, in the order of its records ([`Span::order`]).
    fn spans(&self, run_no: RunNo) -> Result<Vec<Span>, IndexError>;

    /// Both at once, for less than two questions.
    fn run_state(&self, run_no: RunNo) -> Result<RunState, IndexError>;

    /// Up to `limit` runs, newest first, strictly older than `before`.
    fn runs_page(
        &self,
        filter: RunFilter<'_>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RunNo)>, IndexError>;

    /// Up to `limit` runs that have not ended, by number, strictly above `after`.
    fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunNo>, IndexError>;

    /// Up to `limit` agents that have runs, by id, strictly above `after`.
    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError>;

    /// The numbers of the versions of a document, ascending: the last one counts, others were left
    /// by a write that a crash broke off.
    fn document_numbers(&self, namespace: &str, key: &str) -> Result<Vec<RunNo>, IndexError>;

    /// All versions of up to `limit` documents of a namespace, by key from `from` on, then by
    /// number.
    fn documents_page(
        &self,
        namespace: &str,
        from: Bound<&str>,
        limit: usize,
    ) -> Result<Vec<(String, RunNo)>, IndexError>;

    /// How many runs there are.
    fn count_runs(&self) -> Result<u64, IndexError>;

    /// Calls `visit` for each run and each version of a document, by number. After an error, what
    /// it was called for is not an answer.
    fn each_summary(&self, visit: &mut dyn FnMut(RowSummary<'_>)) -> Result<(), IndexError>;
}
