//! A segment, cut into frames and what is none.

use std::ops::Range;

use runlog::format::frames::block::BlockHead;
use runlog::format::frames::eviction::decode_evictions;
use runlog::format::frames::frame::{Chunks, FLAG_CHUNKS, FRAME_ALIGN, may_be_header};
use runlog::format::frames::ids::{decode_ids, decode_put};
use runlog::format::frames::slice::{PieceAt, decode_piece};
use runlog::format::map::manifest::{SealedAt, used_len};
use runlog::format::segments::directory::{DirectoryKey, IdHash};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{Directory, FrameCheck, FrameHeader, FrameKind, SegmentKey};
use runlog::{Damage, ExtentNo};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::inspect::row::{Row, Rows, fields};
use crate::json::Payload;

/// A piece of a segment: a frame whose header checks, or bytes that are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) from: u32,
    pub(super) to: u32,
    frame: Option<FrameHeader>,
    damage: Option<Damage>,
}

/// A segment with its bytes.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) extent: ExtentNo,
    /// Where it is in the file.
    at: u64,
    key: SegmentKey,
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
        Self { extent, at, key, sealed, bytes, check: FrameCheck::new(key) }
    }

    /// The frame at an offset, if its header checks and the segment has all of it.
    fn frame(&self, from: u32) -> Result<Piece, Damage> {
        let bytes = self.bytes.get(from as usize..).ok_or(Damage::Truncated)?;
        let header = FrameHeader::decode_with(bytes, &self.check, from)?;
        let padded = bytes.get(header.header_len()..header.frame_len()).ok_or(Damage::Truncated)?;
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
            may_be_header(bytes) && self.frame(*offset).is_ok()
        })
    }

    /// Tells of a piece: as one of many, or by itself, with its payload if that is asked for.
    pub(super) fn tell(
        &self,
        piece: &Piece,
        alone: Option<bool>,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        let bytes = self.bytes.get(piece.from as usize..piece.to as usize).unwrap_or_default();
        let mut row = Row {
            event: "gap",
            offset: self.at + u64::from(piece.from),
            fields: json!({"bytes": bytes.len(), "zeros": used_len(bytes) == 0}),
            damage: piece.damage.map(|damage| damage.to_string()),
            payload: None,
        };
        let Some(header) = piece.frame else { return Ok(rows.push(&row)?) };
        (row.event, row.fields) = ("frame", fields(&header));
        let payload = self.payload(&header).filter(|_| piece.damage.is_none());
        match payload.map(|payload| self.contents(&header, payload)) {
            Some(Ok(mut contents)) => {
                // Only a frame that is shown by itself has all of them.
                if let Some(runs) = contents.get_mut("runs").filter(|_| alone.is_none()) {
                    *runs = json!(runs.as_array().map(Vec::len));
                }
                row.fields["contents"] = contents;
            }
            Some(Err(damage)) => row.damage = Some(damage.to_string()),
            None => {}
        }
        let is_block = header.kind == FrameKind::Block;
        let body =
            payload.and_then(|payload| header.record_in(payload).get(header.name_len.into()..));
        let body = body.filter(|_| alone == Some(true) && !is_block);
        row.payload = body.map(|body| Payload::new(header.content, body));
        rows.push(&row)?;
        match (payload.filter(|_| is_block), alone) {
            (Some(payload), Some(with_payload)) => {
                self.records((&header, payload), with_payload, rows)
            }
            _ => Ok(()),
        }
    }

    /// Tells of the records of a block.
    fn records(
        &self,
        (header, payload): (&FrameHeader, &[u8]),
        with_payload: bool,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        let offset = self.at + u64::from(header.position.offset);
        let (mut raw, mut listed) = (Vec::new(), Vec::new());
        let opened = BlockHead::decode(header, payload)
            .and_then(|(head, packed)| head.open(header, packed, &mut raw, &mut listed));
        if let Err(damage) = opened {
            rows.push(&Row::of("record", offset, &Err::<(), _>(damage)))?;
        }
        for (rank, listed) in (0..).zip(&listed) {
            let record = listed.header(header, rank);
            if listed.recipe.is_some() {
                let mut ranges = Vec::new();
                let read = listed.each_range(&raw, |range| ranges.push(range));
                let bytes = self.unique_bytes(header, payload, &ranges);
                let mut row = Row::of("record", offset, &read.map(|()| record));
                let body = bytes.as_ref().and_then(|bytes| bytes.get(listed.name_len.into()..));
                let body = body.filter(|_| with_payload);
                row.payload = body.map(|body| Payload::new(listed.content, body));
                rows.push(&row)?;
                continue;
            }
            let found = listed.bytes(&raw);
            let mut row = Row::of("record", offset, &found.map(|_| record));
            let body = found.ok().and_then(|found| found.get(listed.name_len.into()..));
            let body = body.filter(|_| with_payload);
            row.payload = body.map(|body| Payload::new(listed.content, body));
            rows.push(&row)?;
        }
        Ok(())
    }

    /// These ranges of the slice of a block, if all PIECEs that have them are whole.
    fn unique_bytes(
        &self,
        block: &FrameHeader,
        payload: &[u8],
        ranges: &[Range<u32>],
    ) -> Option<Vec<u8>> {
        let slice = BlockHead::decode(block, payload).ok()?.0.slice?.slice;
        let mut unique = Vec::new();
        let mut pieces: Vec<FrameHeader> =
            self.pieces().iter().filter_map(|one| one.frame).collect();
        pieces.retain(|frame| frame.kind == FrameKind::Piece && frame.lsn == slice);
        pieces.sort_by_key(|frame| frame.seq);
        for frame in pieces {
            if frame.seq.0 == unique.len() as u64 {
                let _ =
                    decode_piece(PieceAt::of(&frame), &frame, self.payload(&frame)?, &mut unique);
            }
        }
        let mut bytes = Vec::new();
        for range in ranges {
            bytes.extend_from_slice(unique.get(range.start as usize..range.end as usize)?);
        }
        Some(bytes)
    }

    /// The payload of a frame, with the record kind before it.
    fn payload(&self, header: &FrameHeader) -> Option<&[u8]> {
        let start = header.payload_at() as usize;
        self.bytes.get(start..start + header.payload_len as usize)
    }

    /// What a payload says that is not the caller's.
    fn contents(&self, header: &FrameHeader, payload: &[u8]) -> Result<Value, Damage> {
        Ok(match header.kind {
            FrameKind::Bind | FrameKind::Start => {
                let (agent, run, _) = decode_ids(payload)?;
                json!({"agent": agent, "run": run})
            }
            FrameKind::Record | FrameKind::Put => {
                let mut said = json!({});
                if header.kind == FrameKind::Put {
                    let (namespace, key, replaced, _) = decode_put(payload)?;
                    said = json!({"namespace": namespace, "key": key, "replaced": replaced});
                }
                let parts = header.record_in(payload).split_at_checked(header.name_len.into());
                let (name, rest) = parts.ok_or(Damage::Truncated)?;
                let is_large = header.flags & FLAG_CHUNKS != 0;
                let chunks = is_large.then(|| Chunks::decode(rest)).transpose()?;
                said["record_kind"] = json!(String::from_utf8_lossy(name));
                said["chunks"] = json!(chunks);
                said
            }
            FrameKind::Evict => json!({"evicted": decode_evictions(payload)?}),
            FrameKind::Block => json!(BlockHead::decode(header, payload)?.0),
            FrameKind::Seal => {
                let uuid = SegmentHeader::decode(&self.bytes)?.uuid;
                let ids = IdHash::new(uuid);
                let key = DirectoryKey { salt: self.key.salt, end: header.extra, ids };
                let directory = Directory::new(payload, &key)?;
                directory.check()?;
                let runs = (0..directory.run_count()).map(|slot| directory.run(slot));
                json!({"runs": runs.collect::<Result<Vec<_>, _>>()?})
            }
            FrameKind::Piece => json!({"slice": header.lsn, "start": header.seq}),
            FrameKind::Watermark => json!({"durable": header.durable()}),
            FrameKind::End | FrameKind::Hold | FrameKind::Chunk | FrameKind::Commit => Value::Null,
        })
    }
}
