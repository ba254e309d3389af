//! What is kept to tell of runs that were deleted.
//!
//! A receipt is a part of the eviction: it is there from the moment on that the run is gone, and
//! goes when a compaction leaves it out. So it costs no frame of its own, and one that is too old
//! may be listed no more before its bytes go.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recovery::rebuild_directory;
use super::segment::Segment;
use super::shared::Engine;
use crate::error::{Error, Place, Result};
use crate::format::FrameKind;
use crate::format::eviction::{Eviction, EvictionReceipt, decode_evictions};
use crate::gc::Rule;
use crate::types::{AgentId, RunId, RunNo, Timestamp};

/// That a run was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// When it was deleted.
    pub at: Timestamp,
    /// By which rule.
    pub rule: Rule,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
}

impl Receipt {
    fn new(kept: EvictionReceipt) -> Self {
        let rule = Rule::from_code(kept.rule).unwrap_or(Rule::Deleted);
        Self { agent: kept.agent, run: kept.run, at: kept.at, rule, bytes: kept.bytes }
    }
}

/// Which receipts are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiptBound {
    oldest: (Timestamp, RunNo),
}

impl ReceiptBound {
    pub(crate) fn keeps(&self, eviction: &Eviction) -> bool {
        let kept = eviction.receipt.as_ref();
        kept.is_some_and(|kept| (kept.at, eviction.run_no) >= self.oldest)
    }
}

impl Engine {
    /// Which receipts are neither too old nor too many.
    pub(crate) fn receipt_bound(&self) -> Result<ReceiptBound> {
        let limits = self.options.receipts;
        let age = i64::try_from(limits.age.as_nanos()).unwrap_or(i64::MAX);
        let by_age = (Timestamp(self.now().0.saturating_sub(age)), RunNo(0));
        let mut all: Vec<(Timestamp, RunNo)> = Vec::new();
        for (segment, offsets) in self.receipt_frames()? {
            for eviction in read_evictions(&segment, &offsets)? {
                all.extend(eviction.receipt.map(|kept| (kept.at, eviction.run_no)));
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
        Ok(ReceiptBound { oldest: by_age.max(by_count) })
    }

    /// Receipts of deleted runs, the latest first, as far as they are kept.
    pub(crate) fn list_receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        let bound = self.receipt_bound()?;
        let mut kept: Vec<(RunNo, EvictionReceipt)> = Vec::new();
        for (segment, offsets) in self.receipt_frames()? {
            for eviction in read_evictions(&segment, &offsets)? {
                if bound.keeps(&eviction) {
                    kept.extend(eviction.receipt.map(|receipt| (eviction.run_no, receipt)));
                }
            }
        }
        kept.sort_by_key(|(run_no, receipt)| core::cmp::Reverse((receipt.at, *run_no)));
        kept.dedup_by_key(|(run_no, _)| *run_no);
        Ok(kept.into_iter().take(limit).map(|(_, receipt)| Receipt::new(receipt)).collect())
    }

    /// Whether a segment has receipts that are kept.
    pub(crate) fn has_receipts(
        &self,
        segment: &Arc<Segment>,
        bound: &ReceiptBound,
    ) -> Result<bool> {
        Ok(self.count_receipts(segment, bound)? > 0)
    }

    /// The bytes of the receipts of a segment that are kept.
    pub(crate) fn count_receipts(
        &self,
        segment: &Arc<Segment>,
        bound: &ReceiptBound,
    ) -> Result<u64> {
        let evictions = read_evictions(segment, &frames_of(segment)?)?;
        let kept = evictions.iter().filter(|eviction| bound.keeps(eviction));
        Ok(kept.map(|eviction| eviction.encoded_len() as u64 + 16).sum())
    }

    /// The frames with receipts, segment by segment.
    fn receipt_frames(&self) -> Result<Vec<(Arc<Segment>, BTreeSet<u32>)>> {
        let (sealed, tail, in_tail) = {
            let core = self.core.lock();
            let sealed = core.catalog.segments().iter().chain(&core.unapplied);
            let with_evictions = sealed
                .filter(|segment| segment.sealed().is_some_and(|sealed| sealed.has_evictions));
            let evictions = core.tail.builder.evictions().filter(|found| found.with_receipt);
            let in_tail: BTreeSet<u32> = evictions.map(|found| found.offset).collect();
            (with_evictions.cloned().collect::<Vec<_>>(), Arc::clone(&core.tail.segment), in_tail)
        };
        let mut frames = Vec::with_capacity(sealed.len() + 1);
        for segment in sealed {
            let offsets = frames_of(&segment)?;
            frames.push((segment, offsets));
        }
        frames.push((tail, in_tail));
        Ok(frames)
    }
}

/// Where a sealed segment has receipts.
fn frames_of(segment: &Arc<Segment>) -> Result<BTreeSet<u32>> {
    let mut offsets = BTreeSet::new();
    if segment.sealed().is_some_and(|sealed| sealed.has_evictions) {
        let directory = segment.directory(rebuild_directory)?;
        let place = Place::Directory { segment: segment.id() };
        for found in directory.evictions() {
            let found = found.map_err(|damage| Error::corrupt(place, damage))?;
            if found.with_receipt {
                offsets.insert(found.offset);
            }
        }
    }
    Ok(offsets)
}

/// The evictions of these frames. Damaged ones are left out: the directory says what they evict,
/// and what they told of it is lost.
fn read_evictions(segment: &Arc<Segment>, offsets: &BTreeSet<u32>) -> Result<Vec<Eviction>> {
    let mut evictions = Vec::new();
    for &offset in offsets {
        match segment.read_frame(offset) {
            Ok((header, payload)) if header.kind == FrameKind::Evict => {
                evictions.extend(decode_evictions(&payload).unwrap_or_default());
            }
            Ok(_) => {}
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(evictions)
}
