//! The bytes of a record, for callers that keep them.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use crate::engine::state::segment::Segment;
use crate::format::FrameHeader;
use crate::format::codec::len_u32;

/// Stored bytes: a view of the file where possible, otherwise a copy. Clones are cheap. The extent
/// behind a view is not reused while the payload or a clone lives. The bytes stay readable after
/// the store was closed, and the file stays locked until the last view is dropped; see
/// [`RunLog::close`](crate::RunLog::close). Payloads of records that were compressed together share
/// one copy of all of them, about 128 KiB.
#[derive(Clone)]
pub struct Payload {
    owner: Owner,
    /// Where the payload starts within the owner's bytes.
    start: u32,
    /// Its length.
    len: u32,
}

/// What holds the bytes of a payload.
#[derive(Clone)]
enum Owner {
    /// A segment, in its view of the extent.
    View(Arc<Source>),
    /// A copy, which other payloads may share.
    Copy(Arc<Vec<u8>>),
}

/// A segment whose bytes payloads show. The payloads of a trace share it, so that threads which
/// read the same segment do not compete for the counter of one `Arc`.
#[derive(Debug)]
pub(crate) struct Source {
    segment: Arc<Segment>,
}

impl Source {
    pub(crate) fn new(segment: &Arc<Segment>) -> Arc<Self> {
        Arc::new(Self { segment: Arc::clone(segment) })
    }

    #[inline]
    pub(crate) fn is_of(&self, segment: &Arc<Segment>) -> bool {
        Arc::ptr_eq(&self.segment, segment)
    }

    /// The payload of a checked frame of the segment, to keep.
    #[inline]
    pub(crate) fn keep(self: &Arc<Self>, frame: CheckedFrame) -> Payload {
        let (start, len) = (frame.start(), frame.header.record_len());
        match frame.into_copy() {
            Some(copy) => Payload::owned(copy),
            None => Payload { owner: Owner::View(Arc::clone(self)), start, len },
        }
    }
}

impl Payload {
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let len = len_u32(bytes.len());
        Self { owner: Owner::Copy(Arc::new(bytes)), start: 0, len }
    }

    pub(crate) fn part(bytes: &Arc<Vec<u8>>, start: u32, len: u32) -> Self {
        Self { owner: Owner::Copy(Arc::clone(bytes)), start, len }
    }

    /// The bytes after the first `len`; empty if there are fewer.
    #[must_use]
    pub(crate) fn without_first(mut self, len: u8) -> Self {
        self.start = self.start.saturating_add(u32::from(len));
        self.len = self.len.saturating_sub(u32::from(len));
        self
    }

    /// Whether the bytes are a view of the file rather than a copy.
    pub fn is_view(&self) -> bool {
        matches!(self.owner, Owner::View(_))
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::View(source) => source.segment.viewed(self.start, self.len),
            Owner::Copy(bytes) => {
                let rest = bytes.get(self.start as usize..).unwrap_or_default();
                rest.get(..self.len as usize).unwrap_or_default()
            }
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Payload {
    /// Shows only the length: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

/// A frame with checked header and payload.
#[derive(Debug)]
pub(crate) struct CheckedFrame {
    pub(crate) header: FrameHeader,
    /// The payload, if the segment has no view of it.
    copy: Option<Vec<u8>>,
}

impl CheckedFrame {
    /// A frame whose payload the caller does not need.
    #[inline]
    pub(crate) fn without_copy(header: FrameHeader) -> Self {
        Self { header, copy: None }
    }

    /// A frame with its payload.
    pub(crate) fn with_copy(header: FrameHeader, payload: Vec<u8>) -> Self {
        Self { header, copy: Some(payload) }
    }

    /// The payload, if the segment has no view of it.
    pub(crate) fn into_copy(self) -> Option<Vec<u8>> {
        self.copy
    }

    /// The offset in the segment of the payload, or of the record in a PUT.
    pub(crate) fn start(&self) -> u32 {
        self.header.payload_at().saturating_add(self.header.front_len())
    }
}
