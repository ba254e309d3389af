//! Writing the outputs of a compaction: run by run, each in one output if it fits.

use crate::engine::compact::gather::{Found, Gathered, Moved};
use crate::engine::state::fold::{note_block, note_frame};
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Error, Place, Result};
use crate::format::codec::check_crc;
use crate::format::frames::eviction::Eviction;
use crate::format::frames::frame::{FLAG_BATCH, FrameCheck};
use crate::format::frames::ids::{self, encode_ids, without_replaced};
use crate::format::map::manifest::SealedAt;
use crate::format::segments::directory::{
    DirectoryKey, EVICTION_COST, EvictionAt, IdHash, PIECE_COST, RUN_COST, TRAILER_LEN,
};
use crate::format::segments::run_entry::{PART_LEN, records_cost};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{DirectoryBuilder, ExtentSize, FrameHeader, FrameKind, SegmentKey};
use crate::index::RunRow;
use crate::types::{LogPosition, Lsn, RunNo, Seq, Timestamp};

/// The contents of one output.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Frames of runs: the index of the run among those that move, and the range of its frames.
    pub(super) runs: Vec<(usize, core::ops::Range<usize>)>,
    /// The range of evictions.
    pub(super) evictions: core::ops::Range<usize>,
}

/// The most bytes of evictions in one frame.
const EVICT_FRAME: usize = 32 << 10;

/// Divides the gathered frames among outputs; `order` is the order of the runs. Of the first
/// `whole` runs, one that fits an output is not divided; the others have more frames elsewhere.
/// `None` if a frame fits no output, such as a block that claims more records than a segment can
/// list: writing it would overwrite the next extent.
pub(super) fn lay_out(
    gathered: &Gathered,
    (order, whole): (&[usize], usize),
    extent_size: ExtentSize,
) -> Option<Vec<Layout>> {
    let mut outputs = Outputs {
        done: Vec::new(),
        frames: SEGMENT_HEADER_LEN as usize,
        builder: DirectoryBuilder::default(),
        extent_size,
        fits: true,
    };
    for (place, &number) in order.iter().enumerate() {
        let run = gathered.runs.get(number)?;
        outputs.add_run(
            gathered,
            (number, run),
            &gathered.living.get(&run.run_no)?.row,
            place < whole,
        );
    }
    outputs.add_evictions(&gathered.evictions);
    outputs.fits.then_some(outputs.done)
}

struct Outputs {
    done: Vec<Layout>,
    /// The bytes of the current output, and its directory so far.
    frames: usize,
    builder: DirectoryBuilder,
    extent_size: ExtentSize,
    /// Whether each output has room for its contents.
    fits: bool,
}

impl Outputs {
    fn current(&mut self) -> &mut Layout {
        if self.done.is_empty() {
            self.done.push(Layout::default());
        }
        self.done.last_mut().expect("one was pushed")
    }

    fn next(&mut self) {
        let evictions = self.done.last().map_or(0, |last| last.evictions.end);
        self.done.push(Layout { evictions: evictions..evictions, ..Layout::default() });
        (self.frames, self.builder) = (SEGMENT_HEADER_LEN as usize, DirectoryBuilder::default());
    }

    /// Whether the current output has room for this many more bytes.
    fn has_room(&self, frames: usize, directory: usize) -> bool {
        let end = self.frames
            + frames
            + FrameKind::Seal.frame_len(0, self.builder.encoded_len() + directory);
        end <= self.extent_size.bytes_u32() as usize
    }

    fn add_run(
        &mut self,
        gathered: &Gathered,
        (number, run): (usize, &Moved),
        RunRow { agent, run: id, .. }: &RunRow,
        together: bool,
    ) {
        let ids = agent.as_str().len() + id.as_str().len();
        let (bind, entry) = (FrameKind::Bind.frame_len(0, ids::ids_len(ids)), RUN_COST + ids);
        let records = run.frames.iter().map(|found| listed(&found.header)).sum();
        let frames: usize = run.frames.iter().map(|found| found.header.frame_len()).sum();
        // Each chunk may begin a part.
        let parts = run.frames.iter().map(|found| match found.header.kind {
            FrameKind::Chunk => PART_LEN,
            FrameKind::Piece => PIECE_COST,
            _ => 0,
        });
        let directory = entry + records_cost(records) + parts.sum::<usize>();
        let frames = bind + frames;
        self.current();
        let empty = SEGMENT_HEADER_LEN as usize
            + frames
            + FrameKind::Seal.frame_len(0, TRAILER_LEN + directory);
        let fits_alone = empty <= self.extent_size.bytes_u32() as usize;
        if together && fits_alone && !self.has_room(frames, directory) {
            self.next();
        }
        let (mut start, mut slice) = (0, None);
        for (place, found) in run.frames.iter().enumerate() {
            let header = &found.header;
            let (mut frames, mut directory) = (header.frame_len(), listed_cost(header));
            let of = gathered.slice_of(found);
            let is_inside = of.is_some() && of == slice;
            if of.is_some() && !is_inside {
                // All of a slice is in one segment.
                let rest = run.frames.get(place..).unwrap_or_default();
                let whole = rest.iter().take_while(|found| gathered.slice_of(found) == of);
                (frames, directory) = (0, 0);
                for Found { header, .. } in whole {
                    frames += header.frame_len();
                    directory += listed_cost(header);
                }
                slice = of;
            }
            if self.builder.run(run.run_no).is_none() {
                (frames, directory) = (frames + bind, directory + entry);
            }
            if !self.has_room(frames, directory) {
                if place > start {
                    self.current().runs.push((number, start..place));
                }
                start = place;
                self.next();
                self.fits &= !is_inside && (of.is_none() || self.has_room(frames, directory));
            }
            if self.builder.run(run.run_no).is_none() {
                self.builder.bind(run.run_no, agent.clone(), id.clone());
                self.frames += bind;
            }
            note_frame(&mut self.builder, header, &[]);
            if header.kind == FrameKind::Block {
                note_block(&mut self.builder, header, &[]);
            }
            self.frames += header.frame_len();
            self.fits &= self.has_room(0, 0);
        }
        self.current().runs.push((number, start..run.frames.len()));
    }

    fn add_evictions(&mut self, evictions: &[(Lsn, Eviction)]) {
        for (place, (_, eviction)) in evictions.iter().enumerate() {
            // Each may begin a frame of its own.
            let cost = FrameKind::Evict.frame_len(0, eviction.encoded_len());
            self.current();
            if !self.has_room(cost, EVICTION_COST) {
                self.next();
            }
            let (run_no, with_receipt) = (eviction.run_no, eviction.receipt.is_some());
            self.builder.push_eviction(EvictionAt { run_no, offset: 0, with_receipt });
            self.frames += cost;
            self.fits &= self.has_room(0, 0);
            self.current().evictions.end = place + 1;
        }
    }
}

/// The most bytes that the directory has of a frame, without its run.
fn listed_cost(header: &FrameHeader) -> usize {
    if header.kind == FrameKind::Piece { PIECE_COST } else { records_cost(listed(header)) }
}

/// How many offsets the directory lists of a frame.
fn listed(header: &FrameHeader) -> u32 {
    match header.kind {
        FrameKind::Record | FrameKind::Chunk | FrameKind::Put => 1,
        FrameKind::Block => header.extra,
        _ => 0,
    }
}

/// The bytes of one output: the frames behind the segment's header.
pub(super) struct Written {
    pub(super) bytes: Vec<u8>,
    pub(super) sealed: SealedAt,
}

/// The inputs for the bytes of outputs.
pub(super) struct Writing<'a> {
    pub(super) gathered: &'a Gathered,
    pub(super) layouts: &'a [Layout],
    pub(super) keys: &'a [SegmentKey],
    pub(super) ids: IdHash,
    pub(super) next_run_no: RunNo,
    pub(super) now: Timestamp,
}

impl Writing<'_> {
    /// The bytes of output number `place`.
    pub(super) fn write(&self, place: usize) -> Result<Written> {
        let (Some(layout), Some(&key)) = (self.layouts.get(place), self.keys.get(place)) else {
            return Err(Error::Poisoned);
        };
        let (check, builder) = (FrameCheck::new(key), DirectoryBuilder::default());
        let mut output = Output { salt: key.salt, check, bytes: Vec::new(), builder };
        let mut last_lsn = Lsn(0);
        for (number, frames) in &layout.runs {
            let Some(run) = self.gathered.runs.get(*number) else { continue };
            let frames = run.frames.get(frames.clone()).unwrap_or_default();
            let (Some(first), Some(living)) =
                (frames.first(), self.gathered.living.get(&run.run_no))
            else {
                return Err(Error::Poisoned);
            };
            let (agent, id) = (&living.row.agent, &living.row.run);
            let mut ids = Vec::new();
            encode_ids(agent, id, &mut ids);
            output.builder.bind(run.run_no, agent.clone(), id.clone());
            let mut bind = FrameHeader::new(FrameKind::Bind, run.run_no, first.header.at);
            bind.lsn = first.header.lsn;
            output.push(PendingFrame::new(bind, &[], &ids), &[]);
            for found in frames {
                last_lsn = last_lsn.max(found.header.lsn);
                let header =
                    FrameHeader { flags: found.header.flags & !FLAG_BATCH, ..found.header };
                let payload = self.gathered.payload(found);
                if header.kind == FrameKind::Put {
                    output.push_put(header, payload)?;
                } else {
                    output.push_copy(header, payload);
                }
            }
        }
        let evictions = self.gathered.evictions.get(layout.evictions.clone()).unwrap_or_default();
        self.write_evictions(evictions, &mut output);
        Ok(self.finish(last_lsn, output))
    }

    fn write_evictions(&self, mut rest: &[(Lsn, Eviction)], output: &mut Output) {
        while !rest.is_empty() {
            let mut len = 0;
            let fits = |(_, eviction): &&(Lsn, Eviction)| {
                let is_first = len == 0;
                len += eviction.encoded_len();
                is_first || len <= EVICT_FRAME
            };
            let (some, behind) = rest.split_at(rest.iter().take_while(fits).count());
            rest = behind;
            let mut body = Vec::new();
            let items = some.iter().map(|(_, eviction)| eviction);
            let mut pending_frame = PendingFrame::evict(items.clone(), self.now, &mut body);
            pending_frame.header.lsn = some.iter().map(|(lsn, _)| *lsn).max().unwrap_or_default();
            let listed = items.map(|item| (item.run_no, item.receipt.is_some()));
            output.push(pending_frame, &listed.collect::<Vec<_>>());
        }
    }

    fn finish(&self, last_lsn: Lsn, mut output: Output) -> Written {
        let end = output.end();
        let key = DirectoryKey { salt: output.salt, end, ids: self.ids };
        let directory = output.builder.encode(&key, self.next_run_no);
        let mut header = FrameHeader::new(FrameKind::Seal, RunNo(0), self.now);
        header.lsn = last_lsn;
        (header.extra, header.seq) = (end, Seq(self.next_run_no.0));
        let seal = PendingFrame::new(header, &[], &directory);
        let seal = output.append(seal);
        let sealed = SealedAt::of(&output.builder, end, &seal, self.next_run_no);
        Written { bytes: output.bytes, sealed }
    }
}

/// An output that is being written.
struct Output {
    salt: u64,
    check: FrameCheck,
    bytes: Vec<u8>,
    builder: DirectoryBuilder,
}

impl Output {
    fn end(&self) -> u32 {
        SEGMENT_HEADER_LEN + u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    fn push(&mut self, pending_frame: PendingFrame<'_>, evicted: &[(RunNo, bool)]) {
        let header = self.append(pending_frame);
        note_frame(&mut self.builder, &header, evicted);
    }

    /// Appends an unchanged frame, with the checksum of its payload.
    fn push_copy(&mut self, header: FrameHeader, payload: &[u8]) {
        let header = self.append(PendingFrame { header, name: payload, body: &[] });
        note_frame(&mut self.builder, &header, &[]);
        if header.kind == FrameKind::Block {
            note_block(&mut self.builder, &header, payload);
        }
    }

    /// Appends a PUT that evicts nothing: what is still needed of that is in EVICTs.
    fn push_put(&mut self, mut header: FrameHeader, payload: &[u8]) -> Result<()> {
        let copied = check_crc(header.payload_crc, crc32fast::hash(payload))
            .and_then(|()| without_replaced(payload))
            .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))?;
        header.set_payload(&[], &copied);
        self.push_copy(header, &copied);
        Ok(())
    }

    fn append(&mut self, mut pending_frame: PendingFrame<'_>) -> FrameHeader {
        pending_frame.header.position =
            LogPosition { segment: self.check.segment(), offset: self.end() };
        pending_frame.encode(&self.check, &mut self.bytes);
        pending_frame.header
    }
}
