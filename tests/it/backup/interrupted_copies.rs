//! Backups into an earlier copy that lose power or whose syncs fail: the earlier copy stays, and
//! what a backup reported is stored. Of what was erased the next one leaves nothing.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::storage::Storage;
use runlog::{
    Compaction, Durability, Error, Metadata, Outcome, ReadLog, Reader, ReaderOptions, RunLog,
    SpaceReturn,
};
use runlog_sim::{CrashImages, OpKind, SimDisk, Survivors};

use crate::support::frames::{EXTENT, unindexed};
use crate::support::gate::Gate;

fn about() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

fn on(image: Vec<u8>) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image))
}

pub(crate) fn reader(storage: Arc<dyn Storage>) -> Reader {
    ReaderOptions::new().open_storage(storage).unwrap()
}

/// Brings a copy up to date, broken off in front of each call. `check` gets what is left.
fn broken_off(
    earlier: impl Fn() -> SimDisk,
    source: &Reader,
    mut check: impl FnMut(&SimDisk, &str),
) {
    for calls in 0.. {
        let copy = earlier();
        let gate = Gate::new(&copy);
        gate.shut_at(copy.op_count() + calls);
        let is_over = source.backup_to_storage(gate.storage()).is_ok();
        check(&copy, &format!("{calls} calls"));
        if is_over {
            return;
        }
    }
}

/// A reader of the store.
fn source(disk: &SimDisk, durable_only: bool) -> Reader {
    let options = ReaderOptions::new().durable_only(durable_only);
    options.open_storage(Arc::new(disk.clone())).unwrap()
}

fn payloads(log: &impl ReadLog) -> Vec<Vec<u8>> {
    let trace = log.trace("run").unwrap();
    trace.map(|record| record.unwrap().payload().to_vec()).collect()
}

/// Brings a copy up to date, and looks at what each loss of power within that leaves.
fn lose_power_within(copy: &SimDisk, source: &Reader) {
    let before = payloads(&reader(on(copy.image())));
    let (now, disk) = (payloads(source), SimDisk::recording_from(copy.image()));
    assert!(before.len() < now.len());
    let _ = source.backup_to_storage(Arc::new(disk.clone())).unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for (survivors, seed) in Survivors::ALL.into_iter().zip([1, 2, 3].into_iter().cycle()) {
            let at = format!("at {} with {survivors:?}", crashes.boundary());
            let image = crashes.image(survivors, seed);
            let copy = reader(on(image.clone()));
            let report = copy.verify().unwrap();
            assert!(report.is_clean(), "{at}: {:?}", report.problems);
            let found = payloads(&copy);
            assert!(found.len() >= before.len(), "{at}");
            assert_eq!(found, now[..found.len()], "{at}");
            let opened = unindexed().open_storage(on(image)).unwrap();
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
    let log = unindexed().create_storage(Arc::new(store.clone())).unwrap();
    let run = log.start_run("agent", "run", about()).unwrap();
    for number in 0..records {
        let _ = run.append(&[number; 600]).unwrap();
    }
    log.sync().unwrap();
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    (store, log, copy)
}

/// A backup takes a segment whose SEAL frame a loss of power then takes. What the store writes
/// instead has the same id and salt.
#[test]
fn a_segment_that_ends_elsewhere_after_a_loss_of_power_is_copied_again() {
    let (store, log, copy) = copied(3);
    let first = log.stats().unwrap().end.segment;
    let fill = |log: &RunLog, byte: u8, len: usize| {
        while log.stats().unwrap().end.segment == first {
            let _ = log.writer("run").unwrap().append(&vec![byte; len]).unwrap();
        }
    };
    fill(&log, 50, 3_000);
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    assert!(payloads(&reader(on(copy.image()))).contains(&vec![50; 3_000]));
    let store = SimDisk::from_image(store.crash(Survivors::Nothing, 1));
    let log = unindexed().open_storage(Arc::new(store.clone())).unwrap();
    assert_eq!(log.stats().unwrap().end.segment, first);
    assert!(payloads(&log).len() > 3);
    // Shorter records have room in the segment.
    fill(&log, 60, 60);
    assert!(payloads(&log).iter().filter(|payload| payload[0] == 60).count() > 1);
    log.sync().unwrap();
    log.checkpoint().unwrap();
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    assert_eq!(payloads(&reader(on(copy.image()))), payloads(&log));
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
        let with_failed_sync = || {
            let copy = SimDisk::from_image(first.image());
            (0..more).for_each(|_| copy.sync().unwrap());
            // Behind that of opening it.
            copy.fail_nth(OpKind::Sync, 0, ErrorKind::Other);
            assert!(all.backup_to_storage(Arc::new(copy.clone())).is_err());
            copy.clear_faults();
            copy
        };
        broken_off(with_failed_sync, &durable, |copy, calls| {
            let _ = all.backup_to_storage(Arc::new(copy.clone())).unwrap();
            copy.lose_power(Survivors::Nothing, 1);
            let copy = reader(on(copy.image()));
            let report = copy.verify().unwrap();
            assert!(report.is_clean(), "{calls}: {:?}", report.problems);
            assert_eq!(payloads(&copy), expected, "{calls}");
        });
    }
}

/// The store would take the place of what the writer added.
#[test]
fn a_copy_that_a_writer_opened_is_none_any_more_whichever_superblock_is_damaged() {
    let (store, _log, copy) = copied(3);
    let restored = unindexed().open_storage(Arc::new(copy.clone())).unwrap();
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
        let copy = reader(on(copy.image()));
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
        let with_failed_sync = || {
            let copy = SimDisk::from_image(first.image());
            copy.fail_nth(OpKind::Sync, failed, ErrorKind::Other);
            let _ = durable.backup_to_storage(Arc::new(copy.clone()));
            copy.clear_faults();
            copy
        };
        broken_off(with_failed_sync, &durable, |copy, calls| {
            let what = format!("the sync {failed}, {calls}");
            for image in [copy.image(), copy.crash(Survivors::Nothing, 1)] {
                let left = reader(on(image));
                let report = left.recovery_report();
                assert!(report.damaged.is_empty(), "{what}: {report}");
                let found = payloads(&left);
                assert!(found.len() >= least.len() && found == most[..found.len()], "{what}");
            }
        });
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
    let log = unindexed().create_storage(Arc::new(store.clone())).unwrap();
    fill(&log, "early", (1, 8));
    fill(&log, "run", (2, 3));
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    let _ = log.erase_run("early").unwrap();
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    (store, log, copy)
}

/// Brings a copy up to date with a store of which a run was erased, and loses power.
fn expect_erased(copy: &SimDisk, erased: &Reader, what: &str) {
    let _ = erased.backup_to_storage(Arc::new(copy.clone())).unwrap();
    copy.lose_power(Survivors::Nothing, 1);
    assert!(!has_erased(copy), "{what}");
    let copy = reader(on(copy.image()));
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
    assert!(has_erased(&held));
    let _ = log.erase_run("gone").unwrap();
    assert!(!has_erased(&store));
    let erased = source(&store, false);
    for (earlier, source) in [(&before, &with_it), (&held, &erased)] {
        let mut left = 0;
        broken_off(
            || SimDisk::from_image(earlier.image()),
            source,
            |copy, calls| {
                left += usize::from(has_erased(copy));
                for survivors in [Survivors::Everything, Survivors::Nothing, Survivors::Half] {
                    let copy = SimDisk::from_image(copy.crash(survivors, 1));
                    expect_erased(&copy, &erased, &format!("{calls}, {survivors:?}"));
                }
                expect_erased(copy, &erased, calls);
            },
        );
        assert!(left > 5);
        for failed in 0.. {
            let copy = SimDisk::from_image(earlier.image());
            copy.fail_nth(OpKind::Sync, failed, ErrorKind::Other);
            let is_over = source.backup_to_storage(Arc::new(copy.clone())).is_ok();
            copy.clear_faults();
            expect_erased(&copy, &erased, &format!("the sync {failed}"));
            if is_over {
                break;
            }
        }
    }
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
    broken_off(
        || SimDisk::from_image(before.image()),
        &source,
        |copy, calls| {
            for space in [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink] {
                let file = SimDisk::from_image(copy.image());
                let options = unindexed().compaction(Compaction::new().space_return(space));
                let log = options.open_storage(Arc::new(file.clone())).unwrap();
                let is_there = log.run("gone").is_ok();
                log.close().unwrap();
                assert!(is_there || !has_erased(&file), "{calls}, {space:?}");
                cleared += usize::from(has_erased(copy) && !is_there);
            }
        },
    );
    assert!(cleared > 5);
}

/// Nothing of it is believed: the caller takes a new file.
#[test]
fn a_damaged_copy_is_refused_and_stays_as_it_is() {
    let (store, log, copy) = copied(3);
    fill(&log, "more", (4, 2));
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    let whole = copy.image();
    let manifest = 16 << 10;
    let harms: [(&str, Vec<u8>); 3] = [
        ("the manifest", [&whole[..manifest], &[0x55; 64], &whole[manifest + 64..]].concat()),
        ("the header", [&[0x55; 64], &whole[64..]].concat()),
        ("the end", whole[..EXTENT + 4096].to_vec()),
    ];
    for (what, image) in harms {
        let file = SimDisk::from_image(image.clone());
        let refused = source(&store, false).backup_to_storage(Arc::new(file.clone()));
        assert!(matches!(refused, Err(Error::CopyDamaged { .. })), "{what}: {refused:?}");
        assert!(refused.unwrap_err().to_string().contains("a new file"));
        assert_eq!(file.image(), image, "{what}");
    }
}

/// The copy has a segment with its SEAL before that is durable in the store. After a loss of power
/// the store ends the same segment earlier.
#[test]
fn a_segment_that_power_loss_ended_earlier_takes_the_place_of_that_of_the_copy() {
    let (store, copy) = (SimDisk::new(), SimDisk::new());
    let log = unindexed().create_storage(Arc::new(store.clone())).unwrap();
    let run = log.start_run("agent", "run", about()).unwrap();
    let mut number = 0;
    let mut append = |log: &RunLog| {
        number += 1;
        let _ = log.writer("run").unwrap().append(&[number; 900]).unwrap();
    };
    append(&log);
    log.sync().unwrap();
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        append(&log);
    }
    drop(run);
    let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
    let before = payloads(&reader(on(copy.image())));
    for survivors in [Survivors::Nothing, Survivors::Half, Survivors::TornLast] {
        for seed in 0..4 {
            let store = SimDisk::from_image(store.crash(survivors, seed));
            let log = unindexed().open_storage(Arc::new(store.clone())).unwrap();
            (0..80).for_each(|number| {
                drop(log.writer("run").unwrap().append(&[100 + number; 900]).unwrap());
            });
            log.checkpoint().unwrap();
            let copy = SimDisk::from_image(copy.image());
            let _ = source(&store, false).backup_to_storage(Arc::new(copy.clone())).unwrap();
            let found = reader(on(copy.image()));
            assert!(found.verify().unwrap().is_clean(), "{survivors:?}");
            assert_eq!(payloads(&found), payloads(&log), "{survivors:?}");
            assert_ne!(payloads(&found), before);
        }
    }
}
