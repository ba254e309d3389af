//! A segment, cut into frames and what is none.

use runlog::format::frames::block::BlockHead;
use runlog::format::frames::compression::Unreadable;
use runlog::format::frames::eviction::decode_evictions;
use runlog::format::frames::frame::{
    Chunks, FLAG_CHUNKS, FRAME_ALIGN, FRAME_HEADER_LEN, claims_position, decode_ids,
};
use runlog::format::map::manifest::{SealedAt, used_len};
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::format::{Directory, FrameCheck, FrameHeader, FrameKind, SegmentKey};
use runlog::{Damage, ExtentNo, LogPosition, SegmentId};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::inspect::row::{Row, Rows, fields};
use crate::json::Payload;

/// A piece of a segment: a frame whose header checks, or bytes that are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    from: u32,
    to: u32,
    frame: Option<FrameHeader>,
    damage: Option<Damage>,
}

/// A segment with its bytes.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) extent: ExtentNo,
    /// Where it is in the file.
    at: u64,
    id: SegmentId,
    sealed: Option<SealedAt>,
    bytes: Vec<u8>,
    check: FrameCheck,
}

impl Segment {
    pub(super) fn new(
        (extent, at): (ExtentNo, u64),
        (key, sealed): (SegmentKey, Option<SealedAt>),
        bytes: Vec<u8>,
    ) -> Self {
        Self { extent, at, id: key.id, sealed, bytes, check: FrameCheck::new(key) }
    }

    /// The frame at an offset, if its header checks and the segment has all of it.
    fn frame(&self, from: u32) -> Result<Piece, Damage> {
        let bytes = self.bytes.get(from as usize..).ok_or(Damage::Truncated)?;
        let header = FrameHeader::decode_with(bytes, &self.check, from)?;
        let padded = bytes.get(FRAME_HEADER_LEN..header.frame_len()).ok_or(Damage::Truncated)?;
        let damage = header.check_payload(&self.check, padded).err();
        let to = from.saturating_add(u32::try_from(header.frame_len()).unwrap_or(u32::MAX));
        Ok(Piece { from, to, frame: Some(header), damage })
    }

    /// The whole segment, piece by piece.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = SEGMENT_HEADER_LEN;
        let used = u32::try_from(used_len(&self.bytes)).unwrap_or(u32::MAX);
        let end = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        while at < end {
            let piece = self.frame(at).unwrap_or_else(|damage| {
                let next = self.next_frame(at, used);
                // Of a sealed segment only what is before its end counts. In another one the log
                // may end where the next frame is still being written.
                let is_damage = self.sealed.map_or(next.is_some(), |sealed| at < sealed.end);
                let (to, damage) = (next.unwrap_or(end), is_damage.then_some(damage));
                Piece { from: at, to, frame: None, damage }
            });
            at = piece.to;
            pieces.push(piece);
        }
        pieces
    }

    /// The next frame after a place.
    fn next_frame(&self, at: u32, end: u32) -> Option<u32> {
        let mut places = (at..end).step_by(FRAME_ALIGN).skip(1);
        places.find(|offset| {
            let bytes = self.bytes.get(*offset as usize..).unwrap_or_default();
            let position = LogPosition { segment: self.id, offset: *offset };
            claims_position(bytes, position) && self.frame(*offset).is_ok()
        })
    }

    fn row<'a>(&self, piece: &Piece) -> Row<'a> {
        let (event, fields) = match &piece.frame {
            Some(header) => ("frame", fields(header)),
            None => {
                let bytes = self.bytes.get(piece.from as usize..piece.to as usize);
                let is_blank = used_len(bytes.unwrap_or_default()) == 0;
                ("gap", json!({"bytes": piece.to - piece.from, "zeros": is_blank}))
            }
        };
        let damage = piece.damage.map(|damage| damage.to_string());
        Row { event, offset: self.at + u64::from(piece.from), fields, damage, payload: None }
    }

    /// Tells of a piece, as one of many.
    pub(super) fn tell(&self, piece: &Piece, rows: &mut Rows) -> Result<(), Failure> {
        let mut row = self.row(piece);
        if let Some(header) = piece.frame.filter(|_| piece.damage.is_none()) {
            match contents(&header, self.payload(&header)) {
                Ok(mut contents) => {
                    // Only a frame that is shown by itself has all of them.
                    if let Some(Value::Array(runs)) = contents.get_mut("runs") {
                        contents["runs"] = json!(runs.len());
                    }
                    row.fields["contents"] = contents;
                }
                Err(damage) => row.damage = Some(damage.to_string()),
            }
        }
        Ok(rows.push(&row)?)
    }

    /// Tells of the piece that has this offset, with the records of a block.
    pub(super) fn piece(
        &self,
        offset: u32,
        with_payload: bool,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        let pieces = self.pieces();
        let piece = pieces.iter().find(|piece| (piece.from..piece.to).contains(&offset));
        let end = || Failure::said(format!("segment {} has no offset {offset:#x}", self.id));
        let piece = piece.ok_or_else(end)?;
        let mut row = self.row(piece);
        let Some(header) = piece.frame.filter(|_| piece.damage.is_none()) else {
            return Ok(rows.push(&row)?);
        };
        let payload = self.payload(&header);
        match contents(&header, payload) {
            Ok(contents) => row.fields["contents"] = contents,
            Err(damage) => row.damage = Some(damage.to_string()),
        }
        let body = payload.get(header.name_len.into()..).unwrap_or_default();
        let is_block = header.kind == FrameKind::Block;
        row.payload = (with_payload && !is_block).then(|| Payload::new(header.content, body));
        rows.push(&row)?;
        if is_block { self.records(&header, with_payload, rows) } else { Ok(()) }
    }

    /// Tells of the records of a block.
    fn records(
        &self,
        header: &FrameHeader,
        with_payload: bool,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        let offset = self.at + u64::from(header.position.offset);
        let (mut raw, mut listed) = (Vec::new(), Vec::new());
        let opened = BlockHead::decode(header, self.payload(header))
            .map_err(Unreadable::Damaged)
            .and_then(|(head, packed)| head.open(header, packed, &mut raw, &mut listed));
        if let Err(Unreadable::Damaged(damage)) = opened {
            rows.push(&Row::of("record", offset, &Err::<(), _>(damage)))?;
        }
        for (rank, listed) in (0..).zip(&listed) {
            let (record, found) = (listed.header(header, rank), listed.bytes(&raw));
            let mut row = Row::of("record", offset, &found.map(|_| record));
            let body = found.ok().and_then(|found| found.get(listed.name_len.into()..));
            let body = body.filter(|_| with_payload);
            row.payload = body.map(|body| Payload::new(listed.content, body));
            rows.push(&row)?;
        }
        Ok(())
    }

    /// The payload of a frame, with the record kind before it.
    fn payload(&self, header: &FrameHeader) -> &[u8] {
        let start = header.position.offset as usize + FRAME_HEADER_LEN;
        self.bytes.get(start..start + header.payload_len as usize).unwrap_or_default()
    }
}

/// What a payload says that is not the caller's.
fn contents(header: &FrameHeader, payload: &[u8]) -> Result<Value, Damage> {
    Ok(match header.kind {
        FrameKind::Bind | FrameKind::Start => {
            let (agent, run, _) = decode_ids(payload)?;
            json!({"agent": agent, "run": run})
        }
        FrameKind::Record => {
            let parts = payload.split_at_checked(header.name_len.into());
            let (name, rest) = parts.ok_or(Damage::Truncated)?;
            let is_large = header.flags & FLAG_CHUNKS != 0;
            let chunks = is_large.then(|| Chunks::decode(rest)).transpose()?;
            json!({"record_kind": String::from_utf8_lossy(name), "chunks": chunks})
        }
        FrameKind::Evict => json!({"evicted": decode_evictions(payload)?}),
        FrameKind::Block => json!(BlockHead::decode(header, payload)?.0),
        FrameKind::Seal => {
            let directory = Directory::new(payload)?;
            directory.check()?;
            let runs = (0..directory.run_count()).map(|slot| directory.run(slot));
            json!({"runs": runs.collect::<Result<Vec<_>, _>>()?})
        }
        FrameKind::End | FrameKind::Hold | FrameKind::Chunk | FrameKind::Commit => Value::Null,
    })
}
