//! The handles of the public API: what a caller sees of an open store.

pub(crate) mod deferred;
pub(crate) mod documents;
pub(crate) mod follow;
pub(crate) mod holds;
pub(crate) mod open;
pub(crate) mod read_log;
pub(crate) mod reader;
pub(crate) mod run_log;
pub(crate) mod run_writer;
pub(crate) mod runs;
pub(crate) mod stats;

use crate::engine::api::read_log::ReadLog;
use crate::engine::api::reader::Reader;
use crate::engine::api::run_log::RunLog;
use crate::engine::api::runs::Runs;
use crate::engine::api::stats::Stats;
use crate::engine::read::Reader as Answers;
use crate::engine::read::documents::{Document, DocumentPage};
use crate::engine::read::receipts::Receipt;
use crate::engine::read::trace::Trace;
use crate::engine::retain::GcPlan;
use crate::engine::values::pages::{HeldRun, RunPage};
use crate::engine::values::query::RunQuery;
use crate::engine::values::summary::RunSummary;
use crate::engine::values::{RunMetadata, RunOutcome};
use crate::engine::verify::VerifyReport;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::gc::Retention;
use crate::types::{AgentId, RunRef, Version};

/// The questions that both handles answer in the same way, as methods that are `pub` or of a trait.
macro_rules! questions {
    ($($vis:tt)?) => {
        /// The agent that has this run.
        ///
        /// # Errors
        /// [`Error::RunNotFound`], [`Error::Ambiguous`].
        $($vis)? fn agent_of(&self, run: &str) -> Result<AgentId> {
            self.ask(|answers| answers.agent_of(run))
        }

        /// The summary of a run.
        ///
        /// # Errors
        /// [`Error::RunNotFound`], [`Error::Ambiguous`].
        $($vis)? fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary> {
            let run = run.into();
            self.ask(|answers| answers.summary(run))
        }

        /// The metadata of a run's start; `None` if the run has no start.
        ///
        /// # Errors
        /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
        $($vis)? fn metadata<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunMetadata>> {
            let run = run.into();
            self.ask(|answers| answers.metadata(run))
        }

        /// How a run ended; `None` while it is in progress.
        ///
        /// # Errors
        /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
        $($vis)? fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunOutcome>> {
            let run = run.into();
            self.ask(|answers| answers.outcome(run))
        }

        /// A page of the runs that match a query.
        ///
        /// A page shows one moment. Give [`RunPage::next`] to [`RunQuery::after`] to get the next
        /// page. It stays valid whatever happens in between: the next page neither repeats nor
        /// skips a run that existed, and matched the query, all the time.
        ///
        /// The index finds the runs of an agent, the runs between two times, and runs in progress
        /// while they are few. For other statuses and for holds, the call reads the row of each run
        /// in the range.
        ///
        /// # Errors
        /// [`Error::InvalidId`] for the agent; [`Error::Corrupt`].
        $($vis)? fn list_runs(&self, query: &RunQuery) -> Result<RunPage> {
            let list = query.list()?;
            self.ask(|answers| answers.page(&list, query.page_limit()))
        }

        /// All runs that match a query, one after the other. The iterator asks for one page at a
        /// time, and each page shows a moment of its own; see [`RunLog::list_runs`].
        ///
        /// # Errors
        /// Each item may be an error of [`RunLog::list_runs`], which is then the last item.
        $($vis)? fn runs(&self, query: &RunQuery) -> Runs<Self> {
            Runs::new(self.clone(), query.clone())
        }

        /// At most `limit` agents that have runs, sorted by id, after `after`.
        ///
        /// # Errors
        /// [`Error::Closed`].
        $($vis)? fn agents(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentId>> {
            self.ask(|answers| answers.agents_page(after, limit))
        }

        /// All held runs, sorted by agent and run. It reads the rows of these runs only; a store
        /// without an index reads the row of every run.
        ///
        /// # Errors
        /// [`Error::Closed`], [`Error::Corrupt`].
        $($vis)? fn held_runs(&self) -> Result<Vec<HeldRun>> {
            self.ask(Answers::held_runs)
        }
    };
}

macro_rules! inherent {
    ($type:ty) => {
        impl $type {
            questions! { pub }
        }

        impl ReadLog for $type {
            questions! {}

            fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
                self.trace(run)
            }

            fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
                self.receipts(limit)
            }

            fn gc_plan(&self, policy: &Retention) -> Result<GcPlan> {
                self.gc_plan(policy)
            }

            fn document(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
                self.ask(|answers| answers.document(namespace, key))
            }

            fn document_version(&self, namespace: &str, key: &str) -> Result<Option<Version>> {
                self.ask(|answers| answers.version_of(namespace, key))
            }

            fn list_documents(
                &self,
                namespace: &str,
                prefix: &str,
                after: Option<&str>,
                limit: usize,
            ) -> Result<DocumentPage> {
                self.ask(|answers| answers.list_documents(namespace, prefix, after, limit))
            }

            fn stats(&self) -> Result<Stats> {
                self.stats()
            }

            fn verify(&self) -> Result<VerifyReport> {
                self.verify()
            }
        }
    };
}

inherent!(RunLog);
inherent!(Reader);
