//! What a backup copies: the segments of one moment, each with the bytes that the copy is to have.

use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::state::scan::{InPiece, Piece, directory_in, frame_in_piece, lex};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::FrameKind;
use crate::format::frames::frame::SegmentKey;
use crate::format::map::manifest::SealedAt;
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
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
        let seal = self.sealed.map(|at| (at.seal as usize, segment.read_header(at.seal)));
        let end = match seal {
            None => self.end as usize,
            Some((at, Ok(header))) => at + header.frame_len(),
            Some((_, Err(Error::Corrupt(_)))) => whole,
            Some((_, Err(error))) => return Err(error),
        };
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
        let whole = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let piece = Piece { at: 0, bytes, extent_len: whole };
        let mut next = SEGMENT_HEADER_LEN;
        while next < self.end {
            let InPiece::Frame(lexed) = frame_in_piece(piece, segment.frames(), next) else {
                damaged.extend(self.damaged_frames(bytes));
                break;
            };
            next = lexed.end();
        }
        if let Some(at) = self.sealed {
            damaged.extend(self.damage_of_directory(at, piece));
        }
    }

    /// Each of the frames that does not check.
    fn damaged_frames(&self, bytes: &[u8]) -> impl Iterator<Item = Corruption> {
        let items = lex(bytes, self.segment.frames()).into_iter();
        let odd = items.filter(|item| item.offset() < self.end && !item.is_valid());
        odd.map(|item| {
            let damage = item.frame().and_then(|lexed| lexed.payload.err());
            let place = Place::Frame(self.segment.position(item.offset()));
            Corruption::new(place, damage.unwrap_or(Damage::Missing))
        })
    }

    /// What is wrong with the directory that the bytes have, in the frame that seals them.
    fn damage_of_directory(&self, at: SealedAt, piece: Piece<'_>) -> Option<Corruption> {
        let stored = match frame_in_piece(piece, self.segment.frames(), at.seal) {
            InPiece::Frame(lexed) => directory_in(piece.bytes, &lexed).filter(|directory| {
                let SealedAt { end, digest, .. } = at;
                let header = &lexed.header;
                let kind = header.kind == FrameKind::Seal;
                kind && (header.extra, header.payload_crc) == (end, digest)
                    && directory.check().is_ok()
            }),
            _ => None,
        };
        let place = Place::Directory { segment: self.segment.id() };
        stored.is_none().then(|| Corruption::new(place, Damage::Missing))
    }
}
