//! Frames before they have a place: what can be done outside of the lock is done here.

use crate::engine::values::setters;
use crate::error::{Error, IdKind, Result};
use crate::format::block::{BlockHead, seq_in};
use crate::format::directory::{EVICTION_COST, EndAt, EvictionAt, HoldAt, RECORD_COST, StartAt};
use crate::format::eviction::Eviction;
use crate::format::frame::{
    FLAG_COMPRESSED, FLAG_DOCUMENT, FLAG_IMPLICIT, FLAG_LATE, FLAG_PIECES, FLAG_PLAIN, FRAME_ALIGN,
    FrameCheck,
};
use crate::format::{DirectoryBuilder, FrameHeader, FrameKind, RunEntry};
use crate::types::{ContentType, Durability, MAX_KIND_LEN, RunNo, RunStatus, Timestamp};

/// The START that creates its run, as opposed to one that comes after records did.
pub(crate) const CREATES: u32 = 1;

/// A record to be appended: a payload and, if wanted, a kind, a content type, a durability level
/// and a timestamp.
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
    /// A record of bytes of which nothing is said, at [`Durability::Process`].
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

    setters! {
        /// The kind: any string of at most [`MAX_KIND_LEN`] bytes. Empty means none.
        kind(kind: &'a str) => kind = kind;
        /// What the payload is.
        content_type(content: ContentType) => content = content;
        /// What the record must survive before the append returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the record, instead of the time of the append.
        at(at: Timestamp) => at = Some(at);
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    pub(crate) fn name(&self) -> &'a str {
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

impl core::fmt::Debug for NewRecord<'_> {
    /// Shows the payload's length only: payloads do not belong into logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NewRecord")
            .field("kind", &self.kind)
            .field("content_type", &self.content)
            .field("len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A frame that has no place yet. The payload is the concatenation of two parts, so that the
/// record kind need not be copied in front of it first.
#[derive(Debug, Clone)]
pub(crate) struct Draft<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) name: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Draft<'a> {
    /// Computes the payload's checksum.
    pub(crate) fn new(mut header: FrameHeader, name: &'a [u8], body: &'a [u8]) -> Self {
        header.set_payload(name, body);
        Self { header, name, body }
    }

    /// A draft without a payload.
    pub(crate) fn empty(kind: FrameKind, run_no: RunNo, at: Timestamp) -> Self {
        Self::new(FrameHeader::new(kind, run_no, at), &[], &[])
    }

    /// An EVICT of these; `body` takes their bytes.
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

    /// Puts the bytes of the frame behind those that are there, filled up to whole words.
    pub(crate) fn encode(&self, check: &FrameCheck, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.header.encode_with(check));
        bytes.extend_from_slice(self.name);
        bytes.extend_from_slice(self.body);
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGN), 0);
    }

    /// What the frame adds to the directory, beyond the entry of a run that is new to it.
    pub(crate) fn directory_cost(&self) -> usize {
        match self.header.kind {
            FrameKind::Record | FrameKind::Piece => RECORD_COST,
            FrameKind::Evict => self.header.extra as usize * EVICTION_COST,
            _ => 0,
        }
    }
}

/// Notes a frame that counts in the directory of its segment. The run must have an entry. Append
/// and recovery both come through here.
pub(crate) fn note_frame(
    builder: &mut DirectoryBuilder,
    header: &FrameHeader,
    evicted: &[(RunNo, bool)],
) {
    builder.note_lsn(header.lsn);
    for &(run_no, with_receipt) in evicted {
        let offset = header.position.offset;
        builder.push_eviction(EvictionAt { run_no, offset, with_receipt });
    }
    // A BIND only names its run; the entry says the same.
    if header.kind == FrameKind::Bind {
        return;
    }
    let Some(entry) = builder.run_mut(header.run_no) else { return };
    entry.stored += header.frame_len() as u64;
    entry.document |= header.flags & FLAG_DOCUMENT != 0;
    // A piece is nothing by itself: its record may never have come. A hold is not part of the run's
    // story.
    if !matches!(header.kind, FrameKind::Piece | FrameKind::Hold) {
        entry.last_at = entry.last_at.max(header.at);
    }
    let offset = header.position.offset;
    match header.kind {
        FrameKind::Start => {
            if header.extra == CREATES {
                entry.created_at.get_or_insert(header.at);
            }
            if header.flags & FLAG_IMPLICIT == 0 {
                entry.start.get_or_insert(StartAt { offset, at: header.at });
            }
        }
        FrameKind::Piece => {
            note_cold(entry, header.flags & (FLAG_COMPRESSED | FLAG_PLAIN) != 0);
            entry.first_lsn = entry.first_lsn.min(header.lsn);
            builder.push_piece(header.run_no, offset);
        }
        FrameKind::Record => {
            count_record(entry, header);
            builder.push_record(header.run_no, offset);
        }
        FrameKind::End => {
            let status =
                RunStatus::from_code(header.content.code()).unwrap_or(RunStatus::Interrupted);
            let end = EndAt { offset, at: header.at, status, lsn: header.lsn };
            if entry.end.is_none_or(|known| known.lsn <= end.lsn) {
                entry.end = Some(end);
            }
        }
        FrameKind::Hold => {
            let hold = HoldAt { offset, lsn: header.lsn, held: header.extra != 0 };
            if entry.hold.is_none_or(|known| known.lsn <= hold.lsn) {
                entry.hold = Some(hold);
            }
        }
        _ => {}
    }
}

/// Notes a record like [`note_frame`], in the entry that its run has.
#[inline]
pub(crate) fn note_record(builder: &mut DirectoryBuilder, slot: usize, header: &FrameHeader) {
    builder.note_lsn(header.lsn);
    let Some(entry) = builder.push_record_at(slot, header.position.offset) else { return };
    entry.stored += header.frame_len() as u64;
    entry.last_at = entry.last_at.max(header.at);
    count_record(entry, header);
}

fn count_record(entry: &mut RunEntry, header: &FrameHeader) {
    note_cold(entry, header.flags & FLAG_PLAIN != 0);
    entry.first_lsn = entry.first_lsn.min(header.lsn);
    entry.first_seq.get_or_insert(header.seq);
    entry.next_seq = entry.next_seq.max(crate::types::Seq(header.seq.0.saturating_add(1)));
    entry.records += 1;
    entry.late += u32::from(header.flags & FLAG_LATE != 0);
    entry.bytes += record_len(header);
}

/// Notes the records of a block, behind [`note_frame`]. What is damaged of its payload costs what
/// the header of the frame does not say.
pub(crate) fn note_block(builder: &mut DirectoryBuilder, block: &FrameHeader, payload: &[u8]) {
    let head = BlockHead::decode(block, payload).ok().map(|(head, _)| head);
    if let Some(head) = head {
        builder.note_lsn(head.last_lsn);
    }
    let Some(entry) = builder.run_mut(block.run_no) else { return };
    note_cold(entry, true);
    entry.first_lsn = entry.first_lsn.min(block.lsn);
    entry.first_seq.get_or_insert(block.seq);
    entry.next_seq = entry.next_seq.max(seq_in(block, block.extra));
    entry.records = entry.records.saturating_add(block.extra);
    if let Some(head) = head {
        entry.late = entry.late.saturating_add(head.late);
        entry.bytes = entry.bytes.saturating_add(head.bytes);
    }
    for _ in 0..block.extra {
        builder.push_record(block.run_no, block.position.offset);
    }
}

/// A run is cold in a segment if all of its records and pieces there are.
fn note_cold(entry: &mut RunEntry, cold: bool) {
    entry.cold = cold && (entry.cold || entry.records == 0 && entry.pieces == 0);
}

/// The length of a record's payload, also where it lies in pieces.
pub(crate) fn record_len(header: &FrameHeader) -> u64 {
    if header.flags & FLAG_PIECES != 0 {
        u64::from(header.extra)
    } else {
        u64::from(header.payload_len.saturating_sub(u32::from(header.name_len)))
    }
}
