//! The small values of the public API: the arguments of starts and ends, and the answers.

pub(crate) mod new_record;
pub(crate) mod pages;
pub(crate) mod query;
pub(crate) mod report;
pub(crate) mod summary;
pub(crate) mod usage;

use core::fmt;

use crate::types::{ContentType, Durability, RunStatus, Timestamp};

/// Builder methods: each with its argument, and the field that it sets.
macro_rules! setters {
    ($(
        $(#[doc = $doc:expr])*
        $name:ident($($value:ident: $type:ty),+) => $field:ident = $to:expr;
    )*) => {$(
        $(#[doc = $doc])*
        #[must_use]
        pub fn $name(mut self, $($value: $type),+) -> Self {
            self.$field = $to;
            self
        }
    )*};
}
pub(crate) use setters;

/// The metadata of a run's start: bytes with a content type, at most 64 KiB (less with extents
/// below 1 MiB).
///
/// `()` stands for no metadata, and a byte slice for bytes without a content type. The default
/// durability is [`Durability::Disk`].
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) content: ContentType,
    pub(crate) durability: Durability,
    pub(crate) at: Option<Timestamp>,
}

impl<'a> Metadata<'a> {
    /// Bytes without a content type.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload, content: ContentType::BYTES, durability: Durability::Disk, at: None }
    }

    /// One JSON value that the caller has already serialised.
    pub fn json(payload: &'a [u8]) -> Self {
        Self { content: ContentType::JSON, ..Self::new(payload) }
    }

    setters! {
        /// The content type of the bytes.
        content_type(content: ContentType) => content = content;
        /// Which failure the start must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the start; the time of the call by default.
        at(at: Timestamp) => at = Some(at);
    }
}

impl Default for Metadata<'_> {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl From<()> for Metadata<'_> {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl<'a> From<&'a [u8]> for Metadata<'a> {
    fn from(payload: &'a [u8]) -> Self {
        Self::new(payload)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Metadata<'a> {
    fn from(payload: &'a [u8; N]) -> Self {
        Self::new(payload)
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata").field("len", &self.payload.len()).finish_non_exhaustive()
    }
}

/// How to end a run: a status and optionally bytes (at most 4 KiB), a content type, a durability
/// level and a timestamp. [`RunOutcome`] is the answer of the store for an ended run.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-outcome-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{Outcome, RunStatus};
///
/// let log = runlog::Options::new().open(&path)?;
/// let run = log.start_run("planner", "run-1", ())?;
/// run.end(&Outcome::failed().json(br#"{"error":"timeout"}"#))?;
/// let outcome = log.outcome("run-1")?.expect("the run has ended");
/// assert_eq!(outcome.status(), RunStatus::Failed);
/// assert_eq!(outcome.payload(), br#"{"error":"timeout"}"#);
/// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    status: RunStatus,
    content: ContentType,
    payload: Vec<u8>,
    durability: Durability,
    at: Option<Timestamp>,
}

impl Outcome {
    /// An outcome without a payload, at [`Durability::Disk`].
    pub fn new(status: RunStatus) -> Self {
        let (content, payload) = (ContentType::BYTES, Vec::new());
        Self { status, content, payload, durability: Durability::Disk, at: None }
    }

    /// The run succeeded.
    pub fn completed() -> Self {
        Self::new(RunStatus::Completed)
    }

    /// The run failed.
    pub fn failed() -> Self {
        Self::new(RunStatus::Failed)
    }

    /// A user or a program asked for the run to end.
    pub fn cancelled() -> Self {
        Self::new(RunStatus::Cancelled)
    }

    /// The run was abandoned.
    pub fn interrupted() -> Self {
        Self::new(RunStatus::Interrupted)
    }

    /// Adds one JSON value that the caller has already serialised.
    #[must_use]
    pub fn json(self, payload: &[u8]) -> Self {
        self.bytes(payload).content_type(ContentType::JSON)
    }

    setters! {
        /// Adds bytes. They have no content type unless [`Outcome::content_type`] sets one.
        bytes(payload: &[u8]) => payload = payload.to_vec();
        /// The content type of the bytes.
        content_type(content: ContentType) => content = content;
        /// Which failure the end must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the end; the time of the call by default.
        at(at: Timestamp) => at = Some(at);
    }

    /// The status to end the run with.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// The bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn content(&self) -> ContentType {
        self.content
    }

    pub(crate) fn level(&self) -> Durability {
        self.durability
    }

    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.at
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("status", &self.status)
            .field("len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The metadata of a run: the bytes of its start, and their content type.
#[derive(Clone, PartialEq, Eq)]
pub struct RunMetadata {
    pub(crate) content: ContentType,
    pub(crate) payload: Vec<u8>,
}

impl RunMetadata {
    /// The content type of the bytes.
    pub fn content_type(&self) -> ContentType {
        self.content
    }

    /// The bytes; empty if the start had none.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The bytes, without a copy.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }
}

impl fmt::Debug for RunMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunMetadata").field("len", &self.payload.len()).finish_non_exhaustive()
    }
}

/// How a run ended: a status, the time of the end, and bytes with their content type.
#[derive(Clone, PartialEq, Eq)]
pub struct RunOutcome {
    pub(crate) status: RunStatus,
    pub(crate) at: Timestamp,
    pub(crate) content: ContentType,
    pub(crate) payload: Vec<u8>,
}

impl RunOutcome {
    /// The status that the run ended with.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// When it ended.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The content type of the bytes.
    pub fn content_type(&self) -> ContentType {
        self.content
    }

    /// The bytes; empty if the end had none.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The bytes, without a copy.
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }
}

impl fmt::Debug for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOutcome")
            .field("status", &self.status)
            .field("len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What an append by ids may do in addition to a writer. Imports need both permissions.
///
/// ```
/// use runlog::Allow;
/// let late = Allow::nothing().after_end(true);
/// assert!(late.after_end && !late.unstarted);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Allow {
    /// The run need not have been started; it then counts as not started.
    pub unstarted: bool,
    /// The run may have ended; the record is then marked as late.
    pub after_end: bool,
}

impl Allow {
    /// No permission.
    pub const fn nothing() -> Self {
        Self { unstarted: false, after_end: false }
    }

    /// Both permissions.
    pub const fn everything() -> Self {
        Self { unstarted: true, after_end: true }
    }

    /// Permits that the run was not started.
    #[must_use]
    pub const fn unstarted(mut self, allow: bool) -> Self {
        self.unstarted = allow;
        self
    }

    /// Permits that the run has ended.
    #[must_use]
    pub const fn after_end(mut self, allow: bool) -> Self {
        self.after_end = allow;
        self
    }
}
