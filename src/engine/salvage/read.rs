//! Reading the frames that were found, one by one.

use crate::engine::read::block::unique::Unique;
use crate::engine::salvage::locate::Located;
use crate::engine::salvage::scan::{ChunkAt, FrameAt, RecordAt, Run, Scan, Spot};
use crate::error::{Damage, Error, Result};
use crate::format::frames::block::{BlockHead, InSlice, MAX_RECORD, seq_in, unpack_chunk};
use crate::format::frames::frame::{Chunks, FLAG_CHUNKS, FLAG_COMPRESSED};
use crate::format::{FrameHeader, FrameKind};
use crate::types::Seq;

/// A record that was read.
#[derive(Debug)]
pub(crate) struct ReadRecord {
    pub(crate) header: FrameHeader,
    /// The kind and the payload.
    bytes: Vec<u8>,
}

impl ReadRecord {
    /// A record of these bytes, whose kind must be text.
    fn new(header: FrameHeader, bytes: Vec<u8>) -> Option<Self> {
        core::str::from_utf8(bytes.get(..usize::from(header.name_len))?).ok()?;
        Some(Self { header, bytes })
    }

    pub(crate) fn kind(&self) -> &str {
        let kind = self.bytes.get(..self.header.name_len.into()).unwrap_or_default();
        core::str::from_utf8(kind).unwrap_or_default()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        self.bytes.get(self.header.name_len.into()..).unwrap_or_default()
    }
}

impl Located {
    /// The frame at a place, if it still checks.
    fn frame(&self, spot: Spot) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let Some(segment) = self.segments.get(spot.segment as usize) else { return Ok(None) };
        match segment.read_frame(spot.offset) {
            Ok((header, payload)) => Ok(Some((header, payload.into_owned()))),
            Err(Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The payload of a frame that is no record.
    pub(crate) fn payload(&self, frame: &FrameAt) -> Result<Option<Vec<u8>>> {
        let Some(spot) = frame.spot else { return Ok(None) };
        Ok(self.frame(spot)?.map(|(_, payload)| payload))
    }

    /// Calls `take` with each record from `from` on that can be read in the frame.
    pub(crate) fn each_record(
        &self,
        scan: &Scan,
        run: &Run,
        at: &RecordAt,
        from: Seq,
        take: &mut dyn FnMut(ReadRecord) -> Result<()>,
    ) -> Result<()> {
        let Some((header, payload)) = self.frame(at.spot)? else { return Ok(()) };
        if header.kind == FrameKind::Block {
            let (mut raw, mut rows) = (Vec::new(), Vec::new());
            let opened = BlockHead::decode(&header, &payload).and_then(|(head, packed)| {
                head.open(&header, packed, &mut raw, &mut rows)?;
                Ok(head)
            });
            let segment = self.segments.get(at.spot.segment as usize);
            let Some((head, segment)) = opened.ok().zip(segment) else { return Ok(()) };
            let mut unique = Unique::default();
            if let Some(InSlice { slice, .. }) = head.slice {
                let pieces = scan.pieces.get(&at.spot.segment).cloned();
                unique.choose(segment, slice, || Ok(pieces.unwrap_or_default()))?;
            }
            for (rank, row) in (0..).zip(&rows).filter(|(rank, _)| seq_in(&header, *rank) >= from) {
                let damaged = |damage| segment.damaged(at.spot.offset, damage);
                let bytes = match head.slice {
                    None => row.bytes(&raw).map(<[u8]>::to_vec).map_err(damaged),
                    Some(_) => unique.record(segment, (row, &raw), damaged),
                };
                let bytes = match bytes {
                    Ok(bytes) => bytes,
                    Err(Error::Corrupt(_)) => continue,
                    Err(error) => return Err(error),
                };
                ReadRecord::new(row.header(&header, rank), bytes).map_or(Ok(()), &mut *take)?;
            }
            return Ok(());
        }
        let payload = header.record_in(&payload).to_vec();
        let bytes = if header.flags & FLAG_CHUNKS == 0 {
            Some(payload)
        } else {
            self.join_chunks(run, &header, payload)?
        };
        bytes.and_then(|bytes| ReadRecord::new(header, bytes)).map_or(Ok(()), take)
    }

    /// The kind of a record in chunks, and the bytes of its chunks.
    fn join_chunks(
        &self,
        run: &Run,
        header: &FrameHeader,
        mut payload: Vec<u8>,
    ) -> Result<Option<Vec<u8>>> {
        let kind_len = usize::from(header.name_len);
        let row = payload.get(kind_len..).ok_or(Damage::Truncated).and_then(Chunks::decode);
        let Ok(Chunks { first, count }) = row else { return Ok(None) };
        if header.extra > MAX_RECORD {
            return Ok(None);
        }
        payload.truncate(kind_len);
        let whole = kind_len + header.extra as usize;
        for number in 0..count {
            let at = run.chunks.binary_search_by_key(&(first, number), ChunkAt::key);
            let chunk = at.ok().and_then(|at| run.chunks.get(at));
            let frame = chunk.map(|chunk| self.frame(chunk.spot)).transpose()?;
            let Some((header, stored)) = frame.flatten() else { return Ok(None) };
            let room = whole.saturating_sub(payload.len());
            if header.flags & FLAG_COMPRESSED != 0 {
                if unpack_chunk(&stored, room as u64, &mut payload).is_err() {
                    return Ok(None);
                }
            } else if stored.len() <= room {
                payload.extend_from_slice(&stored);
            } else {
                return Ok(None);
            }
        }
        Ok((payload.len() == whole).then_some(payload))
    }
}
