//! Writer leases: the right to write a session, and how the store refuses writers that lost it.
//!
//! A lease is a document beside the session. Its epoch is the version of the document that granted
//! it. The store never uses a version twice, so epochs grow, also over deletions and restarts.
//!
//! Ordering: a write and the check of the lease are one batch. So a write succeeds only if the
//! lease is as expected at that moment, whatever a clock shows, and however late the write comes.

use serde::{Deserialize, Serialize};

use super::error::SessionError;
use runlog::{Document, Result, Timestamp, Version};

/// The right to write a session, for a while.
///
/// The time decides only when other callers may take it. The holder may go on until another caller
/// takes the lease, or writes without a lease after it expired. From then on every write with it is
/// refused. It ends with its session: after the holder has deleted the session, it needs a new
/// lease to write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterLease {
    /// The session.
    pub session: String,
    /// The holder, as the caller named it.
    pub holder: String,
    /// Larger than that of every earlier lease of any session of the store.
    pub epoch: u64,
    /// When other callers may take it, by the clock of the store.
    pub until: Timestamp,
}

/// A lease as it is stored.
#[derive(Serialize, Deserialize)]
pub(super) struct Granted {
    pub(super) holder: String,
    /// Nanoseconds since the Unix epoch.
    pub(super) until: i64,
    /// `None` means the version of this document.
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

    /// The error that this lease causes for other callers.
    pub(super) fn held(&self, session: &str) -> SessionError {
        let WriterLease { session, holder, until, .. } = self.lease(session);
        SessionError::LeaseHeld { session, holder, until }
    }
}

/// The state of the lease document that a write requires, and what the write does with it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fence {
    /// There is no lease.
    Absent,
    /// The caller has the lease, and keeps it.
    Keep(Version),
    /// The lease expired, and ends with this write: its holder must learn that another caller
    /// wrote.
    End(Version),
}

/// What a write must expect of the lease, or why it may not write.
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

/// The error of a caller that no longer has the lease.
pub(super) fn fenced(caller: &WriterLease, found: Option<&Found>) -> SessionError {
    let (session, epoch) = (caller.session.clone(), caller.epoch);
    SessionError::Fenced { session, epoch, found: found.map(Found::epoch) }
}
