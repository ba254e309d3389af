//! Which numbers were never used: of segments, of runs, of the order of the log.

use super::Known;
use super::base::Base;
use super::log::RecoveredLog;
use crate::error::{Result, unless_damaged};
use crate::format::NUMBERS_END;
use crate::format::segment::Purpose;
use crate::types::{Lsn, RunNo, SegmentId};

/// Numbers that were never used.
pub(super) struct Fresh {
    pub(super) segment: SegmentId,
    pub(super) run_no: RunNo,
    pub(super) lsn: Lsn,
}

pub(super) fn fresh_numbers(base: &Base, known: &Known, log: &RecoveredLog) -> Result<Fresh> {
    let block = &base.superblock;
    let mut fresh = Fresh {
        segment: block.next_segment.max(SegmentId(1)),
        run_no: block.next_run_no.max(log.next_run_no).max(RunNo(1)),
        lsn: block.next_lsn.max(log.next_lsn).max(Lsn(1)),
    };
    let segments = known.sealed.iter().chain(known.unsealed.values()).chain(&known.retired);
    for segment in segments {
        fresh.segment = fresh.segment.max(SegmentId(segment.id().0.saturating_add(1)));
    }
    for purpose in [Purpose::Log, Purpose::Output] {
        let last = known.last_sealed(purpose);
        let directory = last.map(|last| unless_damaged(last.directory()));
        if let Some(directory) = directory.transpose()?.flatten() {
            fresh.run_no = fresh.run_no.max(directory.next_run_no());
            fresh.lsn = fresh.lsn.max(Lsn(directory.last_lsn().0.saturating_add(2)));
        }
    }
    for segment in known.unsealed.values() {
        if let Some(header) = unless_damaged(segment.header())? {
            fresh.run_no = fresh.run_no.max(header.next_run_no);
            fresh.lsn = fresh.lsn.max(header.next_lsn);
        }
    }
    fresh.lsn = fresh.lsn.min(Lsn(NUMBERS_END));
    Ok(fresh)
}
