//! Following the log in its order: whole records, each once, across rolls, compaction and restarts.
//!
//! The order of a frame never changes, wherever compaction moves it, and no order is used twice. So
//! what was told is known by one number, and all segments with a larger one are merged by it.

mod within;

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use crate::engine::read::named::{metadata_in, outcome_in};
use crate::engine::read::record::Record;
use crate::engine::read::trace::Trace;
use crate::engine::reader::Replica;
use crate::engine::reader::events::{Follow, LogCursor, LogEvent, LogEventKind, Place};
use crate::engine::reader::found::{Found, Ordered, Wanted, What, next_of, sealed_in_order};
use crate::engine::state::scan::{InPiece, Item, Lexed, Piece, frame_in_piece, lex};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Error, Place as DamagePlace, Result};
use crate::format::frames::block::{BlockHead, MAX_BLOCK_RECORDS};
use crate::format::frames::eviction::decode_evictions;
use crate::format::frames::frame::{FLAG_CHUNKS, FLAG_DOCUMENT, FLAG_IMPLICIT};
use crate::format::frames::ids::names_in;
use crate::format::segments::directory::OFFSET_LEN;
use crate::format::{FrameHeader, FrameKind};
use crate::gc::Rule;
use crate::types::{AgentId, RunId, RunNo, SegmentId, Seq};

/// How often it begins again in one look because the writer was faster.
const ATTEMPTS: u64 = 64;

/// How many runs of which records lie in blocks or chunks are kept open.
const TRACES: usize = 64;

/// How many names and deletions are remembered.
const REMEMBERED: usize = 64 << 10;

/// A follower's place in the log, and what it has found behind it.
pub(crate) struct Tailing {
    replica: Arc<Replica>,
    wanted: Wanted,
    after: Place,
    /// The same for a follower that goes on later: compaction numbers the items of an EVICT anew.
    resume: Place,
    /// The view that the rest is of.
    view: Option<u64>,
    /// Sealed segments with something to tell, the one with the smallest order last.
    closed: Vec<Ordered>,
    found: BinaryHeap<Reverse<Found>>,
    /// How many records the blocks of the segment that is read may have besides those they had.
    room: usize,
    /// How far the segment that takes frames was read.
    tail: (SegmentId, u32),
    /// All that this segment of the log has in front of here was told.
    told: (SegmentId, u32),
    names: HashMap<RunNo, (AgentId, RunId)>,
    /// Deletions that were told: compaction gives them new orders.
    deleted: HashSet<RunNo>,
    traces: HashMap<RunNo, (Trace, Seq)>,
    /// The damage that keeps it from reading on, as it was told.
    stopped: Option<String>,
}

impl Tailing {
    pub(crate) fn new(replica: Arc<Replica>, follow: Follow<'_>, from: LogCursor) -> Result<Self> {
        from.check(replica.uuid())?;
        from.check_promise(&replica)?;
        Ok(Self {
            wanted: Wanted::new(follow)?,
            replica,
            after: from.after,
            resume: from.after,
            view: None,
            closed: Vec::new(),
            found: BinaryHeap::new(),
            room: 0,
            tail: (SegmentId(0), 0),
            told: (SegmentId(0), 0),
            names: HashMap::new(),
            deleted: HashSet::new(),
            traces: HashMap::new(),
            stopped: None,
        })
    }

    /// Where it goes on.
    pub(crate) fn cursor(&self) -> LogCursor {
        LogCursor::new(self.replica.uuid(), self.resume)
    }

    /// The next event that is in the log by now. Damage of one record is told once, and is behind
    /// then. Any other failure leaves the follower where it is; damage is told once then, too, and
    /// until it is gone there is nothing.
    pub(crate) fn next(&mut self) -> Result<Option<LogEvent>> {
        let error = match self.step() {
            Ok(told) => {
                self.stopped = None;
                return told;
            }
            Err(error) => error,
        };
        // What was found and not told is found again.
        self.view = None;
        if error.is_corruption() {
            let said = Some(error.to_string());
            if said == self.stopped {
                return Ok(None);
            }
            self.stopped = said;
        }
        Err(error)
    }

    /// The same: within, what was gone by.
    fn step(&mut self) -> Result<Result<Option<LogEvent>>> {
        // One look: a log that always goes on, with nothing to tell, would keep it here.
        let (mut has_looked, mut attempts) = (false, 0);
        loop {
            if self.view.is_none() {
                attempts += 1;
            }
            if attempts > ATTEMPTS {
                return Err(Error::Overtaken { attempts });
            }
            if self.found.is_empty() && self.closed.is_empty() && !has_looked {
                self.replica.refresh()?;
                has_looked = true;
            }
            self.look()?;
            if self.view.is_none() {
                continue;
            }
            let Some(found) = next_of(&mut self.found) else {
                return Ok(Ok(None));
            };
            let told = match self.tell(&found) {
                Err(Error::Corrupt(damage)) => {
                    if !self.is_damage(&damage)? {
                        // It is somewhere else now, or gone.
                        self.view = None;
                        continue;
                    }
                    Err(Error::Corrupt(damage))
                }
                told => Ok(told?),
            };
            (self.after, self.resume) = (found.place, found.resume());
            attempts = 0;
            if !found.in_output {
                self.told = (found.segment, found.offset);
            }
            if !matches!(told, Ok(None)) {
                return Ok(told);
            }
        }
    }

    /// Whether what did not check is damage, and was not moved.
    fn is_damage(&self, found: &Corruption) -> Result<bool> {
        self.replica.is_damage(found, self.view.unwrap_or_default())
    }

    /// Sees to it that what comes next is found, or forgets the view if the writer changed it.
    fn look(&mut self) -> Result<()> {
        let view = self.replica.number();
        if self.view != Some(view) {
            self.plan(view)?;
        }
        while let Some(Ordered { first, .. }) = self.closed.last() {
            if self.found.peek().is_some_and(|Reverse(found)| found.place.lsn < *first) {
                break;
            }
            let Some(next) = self.closed.pop() else { break };
            let end = next.segment.sealed().map_or(0, |at| at.end);
            let from = if next.segment.id() == self.told.0 { self.told.1 } else { 0 };
            self.read(&next, from, end)?;
        }
        if self.view.is_some() && self.closed.is_empty() && self.found.is_empty() {
            self.read_tail()?;
        }
        Ok(())
    }

    /// Starts again from the segments of a view.
    fn plan(&mut self, view: u64) -> Result<()> {
        self.found.clear();
        self.closed.clear();
        self.closed = sealed_in_order(&*self.replica.answers.open()?)?;
        self.closed.retain(|one| one.last >= self.after.lsn);
        self.closed.sort_by_key(|one| Reverse((one.first, one.segment.id())));
        // What was read and not told is read again, and all of an EVICT: it may have other numbers.
        (self.tail, self.after) = (self.told, self.resume);
        self.view = Some(view);
        Ok(())
    }

    fn read_tail(&mut self) -> Result<()> {
        let (tail, end) = {
            let state = self.replica.answers.open()?;
            let (builder, segment) = (&state.tail.builder, Arc::clone(&state.tail.segment));
            let first = builder.first_lsn().unwrap_or_default();
            (Ordered { first, last: builder.last_lsn(), segment }, state.tail.offset)
        };
        let id = tail.segment.id();
        let from = if self.tail.0 == id { self.tail.1 } else { 0 };
        if end > from {
            self.read(&tail, from, end)?;
        }
        self.tail = (id, end);
        Ok(())
    }

    /// Finds what frames of a segment tell, of those that end at `end` or in front of it.
    fn read(&mut self, ordered: &Ordered, from: u32, end: u32) -> Result<()> {
        let segment = &ordered.segment;
        let from = from.max(crate::format::segments::segment::SEGMENT_HEADER_LEN);
        let len = end.saturating_sub(from) as usize;
        let at = segment.file_offset() + u64::from(from);
        let bytes = segment.disk().read_padded(at, len)?;
        let extent_len = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        let piece = Piece { at: from, bytes: &bytes, extent_len };
        // No segment lists more records than its directory has space for.
        self.room = extent_len / OFFSET_LEN;
        let mut next = from;
        while next < end {
            let InPiece::Frame(lexed) = frame_in_piece(piece, segment.frames(), next) else {
                return self.read_damaged(ordered, next, end);
            };
            next = lexed.end();
            self.note(ordered, &lexed, piece.payload_of(&lexed.header));
        }
        Ok(())
    }

    /// The same of a segment that has something that does not check.
    fn read_damaged(&mut self, ordered: &Ordered, from: u32, end: u32) -> Result<()> {
        let segment = &ordered.segment;
        let damage = Corruption::new(DamagePlace::Frame(segment.position(from)), Damage::Missing);
        if !self.is_damage(&damage)? {
            self.view = None;
            self.found.clear();
            self.closed.clear();
            return Ok(());
        }
        let extent = segment.read_all()?;
        let piece = Piece { at: 0, bytes: &extent, extent_len: extent.len() };
        let mut items = lex(&extent, segment.frames());
        items.retain(|item| item.offset() < end);
        for (offset, last) in ordered.gaps(&items).filter(|(offset, _)| *offset >= from) {
            let place = Place { lsn: last, item: u32::MAX };
            self.push(segment, place, RunNo(0), offset, What::Damaged { seq: None });
        }
        let frames = items.iter().filter_map(Item::frame);
        for lexed in frames.filter(|lexed| lexed.header.position.offset >= from) {
            let FrameHeader { kind, seq, run_no, lsn, position, .. } = lexed.header;
            // The records that need a damaged piece say so, and a damaged block says how many it
            // costs.
            if kind == FrameKind::Piece {
                continue;
            }
            if lexed.payload.is_ok() || kind == FrameKind::Block {
                self.note(ordered, lexed, piece.payload_of(&lexed.header));
            } else {
                let what = What::Damaged { seq: (kind == FrameKind::Record).then_some(seq) };
                self.push(segment, Place { lsn, item: 1 }, run_no, position.offset, what);
            }
        }
        Ok(())
    }

    fn push(&mut self, segment: &Segment, place: Place, run_no: RunNo, offset: u32, what: What) {
        if place > self.after {
            let (segment, in_output) = (segment.id(), segment.is_output());
            self.found.push(Reverse(Found { place, run_no, segment, offset, in_output, what }));
        }
    }

    /// Notes what a frame tells.
    fn note(&mut self, ordered: &Ordered, lexed: &Lexed, payload: &[u8]) {
        let (segment, header) = (&ordered.segment, &lexed.header);
        let (run_no, offset) = (header.run_no, header.position.offset);
        if header.flags & FLAG_DOCUMENT != 0 {
            return;
        }
        if let Some(name) = names_in(header.kind, payload) {
            if self.names.len() >= REMEMBERED {
                self.names.clear();
            }
            self.names.insert(run_no, name);
        }
        // The first thing of an order has the number 1: 0 is in front of it.
        let place = Place { lsn: header.lsn, item: 1 };
        match header.kind {
            FrameKind::Start if header.flags & FLAG_IMPLICIT == 0 => {
                self.push(segment, place, run_no, offset, What::Start);
            }
            FrameKind::Record => {
                let within = header.flags & FLAG_CHUNKS != 0;
                let what = What::Record { seq: header.seq, within };
                self.push(segment, place, run_no, offset, what);
            }
            FrameKind::End => self.push(segment, place, run_no, offset, What::End),
            FrameKind::Evict => {
                let Ok(evictions) = decode_evictions(payload) else {
                    let what = What::Damaged { seq: None };
                    return self.push(segment, place, run_no, offset, what);
                };
                let told = (1..).zip(evictions.iter().filter(|one| one.receipt.is_some()));
                for (item, eviction) in told {
                    let place = Place { lsn: header.lsn, item };
                    let what = What::Eviction { is_last: false };
                    self.push(segment, place, eviction.run_no, offset, what);
                }
            }
            FrameKind::Block => self.note_block(ordered, header, payload),
            _ => {}
        }
    }

    /// A block whose head does not check may have had any order of the segment up to the last one.
    fn note_block(&mut self, ordered: &Ordered, header: &FrameHeader, payload: &[u8]) {
        let (segment, mut raw, mut rows) = (&ordered.segment, Vec::new(), Vec::new());
        let (run_no, offset) = (header.run_no, header.position.offset);
        let head = BlockHead::decode(header, payload);
        let own = head.as_ref().map(|(head, _)| Place { lsn: head.last_lsn, item: 1 });
        // Another frame may have the last order of the segment: its events come first.
        let place = own.unwrap_or(Place { lsn: ordered.last, item: u32::MAX });
        let Some(room) = self.room.checked_sub(header.extra as usize) else {
            let what = What::Damaged { seq: None };
            return self.push(segment, place, run_no, offset, what);
        };
        self.room = room;
        let opened = head.is_ok_and(|(head, compressed)| {
            head.open(header, compressed, &mut raw, &mut rows).is_ok()
        });
        if !opened {
            // Reading the records says why. Their orders are not known but for the last one, which
            // is behind each cursor in front of any of them.
            for rank in 0..header.extra.min(MAX_BLOCK_RECORDS) {
                let seq = Seq(header.seq.0.saturating_add(u64::from(rank)));
                let place = Place { item: place.item.saturating_add(rank), ..place };
                self.push(segment, place, run_no, offset, What::Record { seq, within: true });
            }
            return;
        }
        for (seq, row) in (header.seq.0..).map(Seq).zip(&rows) {
            let place = Place { lsn: row.lsn, item: 1 };
            self.push(segment, place, run_no, offset, What::Record { seq, within: true });
        }
    }

    /// The event of what was found; none if it is of a run that is not followed, or gone.
    fn tell(&mut self, found: &Found) -> Result<Option<LogEvent>> {
        let segment = self.replica.answers.open()?.segment(found.segment);
        let segment = segment.ok_or_else(|| {
            let place = DamagePlace::Directory { segment: found.segment };
            Error::corrupt(place, Damage::Missing)
        })?;
        if matches!(found.what, What::Eviction { .. }) {
            return self.tell_deletion(found, &segment);
        }
        let is_deleted = self.replica.answers.open()?.deleted.contains(found.run_no);
        if is_deleted {
            return Ok(None);
        }
        let Some(name) = self.name_of(found.run_no)? else {
            return self.tell_unnamed(found, &segment);
        };
        if !self.wanted.has(found.run_no, &name) {
            return Ok(None);
        }
        let kind = match &found.what {
            What::Start => {
                let (header, payload) = segment.read_frame(found.offset)?;
                LogEventKind::Started(metadata_in(&header, &payload)?)
            }
            What::End => {
                let (header, payload) = segment.read_frame(found.offset)?;
                LogEventKind::Ended(outcome_in(&header, &payload))
            }
            What::Record { seq, within: false } => {
                let frame = segment.check_frame(found.offset, |_, error| {
                    error.naming(&name.0, &name.1, Some(*seq))
                })?;
                let header = frame.header;
                let payload = frame.into_copy().unwrap_or_default();
                let stored = crate::engine::state::payload::Payload::owned(payload);
                LogEventKind::Record(Record::new(&header, stored))
            }
            What::Record { seq, within: true } => match self.record_within(found.run_no, *seq) {
                Ok(record) => LogEventKind::Record(record),
                Err(Error::Evicted { .. }) => return Ok(None),
                Err(error) => return Err(error),
            },
            What::Damaged { seq } => {
                let place = DamagePlace::Frame(segment.position(found.offset));
                let damage = Corruption::new(place, Damage::Missing);
                return Err(Error::Corrupt(damage.of(&name.0, &name.1).at(*seq)));
            }
            What::Eviction { .. } => return Ok(None),
        };
        let (agent, run) = name;
        let cursor = LogCursor::new(self.replica.uuid(), found.resume());
        Ok(Some(LogEvent { agent, run, number: found.run_no, kind, cursor }))
    }

    /// Damage of which the run is not known is told to who follows everything.
    fn tell_unnamed(&self, found: &Found, segment: &Segment) -> Result<Option<LogEvent>> {
        match (&found.what, &self.wanted) {
            (What::Damaged { .. }, Wanted::Everything) => {
                Err(segment.damaged(found.offset, Damage::Missing))
            }
            _ => Ok(None),
        }
    }

    fn tell_deletion(&mut self, found: &Found, segment: &Segment) -> Result<Option<LogEvent>> {
        let (header, payload) = segment.read_frame(found.offset)?;
        let evictions = decode_evictions(&payload)
            .map_err(|damage| segment.damaged(header.position.offset, damage))?;
        let eviction = evictions.into_iter().find(|one| one.run_no == found.run_no);
        let Some(receipt) = eviction.and_then(|one| one.receipt) else { return Ok(None) };
        let name = (receipt.agent, receipt.run);
        self.traces.remove(&found.run_no);
        self.names.remove(&found.run_no);
        if self.deleted.len() >= REMEMBERED {
            self.deleted.clear();
        }
        if !self.wanted.has(found.run_no, &name) || !self.deleted.insert(found.run_no) {
            return Ok(None);
        }
        let rule = Rule::from_code(receipt.rule).unwrap_or(Rule::Deleted);
        let kind = LogEventKind::Deleted { at: receipt.at, rule };
        let cursor = LogCursor::new(self.replica.uuid(), found.resume());
        let (agent, run) = name;
        Ok(Some(LogEvent { agent, run, number: found.run_no, kind, cursor }))
    }

    fn name_of(&mut self, run_no: RunNo) -> Result<Option<(AgentId, RunId)>> {
        if let Some(name) = self.names.get(&run_no) {
            return Ok(Some(name.clone()));
        }
        let row = self.replica.ask(|answers| answers.row_of(run_no))?;
        let Some(row) = row else { return Ok(None) };
        let name = (row.agent, row.run);
        self.names.insert(run_no, name.clone());
        Ok(Some(name))
    }
}
