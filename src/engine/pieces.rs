//! Payloads on their way into frames: whole, or in pieces that are written in front of the record.
//!
//! Each piece takes the lock for itself, so that nobody waits for megabytes. Pieces count only once
//! a record refers to them.

use std::sync::Arc;

use super::core::Urgency;
use super::draft::{Draft, NewRecord};
use super::shared::Engine;
use super::values::Allow;
use crate::error::Result;
use crate::format::frame::{self, FLAG_DOCUMENT, FLAG_PIECES, PieceRef};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{RunNo, Timestamp};

/// The payload of a record as it will stand in its frame.
pub(crate) struct Body<'a> {
    bytes: std::borrow::Cow<'a, [u8]>,
    /// The length of the payload, if `bytes` refers to pieces of it.
    in_pieces: Option<u32>,
    _writing: Option<WritingPieces>,
}

/// What the pieces of a record belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PiecesOf {
    /// A run, in a state that is allowed.
    Run(Allow),
    /// A version of a document.
    Document,
}

/// A large record of which pieces are being written.
struct WritingPieces {
    engine: Arc<Engine>,
    ticket: u64,
}

impl Drop for WritingPieces {
    fn drop(&mut self) {
        self.engine.core.lock().writing_pieces.remove(&self.ticket);
    }
}

impl Engine {
    /// The payload as it is if it is at most `limit` long, else references to its pieces, which
    /// are written now. Pieces count only once a record refers to them.
    pub(crate) fn body<'a>(
        self: &Arc<Self>,
        run_no: RunNo,
        record: &NewRecord<'a>,
        of: PiecesOf,
        limit: usize,
    ) -> Result<Body<'a>> {
        let payload = record.payload();
        if record.name().len() + payload.len() <= limit {
            return Ok(Body { bytes: payload.into(), in_pieces: None, _writing: None });
        }
        let mut pieces = Vec::new();
        let writing = self.begin_pieces();
        for (number, part) in (0..).zip(payload.chunks(self.piece_len())) {
            let at = record.time().unwrap_or_else(|| self.now());
            let mut header = FrameHeader::new(FrameKind::Piece, run_no, at);
            header.extra = number;
            header.flags = if matches!(of, PiecesOf::Document) { FLAG_DOCUMENT } else { 0 };
            let mut draft = Draft::new(header, &[], part);
            let mut core = self.core.lock();
            match of {
                PiecesOf::Run(allow) => drop(self.next_seq(&mut core, run_no, allow)?),
                PiecesOf::Document => self.check_open(&core)?,
            }
            core.place_one(self, &mut draft, Urgency::Normal, record.level())?;
            drop(core);
            let (at, crc) = (draft.header.position, draft.header.payload_crc);
            pieces.push(PieceRef { at, len: draft.header.payload_len, crc });
        }
        let mut bytes = Vec::new();
        frame::encode_pieces(&pieces, &mut bytes);
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Ok(Body { bytes: bytes.into(), in_pieces: Some(len), _writing: Some(writing) })
    }

    /// Until what this answers is dropped, no piece that is written from now on is taken for one
    /// that no record will ever refer to.
    fn begin_pieces(self: &Arc<Self>) -> WritingPieces {
        let mut core = self.core.lock();
        let ticket = core.writing_pieces.last_key_value().map_or(0, |(last, _)| last + 1);
        let first = core.tail.segment.id();
        core.writing_pieces.insert(ticket, first);
        WritingPieces { engine: Arc::clone(self), ticket }
    }

    pub(crate) fn piece_len(&self) -> usize {
        self.extent_size.inline_limit() as usize
    }
}

pub(crate) fn record_draft<'a>(
    run_no: RunNo,
    record: &NewRecord<'a>,
    body: &'a Body<'_>,
    at: Timestamp,
) -> Draft<'a> {
    let mut header = FrameHeader::new(FrameKind::Record, run_no, at);
    header.content = record.content();
    if let Some(len) = body.in_pieces {
        header.flags |= FLAG_PIECES;
        header.extra = len;
    }
    Draft::new(header, record.name().as_bytes(), &body.bytes)
}
