//! The ids in frames have a checksum of their own; a version of a document is one frame.

use std::sync::Arc;

use runlog::format::frames::ids::ids_len;
use runlog::format::{FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{Batch, Durability, Error, Metadata, NewRecord, Place, RunLog, TailWriter, Timestamp};

use crate::support::frames::{Frame, all_frames, of_kind, unindexed};

fn open(image: Vec<u8>) -> runlog::Result<RunLog> {
    unindexed().open_storage(Arc::new(MemoryStorage::from_bytes(image)))
}

fn put(log: &RunLog, key: &str, value: &[u8], level: Durability) {
    let _ = log.docs().put("space", key, &NewRecord::new(value).durability(level)).unwrap();
}

/// A store with a started run and a document in its second version, and the START and the PUT. The
/// last sync is known if `is_durable`.
fn store(is_durable: bool) -> (Vec<u8>, Frame, Frame) {
    let storage = Arc::new(MemoryStorage::new());
    let options = unindexed().tail_writer(TailWriter::Pwrite);
    let log = options.create_storage(storage.clone()).unwrap();
    put(&log, "key", b"first", Durability::Disk);
    let level = if is_durable { Durability::Disk } else { Durability::Process };
    let metadata = Metadata::new(b"metadata").at(Timestamp(5)).durability(level);
    drop(log.start_run("agent", "run", metadata).unwrap());
    put(&log, "key", b"second", level);
    put(&log, "another", b"value", level);
    let image = storage.to_bytes();
    let start = of_kind(&image, FrameKind::Start).swap_remove(0);
    let second = of_kind(&image, FrameKind::Put).swap_remove(1);
    (image, start, second)
}

/// The image with another byte at this place of a frame's payload.
fn damaged(image: &[u8], (range, header): &Frame, place: usize) -> Vec<u8> {
    let mut image = image.to_vec();
    image[range.start + header.header_len() + place] ^= 1;
    image
}

/// The length of the ids in a START of `agent` and `run`, or in a PUT of `space` and `key`.
fn len(header: &FrameHeader) -> usize {
    if header.kind == FrameKind::Put { ids_len(5 + 3) + 8 } else { ids_len(5 + 3) }
}

#[test]
fn damage_below_the_floor_costs_the_metadata_or_the_value_but_damaged_ids_refuse_the_store() {
    let (image, start, put) = store(true);
    for frame in [&start, &put] {
        for place in 0..frame.1.payload_len as usize {
            let opened = open(damaged(&image, frame, place));
            if place < len(&frame.1) {
                let Err(Error::Damaged(told)) = opened else { panic!("{place}: {opened:?}") };
                assert_eq!(told.place, Place::Frame(frame.1.position));
                continue;
            }
            let log = opened.unwrap();
            assert_eq!(log.recovery_report().damaged.len(), 1);
            let (metadata, value) = (log.metadata("run"), log.docs().get("space", "key"));
            let is_start = frame.1.kind == FrameKind::Start;
            assert_eq!(metadata.is_err_and(|error| error.is_corruption()), is_start);
            // The version that it evicts does not come back.
            assert_eq!(log.stats().unwrap().deleted_runs, 1);
            assert_eq!(value.is_err_and(|error| error.is_corruption()), !is_start);
            assert_eq!(log.run("run").unwrap().started_at, Timestamp(5));
            assert!(log.docs().version_of("space", "key").unwrap().is_some());
        }
    }
}

#[test]
fn above_the_floor_any_damage_ends_the_log() {
    let (image, start, put) = store(false);
    for (frame, runs) in [(&start, 0), (&put, 1)] {
        for place in 0..frame.1.payload_len as usize {
            let log = open(damaged(&image, frame, place)).unwrap();
            assert_eq!(log.recovery_report().torn, Some(frame.1.position));
            assert_eq!(log.stats().unwrap().runs, runs);
            let found = log.docs().get("space", "key").unwrap().unwrap();
            assert_eq!(found.payload(), b"first");
        }
    }
}

#[test]
fn a_version_of_a_document_is_one_frame_and_a_run_starts_without_a_bind() {
    let kinds = |image: &[u8]| -> Vec<FrameKind> {
        let frames = all_frames(image).into_iter().map(|frame| frame.1.kind);
        frames.filter(|kind| *kind != FrameKind::Watermark).collect()
    };
    let (image, ..) = store(true);
    use FrameKind::{Commit, Put, Start};
    assert_eq!(kinds(&image), [Put, Start, Put, Put]);
    let storage = Arc::new(MemoryStorage::from_bytes(image));
    let log = unindexed().open_storage(storage.clone()).unwrap();
    let mut batch = Batch::new();
    batch.put("space", "key", NewRecord::new(b"third"));
    batch.put("space", "another", NewRecord::new(b"next"));
    let _ = log.commit(&batch).unwrap();
    assert_eq!(kinds(&storage.to_bytes())[4..], [Put, Put, Commit]);
    assert_eq!(log.stats().unwrap().deleted_runs, 3);
}

/// Without the value and its padding. Directory and index come on top.
#[test]
fn the_frame_of_a_version_costs_few_bytes_beside_its_value() {
    let (_, _, (range, _)) = store(true);
    let value = b"second".len();
    assert!(range.len() - value <= 100, "{range:x?}");
}
