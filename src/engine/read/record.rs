//! A record as it was stored.

use core::fmt;
use core::ops::Deref;
use std::borrow::Cow;

use crate::engine::state::payload::Payload;
use crate::error::{Error, Result};
use crate::format::FrameHeader;
use crate::format::frames::frame::FLAG_LATE;
use crate::types::{ContentType, Lsn, Seq, Timestamp};

/// A stored record: with its bytes as a [`Payload`], or as a [`RecordView`].
#[derive(Clone)]
pub struct Record<B = Payload> {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
    pub(crate) at: Timestamp,
    pub(crate) content: ContentType,
    pub(crate) late: bool,
    /// The kind and the payload.
    pub(crate) stored: B,
    pub(crate) name_len: u8,
}

/// A record for short use: its bytes are borrowed from the trace where possible.
pub type RecordView<'t> = Record<Cow<'t, [u8]>>;

impl<B> Record<B> {
    /// The record with this header and these checked bytes.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn new(header: &FrameHeader, stored: B) -> Self {
        Self {
            seq: header.seq,
            lsn: header.lsn,
            at: header.at,
            content: header.content,
            late: header.flags & FLAG_LATE != 0,
            stored,
            name_len: header.name_len,
        }
    }
}

impl<B: Deref<Target = [u8]>> Record<B> {
    /// The place of the record in its run, from 0.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The place of the record in the whole log.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// When it was appended.
    pub fn timestamp(&self) -> Timestamp {
        self.at
    }

    /// The kind that the caller gave it, if any.
    pub fn kind(&self) -> Option<&str> {
        let name = self.stored.get(..usize::from(self.name_len))?;
        core::str::from_utf8(name).ok().filter(|kind| !kind.is_empty())
    }

    /// The content type of the payload.
    pub fn content_type(&self) -> ContentType {
        self.content
    }

    /// Whether it was appended after the end of its run.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// The bytes exactly as they were appended.
    pub fn payload(&self) -> &[u8] {
        self.stored.get(usize::from(self.name_len)..).unwrap_or_default()
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] if the payload is not JSON of that shape; the bytes stay readable.
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_slice(self.payload())
            .map_err(|source| Error::Json { source: std::sync::Arc::new(source) })
    }
}

impl Record {
    /// The bytes, to keep without a copy.
    pub fn into_payload(self) -> Payload {
        self.stored.without_first(self.name_len)
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for Record<B> {
    /// Shows only the length of the payload: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("seq", &self.seq)
            .field("kind", &self.kind())
            .field("content_type", &self.content)
            .field("len", &self.payload().len())
            .finish_non_exhaustive()
    }
}
