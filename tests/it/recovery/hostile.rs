//! Valid files that no writer would write: inputs that the fuzzer found.

use std::sync::Arc;
use std::time::{Duration, Instant};

use runlog::format::frames::frame::{FRAME_HEADER_LEN, LONG_HEADER_LEN};
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, SUPERBLOCK_AT};
use runlog::storage::MemoryStorage;
use runlog::{Lsn, Options, ReaderOptions, RunQuery};

use crate::support::manifest::Manifest;
use crate::support::tap::Tap;

const PAGE: usize = 4096;

/// A small store whose superblocks were changed and check again.
fn with_superblocks(change: impl Fn(&mut Superblock)) -> Arc<MemoryStorage> {
    let options = Options::new().extent_size(64 << 10).background(false);
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"kept").unwrap();
    drop(run);
    log.close().unwrap();
    let mut bytes = storage.to_bytes();
    for slot in 0..2 {
        let at = usize::try_from(SUPERBLOCK_AT).unwrap() + slot * PAGE;
        if let Ok(mut block) = Superblock::decode(&bytes[at..at + PAGE]) {
            change(&mut block);
            let page = block.encode();
            bytes[at..at + page.len()].copy_from_slice(&page);
        }
    }
    Arc::new(MemoryStorage::from_bytes(bytes))
}

#[test]
fn a_superblock_that_points_to_no_possible_manifest_is_refused_and_costs_no_memory() {
    let changes: [fn(&mut Superblock); 7] = [
        |block| block.manifest.len = 1 << 60,
        |block| block.manifest.len = u64::MAX,
        |block| block.manifest.offset = u64::MAX - 1,
        |block| block.manifest.generation = u64::MAX,
        |block| block.manifest.records = u64::MAX,
        |block| block.manifest.records = u64::MAX / 40,
        |block| (block.manifest.records, block.manifest.generation) = (u64::MAX, u64::MAX),
    ];
    for change in changes {
        let storage = with_superblocks(change);
        let bytes = storage.to_bytes();
        let refused = Options::new().background(false).open_storage(storage.clone()).unwrap_err();
        assert!(refused.is_damaged(), "{refused}");
        assert_eq!(storage.to_bytes(), bytes);
    }
}

/// A store with one segment of `extent` bytes, whose rest `fill` fills: it gets the last frame, its
/// salt, and the bytes from the segment's start on.
fn with_frames(
    extent: u64,
    mut fill: impl FnMut(FrameHeader, u64, &mut [u8]),
) -> Arc<MemoryStorage> {
    let options = Options::new().extent_size(extent).background(false);
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"kept").unwrap();
    log.sync().unwrap();
    let mut bytes = storage.to_bytes();
    drop((run, log));
    let start = usize::try_from(EXTENTS_AT).unwrap();
    bytes.resize(start + usize::try_from(extent).unwrap(), 0);
    let segment = &mut bytes[start..];
    let key = SegmentHeader::decode(segment).unwrap().key;
    let (mut at, mut last) = (SEGMENT_HEADER_LEN, None);
    while let Ok(header) = FrameHeader::decode(&segment[at as usize..], key, at) {
        at += u32::try_from(header.frame_len()).unwrap();
        last = Some(header);
    }
    let mut next = last.expect("there are frames");
    next.position.offset = at;
    fill(next, key.salt, segment);
    Arc::new(MemoryStorage::from_bytes(bytes))
}

/// If each of them were followed by a look at all others, it would take minutes.
#[test]
fn a_segment_full_of_frames_that_do_not_check_is_opened_in_time_that_grows_with_its_length() {
    let extent: u32 = 64 << 20;
    let storage = with_frames(extent.into(), |mut header, salt, segment| {
        let step = FRAME_HEADER_LEN as u32;
        (header.payload_len, header.name_len) = (0, 0);
        header.payload_crc = 0xdead_beef;
        // Below the floor a damaged payload costs its record.
        let frames = (extent - 3 * step - header.position.offset) / step;
        for _ in 0..frames {
            header.lsn.0 += 1;
            header.seq.0 += 1;
            let at = header.position.offset as usize;
            segment[at..at + FRAME_HEADER_LEN].copy_from_slice(&header.encode(salt));
            header.position.offset += step;
        }
        let mut mark = FrameHeader::watermark(header.position, header.at);
        (mark.position, mark.lsn) = (header.position, Lsn(header.lsn.0 + 1));
        let at = mark.position.offset as usize;
        segment[at..at + FRAME_HEADER_LEN].copy_from_slice(&mark.encode(salt));
    });
    let begun = Instant::now();
    let log = Options::new().background(false).open_storage(storage).unwrap();
    assert!(log.recovery_report().damaged.len() > 500_000);
    assert!(!log.verify().unwrap().is_clean());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// With a header that checks and claims 4 GiB, or some bytes of the next extent.
#[test]
fn a_reader_takes_no_directory_that_claims_to_be_larger_than_its_extent() {
    let storage = Arc::new(MemoryStorage::new());
    let log = Options::new().extent_size(64 << 10).background(false);
    let log = log.create_storage(storage.clone()).unwrap();
    for number in 0..60 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        let _ = run.append(&[7; 15_000]).unwrap();
    }
    log.close().unwrap();
    for claimed in [u32::MAX - 15, 64 << 10] {
        let mut bytes = storage.to_bytes();
        let places = Manifest::of(&bytes).unwrap().seals();
        assert!(places.len() > 8, "{}", places.len());
        for (start, seal) in places {
            let key = SegmentHeader::decode(&bytes[start..]).unwrap().key;
            let at = &mut bytes[seal..seal + LONG_HEADER_LEN];
            let offset = u32::try_from(seal - start).unwrap();
            let mut header = FrameHeader::decode(at, key, offset).unwrap();
            header.payload_len = claimed;
            at.copy_from_slice(&header.encode(key.salt));
        }
        let hostile = Arc::new(MemoryStorage::from_bytes(bytes));
        let bounded = Tap::only_reads(hostile, |offset, len| {
            assert!(len <= 128 << 10, "{len} bytes are read at {offset}");
            Ok(())
        });
        let reader = ReaderOptions::new().open_storage(bounded).unwrap();
        assert_eq!(reader.runs(&RunQuery::new()).map(Result::unwrap).count(), 60);
    }
}
