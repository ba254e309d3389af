//! Replaying the log: which frames of the unsealed segments count.

use core::cmp::Ordering;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::open::Floor;
use crate::engine::open::cut::{Cut, is_seal};
use crate::engine::open::decide::{Action, Bytes, Case, decide};
use crate::engine::open::page_cache::is_left_by_a_kill;
use crate::engine::state::scan::{
    Item, Lexed, Missing, Names, directory_in, frames_below, is_of, lex_up_to, missing_in, names,
    replay, truncation_marker, whole_up_to,
};
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::{RecoveryReport, TornTail};
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::codec::len_u32;
use crate::format::frames::frame::{FLAG_BATCH, FRAME_ALIGN, frame_len};
use crate::format::map::manifest::SealedAt;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{DirectoryBuilder, FrameKind};
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, SegmentId};

/// An unsealed segment as recovery found it.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) segment: Arc<Segment>,
    pub(crate) builder: DirectoryBuilder,
    /// The end of the frames that count.
    pub(crate) end: u32,
    /// Its SEAL frame, if it has one.
    pub(crate) sealed: Option<SealedAt>,
    /// Whether something is behind the end, so that nothing may be appended to the segment.
    pub(crate) torn: bool,
    /// The ranges behind the end, as far as anything was written.
    pub(crate) behind: Vec<Range<u32>>,
    /// Where a SEAL frame would close the segment now, behind all evidence. A SEAL frame that does
    /// not count is not evidence: it took the room for the directory, and another one within it
    /// would not be found.
    pub(crate) seal_at: u32,
    /// Whether it has no frames at all.
    pub(crate) unused: bool,
    /// Whether the log ended in a segment before it.
    pub(crate) beyond: bool,
}

/// The result for all unsealed segments.
#[derive(Debug, Default)]
pub(crate) struct RecoveredLog {
    pub(crate) segments: Vec<Recovered>,
    /// Everything in front of it was durable.
    pub(crate) floor: LogPosition,
    pub(crate) next_lsn: Lsn,
    pub(crate) next_run_no: RunNo,
}

impl Recovered {
    /// Overwrites everything behind the end with zeros, so that the log can continue in the segment
    /// if there is no space for another. From the last range to the first: so a crash never leaves
    /// a valid frame behind one that is gone. Nothing below the floor is changed: if the end is
    /// damaged below it, the log continues at the floor.
    ///
    /// Until the zeros are durable, the last word is not zero: after a sync that failed they may be
    /// in memory alone, and the next opening must write them again (O19).
    pub(crate) fn clear(&mut self, disk: &Disk, floor: LogPosition) -> Result<bool> {
        let has_room = self.has_room_at(floor);
        if self.sealed.is_some() || (!has_room && self.segment.position(self.end) < floor) {
            return Ok(false);
        }
        let kept = if has_room { floor.offset } else { 0 };
        let at = |offset: u32| self.segment.file_offset() + u64::from(offset);
        if let Some(last) = self.behind.last().map(|piece| piece.end).filter(|end| *end > kept) {
            let trace = [0xff; FRAME_ALIGN];
            let word = last - len_u32(trace.len());
            disk.write(at(word), &trace)?;
            for piece in self.behind.drain(..).rev().filter(|piece| piece.end > kept) {
                let (start, end) = (piece.start.max(kept), piece.end.min(word));
                disk.zero(at(start), end.saturating_sub(start) as usize)?;
            }
            disk.sync()?;
            disk.zero(at(word), trace.len())?;
        }
        if kept > self.end {
            self.end = kept;
        }
        (self.torn, self.unused) = (false, self.end == SEGMENT_HEADER_LEN);
        Ok(true)
    }

    /// Whether the segment has room at the floor. A frame may lie about it.
    fn has_room_at(&self, floor: LogPosition) -> bool {
        let end = floor.offset as usize + frame_len(self.builder.encoded_len());
        floor.segment == self.segment.id()
            && (floor.offset as usize).is_multiple_of(FRAME_ALIGN)
            && end <= self.segment.extent_size().bytes_u32() as usize
    }

    /// Writes the parts of the segment again that count and are not in front of the floor (O19). So
    /// are its header and its SEAL frame wherever they are: an earlier recovery may have written
    /// them.
    pub(crate) fn write_again(&self, disk: &Disk, floor: LogPosition) -> Result<()> {
        let segment = &self.segment;
        let start = match floor.segment.cmp(&segment.id()) {
            Ordering::Less => SEGMENT_HEADER_LEN,
            Ordering::Equal => floor.offset.max(SEGMENT_HEADER_LEN),
            Ordering::Greater => self.end,
        };
        let seal = match self.sealed {
            Some(SealedAt { seal, .. }) => {
                let len = u32::try_from(segment.read_header(seal)?.frame_len());
                seal..seal.saturating_add(len.unwrap_or(u32::MAX))
            }
            None => 0..0,
        };
        let ranges = [0..SEGMENT_HEADER_LEN, start..self.end, seal];
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            let at = segment.file_offset();
            disk.write_again(at + u64::from(range.start)..at + u64::from(range.end))?;
        }
        Ok(())
    }
}

/// Reads the unsealed segments, in the order of the log. With `durable_only` what is not in front
/// of the floor is left out.
pub(crate) fn recover_log(
    unsealed: &BTreeMap<SegmentId, Arc<Segment>>,
    (floor, durable_only): (Floor, bool),
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
    report: &mut RecoveryReport,
) -> Result<RecoveredLog> {
    let mut log = RecoveredLog { floor: floor.at, ..RecoveredLog::default() };
    let mut cuts = Vec::new();
    // From the last to the first: so a writer that goes on meanwhile has written all of a segment,
    // as it is read, of which a later one has frames.
    for segment in unsealed.values().rev() {
        let (extent, end) = (segment.read_all()?, segment.data_end());
        let items = lex_up_to(&extent, segment.frames(), end);
        for Lexed { header, .. } in items.iter().filter_map(Item::frame) {
            if floor.by_frames {
                log.floor = log.floor.max(header.durable);
            }
            // Numbers of frames that do not count are not reused either.
            log.next_lsn = log.next_lsn.max(Lsn(header.lsn.0.saturating_add(1)));
            log.next_run_no = log.next_run_no.max(RunNo(header.run_no.0.saturating_add(1)));
        }
        cuts.push(Cut { segment, extent, items, second: None });
    }
    cuts.reverse();
    for cut in &mut cuts {
        cut.split_at(log.floor);
        if durable_only {
            cut.end_at(log.floor);
        }
    }
    report.same_boot &= is_left_by_a_kill(&cuts, log.floor);
    let mut ended = false;
    let mut unsealed: Option<Names> = None;
    let mut name_of = |run_no: RunNo| {
        let sealed = name_of(run_no);
        let names = || unsealed.get_or_insert_with(|| names_in_all(&cuts)).get(&run_no).cloned();
        sealed.or_else(names)
    };
    let last_valid = cuts.iter().rposition(|cut| cut.items.iter().any(Item::is_valid));
    for (number, cut) in cuts.iter().enumerate() {
        let followed = last_valid.is_some_and(|last| number < last);
        let at = Floor { at: log.floor, ..floor };
        let recovered = recover_segment(cut, (at, followed), &mut ended, &mut name_of, report);
        let listed = recovered.sealed.map_or(RunNo(0), |at| at.next_run_no);
        log.next_run_no = log.next_run_no.max(listed);
        log.segments.push(recovered);
    }
    Ok(log)
}

/// What all unsealed segments call runs. What comes first counts.
fn names_in_all(cuts: &[Cut<'_>]) -> Names {
    let mut all = Names::new();
    for cut in cuts {
        let frames = frames_below(&cut.items, u32::MAX);
        for (run_no, name) in names(&cut.extent, &frames) {
            all.entry(run_no).or_insert(name);
        }
        let seals = frames.iter().filter(|lexed| lexed.header.kind == FrameKind::Seal);
        for directory in seals.filter_map(|seal| directory_in(&cut.extent, seal)) {
            let listed = (0..directory.run_count()).filter_map(|slot| directory.run(slot).ok());
            for entry in listed {
                all.entry(entry.run_no).or_insert((entry.agent, entry.run));
            }
        }
    }
    all
}

/// Walks one segment.
struct Walk<'a> {
    cut: &'a Cut<'a>,
    extent: &'a [u8],
    floor: LogPosition,
    /// See [`Floor`].
    knows_markers: bool,
    /// Whether a later segment has frames.
    followed: bool,
    report: &'a mut RecoveryReport,
    frames: Vec<Lexed>,
    end: u32,
    sealed: Option<SealedAt>,
    /// What the directory of the SEAL frame says, if it is whole.
    directory: Option<DirectoryBuilder>,
    /// Whether the payload of the SEAL frame is damaged.
    lost_directory: bool,
    torn: bool,
    orphans: u64,
    /// The missing records in gaps, and the names of runs; set at the first gap.
    missing: Option<(Missing, Names)>,
}

fn recover_segment(
    cut: &Cut<'_>,
    (Floor { at: floor, knows_markers, .. }, followed): (Floor, bool),
    ended: &mut bool,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
    report: &mut RecoveryReport,
) -> Recovered {
    let extent = &*cut.extent;
    let beyond = *ended;
    let mut walk = Walk {
        cut,
        extent,
        floor,
        knows_markers,
        followed,
        report,
        frames: Vec::new(),
        end: SEGMENT_HEADER_LEN,
        sealed: None,
        directory: None,
        lost_directory: false,
        torn: false,
        orphans: 0,
        missing: None,
    };
    walk.run_to_end(ended);
    if walk.orphans > 0 || (walk.torn && walk.end > SEGMENT_HEADER_LEN) {
        let at = cut.segment.position(walk.end);
        walk.report.torn.push(TornTail { at, orphans: walk.orphans });
    }
    // In a sealed segment all batches are whole: recovery left out an open one when it closed it.
    let last = whole_up_to(&walk.frames);
    let whole = match floor.segment.cmp(&cut.segment.id()) {
        _ if walk.sealed.is_some() => u32::MAX,
        Ordering::Less => last,
        Ordering::Equal => floor.offset.max(last),
        Ordering::Greater => u32::MAX,
    };
    let open_batch = walk.drop_open_batch(whole);
    let replayed = replay(extent, &walk.frames, whole, name_of);
    walk.report.damaged.extend(replayed.damaged);
    walk.report.frames += walk.frames.len() as u64;
    walk.report.scanned_segments += 1;
    let (written, seal) = (cut.written(), cut.items.iter().find(|item| is_seal(item)));
    let mut recovered = Recovered {
        segment: Arc::clone(cut.segment),
        // What the directory says is what any later process goes by.
        builder: walk.directory.unwrap_or(replayed.builder),
        behind: cut.behind(walk.end),
        seal_at: seal.map_or(written, Item::offset),
        end: walk.end,
        sealed: walk.sealed,
        torn: walk.torn || walk.lost_directory || walk.orphans > 0 || open_batch,
        unused: matches!(cut.items.as_slice(), [Item::Gap { to: None, blank: true, .. }]),
        beyond,
    };
    // New frames at its end would count as durable before they are.
    if recovered.sealed.is_none() && recovered.end < floor.offset && recovered.has_room_at(floor) {
        (recovered.torn, recovered.unused) = (true, false);
        // A SEAL frame behind the floor tells each later opening that something is missing.
        if seal.is_none() {
            recovered.seal_at = recovered.seal_at.max(floor.offset);
        }
    }
    recovered
}

impl Walk<'_> {
    /// Walks to the end that a truncation marker states; without one as far as frames count.
    fn run_to_end(&mut self, ended: &mut bool) {
        let items = &self.cut.items;
        match truncation_marker(items).filter(|_| !*ended) {
            Some(seal) => {
                self.end = seal.header.extra;
                self.frames = frames_below(items, self.end);
                if seal.payload.is_err() {
                    // A crash tore it, or it is damaged: another one replaces it.
                    self.torn = true;
                } else if !self.seal(seal) {
                    (self.end, self.frames) = (SEGMENT_HEADER_LEN, Vec::new());
                    self.run(ended);
                }
                self.tell_losses_around(seal);
            }
            None => self.run(ended),
        }
    }

    fn run(&mut self, ended: &mut bool) {
        let (cut, floor, same_boot) = (self.cut, self.floor, self.report.same_boot);
        let items = &cut.items;
        let is_durable = |item: &Item| cut.segment.position(item.offset()) < floor;
        let last_valid = items.iter().rposition(Item::is_valid);
        // Below the floor a frame keeps its place, also if its record is damaged.
        let last_kept = items.iter().rposition(|it| it.frame().is_some() && is_durable(it));
        for (number, item) in items.iter().enumerate() {
            let durable = is_durable(item);
            let last = if durable { last_valid.max(last_kept) } else { last_valid };
            let more = last.is_some_and(|last| last > number);
            let bytes = match item {
                Item::Frame(lexed) if lexed.payload.is_ok() => Bytes::Valid,
                Item::Frame(_) => Bytes::BadPayload,
                Item::Gap { .. } => Bytes::BadHeader,
            };
            let case = Case { bytes, durable, same_boot, ended: *ended, more };
            match decide(case) {
                Action::Accept | Action::Damaged => {
                    if self.accept(item) {
                        return;
                    }
                }
                Action::Skip => self.skip(item, durable),
                Action::EndSegment => {
                    self.end_at(item, durable);
                    self.orphans = 0;
                    // What was written behind the floor is lost too, with the SEAL frame. What is
                    // in later segments was written behind that.
                    *ended |= durable && floor.segment == cut.segment.id() && !same_boot;
                    return;
                }
                Action::EndLog => {
                    self.end_at(item, durable);
                    *ended = true;
                }
                Action::Orphan => self.orphans += 1,
                // Nothing may be appended before it: it would look like a torn tail behind that.
                Action::Ignore => self.torn |= !matches!(item, Item::Gap { blank: true, .. }),
            }
        }
    }

    /// Takes a frame; returns whether it is a SEAL frame, which closes the segment.
    fn accept(&mut self, item: &Item) -> bool {
        let Some(lexed) = item.frame() else { return false };
        if is_seal(item) {
            self.end = item.offset();
            if let Err(damage) = lexed.payload {
                let place = Place::Directory { segment: self.cut.segment.id() };
                self.report.damaged.push(Corruption::new(place, damage));
                self.lost_directory = true;
            } else {
                self.torn |= !self.seal(lexed);
            }
            return true;
        }
        self.frames.push(*lexed);
        self.end = lexed.end();
        false
    }

    /// Takes a whole SEAL frame, unless its directory is not one of this segment.
    fn seal(&mut self, lexed: &Lexed) -> bool {
        let header = &lexed.header;
        let directory = directory_in(self.extent, lexed);
        let Some(directory) = directory else { return false };
        if directory.check().is_ok()
            && !is_of(&directory, self.extent, &self.frames).unwrap_or(true)
        {
            return false;
        }
        // A frame that is listed and lost counts for both.
        let mut kinds = self.frames.iter().map(|lexed| lexed.header.kind);
        let has_evictions =
            directory.eviction_count() > 0 || kinds.any(|kind| kind == FrameKind::Evict);
        let at = SealedAt {
            end: self.end,
            seal: header.position.offset,
            digest: header.payload_crc,
            has_evictions,
            next_run_no: directory.next_run_no(),
        };
        if directory.check().is_ok() {
            self.directory = DirectoryBuilder::of(&directory).ok();
        }
        self.sealed = Some(at);
        true
    }

    /// Ends the segment before a batch without a COMMIT; returns whether there was one. Batches in
    /// front of `whole` were written completely.
    fn drop_open_batch(&mut self, whole: u32) -> bool {
        let end = self.end;
        let is_open = |lexed: &mut Lexed| {
            lexed.header.flags & FLAG_BATCH != 0 && lexed.header.position.offset >= whole
        };
        while let Some(last) = self.frames.pop_if(is_open) {
            self.end = last.header.position.offset;
        }
        self.end < end
    }

    /// Reports what was skipped in front of the end that a truncation marker states, and what is
    /// lost behind it: the opening that wrote the marker may have been killed before it could
    /// report them. Otherwise nothing follows, or the manifest knows the marker, unless that was
    /// lost.
    fn tell_losses_around(&mut self, marker: &Lexed) {
        let (cut, end) = (self.cut, marker.header.extra);
        if self.end != end {
            return;
        }
        let skipped = cut.losses().take_while(|item| item.offset() < end);
        for gap in skipped.filter(|item| item.frame().is_none()) {
            self.skip(gap, cut.segment.position(gap.offset()) < self.floor);
        }
        let (is_known, is_here) = (self.knows_markers, self.floor.segment == cut.segment.id());
        let is_durable = cut.segment.position(end) < self.floor && (is_here || is_known);
        if is_durable || (is_known && self.followed && self.report.same_boot) {
            let damage = if is_durable { Damage::Missing } else { Damage::Truncated };
            let is_lost = |item: &&Item| item.offset() >= end && !item.is_valid();
            self.tell_lost_end(cut.losses().find(is_lost).map_or(end, Item::offset), damage);
        }
    }

    fn tell_lost_end(&mut self, end: u32, damage: Damage) {
        let place = Place::Frame(self.cut.segment.position(end));
        self.report.damaged.push(Corruption::new(place, damage));
    }

    /// Reports bytes that are not a frame and are followed by frames that count. Each opening tells
    /// of the same losses, wherever the floor is.
    fn skip(&mut self, item: &Item, durable: bool) {
        if self.cut.second == Some(item.offset()) {
            return;
        }
        let damage = if durable { Damage::Missing } else { Damage::Truncated };
        let place = Place::Frame(self.cut.segment.position(item.offset()));
        let (cut, extent) = (self.cut, self.extent);
        let (missing, names) = self.missing.get_or_insert_with(|| {
            (missing_in(cut.losses()), names(extent, &frames_below(&cut.items, u32::MAX)))
        });
        let (name, seq) = match missing.get(&item.offset()) {
            Some((run_no, seq)) => (names.get(run_no), Some(*seq)),
            None => (None, None),
        };
        self.report.damaged.push(Corruption::new(place, damage).of_named(name).at(seq));
    }

    /// Ends the frames that count at this item.
    fn end_at(&mut self, item: &Item, durable: bool) {
        self.end = self.end.max(item.offset());
        self.torn = !matches!(item, Item::Gap { to: None, blank: true, .. });
        // What a kill leaves in front of a later segment is whole.
        if durable || (self.followed && self.report.same_boot) {
            let damage = if durable { Damage::Missing } else { Damage::Truncated };
            self.tell_lost_end(item.offset(), damage);
        }
    }
}
