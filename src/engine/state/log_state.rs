//! The state of an open store that appends change: the tail of the log and the runs in memory.
//!
//! One lock guards all of it. Order, sequence and place are assigned, the bytes are written, and
//! the frame is noted under that lock, so that what is acknowledged is a contiguous prefix of the
//! log. The bytes come before the written mark (O1), a segment's durable record before its first
//! frame (O4), and room for the directory before a frame: else the segment could not be sealed.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use crate::engine::state::active_runs::HotRuns;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::state::tail::Stores;
use crate::engine::write::Engine;
use crate::engine::write::pending_frame::{Draft, note_frame};
use crate::error::{Damage, Error, Result, Sized};
use crate::format::directory::{HASH_LEN, RUN_ENTRY_LEN};
use crate::format::eviction;
use crate::format::frame::{self, frame_len};
use crate::format::manifest::SealedAt;
use crate::format::segment::{LAST_SEGMENT, SEGMENT_HEADER_LEN};
use crate::format::{
    DirectoryBuilder, ExtentSize, FrameHeader, FrameKind, LAST_WRITTEN, NUMBERS_END,
};
use crate::types::{Durability, LogPosition, Lsn, RunNo, SegmentId, Timestamp};

/// The end of the log.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: Arc<Segment>,
    /// The next frame goes here.
    pub(crate) offset: u32,
    /// Space is had up to here.
    pub(crate) allocated: u32,
    pub(crate) stores: Stores,
    pub(crate) builder: DirectoryBuilder,
}

/// Who may use the space that is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Records and starts leave the reserve alone.
    Normal,
    /// Ends and evictions may use it, so that runs can be ended on a full disk.
    Reserve,
}

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) tail: Tail,
    /// A segment is in [`Engine::reserved`], or on its way there.
    pub(crate) has_next: bool,
    /// Sealed segments, oldest first, that the catalog does not cover. The manifest knows those in
    /// front as sealed ([`Mark::Durable`]).
    pub(crate) unapplied: VecDeque<Arc<Segment>>,
    /// What answers for everything older.
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) hot: HotRuns,
    /// Runs that are deleted but still have frames somewhere.
    pub(crate) deleted: Arc<HashSet<RunNo>>,
    /// Segments of which less may live than at the last look.
    pub(crate) suspects: BTreeSet<SegmentId>,
    /// Segments that do not count any more, but may still be read by somebody.
    pub(crate) retired: Vec<Arc<Segment>>,
    pub(crate) next_segment: SegmentId,
    pub(crate) next_run_no: RunNo,
    pub(crate) next_lsn: Lsn,
    /// The superblock says that no run number and no order from these on was given out.
    pub(crate) promised: (RunNo, Lsn),
    pub(crate) closed: bool,
    pub(crate) buffer: Vec<u8>,
}

/// The space at the end of a segment that only ends and evictions may use.
pub(crate) fn reserve_len(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 16).min(32 << 10)
}

/// The part of it that is left alone.
fn reserve_for(extent_size: ExtentSize, urgency: Urgency) -> u32 {
    match urgency {
        Urgency::Normal => reserve_len(extent_size),
        Urgency::Reserve => 0,
    }
}

/// How many numbers the superblock promises at once. Half of them is more than the frames of any
/// segment take, so that [`Core::place`], which each segment begins with, is where to look.
pub(crate) const NUMBERS_AHEAD: u64 = 1 << 24;
const _: () = assert!(NUMBERS_AHEAD / 2 > (64 << 20) / frame::FRAME_HEADER_LEN as u64);

/// Numbers of segments that are kept for recoveries and compactions.
const KEPT_SEGMENTS: u32 = 1 << 16;

/// How far the first extent of a store is allocated at first, and how much it grows by at least.
pub(crate) const FIRST_STEP: u32 = 64 << 10;

impl Core {
    /// The numbers that the superblock is to promise next.
    pub(crate) fn numbers_ahead(&self) -> (RunNo, Lsn) {
        let ahead = |next: u64| next.saturating_add(NUMBERS_AHEAD).min(NUMBERS_END);
        (RunNo(ahead(self.next_run_no.0)), Lsn(ahead(self.next_lsn.0)))
    }

    /// Sees to it that all numbers that the next frames may get are promised durably: recovery goes
    /// on behind the promise, so that a power loss that takes a frame does not free its numbers.
    fn promise_numbers(&mut self, engine: &Engine) -> Result<()> {
        if self.next_lsn.0 >= LAST_WRITTEN {
            return Err(Error::Exhausted { what: "records" });
        }
        let (promised, ahead) = (self.promised, self.numbers_ahead());
        let is_far = |end: u64, next: u64| end.saturating_add(NUMBERS_AHEAD / 2) >= next;
        if is_far(promised.0.0, ahead.0.0) && is_far(promised.1.0, ahead.1.0) {
            return Ok(());
        }
        let mut keeper = engine.keeper.lock();
        keeper.write_superblock(|block| (block.next_run_no, block.next_lsn) = ahead)?;
        self.promised = ahead;
        Ok(())
    }

    /// The numbers that the next run and the next frame get.
    pub(crate) fn next_numbers(&self) -> (RunNo, Lsn) {
        (self.next_run_no, self.next_lsn)
    }

    /// The number of a run that comes into being.
    pub(crate) fn take_run_no(&mut self) -> Result<RunNo> {
        let run_no = self.next_run_no;
        if run_no.0 >= LAST_WRITTEN {
            return Err(Error::Exhausted { what: "runs" });
        }
        self.next_run_no = RunNo(run_no.0 + 1);
        Ok(run_no)
    }

    /// A number for a segment. It is used only if a record of the manifest says so durably.
    pub(crate) fn take_segment_id(&mut self) -> Result<SegmentId> {
        let id = self.next_segment;
        if id > LAST_SEGMENT {
            return Err(Error::Exhausted { what: "segments" });
        }
        self.next_segment = SegmentId(id.0 + 1);
        Ok(id)
    }

    /// Where the next frame will end up at the earliest: everything in front of it was written.
    pub(crate) fn end_of_log(&self) -> LogPosition {
        self.tail.segment.position(self.tail.offset)
    }

    /// Puts frames into the file next to one another, with one write or stored one by one if they
    /// are at Process level, each behind a BIND if its run has no
    /// entry in the segment yet. Sets the drafts' positions and order. Answers the position behind
    /// the last frame.
    pub(crate) fn place(
        &mut self,
        engine: &Engine,
        drafts: &mut [Draft<'_>],
        urgency: Urgency,
        level: Durability,
    ) -> Result<LogPosition> {
        if self.closed {
            return Err(Error::Closed);
        }
        engine.disk.check()?;
        self.promise_numbers(engine)?;
        let mut binds = self.binds(drafts, &self.tail.builder)?;
        let mut need = room_for(drafts, &binds);
        if !self.fits(engine, need, urgency)? {
            // Asked before the segment is closed: what fits into none takes no space.
            let empty = DirectoryBuilder::default();
            binds = self.binds(drafts, &empty)?;
            need = room_for(drafts, &binds);
            let kept = SEGMENT_HEADER_LEN + reserve_for(engine.extent_size, urgency);
            let len = (need.0 + frame_len(empty.encoded_len() + need.1)) as u64;
            let max = engine.extent_size.bytes() - u64::from(kept);
            if len > max {
                return Err(Error::TooLarge { what: Sized::Batch, len, max });
            }
            self.roll(engine)?;
            self.fits(engine, need, urgency)?;
        }
        let stored = self.tail.stores_next(engine, need.0, level)?;
        self.write(engine, drafts, &binds, stored)
    }

    /// As [`Core::place`], for one frame.
    pub(crate) fn place_one(
        &mut self,
        engine: &Engine,
        draft: &mut Draft<'_>,
        urgency: Urgency,
        level: Durability,
    ) -> Result<LogPosition> {
        self.place(engine, core::slice::from_mut(draft), urgency, level)
    }

    /// The BIND payloads that the drafts need in a segment with this directory.
    fn binds(
        &self,
        drafts: &[Draft<'_>],
        directory: &DirectoryBuilder,
    ) -> Result<Vec<(RunNo, Vec<u8>)>> {
        let mut binds: Vec<(RunNo, Vec<u8>)> = Vec::new();
        for draft in drafts {
            let run_no = draft.header.run_no;
            let bound = run_no == RunNo(0)
                || directory.run(run_no).is_some()
                || binds.iter().any(|bind| bind.0 == run_no);
            if !bound {
                let run = self.hot.get(run_no).ok_or(Error::Poisoned)?;
                let mut ids = Vec::new();
                frame::encode_ids(&run.agent, &run.run, &mut ids);
                binds.push((run_no, ids));
            }
        }
        Ok(binds)
    }

    /// Whether the tail's segment has room; sees to it that the room is allocated.
    fn fits(&mut self, engine: &Engine, need: (usize, usize), urgency: Urgency) -> Result<bool> {
        let reserve = reserve_for(engine.extent_size, urgency) as usize;
        let directory = frame_len(self.tail.builder.encoded_len() + need.1);
        let end = self.tail.offset as usize + need.0 + directory;
        if end + reserve > engine.extent_size.bytes_u32() as usize {
            return Ok(false);
        }
        let wanted = end + reserve_len(engine.extent_size) as usize;
        if wanted > self.tail.allocated as usize {
            // Without it, the frames may fit all the same into the space that is kept back.
            if self.grow(engine, wanted).is_err() {
                let least = u32::try_from(end + reserve).unwrap_or(u32::MAX);
                self.allocate_to(engine, least)?;
            }
        }
        Ok(true)
    }

    /// Allocates more of the tail's extent, in steps that grow with it.
    pub(crate) fn grow(&mut self, engine: &Engine, wanted: usize) -> Result<()> {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let step = FIRST_STEP.max(self.tail.allocated / 2);
        let goal = wanted.max(self.tail.allocated.saturating_add(step));
        let goal = goal.next_multiple_of(FIRST_STEP).min(engine.extent_size.bytes_u32());
        self.allocate_to(engine, goal)
    }

    fn allocate_to(&mut self, engine: &Engine, goal: u32) -> Result<()> {
        if goal <= self.tail.allocated {
            return Ok(());
        }
        let at = self.tail.segment.file_offset() + u64::from(self.tail.allocated);
        engine.disk.allocate(at, u64::from(goal - self.tail.allocated))?;
        self.tail.allocated = goal;
        Ok(())
    }

    /// Encodes and writes; nothing is noted unless the write succeeded.
    fn write(
        &mut self,
        engine: &Engine,
        drafts: &mut [Draft<'_>],
        binds: &[(RunNo, Vec<u8>)],
        stored: bool,
    ) -> Result<LogPosition> {
        let (segment, durable) = (Arc::clone(&self.tail.segment), engine.commit.durable());
        let (start, mut lsn) = (self.tail.offset, self.next_lsn);
        let mut bytes = core::mem::take(&mut self.buffer);
        bytes.clear();
        let mut encode = |draft: &mut Draft<'_>| {
            let len = u32::try_from(bytes.len()).expect("a batch fits its segment");
            draft.header.position = segment.position(start + len);
            (draft.header.lsn, draft.header.durable) = (lsn, durable);
            draft.encode(segment.frames(), &mut bytes);
            lsn.0 += 1;
        };
        let at = drafts.first().map_or(Timestamp(0), |draft| draft.header.at);
        let mut binds: Vec<Draft<'_>> = binds
            .iter()
            .map(|(run_no, ids)| {
                Draft::new(FrameHeader::new(FrameKind::Bind, *run_no, at), &[], ids)
            })
            .collect();
        binds.iter_mut().for_each(&mut encode);
        drafts.iter_mut().for_each(&mut encode);
        let lens = binds.iter().chain(drafts.iter()).map(|draft| draft.header.frame_len());
        let written = self.tail.put(engine, &bytes, lens, stored);
        let len = u32::try_from(bytes.len()).expect("a batch fits its segment");
        self.buffer = bytes;
        written?;
        (self.tail.offset, self.next_lsn) = (start + len, lsn);
        binds.iter().try_for_each(|bind| self.note(bind))?;
        drafts.iter().try_for_each(|draft| self.note(draft))?;
        let end = self.end_of_log();
        engine.commit.wrote(end);
        Ok(end)
    }

    /// Notes a frame that was written in the directory in the making.
    fn note(&mut self, draft: &Draft<'_>) -> Result<()> {
        let (run_no, mut evicted) = (draft.header.run_no, Vec::new());
        match draft.header.kind {
            FrameKind::Bind => {
                let run = self.hot.get(run_no).ok_or(Error::Poisoned)?;
                self.tail.builder.bind(run_no, run.agent.clone(), run.run.clone());
            }
            FrameKind::Evict => {
                evicted = eviction::evicted_runs(draft.body).unwrap_or_default();
            }
            _ => {}
        }
        note_frame(&mut self.tail.builder, &draft.header, &evicted);
        Ok(())
    }

    /// Seals the tail's segment and goes on in the next one.
    pub(crate) fn roll(&mut self, engine: &Engine) -> Result<()> {
        engine.check_open(self)?;
        if self.next_segment.0 > LAST_SEGMENT.0 - KEPT_SEGMENTS {
            return Err(Error::Exhausted { what: "segments" });
        }
        let _watch = engine.watch(crate::engine::setup::observer::Activity::Roll);
        let next = engine.next_segment(self)?;
        if let Err(error) = self.seal_tail(engine, self.tail.offset) {
            engine.reserved.lock().push_front(next);
            self.has_next = true;
            return Err(error);
        }
        // What was set aside before the store was opened is allocated as it is needed.
        let whole = engine.extent_size.bytes_u32();
        let allocated = if next.is(Mark::Allocated) { whole } else { SEGMENT_HEADER_LEN };
        self.begin(next, allocated);
        engine.commit.wrote(self.end_of_log());
        engine.upkeep.want(crate::engine::background::Wanted::RESERVE);
        Ok(())
    }

    /// The tail moves into a segment that has no frames yet.
    pub(crate) fn begin(&mut self, segment: Arc<Segment>, allocated: u32) {
        self.tail = Tail {
            segment,
            offset: SEGMENT_HEADER_LEN,
            allocated,
            stores: Stores::default(),
            builder: DirectoryBuilder::default(),
        };
    }

    /// Writes the directory of the tail's segment at `seal`, and makes the segment one that only
    /// the manifest does not know as sealed yet.
    pub(crate) fn seal_tail(&mut self, engine: &Engine, seal: u32) -> Result<()> {
        let _watch = engine.watch(crate::engine::setup::observer::Activity::Seal);
        let segment = Arc::clone(&self.tail.segment);
        debug_assert!(self.unapplied.back().is_none_or(|last| last.id() < segment.id()));
        debug_assert!(self.catalog.through() < Some(segment.id()));
        let at = self.write_seal(engine, seal)?;
        self.note_seal(engine, segment, at);
        Ok(())
    }

    /// The tail's segment has its SEAL frame, of which the manifest does not know yet. Folds what
    /// its directory says into the runs in memory, slot by slot.
    pub(crate) fn note_seal(&mut self, engine: &Engine, segment: Arc<Segment>, at: SealedAt) {
        segment.seal(at);
        let builder = core::mem::take(&mut self.tail.builder);
        let mut built: Vec<_> = builder.runs().iter().map(|run| &run.entry).collect();
        built.sort_by_key(|entry| entry.run_no);
        for (slot, entry) in (0..).zip(built) {
            self.hot.seal(segment.id(), slot, entry);
        }
        engine.sealing.store(true, core::sync::atomic::Ordering::Release);
        self.unapplied.push_back(segment);
    }

    /// Writes the directory of what the tail holds as the SEAL frame of its segment. A full disk
    /// is met before anything is written: closing the store gave back what was allocated for it.
    pub(crate) fn write_seal(&mut self, engine: &Engine, seal: u32) -> Result<SealedAt> {
        let segment = &self.tail.segment;
        let directory = self.tail.builder.encode(self.next_run_no);
        let now = engine.now();
        let mut draft =
            Draft::new(FrameHeader::new(FrameKind::Seal, RunNo(0), now), &[], &directory);
        draft.header.extra = self.tail.offset;
        draft.header.position = segment.position(seal);
        draft.header.lsn = self.next_lsn;
        draft.header.durable = engine.commit.durable();
        let mut bytes = Vec::with_capacity(draft.header.frame_len());
        draft.encode(segment.frames(), &mut bytes);
        let (at, end) = (segment.file_offset() + u64::from(seal), seal as usize + bytes.len());
        let (found, max) = (end as u64, engine.extent_size.bytes());
        if found > max {
            // What is behind it is another segment's.
            return Err(segment.damaged_directory(Damage::OutOfRange { found, max }));
        }
        if end > self.tail.allocated as usize {
            engine.disk.allocate(at, bytes.len() as u64)?;
        }
        engine.disk.write(at, &bytes)?;
        self.next_lsn.0 += 1;
        Ok(SealedAt {
            end: self.tail.offset,
            seal,
            digest: draft.header.payload_crc,
            has_evictions: self.tail.builder.evictions().next().is_some(),
        })
    }
}

/// The bytes that the frames take, and that they add to the directory.
fn room_for(drafts: &[Draft<'_>], binds: &[(RunNo, Vec<u8>)]) -> (usize, usize) {
    let frames: usize = drafts.iter().map(|draft| draft.header.frame_len()).sum();
    let bind_frames: usize = binds.iter().map(|(_, ids)| frame_len(ids.len())).sum();
    let records: usize = drafts.iter().map(Draft::directory_cost).sum();
    let entries: usize = binds.iter().map(|(_, ids)| RUN_ENTRY_LEN + HASH_LEN + ids.len()).sum();
    (frames + bind_frames, records + entries)
}
