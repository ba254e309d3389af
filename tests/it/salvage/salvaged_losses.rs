//! Salvage of stores that lost more than frames: a copy whose update broke off, and whole segments.

use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::salvaged::{Doubt, Missing};
use runlog::storage::MemoryStorage;
use runlog::{Durability, NewRecord, ReaderOptions, SalvageReport, salvage_storage};

use crate::support::frames::{EXTENT, frames_in, unindexed};

fn salvaged(image: &[u8]) -> (SalvageReport, Arc<MemoryStorage>) {
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    (salvage_storage(broken, out.clone()).unwrap(), out)
}

fn document(out: Arc<MemoryStorage>) -> Option<Vec<u8>> {
    let reader = ReaderOptions::new().open_storage(out).unwrap();
    let found = reader.docs().get("state", "key").unwrap();
    found.map(|found| found.payload().to_vec())
}

/// The frames of a copy say what was durable in the store, and not in the copy.
#[test]
fn a_copy_whose_update_lost_power_is_salvaged_as_an_opening_finds_it() {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed(1).create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let put = |value: &[u8]| {
        let value = NewRecord::new(value).durability(Durability::Disk);
        let _ = log.docs().put("state", "key", &value).unwrap();
    };
    put(b"earlier");
    log.sync().unwrap();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let _ = reader.backup_to_storage(copy.clone()).unwrap();
    let before = copy.to_bytes();
    put(&[7; 2000]);
    let _ = run.append(b"behind").unwrap();
    let _ = reader.backup_to_storage(copy.clone()).unwrap();

    // The update wrote what is new, and the power went in front of its superblock.
    let mut image = copy.to_bytes();
    let front = usize::try_from(EXTENTS_AT).unwrap();
    image[..front].copy_from_slice(&before[..front]);
    let mut frames = frames_in(&image, 0).into_iter();
    let (record, _) = frames.rfind(|frame| frame.1.payload_len == 2000).unwrap();
    image[record].fill(0);
    for is_front_lost in [false, true] {
        if is_front_lost {
            // Nothing but a superblock is left in front of the segments.
            image[..4096].fill(0);
            image[3 * 4096..front].fill(0);
        } else {
            let storage = Arc::new(MemoryStorage::from_bytes(image.clone()));
            let log = unindexed(2).open_storage(storage).unwrap();
            let found = log.docs().get("state", "key").unwrap().unwrap();
            assert_eq!(found.payload(), b"earlier");
        }
        let (report, out) = salvaged(&image);
        assert_eq!(document(out), Some(b"earlier".to_vec()), "{is_front_lost}, {report:?}");
    }
}

/// A closed store with several segments, and where they are in the file.
fn with_segments() -> (Vec<u8>, Vec<usize>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed(1).create_storage(storage.clone()).unwrap();
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
    report.missing.iter().any(is_it) && report.doubts.contains(&Doubt::Deletions)
}

fn records(out: Arc<MemoryStorage>) -> usize {
    unindexed(2).open_storage(out).unwrap().trace("run").unwrap().count()
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
