//! Frames without a place: the work on them that needs no lock.

use crate::format::frames::eviction::Eviction;
use crate::format::frames::frame::{FRAME_ALIGN, FrameCheck, LONG_HEADER_LEN};
use crate::format::segments::directory::EVICTION_COST;
use crate::format::segments::run_entry::{MAX_MARK, records_cost};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{MAX_KIND_LEN, RunNo, Timestamp};

/// The longest head of a frame: the header, the kind, and the bytes that fill its last word.
pub(crate) const HEAD: usize = LONG_HEADER_LEN + MAX_KIND_LEN + FRAME_ALIGN;

/// A frame without a place. Its payload is in two parts, so that the kind is not copied.
#[derive(Debug, Clone)]
pub(crate) struct PendingFrame<'a> {
    pub(crate) header: FrameHeader,
    /// The kind of a record; in a PUT behind the ids.
    pub(crate) name: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> PendingFrame<'a> {
    /// Computes the payload's checksum.
    pub(crate) fn new(mut header: FrameHeader, name: &'a [u8], body: &'a [u8]) -> Self {
        header.set_payload(name, body);
        Self { header, name, body }
    }

    /// A pending frame without a payload.
    pub(crate) fn empty(kind: FrameKind, run_no: RunNo, at: Timestamp) -> Self {
        Self::new(FrameHeader::new(kind, run_no, at), &[], &[])
    }

    /// An EVICT of these items; `body` receives their bytes.
    pub(crate) fn evict<'i>(
        items: impl IntoIterator<Item = &'i Eviction>,
        at: Timestamp,
        body: &'a mut Vec<u8>,
    ) -> Self {
        let mut header = FrameHeader::new(FrameKind::Evict, RunNo(0), at);
        for item in items {
            item.encode(body);
            header.extra += 1;
        }
        Self::new(header, &[], body)
    }

    /// Appends the bytes of the frame to `bytes`, filled up to whole words.
    pub(crate) fn encode(&self, check: &FrameCheck, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.header.encode_with(check, &mut [0; LONG_HEADER_LEN]));
        bytes.extend_from_slice(self.name);
        bytes.extend_from_slice(self.body);
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGN), 0);
    }

    /// The same bytes but for those that fill the last word: a head of whole words, and what the
    /// payload has behind it.
    #[inline]
    pub(crate) fn in_two<'h>(
        &self,
        check: &FrameCheck,
        head: &'h mut [u8; HEAD],
    ) -> (&'h [u8], &'a [u8]) {
        let start = self.header.header_len();
        let named = start + self.name.len();
        let whole = named.next_multiple_of(FRAME_ALIGN);
        let (first, rest) = self.body.split_at((whole - named).min(self.body.len()));
        let mut header = [0; LONG_HEADER_LEN];
        head[..start].copy_from_slice(self.header.encode_with(check, &mut header));
        head[start..named].copy_from_slice(self.name);
        head[named..named + first.len()].copy_from_slice(first);
        (&head[..whole], rest)
    }

    /// The bytes that the frame adds to the directory, apart from the entry of a new run.
    pub(crate) fn directory_cost(&self) -> usize {
        match self.header.kind {
            FrameKind::Record | FrameKind::Chunk => records_cost(1),
            FrameKind::Start | FrameKind::End | FrameKind::Hold => MAX_MARK,
            FrameKind::Put => records_cost(1) + MAX_MARK + EVICTION_COST,
            FrameKind::Evict => self.header.extra as usize * EVICTION_COST,
            _ => 0,
        }
    }
}
