//! Stores in which any fields were changed, with every checksum above them corrected: no panic, no
//! unbounded work or memory, and what such a store acknowledges stays.
//!
//! The format promises little for such stores (section 2 of FORMAT.md), and the tests check nothing
//! else: they may lose any of their old data.
//!
//! - `RUNLOG_HOSTILE`: how many stores.
//! - `RUNLOG_HOSTILE_SEED`: the first of their seeds; a failure names its own.
//! - `RUNLOG_HOSTILE_CONTINUE`: with 1 their own runs get records too.

use std::sync::Arc;
use std::time::Duration;

use runlog::format::{FrameKind, LAST_WRITTEN, NUMBERS_END};
use runlog::storage::MemoryStorage;
use runlog::{Batch, Compaction, Durability, Error, NewRecord, Outcome, RunQuery, RunStatus};
use runlog_sim::{SimDisk, SplitMix64};

use crate::recovery::structures::{self, Kind, Work};
use crate::support::allocations;
use crate::support::campaign::variable;

/// Few enough for a plain `cargo test`.
const STORES: u64 = 300;
/// The most bytes of memory that a store may take, with its file, which can grow by 32 MiB, and a
/// copy of it. Most take 6 MiB.
const MEMORY: usize = 128 << 20;

/// The input of a seed: usually a few changes.
fn input(seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::for_case(2026, seed);
    let changes = match random.index(5) {
        0 => random.index(20),
        few => few,
    };
    let mut input = vec![0; 2 + 8 * changes];
    random.fill(&mut input);
    input
}

/// What is left out of what is done with the store of a seed, each with three of four seeds.
fn omitted(seed: u64) -> u8 {
    let mut random = SplitMix64::for_case(2027, seed);
    (random.next_u64() | random.next_u64()) as u8 & 0x0f
}

/// Uses the store of a seed. Also returns how much memory that took.
fn run(seed: u64, more: u8) -> (Work, usize) {
    let input = input(seed);
    let (work, memory) =
        allocations::most_of(|| structures::run_lean(&input, omitted(seed) | more));
    assert!(memory <= MEMORY, "{memory} bytes of memory, expected at most {MEMORY}");
    (work, memory)
}

/// Prints which store it was.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("RUNLOG_HOSTILE=1 RUNLOG_HOSTILE_SEED={}", self.0);
            println!("{}", structures::explain_lean(&input(self.0)));
        }
    }
}

#[test]
fn whatever_a_store_says_of_itself_it_keeps_what_it_acknowledges_and_works_within_bounds() {
    let (stores, first) = (variable("RUNLOG_HOSTILE", STORES), variable("RUNLOG_HOSTILE_SEED", 0));
    let more = if variable("RUNLOG_HOSTILE_CONTINUE", 0) == 0 { 0 } else { structures::CONTINUE };
    let (mut opened, mut wrote, mut calls, mut bytes, mut memory) = (0, 0, 0, 0, 0);
    for seed in first..first + stores {
        let _told = Seed(seed);
        let (work, taken) = run(seed, more);
        memory = taken.max(memory);
        opened += u64::from(work.opened);
        wrote += u64::from(work.acknowledged > 0);
        (calls, bytes) = (work.calls.max(calls), work.bytes.max(bytes));
    }
    println!(
        "{opened} of {stores} opened, {wrote} took records; at most {calls} calls, {bytes} bytes, \
         {memory} bytes of memory"
    );
    assert!(stores < 100 || wrote > stores / 2, "{wrote} of {stores} took records");
}

/// Inputs that the fuzzer and the campaign found, and that failed once.
#[test]
fn inputs_that_were_found_do_no_harm_any_more() {
    let found: [&[u8]; 6] = [
        // Outputs that the manifest takes for segments of the log, behind the one that is written.
        &[210, 0, 100, 167, 215, 200, 146, 0, 0, 109],
        // A run that claims to take all that there is, in the directory of an output.
        &[151, 0, 217, 160, 225, 191, 210, 0, 0, 0],
        // A segment that is not sealed, with a number in front of all others.
        &[82, 0, 183, 68, 139, 241, 63, 220, 0, 120],
        // A block with more records than its extent has room for.
        &[247, 4, 16, 99, 163, 31, 144, 0, 221, 240],
        // Evictions with a flag that there is not, in a store without a manifest.
        &[243, 0, 164, 117, 120, 241, 155, 237, 0, 14, 219, 37, 88, 197, 141, 0, 0, 22],
        &[166, 0, 100, 13, 72, 109, 173, 37, 0, 54, 27, 167, 135, 29, 45, 19, 0, 140],
    ];
    for input in found {
        println!("{input:?}");
        let _ = structures::run(input);
    }
    // A run is said to be deleted whose number was not given yet, and is given then.
    let _ = structures::run(&input(10_069_798));
    // The same, in a frame whose directory does not list it.
    let _ = run(50_785_737, 0);
    // An index that is longer than its extents: redb took 2 GB of memory for its pages.
    let _ = run(100_011_034, 0);
    // A SEAL record that says its frame is behind the extent, where the file was longer once.
    for seed in [401_042_774, 401_104_309] {
        let _ = run(seed, 0);
    }
    // A block whose last order is none that there can be.
    let _ = run(401_194_233, 0);
    // Segments that have different names for a run: in one that is sealed, in the last one.
    // Then: an index, unsealed segments and directories that contradict each other; a directory of
    // another segment; one that is damaged, and frames that say something else than the index.
    let contradictions = [18, 96, 838, 591, 13_898, 60_020_252, 80_039_022, 80_040_289, 80_077_861];
    // The last sequence that there can be; an order that was not given yet; a run that only an
    // index has.
    let believed = [90_084_515, 90_091_600, 90_140_544, 90_126_660, 90_102_710];
    for seed in contradictions.into_iter().chain(believed) {
        let _ = run(seed, structures::CONTINUE);
    }
}

/// A copy would have reached into the extents behind its own.
#[test]
fn a_block_that_claims_more_records_than_a_segment_can_list_is_not_moved() {
    for records in [0x4000, 0xdd00, u32::MAX] {
        let block = Kind::Frame(FrameKind::Block as u8);
        assert!(structures::with_each((block, 15, records.into()), &[]) > 0);
    }
}

#[test]
fn evictions_that_a_directory_does_not_list_as_the_format_has_it_are_read_from_the_frames() {
    let flags = (Kind::DirectoryEviction, 2, 8);
    assert!(structures::with_each(flags, &[]) > 0);
    // The extents are salvaged.
    assert!(structures::with_each(flags, &[(Kind::Record, 10, 3)]) > 0);
}

/// Lists of runs, and opening without an index, read all entries of a directory.
#[test]
fn a_directory_with_an_entry_that_the_format_does_not_have_is_read_from_the_frames() {
    let entries =
        [(5, 1 << 8), (6, 99), (7, 1), (0, u64::MAX), (3, u32::MAX.into()), (16, u64::MAX)];
    for (field, value) in entries {
        assert!(structures::with_each((Kind::RunEntry, field, value), &[]) > 0);
    }
    assert!(structures::with_each((Kind::Hash, 1, u32::MAX.into()), &[]) > 0);
}

/// A directory of an older segment lists a run with the number that the next run gets.
#[test]
fn a_run_gets_no_number_that_a_directory_lists_and_loses_nothing_to_one() {
    assert!(structures::with_numbers_not_given_yet() > 100);
}

/// A run goes on whose records say an order that was not given yet: what is acknowledged behind
/// them stays behind them when compaction moves it.
#[test]
fn a_record_of_an_order_that_was_not_given_yet_is_not_moved() {
    let order = (Kind::Frame(FrameKind::Record as u8), 8, 1 << 30);
    assert!(structures::go_on_with_each(order) > 0);
}

/// A run goes on of which a directory says an order that was not given yet: what is acknowledged
/// behind its records stays behind them. Compaction does not repair it where an ORIGIN is lost.
#[test]
fn a_run_whose_entry_has_an_order_that_was_not_given_yet_is_read_from_its_frames() {
    let order = (Kind::RunEntry, 24, 1 << 40);
    let lost = (Kind::Frame(FrameKind::Origin as u8), 6, 0);
    assert!(structures::go_on_and_reopen_each(order, &[]) > 0);
    assert!(structures::go_on_and_reopen_each(order, &[lost]) > 0);
}

/// A record with a number that no frame may have would not check, and the log would end in front of
/// it after a loss of power.
#[test]
fn a_run_that_says_it_has_the_last_record_there_can_be_takes_no_other_one() {
    for last in [LAST_WRITTEN - 1, LAST_WRITTEN, NUMBERS_END - 2, NUMBERS_END - 1] {
        let image = structures::with_records(&[], &[(10, last)], false);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        let log = structures::options(8).open_storage(storage.clone()).unwrap();
        let full = log.writer("full").unwrap();
        let (other, long) = (log.writer("other").unwrap(), [7; 20_000]);
        for payload in [&b"short"[..], &long] {
            let _ = other.append(payload).unwrap();
            let durable = NewRecord::new(payload).durability(Durability::Disk);
            let mut batch = Batch::new();
            batch.append("agent", "other", NewRecord::new(b"not alone"));
            batch.append("agent", "full", NewRecord::new(payload));
            let refused = [
                full.append(payload).map(|_| ()),
                full.append_record(&durable).map(|_| ()),
                full.append_batch(&[NewRecord::new(b"one"), durable]).map(|_| ()),
                log.commit(&batch).map(|_| ()),
            ];
            for refused in refused {
                assert!(refused.as_ref().is_err_and(Error::is_exhausted), "{last}: {refused:?}");
            }
        }
        let _ = full.end(&Outcome::completed()).unwrap();
        let _ = other.append(b"last").unwrap();
        log.sync().unwrap();
        // The power fails.
        let left = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
        let log = structures::options(9).open_storage(left).unwrap();
        assert_eq!(log.run("full").unwrap().status, RunStatus::Completed);
        let read: Vec<usize> =
            log.trace("other").unwrap().map(|record| record.unwrap().payload().len()).collect();
        assert_eq!(read, [5, 5, 20_000, 4]);
        assert!(log.recovery_report().damaged.is_empty());
    }
}

/// The SEAL frame with which recovery ends a torn segment, and the superblock of a store that was
/// closed, have orders behind the last one.
#[test]
fn what_is_written_behind_the_last_order_there_can_be_can_be_read() {
    for order in [LAST_WRITTEN - 1, NUMBERS_END - 2, NUMBERS_END - 1] {
        for is_torn in [false, true] {
            let image = structures::with_records(&[(8, order)], &[], is_torn);
            let storage = Arc::new(MemoryStorage::from_bytes(image));
            let mut segments = Vec::new();
            for opened in 0..3 {
                println!("order {order:#x}, torn {is_torn}, opened {opened} times");
                let log = structures::options(8).open_storage(storage.clone()).unwrap();
                let report = log.recovery_report();
                assert!(report.damaged.is_empty(), "{report}");
                assert_eq!(report.clean, opened > 0);
                assert_eq!(log.trace("other").unwrap().map(Result::unwrap).count(), 1);
                let _ = log.writer("other").unwrap().append(b"behind").unwrap_err();
                let verified = log.verify().unwrap();
                assert!(verified.is_clean(), "{:?}", verified.problems);
                segments.push(log.stats().unwrap().sealed_segments);
                log.close().unwrap();
            }
            assert_eq!(segments[1], segments[2]);
        }
    }
}

/// A directory that says so could not be read, with all that is in it.
#[test]
fn a_block_whose_sequences_pass_the_last_one_there_can_be_is_a_damaged_frame() {
    let block = FrameKind::Block as u64;
    for (first, records) in [(NUMBERS_END - 1, 2), (NUMBERS_END - 9, 10), (7, u32::MAX.into())] {
        let fields = [(2, block), (10, first), (15, records)];
        let image = structures::with_records(&[], &fields, false);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        let log = structures::options(7).open_storage(storage.clone()).unwrap();
        let other = log.writer("other").unwrap();
        for _ in 0..8 {
            let _ = other.append(&[7; 10_000]).unwrap();
        }
        log.checkpoint().unwrap();
        log.close().unwrap();
        for index in [true, false] {
            println!("{first:#x} and {records} records, index {index}");
            let options = structures::options(9).index(index);
            let log = options.open_storage(storage.clone()).unwrap();
            assert_eq!(log.trace("other").unwrap().map(Result::unwrap).count(), 9);
            let runs = log.list_runs(&RunQuery::new()).unwrap().runs;
            assert!(runs.iter().any(|run| run.run == "other"));
            let _ = log.compact();
            assert_eq!(log.trace("other").unwrap().map(Result::unwrap).count(), 9);
            log.close().unwrap();
        }
    }
}

/// Numbers that no run is given, behind those that any directory says.
#[test]
fn a_run_with_a_number_that_no_run_is_given_keeps_its_records_and_moves_when_it_goes_on() {
    let numbers = [LAST_WRITTEN, LAST_WRITTEN + 9, NUMBERS_END - 2, NUMBERS_END - 1];
    let [went_on, moved] = structures::go_on_with_numbers(&numbers);
    assert!(went_on > 4_000 && moved > 2_000, "{went_on} went on, {moved} moved");
}

/// The first eviction goes with its segment, and the run is still known to be deleted.
#[test]
fn a_segment_moves_that_evicts_a_run_which_an_older_segment_evicted_too() {
    for is_sealed in [false, true] {
        let disk = SimDisk::untracked(structures::evicted_again());
        let manual = Compaction::new().automatic(false);
        // With an index reclaiming would apply the last segment first.
        let options = structures::options(7).index(false).compaction(manual);
        let log = options.receipts(0, Duration::ZERO).open_storage(Arc::new(disk)).unwrap();
        if is_sealed {
            let run = log.start_run("agent", "behind", ()).unwrap();
            for _ in 0..14 {
                let _ = run.append(&[7; 4_000]).unwrap();
            }
        }
        let before = log.stats().unwrap();
        assert_eq!(before.sealed_segments, 1 + u64::from(is_sealed));
        // It and the eviction in front of it are all that the first segment has.
        let _ = log.delete_run("filler").unwrap();
        log.reclaim().unwrap();
        let after = log.stats().unwrap();
        assert_eq!(after.sealed_segments, before.sealed_segments - 1);
        // Everything else moves out of the last segment, or it fails.
        let erased = log.erase_run("other");
        assert!(erased.is_ok(), "sealed {is_sealed}: {erased:?}");
        assert!(log.health().failures.is_empty() && log.health().compaction.is_none());
        assert_eq!(log.trace("kept").unwrap().map(Result::unwrap).count(), 2);
        assert!(log.verify().unwrap().is_clean());
    }
}
