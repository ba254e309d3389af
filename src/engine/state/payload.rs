//! The bytes of a record for those who keep them.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use crate::engine::state::segment::{CheckedFrame, Segment};
use crate::format::codec::len_u32;

/// Bytes that were stored: a view of the file where that is possible, a copy elsewhere. Cheap to
/// clone; the extent that a view points into is not reused while the payload or a clone lives. The
/// payloads of records that were compressed together share one copy of all of them, some 128 KiB.
#[derive(Clone)]
pub struct Payload {
    owner: Owner,
    /// The first of the owner's bytes.
    start: u32,
    /// How many they are.
    len: u32,
}

/// Who has the bytes of a payload.
#[derive(Clone)]
enum Owner {
    /// The segment, in its view of the extent.
    View(Arc<Lent>),
    /// A copy, which others may share.
    Copy(Arc<Vec<u8>>),
}

/// A segment of which bytes are handed out: closing the store leaves them where they are.
#[derive(Debug)]
pub(crate) struct Lent {
    segment: Arc<Segment>,
}

impl Lent {
    /// Bytes of the segment are about to be handed out. They stay if the store is not closed when
    /// that is asked after this.
    pub(crate) fn of(segment: &Arc<Segment>) -> Arc<Self> {
        segment.lent().lend();
        Arc::new(Self { segment: Arc::clone(segment) })
    }

    /// The payload of a frame of the segment that was checked, to keep.
    #[inline]
    pub(crate) fn keep(self: &Arc<Self>, frame: CheckedFrame) -> Payload {
        let (start, len) = (frame.start(), frame.header.payload_len);
        match frame.into_copy() {
            Some(copy) => Payload::owned(copy),
            None => Payload { owner: Owner::View(Arc::clone(self)), start, len },
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.segment.lent().take_back();
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

    /// The bytes without the first `len`; none if they are fewer.
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
            Owner::View(lent) => lent.segment.viewed(self.start, self.len),
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
    /// Shows the length only: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}
