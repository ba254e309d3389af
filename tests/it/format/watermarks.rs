//! Frames that state how far the log was durable, and what headers state without their payloads.

use std::sync::Arc;

use runlog::env::Step;
use runlog::format::FrameKind;
use runlog::format::frames::frame::FLAG_BATCH;
use runlog::storage::MemoryStorage;
use runlog::{
    Batch, Durability, Error, Metadata, NewRecord, Options, Outcome, ReaderOptions, RunLog,
    Timestamp,
};
use runlog_sim::SimDisk;

use crate::support::background::Background;
use crate::support::frames::{EXTENT, all_frames, of_kind};

fn create(disk: &SimDisk, background: &Background) -> RunLog {
    Options::new()
        .extent_size(EXTENT as u64)
        .index(false)
        .scheduler(Arc::new(background.clone()))
        .create_storage(Arc::new(disk.clone()))
        .unwrap()
}

fn process() -> Metadata<'static> {
    Metadata::new(b"").durability(Durability::Process)
}

#[test]
fn an_idle_store_writes_nothing_after_its_background_sync() {
    let (disk, background) = (SimDisk::new(), Background::default());
    let log = create(&disk, &background);
    let run = log.start_run("agent", "run", process()).unwrap();
    let _ = run.append(b"one").unwrap();
    for step in Step::ALL {
        background.run(step);
    }
    let before = disk.op_count();
    for _ in 0..3 {
        for step in Step::ALL {
            background.run(step);
        }
    }
    assert_eq!(disk.op_count(), before);
    assert!(of_kind(&disk.image(), FrameKind::Watermark).is_empty(), "there is no next frame");
    let _ = run.append(b"two").unwrap();
    assert_eq!(of_kind(&disk.image(), FrameKind::Watermark).len(), 1);
}

#[test]
fn a_store_without_syncs_writes_no_watermark() {
    let (disk, background) = (SimDisk::new(), Background::default());
    let log = create(&disk, &background);
    let run = log.start_run("agent", "run", process()).unwrap();
    (0..50).for_each(|_| drop(run.append(&[7; 100]).unwrap()));
    assert!(of_kind(&disk.image(), FrameKind::Watermark).is_empty());
}

/// One stands in front of a frame and its BIND, and in front of a batch and its BINDs.
#[test]
fn a_watermark_is_neither_in_a_batch_nor_between_a_bind_and_its_frame() {
    let (disk, background) = (SimDisk::new(), Background::default());
    let log = create(&disk, &background);
    let mut syncs = 0;
    for number in 0..60 {
        let run = format!("run-{number}");
        if number % 2 == 0 {
            log.sync().unwrap();
            syncs += 1;
        }
        let _ = log.start_run("agent", &run, process()).unwrap();
        // The next segment has no entry of the older run.
        let record = NewRecord::new(&[7; 3000]);
        let _ = log.writer("run-0").unwrap().append_record(&record).unwrap();
        let mut batch = Batch::new();
        batch.put("space", &run, NewRecord::new(b"value"));
        batch.append("agent", "run-0", NewRecord::new(b"first"));
        batch.append("agent", &run, NewRecord::new(b"second"));
        log.sync().unwrap();
        syncs += 1;
        let _ = log.commit(&batch).unwrap();
    }
    let frames = all_frames(&disk.image());
    let mut last = None;
    let mut marks = 0;
    for pair in frames.windows(2) {
        let [(_, before), (_, mark)] = pair else { unreachable!() };
        let Some(durable) = mark.durable() else { continue };
        marks += 1;
        assert!(before.kind != FrameKind::Bind && before.flags & FLAG_BATCH == 0, "{before:?}");
        assert!(durable <= mark.position && Some(durable) > last, "{mark:?}");
        last = Some(durable);
    }
    assert!(frames.last().unwrap().1.kind != FrameKind::Watermark);
    // A roll may sync, too.
    assert!((syncs / 2..=syncs + 20).contains(&marks), "{marks} of {syncs}");
}

/// So many records that one read of the reader does not reach the frame that states it.
#[test]
fn a_reader_of_durable_records_finds_how_far_the_log_is_durable_behind_many_frames() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(1 << 20).background(false);
    let log = options.create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", process()).unwrap();
    let reader = ReaderOptions::new().durable_only(true).open_storage(storage).unwrap();
    (0..300).for_each(|_| drop(run.append(&[7; 1000]).unwrap()));
    assert!(!reader.refresh().unwrap());
    log.sync().unwrap();
    let _ = run.append(b"not durable").unwrap();
    assert!(reader.refresh().unwrap());
    assert_eq!(reader.trace("run").unwrap().count(), 300);
    assert!(!reader.refresh().unwrap());
}

/// The number of a CHUNK is tested with large records.
#[test]
fn a_hold_and_a_start_with_damaged_payloads_still_count() {
    let (disk, background) = (SimDisk::new(), Background::default());
    let log = create(&disk, &background);
    let metadata = Metadata::new(b"metadata").at(Timestamp(5));
    let run = log.start_run("agent", "run", metadata).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let _ = log.hold("run", "evidence").unwrap();
    let _ = log.start_run("agent", "other", ()).unwrap();
    let mut image = disk.image();
    for kind in [FrameKind::Hold, FrameKind::Start] {
        let (range, header) = of_kind(&image, kind).swap_remove(0);
        image[range.start + header.header_len() + header.payload_len as usize - 1] ^= 1;
    }
    let options = Options::new().extent_size(EXTENT as u64).background(false);
    let log = options.open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
    assert_eq!(log.recovery_report().damaged.len(), 2, "{}", log.recovery_report());
    assert!(log.run("run").unwrap().held);
    assert!(matches!(log.delete_run("run"), Err(Error::RunHeld { .. })));
    let summary = log.run("run").unwrap();
    assert_eq!(summary.started_at, Timestamp(5));
    assert!(log.metadata("run").unwrap_err().is_corruption());
}
