//! Sectors that the disk cannot read, while a run is erased and where no manifest is left. What
//! they cost an opening and a salvage is in `every_byte`.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, PAGE, SUPERBLOCK_AT};
use runlog::salvaged::{Caveat, Missing};
use runlog::storage::MemoryStorage;
use runlog::{
    Compaction, Error, IoAction, NewRecord, Options, Outcome, SalvageReport, salvage_storage,
};
use runlog_sim::SimDisk;

use crate::support::frames::EXTENT;

const SECTOR: u64 = 512;

fn options() -> Options {
    let manual = Compaction::new().automatic(false);
    Options::new().extent_size(EXTENT as u64).background(false).compaction(manual)
}

fn payload(number: u64) -> Vec<u8> {
    format!("record {number:04} ").repeat(60).into_bytes()
}

/// A store with an index, free extents, deleted runs, documents, and a tail.
fn store() -> Vec<u8> {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..3 {
        let gone = log.start_run("agent", &format!("gone {number}"), ()).unwrap();
        (0..9).for_each(|_| drop(gone.append(&[number; 7000]).unwrap()));
        let _ = gone.end(&Outcome::completed()).unwrap();
    }
    let mut count = 0..;
    for number in 0..12 {
        let run = log.start_run("agent", &format!("run {number}"), ()).unwrap();
        count.by_ref().take(9).for_each(|number| drop(run.append(&payload(number)).unwrap()));
        if number < 9 {
            let _ = run.end(&Outcome::completed()).unwrap();
        }
        let value = payload(count.next().unwrap());
        let _ = log.docs().put("space", &format!("key {number}"), &NewRecord::new(&value)).unwrap();
    }
    log.checkpoint().unwrap();
    for number in 0..3 {
        log.delete_run(format!("gone {number}").as_str()).unwrap();
    }
    log.reclaim().unwrap();
    assert!(log.stats().unwrap().free_extents > 1 && log.stats().unwrap().index_extents > 0);
    let image = disk.image();
    drop(log);
    image
}

fn salvaged(image: &[u8], bad: &Range<u64>) -> runlog::Result<SalvageReport> {
    let disk = SimDisk::untracked(image.to_vec());
    disk.fail_reads_in(bad.clone(), ErrorKind::Other);
    salvage_storage(Arc::new(disk), Arc::new(MemoryStorage::new()))
}

fn sectors(image: &[u8]) -> impl Iterator<Item = Range<u64>> {
    (0..image.len() as u64 / SECTOR).map(|sector| sector * SECTOR..(sector + 1) * SECTOR)
}

/// That is no damage: the same call does it once the disk reads again.
#[test]
fn an_erasure_that_cannot_read_a_segment_answers_with_the_read_that_failed() {
    let image = store();
    let mut refused = 0;
    for bad in sectors(&image).step_by(3) {
        let disk = Arc::new(SimDisk::untracked(image.clone()));
        let log = options().open_storage(disk.clone()).unwrap();
        disk.fail_reads_in(bad.clone(), ErrorKind::Other);
        let erased = log.erase_run("run 3");
        disk.clear_faults();
        if let Err(error) = erased {
            assert!(names(&error, &bad), "{bad:?}: {error:?}");
            refused += 1;
            match log.erase_run("run 3") {
                Ok(_) | Err(Error::RunNotFound { .. }) => {}
                Err(error) => panic!("{bad:?}: {error:?}"),
            }
        }
        let mark = &payload(30)[..24];
        assert!(!disk.image().windows(mark.len()).any(|bytes| bytes == mark), "{bad:?}");
    }
    assert!(refused > 10, "{refused}");
}

/// No header and no frame is left of a segment that nothing else tells of.
#[test]
fn salvage_tells_of_an_extent_without_a_manifest_of_which_nothing_can_be_read() {
    let mut image = store();
    image[(SUPERBLOCK_AT + 2 * PAGE) as usize..EXTENTS_AT as usize].fill(0);
    let starts = (EXTENTS_AT as usize..image.len()).step_by(EXTENT);
    let starts = starts.filter(|at| SegmentHeader::decode(&image[*at..]).is_ok());
    for start in starts {
        let bad = start as u64..(start + EXTENT) as u64;
        let report = salvaged(&image, &bad).unwrap();
        let told = Missing::Bytes { offset: bad.start, len: EXTENT as u64 };
        assert!(report.missing.contains(&told), "{bad:?}: {report:?}");
        assert!(report.caveats.contains(&Caveat::Deletions), "{bad:?}: {report:?}");
    }
    let all = 0..image.len() as u64;
    assert!(matches!(salvaged(&image, &all), Err(Error::Io { .. })));
}

/// Whether an error says that a read of this sector failed.
fn names(error: &Error, bad: &Range<u64>) -> bool {
    matches!(error, Error::Io { action: IoAction::Read { offset }, .. } if *offset < bad.end)
}
