//! What a backup copies: the segments of one moment, each with the bytes that the copy is to have.

use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::state::scan::{Item, Lexed, directory_in, lex};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::frames::frame::SegmentKey;
use crate::format::map::manifest::SealedAt;
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{FrameHeader, FrameKind};
use crate::types::ExtentNo;

/// A segment as it is to be in the copy.
pub(super) struct Copied {
    pub(super) segment: Arc<Segment>,
    /// The frames end here.
    pub(super) end: u32,
    /// It is sealed, by a SEAL frame that is in the file.
    pub(super) sealed: Option<SealedAt>,
    /// The manifest of the store has the SEAL record, so that no byte changes any more.
    pub(super) is_final: bool,
}

/// All segments of the log as of now; the one that takes frames is the last.
pub(super) fn segments(source: &Replica) -> Result<Vec<Copied>> {
    let (recorded, unrecorded, tail, end) = {
        let state = source.answers.open()?;
        let recorded = state.catalog.segments().to_vec();
        (recorded, state.unapplied.clone(), Arc::clone(&state.tail.segment), state.tail.offset)
    };
    let recorded = recorded.into_iter().map(|segment| (segment, true));
    let unrecorded = unrecorded.into_iter().map(|segment| (segment, false));
    let mut wanted = Vec::new();
    for (segment, is_final) in recorded.chain(unrecorded) {
        let Some(at) = segment.sealed() else { continue };
        wanted.push(Copied { segment, end: at.end, sealed: Some(at), is_final });
    }
    if tail.extent() != ExtentNo(u32::MAX) && end > SEGMENT_HEADER_LEN {
        wanted.push(Copied { segment: tail, end, sealed: None, is_final: false });
    }
    Ok(wanted)
}

impl Copied {
    /// The id and the salt of the segment.
    pub(super) fn key(&self) -> (u32, u64) {
        let SegmentKey { id, salt } = self.segment.key();
        (id.0, salt)
    }

    /// Reads the bytes of the segment and checks each frame. Adds what does not check to `damaged`.
    pub(super) fn read(&self, damaged: &mut Vec<Corruption>) -> Result<Vec<u8>> {
        let segment = &self.segment;
        let whole = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let end = self.sealed.map_or(self.end, |at| at.bytes_end()) as usize;
        let bytes = segment.disk().read_padded(segment.file_offset(), end.min(whole))?;
        self.check(&bytes, damaged);
        Ok(bytes)
    }

    fn check(&self, bytes: &[u8], damaged: &mut Vec<Corruption>) {
        let segment = &self.segment;
        let header = match SegmentHeader::decode(bytes) {
            Ok(header) if header.key == segment.key() => None,
            Ok(_) => Some(Damage::Misplaced),
            Err(damage) => Some(damage),
        };
        let place = Place::Extent { extent: segment.extent() };
        damaged.extend(header.map(|damage| Corruption::new(place, damage)));
        let items = lex(bytes, segment.frames());
        let is_odd = |item: &&Item| item.frame().is_none_or(|lexed| lexed.payload.is_err());
        let odd = items.iter().filter(|item| item.offset() < self.end).filter(is_odd);
        damaged.extend(odd.map(|item| {
            let damage = item.frame().and_then(|lexed| lexed.payload.err());
            let place = Place::Frame(segment.position(item.offset()));
            Corruption::new(place, damage.unwrap_or(Damage::Missing))
        }));
        let Some(SealedAt { end, len, digest, .. }) = self.sealed else { return };
        let is_seal = |lexed: &&Lexed| {
            let FrameHeader { kind, extra, payload_len, payload_crc, .. } = lexed.header;
            (kind, extra, payload_len, payload_crc) == (FrameKind::Seal, end, len, digest)
        };
        let seal = items.iter().filter_map(Item::frame).find(is_seal);
        if seal.and_then(|lexed| directory_in(segment, bytes, lexed)).is_none() {
            let place = Place::Directory { segment: segment.id() };
            damaged.push(Corruption::new(place, Damage::Missing));
        }
    }
}
