//! Valid files that no writer would write: inputs that the fuzzer found.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runlog::format::frames::frame::{FRAME_HEADER_LEN, FrameCheck};
use runlog::format::map::manifest::{Change, SealedAt};
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind, SUPERBLOCK_AT};
use runlog::storage::MemoryStorage;
use runlog::{ExtentNo, Options, ReaderOptions, RunNo, RunQuery, Seq};
use runlog_sim::{OpKind, SimDisk};

use crate::backup::backups::seals;
use crate::recovery::trust::add_changes;
use crate::support::reads::OnlyReads;

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
        let frames = (extent - 2 * step - header.position.offset) / step;
        header.durable.offset = header.position.offset + frames * step;
        for _ in 0..frames {
            header.lsn.0 += 1;
            header.seq.0 += 1;
            let at = header.position.offset as usize;
            segment[at..at + FRAME_HEADER_LEN].copy_from_slice(&header.encode(salt));
            header.position.offset += step;
        }
    });
    let begun = Instant::now();
    let log = Options::new().background(false).open_storage(storage).unwrap();
    assert!(log.recovery_report().damaged.len() > 500_000);
    assert!(!log.verify().unwrap().is_clean());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// A store of which the directory of the first segment lists the records of its run as `change`
/// has it, and checks. The manifest is told of the seal with it: opening believes no directory that
/// contradicts the frames in front of it, which it has to read for a seal that it was not told of.
fn with_list(change: impl Fn(&mut Vec<u32>)) -> SimDisk {
    let options = Options::new().extent_size(64 << 10).background(false);
    let disk = SimDisk::new();
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..30 {
        let _ = run.append(&[b'x'; 1500]).unwrap();
    }
    disk.fail_next(OpKind::Sync, io::ErrorKind::Other);
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        let _ = run.append(&[b'x'; 1500]).unwrap();
    }
    drop((run, log));
    let mut image = disk.image();
    let segment = &mut image[usize::try_from(EXTENTS_AT).unwrap()..];
    let key = SegmentHeader::decode(segment).unwrap().key;
    let (mut at, mut offsets, mut sealed) = (SEGMENT_HEADER_LEN, Vec::new(), None);
    while let Ok(mut header) = FrameHeader::decode(&segment[at as usize..], key, at) {
        let payload = at as usize + FRAME_HEADER_LEN;
        match header.kind {
            FrameKind::Record => offsets.push(at),
            FrameKind::Seal => {
                let bytes = |list: &[u32]| list.iter().flat_map(|at| at.to_le_bytes()).collect();
                let told: Vec<u8> = bytes(&offsets);
                change(&mut offsets);
                let end = payload + header.payload_len as usize;
                let mut directory = segment[payload..end].to_vec();
                let list = directory.windows(told.len()).position(|part| part == told).unwrap();
                directory[list..list + told.len()].copy_from_slice(&bytes(&offsets));
                header.set_payload(&[], &directory);
                segment[at as usize..payload].copy_from_slice(&header.encode(key.salt));
                segment[payload..end].copy_from_slice(&directory);
                let (end, digest) = (header.extra, header.payload_crc);
                let (has_evictions, next_run_no) = (false, RunNo(0));
                sealed = Some(SealedAt { end, seal: at, digest, has_evictions, next_run_no });
            }
            _ => {}
        }
        at += u32::try_from(header.frame_len()).unwrap();
    }
    let (extent, segment, at) = (ExtentNo(0), key.id, sealed.unwrap());
    add_changes(&mut image, &[Change::Seal { extent, segment, at }]);
    SimDisk::untracked(image)
}

#[test]
fn a_record_that_is_listed_in_the_place_of_another_is_not_taken_for_it() {
    let disk = with_list(|list| list[5] = list[6]);
    let log = Options::new().background(false).open_storage(Arc::new(disk)).unwrap();
    let mut fifth = log.trace("run").unwrap().range(Seq(5)..Seq(6)).unwrap();
    assert!(fifth.next().unwrap().is_err_and(|error| error.is_corruption()));
    assert!(fifth.next().is_none());
    let before: Vec<u64> =
        log.trace("run").unwrap().map_while(Result::ok).map(|one| one.seq().0).collect();
    assert_eq!(before, [0, 1, 2, 3, 4]);
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
        let places = seals(&bytes);
        assert!(places.len() > 8, "{}", places.len());
        for (start, seal) in places {
            let key = SegmentHeader::decode(&bytes[start..]).unwrap().key;
            let at = &mut bytes[seal..seal + FRAME_HEADER_LEN];
            let offset = u32::try_from(seal - start).unwrap();
            let mut header = FrameHeader::decode(at, key, offset).unwrap();
            header.payload_len = claimed;
            at.copy_from_slice(&header.encode_with(&FrameCheck::new(key)));
        }
        let hostile = Arc::new(MemoryStorage::from_bytes(bytes));
        let bounded = OnlyReads::new(hostile, |offset, len| {
            assert!(len <= 128 << 10, "{len} bytes are read at {offset}");
            Ok(())
        });
        let reader = ReaderOptions::new().open_storage(bounded).unwrap();
        assert_eq!(reader.runs(&RunQuery::new()).map(Result::unwrap).count(), 60);
    }
}
