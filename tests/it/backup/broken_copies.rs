//! Backups into an earlier copy that lose power or whose syncs fail: the earlier copy stays, and
//! what a backup reported is stored. Of what was erased the next one leaves nothing.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::env::{BootId, Environment};
use runlog::format::FrameKind;
use runlog::storage::Storage;
use runlog::{
    Compaction, Durability, Metadata, Outcome, ReadLog, Reader, ReaderOptions, RunLog, SpaceReturn,
};
use runlog_sim::{CrashImages, Op, OpKind, SimDisk, Survivors};

use crate::support::frames::{EXTENT, Frame, frames_in, unindexed};
use crate::support::gate::Gate;

fn about() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

fn on(image: Vec<u8>) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image))
}

/// What reads the store in the boot 1, perhaps without what a loss of power may take.
fn source(disk: &SimDisk, durable_only: bool) -> Reader {
    let environment = Environment::system().boot_id(Some(BootId([1; 16])));
    let options = ReaderOptions::new().environment(environment).durable_only(durable_only);
    options.open_storage(Arc::new(disk.clone())).unwrap()
}

fn payloads(log: &impl ReadLog) -> Vec<Vec<u8>> {
    let trace = log.trace("run").unwrap();
    trace.map(|record| record.unwrap().payload().to_vec()).collect()
}

/// Brings a copy up to date, and looks at what each loss of power within that leaves.
fn lose_power_within(copy: &SimDisk, source: &Reader) {
    let before = payloads(&ReaderOptions::new().open_storage(on(copy.image())).unwrap());
    let (now, disk) = (payloads(source), SimDisk::recording_from(copy.image()));
    assert!(before.len() < now.len());
    let _ = source.backup_to_storage(Arc::new(disk.clone())).unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for (survivors, seed) in Survivors::ALL.into_iter().zip([1, 2, 3].into_iter().cycle()) {
            let at = format!("at {} with {survivors:?}", crashes.boundary());
            let image = crashes.image(survivors, seed);
            let copy = ReaderOptions::new().open_storage(on(image.clone())).unwrap();
            let report = copy.verify().unwrap();
            assert!(report.is_clean(), "{at}: {:?}", report.problems);
            let found = payloads(&copy);
            assert!(found.len() >= before.len(), "{at}");
            assert_eq!(found, now[..found.len()], "{at}");
            let opened = unindexed(9).open_storage(on(image)).unwrap();
            assert!(opened.recovery_report().damaged.is_empty(), "{at}");
            assert_eq!(payloads(&opened), found, "{at}");
        }
        if !crashes.advance() {
            break;
        }
    }
}

/// A store with a run, and a copy of it.
fn copied(records: u8) -> (SimDisk, RunLog, SimDisk) {
    let (store, copy) = (SimDisk::new(), SimDisk::new());
    let log = unindexed(1).create_storage(Arc::new(store.clone())).unwrap();
    let run = log.start_run("agent", "run", about()).unwrap();
    for number in 0..records {
        let _ = run.append(&[number; 600]).unwrap();
    }
    log.sync().unwrap();
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    (store, log, copy)
}

/// Each of the frames says that the ones in front of it are durable: in the store.
#[test]
fn a_copy_that_loses_power_while_it_gets_synced_frames_is_not_damaged() {
    let (store, log, copy) = copied(1);
    for number in 1..20 {
        let _ = log.writer("run").unwrap().append(&[number; 600]).unwrap();
        log.sync().unwrap();
    }
    lose_power_within(&copy, &source(&store, false));
}

/// In the store all frames in front of the end that a truncation marker states are durable.
#[test]
fn a_copy_that_loses_power_while_it_gets_a_truncation_marker_is_not_damaged() {
    let (store, log, copy) = copied(1);
    let run = log.writer("run").unwrap();
    for number in 1..20 {
        let _ = run.append(&[number; 600]).unwrap();
    }
    log.sync().unwrap();
    let hole = log.stats().unwrap().end;
    for number in 20..24 {
        let _ = run.append(&[number; 600]).unwrap();
    }
    let mut image = store.image();
    drop((run, log));
    let at = EXTENT + hole.offset as usize;
    assert_ne!(image[at..at + 8], [0; 8]);
    image[at..at + 8].fill(0);
    let store = SimDisk::from_image(image);
    let log = unindexed(2).open_storage(Arc::new(store.clone())).unwrap();
    assert_eq!(payloads(&log).len(), 20, "{}", log.recovery_report());
    log.sync().unwrap();
    lose_power_within(&copy, &source(&store, false));
}

/// Three backups in a row: the sync of the first one fails, the second one is of less and breaks
/// off, and the third one finds what the first one wrote in memory alone.
#[test]
fn what_a_backup_with_a_failed_sync_wrote_is_stored_by_the_one_that_counts_it() {
    let (store, log, first) = copied(1);
    let (run, tail) = (log.writer("run").unwrap(), log.stats().unwrap().end.segment);
    let mut number = 0;
    let mut append = || {
        number += 1;
        let _ = run.append(&[number; 600]).unwrap();
    };
    // No sync covers the end of the first segment and what is in the second one.
    while log.stats().unwrap().end.segment == tail {
        append();
    }
    append();
    let _ = source(&store, false).backup_to_storage(Arc::new(first.clone())).unwrap();
    (0..20).for_each(|_| append());
    let (all, durable) = (source(&store, false), source(&store, true));
    let expected = payloads(&all);
    assert!(payloads(&durable).len() + 20 < expected.len());
    for more in 0..4 {
        for end in 0.. {
            let copy = SimDisk::from_image(first.image());
            (0..more).for_each(|_| copy.sync().unwrap());
            // Behind that of opening it.
            copy.fail_nth(OpKind::Sync, 0, ErrorKind::Other);
            assert!(all.backup_to_storage(Arc::new(copy.clone())).is_err());
            copy.clear_faults();
            let gate = Gate::new(&copy);
            gate.shut_at(copy.op_count() + end);
            let is_over = durable.backup_to_storage(Arc::new(gate)).is_ok();
            let _ = all.backup_to_storage(Arc::new(copy.clone())).unwrap();
            copy.lose_power(Survivors::Nothing, 1);
            let copy = ReaderOptions::new().open_storage(on(copy.image())).unwrap();
            let report = copy.verify().unwrap();
            assert!(report.is_clean(), "{end}: {:?}", report.problems);
            assert_eq!(payloads(&copy), expected, "{end}");
            if is_over {
                break;
            }
        }
    }
}

/// The store would take the place of what the writer added.
#[test]
fn a_copy_that_a_writer_opened_is_none_any_more_whichever_superblock_is_damaged() {
    let (store, _log, copy) = copied(3);
    let restored = unindexed(9).open_storage(Arc::new(copy.clone())).unwrap();
    let _ = restored.start_run("agent", "own", about()).unwrap().append(b"added").unwrap();
    restored.sync().unwrap();
    let killed = copy.image();
    for slot in [4096, 8192] {
        let mut image = killed.clone();
        image[slot..slot + 4096].fill(0);
        let file = SimDisk::from_image(image.clone());
        let backup = source(&store, false).backup_to_storage(Arc::new(file.clone()));
        assert!(backup.is_err(), "the slot at {slot}: {backup:?}");
        assert_eq!(file.image(), image);
    }
}

/// What stands in front of the extents was written before the sync that failed.
#[test]
fn what_a_first_backup_with_a_failed_sync_wrote_is_stored_by_the_next_one() {
    let (store, log, _) = copied(3);
    let source = source(&store, false);
    for failed in 0.. {
        let copy = SimDisk::new();
        copy.fail_nth(OpKind::Sync, failed, ErrorKind::Other);
        if source.backup_to_storage(Arc::new(copy.clone())).is_ok() {
            return assert!(failed > 2);
        }
        let _ = source.backup_to_storage(Arc::new(copy.clone())).unwrap();
        copy.lose_power(Survivors::Nothing, 1);
        let copy = ReaderOptions::new().open_storage(on(copy.image())).unwrap();
        let report = copy.recovery_report();
        assert!(report.damaged.is_empty(), "the sync {failed}: {report}");
        assert!(copy.verify().unwrap().is_clean(), "the sync {failed}");
        assert_eq!(payloads(&copy), payloads(&log), "the sync {failed}");
    }
}

/// What is said in both superblocks before something counts is said in both of them, also if an
/// earlier backup came no further than the first one.
#[test]
fn a_copy_that_gets_less_is_not_damaged_when_a_backup_behind_a_failed_sync_breaks_off() {
    let (store, log, _) = copied(3);
    let run = log.writer("run").unwrap();
    (0..9).for_each(|number| drop(run.append(&[number; 600]).unwrap()));
    let first = SimDisk::new();
    let (all, durable) = (source(&store, false), source(&store, true));
    let _ = all.backup_to_storage(Arc::new(first.clone())).unwrap();
    let (most, least) = (payloads(&all), payloads(&durable));
    assert!(least.len() < most.len());
    for failed in 0..6 {
        for end in 0.. {
            let copy = SimDisk::from_image(first.image());
            copy.fail_nth(OpKind::Sync, failed, ErrorKind::Other);
            let _ = durable.backup_to_storage(Arc::new(copy.clone()));
            copy.clear_faults();
            let gate = Gate::new(&copy);
            gate.shut_at(copy.op_count() + end);
            let is_over = durable.backup_to_storage(Arc::new(gate)).is_ok();
            let what = format!("the sync {failed}, {end} calls");
            for image in [copy.image(), copy.crash(Survivors::Nothing, 1)] {
                let left = ReaderOptions::new().open_storage(on(image)).unwrap();
                let report = left.recovery_report();
                assert!(report.damaged.is_empty(), "{what}: {report}");
                let found = payloads(&left);
                assert!(found.len() >= least.len() && found == most[..found.len()], "{what}");
            }
            if is_over {
                break;
            }
        }
    }
}

/// What the records of a run have that is erased.
const ERASED: u8 = 0xe5;

/// Whether any byte of an erased payload is left.
fn has_erased(copy: &SimDisk) -> bool {
    copy.image().chunks_exact(16).any(|part| part == [ERASED; 16])
}

/// Appends what fills so many segments.
fn fill(log: &RunLog, run: &str, (fill, segments): (u8, usize)) {
    let run = log.start_run("agent", run, about()).unwrap();
    for _ in 0..segments * EXTENT / 6_000 {
        let _ = run.append(&[fill; 5_900]).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
    log.sync().unwrap();
}

/// A store, and a copy of it with free extents in front of others.
fn with_holes() -> (SimDisk, RunLog, SimDisk) {
    let (store, copy) = (SimDisk::new(), SimDisk::new());
    let log = unindexed(1).create_storage(Arc::new(store.clone())).unwrap();
    fill(&log, "early", (1, 8));
    fill(&log, "run", (2, 3));
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    let _ = log.erase_run("early").unwrap();
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    (store, log, copy)
}

/// Brings a copy up to date with a store of which a run was erased, and loses power.
fn expect_erased(copy: SimDisk, erased: &Reader, what: &str) {
    let _ = erased.backup_to_storage(Arc::new(copy.clone())).unwrap();
    copy.lose_power(Survivors::Nothing, 1);
    assert!(!has_erased(&copy), "{what}");
    let copy = ReaderOptions::new().open_storage(on(copy.image())).unwrap();
    assert!(copy.verify().unwrap().is_clean(), "{what}");
    assert_eq!(payloads(&copy), payloads(erased), "{what}");
}

/// A backup breaks off while it copies the run, or while it frees what the copy has of it. What it
/// wrote, or did not free, goes with the next one, also if that needs none of the space.
#[test]
fn the_next_backup_clears_what_an_earlier_one_left_of_a_run_that_was_erased_since() {
    let (store, log, before) = with_holes();
    fill(&log, "gone", (ERASED, 2));
    let copied = SimDisk::from_image(store.image());
    let with_it = source(&copied, false);
    let held = SimDisk::from_image(before.image());
    let _ = with_it.backup_to_storage(Arc::new(held.clone())).unwrap();
    assert!(has_erased(&held) && held.image().len() == before.image().len());
    let _ = log.erase_run("gone").unwrap();
    assert!(!has_erased(&store));
    let erased = source(&store, false);
    for (earlier, source) in [(&before, &with_it), (&held, &erased)] {
        let mut left = 0;
        for end in 0.. {
            let copy = SimDisk::from_image(earlier.image());
            let gate = Gate::new(&copy);
            gate.shut_at(copy.op_count() + end);
            let is_over = source.backup_to_storage(Arc::new(gate)).is_ok();
            left += usize::from(has_erased(&copy));
            for survivors in [Survivors::Everything, Survivors::Nothing, Survivors::Half] {
                let copy = SimDisk::from_image(copy.crash(survivors, 1));
                expect_erased(copy, &erased, &format!("{end} calls, {survivors:?}"));
            }
            expect_erased(copy, &erased, &format!("{end} calls"));
            if is_over {
                break;
            }
        }
        assert!(left > 5);
        for failed in 0.. {
            let copy = SimDisk::from_image(earlier.image());
            copy.fail_nth(OpKind::Sync, failed, ErrorKind::Other);
            let is_over = source.backup_to_storage(Arc::new(copy.clone())).is_ok();
            copy.clear_faults();
            expect_erased(copy, &erased, &format!("the sync {failed}"));
            if is_over {
                break;
            }
        }
    }
}

/// How many bytes a backup into a copy clears.
fn cleared(copy: &SimDisk, source: &Reader) -> usize {
    let disk = SimDisk::recording_from(copy.image());
    let _ = source.backup_to_storage(Arc::new(disk.clone())).unwrap();
    copy.write_at(0, &disk.image()).unwrap();
    let ops = disk.take_recording().ops.into_iter();
    let lens = ops.map(|op| if let Op::Punch { offset, end } = op { end - offset } else { 0 });
    lens.sum()
}

/// A file system that cannot punch takes zeros for it.
#[test]
fn a_backup_clears_again_only_what_an_earlier_one_may_have_left() {
    let (store, log, copy) = with_holes();
    let all = source(&store, false);
    assert_eq!(cleared(&copy, &all), 0, "nothing is new");
    fill(&log, "more", (4, 1));
    let some = cleared(&copy, &source(&store, false));
    assert!(some > 0 && some <= 3 * EXTENT, "{some} bytes");
    assert_eq!(cleared(&copy, &source(&store, false)), 0, "nothing is new again");
    // The superblock that says whether there is something may be lost.
    for slot in [4096, 8192] {
        let mut image = copy.image();
        image[slot + 40] ^= 1;
        let copy = SimDisk::from_image(image);
        assert!(cleared(&copy, &source(&store, false)) > 3 * EXTENT, "the slot at {slot}");
        assert_eq!(cleared(&copy, &source(&store, false)), 0, "the slot at {slot}");
    }
}

#[test]
fn the_next_backup_clears_what_one_wrote_that_could_not_read_all_of_the_store() {
    let (store, log, copy) = with_holes();
    fill(&log, "gone", (ERASED, 6));
    let (reader, image) = (source(&store, false), store.image());
    // The last one of the full segments.
    let full = (0..).map(|number| frames_in(&image, number)).take_while(|all| !all.is_empty());
    let is_full = |all: &Vec<Frame>| all.iter().any(|(_, frame)| frame.kind == FrameKind::Seal);
    let last = full.filter(is_full).last().unwrap()[0].0.start as u64;
    store.fail_reads_in(last..last + 1, ErrorKind::Other);
    assert!(reader.backup_to_storage(Arc::new(copy.clone())).is_err());
    store.clear_faults();
    assert!(has_erased(&copy));
    let _ = log.erase_run("gone").unwrap();
    expect_erased(copy, &source(&store, false), "a failed read");
}

/// The superblock still says that the copy was finished. Where free extents stay as they are, only
/// what may have bytes of something erased is cleared.
#[test]
fn a_writer_that_opens_a_copy_clears_what_a_backup_that_broke_off_left_in_it() {
    let (store, log, before) = with_holes();
    // It is in no segment that the copy has a part of.
    fill(&log, "between", (3, 2));
    fill(&log, "gone", (ERASED, 4));
    let (source, mut cleared) = (source(&store, false), 0);
    for end in 0.. {
        let copy = SimDisk::from_image(before.image());
        let gate = Gate::new(&copy);
        gate.shut_at(copy.op_count() + end);
        let is_over = source.backup_to_storage(Arc::new(gate)).is_ok();
        for space in [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink] {
            let file = SimDisk::from_image(copy.image());
            let options = unindexed(9).compaction(Compaction::new().space_return(space));
            let log = options.open_storage(Arc::new(file.clone())).unwrap();
            let is_there = log.run("gone").is_ok();
            log.close().unwrap();
            assert!(is_there || !has_erased(&file), "{end} calls, {space:?}");
            cleared += usize::from(has_erased(&copy) && !is_there);
        }
        if is_over {
            break;
        }
    }
    assert!(cleared > 5);
}
