//! What the segments have, before anything is read for good: which runs there are and were, how
//! they are called, how many frames each has, what was deleted, and what is damaged.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::engine::salvage::around::Around;
use crate::engine::salvage::locate::{Found, Located};
use crate::engine::salvage::torn::leave_torn;
use crate::engine::state::scan::{
    Item, Lexed, directory_in, each_counted, frames_below, lex, names, payload_of,
    truncation_marker, whole_up_to,
};
use crate::error::Result;
use crate::format::codec::{Decoded, len_u32};
use crate::format::frames::block::{MAX_BLOCK_RECORDS, seq_in};
use crate::format::frames::eviction::evicted_runs;
use crate::format::frames::frame::{FLAG_DOCUMENT, FRAME_HEADER_LEN, decode_ids};
use crate::format::map::manifest::used_len;
use crate::format::segments::directory::{EvictionAt, RECORD_COST};
use crate::format::segments::segment::Purpose;
use crate::format::{Directory, FrameKind};
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, RunStatus, Seq, Timestamp};

/// What is known of a run without its records.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) name: Option<(AgentId, RunId)>,
    pub(crate) is_document: bool,
    /// A segment that counts has a frame of it, or lists it.
    pub(crate) is_live: bool,
    /// A segment has a record of it, or lists one; or it has the START of a version of a document,
    /// which is written together with its record.
    pub(crate) has_record: bool,
    /// How many records and chunks of it are in the file at most, copies included.
    pub(crate) frames: u64,
    /// One above the last record that anything in the file tells of.
    pub(crate) next_seq: Seq,
    pub(crate) listed: Listed,
}

impl Known {
    /// Whether it counts, unless it was deleted. A version of a document needs a record.
    pub(crate) fn counts(&self) -> bool {
        self.is_live && (self.has_record || !self.is_document)
    }
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
    /// Evictions that cannot be read, or that were left out and not because another version of the
    /// document counts.
    pub(crate) lost_evictions: u64,
    /// What was left out of evictions: the segment, the offset, and the run.
    left_out: Vec<(usize, u32, RunNo)>,
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
    /// The offsets of those that were left out of batches that count.
    torn: HashSet<u32>,
    /// Up to here everything was durable.
    sure: u32,
    /// Where blocks are that have more records than the segment can list.
    crowded: Vec<(u32, u32)>,
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
        let mut all = frames_below(&items, end);
        let crowded = leave_crowded(&mut all, bytes.len());
        let is_sealed =
            items.iter().filter_map(Item::frame).any(|lexed| lexed.header.kind == FrameKind::Seal);
        let of_log = found.purpose == Purpose::Log;
        if of_log && located.by_frames {
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
        let torn = leave_torn(&bytes, &mut frames, sure);
        let mut counted = frames.iter().map(|lexed| lexed.header.position).peekable();
        let is_left_out = |lexed: &Lexed| counted.next_if_eq(&lexed.header.position).is_none();
        let uncommitted = all.into_iter().filter(is_left_out).collect();
        Ok(Self { bytes, frames, items, end, durable, uncommitted, torn, sure, crowded })
    }

    /// The directory, if it is whole.
    fn directory(&self) -> Option<Directory<'_>> {
        let seals = || self.items.iter().filter_map(Item::frame);
        let seal = truncation_marker(&self.items)
            .or_else(|| seals().rfind(|lexed| lexed.header.kind == FrameKind::Seal))?;
        let directory = directory_in(&self.bytes, seal)?;
        directory.check().ok().map(|()| directory)
    }

    /// Whether what the directory says of a frame of a document counts. A loss of power may have
    /// torn a frame that was not durable and is lost; what is behind it did not count then.
    fn proves(&self, offset: u32) -> bool {
        let place = |lexed: &Lexed| lexed.header.position.offset;
        offset < self.sure || self.frames.binary_search_by_key(&offset, place).is_ok()
    }

    /// Where the log of the segment has bytes that are no frames; offsets within the segment.
    fn gaps(&self, is_sealed: bool) -> impl Iterator<Item = (u32, u32)> + '_ {
        let used = u32::try_from(used_len(&self.bytes)).unwrap_or(u32::MAX);
        let gaps = self.items.iter().filter_map(move |item| {
            let Item::Gap { from, to, .. } = *item else { return None };
            // Zeros behind the last frame were never written, unless the log went on there.
            let last = if is_sealed { self.end } else { used.max(self.durable) };
            let to = to.unwrap_or(last).min(self.end);
            // In front of `last` something was written.
            let was_written = to > from;
            was_written.then_some((from, to))
        });
        gaps.chain(self.crowded.iter().copied())
    }
}

/// Leaves out blocks with more records than the directory of the segment has space for, and returns
/// where they are: a header costs nothing and may claim many, which would be noted one by one.
fn leave_crowded(frames: &mut Vec<Lexed>, extent_len: usize) -> Vec<(u32, u32)> {
    let (mut room, mut crowded) = (extent_len / RECORD_COST, Vec::new());
    frames.retain(|lexed| {
        let header = &lexed.header;
        if header.kind != FrameKind::Block {
            return true;
        }
        let left = room.checked_sub(header.extra as usize);
        room = left.unwrap_or(room);
        if left.is_none() {
            crowded.push((header.position.offset, lexed.end()));
        }
        left.is_some()
    });
    crowded
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
    census.count_left_out();
    let lost = located.unread.iter().chain(&located.lost);
    census.gaps.extend(lost.map(|at| (at.start, at.end - at.start)));
    census.evictions_in.sort_unstable();
    census.gaps.sort_unstable();
    Ok(census)
}

impl Census {
    /// The largest number of a run that the file names.
    pub(crate) fn last_run_no(&self) -> RunNo {
        let listed = self.spans.iter().flatten().map(|(_, last)| *last);
        listed.chain(self.runs.keys().copied()).max().unwrap_or_default()
    }

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
                    run.has_record |=
                        header.kind == FrameKind::Start && header.flags & FLAG_DOCUMENT != 0;
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
        let is_unlisted = directory.is_none();
        if let Some(directory) = directory {
            // It was checked: no part of it fails.
            let _ = self.note_directory(at, &directory, contents, is_live);
        }
        self.evictions_in.dedup();
        if let Some(slot) = self.spans.get_mut(at) {
            *slot = span;
        }
        if is_live {
            let has_frames = contents.items.iter().any(|item| item.frame().is_some());
            let whole =
                (found.is_headless && !has_frames).then(|| (0, len_u32(contents.bytes.len())));
            let gaps = contents.gaps(found.end.is_some()).filter(|_| whole.is_none()).chain(whole);
            let place = |(from, to)| (found.at + u64::from(from), u64::from(to - from));
            let end = found.at + u64::from(contents.end).min(contents.bytes.len() as u64);
            self.logs.push(found.at..end);
            self.gaps.extend(gaps.map(place));
            self.note_uncommitted(at, contents, is_unlisted);
        }
    }

    fn note_uncommitted(&mut self, at: usize, contents: &Contents, is_unlisted: bool) {
        self.uncommitted += contents.uncommitted.len() as u64;
        let mut names = names(&contents.bytes, &contents.uncommitted);
        for lexed in &contents.uncommitted {
            let header = &lexed.header;
            let is_torn = contents.torn.contains(&header.position.offset);
            if header.kind == FrameKind::Evict && is_torn {
                let payload = payload_of(&contents.bytes, header);
                match evicted_runs(payload).ok().filter(|_| lexed.payload.is_ok()) {
                    Some(runs) => {
                        let left = |(run_no, _)| (at, header.position.offset, run_no);
                        self.left_out.extend(runs.into_iter().map(left));
                    }
                    // The directory lists them too.
                    None => self.lost_evictions += u64::from(is_unlisted),
                }
            }
            // The record of a START that was left out is torn or lost.
            if header.kind == FrameKind::Record || (header.kind == FrameKind::Start && is_torn) {
                let run = self.unfinished.entry(header.run_no).or_insert_with(|| Unfinished {
                    name: names.remove(&header.run_no),
                    is_document: header.flags & FLAG_DOCUMENT != 0,
                    first: header.seq,
                    count: 0,
                });
                run.first = run.first.min(header.seq);
                run.count += u64::from(!run.is_document || run.count == 0);
            }
        }
    }

    /// Counts the deletions that were left out and bring something back: not those of versions that
    /// a later one of the same document replaces, or was to replace.
    fn count_left_out(&mut self) {
        let mut last = HashMap::new();
        if !self.left_out.is_empty() {
            // One of which only a BIND is there may have been torn as a whole.
            let may_replace = |run: &Known| !run.is_live || (run.is_document && run.counts());
            let of_documents = self.runs.iter().filter(|(_, run)| may_replace(run));
            let known =
                of_documents.filter_map(|(run_no, run)| Some((run.name.as_ref()?, *run_no)));
            let torn = self.unfinished.iter().filter(|(_, torn)| torn.is_document);
            let torn = torn.filter_map(|(no, _)| Some((self.name_of_unfinished(*no)?, *no)));
            let is_there = |(_, run_no): &(_, RunNo)| !self.evicted.contains(run_no);
            for (name, run_no) in known.chain(torn).filter(is_there) {
                let known = last.entry(name).or_insert(run_no);
                *known = run_no.max(*known);
            }
        }
        let comes_back = |run_no: &RunNo| {
            let known = self.runs.get(run_no).filter(|known| known.counts());
            known.is_some_and(|known| {
                let later = known.name.as_ref().and_then(|name| last.get(name));
                later.is_none_or(|later| later <= run_no) && !self.evicted.contains(run_no)
            })
        };
        let back = self.left_out.iter().filter(|(.., run_no)| comes_back(run_no));
        let frames: HashSet<(usize, u32)> = back.map(|&(at, offset, _)| (at, offset)).collect();
        self.lost_evictions += frames.len() as u64;
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

    /// Adds what the directory of a segment says: also of frames that are lost, but of those of
    /// documents only where it proves something.
    fn note_directory(
        &mut self,
        at: usize,
        directory: &Directory<'_>,
        contents: &Contents,
        is_live: bool,
    ) -> Decoded<()> {
        for eviction in directory.evictions() {
            let EvictionAt { run_no, offset, with_receipt } = eviction?;
            // Evictions of versions of documents have no receipts.
            if with_receipt || contents.proves(offset) {
                self.evicted.insert(run_no);
            } else {
                self.left_out.push((at, offset, run_no));
            }
        }
        for slot in 0..directory.run_count() {
            let entry = directory.run(slot)?;
            let has_record = entry.records > 0
                && (!entry.document || contents.proves(directory.record_offset(slot, 0)?));
            if entry.records > 0 && !has_record && is_live {
                self.unfinished.entry(entry.run_no).or_insert_with(|| Unfinished {
                    name: Some((entry.agent.clone(), entry.run.clone())),
                    is_document: true,
                    first: Seq(0),
                    count: 1,
                });
            }
            let run = self.runs.entry(entry.run_no).or_default();
            run.name.get_or_insert((entry.agent, entry.run));
            run.is_document |= entry.document;
            run.is_live |= is_live;
            run.has_record |= has_record;
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
