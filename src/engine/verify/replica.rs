//! Checking everything that a process sees that only reads.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::read::list::count_runs;
use crate::engine::read::trace::Trace;
use crate::engine::reader::Replica;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::verify::segments::{Large, check_sealed, check_tail, read_large};
use crate::engine::verify::{
    VerifyReport, sealed_segments, verify_segment_header, verify_sequences,
};
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::codec::Decoded;
use crate::format::map::header::{HeaderFault, StaticHeader};
use crate::format::map::owner;
use crate::format::map::superblock::Superblock;
use crate::format::{OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT};
use crate::types::LogPosition;

/// How often a page is read that does not check: the writer may be writing it.
const LOOKS: usize = 8;

/// Checks a store that this process only reads. What the writer moved meanwhile is left out: where
/// it is now was checked, or will be the next time.
pub(crate) fn verify_replica(replica: &Arc<Replica>) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    verify_pages(&replica.disk, &mut report)?;
    let known = replica.report();
    let (sealed, tail, end, deleted, in_tail) = {
        let state = replica.answers.open()?;
        let runs = state.tail.builder.runs().iter().map(|built| &built.entry);
        let in_tail: HashMap<_, _> =
            runs.filter_map(|run| Some((run.run_no, run.first_seq?))).collect();
        let (tail, deleted) = (Arc::clone(&state.tail.segment), Arc::clone(&state.deleted));
        (sealed_segments(&state), tail, state.tail.offset, deleted, in_tail)
    };
    // Directories are read below, and so are frames in front of the ends of their segments.
    let is_read = |at: LogPosition| {
        let in_sealed = |segment: &Arc<Segment>| {
            segment.id() == at.segment && segment.sealed().is_some_and(|seal| at.offset < seal.end)
        };
        (tail.id() == at.segment && at.offset < end) || sealed.iter().any(in_sealed)
    };
    let is_told = |found: &&Corruption| match found.place {
        Place::Manifest { .. } | Place::Extent { .. } => true,
        Place::Frame(at) => !is_read(at),
        _ => false,
    };
    report.problems.extend(known.damaged.iter().filter(is_told).cloned());
    let mut large = Large::new();
    let row_of = |run_no| replica.ask(|answers| answers.row_of(run_no)).ok().flatten();
    let name_of = |run_no| row_of(run_no).map(|row| (row.agent, row.run));
    for segment in sealed.iter().chain([&tail]) {
        let mut found = VerifyReport::default();
        if segment.extent().0 == u32::MAX {
            continue;
        }
        verify_segment_header(segment, &mut found)?;
        found.add(match segment.sealed() {
            Some(_) => check_sealed(segment, &name_of, &mut large),
            None => check_tail(segment, end, &name_of, &mut large),
        })?;
        if found.is_clean() || replica.holds(segment)? {
            report.add(Ok(found))?;
        }
    }
    for (run_no, seqs) in large {
        let view = replica.number();
        let opened = report.unless_damaged(replica.ask(|answers| answers.open_number(run_no)))?;
        // It may have been deleted since.
        let Some(opened) = opened.flatten() else { continue };
        let trace = Trace::new(Arc::new(opened), run_no, None);
        let trace = trace.moving(Arc::<Replica>::clone(replica), view);
        read_large(trace, &seqs, &mut report)?;
    }
    verify_sequences(sealed, (tail.id(), &in_tail), &deleted, &mut report)?;
    report.runs = report.unless_damaged(replica.ask(count_runs))?.unwrap_or(0);
    Ok(report)
}

/// Checks what stands in front of the extents.
fn verify_pages(disk: &Disk, report: &mut VerifyReport) -> Result<()> {
    let header = |page: &[u8]| match StaticHeader::decode(page) {
        Err(HeaderFault::Damaged(damage)) => Err(damage),
        Err(_) => Err(Damage::Magic),
        Ok(_) => Ok(()),
    };
    verify_page(disk, (0, Place::Header), &header, report)?;
    for slot in 0..2u8 {
        let at = SUPERBLOCK_AT + u64::from(slot) * PAGE;
        let superblock = |page: &[u8]| Superblock::decode(page).map(drop);
        verify_page(disk, (at, Place::Superblock { slot }), &superblock, report)?;
    }
    let owner = |page: &[u8]| owner::decode(page).map(drop);
    verify_page(disk, (OWNER_AT, Place::OwnerPage), &owner, report)
}

fn verify_page(
    disk: &Disk,
    (at, place): (u64, Place),
    check: &dyn Fn(&[u8]) -> Decoded<()>,
    report: &mut VerifyReport,
) -> Result<()> {
    report.bytes += PAGE;
    let mut damage = None;
    for _ in 0..LOOKS {
        match check(&disk.read_padded(at, PAGE_LEN)?) {
            Ok(()) => return Ok(()),
            Err(found) => damage = Some(found),
        }
    }
    report.problems.extend(damage.map(|damage| Corruption::new(place, damage)));
    Ok(())
}
