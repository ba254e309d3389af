//! Which numbers were never used: of segments, of runs, of the order of the log.

use super::Known;
use super::base::Base;
use super::log::RecoveredLog;
use super::scan::rebuild_directory;
use crate::error::{Damage, Error, Place, Result};
use crate::format::segment::Purpose;
use crate::types::{Lsn, RunNo, SegmentId};

/// Numbers that were never used.
pub(super) struct Fresh {
    pub(super) segment: SegmentId,
    pub(super) run_no: RunNo,
    pub(super) lsn: Lsn,
}

/// Numbers that a store gives end below this one; those of segments at half of theirs.
const LAST_NUMBER: u64 = 1 << 62;

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
        if let Some(directory) = last.and_then(|last| last.directory(rebuild_directory).ok()) {
            fresh.run_no = fresh.run_no.max(directory.next_run_no());
            fresh.lsn = fresh.lsn.max(Lsn(directory.last_lsn().0.saturating_add(2)));
        }
    }
    for segment in known.unsealed.values() {
        if let Ok(header) = segment.header() {
            fresh.run_no = fresh.run_no.max(header.next_run_no);
            fresh.lsn = fresh.lsn.max(header.next_lsn);
        }
    }
    // Nobody writes that much: the file only says so, and going on would come to the end.
    let segments = u64::from(fresh.segment.0) << 31;
    let largest = block.epoch.0.max(fresh.run_no.0).max(fresh.lsn.0).max(segments);
    if largest >= LAST_NUMBER {
        let place = Place::Superblock { slot: u8::from(block.epoch.0 % 2 == 1) };
        let damage = Damage::OutOfRange { found: largest, max: LAST_NUMBER - 1 };
        return Err(Error::corrupt(place, damage));
    }
    Ok(fresh)
}
