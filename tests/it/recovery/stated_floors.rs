//! How far the log was durable may be stated by one frame alone, which a loss of power tore.
//! Recovery overwrites such a frame: if the power goes again meanwhile, the log still does not end
//! in front of what was durable.

use std::sync::Arc;

use runlog::format::FrameKind;
use runlog::{Durability, Metadata, RunLog};
use runlog_sim::{CrashImages, SimDisk, Survivors};

use crate::support::frames::{Frame, frames_in, unindexed};

const LARGE: usize = 5000;

/// A new store with a run, and records of which no frame says yet that they are durable.
fn begun(disk: &SimDisk, records: usize) -> RunLog {
    let log = unindexed(1).create_storage(Arc::new(disk.clone())).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent", "run", about).unwrap();
    for _ in 0..records {
        let _ = run.append(&[1; LARGE]).unwrap();
    }
    log
}

/// How many records fit into the first segment.
fn room() -> usize {
    let log = begun(&SimDisk::untracked(Vec::new()), 0);
    let first = log.stats().unwrap().end.segment;
    let run = log.writer("run").unwrap();
    let appended = (0..).take_while(|_| {
        let _ = run.append(&[1; LARGE]).unwrap();
        log.stats().unwrap().end.segment == first
    });
    appended.count()
}

/// A store with so many durable records and one more, and where the last frame of its first segment
/// begins, which alone states how far the log was durable.
fn with_last(records: usize, kind: FrameKind) -> (Vec<u8>, usize) {
    let disk = SimDisk::new();
    let log = begun(&disk, records);
    log.sync().unwrap();
    let _ = log.writer("run").unwrap().append(&[1; LARGE]).unwrap();
    let image = disk.image();
    let (last, frame) = frames_in(&image, 0).pop().unwrap();
    assert_eq!(frame.kind, kind);
    (image, last.start)
}

/// Damages the second record.
fn damage_record(image: &mut [u8]) {
    let is_record = |(_, frame): &Frame| frame.kind == FrameKind::Record;
    let (record, _) = frames_in(image, 0).into_iter().filter(is_record).nth(1).unwrap();
    image[record].fill(0xff);
}

/// Opens the store, with a loss of power at each operation, and counts what each opening after that
/// has of `records` that were durable, one of which is damaged.
fn lose_power_in_recovery(image: &[u8], records: usize, is_full: bool) {
    let disk = SimDisk::recording_from(image.to_vec());
    if is_full {
        disk.set_capacity(disk.allocated());
    }
    let log = unindexed(2).open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(log.trace("run").unwrap().flatten().count(), records - 1);
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for survivors in Survivors::ALL {
            let disk = SimDisk::untracked(crashes.image(survivors, 1));
            let log = unindexed(3).open_storage(Arc::new(disk)).unwrap();
            let found = log.trace("run").unwrap().flatten().count();
            let at = (crashes.boundary(), survivors);
            assert_eq!(found, records - 1, "after a loss of power at {at:?}");
        }
        if !crashes.advance() {
            return;
        }
    }
}

#[test]
fn a_loss_of_power_while_a_torn_seal_is_replaced_takes_nothing_that_was_durable() {
    let records = room();
    let (mut image, seal) = with_last(records, FrameKind::Seal);
    // The power went: of the SEAL frame the header was stored, and nothing behind it.
    image[seal + 72..].fill(0);
    damage_record(&mut image);
    lose_power_in_recovery(&image, records, false);
}

#[test]
fn a_loss_of_power_while_a_torn_tail_is_cleared_takes_nothing_that_was_durable() {
    let records = room() - 2;
    let (mut image, last) = with_last(records, FrameKind::Record);
    image[last + 2000..].fill(0);
    damage_record(&mut image);
    lose_power_in_recovery(&image, records, true);
}
