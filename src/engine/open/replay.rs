//! The log's part of recovery: which frames of the unsealed segments count.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::open::decide::{Action, Bytes, Case, decide};
use crate::engine::state::scan::{
    Item, Lexed, Missing, Names, directory_in, frames_below, lex_up_to, missing_in, names, replay,
    truncation_marker,
};
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::{RecoveryReport, TornTail};
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::frames::frame::{FLAG_BATCH, FRAME_ALIGN};
use crate::format::map::manifest::{SealedAt, used_len};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{DirectoryBuilder, FrameKind};
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, SegmentId};

/// How an unsealed segment was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) segment: Arc<Segment>,
    pub(crate) builder: DirectoryBuilder,
    /// The frames that count end here.
    pub(crate) end: u32,
    /// A SEAL frame closes it.
    pub(crate) sealed: Option<SealedAt>,
    /// Something is behind the end, so that nothing may be appended to it.
    pub(crate) torn: bool,
    /// What is behind the end and is not zero, piece by piece.
    pub(crate) behind: Vec<Range<u32>>,
    /// A SEAL frame that closes it now goes here, behind all evidence. One that does not count is
    /// none: it took the room for the directory, and within it another one would not be found.
    pub(crate) seal_at: u32,
    /// It has no frames at all.
    pub(crate) unused: bool,
    /// The log ended in a segment in front of it.
    pub(crate) beyond: bool,
}

/// What the unsealed segments give together.
#[derive(Debug, Default)]
pub(crate) struct RecoveredLog {
    pub(crate) segments: Vec<Recovered>,
    /// Everything in front of it was durable.
    pub(crate) floor: LogPosition,
    pub(crate) next_lsn: Lsn,
    pub(crate) next_run_no: RunNo,
}

impl Recovered {
    /// Overwrites what is behind the end with zeros, so that the segment can be gone on with where
    /// there is no space for another. From the last piece to the first: a crash in between never
    /// leaves a valid frame behind one that is gone. What lies below the floor stays as it is.
    pub(crate) fn clear(&mut self, disk: &Disk, floor: LogPosition) -> Result<bool> {
        if self.sealed.is_some() || self.segment.position(self.end) < floor {
            return Ok(false);
        }
        for piece in self.behind.drain(..).rev() {
            disk.zero(self.segment.file_offset() + u64::from(piece.start), piece.len())?;
        }
        (self.torn, self.unused) = (false, self.end == SEGMENT_HEADER_LEN);
        Ok(true)
    }

    /// Writes again what counts of the segment and is not in front of the floor (O19): its header,
    /// its frames, its SEAL frame.
    pub(crate) fn write_again(&self, disk: &Disk, floor: LogPosition) -> Result<()> {
        let segment = &self.segment;
        let start = if floor > segment.position(0) { floor.offset } else { 0 };
        if floor.segment > segment.id() || !segment.has_header()? {
            return Ok(());
        }
        let seal = match self.sealed {
            Some(SealedAt { seal, .. }) => {
                let len = u32::try_from(segment.read_header(seal)?.frame_len());
                seal..seal.saturating_add(len.unwrap_or(u32::MAX))
            }
            None => 0..0,
        };
        for range in [start..self.end, seal].into_iter().filter(|range| !range.is_empty()) {
            let at = segment.file_offset();
            disk.write_again(at + u64::from(range.start)..at + u64::from(range.end))?;
        }
        Ok(())
    }
}

/// One segment, cut into pieces.
struct Cut {
    segment: Arc<Segment>,
    items: Vec<Item>,
}

/// Reads the unsealed segments, in the order of the log.
pub(crate) fn recover_log(
    unsealed: &BTreeMap<SegmentId, Arc<Segment>>,
    floor: LogPosition,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
    report: &mut RecoveryReport,
) -> Result<RecoveredLog> {
    let mut log = RecoveredLog { floor, ..RecoveredLog::default() };
    let mut cuts = Vec::new();
    for segment in unsealed.values() {
        let (extent, end) = (segment.read_all()?, segment.data_end());
        let items = lex_up_to(&extent, segment.frames(), end);
        for Lexed { header, .. } in items.iter().filter_map(Item::frame) {
            log.floor = log.floor.max(header.durable);
            // Numbers of frames that do not count are not used again either.
            log.next_lsn = log.next_lsn.max(Lsn(header.lsn.0.saturating_add(1)));
            log.next_run_no = log.next_run_no.max(RunNo(header.run_no.0.saturating_add(1)));
        }
        cuts.push(Cut { segment: Arc::clone(segment), items });
    }
    report.same_boot &= is_left_by_a_kill(&cuts, log.floor);
    let mut ended = false;
    for cut in &cuts {
        let recovered = recover_segment(cut, log.floor, &mut ended, name_of, report)?;
        log.segments.push(recovered);
    }
    Ok(log)
}

fn is_seal(item: &Item) -> bool {
    item.frame().is_some_and(|lexed| lexed.header.kind == FrameKind::Seal)
}

/// Whether a kill can have left what there is: the last frame torn, one hole that is damage, and a
/// SEAL frame in each segment but the last. Else the page cache did not survive, whatever the boot
/// id says (R4).
fn is_left_by_a_kill(cuts: &[Cut], floor: LogPosition) -> bool {
    let Some(last) = cuts.iter().rposition(|cut| cut.items.iter().any(Item::is_valid)) else {
        return true;
    };
    let mut holes = 0;
    for (number, cut) in cuts.iter().enumerate().take(last + 1) {
        if truncation_marker(&cut.items).is_some() || cut.segment.id() < floor.segment {
            continue;
        }
        let closed = cut.items.iter().position(is_seal);
        if closed.is_none() && number < last {
            return false;
        }
        // Behind a SEAL frame that a kill left there are frames only if all of it was written.
        let sealed = closed.map(|seal| seal + usize::from(number < last));
        let end = sealed.or_else(|| cut.items.iter().rposition(Item::is_valid)).unwrap_or(0);
        let above = |item: &&Item| cut.segment.position(item.offset()) >= floor;
        let log = cut.items.get(..end).unwrap_or_default();
        holes += log.iter().filter(above).filter(|item| !item.is_valid()).count();
    }
    holes <= 1
}

/// Walks one segment.
struct Walk<'a> {
    cut: &'a Cut,
    extent: &'a [u8],
    floor: LogPosition,
    report: &'a mut RecoveryReport,
    frames: Vec<Lexed>,
    end: u32,
    sealed: Option<SealedAt>,
    torn: bool,
    orphans: u64,
    /// What is missing in gaps, and the names of runs; once a gap was met.
    missing: Option<(Missing, Names)>,
}

fn recover_segment(
    cut: &Cut,
    floor: LogPosition,
    ended: &mut bool,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
    report: &mut RecoveryReport,
) -> Result<Recovered> {
    let extent = cut.segment.read_all()?;
    let beyond = *ended;
    let mut walk = Walk {
        cut,
        extent: &extent,
        floor,
        report,
        frames: Vec::new(),
        end: SEGMENT_HEADER_LEN,
        sealed: None,
        torn: false,
        orphans: 0,
        missing: None,
    };
    match truncation_marker(&cut.items).filter(|_| !*ended) {
        Some(seal) => {
            walk.end = seal.header.extra;
            walk.frames = frames_below(&cut.items, walk.end);
            walk.seal(seal);
        }
        None => walk.run(ended),
    }
    if walk.orphans > 0 || (walk.torn && walk.end > SEGMENT_HEADER_LEN) {
        let at = cut.segment.position(walk.end);
        walk.report.torn.push(TornTail { at, orphans: walk.orphans });
    }
    // In a sealed segment all batches are whole: what was open when it was closed was left out.
    let whole = match floor.segment.cmp(&cut.segment.id()) {
        _ if walk.sealed.is_some() => u32::MAX,
        core::cmp::Ordering::Less => 0,
        core::cmp::Ordering::Equal => floor.offset,
        core::cmp::Ordering::Greater => u32::MAX,
    };
    let open_batch = walk.drop_open_batch(whole);
    let replayed = replay(&extent, &walk.frames, whole, name_of);
    walk.report.damaged.extend(replayed.damaged);
    walk.report.frames += walk.frames.len() as u64;
    walk.report.scanned_segments += 1;
    // A frame of which the end was not stored reaches as far as its header says.
    let written = match cut.items.last() {
        Some(Item::Gap { from, blank: false, .. }) => {
            let data = extent.get(..cut.segment.data_end()).unwrap_or(&extent);
            let written = used_len(data).next_multiple_of(FRAME_ALIGN);
            u32::try_from(written).unwrap_or(u32::MAX).max(*from)
        }
        last => last.map_or(SEGMENT_HEADER_LEN, Item::offset),
    };
    Ok(Recovered {
        segment: Arc::clone(&cut.segment),
        builder: replayed.builder,
        behind: behind(&cut.items, walk.end, written),
        seal_at: cut.items.iter().find(|item| is_seal(item)).map_or(written, Item::offset),
        end: walk.end,
        sealed: walk.sealed,
        torn: walk.torn || walk.orphans > 0 || open_batch,
        unused: matches!(cut.items.as_slice(), [Item::Gap { to: None, blank: true, .. }]),
        beyond,
    })
}

/// What is behind the end and is not zero, piece by piece.
fn behind(items: &[Item], end: u32, written: u32) -> Vec<Range<u32>> {
    let starts = items.iter().map(Item::offset);
    let ends = starts.clone().skip(1).chain([written]);
    let pieces = items.iter().zip(starts.zip(ends)).filter(|(item, (start, _))| {
        *start >= end && !matches!(item, Item::Gap { blank: true, .. })
    });
    pieces.map(|(_, (start, end))| start..end).collect()
}

impl Walk<'_> {
    fn run(&mut self, ended: &mut bool) {
        let (items, same_boot) = (&self.cut.items, self.report.same_boot);
        let last_valid = items.iter().rposition(Item::is_valid);
        for (number, item) in items.iter().enumerate() {
            let more = last_valid.is_some_and(|last| last > number);
            let bytes = match item {
                Item::Frame(lexed) if lexed.payload.is_ok() => Bytes::Valid,
                Item::Frame(_) => Bytes::BadPayload,
                Item::Gap { .. } => Bytes::BadHeader,
            };
            let durable = self.cut.segment.position(item.offset()) < self.floor;
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
                    return;
                }
                Action::EndLog => {
                    self.end_at(item, durable);
                    *ended = true;
                }
                Action::Orphan => self.orphans += 1,
                // Nothing may be written over it: it would look like a torn tail behind that.
                Action::Ignore => self.torn |= !matches!(item, Item::Gap { blank: true, .. }),
            }
        }
    }

    /// Takes a frame; answers whether it is a SEAL frame, which closes the segment.
    fn accept(&mut self, item: &Item) -> bool {
        let Some(lexed) = item.frame() else { return false };
        if is_seal(item) {
            self.end = item.offset();
            if directory_in(self.extent, lexed).is_some() || lexed.payload.is_err() {
                self.seal(lexed);
            } else {
                self.torn = true;
            }
            return true;
        }
        self.frames.push(*lexed);
        self.end = lexed.end();
        false
    }

    fn seal(&mut self, lexed: &Lexed) {
        let header = &lexed.header;
        self.sealed = Some(SealedAt {
            end: self.end,
            seal: header.position.offset,
            digest: header.payload_crc,
            has_evictions: self.frames.iter().any(|lexed| lexed.header.kind == FrameKind::Evict),
        });
    }

    /// Ends the segment in front of a batch whose COMMIT never came; answers whether there was one.
    /// What is in front of `whole` was written whole.
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

    /// Bytes that are no frame, with frames behind them that count.
    fn skip(&mut self, item: &Item, durable: bool) {
        let damage = if durable { Damage::Missing } else { Damage::Truncated };
        let place = Place::Frame(self.cut.segment.position(item.offset()));
        let mut corruption = Corruption::new(place, damage);
        let (items, extent) = (&self.cut.items, self.extent);
        let (missing, names) = self.missing.get_or_insert_with(|| {
            (missing_in(items.iter()), names(extent, &frames_below(items, u32::MAX)))
        });
        if let Some((run_no, seq)) = missing.get(&item.offset()) {
            corruption.run = names.get(run_no).map(|(_, run)| run.clone());
            corruption.seq = Some(*seq);
        }
        self.report.damaged.push(corruption);
    }

    /// The frames that count end at this item.
    fn end_at(&mut self, item: &Item, durable: bool) {
        self.end = self.end.max(item.offset());
        self.torn = !matches!(item, Item::Gap { to: None, blank: true, .. });
        if durable {
            let place = Place::Frame(self.cut.segment.position(item.offset()));
            self.report.damaged.push(Corruption::new(place, Damage::Missing));
        }
    }
}
