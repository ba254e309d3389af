//! An index that is true to a directory which is damaged, where the frames say another name.

use std::sync::Arc;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{Error, IndexRecovery, Options, RunLog};

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// In the first segment `from` becomes `to`, which is as long, in all frames that name a run, and
/// the directory is damaged.
fn rename(image: &mut [u8], from: &[u8], to: &[u8]) {
    let segment = &mut image[usize::try_from(EXTENTS_AT).unwrap()..];
    let key = SegmentHeader::decode(segment).unwrap().key;
    let (mut at, mut renamed) = (SEGMENT_HEADER_LEN as usize, 0);
    while let Ok(mut header) = FrameHeader::decode(&segment[at..], key, at as u32) {
        let start = at + FRAME_HEADER_LEN;
        let payload = start..start + header.payload_len as usize;
        match header.kind {
            FrameKind::Bind | FrameKind::Start => {
                let mut ids = segment[payload.clone()].to_vec();
                if let Some(place) = ids.windows(from.len()).position(|part| part == from) {
                    ids[place..place + to.len()].copy_from_slice(to);
                    header.set_payload(&[], &ids);
                    segment[at..start].copy_from_slice(&header.encode(key.salt));
                    segment[payload].copy_from_slice(&ids);
                    renamed += 1;
                }
            }
            FrameKind::Seal => segment[start + 100] ^= 1,
            _ => {}
        }
        at += header.frame_len();
    }
    assert_eq!(renamed, 2);
}

/// A store with an index whose first segment has another name for the run "indexed".
fn renamed() -> Arc<MemoryStorage> {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    let _ = log.start_run("agent", "indexed", ()).unwrap().append(b"one").unwrap();
    let filler = log.start_run("agent", "filler", ()).unwrap();
    for _ in 0..30 {
        let _ = filler.append(&[1; 5000]).unwrap();
    }
    log.checkpoint().unwrap();
    log.close().unwrap();
    let mut image = file.to_bytes();
    rename(&mut image, b"indexed", b"renamed");
    Arc::new(MemoryStorage::from_bytes(image))
}

fn records(log: &RunLog, run: &str) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

#[test]
fn a_name_that_only_the_index_has_is_free_for_another_run() {
    let file = renamed();
    let log = options().open_storage(file.clone()).unwrap();
    assert_eq!(log.recovery_report().index, IndexRecovery::Kept);
    let _ = log.start_run("agent", "indexed", ()).unwrap().append(b"two").unwrap();
    log.close().unwrap();
    for index in [true, false] {
        let log = options().index(index).open_storage(file.clone()).unwrap();
        assert_eq!(records(&log, "indexed"), [b"two"], "index {index}");
        assert_eq!(records(&log, "renamed"), [b"one"], "index {index}");
        log.close().unwrap();
    }
}

/// The answer from before the doubt is not kept.
#[test]
fn a_run_that_was_found_under_a_name_that_only_the_index_has_takes_no_record_under_it() {
    let file = renamed();
    let log = options().open_storage(file.clone()).unwrap();
    assert_eq!(log.recovery_report().index, IndexRecovery::Kept);
    let refused = log.writer("indexed").and_then(|run| run.append(b"two"));
    assert!(matches!(refused, Err(Error::RunNotFound { .. })), "{refused:?}");
    let _ = log.writer("renamed").unwrap().append(b"two").unwrap();
    log.close().unwrap();
    for index in [true, false] {
        let log = options().index(index).open_storage(file.clone()).unwrap();
        assert_eq!(records(&log, "renamed"), [b"one", b"two"], "index {index}");
        assert!(matches!(log.run("indexed"), Err(Error::RunNotFound { .. })), "index {index}");
        log.close().unwrap();
    }
}
