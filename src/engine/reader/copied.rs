//! What a backup copies: the segments of one moment, each with the bytes that the copy is to have.

use core::ops::Range;
use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::state::scan::{
    InPiece, Item, Lexed, Piece, directory_in, directory_of, frame_in_piece, frames_below, lex,
};
use crate::engine::state::segment::Segment;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::len_u32;
use crate::format::frames::frame::{FRAME_ALIGN, FRAME_HEADER_LEN};
use crate::format::map::manifest::{SealedAt, used_len};
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{Directory, FrameHeader, FrameKind};
use crate::types::{ExtentNo, Lsn, RunNo, Timestamp};

/// A segment as it is to be in the copy.
pub(super) struct Copied {
    pub(super) segment: Arc<Segment>,
    /// The frames end here.
    pub(super) end: u32,
    /// It is sealed, by a SEAL frame that is in the file or by one that is made for the copy.
    pub(super) sealed: Option<SealedAt>,
    /// The SEAL frame for the copy, if the store has none.
    made: Option<Vec<u8>>,
}

/// What an earlier copy has whole and the store has not.
#[derive(Debug, Default)]
pub(super) struct Lost {
    places: Vec<Range<usize>>,
    /// No frame is another one in the copy.
    pub(super) is_same_log: bool,
}

impl Lost {
    /// Copies it.
    fn fill(&self, bytes: &mut [u8], there: &[u8]) {
        for place in &self.places {
            if let (Some(here), Some(frame)) =
                (bytes.get_mut(place.clone()), there.get(place.clone()))
            {
                here.copy_from_slice(frame);
            }
        }
    }

    /// Where the first of it is.
    pub(super) fn first(&self) -> Option<u32> {
        self.places.first().map(|place| len_u32(place.start))
    }
}

/// All segments of the log as of now; the one that takes frames is the last.
pub(super) fn segments(source: &Replica) -> Result<Vec<Copied>> {
    let (sealed, tail, end) = {
        let state = source.answers.open()?;
        let sealed = state.catalog.segments().iter().chain(&state.unapplied).cloned();
        (sealed.collect::<Vec<_>>(), Arc::clone(&state.tail.segment), state.tail.offset)
    };
    let mut wanted = Vec::new();
    for segment in sealed {
        let Some(at) = segment.sealed() else { continue };
        let is_here = segment.is_sealed_here();
        let made =
            is_here.then(|| seal_for(&segment, at, segment.directory_bytes()?)).transpose()?;
        let sealed = made.as_ref().map_or(at, |(_, digest)| SealedAt { digest: *digest, ..at });
        let made = made.map(|(bytes, _)| bytes);
        wanted.push(Copied { segment, end: at.end, sealed: Some(sealed), made });
    }
    if tail.extent() != ExtentNo(u32::MAX) && end > SEGMENT_HEADER_LEN {
        wanted.push(Copied { segment: tail, end, sealed: None, made: None });
    }
    Ok(wanted)
}

/// The SEAL frame of a segment that a crash left without one.
fn seal_for(segment: &Segment, at: SealedAt, directory: &[u8]) -> Result<(Vec<u8>, u32)> {
    let wrong = |damage| segment.damaged_directory(damage);
    let last = Directory::new(directory).map_err(wrong)?.last_lsn();
    let header = FrameHeader::new(FrameKind::Seal, RunNo(0), Timestamp(0));
    let mut frame = PendingFrame::new(header, &[], directory);
    frame.header.extra = at.end;
    frame.header.position = segment.position(at.seal);
    frame.header.lsn = last;
    let mut bytes = Vec::new();
    frame.encode(segment.frames(), &mut bytes);
    Ok((bytes, frame.header.payload_crc))
}

impl Copied {
    /// The bytes that the store has, of which all frames were checked; what does not check is told.
    pub(super) fn read(&self, odd: &mut Vec<Corruption>) -> Result<Vec<u8>> {
        let segment = &self.segment;
        let whole = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let seal = self.stored().map(|at| (at.seal as usize, segment.read_header(at.seal)));
        let (end, is_known) = match seal {
            None => (self.end as usize, true),
            Some((at, Ok(header))) => (at + header.frame_len(), true),
            Some((at, Err(Error::Corrupt(_)))) => (at + FRAME_HEADER_LEN, false),
            Some((_, Err(error))) => return Err(error),
        };
        let all = if is_known { end.min(whole) } else { whole };
        let mut bytes = segment.disk().read_padded(segment.file_offset(), all)?;
        if !is_known {
            // All that is there, and at least the place of the header: a store without it is cut
            // off.
            bytes.truncate(used_len(&bytes).max(end));
        }
        self.check((segment.extent(), &bytes), odd);
        Ok(bytes)
    }

    /// Appends the SEAL frame that the store does not have.
    pub(super) fn close(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.made.as_deref().unwrap_or_default());
    }

    /// Which frames an earlier copy has whole that do not check in these bytes of the store.
    ///
    /// Where a frame is another one in the copy, the store went on differently after a power loss.
    /// Then it is not known of which log the frames are that are lost in front of it, up to the
    /// last frame that both have.
    pub(super) fn lost(&self, bytes: &[u8], there: &[u8]) -> Lost {
        let check = self.segment.frames();
        let frames = |bytes: &[u8]| frames_below(&lex(bytes, check), self.end);
        let place = |lexed: &Lexed| lexed.header.position.offset as usize..lexed.end() as usize;
        let (own, copied) = (frames(bytes), frames(there));
        let is_whole = |lexed: &&Lexed| {
            let is_record = lexed.header.kind != FrameKind::Seal;
            is_record && lexed.payload.is_ok() && lexed.end() <= self.end
        };
        let (mut lost, mut pending) = (Lost { is_same_log: true, ..Lost::default() }, Vec::new());
        for lexed in copied.iter().filter(is_whole) {
            let here = place(lexed);
            let passed = own.partition_point(|one| one.end() as usize <= here.start);
            let Some(one) = own.get(passed).filter(|one| place(one).start < here.end) else {
                pending.push(here);
                continue;
            };
            let head = here.start..here.start + FRAME_HEADER_LEN;
            if place(one) != here || bytes.get(head.clone()) != there.get(head) {
                lost.is_same_log = false;
                return lost;
            }
            lost.places.append(&mut pending);
            if one.payload.is_err() {
                lost.places.push(here);
            }
        }
        lost.places.append(&mut pending);
        lost
    }

    /// The order of the last whole frame of a copy.
    pub(super) fn last_order(&self, there: &[u8]) -> Option<Lsn> {
        let frames = lex(there, self.segment.frames()).into_iter().filter(Item::is_valid);
        frames.filter_map(|item| item.frame().map(|lexed| lexed.header.lsn)).max()
    }

    /// Where the first whole frame of a copy is that these bytes do not have.
    pub(super) fn first_other(&self, bytes: &[u8], there: &[u8]) -> Option<u32> {
        let items = lex(there, self.segment.frames()).into_iter().filter(Item::is_valid);
        let mut frames = items.filter_map(|item| item.frame().copied());
        // One that was made for the copy is not the one that the store has later.
        let is_other = |lexed: &Lexed| {
            let is_seal = lexed.header.kind == FrameKind::Seal;
            let place = lexed.header.position.offset as usize..lexed.end() as usize;
            !is_seal && bytes.get(place.clone()) != there.get(place)
        };
        frames.find(is_other).map(|lexed| lexed.header.position.offset)
    }

    /// Takes the header of a copy if the store has lost its own, or the other way round; answers
    /// whether it did.
    pub(super) fn mend_header(&self, bytes: &mut [u8], there: &[u8]) -> bool {
        let of_segment = |bytes: &[u8]| {
            SegmentHeader::decode(bytes).is_ok_and(|header| header.key == self.segment.key())
        };
        let len = SEGMENT_HEADER_LEN as usize;
        if !of_segment(bytes)
            && of_segment(there)
            && let (Some(own), Some(whole)) = (bytes.get_mut(..len), there.get(..len))
        {
            own.copy_from_slice(whole);
            return true;
        }
        false
    }

    /// Puts them in their places.
    pub(super) fn mend(&mut self, bytes: &mut [u8], there: &[u8], lost: &Lost) -> Result<()> {
        lost.fill(bytes, there);
        let Some(at) = self.sealed.filter(|_| self.made.is_some()) else { return Ok(()) };
        // The one that was made lists what the store has.
        let segment = &self.segment;
        let known = segment.directory()?;
        let mut name_of = |run_no| {
            let entry = known.run(known.find_no(run_no).ok()??).ok()?;
            Some((entry.agent, entry.run))
        };
        let piece = Piece { at: 0, bytes, extent_len: segment.extent_size().bytes_u32() as usize };
        let at_end = (self.end, known.next_run_no());
        let directory = directory_of(piece, segment.frames(), at_end, &mut name_of);
        let listed =
            Directory::new(&directory).map_err(|damage| segment.damaged_directory(damage))?;
        let has_evictions = listed.eviction_count() > 0;
        let (seal, digest) = seal_for(segment, at, &directory)?;
        let room = segment.extent_size().bytes().saturating_sub(u64::from(at.seal));
        if seal.len() as u64 > room {
            let at = segment.position(lost.first().unwrap_or(self.end));
            return Err(Error::CopyHasMore { at });
        }
        let next_run_no = RunNo(0);
        let sealed = SealedAt { digest, has_evictions, next_run_no, ..at };
        (self.made, self.sealed) = (Some(seal), Some(sealed));
        Ok(())
    }

    /// What a copy of a segment with this SEAL has, with what the store has whole of the rest;
    /// `None` if that is nothing.
    pub(super) fn united(&self, bytes: &[u8], there: &[u8]) -> Option<Vec<u8>> {
        let lost = self.lost(there, bytes);
        let whole = |bytes| Piece { at: 0, bytes, extent_len: there.len() };
        let seal = self.stored().filter(|at| {
            self.damage_of_directory(*at, whole(there)).is_some()
                && self.damage_of_directory(*at, whole(bytes)).is_none()
        });
        let mut united = there.to_vec();
        let has_header = self.mend_header(&mut united, bytes);
        if !lost.is_same_log || (lost.places.is_empty() && seal.is_none() && !has_header) {
            return None;
        }
        lost.fill(&mut united, bytes);
        if let Some(at) = seal {
            united.truncate(at.seal as usize);
            united.extend_from_slice(bytes.get(at.seal as usize..).unwrap_or_default());
        }
        // At least the place of the header of the SEAL: a store without it is cut off.
        let least = self.stored().map_or(0, |at| at.seal as usize + FRAME_HEADER_LEN);
        united.truncate(used_len(&united).next_multiple_of(FRAME_ALIGN).max(least));
        Some(united)
    }

    /// The same damage, by places of the segment: the extent may get another one, whose header is
    /// damaged likewise.
    pub(super) fn within_segment(&self, odd: &[Corruption]) -> Vec<Corruption> {
        let mut within = odd.to_vec();
        for found in &mut within {
            if matches!(found.place, Place::Extent { .. }) {
                found.place = Place::Frame(self.segment.position(0));
            }
        }
        within
    }

    /// Tells what does not check in these bytes of the segment, which this extent has here or in a
    /// copy.
    pub(super) fn check(&self, (extent, bytes): (ExtentNo, &[u8]), odd: &mut Vec<Corruption>) {
        let segment = &self.segment;
        let damage = match SegmentHeader::decode(bytes) {
            Ok(header) if header.key == segment.key() => None,
            Ok(_) => Some(Damage::Misplaced),
            Err(damage) => Some(damage),
        };
        let place = Place::Extent { extent };
        odd.extend(damage.map(|damage| Corruption::new(place, damage)));
        let whole = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let piece = Piece { at: 0, bytes, extent_len: whole };
        let mut next = SEGMENT_HEADER_LEN;
        while next < self.end {
            let InPiece::Frame(lexed) = frame_in_piece(piece, segment.frames(), next) else {
                odd.extend(self.damaged_frames(bytes));
                break;
            };
            next = lexed.end();
        }
        if let Some(at) = self.stored() {
            odd.extend(self.damage_of_directory(at, piece));
        }
    }

    /// The seal that is in the file.
    fn stored(&self) -> Option<SealedAt> {
        self.sealed.filter(|_| self.made.is_none())
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
                    && at.check(directory).is_ok()
            }),
            _ => None,
        };
        let place = Place::Directory { segment: self.segment.id() };
        stored.is_none().then(|| Corruption::new(place, Damage::Missing))
    }
}
