//! Files whose frames claim many records each cost no more memory than their length allows for.

use std::sync::Arc;

use runlog::format::frames::block::MAX_BLOCK_RECORDS;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{Follow, LogCursor, ReaderOptions, salvage_storage};

use crate::support::allocations::most_of;
use crate::support::frames::{EXTENT, unindexed};

/// So many blocks without a byte.
const BLOCKS: u32 = 100;
/// What a reader and a writer of a small store take, and the records of one full segment.
const MOST: usize = 12 << 20;

/// A store with a record, and blocks behind it that claim to have as many records as a block may.
fn hostile() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"kept").unwrap();
    log.sync().unwrap();
    let mut image = storage.to_bytes();
    let start = usize::try_from(EXTENTS_AT).unwrap();
    image.resize(image.len().max(start + EXTENT), 0);
    let segment = &mut image[start..];
    let key = SegmentHeader::decode(segment).unwrap().key;
    let (mut at, mut last) = (SEGMENT_HEADER_LEN, None);
    while let Ok(header) = FrameHeader::decode(&segment[at as usize..], key, at) {
        at += u32::try_from(header.frame_len()).unwrap();
        last = Some(header);
    }
    let mut block = last.expect("there are frames");
    (block.kind, block.extra) = (FrameKind::Block, MAX_BLOCK_RECORDS);
    block.name_len = 0;
    block.set_payload(&[], &[]);
    block.seq.0 += 1;
    for _ in 0..BLOCKS {
        block.lsn.0 += 1;
        block.position.offset = at;
        let bytes = block.encode(key.salt);
        segment[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        block.seq.0 += u64::from(MAX_BLOCK_RECORDS);
        at += u32::try_from(block.frame_len()).unwrap();
    }
    image
}

#[test]
fn a_salvage_notes_no_more_records_of_a_segment_than_it_can_list() {
    let image = hostile();
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(image));
    let (report, most) = most_of(|| salvage_storage(broken, out.clone()));
    let report = report.unwrap();
    assert!(most < MOST, "{most} bytes");
    assert_eq!((report.runs, report.records), (1, 1), "{report:?}");
    assert!(!report.is_complete(), "{report:?}");
}

#[test]
fn a_follower_notes_no_more_records_of_a_segment_than_it_can_list() {
    let reader = ReaderOptions::new();
    let reader = reader.open_storage(Arc::new(MemoryStorage::from_bytes(hostile()))).unwrap();
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let listen = || {
        let (mut events, mut errors, mut nothing) = (0, 0, 0);
        while nothing < 3 && errors < 100_000 {
            match follower.try_next() {
                Ok(Some(_)) => events += 1,
                Ok(None) => nothing += 1,
                Err(error) => {
                    assert!(error.is_corruption(), "{error}");
                    errors += 1;
                }
            }
        }
        (events, errors)
    };
    let ((events, errors), most) = most_of(listen);
    assert!(most < MOST, "{most} bytes");
    assert_eq!(events, 2, "{errors} errors");
    assert!((1..=EXTENT / 4 + BLOCKS as usize).contains(&errors), "{errors} errors");
}
