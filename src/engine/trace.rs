//! Reading the records of a run, in order, forwards and backwards, without a scan.
//!
//! A trace is a view as of the moment it was asked for: it holds the segments that it reads, so
//! that what it shows never changes, whatever is appended, deleted or reclaimed meanwhile (I8).
//! Damage is told where it is, as an error item; the records behind it follow.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::part::{Offsets, Part};
use super::segment::Payload;
use super::shared::Engine;
use super::values::Record;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frame::{FLAG_LATE, FLAG_PIECES, PieceRef, decode_pieces};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{AgentId, LogPosition, RunId, RunNo, RunRef, Seq};

/// A place between records: the part, and the record within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    part: usize,
    index: u32,
}

/// The records of a run, an iterator from the first to the last, or from the last with `rev()`.
///
/// Made by `RunLog::trace`. An error item says that one record is damaged or missing; the
/// iterator goes on behind it.
pub struct Trace {
    agent: AgentId,
    run: RunId,
    run_no: RunNo,
    parts: Vec<Part>,
    front: Spot,
    back: Spot,
    /// The sequence that is due at the front; a larger one means that records are missing.
    expected: Option<Seq>,
}

impl Engine {
    /// The trace of a run as of now.
    pub(crate) fn trace(&self, run: RunRef<'_>) -> Result<Trace> {
        let core = self.core.lock();
        self.check_open(&core)?;
        let run_no = self.resolve(&core, run)?;
        let id = RunId::new(run.run())?;
        let mut spans = Vec::new();
        let mut parts = Vec::new();
        let mut agent = None;
        if let Some(hot) = core.hot.get(run_no) {
            spans.clone_from(&hot.spans);
            agent = Some(hot.agent.clone());
        }
        for span in &spans {
            let segment = core.unapplied.iter().find(|segment| segment.id() == span.segment);
            let segment = segment.or_else(|| core.catalog.segment(span.segment));
            parts.extend(segment.map(|segment| Part::sealed(segment, span)));
        }
        if let Some(built) = core.tail.builder.run(run_no) {
            parts.push(Part {
                segment: Arc::clone(&core.tail.segment),
                records: built.entry.records,
                first_seq: built.entry.first_seq,
                next_seq: built.entry.next_seq,
                offsets: Offsets::Listed(built.offsets.as_slice().into()),
            });
        }
        let catalog = Arc::clone(&core.catalog);
        drop(core);
        for part in &mut parts {
            part.confirm(run_no)?;
        }
        let found = catalog.find(run.run())?;
        let mut all = found.parts(&catalog, run_no)?;
        all.append(&mut parts);
        let agent = match agent {
            Some(agent) => agent,
            None => found.row(&catalog, run_no)?.agent.clone(),
        };
        Ok(Trace::new(agent, id, run_no, all))
    }
}

impl Trace {
    fn new(agent: AgentId, run: RunId, run_no: RunNo, parts: Vec<Part>) -> Self {
        let back = Spot { part: parts.len(), index: 0 };
        let front = Spot { part: 0, index: 0 };
        Self { agent, run, run_no, parts, front, back, expected: Some(Seq(0)) }
    }

    /// The agent of the run.
    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// The id of the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Only the records with a sequence in this range.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-range-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// # let log = runlog::Options::new().open(&path)?;
    /// # let run = log.start_run("agent", "run", ())?;
    /// # for step in 0..10u8 { let _ = run.append(&[step])?; }
    /// use runlog::Seq;
    /// let seqs: Vec<u64> = log
    ///     .trace("run")?
    ///     .range(Seq(3)..Seq(5))?
    ///     .map(|record| record.map(|record| record.seq().0))
    ///     .collect::<runlog::Result<_>>()?;
    /// assert_eq!(seqs, [3, 4]);
    /// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Damage of a directory that had to be consulted.
    pub fn range(mut self, range: impl RangeBounds<Seq>) -> Result<Self> {
        let low = match range.start_bound() {
            Bound::Included(seq) => Some(*seq),
            Bound::Excluded(seq) => Some(Seq(seq.0.saturating_add(1))),
            Bound::Unbounded => None,
        };
        let high = match range.end_bound() {
            Bound::Included(seq) => seq.0.checked_add(1).map(Seq),
            Bound::Excluded(seq) => Some(*seq),
            Bound::Unbounded => None,
        };
        if let Some(low) = low {
            let at = self.locate(low)?;
            self.front = self.front.max(at);
            self.expected = self.expected.map(|expected| expected.max(low));
        }
        if let Some(high) = high {
            let at = self.locate(high)?;
            self.back = self.back.min(at);
        }
        Ok(self)
    }

    /// Where the first record with a sequence of at least `seq` is.
    fn locate(&self, seq: Seq) -> Result<Spot> {
        for (number, part) in self.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                return Ok(Spot { part: number, index: part.lower_bound(seq)? });
            }
        }
        Ok(Spot { part: self.parts.len(), index: 0 })
    }

    /// Moves the front to a record, if one is left.
    fn settle_front(&mut self) -> Option<(usize, u32)> {
        while self.front < self.back {
            let part = self.parts.get(self.front.part)?;
            if self.front.index < part.records {
                return Some((self.front.part, self.front.index));
            }
            self.front = Spot { part: self.front.part + 1, index: 0 };
        }
        None
    }

    /// Moves the back behind a record, if one is left, and answers that record.
    fn settle_back(&mut self) -> Option<(usize, u32)> {
        while self.front < self.back {
            if let Some(index) = self.back.index.checked_sub(1) {
                return Some((self.back.part, index));
            }
            let part = self.back.part.checked_sub(1)?;
            self.back = Spot { part, index: self.parts.get(part)?.records };
        }
        None
    }

    fn read(&self, part: usize, index: u32) -> Result<Record> {
        let part = self.parts.get(part).ok_or(Error::Poisoned)?;
        let offset = part.offset(index)?;
        self.read_record(part, offset).map_err(|error| match error {
            Error::Corrupt(mut corruption) => {
                corruption.run.get_or_insert_with(|| self.run.clone());
                corruption.seq = corruption.seq.or_else(|| part.presumed_seq(index));
                Error::Corrupt(corruption)
            }
            other => other,
        })
    }

    fn read_record(&self, part: &Part, offset: u32) -> Result<Record> {
        let segment = &part.segment;
        let named = |header: &FrameHeader, error| match error {
            Error::Corrupt(corruption) => Error::Corrupt(Corruption {
                run: Some(self.run.clone()),
                seq: Some(header.seq),
                ..corruption
            }),
            other => other,
        };
        let (header, stored) = segment.read_frame_named(offset, named)?;
        if header.kind != FrameKind::Record || header.run_no != self.run_no {
            return Err(segment.damaged(offset, Damage::Mismatch));
        }
        let stored = stored.pinned(segment);
        let gathered = if header.flags & FLAG_PIECES == 0 {
            None
        } else {
            let references = stored.get(usize::from(header.name_len)..).unwrap_or_default();
            Some(self.gather(&header, references).map_err(|error| named(&header, error))?)
        };
        Ok(Record {
            seq: header.seq,
            lsn: header.lsn,
            at: header.at,
            content: header.content,
            late: header.flags & FLAG_LATE != 0,
            stored,
            name_len: header.name_len,
            gathered,
        })
    }

    /// The payload of a record that lies in pieces.
    fn gather(&self, header: &FrameHeader, references: &[u8]) -> Result<Payload> {
        let at = |position: LogPosition, damage| Error::corrupt(Place::Frame(position), damage);
        let pieces = decode_pieces(references).map_err(|damage| at(header.position, damage))?;
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if total != u64::from(header.extra) {
            return Err(at(header.position, Damage::Mismatch));
        }
        let mut bytes = Vec::with_capacity(header.extra as usize);
        for PieceRef { at: position, len, crc } in pieces {
            let part = self.parts.iter().find(|part| part.segment.id() == position.segment);
            let part = part.ok_or_else(|| at(position, Damage::Missing))?;
            let piece = part.segment.read_header(position.offset)?;
            if piece.kind != FrameKind::Piece
                || piece.payload_len != len
                || piece.payload_crc != crc
            {
                return Err(at(position, Damage::Mismatch));
            }
            bytes.extend_from_slice(&part.segment.read_payload(&piece)?);
        }
        Ok(Payload::owned(bytes))
    }

    /// An item for records that should be here and are not.
    fn missing(&self, part: usize, seq: Seq) -> Error {
        let segment = self.parts.get(part).map(|part| part.segment.id()).unwrap_or_default();
        Error::Corrupt(Corruption {
            place: Place::Directory { segment },
            damage: Damage::Missing,
            run: Some(self.run.clone()),
            seq: Some(seq),
        })
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let (part, index) = self.settle_front()?;
        let read = self.read(part, index);
        let seq = match &read {
            Ok(record) => Some(record.seq),
            Err(Error::Corrupt(corruption)) => corruption.seq,
            Err(_) => None,
        };
        if let (Some(expected), Some(seq)) = (self.expected, seq)
            && seq > expected
        {
            self.expected = Some(seq);
            return Some(Err(self.missing(part, expected)));
        }
        self.expected = seq.map(|seq| Seq(seq.0.saturating_add(1)));
        self.front.index += 1;
        Some(read)
    }
}

impl DoubleEndedIterator for Trace {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (part, index) = self.settle_back()?;
        self.back = Spot { part, index };
        Some(self.read(part, index))
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("agent", &self.agent)
            .field("run", &self.run)
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}
