//! A record to be appended.

use crate::engine::values::setters;
use crate::error::{Error, Result};
use crate::types::{ContentType, Durability, IdKind, MAX_KIND_LEN, Timestamp};

/// A record to be appended: a payload and optionally a kind, a content type, a durability level and
/// a timestamp.
///
/// ```
/// use runlog::{ContentType, Durability, NewRecord};
/// let record = NewRecord::new(br#"{"tool":"ls"}"#)
///     .kind("tool_call")
///     .content_type(ContentType::JSON)
///     .durability(Durability::Disk);
/// assert_eq!(record.payload(), br#"{"tool":"ls"}"#);
/// ```
#[derive(Clone, Copy)]
pub struct NewRecord<'a> {
    payload: &'a [u8],
    kind: &'a str,
    content: ContentType,
    durability: Durability,
    at: Option<Timestamp>,
}

impl<'a> NewRecord<'a> {
    /// A record without a kind or content type, at [`Durability::Process`].
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            payload,
            kind: "",
            content: ContentType::BYTES,
            durability: Durability::Process,
            at: None,
        }
    }

    /// A record of one JSON value that the caller has already serialised.
    pub fn json(payload: &'a [u8]) -> Self {
        Self::new(payload).content_type(ContentType::JSON)
    }

    /// The same record with one JSON value as its payload.
    pub(crate) fn with_json<'p>(self, payload: &'p [u8]) -> NewRecord<'p>
    where
        'a: 'p,
    {
        NewRecord { payload, content: ContentType::JSON, ..self }
    }

    setters! {
        /// The kind: any string of at most [`MAX_KIND_LEN`] bytes. Empty means no kind.
        kind(kind: &'a str) => kind = kind;
        /// The content type of the payload.
        content_type(content: ContentType) => content = content;
        /// Which failure the record must survive before the append returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the record; the time of the append by default.
        at(at: Timestamp) => at = Some(at);
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The kind; empty if it has none.
    pub fn record_kind(&self) -> &'a str {
        self.kind
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

    pub(crate) fn check_kind(&self) -> Result<()> {
        if self.kind.len() > MAX_KIND_LEN {
            let (len, max) = (self.kind.len(), MAX_KIND_LEN);
            return Err(Error::InvalidId { kind: IdKind::RecordKind, len, max });
        }
        Ok(())
    }
}

impl Default for NewRecord<'_> {
    /// A record without a payload.
    fn default() -> Self {
        Self::new(&[])
    }
}

impl core::fmt::Debug for NewRecord<'_> {
    /// Shows only the length of the payload: payloads do not belong in logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NewRecord")
            .field("kind", &self.kind)
            .field("content_type", &self.content)
            .field("len", &self.payload.len())
            .finish_non_exhaustive()
    }
}
