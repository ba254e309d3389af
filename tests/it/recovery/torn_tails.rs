//! Where the log ends after a crash, and what an opening refuses: one short store for each sentence
//! of the rule (section 20 of FORMAT.md).

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::env::Environment;
use runlog::format::map::superblock::Superblock;
use runlog::format::{EXTENTS_AT, FrameKind, MANIFEST_AT, SUPERBLOCK_AT};
use runlog::storage::Storage;
use runlog::{
    Durability, Error, Metadata, NewRecord, Options, Outcome, Place, ReaderOptions, RunLog,
    TailWriter,
};
use runlog_sim::{CrashImages, OpKind, SimDisk, SimEntropy, Survivors};

use crate::support::frames::{EXTENT, Frame, frames_in, unindexed};
use crate::support::manifest::{Manifest, slots};
use crate::support::tap::Tap;

const RECORD: usize = 3_000;

fn create() -> (SimDisk, RunLog) {
    let disk = SimDisk::untracked(Vec::new());
    let options = unindexed().tail_writer(TailWriter::Pwrite);
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    drop(log.start_run("agent", "run", about).unwrap());
    (disk, log)
}

fn append(log: &RunLog, records: u8) {
    let run = log.writer("run").unwrap();
    for _ in 0..records {
        let number = u8::try_from(log.run("run").unwrap().records).unwrap();
        let _ = run.append(&[number; RECORD]).unwrap();
    }
}

/// Appends until a segment is full and the next one has `more` records.
fn fill(log: &RunLog, more: u8) {
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        append(log, 1);
    }
    append(log, more - 1);
}

fn try_open(image: &[u8]) -> (SimDisk, Result<RunLog, Error>) {
    let disk = SimDisk::from_image(image.to_vec());
    let log = unindexed().open_storage(Arc::new(disk.clone()));
    (disk, log)
}

/// Opens the store that a crash left. The opening succeeds by itself and reports no damage.
fn open(image: &[u8]) -> (SimDisk, RunLog) {
    let (disk, log) = try_open(image);
    let log = log.unwrap();
    assert!(log.recovery_report().damaged.is_empty(), "{}", log.recovery_report());
    (disk, log)
}

/// The numbers of the records that can be read.
fn numbers(log: &RunLog) -> Vec<u8> {
    log.trace("run").unwrap().map(|record| record.unwrap().payload()[0]).collect()
}

fn is_prefix(log: &RunLog) -> usize {
    let found = numbers(log);
    assert!(found.iter().zip(0..).all(|(found, number)| *found == number), "{found:?}");
    found.len()
}

/// What the first opening made durable is there after a loss of power, and what was appended since.
fn goes_on(disk: &SimDisk, log: RunLog) {
    let before = numbers(&log);
    let record = NewRecord::new(&[99; RECORD]).durability(Durability::Disk);
    let _ = log.writer("run").unwrap().append_record(&record).unwrap();
    drop(log);
    disk.lose_power(Survivors::Nothing, 1);
    let (_, log) = open(&disk.image());
    assert_eq!(numbers(&log), [before, vec![99]].concat());
    assert!(log.verify().unwrap().is_clean());
}

/// The opening for writing refuses the store and changes no byte.
fn refuses(image: &[u8], what: &str) -> Place {
    let (disk, opened) = try_open(image);
    let Err(Error::Damaged(damage)) = opened else { panic!("{what}: {opened:?}") };
    assert!(disk.image() == image, "{what}: the file was changed");
    damage.place
}

fn of_kind(frames: &[Frame], kind: FrameKind, number: usize) -> Frame {
    frames.iter().filter(|(_, header)| header.kind == kind).nth(number).unwrap().clone()
}

#[test]
fn an_opening_after_a_kill_costs_two_syncs_and_three_with_a_torn_frame() {
    let (disk, log) = create();
    append(&log, 4);
    let image = disk.image();
    let syncs = |image: &[u8]| {
        let (disk, log) = open(image);
        let syncs = disk.counts().of(OpKind::Sync);
        goes_on(&disk, log);
        syncs
    };
    assert_eq!(syncs(&image), 2);
    let mut torn = image;
    let (last, _) = frames_in(&torn, 0).pop().unwrap();
    torn[last.end - 1_000..last.end].fill(0);
    assert_eq!(syncs(&torn), 3);
}

/// Finding 6.
#[test]
fn the_log_ends_in_zeros_although_a_later_segment_has_frames() {
    let (disk, log) = create();
    fill(&log, 3);
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    image[of_kind(&frames, FrameKind::Seal, 0).0].fill(0);
    let (disk, log) = open(&image);
    assert!(log.recovery_report().torn.is_some());
    assert_eq!(is_prefix(&log), frames.len() - 1 - 1);
    goes_on(&disk, log);
}

/// Finding 10.
#[test]
fn a_torn_seal_above_the_floor_ends_the_log_and_is_written_again() {
    let (disk, log) = create();
    fill(&log, 3);
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    let (seal, _) = of_kind(&frames, FrameKind::Seal, 0);
    image[seal.start + 56..seal.end].fill(0);
    let (disk, log) = open(&image);
    assert_eq!(is_prefix(&log), frames.len() - 1 - 1);
    assert_eq!(of_kind(&frames_in(&disk.image(), 0), FrameKind::Seal, 0).0, seal);
    goes_on(&disk, log);
}

/// Finding 5.
#[test]
fn a_segment_with_an_orphan_frame_is_not_used_again() {
    let (disk, log) = create();
    fill(&log, 3);
    let mut image = disk.image();
    let frames = frames_in(&image, 1);
    // The first frame of the second segment is lost, and the second one has its place.
    image[frames[0].0.clone()].fill(0);
    let (disk, log) = open(&image);
    let before = is_prefix(&log);
    append(&log, 1);
    assert_eq!(is_prefix(&log), before + 1);
    log.sync().unwrap();
    goes_on(&disk, log);
}

/// Finding 9.
#[test]
fn a_segment_header_that_was_never_stored_is_written_again() {
    let (disk, log) = create();
    append(&log, 3);
    let mut image = disk.image();
    let start = usize::try_from(EXTENTS_AT).unwrap();
    let header = image[start..start + 64].to_vec();
    image[start..start + 64].fill(0);
    let (disk, log) = open(&image);
    assert_eq!(is_prefix(&log), 3);
    assert_eq!(disk.image()[start..start + 24], header[..24]);
    goes_on(&disk, log);
}

/// Finding 7.
#[test]
fn an_opening_leaves_only_zeros_behind_a_seal_that_it_writes() {
    let (disk, log) = create();
    append(&log, 8);
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    let (hole, last) = (of_kind(&frames, FrameKind::Record, 3).0, frames.last().unwrap().0.end);
    image[hole.start + 100..hole.start + 200].fill(0xff);
    let (disk, log) = open(&image);
    assert_eq!(is_prefix(&log), 3);
    let (seal, _) = of_kind(&frames_in(&disk.image(), 0), FrameKind::Seal, 0);
    assert!(disk.image()[seal.end..last].iter().all(|byte| *byte == 0));
    goes_on(&disk, log);
}

/// Findings 3 and 4: whichever sync of an opening fails, and whatever a loss of power takes then.
#[test]
fn a_failed_sync_of_an_opening_and_a_loss_of_power_leave_a_prefix() {
    let (disk, log) = create();
    fill(&log, 3);
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    let durable = frames.len() - 1 - 1;
    image[of_kind(&frames, FrameKind::Seal, 0).0].fill(0);
    for sync in 0..6 {
        for (seed, survivors) in (0..8).flat_map(|seed| Survivors::ALL.map(|one| (seed, one))) {
            let disk = SimDisk::from_image(image.clone());
            disk.fail_nth(OpKind::Sync, sync, ErrorKind::Other);
            let failed = unindexed().open_storage(Arc::new(disk.clone())).is_err();
            disk.clear_faults();
            drop(unindexed().open_storage(Arc::new(disk.clone())).unwrap());
            disk.lose_power(survivors, seed);
            let (disk, log) = open(&disk.image());
            assert!(is_prefix(&log) >= durable, "sync {sync}, failed {failed}");
            goes_on(&disk, log);
        }
    }
}

/// Finding 24: a superblock states a floor behind a segment once the manifest has its SEAL record.
#[test]
fn a_damaged_seal_refuses_no_store_whatever_of_an_opening_was_stored() {
    let (disk, log) = create();
    fill(&log, 3);
    let mut image = disk.image();
    let (last, _) = frames_in(&image, 1).pop().unwrap();
    image[last.end - 1_000..last.end].fill(0);
    let disk = SimDisk::recording_from(image);
    let log = unindexed().open_storage(Arc::new(disk.clone())).unwrap();
    let all = is_prefix(&log);
    let recording = disk.take_recording();
    let mut images = CrashImages::new(&recording);
    let mut damaged = 0;
    loop {
        for (seed, survivors) in (0..4).flat_map(|seed| Survivors::ALL.map(|one| (seed, one))) {
            let image = images.image(survivors, seed);
            let frames = [0, 1].into_iter().flat_map(|number| frames_in(&image, number));
            for (seal, _) in frames.filter(|(_, header)| header.kind == FrameKind::Seal) {
                let mut image = image.clone();
                image[seal.start + 80] ^= 1;
                let (_, log) = try_open(&image);
                let at = images.boundary();
                let log = log.unwrap_or_else(|error| panic!("at {at}, {survivors:?}: {error}"));
                let found = is_prefix(&log);
                assert!(at < recording.ops.len() || found == all, "{survivors:?}: {found}");
                damaged += 1;
            }
        }
        if !images.advance() {
            break;
        }
    }
    assert!(damaged > 100, "{damaged}");
}

/// Finding 25: between its check and the moment at which it is written again, a page that a failed
/// sync dropped leaves the cache.
#[test]
fn what_an_opening_found_is_durable_whenever_the_cache_drops_what_a_failed_sync_did_not_store() {
    let mut lost = 0;
    for (sectors, call) in (0..6).flat_map(|sectors| (0..40).map(move |call| (sectors, call))) {
        let disk = SimDisk::new();
        let options = unindexed().tail_writer(TailWriter::Pwrite);
        let log = options.create_storage(Arc::new(disk.clone())).unwrap();
        drop(log.start_run("agent", "run", Metadata::default()).unwrap());
        append(&log, 6);
        // Which sectors are dropped follows from the number of the operation.
        (0..sectors).for_each(|_| disk.sync().unwrap());
        disk.fail_next(OpKind::Sync, ErrorKind::Other);
        assert!(log.sync().is_err());
        drop(log);
        let (calls, cache) = (AtomicU64::new(0), disk.clone());
        let evicting = Tap::new(Arc::new(disk.clone()), move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) == call {
                cache.evict();
            }
            Ok(())
        });
        let log = options.open_storage(evicting).unwrap();
        let found = is_prefix(&log);
        lost += 6 - found;
        drop(log);
        disk.lose_power(Survivors::Nothing, 1);
        let (_, log) = open(&disk.image());
        assert_eq!(is_prefix(&log), found, "at call {call}, {sectors}");
    }
    assert!(lost > 0, "the cache was always late");
}

/// Finding 13: frames behind the end of the log state the floor.
#[test]
fn damage_below_a_floor_that_only_an_orphan_frame_states_is_no_torn_end() {
    let (disk, log) = create();
    append(&log, 4);
    log.sync().unwrap();
    append(&log, 2);
    let mut image = disk.image();
    let frames = frames_in(&image, 0);
    // It states no floor itself; the frame behind it does.
    let damaged = of_kind(&frames, FrameKind::Record, 2).0;
    image[of_kind(&frames, FrameKind::Record, 4).0].fill(0);
    // An opening has put the floor into a superblock before it overwrites the frame.
    for sync in 0.. {
        let disk = SimDisk::from_image(image.clone());
        disk.fail_nth(OpKind::Sync, sync, ErrorKind::Other);
        let is_open = unindexed().open_storage(Arc::new(disk.clone())).is_ok();
        disk.clear_faults();
        let mut left = disk.image();
        left[damaged.start + 100] ^= 1;
        let (_, log) = try_open(&left);
        let log = log.unwrap();
        assert_eq!(log.trace("run").unwrap().filter(Result::is_err).count(), 1, "sync {sync}");
        assert_eq!(log.trace("run").unwrap().count(), 4, "sync {sync}");
        if is_open {
            break;
        }
    }
}

/// Findings 11 and 12, and the first row of what is refused.
#[test]
fn damage_of_what_everything_depends_on_is_refused_and_changes_no_byte() {
    let (disk, log) = create();
    fill(&log, 3);
    log.sync().unwrap();
    let image = disk.image();
    let superblock = usize::try_from(SUPERBLOCK_AT).unwrap();
    let manifest = usize::try_from(MANIFEST_AT).unwrap();
    let changed = |places: &[usize]| {
        let mut image = image.clone();
        places.iter().for_each(|at| image[*at] ^= 1);
        image
    };
    assert_eq!(refuses(&changed(&[40]), "static header"), Place::Header);
    let both = [superblock + 30, superblock + 4096 + 30];
    assert!(matches!(refuses(&changed(&both), "superblocks"), Place::Superblock { .. }));
    for at in [manifest + 20, manifest + 70, manifest + 110] {
        assert!(matches!(refuses(&changed(&[at]), "manifest"), Place::Manifest { .. }));
    }
    // The sector with the record that sets the second segment aside.
    let used = image[manifest..EXTENT].iter().rposition(|byte| *byte != 0).unwrap();
    let mut lost = image.clone();
    let first = manifest + 64 + 2 * 40;
    lost[first..manifest + used + 1].fill(0);
    assert!(matches!(refuses(&lost, "a lost record"), Place::Manifest { .. }));
    let reader = ReaderOptions::new().open_storage(Arc::new(SimDisk::untracked(changed(&[40]))));
    assert!(!reader.unwrap().recovery_report().damaged.is_empty());
}

/// Finding 14.
#[test]
fn below_the_floor_a_damaged_record_is_an_error_and_a_damaged_deletion_is_refused() {
    let (disk, log) = create();
    append(&log, 4);
    let other = log.start_run("agent", "other", ()).unwrap();
    let _ = other.end(&Outcome::completed()).unwrap();
    drop(other);
    let _ = log.delete_run("other").unwrap();
    append(&log, 2);
    log.sync().unwrap();
    append(&log, 1);
    let image = disk.image();
    let frames = frames_in(&image, 0);
    let changed = |(range, _): Frame, offset: usize| {
        let mut image = image.clone();
        image[range.start + offset] ^= 1;
        image
    };
    let (_, log) = try_open(&changed(of_kind(&frames, FrameKind::Record, 1), 90));
    let log = log.unwrap();
    assert_eq!(log.trace("run").unwrap().filter(Result::is_ok).count(), 6);
    for (kind, offset) in [(FrameKind::Evict, 74), (FrameKind::Start, 60), (FrameKind::Record, 20)]
    {
        let damaged = changed(of_kind(&frames, kind, 0), offset);
        let Place::Frame(_) = refuses(&damaged, "frame") else { panic!("{kind:?}") };
        // A reader shows what is in front of the damage, and reports it.
        let reader = ReaderOptions::new().open_storage(Arc::new(SimDisk::untracked(damaged)));
        assert!(!reader.unwrap().recovery_report().damaged.is_empty());
    }
}

/// Finding 21.
#[test]
fn numbers_are_left_out_if_one_superblock_is_lost() {
    let (disk, log) = create();
    append(&log, 2);
    log.close().unwrap();
    let (disk, log) = open(&disk.image());
    // A power cut leaves this, without the document.
    let left = disk.image();
    let given = log.docs().put("space", "key", &NewRecord::new(b"lost")).unwrap();
    for slot in 0..2 {
        let mut image = left.clone();
        image[usize::try_from(SUPERBLOCK_AT).unwrap() + slot * 4096 + 30] ^= 1;
        let (_, log) = try_open(&image);
        let log = log.unwrap();
        let next = log.docs().put("space", "other", &NewRecord::new(b"next")).unwrap();
        assert!(next > given, "slot {slot}");
    }
}

/// A move of the manifest was broken off between the superblocks, and the next opening moves it
/// again, into the area that the older superblock names.
#[test]
fn a_move_of_the_manifest_comes_to_its_end_before_the_next_one() {
    let disk = SimDisk::untracked(Vec::new());
    let indexed = || unindexed().index(true);
    let log = indexed().create_storage(Arc::new(disk.clone())).unwrap();
    drop(log.start_run("agent", "run", ()).unwrap());
    fill(&log, 1);
    log.checkpoint().unwrap();
    let records = log.run("run").unwrap().records;
    log.close().unwrap();
    let mut image = disk.image();
    let end = Manifest::of(&image).unwrap().end;
    // A batch of which a kill left the first bytes.
    image[end..end + 8].fill(0xee);
    let ahead = images_within(&image, &indexed()).into_iter().find(|image| {
        let [one, other] = slots(image).map(|slot| slot.unwrap().manifest.offset);
        one != other
    });
    let cuts = images_within(&ahead.expect("it moves"), &unindexed());
    assert!(cuts.len() > 4, "{}", cuts.len());
    for (cut, image) in cuts.iter().enumerate() {
        let (_, log) = try_open(&without_newer_superblock(image));
        let log = log.unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        assert_eq!(log.run("run").unwrap().records, records, "cut {cut}");
    }
}

/// What each kill within an opening leaves.
fn images_within(image: &[u8], options: &Options) -> Vec<Vec<u8>> {
    let disk = SimDisk::recording_from(image.to_vec());
    drop(options.open_storage(Arc::new(disk.clone())).unwrap());
    let recording = disk.take_recording();
    let (mut crashes, mut images) = (CrashImages::new(&recording), Vec::new());
    loop {
        images.push(crashes.image(Survivors::Everything, 1));
        if !crashes.advance() {
            return images;
        }
    }
}

/// Also if the random numbers of both openings are the same.
#[test]
fn an_opening_without_one_superblock_puts_the_numbers_it_leaves_out_into_both() {
    let (disk, log) = create();
    append(&log, 2);
    log.close().unwrap();
    let given = |image: &[u8]| {
        let disk = SimDisk::from_image(without_newer_superblock(image));
        let environment = Environment::system().entropy(Arc::new(SimEntropy::new(1)));
        let options = unindexed().environment(environment);
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        // A power cut leaves this, without the document.
        let left = disk.image();
        (left, log.docs().put("space", "key", &NewRecord::new(b"value")).unwrap())
    };
    let (left, first) = given(&disk.image());
    let (_, second) = given(&left);
    assert!(second > first);
}

/// A failed opening may leave two superblocks that check, so the next one leaves nothing out.
#[test]
fn an_opening_without_one_superblock_that_fails_does_not_promise_numbers_in_use() {
    let options = || unindexed().tail_writer(TailWriter::Pwrite);
    let disk = SimDisk::untracked(Vec::new());
    let log = options().index(true).create_storage(Arc::new(disk.clone())).unwrap();
    drop(log.start_run("agent", "run", ()).unwrap());
    fill(&log, 1);
    log.checkpoint().unwrap();
    assert!(log.stats().unwrap().index_extents > 0);
    let disk = SimDisk::from_image(disk.image());
    let log = options().index(true).open_storage(Arc::new(disk.clone())).unwrap();
    // A power cut leaves this, without the document.
    let left = without_newer_superblock(&disk.image());
    let given = log.docs().put("space", "key", &NewRecord::new(b"lost")).unwrap();
    // The openings drop the index, and for that they move the manifest.
    let mut failed = 0;
    for sync in 0.. {
        let disk = SimDisk::from_image(left.clone());
        disk.fail_nth(OpKind::Sync, sync, ErrorKind::Other);
        let is_open = options().open_storage(Arc::new(disk.clone())).is_ok();
        disk.clear_faults();
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        let next = log.docs().put("space", "other", &NewRecord::new(b"next")).unwrap();
        assert!(next > given, "sync {sync}");
        if is_open {
            break;
        }
        failed += 1;
    }
    assert!(failed > 2, "{failed}");
}

fn without_newer_superblock(image: &[u8]) -> Vec<u8> {
    let slots = [0, 1].map(|slot| usize::try_from(SUPERBLOCK_AT).unwrap() + slot * 4096);
    let epoch = |at: &usize| Superblock::decode(&image[*at..at + 4096]).ok().map(|it| it.epoch);
    let newer = slots.into_iter().max_by_key(epoch).unwrap();
    let mut image = image.to_vec();
    image[newer + 30] ^= 1;
    image
}
