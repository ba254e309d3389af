//! One look at each segment: which runs there are, where their frames are, and which runs were
//! deleted.

use core::cmp::{Ordering, Reverse};
use core::ops::Range;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::engine::salvage::locate::Located;
use crate::engine::state::scan::{
    Item, Lexed, directory_in, frames_below, lex, payload_of, pieces_in,
};
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::codec::len_u32;
use crate::format::frames::block::{MAX_BLOCK_RECORDS, seq_in};
use crate::format::frames::eviction::{Eviction, EvictionReceipt, decode_evictions};
use crate::format::frames::frame::{FLAG_BATCH, FLAG_CREATES, FLAG_DOCUMENT, FLAG_IMPLICIT};
use crate::format::frames::ids::{names_in, replaced_by};
use crate::format::frames::slice::PieceAt;
use crate::format::map::manifest::used_len;
use crate::format::{Directory, FrameHeader, FrameKind};
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, Seq, Timestamp};

/// The place of a frame whose payload checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
}

impl Spot {
    fn of(segment: u32, lexed: &Lexed) -> Self {
        Self { segment, offset: lexed.header.position.offset }
    }
}

/// A START, END or HOLD.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameAt {
    pub(crate) lsn: Lsn,
    pub(crate) at: Timestamp,
    /// The content type of a START, the status of an END, whether a HOLD holds.
    pub(crate) code: u8,
    /// `None` if only the header or a directory can be read.
    pub(crate) spot: Option<Spot>,
}

/// A RECORD or BLOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordAt {
    /// The sequence of the first record.
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
    pub(crate) spot: Spot,
}

/// A CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkAt {
    /// The order of the first chunk of its record.
    pub(crate) first: Lsn,
    pub(crate) number: u32,
    pub(crate) spot: Spot,
}

impl ChunkAt {
    /// Copies of a chunk have the same key.
    pub(crate) fn key(&self) -> (Lsn, u32) {
        (self.first, self.number)
    }
}

/// A run, or a version of a document.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) name: Option<(AgentId, RunId)>,
    pub(crate) is_document: bool,
    /// There is more of it than its name.
    pub(crate) is_there: bool,
    /// Its first time.
    pub(crate) first_at: Option<Timestamp>,
    /// The frame that created it can be read, or is listed.
    pub(crate) is_created: bool,
    pub(crate) start: Option<FrameAt>,
    pub(crate) end: Option<FrameAt>,
    pub(crate) hold: Option<FrameAt>,
    pub(crate) records: Vec<RecordAt>,
    pub(crate) chunks: Vec<ChunkAt>,
    /// One above its last record.
    pub(crate) next_seq: Seq,
}

/// The contents of all segments.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) runs: BTreeMap<RunNo, Run>,
    pub(crate) evicted: HashSet<RunNo>,
    pub(crate) receipts: BTreeMap<RunNo, EvictionReceipt>,
    /// An EVICT frame was left out, or cannot be read and no directory lists its runs.
    pub(crate) lost_evictions: bool,
    /// How many frames of batches that are not whole were left out.
    pub(crate) left_out: u64,
    /// Where frames were, or may have been, and cannot be read.
    lost: Vec<Range<u64>>,
    /// Where the segments are.
    logs: Vec<Range<u64>>,
    /// Everything in front of it was durable.
    floor: LogPosition,
    /// The PIECEs of each segment, by its number.
    pub(crate) pieces: BTreeMap<u32, Vec<PieceAt>>,
    /// The first loss above the floor. A power cut may have made it, and then recovery would keep
    /// no frame behind it.
    first_loss: Option<LogPosition>,
    /// The evictions above the floor.
    unsynced: Vec<(LogPosition, Vec<Eviction>)>,
}

/// Reads all segments from the last to the first: later frames state the floor for earlier
/// segments.
pub(crate) fn scan(located: &Located) -> Result<Scan> {
    let (lost, floor) = (located.unread.clone(), located.durable);
    let mut scan = Scan { lost, floor, ..Scan::default() };
    let mut order: Vec<(u32, &Arc<Segment>)> = (0..).zip(&located.segments).collect();
    order.sort_by_key(|(_, segment)| Reverse(segment.id()));
    for (number, segment) in order {
        scan.read_segment(number, segment)?;
    }
    for (position, evictions) in core::mem::take(&mut scan.unsynced) {
        if scan.first_loss.is_some_and(|loss| loss < position) {
            scan.lost_evictions = true;
        } else {
            scan.evict(evictions);
        }
    }
    for run in scan.runs.values_mut() {
        run.records.sort_unstable();
        run.chunks.sort_unstable();
        run.chunks.dedup_by_key(|chunk| chunk.key());
    }
    Ok(scan)
}

/// Keeps the later one of two frames; of two copies one whose payload checks.
fn keep_latest(kept: &mut Option<FrameAt>, found: FrameAt) {
    let key = |frame: &FrameAt| (frame.lsn, frame.spot.is_some());
    if kept.as_ref().is_none_or(|kept| key(kept) < key(&found)) {
        *kept = Some(found);
    }
}

impl Scan {
    fn read_segment(&mut self, number: u32, segment: &Segment) -> Result<()> {
        let bytes = segment.read_all()?;
        let items = lex(&bytes, segment.frames());
        let sealed = segment.sealed();
        let is_log = !segment.is_output();
        let is_seal = |lexed: &&Lexed| lexed.header.kind == FrameKind::Seal;
        let seal = items.iter().filter_map(Item::frame).find(is_seal);
        let end = sealed.map(|sealed| sealed.end);
        let end = end.or(seal.map(|seal| seal.header.position.offset));
        let frames = frames_below(&items, end.unwrap_or(u32::MAX));
        if is_log {
            let stated = frames.iter().filter_map(|lexed| lexed.header.durable()).max();
            self.floor = self.floor.max(stated.unwrap_or_default());
        }
        let durable = match self.floor.segment.cmp(&segment.id()) {
            _ if sealed.is_some() || !is_log => u32::MAX,
            Ordering::Greater => u32::MAX,
            Ordering::Equal => self.floor.offset,
            Ordering::Less => 0,
        };
        let least = if is_log { durable } else { 0 };
        let end = end.unwrap_or_else(|| len_u32(used_len(&bytes)).max(least));
        self.note_lost(&items, segment, (end.min(len_u32(bytes.len())), durable));
        // Without a SEAL record, a directory above the floor may list frames that a power cut took.
        let directory = match sealed {
            Some(_) => segment.directory().ok(),
            None => seal
                .filter(|_| is_log && durable == u32::MAX)
                .and_then(|seal| directory_in(segment, &bytes, seal)),
        };
        let mut pieces = pieces_in(frames.iter());
        if !pieces.is_empty() {
            pieces.sort_unstable();
            self.pieces.insert(number, pieces);
        }
        for lexed in &self.counted(&frames, durable) {
            let (header, spot) = (&lexed.header, Spot::of(number, lexed));
            let payload = payload_of(&bytes, header);
            let evictions = match header.kind {
                FrameKind::Evict => {
                    let whole = lexed.payload.is_ok().then_some(payload);
                    let evictions = whole.and_then(|payload| decode_evictions(payload).ok());
                    self.lost_evictions |= evictions.is_none() && directory.is_none();
                    evictions.unwrap_or_default()
                }
                FrameKind::Put => {
                    let replaced = replaced_by(payload).into_iter();
                    replaced.map(|run_no| Eviction { run_no, receipt: None }).collect()
                }
                _ => Vec::new(),
            };
            if header.position.offset < durable {
                self.evict(evictions);
            } else if !evictions.is_empty() {
                self.unsynced.push((header.position, evictions));
            }
            if header.run_no != RunNo(0) {
                self.note_frame(header, payload, lexed.payload.is_ok().then_some(spot));
            }
        }
        if let Some(directory) = directory {
            self.note_directory(&directory);
        }
        Ok(())
    }

    fn evict(&mut self, evictions: Vec<Eviction>) {
        for Eviction { run_no, receipt } in evictions {
            self.evicted.insert(run_no);
            self.receipts.extend(receipt.map(|receipt| (run_no, receipt)));
        }
    }

    /// Notes where bytes that are no whole frames stand in place of frames.
    fn note_lost(&mut self, items: &[Item], segment: &Segment, (end, durable): (u32, u32)) {
        let at = segment.file_offset();
        for item in items {
            let (offset, to) = match *item {
                Item::Gap { from, to, .. } => (from, to.unwrap_or(end).min(end)),
                Item::Frame(lexed) if lexed.payload.is_err() => (item.offset(), lexed.end()),
                Item::Frame(_) => continue,
            };
            if offset >= to {
                continue;
            }
            self.lost.push(at + u64::from(offset)..at + u64::from(to));
            if offset >= durable {
                let position = segment.position(offset);
                self.first_loss = Some(self.first_loss.unwrap_or(position).min(position));
            }
        }
        self.logs.push(at..at + u64::from(end));
    }

    fn note_frame(&mut self, header: &FrameHeader, payload: &[u8], whole: Option<Spot>) {
        let run = self.runs.entry(header.run_no).or_default();
        run.is_document |= header.flags & FLAG_DOCUMENT != 0;
        run.is_there |= header.kind != FrameKind::Bind;
        run.first_at = Some(run.first_at.map_or(header.at, |known| known.min(header.at)));
        let frame = |code| FrameAt { lsn: header.lsn, at: header.at, code, spot: whole };
        let code = header.content.code();
        run.name = run.name.take().or_else(|| names_in(header.kind, payload));
        run.is_created |= header.kind == FrameKind::Put;
        let records = match header.kind {
            FrameKind::Bind | FrameKind::Start => {
                let is_start = header.kind == FrameKind::Start;
                run.is_created |= is_start && header.flags & FLAG_CREATES != 0;
                if is_start && header.flags & FLAG_IMPLICIT == 0 {
                    keep_latest(&mut run.start, frame(code));
                }
                return;
            }
            FrameKind::End => return keep_latest(&mut run.end, frame(code)),
            FrameKind::Hold => {
                return keep_latest(&mut run.hold, frame(u8::from(header.extra != 0)));
            }
            FrameKind::Chunk => {
                let first = if header.extra == 0 { header.lsn } else { Lsn(header.seq.0) };
                let number = header.extra;
                run.chunks.extend(whole.map(|spot| ChunkAt { first, number, spot }));
                return;
            }
            FrameKind::Record | FrameKind::Put => 1,
            FrameKind::Block => header.extra.min(MAX_BLOCK_RECORDS),
            _ => return,
        };
        run.next_seq = run.next_seq.max(seq_in(header, records));
        let (seq, lsn) = (header.seq, header.lsn);
        run.records.extend(whole.map(|spot| RecordAt { seq, lsn, spot }));
    }

    /// Notes the contents of a directory, which lists also frames that cannot be read. An entry
    /// that does not check costs what it says alone.
    fn note_directory(&mut self, directory: &Directory<'_>) {
        self.evicted.extend(directory.evictions().flatten().map(|eviction| eviction.run_no));
        for entry in (0..directory.run_count()).filter_map(|slot| directory.run(slot).ok()) {
            let run = self.runs.entry(entry.run_no).or_default();
            run.name = run.name.take().or(Some((entry.agent, entry.run)));
            run.is_document |= entry.document;
            run.is_there = true;
            run.next_seq = run.next_seq.max(entry.next_seq);
            run.first_at = run.first_at.or(entry.created_at);
            run.is_created |= entry.created_at.is_some();
            let frame = |lsn, at, code| FrameAt { lsn, at, code, spot: None };
            if let Some(start) = entry.start {
                keep_latest(&mut run.start, frame(Lsn(0), start.at, 0));
            }
            if let Some(end) = entry.end {
                keep_latest(&mut run.end, frame(end.lsn, end.at, end.status.code()));
            }
            if let Some(hold) = entry.hold {
                keep_latest(&mut run.hold, frame(hold.lsn, entry.last_at, u8::from(hold.held)));
            }
        }
    }

    /// The ranges of the file that are lost: what is no frame, and what the device could not read
    /// up to now.
    pub(crate) fn lost_bytes(&self, located: &Located) -> Vec<Range<u64>> {
        let mut lost = self.lost.clone();
        lost.extend(self.logs.iter().flat_map(|log| located.source.unread_in(log)));
        lost.sort_unstable_by_key(|range| range.start);
        lost.dedup_by(|next, kept| {
            let touches = next.start <= kept.end;
            if touches {
                kept.end = kept.end.max(next.end);
            }
            touches
        });
        lost
    }

    /// The largest number of a run.
    pub(crate) fn last_run_no(&self) -> RunNo {
        let last = self.runs.last_key_value().map(|(run_no, _)| *run_no);
        last.max(self.evicted.iter().max().copied()).unwrap_or_default()
    }

    /// The frames that count. Below `durable` each frame counts alone. From there on a batch counts
    /// if it is whole: all of its frames check, directly in front of its COMMIT. A PUT without a
    /// batch is like one.
    fn counted(&mut self, frames: &[Lexed], durable: u32) -> Vec<Lexed> {
        let (mut all, mut batch) = (Vec::new(), Vec::<Lexed>::new());
        for lexed in frames {
            let header = &lexed.header;
            let is_next = batch.last().is_none_or(|last| last.end() == header.position.offset);
            let of_batch = header.flags & FLAG_BATCH != 0 && header.position.offset >= durable;
            if of_batch && is_next {
                batch.push(*lexed);
                continue;
            }
            let members = header.extra as usize;
            if header.kind == FrameKind::Commit && is_next && members <= batch.len() {
                let own = batch.split_off(batch.len() - members);
                let is_whole = own.iter().all(|member| member.payload.is_ok());
                if is_whole { all.extend(own) } else { batch.extend(own) }
            }
            self.leave_out(&mut batch);
            let is_torn = header.kind == FrameKind::Put
                && lexed.payload.is_err()
                && header.position.offset >= durable;
            if of_batch || is_torn { batch.push(*lexed) } else { all.push(*lexed) }
        }
        self.leave_out(&mut batch);
        all
    }

    fn leave_out(&mut self, batch: &mut Vec<Lexed>) {
        self.left_out += batch.len() as u64;
        let evicts = |lexed: &Lexed| matches!(lexed.header.kind, FrameKind::Evict | FrameKind::Put);
        self.lost_evictions |= batch.iter().any(evicts);
        batch.clear();
    }
}
