//! What one segment contains of a run: the way from a run to the offsets of its records.

use std::sync::Arc;

use crate::engine::state::segment::Segment;
use crate::engine::state::tail::Tail;
use crate::error::{Damage, Error, Place, Result, unless_damaged};
use crate::format::codec::first_of;
use crate::format::frames::block::seq_in;
use crate::format::{FrameHeader, FrameKind};
use crate::index::Span;
use crate::types::{AgentId, Lsn, RunId, RunNo, Seq};

/// The longest list of offsets that is copied into memory.
const MAX_LISTED: u32 = 64;

/// The bytes of an offset in a directory.
const LISTED_LEN: u32 = 4;

/// What one segment contains of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunSlice {
    pub(crate) segment: Arc<Segment>,
    pub(crate) records: u32,
    /// The number of chunks of large records. The list has them after the records.
    pub(crate) chunks: u32,
    pub(crate) first_lsn: Lsn,
    pub(crate) first_seq: Option<Seq>,
    pub(crate) next_seq: Seq,
    pub(crate) offsets: Offsets,
}

/// Where the list of offsets is.
#[derive(Debug, Clone)]
pub(crate) enum Offsets {
    /// In the directory of a sealed segment, at `first`.
    Stored { first: u32 },
    /// In memory: for the tail, and for runs that were looked up.
    Listed(Arc<[u32]>),
}

impl RunSlice {
    /// The slice of a run in a sealed segment. The run is normally in this slot; a rebuilt
    /// directory may have it in another one.
    pub(crate) fn sealed(segment: &Arc<Segment>, slot: u32, run_no: RunNo) -> Result<Self> {
        segment.in_directory(|directory| {
            let slot = match directory.run_no(slot) {
                Ok(found) if found == run_no => slot,
                _ => directory.find_no(run_no)?.ok_or(Damage::Missing)?,
            };
            let (first_seq, next_seq) = directory.sequences(slot)?;
            let (first, records) = directory.record_list(slot)?;
            let (chunks, first_lsn) = directory.chunks(slot)?;
            let (segment, offsets) = (Arc::clone(segment), Offsets::Stored { first });
            Ok(Self { segment, records, chunks, first_lsn, first_seq, next_seq, offsets })
        })
    }

    /// What a segment has lost of a run, behind the part that is found: each record is an error at
    /// its place, if it is known which ones there were.
    pub(crate) fn lost(segment: &Arc<Segment>, span: &Span, found: Option<&Self>) -> Option<Self> {
        let Span { first_lsn, first_seq, next_seq, .. } = *span;
        let some = found.filter(|part| part.first_seq.is_some());
        let from = some.map(|part| part.next_seq).or(first_seq)?;
        let lacks = span.records.saturating_sub(some.map_or(0, |part| part.records));
        // No directory lists more.
        let most = segment.extent_size().bytes_u32() / LISTED_LEN;
        let behind = u32::try_from(next_seq.0.saturating_sub(from.0)).unwrap_or(u32::MAX);
        // Each of these numbers. If there are too many, some have no record, or an index lies: then
        // it is one error.
        let records = if behind <= lacks.min(most) { behind } else { 1 };
        (lacks > 0 && behind > 0).then(|| {
            let (segment, offsets) = (Arc::clone(segment), Offsets::Listed(Arc::new([])));
            let first_seq = Some(from);
            Self { segment, records, chunks: 0, first_lsn, first_seq, next_seq, offsets }
        })
    }

    /// The slice of a run in the tail.
    pub(crate) fn in_tail(tail: &Tail, run_no: RunNo) -> Option<Self> {
        let built = tail.builder.run(run_no)?;
        Some(Self {
            segment: Arc::clone(&tail.segment),
            records: built.entry.records,
            chunks: built.entry.chunks,
            first_lsn: built.entry.first_lsn,
            first_seq: built.entry.first_seq,
            next_seq: built.entry.next_seq,
            offsets: Offsets::Listed(built.offsets.iter().chain(&built.chunks).copied().collect()),
        })
    }

    /// Copies a short list of offsets out of the directory, for slices that are kept.
    pub(crate) fn list(&mut self) {
        let listed = self.records.saturating_add(self.chunks);
        if matches!(self.offsets, Offsets::Stored { .. }) && listed <= MAX_LISTED {
            let offsets: Result<Arc<[u32]>> = (0..listed).map(|index| self.offset(index)).collect();
            if let Ok(offsets) = offsets {
                self.offsets = Offsets::Listed(offsets);
            }
        }
    }

    /// The header of a chunk of a large record.
    pub(crate) fn chunk(&self, index: u32) -> Result<FrameHeader> {
        self.segment.read_header(self.offset(self.records.saturating_add(index))?)
    }

    /// The first chunk with an order of at least `first`, of those with a readable header.
    pub(crate) fn lower_chunk(&self, first: Lsn) -> Result<u32> {
        let (mut low, mut high, mut found) = (0, self.chunks, self.chunks);
        while low < high {
            let middle = low + (high - low) / 2;
            // A damaged chunk has no known order; the next whole one decides.
            let mut readable = (middle..high).map(|index| (index, self.chunk(index)));
            match readable.find(|(_, chunk)| !matches!(chunk, Err(Error::Corrupt(_)))) {
                Some((_, Err(error))) => return Err(error),
                Some((index, Ok(chunk))) if chunk.lsn < first => low = index + 1,
                Some((index, Ok(_))) => (high, found) = (middle, index),
                None => high = middle,
            }
        }
        Ok(found)
    }

    /// The offset of record `index`. The offsets of chunks follow those of records.
    #[allow(clippy::inline_always, reason = "a trace asks for each record")]
    #[inline(always)]
    pub(crate) fn offset(&self, index: u32) -> Result<u32> {
        match &self.offsets {
            Offsets::Listed(offsets) => {
                let offset = offsets.get(index as usize).copied();
                offset.ok_or_else(|| self.segment.damaged_directory(Damage::Missing))
            }
            Offsets::Stored { first } => self.segment.listed_offset(*first, index),
        }
    }

    /// Whether the list repeats an earlier frame: only the records of one block share an offset.
    pub(crate) fn repeats(&self, index: u32) -> bool {
        let Some(Ok(before)) = index.checked_sub(1).map(|before| self.offset(before)) else {
            return false;
        };
        match self.offset(index) {
            Ok(offset) if before == offset => {
                // A damaged frame may be a block.
                let Ok(header) = self.segment.read_header(offset) else { return false };
                let rank = self.first_at(offset, index).map_or(0, |first| index - first);
                header.kind != FrameKind::Block || rank >= header.extra
            }
            Ok(offset) => before > offset,
            Err(_) => false,
        }
    }

    /// The index of the first record at this offset, which is also that of record `index`.
    pub(crate) fn first_at(&self, offset: u32, index: u32) -> Result<u32> {
        first_of(index, |middle| Ok(self.offset(middle)? < offset))
    }

    /// The sequence of record `index`, whose frame has this header.
    pub(crate) fn seq_at(&self, header: &FrameHeader, index: u32) -> Result<Seq> {
        if header.kind != FrameKind::Block {
            return Ok(header.seq);
        }
        let first = self.first_at(header.position.offset, index)?;
        Ok(seq_in(header, index - first))
    }

    /// Where the records with a sequence of at least `seq` begin: the index of the first one that
    /// may have such a sequence, and of the first one that must have.
    ///
    /// Both are the same, except within a gap between readable records of which some are damaged
    /// and others are not listed: nothing says which. What such a gap lists is in each range that
    /// ends in it, so no range leaves out damage silently, and none has a record outside of it.
    pub(crate) fn bound(&self, seq: Seq) -> Result<(u32, u32)> {
        let Some(first) = self.first_seq else { return Ok((0, 0)) };
        if seq <= first {
            return Ok((0, 0));
        }
        if seq >= self.next_seq {
            return Ok((self.records, self.records));
        }
        let (behind, next) = self.gap_at(first, seq)?;
        let (from, to) = (u64::from(behind.0), u64::from(next.0));
        // In a gap the n-th record has at least the n-th number, and so from its other end.
        let may = to.saturating_sub(next.1.0 - seq.0).max(from);
        let must = from.saturating_add(seq.0 - behind.1.0).clamp(may, to);
        Ok((u32::try_from(may).unwrap_or(next.0), u32::try_from(must).unwrap_or(next.0)))
    }

    /// The gap between readable records that `seq` is in: the index behind the last one below `seq`
    /// with the sequence due there, and the index and the sequence of the first one that is not
    /// below. `first` is in front of `seq`, and `next_seq` behind.
    fn gap_at(&self, first: Seq, seq: Seq) -> Result<((u32, Seq), (u32, Seq))> {
        let (mut low, mut found) = ((0, first), (self.records, self.next_seq));
        if self.next_seq.0 - first.0 == u64::from(self.records) {
            return Ok((low, found));
        }
        let mut high = match &self.offsets {
            // What is lost has no offset.
            Offsets::Listed(offsets) => {
                u32::try_from(offsets.len()).map_or(self.records, |listed| listed.min(self.records))
            }
            Offsets::Stored { .. } => self.records,
        };
        while low.0 < high {
            let middle = low.0 + (high - low.0) / 2;
            // A damaged record has no known sequence; the next readable one decides.
            let mut unreadable = None;
            let mut read = (middle..high).map(|index| {
                // A directory may list one place many times.
                let offset = self.offset(index).ok();
                let is_known = offset.is_some() && offset == unreadable;
                let read = if is_known { Ok(None) } else { self.readable_seq(index) };
                unreadable = offset;
                (index, read)
            });
            match read.find(|(_, read)| !matches!(read, Ok(None))) {
                Some((_, Err(error))) => return Err(error),
                Some((index, Ok(Some(there)))) if there < seq => {
                    low = (index + 1, Seq(there.0.saturating_add(1)));
                }
                Some((index, Ok(Some(there)))) => (high, found) = (middle, (index, there)),
                _ => high = middle,
            }
        }
        Ok((low, found))
    }

    /// The sequence of record `index`, if its header can be read.
    fn readable_seq(&self, index: u32) -> Result<Option<Seq>> {
        let header = self.offset(index).and_then(|offset| self.segment.read_header(offset));
        let seq = header.and_then(|header| self.seq_at(&header, index));
        match seq {
            Err(Error::Io { .. }) => Ok(None),
            seq => unless_damaged(seq),
        }
    }

    /// The sequence that record `index` should have, if the slice has no holes.
    pub(crate) fn presumed_seq(&self, index: u32) -> Option<Seq> {
        let first = self.first_seq?;
        let whole = self.next_seq.0.checked_sub(first.0)? == u64::from(self.records);
        whole.then(|| Seq(first.0.saturating_add(index.into())))
    }
}

/// A run that is ready to be read, cached so that one reference gives the next reader all.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) agent: AgentId,
    pub(crate) run: RunId,
    /// Its slice in each segment, in the order of the log.
    pub(crate) parts: Arc<[RunSlice]>,
}

/// A place between records: the slice, and the index of a record in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Spot {
    pub(crate) part: usize,
    pub(crate) index: u32,
}

impl Opened {
    /// Where the first record is that may have a sequence of at least `seq`, and the first one that
    /// must have: see [`RunSlice::bound`].
    pub(crate) fn locate(&self, seq: Seq) -> Result<(Spot, Spot)> {
        for (number, part) in self.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                let (may, must) = part.bound(seq)?;
                let spot = |index| Spot { part: number, index };
                return Ok((spot(may), spot(must)));
            }
        }
        let end = Spot { part: self.parts.len(), index: 0 };
        Ok((end, end))
    }

    /// Adds the run and the sequence to an error that lacks them.
    #[cold]
    pub(crate) fn named(&self, error: Error, seq: Option<Seq>) -> Error {
        error.naming(&self.agent, &self.run, seq)
    }

    /// The item for records that a directory does not list correctly.
    pub(crate) fn unlisted(&self, part: &RunSlice, seq: Option<Seq>, damage: Damage) -> Error {
        let place = Place::Directory { segment: part.segment.id() };
        self.named(Error::corrupt(place, damage), seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::storage::disk::Disk;
    use crate::format::ExtentSize;
    use crate::format::frames::frame::SegmentKey;
    use crate::format::segments::segment::Purpose;
    use crate::storage::MemoryStorage;
    use crate::types::{ExtentNo, SegmentId};

    /// What is lost of a run of which an index says this much, and the directory has some.
    fn lost((records, next): (u32, u64), found: u32) -> Option<RunSlice> {
        let disk = Disk::new(Arc::new(MemoryStorage::new()));
        let key = SegmentKey { id: SegmentId(1), salt: 5 };
        let size = ExtentSize::from_bytes(64 << 10).unwrap();
        let segment = Segment::new(disk, size, ExtentNo(0), key, Purpose::Log);
        let (segment, first_seq) = (Arc::new(segment), Some(Seq(7)));
        let found = RunSlice {
            segment: Arc::clone(&segment),
            records: found,
            chunks: 0,
            first_lsn: Lsn(1),
            first_seq: first_seq.filter(|_| found > 0),
            next_seq: Seq(7 + u64::from(found)),
            offsets: Offsets::Listed(Arc::new([])),
        };
        let (segment_id, slot, chunks, stored, first_lsn) = (SegmentId(1), 0, 0, 0, Lsn(1));
        let next_seq = Seq(next);
        let span = Span {
            segment: segment_id,
            slot,
            first_seq,
            next_seq,
            records,
            chunks,
            stored,
            first_lsn,
        };
        RunSlice::lost(&segment, &span, Some(&found))
    }

    #[test]
    fn each_record_that_is_lost_is_an_error_at_its_place() {
        for found in 0..10 {
            let slice = lost((10, 17), found).unwrap();
            assert_eq!(slice.records, 10 - found);
            for seq in 7 + u64::from(found)..17 {
                let index = u32::try_from(seq - 7).unwrap() - found;
                assert_eq!(slice.presumed_seq(index), Some(Seq(seq)));
                assert_eq!(slice.bound(Seq(seq)).unwrap(), (index, index));
            }
        }
        assert!(lost((10, 17), 10).is_none());
    }

    /// An index that lies makes no errors without end, and each range tells of the loss.
    #[test]
    fn what_is_lost_is_one_error_if_there_are_more_numbers_than_records() {
        for (records, next, found) in
            [(1, 1 << 59, 0), (5, 1 << 59, 4), (u32::MAX, 1 << 59, 0), (u32::MAX, 1 << 31, 3)]
        {
            let slice = lost((records, next), found).unwrap();
            assert_eq!((slice.records, slice.presumed_seq(0)), (1, None));
            let from = 7 + u64::from(found);
            for seq in [from + 1, from + 2, next / 2, next - 1] {
                assert_eq!(slice.bound(Seq(seq)).unwrap(), (0, 1), "{seq}");
            }
            assert_eq!(slice.bound(Seq(from)).unwrap(), (0, 0));
            assert_eq!(slice.bound(Seq(next)).unwrap(), (1, 1));
        }
    }
}
