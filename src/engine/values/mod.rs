//! The small values of the public API: what goes into a start and an end, and what comes back.

pub(crate) mod new_record;
pub(crate) mod pages;
pub(crate) mod report;
pub(crate) mod summary;

use core::fmt;

use crate::types::{ContentType, Durability, RunStatus, Timestamp};

/// Methods of a value that is put together, each with its argument, and the field that takes it.
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

/// What a start says of its run: bytes with a content type, at most 64 KiB (less with extents
/// below 1 MiB).
///
/// `()` stands for none, and a byte slice for bytes of which nothing is said. The default
/// durability is [`Durability::Disk`].
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) content: ContentType,
    pub(crate) durability: Durability,
    pub(crate) at: Option<Timestamp>,
}

impl<'a> Metadata<'a> {
    /// Bytes of which nothing is said.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload, content: ContentType::BYTES, durability: Durability::Disk, at: None }
    }

    /// One JSON value that the caller has already serialised.
    pub fn json(payload: &'a [u8]) -> Self {
        Self { content: ContentType::JSON, ..Self::new(payload) }
    }

    setters! {
        /// What the bytes are.
        content_type(content: ContentType) => content = content;
        /// What the start must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the start, instead of the time of the call.
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

/// How a run ended: a status, and bytes with a content type, at most 4 KiB.
///
/// ```
/// use runlog::{ContentType, Outcome, RunStatus};
/// let outcome = Outcome::failed().with_payload(br#"{"error":"timeout"}"#, ContentType::JSON);
/// assert_eq!(outcome.status(), RunStatus::Failed);
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

    /// The run was given up.
    pub fn interrupted() -> Self {
        Self::new(RunStatus::Interrupted)
    }

    /// Adds bytes.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8], content: ContentType) -> Self {
        (self.payload, self.content) = (payload.to_vec(), content);
        self
    }

    setters! {
        /// What the end must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the end, instead of the time of the call.
        at(at: Timestamp) => at = Some(at);
    }

    /// How the run ended.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// The bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What the bytes are.
    pub fn content_type(&self) -> ContentType {
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

/// What an append by ids may do beyond what a writer may. Imports of other systems need both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allow {
    /// The run need not have been started; it then counts as not started.
    pub unstarted: bool,
    /// The run may have ended; the record is then marked as late.
    pub after_end: bool,
}

impl Allow {
    /// Neither.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Both.
    pub fn everything() -> Self {
        Self { unstarted: true, after_end: true }
    }
}
