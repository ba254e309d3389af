//! Reading an unsealed segment frame by frame.
//!
//! - [`lex`] cuts the extent into frames that check, frames with a damaged payload, and gaps.
//! - [`replay`] folds the frames that count into a directory. Names come from whichever of BIND,
//!   START and PUT has whole ids.

use std::collections::HashMap;

use crate::engine::state::fold::{note_block, note_frame};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::codec::Decoded;
use crate::format::frames::block::MAX_BLOCK_RECORDS;
use crate::format::frames::eviction;
use crate::format::frames::frame::{
    FLAG_BATCH, FRAME_ALIGN, FRAME_HEADER_LEN, FrameCheck, LONG_HEADER_LEN, may_be_header,
};
use crate::format::frames::ids;
use crate::format::frames::slice::PieceAt;
use crate::format::map::manifest::{SealedAt, used_len};
use crate::format::segments::run_entry::records_cost;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, DirectoryBuilder, FrameHeader, FrameKind};
use crate::types::{AgentId, RunId, RunNo};

/// A frame with a valid header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lexed {
    pub(crate) header: FrameHeader,
    /// The result of checking the payload.
    pub(crate) payload: Decoded<()>,
}

impl Lexed {
    /// Where the frame ends.
    pub(crate) fn end(&self) -> u32 {
        let len = u32::try_from(self.header.frame_len()).unwrap_or(u32::MAX);
        self.header.position.offset.saturating_add(len)
    }
}

/// An item of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    /// A frame.
    Frame(Lexed),
    /// Bytes that are not a frame.
    Gap {
        /// Where they start.
        from: u32,
        /// Where the next frame starts.
        to: Option<u32>,
    },
}

impl Item {
    pub(crate) fn offset(&self) -> u32 {
        match self {
            Self::Frame(lexed) => lexed.header.position.offset,
            Self::Gap { from, .. } => *from,
        }
    }

    /// The frame, if this is one.
    pub(crate) fn frame(&self) -> Option<&Lexed> {
        match self {
            Self::Frame(lexed) => Some(lexed),
            Self::Gap { .. } => None,
        }
    }
}

/// Cuts a segment into items. It continues behind a SEAL frame, since an earlier recovery may have
/// put another SEAL behind torn frames. The last item is a gap without a frame behind it.
pub(crate) fn lex(extent: &[u8], check: &FrameCheck) -> Vec<Item> {
    lex_up_to(extent, check, extent.len())
}

/// Like [`lex`], for an extent that is known to have only zeros from `end` on. It reads these zeros
/// only as part of a frame that starts before `end`.
pub(crate) fn lex_up_to(extent: &[u8], check: &FrameCheck, end: usize) -> Vec<Item> {
    let mut items = Vec::new();
    let mut at = SEGMENT_HEADER_LEN;
    // No frame starts in the zeros at the end, which are a large part of a tail.
    let written = used_len(extent.get(..end).unwrap_or(extent));
    loop {
        if let Some(lexed) = lex_frame(extent, check, at) {
            items.push(Item::Frame(lexed));
            at = lexed.end();
        } else {
            let to = next_valid(extent, check, at, written);
            items.push(Item::Gap { from: at, to });
            let Some(next) = to else { return items };
            at = next;
        }
    }
}

/// The next valid frame that starts before `written` and lies completely within the extent.
fn next_valid(extent: &[u8], check: &FrameCheck, from: u32, written: usize) -> Option<u32> {
    let mut at = from.checked_add(1)?;
    let headers = extent.get(..written.saturating_add(LONG_HEADER_LEN)).unwrap_or(extent);
    loop {
        let found = next_frame(headers, check, at)?;
        if lex_frame(extent, check, found).is_some() {
            return Some(found);
        }
        at = found.checked_add(1)?;
    }
}

fn lex_frame(extent: &[u8], check: &FrameCheck, at: u32) -> Option<Lexed> {
    let bytes = extent.get(at as usize..)?;
    let header = FrameHeader::decode_with(bytes, check, at).ok()?;
    let padded = bytes.get(header.header_len()..header.frame_len())?;
    Some(Lexed { header, payload: header.check_payload(check, padded) })
}

/// The bytes of a frame's payload.
pub(crate) fn payload_of<'a>(extent: &'a [u8], header: &FrameHeader) -> &'a [u8] {
    let start = header.payload_at() as usize;
    extent.get(start..start + header.payload_len as usize).unwrap_or_default()
}

/// A piece of an extent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    /// Where it starts.
    pub(crate) at: u32,
    pub(crate) bytes: &'a [u8],
    /// The length of the whole extent.
    pub(crate) extent_len: usize,
}

impl<'a> Piece<'a> {
    /// The bytes of a frame's payload.
    pub(crate) fn payload_of(self, header: &FrameHeader) -> &'a [u8] {
        let start = header.payload_at().saturating_sub(self.at) as usize;
        self.bytes.get(start..start + header.payload_len as usize).unwrap_or_default()
    }
}

/// The frame at `at`, if the piece has all of it and its header checks.
pub(crate) fn frame_in_piece(piece: Piece<'_>, check: &FrameCheck, at: u32) -> InPiece {
    let bytes = piece.bytes.get(at.saturating_sub(piece.at) as usize..).unwrap_or_default();
    let header = match FrameHeader::decode_with(bytes, check, at) {
        Ok(header) => header,
        Err(Damage::Truncated) => return InPiece::Beyond,
        Err(_) => return if used_len(bytes) == 0 { InPiece::Blank } else { InPiece::Odd },
    };
    let Some(padded) = bytes.get(header.header_len()..header.frame_len()) else {
        return InPiece::Beyond;
    };
    match header.check_payload(check, padded) {
        Ok(()) => InPiece::Frame(Lexed { header, payload: Ok(()) }),
        Err(_) => InPiece::Odd,
    }
}

/// What stands at a place of a piece.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InPiece {
    /// A whole frame.
    Frame(Lexed),
    /// Nothing but zeros, up to the end of the piece.
    Blank,
    /// Bytes that do not check.
    Odd,
    /// The piece is too short to tell.
    Beyond,
}

/// The result of a replay.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) builder: DirectoryBuilder,
    /// Frames of unknown runs, and frames whose contents cannot be read.
    pub(crate) damaged: Vec<Corruption>,
}

/// Folds the frames that count, in order. `name_of` knows runs from other places, in case both BIND
/// and START of a run are damaged in this segment.
///
/// Batches in front of `whole` were written completely: their records count even if the COMMIT is
/// damaged, so that the damage costs no record.
pub(crate) fn replay(
    extent: &[u8],
    frames: &[Lexed],
    whole: u32,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
) -> Replayed {
    let mut replayed = Replayed::default();
    let piece = Piece { at: 0, bytes: extent, extent_len: extent.len() };
    replay_piece(&mut replayed, piece, frames, whole, name_of);
    replayed
}

/// Goes on with a replay: the frames of one more piece of the extent.
pub(crate) fn replay_piece(
    replayed: &mut Replayed,
    piece: Piece<'_>,
    frames: &[Lexed],
    whole: u32,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
) {
    let names = names_in(piece, frames);
    each_counted(frames, whole, &mut |lexed| note(replayed, piece, lexed, &names, name_of));
}

/// Calls `count` with each frame that counts, in order: without the frames of batches that have no
/// COMMIT. Batches in front of `whole` were written completely.
pub(crate) fn each_counted(frames: &[Lexed], whole: u32, count: &mut dyn FnMut(&Lexed)) {
    let mut batch: Vec<Lexed> = Vec::new();
    for lexed in frames {
        let header = &lexed.header;
        match header.kind {
            _ if header.flags & FLAG_BATCH != 0 && header.position.offset >= whole => {
                batch.push(*lexed);
                continue;
            }
            FrameKind::Commit => {
                let members = batch.split_off(batch.len().saturating_sub(header.extra as usize));
                // A frame of another run belongs to a batch without COMMIT.
                let of_one = |run_no| header.run_no == RunNo(0) || header.run_no == run_no;
                for member in members.into_iter().filter(|member| of_one(member.header.run_no)) {
                    count(&member);
                }
            }
            // A gap or another frame within a batch: its COMMIT was never written.
            _ => {}
        }
        batch.clear();
        count(lexed);
    }
}

pub(crate) type Names = HashMap<RunNo, (AgentId, RunId)>;

/// The ids of the run numbers, from every BIND, START and PUT with whole ids.
pub(crate) fn names(extent: &[u8], frames: &[Lexed]) -> Names {
    names_in(Piece { at: 0, bytes: extent, extent_len: extent.len() }, frames)
}

/// The same of a piece of an extent.
pub(crate) fn names_in(piece: Piece<'_>, frames: &[Lexed]) -> Names {
    let named = frames.iter().map(|lexed| &lexed.header);
    named
        .filter_map(|header| {
            Some((header.run_no, ids::names_in(header.kind, piece.payload_of(header))?))
        })
        .collect()
}

fn note(
    replayed: &mut Replayed,
    piece: Piece<'_>,
    lexed: &Lexed,
    names: &Names,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
) {
    let header = &lexed.header;
    let mut tell = |damage| {
        let place = Place::Frame(header.position);
        let seq = records_in(header).filter(|_| header.kind != FrameKind::Block);
        let seq = seq.map(|_| header.seq);
        let name = names.get(&header.run_no);
        replayed.damaged.push(Corruption::new(place, damage).of_named(name).at(seq));
    };
    if let Err(damage) = lexed.payload {
        tell(damage);
    }
    let mut evicted = Vec::new();
    if header.kind == FrameKind::Evict && lexed.payload.is_ok() {
        match eviction::evicted_runs(piece.payload_of(header)) {
            Ok(runs) => evicted = runs,
            Err(damage) => tell(damage),
        }
    }
    if header.kind == FrameKind::Put {
        let put = ids::replaced_by(piece.payload_of(header));
        evicted.extend(put.map(|run_no| (run_no, false)));
    }
    // A BIND alone makes no entry: the run gets its entry with its first other frame.
    let names_run = header.run_no != RunNo(0) && header.kind != FrameKind::Bind;
    if names_run && replayed.builder.run(header.run_no).is_none() {
        let name = names.get(&header.run_no).cloned().or_else(|| name_of(header.run_no));
        match name {
            Some((agent, run)) => replayed.builder.bind(header.run_no, agent, run),
            None => tell(Damage::Missing),
        }
    }
    note_frame(&mut replayed.builder, header, &evicted);
    if header.kind == FrameKind::Block {
        // No segment lists more records than its directory has space for behind its frames.
        let most = header.extra.min(MAX_BLOCK_RECORDS);
        let directory = replayed.builder.encoded_len() + records_cost(most);
        let end = lexed.end() as usize + FrameKind::Seal.frame_len(0, directory);
        if header.extra > most || end > piece.extent_len {
            tell(Damage::OutOfRange { found: end as u64, max: piece.extent_len as u64 });
        } else {
            note_block(&mut replayed.builder, header, piece.payload_of(header));
        }
    }
}

/// Where the PIECEs among these frames are.
pub(crate) fn pieces_in<'l>(frames: impl Iterator<Item = &'l Lexed>) -> Vec<PieceAt> {
    let pieces = frames.filter(|lexed| lexed.header.kind == FrameKind::Piece);
    pieces.map(|lexed| PieceAt::of(&lexed.header)).collect()
}

/// All frames of a sealed segment below its end, damaged or not.
pub(crate) fn frames_below(items: &[Item], end: u32) -> Vec<Lexed> {
    let is_below = |lexed: &&Lexed| lexed.header.position.offset < end;
    items.iter().filter_map(Item::frame).filter(is_below).copied().collect()
}

/// The directory of a sealed segment, built again from its frames, if its bytes have the digest
/// that the SEAL record states. Then they are the bytes that were stored.
pub(crate) fn rebuild_directory(segment: &Segment) -> Result<Option<Vec<u8>>> {
    let Some(SealedAt { end, digest, next_run_no, .. }) = segment.sealed() else { return Ok(None) };
    let bytes = &*segment.read_up_to(end as usize)?;
    let extent_len = segment.extent_size().bytes_u32() as usize;
    let piece = Piece { at: 0, bytes, extent_len };
    let frames = frames_below(&lex(bytes, segment.frames()), end);
    let mut replayed = Replayed::default();
    replay_piece(&mut replayed, piece, &frames, end, &mut |_| None);
    let rebuilt = replayed.builder.encode(&segment.directory_key(end), next_run_no);
    Ok((crc32fast::hash(&rebuilt) == digest).then_some(rebuilt))
}

/// The directory in the payload of a SEAL frame of this segment, if both are whole.
pub(crate) fn directory_in<'a>(
    segment: &Segment,
    extent: &'a [u8],
    seal: &Lexed,
) -> Option<Directory<'a>> {
    let (payload, end) = (payload_of(extent, &seal.header), seal.header.extra);
    let found = || Directory::new(payload, &segment.directory_key(end));
    seal.payload.and_then(|()| found()).ok().filter(|found| found.check().is_ok())
}

/// How many records a frame has; `None` if its kind has no records.
pub(crate) fn records_in(header: &FrameHeader) -> Option<u32> {
    match header.kind {
        FrameKind::Record | FrameKind::Put => Some(1),
        FrameKind::Block => Some(header.extra),
        _ => None,
    }
}

/// The first offset at or behind `from` with a valid frame header.
pub(crate) fn next_frame(extent: &[u8], check: &FrameCheck, from: u32) -> Option<u32> {
    let start = (from.max(SEGMENT_HEADER_LEN) as usize).next_multiple_of(FRAME_ALIGN);
    (start..extent.len().saturating_sub(FRAME_HEADER_LEN - 1)).step_by(FRAME_ALIGN).find_map(|at| {
        let offset = u32::try_from(at).ok()?;
        let bytes = extent.get(at..)?;
        (may_be_header(bytes) && FrameHeader::decode_with(bytes, check, offset).is_ok())
            .then_some(offset)
    })
}
