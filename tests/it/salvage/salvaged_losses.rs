//! Salvage of stores that lost more than frames: a copy whose update broke off, and whole segments.

use std::ops::Range;
use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::segments::segment::SegmentHeader;
use runlog::salvaged::Missing;
use runlog::storage::MemoryStorage;
use runlog::{
    Durability, Metadata, NewRecord, ReaderOptions, RunLog, SalvageReport, salvage_storage,
};

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

/// A killed store with several segments, of which no superblock knows yet that they are full; and
/// where they are in the file.
fn with_unsealed_segments() -> (Vec<u8>, Vec<Range<usize>>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed(1).create_storage(storage.clone()).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent", "run", about).unwrap();
    let first = log.stats().unwrap().end.segment.0;
    while log.stats().unwrap().end.segment.0 < first + 4 {
        let record = NewRecord::new(&[1; 5000]).durability(Durability::Process);
        let _ = run.append_record(&record).unwrap();
    }
    let mut image = storage.to_bytes();
    let starts = (EXTENTS_AT as usize..image.len()).step_by(EXTENT);
    let header = |at: &usize| SegmentHeader::decode(&image[*at..]).ok();
    let mut segments: Vec<_> = starts.filter_map(|at| Some((header(&at)?.key.id, at))).collect();
    segments.sort_unstable();
    let places: Vec<_> = segments.into_iter().map(|(_, at)| at..at + EXTENT).collect();
    image.resize(image.len().max(places.last().unwrap().end), 0);
    (image, places)
}

fn is_told(report: &SalvageReport, place: &Range<usize>) -> bool {
    report.missing.iter().any(|missing| match missing {
        Missing::Bytes { offset, len } => {
            *offset <= place.start as u64 && place.end as u64 <= offset + len
        }
        _ => false,
    })
}

fn records(log: &RunLog) -> usize {
    log.trace("run").unwrap().count()
}

#[test]
fn a_whole_segment_that_is_lost_is_told() {
    let (image, places) = with_unsealed_segments();
    assert!(places.len() > 4, "{places:?}");
    let (report, out) = salvaged(&image);
    assert!(report.is_complete(), "{report:?}");
    let all = records(&unindexed(2).open_storage(out).unwrap());
    // Of the last one the manifest might not have told durably.
    let lost = places[places.len() - 2].clone();
    assert!(places.is_sorted_by_key(|place| place.start), "{places:?}");
    let mut zeroed = image.clone();
    // The last one says of it that it was durable.
    zeroed[lost.start..].fill(0);
    let mut headless = image.clone();
    headless[lost.start..lost.start + 64].fill(0);
    for (what, image) in [("zeros", &*zeroed), ("cut off", &image[..lost.start])] {
        let (report, out) = salvaged(image);
        assert!(is_told(&report, &lost), "{what}: {lost:x?} {report:?}");
        assert!(records(&unindexed(2).open_storage(out).unwrap()) < all, "{what}");
    }
    // So is the one with the end of what was durable, though no opening reads the file then.
    let (report, _) = salvaged(&image[..places[0].start]);
    assert!(is_told(&report, &places[0]), "{:x?} {report:?}", places[0]);
    // The header alone costs nothing.
    let (report, out) = salvaged(&headless);
    assert_eq!(records(&unindexed(2).open_storage(out).unwrap()), all, "{report:?}");
    assert!(report.is_complete() && report.lost_headers == 1, "{report:?}");
}
