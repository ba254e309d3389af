//! What one segment contains of a run: the way from a run to the offsets of its records.

use std::sync::{Arc, OnceLock};

use crate::engine::state::segment::Segment;
use crate::engine::state::tail::Tail;
use crate::error::{Damage, Error, Place, Result};
use crate::format::codec::first_of;
use crate::format::frames::block::seq_in;
use crate::format::segments::directory::{OffsetList, RunPart};
use crate::format::segments::directory_builder::{BuiltPart, BuiltRun};
use crate::format::segments::run_entry::GROUP;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{AgentId, Lsn, RunId, RunNo, Seq};

/// A part of a run in one segment: records that follow one another, and chunks of one large record.
#[derive(Debug, Clone)]
pub(crate) struct RunSlice {
    pub(crate) segment: Arc<Segment>,
    pub(crate) records: u32,
    /// The number of chunks. The list has them after the records.
    pub(crate) chunks: u32,
    /// The order of its first frame, which is a chunk if it has chunks.
    pub(crate) first_lsn: Lsn,
    pub(crate) first_seq: Option<Seq>,
    pub(crate) next_seq: Seq,
    pub(crate) offsets: Offsets,
}

/// Where the list of offsets is.
#[derive(Debug, Clone)]
pub(crate) enum Offsets {
    /// In the directory of a sealed segment, from item `first` of the list of the run.
    Stored { list: OffsetList, first: u32 },
    /// In memory, for the tail.
    Listed(Arc<[u32]>),
}

impl RunSlice {
    fn new(segment: &Arc<Segment>, part: &RunPart, offsets: Offsets) -> Self {
        Self {
            segment: Arc::clone(segment),
            records: part.records,
            chunks: part.chunks,
            first_lsn: part.first_lsn,
            first_seq: part.first(),
            next_seq: part.next_seq(),
            offsets,
        }
    }

    /// Adds the slices of a run in a sealed segment, whose entry starts at `at` of its directory.
    pub(crate) fn add_sealed(
        slices: &mut Vec<Self>,
        segment: &Arc<Segment>,
        at: u32,
        run_no: RunNo,
    ) -> Result<()> {
        slices.extend(segment.in_directory(|directory| {
            let ((parts, list), mut first) = (directory.parts_at(at, run_no)?, 0);
            let slice = |part: RunPart| {
                let offsets = Offsets::Stored { list, first };
                first += part.listed();
                Self::new(segment, &part, offsets)
            };
            Ok(parts.map(slice).collect::<Vec<_>>())
        })?);
        Ok(())
    }

    /// The slices of a run in the tail.
    pub(crate) fn in_tail(tail: &Tail, run_no: RunNo) -> Vec<Self> {
        let parts = tail.builder.run(run_no).map(BuiltRun::parts).unwrap_or_default();
        let slice = |part: &BuiltPart| {
            // Nearly always a plain copy.
            let offsets = match &part.chunks[..] {
                [] => part.offsets.as_slice().into(),
                _ => part.listed().copied().collect(),
            };
            Self::new(&tail.segment, &part.part(), Offsets::Listed(offsets))
        };
        parts.iter().map(slice).collect()
    }

    /// Puts the slices of a run into the order of its records. Those with chunks alone come first.
    pub(crate) fn sort(slices: &mut [Self]) {
        slices.sort_by_key(|slice| slice.first_seq);
    }

    /// The header of a chunk of a large record.
    pub(crate) fn chunk(&self, index: u32) -> Result<FrameHeader> {
        self.segment.read_header(self.offset(self.records.saturating_add(index))?)
    }

    /// The offset of record `index`. The offsets of chunks follow those of records.
    pub(crate) fn offset(&self, index: u32) -> Result<u32> {
        match &self.offsets {
            Offsets::Listed(offsets) => {
                let offset = offsets.get(index as usize).copied();
                offset.ok_or_else(|| self.segment.damaged_directory(Damage::Missing))
            }
            Offsets::Stored { list, first } => {
                self.segment.in_directory(|directory| directory.offset(*list, first + index))
            }
        }
    }

    /// Puts the offsets of record `index` and of others behind it into a list: those that have one
    /// check in the directory.
    pub(crate) fn offsets_from(&self, index: u32, offsets: &mut Vec<u32>) -> Result<()> {
        offsets.clear();
        match &self.offsets {
            Offsets::Listed(all) => {
                offsets.extend(all.iter().skip(index as usize).take(GROUP as usize));
            }
            Offsets::Stored { list, first } => {
                let index = first + index;
                self.segment.in_directory(|directory| {
                    let group = directory.group(*list, index / GROUP)?;
                    offsets.extend(group.skip((index % GROUP) as usize));
                    Ok(())
                })?;
            }
        }
        Ok(())
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
    fn lower(&self, seq: Seq) -> u32 {
        let Some(first) = self.first_seq.filter(|first| *first < seq) else { return 0 };
        u32::try_from(seq.0 - first.0).unwrap_or(u32::MAX).min(self.records)
    }

    /// The sequence of record `index`.
    pub(crate) fn presumed_seq(&self, index: u32) -> Option<Seq> {
        Some(Seq(self.first_seq?.0.saturating_add(index.into())))
    }
}

/// A run that is ready to be read, cached so that one reference gives the next reader all.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) agent: AgentId,
    pub(crate) run: RunId,
    /// Its slices, in the order of its records.
    pub(crate) parts: Arc<[RunSlice]>,
    /// The indexes of those with chunks, in the order of the chunks, once a chunk was asked for.
    with_chunks: OnceLock<Box<[usize]>>,
}

/// A place between records: the slice, and the index of a record in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Spot {
    pub(crate) part: usize,
    pub(crate) index: u32,
}

impl Opened {
    pub(crate) fn new(agent: AgentId, run: RunId, parts: Arc<[RunSlice]>) -> Self {
        Self { agent, run, parts, with_chunks: OnceLock::new() }
    }

    /// The slice whose first chunk has this order, and the later ones with chunks, in the order of
    /// the chunks; `None` if no slice begins with that chunk.
    pub(crate) fn with_chunks_from(&self, first: Lsn) -> Option<impl Iterator<Item = &RunSlice>> {
        let order = |at: &usize| self.parts.get(*at).map(|part| part.first_lsn);
        let all = self.with_chunks.get_or_init(|| {
            let has_chunks = |at: &usize| self.parts.get(*at).is_some_and(|part| part.chunks > 0);
            let mut all: Box<[usize]> = (0..self.parts.len()).filter(has_chunks).collect();
            all.sort_unstable_by_key(order);
            all
        });
        let start = all.binary_search_by_key(&Some(first), order).ok()?;
        Some(all.iter().skip(start).filter_map(|at| self.parts.get(*at)))
    }

    /// Where the first record with a sequence of at least `seq` is.
    pub(crate) fn locate(&self, seq: Seq) -> Spot {
        for (number, part) in self.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                return Spot { part: number, index: part.lower(seq) };
            }
        }
        Spot { part: self.parts.len(), index: 0 }
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
