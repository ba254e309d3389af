//! Going on behind the last frame that was seen, while the state of the extents is as it was.

use std::sync::Arc;

use crate::engine::reader::{Current, Replica};
use crate::engine::state::log_state::LogState;
use crate::engine::state::scan::{
    InPiece, Lexed, Names, Piece, Replayed, frame_in_piece, frames_below, lex, names, names_in,
    replay_piece,
};
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::frames::frame::FLAG_BATCH;
use crate::format::{FrameCheck, FrameKind};
use crate::types::{AgentId, LogPosition, RunId, RunNo};

/// How much is read at once, unless one frame or batch is longer.
const AT_ONCE: usize = 64 << 10;

/// What a look behind the last frame led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing is new.
    None,
    /// Frames were taken in.
    Frames,
    /// The log goes on in another segment.
    Rebuild,
}

/// The new frames at the beginning of a piece.
struct Found {
    frames: Vec<Lexed>,
    /// Where the last of them ends.
    end: u32,
    /// Why there are no more.
    stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The piece is over, perhaps within a frame or a batch.
    PieceIsOver,
    /// The segment is sealed.
    Seal,
    /// Nothing was written there.
    End,
    /// Something that does not check, perhaps since not all of it is written.
    Odd,
}

impl Replica {
    /// Takes in the frames that were written since.
    pub(super) fn advance(&self, current: &mut Current) -> Result<Progress> {
        let (mut progress, mut wanted) = (Progress::None, AT_ONCE);
        loop {
            let (segment, from) = {
                let state = self.answers.state.lock();
                (Arc::clone(&state.tail.segment), state.tail.offset)
            };
            let room = segment.extent_size().bytes().saturating_sub(u64::from(from));
            let len = wanted.min(usize::try_from(room).unwrap_or(usize::MAX));
            let bytes = self.disk.read_padded(segment.file_offset() + u64::from(from), len)?;
            let extent_len = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
            let piece = Piece { at: from, bytes: &bytes, extent_len };
            let mut found = whole_frames(piece, segment.frames());
            if self.wanted.durable_only {
                leave_durable(current, (from, &mut found), |at| segment.position(at));
            }
            if found.end > from {
                self.take_frames(current, piece, &found)?;
                progress = Progress::Frames;
            }
            match found.stop {
                Stop::Seal => return Ok(Progress::Rebuild),
                Stop::End => return Ok(progress),
                Stop::Odd => {
                    let is_due = current.is_stuck(segment.position(found.end));
                    return Ok(if is_due { Progress::Rebuild } else { progress });
                }
                Stop::PieceIsOver if found.end > from => wanted = AT_ONCE,
                Stop::PieceIsOver => wanted = wanted.saturating_mul(4),
            }
        }
    }

    /// Folds new frames into the state. A read that fails changes nothing, so that the next look
    /// finds the same frames.
    fn take_frames(&self, current: &mut Current, piece: Piece<'_>, found: &Found) -> Result<()> {
        let mut state = self.answers.state.lock();
        learn_names(current, &state, piece, found)?;
        let builder = core::mem::take(&mut state.tail.builder);
        let mut replayed = Replayed { builder, damaged: Vec::new() };
        let mut name_of = |run_no: RunNo| -> Option<(AgentId, RunId)> {
            let active =
                || state.active.get(run_no).map(|run| (run.agent.clone(), run.run.clone()));
            current.names.get(&run_no).cloned().or_else(active)
        };
        // All that a live writer has acknowledged is written whole; a batch counts by its COMMIT.
        replay_piece(&mut replayed, piece, &found.frames, 0, &mut name_of);
        let state = &mut *state;
        let taken = remember_new(state, &replayed, found, piece.at);
        state.tail.builder = replayed.builder;
        state.tail.offset = found.end;
        taken
    }
}

/// Learns what the runs of new frames are called, where memory does not know it.
fn learn_names(
    current: &mut Current,
    state: &LogState,
    piece: Piece<'_>,
    found: &Found,
) -> Result<()> {
    current.names.extend(names_in(piece, &found.frames));
    for run_no in found.frames.iter().map(|lexed| lexed.header.run_no) {
        let is_known = run_no == RunNo(0)
            || state.tail.builder.run(run_no).is_some()
            || current.names.contains_key(&run_no)
            || state.active.get(run_no).is_some();
        if is_known {
            continue;
        }
        // The view may have seen its BIND, but no other frame of it.
        if !current.has_all_names {
            current.names.extend(names_below(&state.tail.segment, piece.at)?);
            current.has_all_names = true;
        }
    }
    Ok(())
}

/// What the frames of a segment in front of `end` call runs.
fn names_below(segment: &Segment, end: u32) -> Result<Names> {
    let extent = segment.read_up_to(end as usize)?;
    let items = lex(&extent, segment.frames());
    Ok(names(&extent, &frames_below(&items, end)))
}

/// Leaves only frames that are known to be durable, by what the frames themselves say.
fn leave_durable(
    current: &mut Current,
    (from, found): (u32, &mut Found),
    position: impl Fn(u32) -> LogPosition,
) {
    let said = found.frames.iter().filter_map(|lexed| lexed.header.durable()).max();
    current.floor = current.floor.max(said.unwrap_or_default());
    let floor = current.floor;
    found.frames.retain(|lexed| position(lexed.header.position.offset) < floor);
    let end = found.frames.last().map_or(from, Lexed::end);
    if end < found.end || position(end) >= floor {
        found.end = end;
        // Behind the piece a frame may state that more is durable.
        if found.stop != Stop::PieceIsOver {
            found.stop = Stop::End;
        }
    }
}

/// Brings what new frames say into memory: which runs they delete, and those that they are of.
fn remember_new(state: &mut LogState, replayed: &Replayed, found: &Found, from: u32) -> Result<()> {
    let new = replayed.builder.evictions().filter(|eviction| eviction.offset >= from);
    for eviction in new {
        Arc::make_mut(&mut state.deleted).extend([eviction.run_no]);
        state.active.remove(eviction.run_no);
    }
    let mut runs: Vec<RunNo> = found.frames.iter().map(|lexed| lexed.header.run_no).collect();
    runs.sort_unstable();
    runs.dedup();
    state.remember(state.tail.segment.id(), &replayed.builder, runs.into_iter())
}

/// The frames that count at the beginning of a piece: up to a SEAL, to bytes that do not check, or
/// to a batch of which the COMMIT is not there.
fn whole_frames(piece: Piece<'_>, check: &FrameCheck) -> Found {
    let mut found = Found { frames: Vec::new(), end: piece.at, stop: Stop::PieceIsOver };
    let mut at = piece.at;
    let is_last = piece.at as usize + piece.bytes.len() >= piece.extent_len;
    found.stop = loop {
        match frame_in_piece(piece, check, at) {
            InPiece::Frame(lexed) if lexed.header.kind == FrameKind::Seal => break Stop::Seal,
            InPiece::Frame(lexed) => {
                at = lexed.end();
                found.frames.push(lexed);
            }
            InPiece::Odd => break Stop::Odd,
            InPiece::Beyond if !is_last => break Stop::PieceIsOver,
            InPiece::Blank | InPiece::Beyond => break Stop::End,
        }
    };
    // In front of a COMMIT the frames of a batch are nothing.
    let is_open = |lexed: &mut Lexed| lexed.header.flags & FLAG_BATCH != 0;
    while found.frames.pop_if(is_open).is_some() {}
    found.end = found.frames.last().map_or(piece.at, Lexed::end);
    found
}
