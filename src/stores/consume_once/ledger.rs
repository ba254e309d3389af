//! Effects on the world outside: begun, and finished later, or never.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::{clear, json, replace};
use crate::{Document, Error, Expected, Result, RunLog, Timestamp};

/// What the namespaces of ledgers begin with; no caller's namespace should.
const NAMESPACE: &str = "\0effects/";

/// Keys that are looked at in one step of [`EffectLedger::unfinished`].
const PAGE: usize = 500;

/// A ledger of effects, by keys of the caller's choice. Cheap to clone; clones are the same ledger.
///
/// Before an effect is carried out it is begun, and after that it is completed with its result, or
/// failed. A crash in between leaves it begun: nobody can know whether the effect happened, so the
/// ledger says so, and leaves it to the caller to find out. That is what at-most-once means.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-ledger-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::stores::consume_once::{Begin, EffectLedger};
///
/// let log = runlog::Options::new().open(&path)?;
/// let ledger = EffectLedger::new(&log);
/// if let Begin::Go = ledger.begin("refund-7", "worker-1")? {
///     // ... pay back ...
///     ledger.complete("refund-7", b"receipt 99")?;
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

/// What became of [`EffectLedger::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "only `Go` allows the effect"]
pub enum Begin {
    /// The effect is the caller's to carry out: it was never begun, or it failed before.
    Go,
    /// Somebody began it and has not finished it. If that one is gone, nobody knows whether the
    /// effect happened: the caller must find out, and then complete or fail it.
    Unfinished {
        /// Who began it.
        by: String,
        /// When.
        at: Timestamp,
    },
    /// It was carried out. The caller can use the result.
    Completed {
        /// What was said when it was completed.
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
    /// Who began it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Why an effect was not finished.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LedgerError {
    /// It was not begun, or is finished in another way. The caller should look at how it uses the
    /// ledger.
    NotBegun {
        /// The key of the effect.
        key: String,
    },
    /// The store failed. What the ledger says can be asked once the store works again.
    Store(Error),
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBegun { key } => {
                write!(f, "effect {key:?} is not under way; begin it before it is finished")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LedgerError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NotBegun { .. } => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl From<Error> for LedgerError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// What is stored under the key of an effect.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    Begun { by: String },
    Completed { result: Vec<u8> },
    Failed { reason: String },
}

impl EffectLedger {
    /// The ledger of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several ledgers that know nothing of one another. The name has at most 480 bytes,
    /// else every call fails with [`Error::InvalidId`].
    pub fn named(log: &RunLog, name: &str) -> Self {
        Self { log: log.clone(), namespace: format!("{NAMESPACE}{name}") }
    }

    /// Begins an effect. Of any number of callers at the same time exactly one gets [`Begin::Go`].
    /// `by` says who, to those who come later.
    pub fn begin(&self, key: &str, by: &str) -> Result<Begin> {
        let begun = json(&State::Begun { by: by.to_owned() })?;
        loop {
            let expected = match self.look(key)? {
                None => Expected::Absent,
                Some((State::Failed { .. }, document)) => Expected::Version(document.version()),
                // What is told must not be lost with whoever has not been told yet.
                Some((State::Begun { by }, document)) => {
                    self.log.sync()?;
                    return Ok(Begin::Unfinished { by, at: document.timestamp() });
                }
                Some((State::Completed { result }, document)) => {
                    self.log.sync()?;
                    return Ok(Begin::Completed { result, at: document.timestamp() });
                }
            };
            if replace(&self.log, (&self.namespace, key), &begun, expected)?.is_some() {
                return Ok(Begin::Go);
            }
            // Somebody was faster.
        }
    }

    /// Says that an effect was carried out, and what came of it. Saying the same again is fine.
    ///
    /// # Errors
    /// [`LedgerError::NotBegun`].
    pub fn complete(&self, key: &str, result: &[u8]) -> Result<(), LedgerError> {
        self.finish(key, &State::Completed { result: result.to_vec() })
    }

    /// Says that an effect was not carried out, and will not be by whoever began it: it may be
    /// begun again. Saying the same again is fine.
    ///
    /// # Errors
    /// [`LedgerError::NotBegun`].
    pub fn fail(&self, key: &str, reason: &str) -> Result<(), LedgerError> {
        self.finish(key, &State::Failed { reason: reason.to_owned() })
    }

    fn finish(&self, key: &str, state: &State) -> Result<(), LedgerError> {
        let value = json(state)?;
        loop {
            let version = match self.look(key)? {
                Some((State::Begun { .. }, document)) => document.version(),
                Some((found, _)) if found == *state => return Ok(self.log.sync()?),
                _ => return Err(LedgerError::NotBegun { key: key.to_owned() }),
            };
            let expected = Expected::Version(version);
            if replace(&self.log, (&self.namespace, key), &value, expected)?.is_some() {
                return Ok(());
            }
        }
    }

    fn look(&self, key: &str) -> Result<Option<(State, Document)>> {
        let Some(document) = self.log.get(&self.namespace, key)? else { return Ok(None) };
        Ok(Some((document.json()?, document)))
    }

    /// Why an effect failed the last time, if that is how it stands.
    pub fn failure(&self, key: &str) -> Result<Option<String>> {
        Ok(match self.look(key)? {
            Some((State::Failed { reason }, _)) => {
                self.log.sync()?;
                Some(reason)
            }
            _ => None,
        })
    }

    /// All effects that were begun and not finished, by key: what a restart should look at first.
    /// Costs a look at each effect of the ledger; forget those that are done.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.log.list(&self.namespace, "", after.as_deref(), PAGE)?;
            for listed in page.documents {
                if let Some((State::Begun { by }, document)) = self.look(&listed.key)? {
                    found.push(Unfinished { key: listed.key, by, at: document.timestamp() });
                }
            }
            after = page.next;
            if after.is_none() {
                self.log.sync()?;
                return Ok(found);
            }
        }
    }

    /// Forgets an effect, however it stands: it may be begun again. One that is not there is fine.
    pub fn forget(&self, key: &str) -> Result<()> {
        self.log.delete(&self.namespace, key).map(|_| ())
    }

    /// Forgets all effects that the ledger had when the call began.
    pub fn clear(&self) -> Result<()> {
        clear(&self.log, &self.namespace)
    }
}
