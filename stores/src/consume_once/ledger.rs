//! Effects outside of the store: begun, and finished later or never.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::{clear, json};
use crate::digest::digest;
use runlog::{
    Batch, Document, Durability, Error, Expected, NewRecord, Result, RunLog, Timestamp, Version,
};

/// The prefix of the namespaces of ledgers. Callers should not use it.
const NAMESPACE: &str = "\0effects/";

/// How many keys one step of [`EffectLedger::unfinished`] reads.
const PAGE: usize = 500;

/// A ledger of effects, by keys that the caller chooses. Cheap to clone; clones are the same
/// ledger.
///
/// The caller begins an effect before it carries it out, and then completes it with its result or
/// fails it. A crash in between leaves the effect begun. No store can know whether it happened, so
/// the ledger reports it and the caller must find out. This gives at-most-once effects.
///
/// Each beginning has a [`Claim`], which is needed to finish it. If an operator failed the effect
/// of a slow worker, and another worker began it again, the claim of the slow worker is old: the
/// ledger refuses it and changes nothing.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-ledger-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::consume_once::{Begin, EffectLedger};
///
/// let log = runlog::Options::new().open(&path)?;
/// let ledger = EffectLedger::new(&log);
/// if let Begin::Go(claim) = ledger.begin("refund-7", "worker-1")? {
///     // ... pay back ...
///     ledger.complete(&claim, b"receipt 99")?;
/// }
/// let Begin::Completed { result, .. } = ledger.begin("refund-7", "worker-2")? else { panic!() };
/// assert_eq!(result, b"receipt 99");
/// assert!(ledger.unfinished()?.is_empty());
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct EffectLedger {
    log: RunLog,
    namespace: String,
}

/// One beginning of an effect: the right to finish it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    key: String,
    begun: Version,
}

impl Claim {
    /// The key of the effect.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The answer of [`EffectLedger::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "only `Go` allows the effect"]
pub enum Begin {
    /// The caller must carry the effect out: it was never begun, or it failed before.
    Go(Claim),
    /// A worker began it and has not finished it. If that worker is gone, no store can tell whether
    /// the effect happened: the caller must find out, and then complete or fail it.
    Unfinished {
        /// The worker that began it.
        by: String,
        /// When.
        at: Timestamp,
        /// Finishes it in place of that worker, whose own claim is refused from then on.
        claim: Claim,
    },
    /// It was carried out. The caller can use the result.
    Completed {
        /// The result with which it was completed.
        result: Vec<u8>,
        /// When.
        at: Timestamp,
    },
}

/// An effect that was begun and not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Its key.
    pub key: String,
    /// The worker that began it.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// Finishes it in place of that worker.
    pub claim: Claim,
}

/// Why an effect was not finished.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LedgerError {
    /// The claim is old: its effect was finished in another way, or forgotten, and perhaps begun
    /// again. Nothing was changed. The caller must not use the claim any more;
    /// [`EffectLedger::begin`] returns the state of the effect.
    Superseded {
        /// The key of the effect.
        key: String,
    },
    /// The store failed. The caller should ask the ledger again once the store works.
    Store(Error),
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superseded { key } => {
                write!(f, "this claim on effect {key:?} has ended; call `begin` to get its state")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LedgerError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Superseded { .. } => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl From<Error> for LedgerError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// The value under the key of an effect: one line of JSON, and behind it the bytes of the result or
/// of the reason.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    Begun {
        by: String,
    },
    Completed {
        begun: u64,
        /// What was appended with it. Earlier versions did not state it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with: Option<With>,
    },
    Failed {
        begun: u64,
    },
}

/// A record that is appended where an effect is completed: enough to tell it from another.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct With {
    agent: String,
    run: String,
    kind: String,
    /// Of the payload, in hexadecimal digits.
    digest: String,
}

impl With {
    fn of((agent, run): (&str, &str), record: &NewRecord<'_>) -> Self {
        let (agent, run, kind) =
            (agent.to_owned(), run.to_owned(), record.record_kind().to_owned());
        Self { agent, run, kind, digest: format!("{:016x}", digest(record.payload())) }
    }
}

/// The state of an effect.
struct Standing {
    state: State,
    /// The result, or the reason.
    said: Vec<u8>,
    at: Timestamp,
    version: Version,
}

impl Standing {
    fn of(document: &Document) -> Result<Self> {
        let mut parts = document.payload().splitn(2, |byte| *byte == b'\n');
        let line = parts.next().unwrap_or_default();
        let state = serde_json::from_slice(line)
            .map_err(|source| Error::Json { source: std::sync::Arc::new(source) })?;
        let said = parts.next().unwrap_or_default().to_vec();
        Ok(Self { state, said, at: document.timestamp(), version: document.version() })
    }

    fn encode(state: &State, said: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = json(state)?;
        if !matches!(state, State::Begun { .. }) {
            bytes.push(b'\n');
            bytes.extend_from_slice(said);
        }
        Ok(bytes)
    }
}

impl EffectLedger {
    /// The ledger of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several independent ledgers. The name has at most 480 bytes, else every call fails
    /// with [`Error::InvalidId`].
    pub fn named(log: &RunLog, name: &str) -> Self {
        Self { log: log.clone(), namespace: format!("{NAMESPACE}{name}") }
    }

    /// Begins an effect. Of any number of concurrent callers exactly one gets [`Begin::Go`]. Later
    /// callers learn `by`.
    pub fn begin(&self, key: &str, by: &str) -> Result<Begin> {
        let begun = Standing::encode(&State::Begun { by: by.to_owned() }, &[])?;
        let claim = |begun| Claim { key: key.to_owned(), begun };
        loop {
            let expected = match self.look(key)? {
                None => Expected::Absent,
                Some(Standing { state: State::Failed { .. }, version, .. }) => {
                    Expected::Version(version)
                }
                // The answer rests on this write, so it must survive before another caller learns
                // of it.
                Some(Standing { state: State::Begun { by }, at, version, .. }) => {
                    self.log.sync()?;
                    return Ok(Begin::Unfinished { by, at, claim: claim(version) });
                }
                Some(Standing { state: State::Completed { .. }, said, at, .. }) => {
                    self.log.sync()?;
                    return Ok(Begin::Completed { result: said, at });
                }
            };
            match self.log.docs().put_if(&self.namespace, key, &NewRecord::json(&begun), expected) {
                Ok(version) => return Ok(Begin::Go(claim(version))),
                // Another caller was faster.
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Records that an effect was carried out, and its result. Repeating the same call changes
    /// nothing.
    ///
    /// # Errors
    /// [`LedgerError::Superseded`]; [`Error::TooLarge`] for a result that is longer than a record
    /// may be.
    pub fn complete(&self, claim: &Claim, result: &[u8]) -> Result<(), LedgerError> {
        let state = State::Completed { begun: claim.begun.0, with: None };
        self.finish(claim, &state, result, Batch::new())
    }

    /// As [`EffectLedger::complete`], and appends a record to a run in progress: both or neither of
    /// them, also after a crash. Repeating the same call appends nothing. It is the same with this
    /// result, this run, and the kind and payload of this record; its time may be another.
    ///
    /// # Errors
    /// [`LedgerError::Superseded`], also if the effect was completed with this result, but without
    /// this record; [`Error::TooLarge`] as for [`EffectLedger::complete`]; [`Error::RunNotFound`]
    /// and [`Error::RunEnded`] if there is no such run in progress. Then nothing was changed.
    pub fn complete_with(
        &self,
        claim: &Claim,
        result: &[u8],
        (agent, run): (&str, &str),
        record: &NewRecord<'_>,
    ) -> Result<(), LedgerError> {
        let mut batch = Batch::new();
        batch.append(agent, run, *record);
        let with = Some(With::of((agent, run), record));
        self.finish(claim, &State::Completed { begun: claim.begun.0, with }, result, batch)
    }

    /// Records that an effect was not carried out, and will not be under this claim: it may be
    /// begun again. Repeating the same call changes nothing.
    ///
    /// # Errors
    /// [`LedgerError::Superseded`].
    pub fn fail(&self, claim: &Claim, reason: &str) -> Result<(), LedgerError> {
        let state = State::Failed { begun: claim.begun.0 };
        self.finish(claim, &state, reason.as_bytes(), Batch::new())
    }

    fn finish<'a>(
        &'a self,
        claim: &'a Claim,
        state: &State,
        said: &[u8],
        batch: Batch<'a>,
    ) -> Result<(), LedgerError> {
        let value = Standing::encode(state, said)?;
        let mut batch: Batch<'_> = batch;
        // Checked before the run of a record: once that has ended, the claim is still told about.
        batch.expect(&self.namespace, &claim.key, Expected::Version(claim.begun));
        batch.put(&self.namespace, &claim.key, NewRecord::new(&value));
        match self.log.commit(batch.durability(Durability::Disk)) {
            Ok(_) => Ok(()),
            Err(Error::Conflict { .. }) => match self.look(&claim.key)? {
                Some(found) if found.state == *state && found.said == said => {
                    Ok(self.log.sync()?)
                }
                _ => Err(LedgerError::Superseded { key: claim.key.clone() }),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn look(&self, key: &str) -> Result<Option<Standing>> {
        let document = self.log.docs().get(&self.namespace, key)?;
        document.as_ref().map(Standing::of).transpose()
    }

    /// Why an effect failed the last time, if its last state is failed.
    pub fn failure(&self, key: &str) -> Result<Option<String>> {
        Ok(match self.look(key)? {
            Some(Standing { state: State::Failed { .. }, said, .. }) => {
                self.log.sync()?;
                Some(String::from_utf8_lossy(&said).into_owned())
            }
            _ => None,
        })
    }

    /// All effects that were begun and not finished, by key. A program should check these first
    /// after a restart. It reads each effect of the ledger, so forget those that are done.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.log.docs().list(&self.namespace, "", after.as_deref(), PAGE)?;
            for listed in page.documents {
                let key = listed.key;
                if let Some(Standing { state: State::Begun { by }, at, version, .. }) =
                    self.look(&key)?
                {
                    let claim = Claim { key: key.clone(), begun: version };
                    found.push(Unfinished { key, by, at, claim });
                }
            }
            after = page.next;
            if after.is_none() {
                self.log.sync()?;
                return Ok(found);
            }
        }
    }

    /// Forgets an effect in any state: it may be begun again. Forgetting an unknown effect
    /// succeeds.
    pub fn forget(&self, key: &str) -> Result<()> {
        self.log.docs().delete(&self.namespace, key).map(drop)
    }

    /// Forgets all effects as of one moment of the call. What is begun or finished after that
    /// moment stays.
    pub fn clear(&self) -> Result<()> {
        clear(&self.log, &self.namespace)
    }
}
