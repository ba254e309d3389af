//! Writer leases: who may write a session, and how one who may not any more is kept out.
//!
//! A lease is a document beside the session. Its epoch is the version of the document that granted
//! it, and the store never gives a version twice: so epochs grow, also over deletions and restarts.
//!
//! Ordering: a write and the look at the lease are one batch. Whatever a clock says, and however
//! late a write comes, it counts only if the lease is then as it was expected to be.

use serde::{Deserialize, Serialize};

use super::error::SessionError;
use runlog::{Document, Result, Timestamp, Version};

/// The right to write a session, for a while.
///
/// Time decides only when others may take it. Until another caller does, or writes without a lease
/// after it ran out, its holder may go on; from then on every write with it is refused. It ends
/// with its session: once the holder has deleted that, it needs a new one to write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterLease {
    /// The session.
    pub session: String,
    /// Who has it, as the caller said.
    pub holder: String,
    /// Larger than that of every earlier lease of any session of the store.
    pub epoch: u64,
    /// When others may take it, by the clock of the store.
    pub until: Timestamp,
}

/// What is stored of a lease.
#[derive(Serialize, Deserialize)]
pub(super) struct Granted {
    pub(super) holder: String,
    /// Nanoseconds since the Unix epoch.
    pub(super) until: i64,
    /// None: the version of this very document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) epoch: Option<u64>,
}

/// A lease as it was found.
pub(super) struct Found {
    pub(super) version: Version,
    pub(super) granted: Granted,
}

impl Found {
    pub(super) fn read(document: &Document) -> Result<Self> {
        Ok(Self { version: document.version(), granted: document.json()? })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.granted.epoch.unwrap_or(self.version.0)
    }

    pub(super) fn lease(&self, session: &str) -> WriterLease {
        WriterLease {
            session: session.to_owned(),
            holder: self.granted.holder.clone(),
            epoch: self.epoch(),
            until: Timestamp(self.granted.until),
        }
    }

    /// That this lease keeps the caller out.
    pub(super) fn held(&self, session: &str) -> SessionError {
        let WriterLease { session, holder, until, .. } = self.lease(session);
        SessionError::LeaseHeld { session, holder, until }
    }
}

/// How the document of the lease must be when a write is committed, and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fence {
    /// There is none.
    Absent,
    /// It is that of the caller, and stays.
    Keep(Version),
    /// It ran out, and ends with this write: its holder must learn that somebody wrote.
    End(Version),
}

/// What a write must expect of the lease, or why there is none to be.
pub(super) fn fence(
    session: &str,
    caller: Option<&WriterLease>,
    found: Option<&Found>,
    now: Timestamp,
) -> Result<Fence, SessionError> {
    match (caller, found) {
        (None, None) => Ok(Fence::Absent),
        (None, Some(found)) if found.granted.until <= now.0 => Ok(Fence::End(found.version)),
        (None, Some(found)) => Err(found.held(session)),
        (Some(caller), Some(found)) if found.epoch() == caller.epoch => {
            Ok(Fence::Keep(found.version))
        }
        (Some(caller), found) => Err(fenced(caller, found)),
    }
}

/// That the lease is no longer the caller's.
pub(super) fn fenced(caller: &WriterLease, found: Option<&Found>) -> SessionError {
    let (session, epoch) = (caller.session.clone(), caller.epoch);
    SessionError::Fenced { session, epoch, found: found.map(Found::epoch) }
}
