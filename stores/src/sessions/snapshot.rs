//! All parts of a session at one moment, and the digest of that moment.
//!
//! A session has a head: a document that every write of one of its parts rewrites in the same
//! batch. The digest of a snapshot is the version of the head. It is stricter than a hash of all
//! parts: the store never uses a version twice, so equal digests mean that no caller wrote in
//! between, not even the same bytes or a change that was undone. It also needs no reading.

use core::fmt;

use super::types::SessionTypes;
use runlog::Version;

/// All parts of a session at one moment.
pub struct SessionSnapshot<T: SessionTypes> {
    /// The session.
    pub session: T::Session,
    /// Its artifacts; `None` if they were not saved.
    pub artifacts: Option<T::Artifacts>,
    /// Its trace; `None` if it was not saved.
    pub trace_events: Option<Vec<T::TraceEvent>>,
    /// Its runs; `None` if they were not saved.
    pub run_records: Option<Vec<T::RunRecord>>,
    /// Its reports; `None` if they were not saved.
    pub verification_reports: Option<Vec<T::VerificationReport>>,
    /// Its tasks; `None` if they were not saved.
    pub subagent_tasks: Option<Vec<T::SubagentTask>>,
}

impl<T: SessionTypes> SessionSnapshot<T> {
    /// A session without any other part.
    pub fn new(session: T::Session) -> Self {
        Self {
            session,
            artifacts: None,
            trace_events: None,
            run_records: None,
            verification_reports: None,
            subagent_tasks: None,
        }
    }
}

impl<T: SessionTypes> fmt::Debug for SessionSnapshot<T> {
    /// Shows the id only: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSnapshot")
            .field("id", &T::session_id(&self.session))
            .finish_non_exhaustive()
    }
}

/// A snapshot as it was found.
#[non_exhaustive]
pub struct LoadedSnapshot<T: SessionTypes> {
    /// The parts.
    pub snapshot: SessionSnapshot<T>,
    /// The digest of this moment, for `save_snapshot_cas`.
    pub digest: String,
}

impl<T: SessionTypes> fmt::Debug for LoadedSnapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedSnapshot")
            .field("snapshot", &self.snapshot)
            .field("digest", &self.digest)
            .finish()
    }
}

/// The digest of a session whose head has this version: 16 hexadecimal digits.
pub(super) fn digest_of(version: Version) -> String {
    format!("{:016x}", version.0)
}

/// The version of a digest; `None` if it is not a digest.
pub(super) fn version_of(digest: &str) -> Option<Version> {
    let version = u64::from_str_radix(digest, 16).ok().map(Version)?;
    // Each version has one digest.
    (digest_of(version) == digest).then_some(version)
}
