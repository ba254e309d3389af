//! Files that check and yet say what no writer would say: inputs that the fuzzer found.

use std::sync::Arc;

use runlog::format::SUPERBLOCK_AT;
use runlog::format::superblock::Superblock;
use runlog::storage::MemoryStorage;
use runlog::{Epoch, Error, Lsn, Options, RunNo, SegmentId};

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
fn a_superblock_that_points_to_no_possible_manifest_costs_neither_memory_nor_records() {
    let changes: [fn(&mut Superblock); 4] = [
        |block| block.manifest.len = 1 << 60,
        |block| block.manifest.len = u64::MAX,
        |block| block.manifest.offset = u64::MAX - 1,
        |block| block.manifest.generation = u64::MAX,
    ];
    for change in changes {
        let storage = with_superblocks(change);
        let options = Options::new().background(false);
        for _ in 0..2 {
            let log = options.open_storage(storage.clone()).unwrap();
            let mut trace = log.trace("run").unwrap();
            assert_eq!(trace.next().unwrap().unwrap().payload(), b"kept");
            assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify());
            log.close().unwrap();
        }
    }
}

#[test]
fn a_superblock_that_leaves_no_numbers_is_refused_and_the_file_stays_as_it_was() {
    let changes: [fn(&mut Superblock); 4] = [
        |block| block.next_run_no = RunNo(u64::MAX),
        |block| block.next_lsn = Lsn(u64::MAX),
        |block| block.next_segment = SegmentId(u32::MAX),
        |block| block.epoch = Epoch(u64::MAX),
    ];
    for change in changes {
        let storage = with_superblocks(change);
        let before = storage.to_bytes();
        let refused = Options::new().background(false).open_storage(storage.clone());
        assert!(refused.as_ref().is_err_and(Error::is_corruption), "{refused:?}");
        assert!(storage.to_bytes() == before);
    }
}
