//! Receipts of deleted runs. A receipt is a part of the eviction. It is gone when a compaction
//! leaves it out; lists may omit it earlier.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::state::segment::Segment;
use crate::engine::state::segment_directory::has_evictions;
use crate::error::{Corruption, Error, Result};
use crate::format::FrameKind;
use crate::format::codec::Decoded;
use crate::format::frames::eviction::{Eviction, EvictionReceipt, decode_evictions, receipts_at};
use crate::format::segments::directory::EvictionAt;
use crate::gc::Rule;
use crate::types::{AgentId, RunId, RunNo, Timestamp};

/// The receipt of a deleted run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Receipt {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// When it was deleted.
    pub deleted_at: Timestamp,
    /// The rule that deleted it.
    pub rule: Rule,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
}

impl Receipt {
    fn new(kept: EvictionReceipt) -> Self {
        let rule = Rule::from_code(kept.rule).unwrap_or(Rule::Deleted);
        Self { agent: kept.agent, run: kept.run, deleted_at: kept.at, rule, bytes: kept.bytes }
    }
}

/// Which receipts are kept: all from `oldest` on. Finding that reads all receipts, so it is done
/// once, when it is first needed.
#[derive(Debug)]
pub(crate) struct KeptReceipts<'e> {
    reader: &'e Reader,
    oldest: Cell<Option<(Timestamp, RunNo)>>,
}

impl KeptReceipts<'_> {
    pub(crate) fn keeps(&self, eviction: &Eviction) -> Result<bool> {
        match &eviction.receipt {
            Some(kept) => Ok((kept.at, eviction.run_no) >= self.oldest()?),
            None => Ok(false),
        }
    }

    /// The bytes of the kept receipts of a segment.
    pub(crate) fn bytes_in(&self, segment: &Arc<Segment>) -> Result<u64> {
        let offsets = frames_of(segment)?;
        if offsets.is_empty() {
            return Ok(0);
        }
        let oldest = self.oldest()?;
        let all = read_evictions(segment, &offsets, receipts_at, &mut Vec::new())?;
        let kept = all.iter().filter(|(key, _)| *key >= oldest);
        Ok(kept.map(|(_, len)| *len as u64 + 16).sum())
    }

    fn oldest(&self) -> Result<(Timestamp, RunNo)> {
        if let Some(oldest) = self.oldest.get() {
            return Ok(oldest);
        }
        let oldest = self.reader.oldest_receipt()?;
        self.oldest.set(Some(oldest));
        Ok(oldest)
    }
}

impl Reader {
    /// The receipts that are neither too old nor too many, as of the first use.
    pub(crate) fn kept_receipts(&self) -> KeptReceipts<'_> {
        KeptReceipts { reader: self, oldest: Cell::new(None) }
    }

    /// The oldest receipt to keep. With receipts that cannot be read fewer are too many, so more
    /// are kept.
    fn oldest_receipt(&self) -> Result<(Timestamp, RunNo)> {
        let limits = self.setup.options.receipts;
        let age = i64::try_from(limits.age.as_nanos()).unwrap_or(i64::MAX);
        let by_age = (Timestamp(self.setup.now().0.saturating_sub(age)), RunNo(0));
        let mut all: Vec<(Timestamp, RunNo)> = Vec::new();
        for (segment, offsets) in self.receipt_frames() {
            let odd = &mut Vec::new();
            match offsets.and_then(|at| read_evictions(&segment, &at, receipts_at, odd)) {
                Err(Error::Io { .. } | Error::Corrupt(_)) => {}
                receipts => all.extend(receipts?.iter().map(|(key, _)| *key)),
            }
        }
        let limit = usize::try_from(limits.count).unwrap_or(usize::MAX);
        let by_count = if limit == 0 {
            (Timestamp(i64::MAX), RunNo(u64::MAX))
        } else if all.len() > limit {
            let place = all.len() - limit;
            *all.select_nth_unstable(place).1
        } else {
            by_age
        };
        Ok(by_age.max(by_count))
    }

    /// The kept receipts of deleted runs, the latest first, and which damaged frames it left out.
    pub(crate) fn list_receipts(&self, limit: usize) -> Result<(Vec<Receipt>, Vec<Corruption>)> {
        let (receipts, mut odd) = (self.kept_receipts(), Vec::new());
        let mut kept: Vec<(RunNo, EvictionReceipt)> = Vec::new();
        for (segment, offsets) in self.receipt_frames() {
            for eviction in read_evictions(&segment, &offsets?, decode_evictions, &mut odd)? {
                if receipts.keeps(&eviction)? {
                    kept.extend(eviction.receipt.map(|receipt| (eviction.run_no, receipt)));
                }
            }
        }
        kept.sort_by_key(|(run_no, receipt)| core::cmp::Reverse((receipt.at, *run_no)));
        kept.dedup_by_key(|(run_no, _)| *run_no);
        let listed = kept.into_iter().take(limit).map(|(_, receipt)| Receipt::new(receipt));
        Ok((listed.collect(), odd))
    }

    /// The frames with receipts, by segment.
    fn receipt_frames(&self) -> Vec<(Arc<Segment>, Result<BTreeSet<u32>>)> {
        let (sealed, tail, in_tail) = {
            let state = self.state.lock();
            let sealed = state.catalog.segments().iter().chain(&state.unapplied);
            let with_evictions = sealed.filter(|segment| has_evictions(segment));
            let evictions = state.tail.builder.evictions().filter(|found| found.with_receipt);
            let in_tail: BTreeSet<u32> = evictions.map(|found| found.offset).collect();
            (with_evictions.cloned().collect::<Vec<_>>(), Arc::clone(&state.tail.segment), in_tail)
        };
        let mut frames = Vec::with_capacity(sealed.len() + 1);
        for segment in sealed {
            let offsets = frames_of(&segment);
            frames.push((segment, offsets));
        }
        frames.push((tail, Ok(in_tail)));
        frames
    }
}

/// The offsets of receipts in a sealed segment.
fn frames_of(segment: &Arc<Segment>) -> Result<BTreeSet<u32>> {
    if !has_evictions(segment) {
        return Ok(BTreeSet::new());
    }
    let with_receipt = |found: EvictionAt| found.with_receipt.then_some(found.offset);
    segment.in_directory(|directory| {
        directory.evictions().filter_map(|found| found.map(with_receipt).transpose()).collect()
    })
}

/// What `decode` finds in these frames. It skips damaged frames, and adds them to `odd`: the
/// directory still says which runs they evict, but their receipts are lost.
fn read_evictions<T>(
    segment: &Arc<Segment>,
    offsets: &BTreeSet<u32>,
    decode: impl Fn(&[u8]) -> Decoded<Vec<T>>,
    odd: &mut Vec<Corruption>,
) -> Result<Vec<T>> {
    let mut evictions = Vec::new();
    for &offset in offsets {
        match segment.read_frame(offset) {
            Ok((header, payload)) if header.kind == FrameKind::Evict => {
                evictions.extend(decode(&payload).unwrap_or_default());
            }
            Ok(_) => {}
            Err(Error::Corrupt(damage)) => odd.push(damage),
            Err(error) => return Err(error),
        }
    }
    Ok(evictions)
}
