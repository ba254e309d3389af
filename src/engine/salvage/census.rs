//! What the segments have, before anything is read for good: which runs there are and were, how
//! they are called, how many frames each has, what was deleted, and what is damaged.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::engine::salvage::around::Around;
use crate::engine::salvage::locate::{Found, Located};
use crate::engine::state::scan::{
    Item, Lexed, directory_in, each_counted, frames_below, lex, names, payload_of,
    truncation_marker, whole_up_to,
};
use crate::error::Result;
use crate::format::codec::{Decoded, len_u32};
use crate::format::frames::block::{MAX_BLOCK_RECORDS, seq_in};
use crate::format::frames::eviction::evicted_runs;
use crate::format::frames::frame::{
    Chunks, FLAG_BATCH, FLAG_CHUNKS, FLAG_DOCUMENT, FRAME_HEADER_LEN, decode_ids,
};
use crate::format::map::manifest::used_len;
use crate::format::segments::segment::Purpose;
use crate::format::{Directory, FrameHeader, FrameKind};
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, RunStatus, Seq, Timestamp};

/// What is known of a run without its records.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) name: Option<(AgentId, RunId)>,
    pub(crate) is_document: bool,
    /// A segment that counts has a frame of it, or lists it.
    pub(crate) is_live: bool,
    /// A segment has a record of it, or lists one.
    pub(crate) has_record: bool,
    /// How many records and chunks of it are in the file at most, copies included.
    pub(crate) frames: u64,
    /// One above the last record that anything in the file tells of.
    pub(crate) next_seq: Seq,
    pub(crate) listed: Listed,
}

/// What directories say of a run.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) created: Option<Timestamp>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) end: Option<(Lsn, RunStatus, Timestamp)>,
    pub(crate) hold: Option<(Lsn, bool)>,
}

/// The sum of all segments.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) runs: BTreeMap<RunNo, Known>,
    pub(crate) evicted: HashSet<RunNo>,
    /// Everything of the log in front of this was durable.
    pub(crate) floor: LogPosition,
    /// For each segment, the smallest and the largest number of a run in it.
    pub(crate) spans: Vec<Option<(RunNo, RunNo)>>,
    /// The segments with evictions.
    pub(crate) evictions_in: Vec<usize>,
    /// Places in the file, and their lengths, where frames were and can no longer be read.
    gaps: Vec<(u64, u64)>,
    /// Where the frames of segments that count are in the file.
    logs: Vec<Range<u64>>,
    /// Evictions that cannot be read.
    pub(crate) lost_evictions: u64,
    /// Frames of batches that were not written to their end.
    pub(crate) uncommitted: u64,
    /// Their records, by run.
    pub(crate) unfinished: BTreeMap<RunNo, Unfinished>,
}

/// Records of a run in batches that were not written to their end.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// The ids, if a frame of the same batch tells them.
    name: Option<(AgentId, RunId)>,
    pub(crate) is_document: bool,
    pub(crate) first: Seq,
    pub(crate) count: u64,
}

/// The frames of a segment that count.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    pub(crate) frames: Vec<Lexed>,
    items: Vec<Item>,
    /// Where the log of the segment ends.
    end: u32,
    /// There were frames up to here at least, if the log may end in the segment.
    durable: u32,
    /// Frames of batches that were not written to their end.
    uncommitted: Vec<Lexed>,
}

impl Contents {
    /// Reads a segment. Everything in front of `floor` was durable, and so was what the frames of
    /// the segment say.
    pub(crate) fn read(located: &Located, found: &Found, floor: &mut LogPosition) -> Result<Self> {
        let len = usize::try_from(located.extent_size.bytes()).unwrap_or(usize::MAX);
        let data = located.disk.data_end(found.at, len as u64);
        let bytes = located.disk.read_data(found.at, len, data)?;
        let items = lex(&bytes, &found.check);
        let marker = truncation_marker(&items).map(|lexed| lexed.header.extra);
        let end = found.end.or(marker).unwrap_or(u32::MAX);
        let all = frames_below(&items, end);
        let is_sealed =
            items.iter().filter_map(Item::frame).any(|lexed| lexed.header.kind == FrameKind::Seal);
        let of_log = found.purpose == Purpose::Log;
        if of_log {
            let told = all.iter().map(|lexed| lexed.header.durable).max();
            *floor = told.unwrap_or_default().max(*floor);
        }
        let id = found.check.segment();
        let last = whole_up_to(&all);
        let whole = match floor.segment {
            _ if is_sealed || !of_log || found.end.is_some() => u32::MAX,
            segment if segment > id => u32::MAX,
            segment if segment == id => floor.offset.max(last),
            _ => last,
        };
        let is_open = of_log && !is_sealed && found.end.is_none() && marker.is_none();
        let behind = items.last().map_or(0, Item::offset);
        let durable = match floor.segment {
            segment if is_open && segment == id => floor.offset,
            // There was a SEAL frame.
            segment if is_open && segment > id => behind.saturating_add(len_u32(FRAME_HEADER_LEN)),
            _ => 0,
        };
        let durable = durable.min(len_u32(bytes.len()));
        let sure = match floor.segment {
            _ if !of_log || found.end.is_some() || marker.is_some() => u32::MAX,
            segment if segment > id => u32::MAX,
            segment if segment == id => floor.offset,
            _ => 0,
        };
        let mut frames = Vec::with_capacity(all.len());
        each_counted(&all, whole, &mut |lexed| frames.push(*lexed));
        leave_torn(&bytes, &mut frames, sure);
        let mut counted = frames.iter().map(|lexed| lexed.header.position).peekable();
        let is_left_out = |lexed: &Lexed| counted.next_if_eq(&lexed.header.position).is_none();
        let uncommitted = all.into_iter().filter(is_left_out).collect();
        Ok(Self { bytes, frames, items, end, durable, uncommitted })
    }

    /// The directory, if it is whole.
    fn directory(&self) -> Option<Directory<'_>> {
        let seals = || self.items.iter().filter_map(Item::frame);
        let seal = truncation_marker(&self.items)
            .or_else(|| seals().rfind(|lexed| lexed.header.kind == FrameKind::Seal))?;
        let directory = directory_in(&self.bytes, seal)?;
        directory.check().ok().map(|()| directory)
    }

    /// Where the log of the segment has bytes that are no frames; offsets within the segment.
    fn gaps(&self, is_sealed: bool) -> impl Iterator<Item = (u32, u32)> + '_ {
        let used = u32::try_from(used_len(&self.bytes)).unwrap_or(u32::MAX);
        self.items.iter().filter_map(move |item| {
            let Item::Gap { from, to, .. } = *item else { return None };
            // Zeros behind the last frame were never written, unless the log went on there.
            let last = if is_sealed { self.end } else { used.max(self.durable) };
            let to = to.unwrap_or(last).min(self.end);
            // In front of `last` something was written.
            let was_written = to > from;
            was_written.then_some((from, to))
        })
    }
}

/// Leaves out what deletes in batches that lack a frame, from `sure` on: a loss of power may have
/// torn them, and then what they replace counts.
fn leave_torn(bytes: &[u8], frames: &mut Vec<Lexed>, sure: u32) {
    let is_counted = |lexed: &&Lexed| {
        lexed.header.kind == FrameKind::Commit && lexed.header.position.offset >= sure
    };
    if !frames.iter().any(|lexed| is_counted(&lexed)) {
        return;
    }
    let chunks = Chunked::of(frames);
    let (mut first, mut torn) = (0, HashSet::new());
    for (at, lexed) in frames.iter().enumerate() {
        let header = &lexed.header;
        if header.flags & FLAG_BATCH != 0 {
            continue;
        }
        if is_counted(&lexed) {
            let count = header.extra as usize;
            let members = frames.get(first.max(at.saturating_sub(count))..at).unwrap_or_default();
            let is_bad = |one: &Lexed| one.payload.is_err() || chunks.is_torn(bytes, one);
            if members.len() < count || members.iter().any(is_bad) {
                let goes = |one: &&Lexed| {
                    let of_document = one.header.flags & FLAG_DOCUMENT != 0;
                    one.header.kind == FrameKind::Evict || (of_document && is_bad(one))
                };
                torn.extend(members.iter().filter(goes).map(|one| one.header.position.offset));
            }
        }
        first = at + 1;
    }
    frames.retain(|lexed| !torn.contains(&lexed.header.position.offset));
}

/// The numbers of the whole chunks of a segment, by run: a version of a document has its own.
struct Chunked {
    numbers: HashMap<RunNo, BTreeSet<u32>>,
    first: Lsn,
}

impl Chunked {
    fn of(frames: &[Lexed]) -> Self {
        let mut numbers = HashMap::<_, BTreeSet<u32>>::new();
        for lexed in frames {
            let FrameHeader { kind, run_no, extra, .. } = lexed.header;
            if kind == FrameKind::Chunk && lexed.payload.is_ok() {
                numbers.entry(run_no).or_default().insert(extra);
            }
        }
        Self { numbers, first: frames.first().map_or(Lsn(0), |lexed| lexed.header.lsn) }
    }

    /// Whether a version of a document lacks a chunk that must be in the segment: from the first
    /// one that is there, or that was, to the last.
    fn is_torn(&self, bytes: &[u8], record: &Lexed) -> bool {
        let FrameHeader { kind, flags, name_len, run_no, .. } = record.header;
        let wanted = FLAG_CHUNKS | FLAG_DOCUMENT;
        if kind != FrameKind::Record || flags & wanted != wanted {
            return false;
        }
        let said = payload_of(bytes, &record.header).get(usize::from(name_len)..);
        let Some(Ok(chunks)) = said.map(Chunks::decode) else { return true };
        let there = self.numbers.get(&run_no);
        let first = there.and_then(|numbers| numbers.first().copied()).unwrap_or(chunks.count);
        let first = if self.first <= chunks.first { 0 } else { first.min(chunks.count) };
        let count = there.map_or(0, |numbers| numbers.range(first..chunks.count).count());
        (count as u64) < u64::from(chunks.count.saturating_sub(first))
    }
}

/// Reads all segments: those of the log from the last to the first, since later frames say what was
/// durable in earlier ones.
pub(crate) fn take_census(located: &Located) -> Result<Census> {
    let mut census = Census { floor: located.durable, ..Census::default() };
    census.spans = vec![None; located.segments.len()];
    let mut order: Vec<usize> = (0..located.segments.len()).collect();
    let id = |at: &usize| located.segments.get(*at).map(|found| found.check.segment());
    order.sort_by_key(|at| core::cmp::Reverse(id(at)));
    for at in order {
        let Some(found) = located.segments.get(at) else { continue };
        let contents = Contents::read(located, found, &mut census.floor)?;
        census.count(at, found, &contents);
    }
    census.gaps.extend(located.unread.iter().map(|at| (at.start, at.end - at.start)));
    census.evictions_in.sort_unstable();
    census.gaps.sort_unstable();
    Ok(census)
}

impl Census {
    fn count(&mut self, at: usize, found: &Found, contents: &Contents) {
        let is_live = !found.retired;
        let mut span: Option<(RunNo, RunNo)> = None;
        let directory = contents.directory();
        for lexed in &contents.frames {
            let header = &lexed.header;
            let payload = lexed.payload.is_ok().then(|| payload_of(&contents.bytes, header));
            if header.kind == FrameKind::Evict {
                let runs = payload.and_then(|payload| evicted_runs(payload).ok());
                // The directory lists them too.
                self.lost_evictions += u64::from(runs.is_none() && directory.is_none());
                self.evicted.extend(runs.into_iter().flatten().map(|(run_no, _)| run_no));
                self.evictions_in.push(at);
            }
            if header.run_no == RunNo(0) {
                continue;
            }
            let run_no = header.run_no;
            span =
                Some(span.map_or((run_no, run_no), |(first, last)| {
                    (first.min(run_no), last.max(run_no))
                }));
            let run = self.runs.entry(run_no).or_default();
            run.is_live |= is_live && header.kind != FrameKind::Bind;
            run.is_document |= header.flags & FLAG_DOCUMENT != 0;
            let next = match header.kind {
                FrameKind::Bind | FrameKind::Start => {
                    let ids = payload.and_then(|payload| decode_ids(payload).ok());
                    if let Some((agent, name, _)) = ids.filter(|_| run.name.is_none()) {
                        run.name = Some((agent, name));
                    }
                    continue;
                }
                FrameKind::Record => Seq(header.seq.0.saturating_add(1)),
                FrameKind::Block => seq_in(header, header.extra.min(MAX_BLOCK_RECORDS)),
                FrameKind::Chunk => {
                    run.frames += 1;
                    continue;
                }
                _ => continue,
            };
            run.has_record = true;
            run.frames += next.0.saturating_sub(header.seq.0).max(1);
            run.next_seq = run.next_seq.max(next);
        }
        if let Some(directory) = directory {
            // It was checked: no part of it fails.
            let _ = self.note_directory(&directory, is_live);
        }
        self.evictions_in.dedup();
        if let Some(slot) = self.spans.get_mut(at) {
            *slot = span;
        }
        if is_live {
            let gaps = contents.gaps(found.end.is_some());
            let place = |(from, to)| (found.at + u64::from(from), u64::from(to - from));
            let end = found.at + u64::from(contents.end).min(contents.bytes.len() as u64);
            self.logs.push(found.at..end);
            self.gaps.extend(gaps.map(place));
            self.note_uncommitted(contents);
        }
    }

    fn note_uncommitted(&mut self, contents: &Contents) {
        self.uncommitted += contents.uncommitted.len() as u64;
        let mut names = names(&contents.bytes, &contents.uncommitted);
        for lexed in &contents.uncommitted {
            let header = &lexed.header;
            if header.kind == FrameKind::Record {
                let run = self.unfinished.entry(header.run_no).or_insert_with(|| Unfinished {
                    name: names.remove(&header.run_no),
                    is_document: header.flags & FLAG_DOCUMENT != 0,
                    first: header.seq,
                    count: 0,
                });
                run.first = run.first.min(header.seq);
                run.count += 1;
            }
        }
    }

    /// Places in the file, and their lengths, where frames were and cannot be read. What the disk
    /// could not read, up to now, may be a part of a frame.
    pub(crate) fn lost_bytes(&self, around: &Around) -> Vec<(u64, u64)> {
        let mut lost = self.gaps.clone();
        let is_in_gap = |range: &Range<u64>| {
            let behind = self.gaps.partition_point(|(at, _)| *at <= range.start);
            let gap = behind.checked_sub(1).and_then(|before| self.gaps.get(before));
            gap.is_some_and(|(at, len)| range.end <= at + len)
        };
        for log in &self.logs {
            let unread = around.unread_in(log).into_iter().filter(|range| !is_in_gap(range));
            lost.extend(unread.map(|range| (range.start, range.end - range.start)));
        }
        lost.sort_unstable();
        lost
    }

    /// The ids of a run with unfinished records.
    pub(crate) fn name_of_unfinished(&self, run_no: RunNo) -> Option<&(AgentId, RunId)> {
        let known = self.runs.get(&run_no).and_then(|known| known.name.as_ref());
        known.or_else(|| self.unfinished.get(&run_no)?.name.as_ref())
    }

    /// Adds what a directory says: also of frames that are lost.
    fn note_directory(&mut self, directory: &Directory<'_>, is_live: bool) -> Decoded<()> {
        for eviction in directory.evictions() {
            self.evicted.insert(eviction?.run_no);
        }
        for slot in 0..directory.run_count() {
            let entry = directory.run(slot)?;
            let run = self.runs.entry(entry.run_no).or_default();
            run.name.get_or_insert((entry.agent, entry.run));
            run.is_document |= entry.document;
            run.is_live |= is_live;
            run.has_record |= entry.records > 0;
            run.next_seq = run.next_seq.max(entry.next_seq);
            let listed = &mut run.listed;
            listed.created = listed.created.or(entry.created_at);
            listed.started = listed.started.or(entry.start.map(|start| start.at));
            let end = entry.end.map(|end| (end.lsn, end.status, end.at));
            if end.map(|end| end.0) > listed.end.map(|end| end.0) {
                listed.end = end;
            }
            let hold = entry.hold.map(|hold| (hold.lsn, hold.held));
            listed.hold = listed.hold.max(hold);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_the_count_of_chunks_does_no_harm() {
        let chunks = Chunks { first: Lsn(1), count: 3 }.encode();
        let mut header = FrameHeader::new(FrameKind::Record, RunNo(1), Timestamp(0));
        header.flags = FLAG_CHUNKS | FLAG_DOCUMENT;
        header.payload_len = len_u32(chunks.len());
        let bytes = [&[0; FRAME_HEADER_LEN][..], &chunks].concat();
        let record = Lexed { header, payload: Ok(()) };
        let numbers = HashMap::from([(RunNo(1), BTreeSet::from([7]))]);
        assert!(!Chunked { numbers, first: Lsn(5) }.is_torn(&bytes, &record));
    }
}
