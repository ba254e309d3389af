//! From payloads to frames: whole, or as a row of chunks before the record.
//!
//! - Each chunk takes the lock for itself, so that no append waits for megabytes.
//! - A row is written under the lock `rows` of the [`Log`], so that the chunks of two records never
//!   mix.
//! - Chunks count only once their record does. The remains of a failed write are deleted with their
//!   run; a version of a document is evicted at once.
//! - The space for a row is allocated before its first chunk is written.

use std::sync::Arc;

use crate::engine::setup::due::Wanted;
use crate::engine::setup::locks::Held;
use crate::engine::state::log_state::{LogState, Urgency, reserve_len};
use crate::engine::state::segment::Mark;
use crate::engine::state::stored_run::Name;
use crate::engine::values::Allow;
use crate::engine::values::new_record::NewRecord;
use crate::engine::write::Log;
use crate::engine::write::append::next_seq;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::Result;
use crate::format::codec::len_u32;
use crate::format::frames::eviction::Eviction;
use crate::format::frames::frame::{CHUNKS_LEN, Chunks, FLAG_CHUNKS, FLAG_DOCUMENT};
use crate::format::segments::directory::MAX_RUN_COST;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{Lsn, RunNo, SegmentId, Seq, Timestamp};

/// The payload of a record as it will be stored in its frame.
pub(crate) enum Body<'a> {
    /// As the caller passed it.
    Whole(&'a [u8]),
    /// In a row of chunks: the reference to them, and the length of the payload.
    InChunks([u8; CHUNKS_LEN], u32),
}

/// The owner of the chunks of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChunksOf {
    /// A run that accepts records under these permissions.
    Run(Allow),
    /// A version of a document.
    Document,
}

/// The right to write the rows of chunks of one call. The lock is taken before the first row is
/// written, and kept until the records are.
pub(crate) struct Rows<'e> {
    pub(crate) held: Option<Held<'e, ()>>,
    /// Payloads with a kind that are longer than this are written in chunks.
    pub(crate) limit: usize,
    /// The bytes of all frames of the call.
    pub(crate) need: usize,
    /// Whether some of the records need chunks.
    pub(crate) is_long: bool,
    /// The time of the call, which it asked for before anything changed.
    pub(crate) now: Timestamp,
}

impl Log {
    /// The rows for writing these records.
    pub(crate) fn rows_for(
        &self,
        records: &[NewRecord<'_>],
        limit: usize,
        now: Timestamp,
    ) -> Rows<'_> {
        let chunk = self.extent_size.inline_limit() as usize;
        let whole = |record: &NewRecord<'_>| record.record_kind().len() + record.payload().len();
        let need = records.iter().map(|record| match record.payload().len() {
            _ if whole(record) <= limit => FrameKind::Record.frame_len(0, whole(record)),
            len => len + (len.div_ceil(chunk) + 1) * FrameKind::Chunk.frame_len(0, 0),
        });
        let is_long = records.iter().any(|record| whole(record) > limit);
        Rows { held: None, limit, need: need.sum(), is_long, now }
    }

    /// The payload if it fits one frame, else the reference to chunks, which it writes now.
    pub(crate) fn body<'a, 'e>(
        self: &'e Arc<Self>,
        rows: &mut Rows<'e>,
        run_no: RunNo,
        record: &NewRecord<'a>,
        of: ChunksOf,
    ) -> Result<Body<'a>> {
        let payload = record.payload();
        if record.record_kind().len() + payload.len() <= rows.limit {
            return Ok(Body::Whole(payload));
        }
        if rows.held.is_none() {
            rows.held = Some(self.rows.lock());
            if let ChunksOf::Run(allow) = of {
                // A refused record must take no space.
                let mut state = self.reader.loaded_number(run_no)?;
                let _ = next_seq(&mut state, run_no, allow)?;
            }
            self.make_room(rows.need)?;
        }
        let mut chunks = Chunks { first: Lsn(0), count: 0 };
        for part in payload.chunks(self.extent_size.inline_limit() as usize) {
            let at = record.time().unwrap_or_else(|| self.setup.now());
            let mut header = FrameHeader::new(FrameKind::Chunk, run_no, at);
            header.extra = chunks.count;
            header.flags = if matches!(of, ChunksOf::Document) { FLAG_DOCUMENT } else { 0 };
            let mut pending_frame = PendingFrame::new(header, &[], part);
            let mut state = match of {
                ChunksOf::Run(_) => self.reader.loaded_number(run_no)?,
                ChunksOf::Document => self.reader.open()?,
            };
            if let ChunksOf::Run(allow) = of {
                let _ = next_seq(&mut state, run_no, allow)?;
            }
            // The first chunk has its own order instead.
            pending_frame.header.seq = Seq(chunks.first.0);
            self.place_one(&mut state, &mut pending_frame, Urgency::Normal, record.level())?;
            if chunks.count == 0 {
                chunks.first = pending_frame.header.lsn;
            }
            chunks.count += 1;
        }
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Ok(Body::InChunks(chunks.encode(), len))
    }

    /// Allocates space for this many bytes of frames, so that a full disk is noticed before the
    /// first of them is written. Other calls may use the space meanwhile; then a full disk is
    /// noticed in between.
    pub(crate) fn make_room(&self, need: usize) -> Result<()> {
        let (extent, chunk) = (self.extent_size.bytes_u32(), self.extent_size.inline_limit());
        // What frames cannot use of each segment, and a chunk that does not fit at its end.
        let kept = reserve_len(self.extent_size) + SEGMENT_HEADER_LEN + chunk;
        let kept = kept as usize + FrameKind::Seal.frame_len(0, MAX_RUN_COST);
        let mut state = self.reader.open()?;
        let wanted = (state.tail.offset as usize + need + kept).min(extent as usize);
        state.tail.grow(wanted)?;
        let rest = (extent - state.tail.offset) as usize;
        let segments = need
            .saturating_sub(rest.saturating_sub(kept))
            .div_ceil((extent as usize - kept).max(1));
        drop(state);
        let set_aside: Vec<_> = self.reserved.lock().iter().take(segments).cloned().collect();
        for segment in set_aside.iter().filter(|segment| !segment.is(Mark::Allocated)) {
            self.disk.allocate(segment.file_offset(), extent.into())?;
            segment.note(Mark::Allocated);
        }
        // The next segments take the lowest free extents, which are these.
        let mut claimed = Vec::new();
        let chosen = (set_aside.len()..segments).try_for_each(|_| {
            claimed.push(self.space.allocator.lock().claim()?);
            Ok(())
        });
        // Without the lock, since file systems that write zeros for it take long.
        let allocated = chosen.and_then(|()| {
            claimed.iter().try_for_each(|extent| {
                self.disk.allocate(self.extent_size.offset_of(*extent), self.extent_size.bytes())
            })
        });
        for extent in claimed {
            let mut allocator = self.space.allocator.lock();
            let is_kept = allocated.is_ok() || allocator.punch(extent, 1).is_ok();
            if is_kept { allocator.manifest.unclaim(extent) } else { allocator.let_go(extent) }
        }
        if allocated.is_err() {
            // The error of the allocation says more than one of giving space back.
            let _ = self.space.give_back_freed();
        }
        allocated
    }

    /// Abandons unfinished versions of documents, and runs that a refused call created, unless
    /// another call has used them since or has a writer of them.
    pub(crate) fn give_up(&self, numbers: impl IntoIterator<Item = RunNo>, now: Timestamp) {
        let mut has_dead = false;
        for run_no in numbers {
            let name = {
                let state = self.state.lock();
                let run = state.active.get(run_no);
                run.map(|run| (run.agent.clone(), run.run.clone(), run.document))
            };
            let Some((agent, run, is_document)) = name else { continue };
            let name = Name::new(is_document, &agent, &run);
            match self.reader.asked(|moment| moment.stored_in(name, run_no)) {
                Ok((mut state, stored)) => {
                    let is_unused = state.active.get(run_no).is_some_and(|run| {
                        let is_empty =
                            run.next_seq == Seq(0) && !run.started && !run.status.is_ended();
                        let row = || state.row_in_memory(run_no);
                        run.document
                            || is_empty
                                && !run.has_writer
                                && row().is_ok_and(|row| row.is_some_and(|row| !row.is_held()))
                    });
                    if is_unused {
                        self.evict_unfinished(&mut state, run_no, stored, now);
                        has_dead = true;
                    }
                }
                Err(_) => self.state.lock().active.give_up(run_no),
            }
        }
        if has_dead {
            self.due.want(Wanted::COMPACT);
            self.due.after_change();
        }
    }

    /// Evicts an unfinished run. The catalog knows frames of it in the segments `stored`.
    fn evict_unfinished(
        &self,
        state: &mut LogState,
        run_no: RunNo,
        stored: Vec<SegmentId>,
        now: Timestamp,
    ) {
        let segments: Vec<_> = state.fresh_segments(run_no).chain(stored).collect();
        if !segments.is_empty() {
            let eviction = Eviction { run_no, receipt: None };
            if self.place_evictions(state, &[eviction], now).is_err() {
                // The next write of the document evicts it.
                state.active.give_up(run_no);
                return;
            }
        }
        state.active.remove(run_no);
        state.suspects.extend(segments);
    }
}

pub(crate) fn pending_record<'a>(
    run_no: RunNo,
    record: &NewRecord<'a>,
    body: &'a Body<'_>,
    at: Timestamp,
) -> PendingFrame<'a> {
    let (mut header, bytes, len) = stored_as(FrameKind::Record, run_no, record, body, at);
    if header.flags & FLAG_CHUNKS != 0 {
        header.extra = len;
    }
    PendingFrame::new(header, record.record_kind().as_bytes(), bytes)
}

/// A version of a document. `front` has its ids, the version that it evicts, and then the kind.
pub(crate) fn pending_put<'a>(
    run_no: RunNo,
    record: &NewRecord<'a>,
    (front, body): (&'a [u8], &'a Body<'_>),
    at: Timestamp,
) -> PendingFrame<'a> {
    let (mut header, bytes, len) = stored_as(FrameKind::Put, run_no, record, body, at);
    header.flags |= FLAG_DOCUMENT;
    header.extra = len;
    header.name_len = u8::try_from(record.record_kind().len()).unwrap_or(u8::MAX);
    PendingFrame::new(header, front, bytes)
}

/// The header of a record, the bytes in its frame, and the length of the record.
fn stored_as<'a>(
    kind: FrameKind,
    run_no: RunNo,
    record: &NewRecord<'_>,
    body: &'a Body<'_>,
    at: Timestamp,
) -> (FrameHeader, &'a [u8], u32) {
    let mut header = FrameHeader::new(kind, run_no, at);
    header.content = record.content();
    match body {
        Body::Whole(payload) => (header, payload, len_u32(payload.len())),
        Body::InChunks(chunks, len) => {
            header.flags |= FLAG_CHUNKS;
            (header, chunks, *len)
        }
    }
}
