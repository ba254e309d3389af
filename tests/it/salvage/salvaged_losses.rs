//! Salvage of stores that lost whole segments.

use std::sync::Arc;

use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameKind};
use runlog::salvaged::{Caveat, Missing};
use runlog::storage::MemoryStorage;
use runlog::{Outcome, RunStatus, SalvageReport, salvage_storage};

use crate::support::frames::{EXTENT, frames_in, unindexed};

fn salvaged(image: &[u8]) -> (SalvageReport, Arc<MemoryStorage>) {
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    (salvage_storage(broken, out.clone()).unwrap(), out)
}

/// A closed store with several segments, and where they are in the file.
fn with_segments() -> (Vec<u8>, Vec<usize>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let first = log.stats().unwrap().end.segment.0;
    while log.stats().unwrap().end.segment.0 < first + 4 {
        let _ = run.append(&[1; 5000]).unwrap();
    }
    drop(run);
    log.close().unwrap();
    let image = storage.to_bytes();
    let starts = (EXTENTS_AT as usize..image.len()).step_by(EXTENT);
    let places: Vec<_> = starts.filter(|at| SegmentHeader::decode(&image[*at..]).is_ok()).collect();
    (image, places)
}

/// Whether the report names bytes of the segment at a place, from its first frame on.
fn is_reported(report: &SalvageReport, place: usize) -> bool {
    let first = place as u64 + u64::from(SEGMENT_HEADER_LEN);
    let is_it = |missing: &Missing| match missing {
        Missing::Bytes { offset, len } => *offset <= first && first < offset + len,
        _ => false,
    };
    report.missing.iter().any(is_it) && report.caveats.contains(&Caveat::Deletions)
}

/// A segment of which the last frame is the END of `run`, and the directory begins with `other`.
fn with_an_end_in_front_of_a_directory() -> Vec<u8> {
    (1..)
        .find_map(|records| {
            let storage = Arc::new(MemoryStorage::new());
            let log = unindexed().create_storage(storage.clone()).unwrap();
            let other = log.start_run("agent", "other", ()).unwrap();
            let run = log.start_run("agent", "run", ()).unwrap();
            (0..records).for_each(|_| drop(other.append(&[1; 3000]).unwrap()));
            let _ = run.end(&Outcome::completed()).unwrap();
            (0..2).for_each(|_| drop(other.append(&[1; 7000]).unwrap()));
            drop((run, other));
            log.close().unwrap();
            let image = storage.to_bytes();
            let is_it = frames_in(&image, 0).iter().rev().nth(1)?.1.kind == FrameKind::End;
            is_it.then_some(image)
        })
        .unwrap()
}

#[test]
fn damage_where_frames_and_directory_meet_costs_the_entries_that_it_meets() {
    let mut image = with_an_end_in_front_of_a_directory();
    let [.., (end, _), (seal, header)] = &frames_in(&image, 0)[..] else { unreachable!() };
    assert!(header.kind == FrameKind::Seal && seal.start - end.start < 100);
    image[end.start..seal.start + header.header_len() + 40].fill(0);
    let (_, out) = salvaged(&image);
    let log = unindexed().open_storage(out).unwrap();
    assert_eq!(log.run("run").unwrap().status, RunStatus::Completed);
}

fn records(out: Arc<MemoryStorage>) -> usize {
    unindexed().open_storage(out).unwrap().trace("run").unwrap().count()
}

#[test]
fn a_whole_segment_that_is_lost_is_reported() {
    let (image, places) = with_segments();
    assert!(places.len() > 4, "{places:?}");
    let (report, out) = salvaged(&image);
    assert!(report.is_complete(), "{report:?}");
    let all = records(out);
    for &lost in &places[..5] {
        let mut zeroed = image.clone();
        let end = image.len().min(lost + EXTENT);
        zeroed[lost..end].fill(0);
        let (report, out) = salvaged(&zeroed);
        assert!(is_reported(&report, lost), "{lost:x}: {report:?}");
        assert!(records(out) < all, "{lost:x}");
        // The file may be cut off there too.
        let (report, _) = salvaged(&image[..lost]);
        assert!(is_reported(&report, lost), "{lost:x}: {report:?}");
        // The header alone costs nothing, because the manifest has its contents.
        let mut headless = image.clone();
        headless[lost..lost + SEGMENT_HEADER_LEN as usize].fill(0);
        let (report, out) = salvaged(&headless);
        assert_eq!(records(out), all, "{report:?}");
        assert!(report.is_complete() && report.has_manifest, "{report:?}");
    }
}
