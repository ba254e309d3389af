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

macro_rules! inherent {
    ($type:ty) => {
        impl ReadLog for $type {
            fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
                self.trace(run)
            }

            fn agent_of(&self, run: &str) -> Result<AgentId> {
                self.agent_of(run)
            }

            fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary> {
                self.run(run)
            }

            fn metadata<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunMetadata>> {
                self.metadata(run)
            }

            fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunOutcome>> {
                self.outcome(run)
            }

            fn list_runs(&self, query: &RunQuery) -> Result<RunPage> {
                self.list_runs(query)
            }

            fn agents(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentId>> {
                self.agents(after, limit)
            }

            fn held_runs(&self) -> Result<Vec<HeldRun>> {
                self.held_runs()
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
