//! Giving frames their order and their place, under the lock of the log's state, so that what is
//! acknowledged is a contiguous prefix of the log.
//!
//! The bytes come before the written mark (O1), and the durable record of a segment before its
//! first frame (O4). A frame is placed only if the directory still fits behind it: otherwise the
//! segment could not be sealed.

use std::sync::Arc;

use crate::engine::state::fold::note_frame;
use crate::engine::state::log_state::{LogState, Urgency, reserve_for, reserve_len};
use crate::engine::state::segment::Mark;
use crate::engine::write::Log;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Error, Result, Sized};
use crate::format::frames::eviction;
use crate::format::frames::ids;
use crate::format::segments::directory::RUN_COST;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{DirectoryBuilder, FrameHeader, FrameKind};
use crate::types::{Durability, LogPosition, RunNo, Timestamp};

impl Log {
    /// Puts frames into the file next to one another, with one write or, at Process level, one
    /// store. A WATERMARK comes first if a sync has moved the durable position, then a BIND for
    /// each run that has no entry in the segment yet, unless a START or a PUT binds it. Sets the
    /// positions and the order of the frames. Returns the position after the last frame.
    pub(crate) fn place(
        &self,
        state: &mut LogState,
        pending: &mut [PendingFrame<'_>],
        urgency: Urgency,
        level: Durability,
    ) -> Result<LogPosition> {
        if state.closed {
            return Err(Error::Closed);
        }
        self.disk.check()?;
        self.promise_numbers(state)?;
        let mark = self.unstated(state, urgency);
        let mut ahead = Ahead::of(mark, state, pending, &state.tail.builder)?;
        let mut need = ahead.room_with(pending);
        if !self.fits(state, need, urgency)? {
            // Checked before the segment is sealed: frames that fit no segment must take no space.
            let empty = DirectoryBuilder::default();
            ahead = Ahead::of(mark, state, pending, &empty)?;
            need = ahead.room_with(pending);
            let kept = SEGMENT_HEADER_LEN + reserve_for(self.extent_size, urgency);
            let len = (need.0 + FrameKind::Seal.frame_len(0, empty.encoded_len() + need.1)) as u64;
            let max = self.extent_size.bytes() - u64::from(kept);
            if len > max {
                return Err(Error::TooLarge { what: Sized::Batch, len, max });
            }
            self.roll(state)?;
            self.fits(state, need, urgency)?;
        }
        let stored = state.tail.stores_next(need.0, level)?;
        self.write(state, &ahead, pending, stored)
    }

    /// Like [`Log::place`], for one frame.
    pub(crate) fn place_one(
        &self,
        state: &mut LogState,
        pending_frame: &mut PendingFrame<'_>,
        urgency: Urgency,
        level: Durability,
    ) -> Result<LogPosition> {
        self.place(state, core::slice::from_mut(pending_frame), urgency, level)
    }

    /// The durable position, if no WATERMARK states it yet. Urgent frames leave it to later ones if
    /// it would take space that is kept for them.
    fn unstated(&self, state: &LogState, urgency: Urgency) -> Option<LogPosition> {
        let durable = self.commit.durable();
        let needed = FrameKind::Watermark.frame_len(0, 0)
            + FrameKind::Seal.frame_len(0, state.tail.builder.encoded_len())
            + reserve_len(self.extent_size) as usize;
        let has_room = || state.tail.offset as usize + needed <= state.tail.allocated as usize;
        let states = durable > state.stated && (urgency == Urgency::Normal || has_room());
        states.then_some(durable)
    }

    /// Whether the tail's segment has room for the frames; allocates the room. On a full disk it
    /// has none for urgent frames if the next segment is allocated already.
    fn fits(&self, state: &mut LogState, need: (usize, usize), urgency: Urgency) -> Result<bool> {
        let reserve = reserve_for(self.extent_size, urgency) as usize;
        let directory = state.tail.builder.encoded_len() + need.1;
        let directory = FrameKind::Seal.frame_len(0, directory);
        let end = state.tail.offset as usize + need.0 + directory;
        if end + reserve > self.extent_size.bytes_u32() as usize {
            return Ok(false);
        }
        let wanted = end + reserve_len(self.extent_size) as usize;
        if wanted > state.tail.allocated as usize {
            // Without it, the frames may still fit into the reserve.
            if state.tail.grow(wanted).is_err() {
                let least = u32::try_from(end + reserve).unwrap_or(u32::MAX);
                match state.tail.allocate_to(least) {
                    Err(Error::DiskFull { .. })
                        if urgency == Urgency::Reserve && self.has_allocated() =>
                    {
                        return Ok(false);
                    }
                    allocated => allocated?,
                }
            }
        }
        Ok(true)
    }

    /// Whether a segment is set aside that needs no more space.
    fn has_allocated(&self) -> bool {
        self.reserved.lock().front().is_some_and(|next| next.is(Mark::Allocated))
    }

    /// Encodes and writes the frames. Notes them only if the write succeeded.
    fn write(
        &self,
        state: &mut LogState,
        ahead: &Ahead,
        pending: &mut [PendingFrame<'_>],
        stored: bool,
    ) -> Result<LogPosition> {
        let segment = Arc::clone(&state.tail.segment);
        let (start, mut lsn) = (state.tail.offset, state.next_lsn);
        let mut bytes = core::mem::take(&mut state.buffer);
        bytes.clear();
        let mut encode = |pending_frame: &mut PendingFrame<'_>| {
            let len = u32::try_from(bytes.len()).expect("a batch fits its segment");
            pending_frame.header.position = segment.position(start + len);
            pending_frame.header.lsn = lsn;
            pending_frame.encode(segment.frames(), &mut bytes);
            lsn.0 = lsn.0.saturating_add(1);
        };
        let at = pending.first().map_or(Timestamp(0), |pending_frame| pending_frame.header.at);
        let mut ahead = ahead.frames(at);
        ahead.iter_mut().for_each(&mut encode);
        pending.iter_mut().for_each(&mut encode);
        let written = state.tail.put(&bytes, stored);
        let len = u32::try_from(bytes.len()).expect("a batch fits its segment");
        state.buffer = bytes;
        written?;
        (state.tail.offset, state.next_lsn) = (start + len, lsn);
        ahead.iter().try_for_each(|pending_frame| note(state, pending_frame))?;
        pending.iter().try_for_each(|pending_frame| note(state, pending_frame))?;
        let end = state.end_of_log();
        self.commit.wrote(end);
        Ok(end)
    }
}

/// What comes in front of frames, in the same write.
struct Ahead {
    /// The position of a WATERMARK.
    mark: Option<LogPosition>,
    /// The payloads of BINDs.
    binds: Vec<(RunNo, Vec<u8>)>,
    /// The runs that are bound by a START or a PUT, and the lengths of their ids.
    bound: Vec<(RunNo, usize)>,
}

impl Ahead {
    /// What these frames need in a segment with this directory.
    fn of(
        mark: Option<LogPosition>,
        state: &LogState,
        pending: &[PendingFrame<'_>],
        directory: &DirectoryBuilder,
    ) -> Result<Self> {
        let mut ahead = Self { mark, binds: Vec::new(), bound: Vec::new() };
        for &FrameHeader { kind, run_no, .. } in pending.iter().map(|pending| &pending.header) {
            let has_entry = run_no == RunNo(0)
                || directory.run(run_no).is_some()
                || ahead.binds.iter().any(|bind| bind.0 == run_no)
                || ahead.bound.iter().any(|bound| bound.0 == run_no);
            if has_entry {
                continue;
            }
            let run = state.active.get(run_no).ok_or(Error::Poisoned)?;
            if matches!(kind, FrameKind::Start | FrameKind::Put) {
                let names = run.agent.as_str().len() + run.run.as_str().len();
                ahead.bound.push((run_no, ids::ids_len(names)));
            } else {
                let mut payload = Vec::new();
                ids::encode_ids(&run.agent, &run.run, &mut payload);
                ahead.binds.push((run_no, payload));
            }
        }
        Ok(ahead)
    }

    /// The bytes that these frames and the pending ones take in the log and in the directory.
    fn room_with(&self, pending: &[PendingFrame<'_>]) -> (usize, usize) {
        let frames = pending.iter().map(|pending_frame| pending_frame.header.frame_len());
        let records = pending.iter().map(PendingFrame::directory_cost);
        let mark = self.mark.map(|_| FrameKind::Watermark.frame_len(0, 0));
        let ids = self.binds.iter().map(|(_, ids)| ids.len());
        let binds = ids.clone().map(|ids| FrameKind::Bind.frame_len(0, ids));
        let entries = ids.chain(self.bound.iter().map(|(_, ids)| *ids));
        let entries = entries.map(|ids| RUN_COST + ids);
        (frames.chain(mark).chain(binds).sum(), records.chain(entries).sum())
    }

    fn frames(&self, at: Timestamp) -> Vec<PendingFrame<'_>> {
        let mark = self.mark.map(|durable| PendingFrame {
            header: FrameHeader::watermark(durable, at),
            name: &[],
            body: &[],
        });
        let binds = self.binds.iter().map(|(run_no, ids)| {
            PendingFrame::new(FrameHeader::new(FrameKind::Bind, *run_no, at), &[], ids)
        });
        mark.into_iter().chain(binds).collect()
    }
}

/// Notes a written frame in the directory of the tail.
fn note(state: &mut LogState, pending_frame: &PendingFrame<'_>) -> Result<()> {
    let (run_no, mut evicted) = (pending_frame.header.run_no, Vec::new());
    match pending_frame.header.kind {
        FrameKind::Bind | FrameKind::Start | FrameKind::Put => {
            let run = state.active.get(run_no).ok_or(Error::Poisoned)?;
            state.tail.builder.bind(run_no, run.agent.clone(), run.run.clone());
            let replaced = ids::replaced_by(pending_frame.name);
            evicted.extend(replaced.map(|run_no| (run_no, false)));
        }
        FrameKind::Evict => {
            evicted = eviction::evicted_runs(pending_frame.body).unwrap_or_default();
        }
        FrameKind::Watermark => {
            state.stated = pending_frame.header.durable().unwrap_or_default();
        }
        _ => {}
    }
    note_frame(&mut state.tail.builder, &pending_frame.header, &evicted);
    Ok(())
}
