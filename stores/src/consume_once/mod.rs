//! Things that must happen once: approvals that are used up, and effects that must not be repeated.
//!
//! - [`ConsumeOnce`]: the first caller consumes an id; all others learn when, and by which caller.
//!   Replaces phronomy's checkpoint store.
//! - [`ConsumeOnce::consume_with`]: consumes and records in one step, so that no crash comes
//!   between the two.
//! - [`EffectLedger`]: an effect is begun, and completed or failed later. After a crash the ledger
//!   lists the effects that were begun and never finished, so that a program or an operator can
//!   check them.
//!
//! Each call is durable before it returns: its own change survives power loss, and so does the
//! state that it reports. A power cut cannot take back a consumption, beginning or completion that
//! a call has reported. Calls may come from any number of threads, clones, and stores on the same
//! [`RunLog`].
//!
//! An id is any text of 1 to 512 bytes. It stays consumed until it is cleaned up: no retention
//! policy deletes it.
//!
//! # Errors
//! Besides those that are named: [`Error::InvalidId`] for an id that is empty or too long, and
//! [`Error::DiskFull`] and other failures of the store. After an error that is not
//! [`ConsumeError::AlreadyConsumed`], ask [`ConsumeOnce::consumed`] before you try again: the store
//! may have to be opened anew.

mod ledger;

use core::fmt;

use serde::{Deserialize, Serialize};

pub use self::ledger::{Begin, Claim, EffectLedger, LedgerError, Unfinished};
use crate::room::in_steps;
use runlog::{Batch, Document, Durability, Error, Expected, NewRecord, Result, RunLog, Timestamp};

/// The prefix of the namespaces of consumed ids. Callers should not use it.
const NAMESPACE: &str = "\0consumed/";

/// Deletions in one step of [`ConsumeOnce::clear`].
const PAGE: usize = 100;

/// A set of ids that were consumed. Cheap to clone; clones are the same set.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-once-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::consume_once::{ConsumeError, ConsumeOnce};
///
/// let log = runlog::Options::new().open(&path)?;
/// let approvals = ConsumeOnce::new(&log);
/// approvals.consume("approval-7", "worker-1")?;
/// let again = approvals.consume("approval-7", "worker-2");
/// let Err(ConsumeError::AlreadyConsumed(earlier)) = again else { panic!("it was consumed") };
/// assert_eq!(earlier.by, "worker-1");
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ConsumeOnce {
    log: RunLog,
    namespace: String,
}

/// The consumption of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumption {
    /// The id.
    pub id: String,
    /// The name that the consuming caller gave.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Why an id was not consumed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConsumeError {
    /// It was consumed before. The caller must not do what the id allows.
    AlreadyConsumed(Consumption),
    /// The store failed. The caller should ask whether the id was consumed once the store works
    /// again.
    Store(Error),
}

impl fmt::Display for ConsumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyConsumed(Consumption { id, by, at }) => {
                write!(f, "{id:?} was consumed by {by:?} at {at} ns; it must not be used again")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConsumeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::AlreadyConsumed(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl From<Error> for ConsumeError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// The value under a consumed id.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    by: std::borrow::Cow<'a, str>,
}

impl ConsumeOnce {
    /// The set of consumed ids of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several independent sets. The name has at most 480 bytes, else every call fails with
    /// [`Error::InvalidId`].
    pub fn named(log: &RunLog, name: &str) -> Self {
        Self { log: log.clone(), namespace: format!("{NAMESPACE}{name}") }
    }

    /// Whether an id was consumed.
    pub fn consumed(&self, id: &str) -> Result<bool> {
        Ok(self.found(id)?.is_some())
    }

    /// When an id was consumed and by which caller, if it was.
    pub fn consumption(&self, id: &str) -> Result<Option<Consumption>> {
        self.found(id)?.map(|document| consumption(id, &document)).transpose()
    }

    /// The value under an id, once it survives power loss. A caller that learns of it may never try
    /// again, so a power loss must not take it afterwards.
    fn found(&self, id: &str) -> Result<Option<Document>> {
        let found = self.log.docs().get(&self.namespace, id)?;
        if found.is_some() {
            self.log.sync()?;
        }
        Ok(found)
    }

    /// Consumes an id. Of any number of concurrent callers exactly one succeeds. The others learn
    /// its `by`.
    ///
    /// # Errors
    /// [`ConsumeError::AlreadyConsumed`] if a caller did so before.
    pub fn consume(&self, id: &str, by: &str) -> Result<(), ConsumeError> {
        let value = stored(by)?;
        let mut batch = Batch::new();
        batch.put_if(&self.namespace, id, NewRecord::json(&value), Expected::Absent);
        self.commit(id, &batch)
    }

    /// Consumes an id and appends a record to a run in progress, both or neither. So a reader of
    /// the run knows whether the id was used up, also after a crash.
    ///
    /// # Errors
    /// [`ConsumeError::AlreadyConsumed`] if a caller did so before; [`Error::RunNotFound`] and
    /// [`Error::RunEnded`] if there is no such run in progress. Then nothing was changed.
    pub fn consume_with(
        &self,
        id: &str,
        by: &str,
        (agent, run): (&str, &str),
        record: &NewRecord<'_>,
    ) -> Result<(), ConsumeError> {
        let value = stored(by)?;
        let mut batch = Batch::new();
        batch
            .put_if(&self.namespace, id, NewRecord::json(&value), Expected::Absent)
            .append(agent, run, *record);
        self.commit(id, &batch)
    }

    fn commit(&self, id: &str, batch: &Batch<'_>) -> Result<(), ConsumeError> {
        loop {
            match self.log.commit(batch) {
                Ok(_) => return Ok(()),
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(earlier) = self.consumption(id)? {
                return Err(ConsumeError::AlreadyConsumed(earlier));
            }
            // It was cleaned up in between.
        }
    }

    /// Forgets an id, so that it can be consumed again. Forgetting an unknown id succeeds.
    pub fn cleanup(&self, id: &str) -> Result<()> {
        self.log.docs().delete(&self.namespace, id).map(drop)
    }

    /// Forgets all ids that were consumed as of one moment of the call. Ids that are consumed after
    /// that moment stay consumed.
    pub fn clear(&self) -> Result<()> {
        clear(&self.log, &self.namespace)
    }
}

/// Deletes the documents that a namespace has at one moment, and none that was written after it.
fn clear(log: &RunLog, namespace: &str) -> Result<()> {
    // One page is of one moment.
    let mut documents = log.docs().list(namespace, "", None, usize::MAX)?.documents;
    // Deleting in the order of writing frees space early.
    documents.sort_unstable_by_key(|document| document.version);
    in_steps(&documents, PAGE, |some| {
        let mut left: Vec<_> = some.iter().collect();
        while !left.is_empty() {
            let mut batch = Batch::new();
            for document in &left {
                let expected = Expected::Version(document.version);
                batch.delete_if(namespace, &document.key, expected);
            }
            batch.durability(Durability::Disk);
            match log.commit(&batch) {
                Ok(_) => break,
                // Another caller has written or deleted this one since.
                Err(Error::Conflict { key, .. }) => left.retain(|document| document.key != key),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })?;
    // Documents that were already deleted must not come back either.
    log.sync()
}

fn stored(by: &str) -> Result<Vec<u8>> {
    json(&Stored { by: by.into() })
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|source| Error::Json { source: std::sync::Arc::new(source) })
}

fn consumption(id: &str, document: &Document) -> Result<Consumption> {
    let stored: Stored<'_> = document.json()?;
    Ok(Consumption { id: id.to_owned(), by: stored.by.into_owned(), at: document.timestamp() })
}
