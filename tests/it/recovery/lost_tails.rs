//! What a failed sync dropped is stored again by the next opening: what counts, and what an earlier
//! opening wrote.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::{FrameKind, MANIFEST_AT};
use runlog::storage::Storage;
use runlog::{Durability, Metadata, NewRecord, RunLog, TailWriter};
use runlog_sim::{OpKind, SimDisk, Survivors};

use crate::support::frames::{EXTENT, frames_in, unindexed};

fn on(image: Vec<u8>) -> SimDisk {
    SimDisk::untracked(image)
}

/// The sequences of the records of a run that can be read.
fn seqs(log: &RunLog, run: &str) -> Vec<u64> {
    log.trace(("agent", run)).unwrap().flatten().map(|record| record.seq().0).collect()
}

fn open(disk: &SimDisk) -> RunLog {
    unindexed().open_storage(Arc::new(disk.clone())).unwrap()
}

/// A disk with a run of nine records, of which no sync covers any.
fn unsynced() -> (SimDisk, RunLog) {
    let disk = SimDisk::new();
    let log = unindexed().create_storage(Arc::new(disk.clone())).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent", "run", about).unwrap();
    for number in 0..9 {
        let _ = run.append(&[number; 900]).unwrap();
    }
    (disk, log)
}

#[test]
fn what_a_failed_sync_dropped_is_stored_again_although_the_header_of_its_segment_is_damaged() {
    let (disk, log) = unsynced();
    disk.fail_next(OpKind::Sync, ErrorKind::Other);
    assert!(log.sync().is_err());
    drop(log);
    disk.clear_faults();
    let header = EXTENT as u64 + 3;
    let mut byte = [0];
    disk.read_at(header, &mut byte).unwrap();
    disk.write_at(header, &[byte[0] ^ 1]).unwrap();
    let log = open(&disk);
    assert_eq!(seqs(&log, "run").len(), 9);
    log.sync().unwrap();
    drop(log);
    disk.lose_power(Survivors::Nothing, 1);
    let log = open(&disk);
    assert_eq!(seqs(&log, "run").len(), 9, "{}", log.recovery_report());
}

#[test]
fn a_seal_that_a_failed_sync_dropped_is_stored_again() {
    // Which sectors are dropped follows from the number of the operation.
    for more in 0..10 {
        let disk = SimDisk::new();
        let options = unindexed().tail_writer(TailWriter::Pwrite);
        let log = options.create_storage(Arc::new(disk.clone())).unwrap();
        (0..more).for_each(|_| disk.sync().unwrap());
        let run = log.start_run("agent", "run", process()).unwrap();
        let first = log.stats().unwrap().end.segment;
        while log.stats().unwrap().end.segment == first {
            let _ = run.append(&[1; 900]).unwrap();
        }
        drop(run);
        disk.fail_next(OpKind::Sync, ErrorKind::Other);
        assert!(log.sync().is_err());
        drop(log);
        disk.clear_faults();
        let log = open(&disk);
        let found = seqs(&log, "run").len();
        drop(log);
        disk.lose_power(Survivors::Nothing, 1);
        let log = open(&disk);
        assert_eq!(seqs(&log, "run").len(), found, "{more}");
        assert!(log.verify().unwrap().is_clean(), "{more}: {:?}", log.verify().unwrap().problems);
    }
}

fn process() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

/// The first bytes of the records of a run.
fn firsts(log: &RunLog) -> Vec<u8> {
    log.trace(("agent", "run")).unwrap().flatten().map(|record| record.payload()[0]).collect()
}

/// Opens the store with one sync that fails, which drops some sectors; then once
/// more. This is done for each sync of an opening, several times, and each time `check` gets the
/// disk and the store.
fn with_a_failed_sync(image: &[u8], is_full: bool, check: impl Fn(&SimDisk, RunLog)) {
    let options = || unindexed().tail_writer(TailWriter::Pwrite);
    // Which sectors are dropped follows from the number of the operation.
    for more in 0..10 {
        for sync in 0.. {
            let disk = SimDisk::from_image(image.to_vec());
            if is_full {
                disk.set_capacity(disk.allocated());
            }
            for _ in 0..more {
                disk.sync().unwrap();
            }
            disk.fail_nth(OpKind::Sync, sync, ErrorKind::Other);
            if options().open_storage(Arc::new(disk.clone())).is_ok() {
                break;
            }
            disk.clear_faults();
            check(&disk, options().open_storage(Arc::new(disk.clone())).unwrap());
        }
    }
}

/// On a full disk an opening overwrites whole frames that do not count. If these zeros are not
/// stored, the frames are behind what is appended later, with the order of the log reversed.
#[test]
fn what_an_opening_overwrote_stays_out_after_a_failed_sync_and_a_loss_of_power() {
    // Records of one sector each: what is written into a sector makes all of it durable.
    let disk = on(Vec::new());
    let log = unindexed().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", process()).unwrap();
    let (start, len) = (log.stats().unwrap().end.offset as usize, 512 - FRAME_HEADER_LEN);
    let first = (start + FRAME_HEADER_LEN + 8).next_multiple_of(512) - start - FRAME_HEADER_LEN;
    let _ = run.append(&vec![0; first]).unwrap();
    for number in 1..8 {
        let _ = run.append(&vec![number; len]).unwrap();
    }
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    let (hole, _) =
        frames.into_iter().filter(|(_, it)| it.kind == FrameKind::Record).nth(3).unwrap();
    assert_eq!((hole.start % 512, hole.len()), (0, 512));
    image[hole].fill(0);
    with_a_failed_sync(&image, true, |disk, log| {
        assert_eq!(firsts(&log), [0, 1, 2]);
        let record = NewRecord::new(&[99; 440]).durability(Durability::Disk);
        let _ = log.writer("run").unwrap().append_record(&record).unwrap();
        drop(log);
        disk.lose_power(Survivors::Nothing, 1);
        let log = open(disk);
        assert_eq!(firsts(&log), [0, 1, 2, 99], "{}", log.recovery_report());
    });
}

/// A segment in front of the floor, with a damaged SEAL frame that the manifest does not know yet.
#[test]
fn a_seal_that_an_opening_wrote_is_stored_again_after_a_failed_sync() {
    let disk = on(Vec::new());
    let log = unindexed().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", process()).unwrap();
    let first = log.stats().unwrap().end.segment;
    let mut count = 0;
    while log.stats().unwrap().end.segment == first {
        let _ = run.append(&vec![count; 5000]).unwrap();
        count += 1;
    }
    log.sync().unwrap();
    // It states the floor.
    let _ = run.append(&[count; 200]).unwrap();
    let mut image = disk.image();
    let (manifest, record) = (usize::try_from(MANIFEST_AT).unwrap(), 40);
    let used = image[manifest..EXTENT].iter().rposition(|byte| *byte != 0).unwrap();
    let last = manifest + 64 + (used - 64) / record * record;
    image[last..last + record].fill(0);
    let (seal, frame) = frames_in(&image, 0).pop().unwrap();
    assert_eq!(frame.kind, FrameKind::Seal);
    image[seal.start + 80] ^= 1;
    with_a_failed_sync(&image, false, |disk, log| {
        assert_eq!(firsts(&log).len(), usize::from(count) + 1);
        drop(log);
        disk.lose_power(Survivors::Nothing, 1);
        let log = open(disk);
        assert_eq!(firsts(&log).len(), usize::from(count) + 1);
    });
}
