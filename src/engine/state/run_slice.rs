//! What one segment contains of a run: the way from a run to the offsets of its records.

use std::sync::Arc;

use crate::engine::state::segment::Segment;
use crate::engine::state::tail::Tail;
use crate::error::{Damage, Error, Place, Result};
use crate::format::codec::first_of;
use crate::format::frames::block::seq_in;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{AgentId, Lsn, RunId, RunNo, Seq};

/// The longest list of offsets that is copied into memory.
const MAX_LISTED: u32 = 64;

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
    /// The slice of a run in a sealed segment, from this slot of its directory.
    pub(crate) fn sealed(segment: &Arc<Segment>, slot: u32, run_no: RunNo) -> Result<Self> {
        segment.in_directory(|directory| {
            if directory.run_no(slot)? != run_no {
                return Err(Damage::Mismatch);
            }
            let (first_seq, next_seq) = directory.sequences(slot)?;
            let (first, records) = directory.record_list(slot)?;
            let (chunks, first_lsn) = directory.chunks(slot)?;
            let (segment, offsets) = (Arc::clone(segment), Offsets::Stored { first });
            Ok(Self { segment, records, chunks, first_lsn, first_seq, next_seq, offsets })
        })
    }

    /// The slice of a run in the tail.
    pub(crate) fn in_tail(tail: &Tail, run_no: RunNo) -> Option<Self> {
        let built = tail.builder.run(run_no)?;
        // Nearly always a plain copy.
        let offsets = match &built.chunks[..] {
            [] => built.offsets.as_slice().into(),
            chunks => built.offsets.iter().chain(chunks).copied().collect(),
        };
        Some(Self {
            segment: Arc::clone(&tail.segment),
            records: built.entry.records,
            chunks: built.entry.chunks,
            first_lsn: built.entry.first_lsn,
            first_seq: built.entry.first_seq,
            next_seq: built.entry.next_seq,
            offsets: Offsets::Listed(offsets),
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

    /// The index of the first record with a sequence of at least `seq`.
    pub(crate) fn lower(&self, seq: Seq) -> Result<u32> {
        let Some(first) = self.first_seq.filter(|first| *first < seq) else { return Ok(0) };
        if seq >= self.next_seq {
            return Ok(self.records);
        }
        if self.presumed_seq(0).is_some() {
            return Ok(u32::try_from(seq.0 - first.0).unwrap_or(self.records));
        }
        first_of(self.records, |index| {
            let header = self.segment.read_header(self.offset(index)?)?;
            Ok(self.seq_at(&header, index)? < seq)
        })
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
    /// Where the first record with a sequence of at least `seq` is.
    pub(crate) fn locate(&self, seq: Seq) -> Result<Spot> {
        for (number, part) in self.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                return Ok(Spot { part: number, index: part.lower(seq)? });
            }
        }
        Ok(Spot { part: self.parts.len(), index: 0 })
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
