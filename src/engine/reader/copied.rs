//! What a backup copies: the segments of one moment, each with the bytes that the copy is to have.

use core::ops::Range;
use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::state::scan::{
    InPiece, Item, Lexed, Piece, directory_in, frame_in_piece, frames_below, lex, replay,
};
use crate::engine::state::segment::Segment;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::{Decoded, len_u32};
use crate::format::frames::frame::FRAME_HEADER_LEN;
use crate::format::map::manifest::{SealedAt, used_len};
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{Directory, FrameCheck, FrameHeader, FrameKind};
use crate::types::{ExtentNo, RunNo, Timestamp};

/// A segment as it is to be in the copy.
pub(super) struct Copied {
    pub(super) segment: Arc<Segment>,
    /// The frames end here.
    pub(super) end: u32,
    /// It is sealed, by a SEAL frame that is in the file or by one that is made for the copy.
    pub(super) sealed: Option<SealedAt>,
    /// The SEAL frame for the copy, if the store has none.
    made: Option<Vec<u8>>,
    /// The store has lost frames behind the end, of which an earlier copy may have those in front
    /// of this offset.
    pub(super) lost: Option<u32>,
    /// The copy lists frames that the store does not know of any more.
    pub(super) lists_more: bool,
}

/// All segments of the log as of now; the one that takes frames is the last.
pub(super) fn segments(source: &Replica) -> Result<Vec<Copied>> {
    let (sealed, tail, end) = {
        let state = source.answers.open()?;
        let sealed = state.catalog.segments().iter().chain(&state.unapplied).cloned();
        (sealed.collect::<Vec<_>>(), Arc::clone(&state.tail.segment), state.tail.offset)
    };
    let (report, floor) = (source.report(), source.floor());
    let lost_behind = |segment: &Segment, end: u32| {
        let place = Place::Frame(segment.position(end));
        let is_lost = report.damaged.iter().any(|damage| damage.place == place);
        let until = if floor.segment > segment.id() { u32::MAX } else { floor.offset };
        is_lost.then_some(until)
    };
    let mut wanted = Vec::new();
    for segment in sealed {
        let Some(at) = segment.sealed() else { continue };
        let end = at.end;
        let mut one =
            Copied { segment, end, sealed: Some(at), made: None, lost: None, lists_more: false };
        if one.segment.is_sealed_here() {
            one.lost = lost_behind(&one.segment, at.end);
            let directory = one.segment.directory_bytes()?.to_vec();
            one.make_seal(at, &directory)?;
        }
        wanted.push(one);
    }
    if tail.extent() != ExtentNo(u32::MAX) {
        let lost = lost_behind(&tail, end);
        if end > SEGMENT_HEADER_LEN || lost.is_some() {
            let (sealed, made, lists_more) = (None, None, false);
            wanted.push(Copied { segment: tail, end, sealed, made, lost, lists_more });
        }
    }
    Ok(wanted)
}

impl Copied {
    /// Makes a SEAL frame for the copy. Without room for it the copy has an open segment.
    fn make_seal(&mut self, at: SealedAt, directory: &[u8]) -> Result<()> {
        let wrong = |damage| self.segment.damaged_directory(damage);
        let header = FrameHeader::new(FrameKind::Seal, RunNo(0), Timestamp(0));
        let listed = Directory::new(directory).map_err(wrong)?;
        let mut frame = PendingFrame::new(header, &[], directory);
        frame.header.extra = at.end;
        frame.header.position = self.segment.position(at.seal);
        frame.header.lsn = listed.last_lsn();
        let mut bytes = Vec::new();
        frame.encode(self.segment.frames(), &mut bytes);
        let room = self.segment.extent_size().bytes().saturating_sub(u64::from(at.seal));
        let has_room = bytes.len() as u64 <= room;
        let has_evictions = listed.eviction_count() > 0;
        let sealed = SealedAt { digest: frame.header.payload_crc, has_evictions, ..at };
        (self.sealed, self.made) = (has_room.then_some(sealed), has_room.then_some(bytes));
        Ok(())
    }

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

    /// Puts what an earlier copy has whole in place of what the store has lost since.
    pub(super) fn mend(
        &mut self,
        bytes: &mut Vec<u8>,
        (there, copied): (&[u8], Option<SealedAt>),
    ) -> Result<()> {
        let check = FrameCheck::new(self.segment.key());
        let is_own = |bytes: &[u8]| {
            SegmentHeader::decode(bytes).is_ok_and(|header| header.key == self.segment.key())
        };
        if let Some(header) = there.get(..SEGMENT_HEADER_LEN as usize)
            && is_own(header)
            && !is_own(bytes)
            && let Some(place) = bytes.get_mut(..header.len())
        {
            place.copy_from_slice(header);
        }
        let seal = self.stored().map(|at| at.seal);
        let until = self.lost.unwrap_or(0).max(self.end);
        let is_wanted = |lexed: &Lexed| match lexed.header.kind {
            FrameKind::Seal => seal == Some(lexed.header.position.offset),
            _ => lexed.end() <= until,
        };
        let Mended { count, end, is_same_log } = mend_frames(bytes, there, &check, &is_wanted);
        if count > 0 && seal.is_none() {
            self.end = self.end.max(end);
            self.lost = self.lost.filter(|_| end < until);
        }
        let Some(at) = self.sealed else { return Ok(()) };
        let own = copied.filter(|_| is_same_log).and_then(|own| {
            let piece = Piece { at: 0, bytes: there, extent_len: there.len() };
            match frame_in_piece(piece, &check, own.seal) {
                InPiece::Frame(lexed) => directory_in(there, &lexed),
                _ => None,
            }
        });
        self.list_again(at, bytes, own)
    }

    /// Makes the directory anew if that of the store lacks frames, because it was made when they
    /// were lost: the one of an earlier copy, or of the frames.
    fn list_again(
        &mut self,
        at: SealedAt,
        bytes: &mut Vec<u8>,
        copied: Option<Directory<'_>>,
    ) -> Result<()> {
        let wrong = |damage| self.segment.damaged_directory(damage);
        let extent_len = usize::try_from(self.segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let piece = Piece { at: 0, bytes, extent_len };
        let stored = match frame_in_piece(piece, self.segment.frames(), at.seal) {
            InPiece::Frame(lexed) if lexed.header.payload_crc == at.digest => {
                directory_in(bytes, &lexed)
            }
            _ => None,
        };
        let known = match stored {
            Some(stored) => stored,
            None => self.segment.directory()?,
        };
        let mut name_of = |run_no| {
            [Some(known), copied].into_iter().flatten().find_map(|directory| {
                let entry = directory.run(directory.find_no(run_no).ok()??).ok()?;
                Some((entry.agent, entry.run))
            })
        };
        let frames = frames_below(&lex(bytes, self.segment.frames()), self.end);
        let builder = replay(bytes, &frames, self.end, &mut name_of).builder;
        let next = frames.iter().map(|lexed| lexed.header.run_no.0.saturating_add(1)).max();
        let rebuilt = builder.encode(known.next_run_no().max(RunNo(next.unwrap_or(0))));
        let mut best = None;
        for one in [copied, Some(Directory::new(&rebuilt).map_err(wrong)?)].into_iter().flatten() {
            if lists_more(one, best.unwrap_or(known)).map_err(wrong)? {
                best = Some(one);
            }
        }
        let Some(best) = best.map(|best| best.bytes().to_vec()) else { return Ok(()) };
        let seal = if self.made.is_some() { self.end } else { at.seal };
        bytes.truncate(seal as usize);
        self.lists_more = true;
        self.make_seal(SealedAt { end: self.end, seal, ..at }, &best)
    }

    /// Appends the SEAL frame that the store does not have.
    pub(super) fn close(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.made.as_deref().unwrap_or_default());
    }

    /// Tells what does not check in these bytes of the segment, which the extent has here or in a
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
        if self.lost.is_some() {
            odd.push(Corruption::new(Place::Frame(segment.position(self.end)), Damage::Missing));
        }
        if let Some(at) = self.stored() {
            odd.extend(self.damage_of_directory(at, piece));
        }
    }

    /// The seal that is in the file.
    pub(super) fn stored(&self) -> Option<SealedAt> {
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
                    && directory.check().is_ok()
            }),
            _ => None,
        };
        let place = Place::Directory { segment: self.segment.id() };
        stored.is_none().then(|| Corruption::new(place, Damage::Missing))
    }
}

/// Whether a directory has frames or deletions that the other one lacks.
fn lists_more(one: Directory<'_>, known: Directory<'_>) -> Decoded<bool> {
    if one.eviction_count() > known.eviction_count() {
        return Ok(true);
    }
    for slot in 0..one.run_count() {
        let there = match known.find_no(one.run_no(slot)?)? {
            Some(there) => known.stored(there)?,
            None => 0,
        };
        if one.stored(slot)? > there {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What an earlier copy had whole.
#[derive(Debug, Clone, Copy, Default)]
struct Mended {
    count: usize,
    /// Where the last frame that both have, or only one of them, ends.
    end: u32,
    /// No frame is another one there.
    is_same_log: bool,
}

/// Takes frames over that `there` has whole, where `bytes` has none. Where a whole frame is another
/// one than there, the store went on differently after a power loss: then only what is in front of
/// the last frame that both have is of the same log.
fn mend_frames(
    bytes: &mut Vec<u8>,
    there: &[u8],
    check: &FrameCheck,
    is_wanted: &dyn Fn(&Lexed) -> bool,
) -> Mended {
    let whole = |bytes: &[u8]| {
        let items = lex(bytes, check).into_iter().filter(Item::is_valid);
        items.filter_map(|item| item.frame().copied()).filter(is_wanted).collect::<Vec<_>>()
    };
    let range = |lexed: &Lexed| lexed.header.position.offset as usize..lexed.end() as usize;
    let (own, mut mended, mut pending) = (whole(bytes), Mended::default(), Vec::new());
    let mut rest = own.as_slice();
    mended.is_same_log = true;
    for lexed in whole(there) {
        let place = range(&lexed);
        let passed = rest.partition_point(|one| one.end() as usize <= place.start);
        rest = rest.get(passed..).unwrap_or_default();
        match rest.first().map(range).filter(|one| one.start < place.end) {
            None => pending.push(place),
            Some(one) if one == place && bytes.get(place.clone()) == there.get(place) => {
                mended.take(&mut pending, bytes, there);
            }
            // One that was made for the copy.
            Some(_) if lexed.header.kind == FrameKind::Seal => {}
            Some(_) => {
                mended.is_same_log = false;
                break;
            }
        }
    }
    if mended.is_same_log {
        mended.take(&mut pending, bytes, there);
    }
    mended.end = mended.end.max(own.last().map_or(0, Lexed::end));
    mended
}

impl Mended {
    fn take(&mut self, places: &mut Vec<Range<usize>>, bytes: &mut Vec<u8>, there: &[u8]) {
        for place in places.drain(..) {
            let Some(frame) = there.get(place.clone()) else { continue };
            if bytes.len() < place.end {
                bytes.resize(place.end, 0);
            }
            if let Some(hole) = bytes.get_mut(place.clone()) {
                hole.copy_from_slice(frame);
                self.count += 1;
                self.end = self.end.max(len_u32(place.end));
            }
        }
    }
}
