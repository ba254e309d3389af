//! [`CarRunStore`]: the calls of the `RunStore` of car-server-core, with the records of car-proto.
//!
//! The lines of the store are the JSON of these records, so that they are handed over as bytes in
//! both directions, and nothing depends on which fields a version has.

use core::fmt;
use core::marker::PhantomData;
use std::io;
use std::path::{Path, PathBuf};

use runlog_stores::run_store::{
    RetentionConfig, RunEnded, RunRecord, RunStarted, RunStore, RunSummary,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The types of one version of car-proto.
pub trait Version {
    /// A line of a run.
    type Record: Serialize + DeserializeOwned;
    /// Its first record.
    type Started: Serialize + DeserializeOwned;
    /// Its last.
    type Ended: Serialize + DeserializeOwned;
}

/// The version whose store is the first that is replaced.
#[derive(Debug, Clone, Copy)]
pub enum V0_23 {}

impl Version for V0_23 {
    type Record = car_proto_0_23::RunRecord;
    type Started = car_proto_0_23::RunStarted;
    type Ended = car_proto_0_23::RunEnded;
}

/// A late version.
#[derive(Debug, Clone, Copy)]
pub enum V0_60 {}

impl Version for V0_60 {
    type Record = car_proto_0_60::RunRecord;
    type Started = car_proto_0_60::RunStarted;
    type Ended = car_proto_0_60::RunEnded;
}

/// The record of the store that a record of car is.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it cannot be JSON, or is no record to the store.
pub fn to_ours(record: &impl Serialize) -> io::Result<RunRecord> {
    let line = serde_json::to_vec(record)?;
    RunRecord::from_line(&line).map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// The record of car that a record of the store is.
///
/// # Errors
/// What car-proto says of it; so of kinds that its version does not know.
pub fn to_theirs<R: DeserializeOwned>(record: &RunRecord) -> serde_json::Result<R> {
    serde_json::from_slice(&record.to_line())
}

/// A [`RunStore`] that speaks the types of a version of car-proto.
pub struct CarRunStore<V> {
    store: RunStore,
    version: PhantomData<fn() -> V>,
}

impl<V> fmt::Debug for CarRunStore<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarRunStore").field("store", &self.store).finish_non_exhaustive()
    }
}

impl<V> From<RunStore> for CarRunStore<V> {
    fn from(store: RunStore) -> Self {
        Self { store, version: PhantomData }
    }
}

impl<V: Version> CarRunStore<V> {
    /// The store in this folder.
    pub fn new(runs_root: PathBuf, retention: RetentionConfig) -> Self {
        RunStore::new(runs_root, retention).into()
    }

    /// The store that belongs to a folder of journals.
    pub fn from_journal_dir(journal_dir: &Path) -> Self {
        RunStore::from_journal_dir(journal_dir).into()
    }

    /// What it speaks to.
    pub fn store(&self) -> &RunStore {
        &self.store
    }

    /// Appends records.
    ///
    /// # Errors
    /// As [`RunStore::append_records`].
    pub fn append_records(
        &self,
        agent_id: &str,
        run_id: &str,
        records: &[V::Record],
    ) -> io::Result<()> {
        let records: Vec<RunRecord> = records.iter().map(to_ours).collect::<io::Result<_>>()?;
        self.store.append_records(agent_id, run_id, &records)
    }

    /// Appends records.
    ///
    /// # Errors
    /// As [`RunStore::append_turns`].
    pub fn append_turns(
        &self,
        agent_id: &str,
        run_id: &str,
        turns: &[V::Record],
    ) -> io::Result<()> {
        self.append_records(agent_id, run_id, turns)
    }

    /// Records that a run started.
    ///
    /// # Errors
    /// As [`RunStore::write_started`].
    pub fn write_started(&self, started: &V::Started) -> io::Result<()> {
        let started: RunStarted = serde_json::from_slice(&serde_json::to_vec(started)?)?;
        self.store.write_started(&started)
    }

    /// Records that a run ended.
    ///
    /// # Errors
    /// As [`RunStore::write_ended`].
    pub fn write_ended(&self, ended: &V::Ended) -> io::Result<()> {
        let ended: RunEnded = serde_json::from_slice(&serde_json::to_vec(ended)?)?;
        self.store.write_ended(&ended)
    }

    /// The records of a run; none if there is no such run. Records of kinds that the version does
    /// not know are left out, as it does itself.
    pub fn get_run_trace(&self, run_id: &str) -> Option<Vec<V::Record>> {
        self.store.get_run_trace(run_id).map(known)
    }

    /// The same, of this agent.
    pub fn get_run_trace_for(&self, agent_id: &str, run_id: &str) -> Option<Vec<V::Record>> {
        self.store.get_run_trace_for(agent_id, run_id).map(known)
    }

    /// The runs of an agent, the newest first.
    pub fn list_runs(&self, agent_id: &str) -> Vec<RunSummary> {
        self.store.list_runs(agent_id)
    }

    /// Whose run it is.
    pub fn agent_for_run(&self, run_id: &str) -> Option<String> {
        self.store.agent_for_run(run_id)
    }

    /// Deletes what is not to be kept; answers how many runs those were.
    pub fn gc(&self) -> usize {
        self.store.gc()
    }

    /// Ends what is in progress; answers how many runs those were.
    pub fn adopt_orphans(&self) -> usize {
        self.store.adopt_orphans()
    }
}

/// Those records that a version knows.
#[expect(clippy::needless_pass_by_value, reason = "it is what `Option::map` wants")]
fn known<R: DeserializeOwned>(records: Vec<RunRecord>) -> Vec<R> {
    records.iter().filter_map(|record| to_theirs(record).ok()).collect()
}
