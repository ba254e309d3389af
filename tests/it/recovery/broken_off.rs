//! Openings that a failure or a power cut interrupts, and the state that the next one finds.

use std::io;
use std::sync::Arc;

use runlog::env::{BootId, Environment, Step};
use runlog::format::frames::frame::{FRAME_HEADER_LEN, frame_len};
use runlog::format::map::manifest::{AREA_HEADER_LEN, RECORD_LEN, read_area};
use runlog::format::map::superblock::{FLAG_SALVAGED, Superblock};
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::format::{EXTENTS_AT, FrameKind, MANIFEST_AT, SUPERBLOCK_AT};
use runlog::{
    Corruption, Durability, Metadata, NewRecord, Options, Place, ReaderOptions, RunLog, TailWriter,
};
use runlog_sim::{CrashImages, Fault, OpKind, SimDisk, Survivors};

use crate::support::background::Background;
use crate::support::frames::frames_in;

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

fn unsynced() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

/// The opening process cannot tell whether the power was lost.
fn any_boot() -> Options {
    options().environment(Environment::system().boot_id(None))
}

/// The first extent of a store, and where its directory is.
fn first_extent(image: &mut [u8]) -> (&mut [u8], usize) {
    let extent = &mut image[EXTENTS_AT as usize..][..EXTENT as usize];
    let directory = extent.windows(8).position(|part| part == b"RLOGDIR1").unwrap();
    (extent, directory)
}

/// A store after a power loss: a segment that is closed with a long directory, and has a hole
/// before it that is not below the floor. The next segment has records too.
fn with_a_hole() -> Vec<u8> {
    let mut image = of_two_segments(any_boot());
    let (extent, directory) = first_extent(&mut image);
    assert!(directory + 12_000 > EXTENT as usize * 3 / 4, "{directory}");
    let hole = (directory - 1_500) / 512 * 512;
    extent[hole..hole + 512].fill(0);
    image
}

/// A store whose first segment is closed, but not durably, and whose second has a record.
fn of_two_segments(options: Options) -> Vec<u8> {
    of_segments(options, 2)
}

/// The same with several segments; the last one has a record.
fn of_segments(options: Options, count: u32) -> Vec<u8> {
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let threads = options.scheduler(Arc::new(background.clone()));
    let log = threads.create_storage(Arc::new(disk.clone())).unwrap();
    let start = |run: usize| log.start_run("agent", &format!("run-{run}"), unsynced()).unwrap();
    let runs: Vec<_> = (0..110).map(start).collect();
    // The last sync for now.
    assert!(background.run(Step::Reserve));
    let first = log.stats().unwrap().end.segment;
    let mut turns = runs.iter().cycle();
    while log.stats().unwrap().end.segment.0 + 1 < first.0 + count {
        let _ = turns.next().unwrap().append(b"record").unwrap();
    }
    let _ = turns.next().unwrap().append(b"record").unwrap();
    disk.image()
}

/// How many records each run has.
fn counts(log: &RunLog) -> Vec<usize> {
    let runs = (0..110).map(|run| log.trace(format!("run-{run}").as_str()));
    runs.map(|trace| trace.map_or(0, Iterator::count)).collect()
}

/// After a kill, a segment that another one follows has a whole SEAL frame. So if that frame is
/// damaged too, a missing record before it is not the only hole.
#[test]
fn a_damaged_seal_behind_a_hole_is_a_second_hole_whatever_the_boot_id_says() {
    let boot = |id| Environment::system().boot_id(Some(BootId([id; 16])));
    let mut image = of_two_segments(options().environment(boot(1)));
    let (extent, directory) = first_extent(&mut image);
    let (seal, frame) = (directory - FRAME_HEADER_LEN, frame_len(b"record".len()));
    extent[seal - frame..seal].fill(0);
    extent[directory + 100] ^= 1;
    let open = |id| {
        let disk = SimDisk::untracked(image.clone());
        options().environment(boot(id)).open_storage(Arc::new(disk)).unwrap()
    };
    let (same, other) = (open(1), open(2));
    assert!(!same.recovery_report().same_boot, "{}", same.recovery_report());
    assert_eq!(counts(&same), counts(&other));
}

/// The order of the log is the order of the ids, even if all frames of a segment in the middle are
/// lost: the log does not continue in that segment after the one that follows.
#[test]
fn a_segment_that_lost_all_its_frames_stays_in_front_of_the_next_one() {
    let mut image = of_segments(any_boot(), 3);
    let second = (EXTENTS_AT + EXTENT) as usize + SEGMENT_HEADER_LEN as usize;
    image[second..][..EXTENT as usize - SEGMENT_HEADER_LEN as usize].fill(0);
    let disk = SimDisk::untracked(image);
    let log = any_boot().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(!log.recovery_report().damaged.is_empty(), "{}", log.recovery_report());
    let (found, end) = (counts(&log), log.stats().unwrap().end.segment);
    let runs: Vec<_> =
        (0..110).filter_map(|run| log.writer(format!("run-{run}").as_str()).ok()).collect();
    let mut appended = 0;
    for run in runs.iter().cycle() {
        let _ = run.append(b"later").unwrap();
        appended += 1;
        if log.stats().unwrap().end.segment.0 > end.0 + 2 {
            break;
        }
    }
    let expected = counts(&log);
    assert_eq!(expected.iter().sum::<usize>(), found.iter().sum::<usize>() + appended);
    drop((runs, log));
    let log = any_boot().open_storage(Arc::new(disk)).unwrap();
    assert_eq!(counts(&log), expected, "{}", log.recovery_report());
}

#[test]
fn what_an_opening_left_out_stays_out_wherever_it_is_broken_off() {
    let image = with_a_hole();
    let disk = SimDisk::untracked(image.clone());
    let log = any_boot().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(!log.recovery_report().torn.is_empty(), "{}", log.recovery_report());
    let (expected, calls) = (counts(&log), disk.op_count());
    for call in 0..calls {
        let disk = SimDisk::untracked(image.clone());
        disk.fail_from(call, io::ErrorKind::Other);
        let broken_off = any_boot().open_storage(Arc::new(disk.clone()));
        drop(broken_off);
        disk.clear_faults();
        let log = any_boot().open_storage(Arc::new(disk)).unwrap();
        assert_eq!(counts(&log), expected, "{call} of {calls}: {}", log.recovery_report());
        assert!(log.verify().unwrap().is_clean(), "{call} of {calls}");
    }
}

/// Any power cut during an opening that closes a segment before an open batch.
#[test]
fn what_an_opening_closes_is_no_damage_after_a_power_loss_within_it() {
    let boot = Environment::system().boot_id(Some(BootId([1; 16])));
    let same_boot = options().tail_writer(TailWriter::Pwrite).environment(boot);
    let disk = SimDisk::recording();
    let log = same_boot.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    // Enough that the next segment is set aside, and is synced with the first of them.
    for number in 0..20 {
        let _ = run.append(&[number; 2_000]).unwrap();
    }
    disk.fail_next(OpKind::Write, Fault { error: io::ErrorKind::Other, stored: 3_000 });
    assert!(run.append_batch(&[NewRecord::new(&[9; 2_000]); 3]).is_err());
    drop((run, log));
    let killed = disk.op_count();
    let log = same_boot.open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(log.trace("run").unwrap().count(), 20);
    drop(log);
    let (opened, recording) = (disk.op_count(), disk.take_recording());
    let mut crashes = CrashImages::new(&recording);
    for cut in killed..=opened {
        crashes.seek(cut);
        for (survivors, seed) in
            Survivors::ALL.map(|some| (0..8).map(move |seed| (some, seed))).into_iter().flatten()
        {
            let mut image = Vec::new();
            crashes.image_into(survivors, seed, &mut image);
            let log = any_boot().open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
            let (cut, report) = ((cut, survivors, seed), log.recovery_report());
            assert!(report.damaged.is_empty(), "{cut:?}: {report}");
            assert!(log.verify().unwrap().is_clean(), "{cut:?}: {report}");
        }
    }
}

/// An opening notes in a superblock what it finds missing. The one before it is from an earlier
/// boot of the machine: by that, the log would end at what is missing.
#[test]
fn a_kill_within_an_opening_that_notes_a_loss_takes_nothing() {
    let boot = |id| Environment::system().boot_id(Some(BootId([id; 16])));
    let on = |id| options().index(false).environment(boot(id)).tail_writer(TailWriter::Pwrite);
    let disk = SimDisk::untracked(Vec::new());
    on(1).create_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
    let log = on(2).open_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    for number in 0..10 {
        let _ = run.append(&[number; 200]).unwrap();
    }
    let mut image = disk.image();
    let is_record = |frame: &FrameKind| *frame == FrameKind::Record;
    let mut records = frames_in(&image, 0).into_iter().filter(|(_, frame)| is_record(&frame.kind));
    let (lost, _) = records.nth(3).unwrap();
    image[lost].fill(0xff);
    let disk = SimDisk::recording_from(image);
    let log = on(2).open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(log.trace("run").unwrap().flatten().count(), 9);
    assert!(log.recovery_report().same_boot, "{}", log.recovery_report());
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for stored in [0, 1, 60, 124, 130, 179] {
            let disk = SimDisk::untracked(crashes.killed(stored));
            let log = on(2).open_storage(Arc::new(disk)).unwrap();
            let found = log.trace("run").unwrap().flatten().count();
            let at = (crashes.boundary(), stored);
            assert_eq!(found, 9, "killed at {at:?}: {}", log.recovery_report());
        }
        if !crashes.advance() {
            return;
        }
    }
}

/// Where the newest superblock is.
fn newest_superblock(image: &[u8]) -> usize {
    let slots = [0, 1].map(|slot| SUPERBLOCK_AT as usize + slot * 4096);
    let epoch =
        |at: &usize| Superblock::decode(&image[*at..*at + 4096]).map_or(0, |block| block.epoch.0);
    slots.into_iter().max_by_key(epoch).unwrap()
}

fn damage_newest(image: &mut [u8]) {
    let newest = newest_superblock(image);
    image[newest + 50] ^= 1;
}

/// Two holes show that the page cache is lost, although the boot id stayed. On a full disk an
/// opening overwrites one of them. It is the second in a row that is killed, and the newest
/// superblock is damaged then: the other one does not vouch for the page cache either.
#[test]
fn a_refuted_boot_id_is_in_no_superblock_once_what_refutes_it_is_overwritten() {
    let boot = Environment::system().boot_id(Some(BootId([1; 16])));
    let options = options().index(false).tail_writer(TailWriter::Pwrite).environment(boot);
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    for number in 0..8 {
        let _ = run.append(&[number; 200]).unwrap();
    }
    let mut image = disk.image();
    let is_record = |frame: &FrameKind| *frame == FrameKind::Record;
    let frames = frames_in(&image, 0).into_iter().filter(|(_, frame)| is_record(&frame.kind));
    let records: Vec<_> = frames.map(|(range, _)| range).collect();
    for hole in [2, 4] {
        image[records[hole].clone()].fill(0);
    }
    let open = |image: Vec<u8>| {
        let disk = SimDisk::recording_from(image);
        disk.set_capacity(disk.allocated());
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        let found = log.trace("run").unwrap().flatten().count();
        drop(log);
        (found, disk.take_recording())
    };
    let (found, recording) = open(image);
    assert_eq!(found, 2);
    let mut first = CrashImages::new(&recording);
    loop {
        let (found, recording) = open(first.killed(0));
        assert_eq!(found, 2);
        let mut second = CrashImages::new(&recording);
        loop {
            let mut image = second.killed(0);
            damage_newest(&mut image);
            let at = (first.boundary(), second.boundary());
            assert_eq!(open(image).0, 2, "killed at {at:?}");
            if !second.advance() {
                break;
            }
        }
        if !first.advance() {
            return;
        }
    }
}

/// After a kill a damaged record keeps its place if whole frames follow. These may be of a batch
/// that was not written whole, which an opening overwrites on a full disk.
#[test]
fn a_damaged_record_keeps_its_place_while_what_follows_it_is_overwritten() {
    let boot = Environment::system().boot_id(Some(BootId([1; 16])));
    let options = options().index(false).tail_writer(TailWriter::Pwrite).environment(boot);
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    for number in 0..4 {
        let _ = run.append(&[number; 200]).unwrap();
    }
    disk.fail_next(OpKind::Write, Fault { error: io::ErrorKind::Other, stored: 5_000 });
    assert!(run.append_batch(&[NewRecord::new(&[9; 2_000]); 3]).is_err());
    let mut image = disk.image();
    let is_record = |frame: &FrameKind| *frame == FrameKind::Record;
    let mut records = frames_in(&image, 0).into_iter().filter(|(_, frame)| is_record(&frame.kind));
    let (damaged, _) = records.nth(3).unwrap();
    image[damaged.end - 20] ^= 1;
    keeps_four_records(&options, image);
}

/// The same behind a full segment whose directory is damaged: it is in front of the floor, and what
/// it keeps is not where the log ends.
#[test]
fn a_damaged_record_behind_another_damaged_segment_keeps_its_place_too() {
    let boot = Environment::system().boot_id(Some(BootId([1; 16])));
    let options = options().index(false).tail_writer(TailWriter::Pwrite).environment(boot);
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let threads = options.clone().scheduler(Arc::new(background.clone()));
    let log = threads.create_storage(Arc::new(disk.clone())).unwrap();
    let other = log.start_run("agent", "other", unsynced()).unwrap();
    assert!(background.run(Step::Reserve));
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        let _ = other.append(&[7; 3_000]).unwrap();
    }
    log.sync().unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    (0..4).for_each(|number| drop(run.append(&[number; 200]).unwrap()));
    disk.fail_next(OpKind::Write, Fault { error: io::ErrorKind::Other, stored: 5_000 });
    assert!(run.append_batch(&[NewRecord::new(&[9; 2_000]); 3]).is_err());
    let mut image = disk.image();
    let (seal, _) = frames_in(&image, 0).pop().unwrap();
    image[seal.end - 20] ^= 1;
    let mut of_run = frames_in(&image, 1);
    of_run.retain(|(_, frame)| frame.kind == FrameKind::Record);
    let (damaged, _) = of_run.iter().rfind(|(range, _)| range.len() < 400).unwrap();
    image[damaged.end - 20] ^= 1;
    forget_last_change(&mut image);
    let sealed = {
        let log = options.open_storage(Arc::new(SimDisk::untracked(image.clone()))).unwrap();
        log.recovery_report().sealed_segments
    };
    assert_eq!(sealed, 0);
    keeps_four_records(&options, image);
}

/// Takes the last record of the manifest away, as if the kill had been in front of it: that the
/// full segment is sealed.
fn forget_last_change(image: &mut [u8]) {
    let newest = newest_superblock(image);
    let block = Superblock::decode(&image[newest..newest + 4096]).unwrap();
    let (start, len) = (block.manifest.offset as usize, block.manifest.len as usize);
    let area = read_area(&image[start..start + len], block.uuid, block.manifest.generation);
    let records = area.unwrap().records;
    assert!(records > block.manifest.records, "no superblock counts it");
    let last = start + AREA_HEADER_LEN + (records as usize - 1) * RECORD_LEN;
    image[last..last + RECORD_LEN].fill(0);
}

/// Opens a store on a full disk; whenever that is killed, the next opening finds four records.
fn keeps_four_records(options: &Options, image: Vec<u8>) {
    let open = |image: Vec<u8>| {
        let disk = SimDisk::recording_from(image);
        disk.set_capacity(disk.allocated());
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        let records = log.run("run").unwrap().records;
        (records, log, disk)
    };
    let (records, log, disk) = open(image);
    assert_eq!(records, 4, "{}", log.recovery_report());
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for stored in [0, 8, 33, 100] {
            let (records, log, _) = open(crashes.killed(stored));
            let at = (crashes.boundary(), stored);
            assert_eq!(records, 4, "killed at {at:?}: {}", log.recovery_report());
        }
        if !crashes.advance() {
            return;
        }
    }
}

/// A power loss took the header of a segment that was set aside, and no superblock counts that. It
/// is written before one does.
#[test]
fn a_header_that_was_never_durable_is_no_damage_wherever_an_opening_is_broken_off() {
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let threads = any_boot().scheduler(Arc::new(background.clone()));
    let log = threads.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let _ = run.append(b"record").unwrap();
    assert!(background.run(Step::Reserve));
    let mut image = disk.image();
    image[(EXTENTS_AT + EXTENT) as usize..][..SEGMENT_HEADER_LEN as usize].fill(0);
    let disk = SimDisk::recording_from(image);
    let log = any_boot().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(log.recovery_report().damaged.is_empty(), "{}", log.recovery_report());
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        let storage = Arc::new(SimDisk::untracked(crashes.killed(0)));
        let log = any_boot().open_storage(storage).unwrap();
        let report = log.recovery_report();
        assert!(report.damaged.is_empty(), "killed at {}: {report}", crashes.boundary());
        if !crashes.advance() {
            return;
        }
    }
}

/// A segment is lost with its header, and the manifest says that it is there. The header is all
/// that shows it, so it stays missing until a superblock has the number of the loss.
#[test]
fn a_lost_header_is_written_anew_once_the_loss_has_a_number() {
    let mut image = of_two_segments(any_boot());
    let second = (EXTENTS_AT + EXTENT) as usize;
    image[second..second + EXTENT as usize].fill(0);
    let newest = newest_superblock(&image);
    // The superblock counts that it was set aside.
    let mut block = Superblock::decode(&image[newest..newest + 4096]).unwrap();
    let (start, len) = (block.manifest.offset as usize, block.manifest.len as usize);
    let area = read_area(&image[start..start + len], block.uuid, block.manifest.generation);
    block.manifest.records = area.unwrap().records;
    let page = block.encode();
    image[newest..newest + page.len()].copy_from_slice(&page);
    let number =
        |image: &[u8], at: usize| Superblock::decode(&image[at..at + 4096]).unwrap().salvage;
    let before = number(&image, newest);
    let disk = SimDisk::recording_from(image);
    let log = any_boot().open_storage(Arc::new(disk.clone())).unwrap();
    let is_header = |found: &Corruption| matches!(found.place, Place::Extent { .. });
    assert!(log.recovery_report().damaged.iter().any(is_header), "{}", log.recovery_report());
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        let image = crashes.killed(0);
        let after = number(&image, newest_superblock(&image));
        let log = any_boot().open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
        let report = log.recovery_report();
        let is_told = report.damaged.iter().any(is_header);
        assert!(is_told || after != before, "killed at {}: {report}", crashes.boundary());
        if !crashes.advance() {
            return;
        }
    }
}

/// A store whose first segment was torn by a kill and closed by an opening, and whose log went on.
fn with_an_old_marker() -> Vec<u8> {
    let disk = SimDisk::untracked(Vec::new());
    let writes = options().tail_writer(TailWriter::Pwrite);
    let log = writes.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(&[1; 500]).unwrap();
    disk.fail_next(OpKind::Write, Fault { error: io::ErrorKind::Other, stored: 300 });
    assert!(run.append(&[2; 500]).is_err());
    drop((run, log));
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(!log.recovery_report().torn.is_empty(), "{}", log.recovery_report());
    let run = log.writer("run").unwrap();
    (0..3).for_each(|_| drop(run.append(&[3; 500]).unwrap()));
    log.sync().unwrap();
    disk.image()
}

/// The one that was broken off has not told it. The new manifest does not know the old marker: that
/// is no loss, neither for openings nor for processes that read.
#[test]
fn a_manifest_that_was_salvaged_is_told_by_the_opening_behind_one_that_was_broken_off() {
    let mut image = with_an_old_marker();
    let newest = newest_superblock(&image);
    let block = Superblock::decode(&image[newest..newest + 4096]).unwrap();
    image[block.manifest.offset as usize + 9] ^= 1;
    let disk = SimDisk::recording_from(image);
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(log.recovery_report().salvaged);
    drop(log);
    let recording = disk.take_recording();
    let (mut crashes, mut salvaged) = (CrashImages::new(&recording), 0);
    loop {
        let image = crashes.killed(0);
        let newest = newest_superblock(&image);
        let block = Superblock::decode(&image[newest..newest + 4096]).unwrap();
        let storage = Arc::new(SimDisk::untracked(image));
        let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
        let log = options().open_storage(storage).unwrap();
        let report = log.recovery_report();
        let is_frame = |found: &Corruption| matches!(found.place, Place::Frame(_));
        for told in [&*reader.recovery_report(), report] {
            let at = crashes.boundary();
            assert!(!told.damaged.iter().any(is_frame), "killed at {at}: {told}");
        }
        if block.flags & FLAG_SALVAGED != 0 {
            assert!(report.salvaged, "killed at {}: {report}", crashes.boundary());
            salvaged += 1;
        }
        if !crashes.advance() {
            break;
        }
    }
    assert!(salvaged > 2, "{salvaged}");
}

/// An opening notes a loss in a new manifest area, and is killed. So is the next one, which tells
/// the manifest of a full segment: both superblocks name the area before.
#[test]
fn both_superblocks_name_the_manifest_before_anything_is_added_to_it() {
    let boot = Environment::system().boot_id(Some(BootId([1; 16])));
    let options = options().tail_writer(TailWriter::Pwrite).environment(boot);
    let mut image = of_two_segments(options.clone());
    let (extent, directory) = first_extent(&mut image);
    let (seal, frame) = (directory - FRAME_HEADER_LEN, frame_len(b"record".len()));
    extent[seal - frame..seal].fill(0xff);
    let open = |image: Vec<u8>| {
        let disk = SimDisk::recording_from(image);
        drop(options.open_storage(Arc::new(disk.clone())).unwrap());
        disk.take_recording()
    };
    let recording = open(image);
    let mut first = CrashImages::new(&recording);
    loop {
        let recording = open(first.killed(0));
        let mut second = CrashImages::new(&recording);
        loop {
            let (image, at) = (second.killed(0), (first.boundary(), second.boundary()));
            let slots = [0, 1].map(|slot| SUPERBLOCK_AT as usize + slot * 4096);
            let blocks = slots.map(|at| Superblock::decode(&image[at..at + 4096]).unwrap());
            let newest = blocks.iter().max_by_key(|block| block.epoch.0).unwrap();
            let start = newest.manifest.offset as usize;
            let area = &image[start..start + newest.manifest.len as usize];
            let area = read_area(area, newest.uuid, newest.manifest.generation).unwrap();
            let is_added_to = area.records > u64::from(area.header.snapshot);
            let [one, other] = blocks.map(|block| block.manifest.generation);
            assert!(one == other || !is_added_to, "killed at {at:?}");
            if !second.advance() {
                break;
            }
        }
        if !first.advance() {
            return;
        }
    }
}

#[test]
fn a_reader_tells_of_a_salvage_that_was_broken_off_as_the_next_writer_does() {
    let mut image = of_two_segments(options());
    image[MANIFEST_AT as usize..EXTENTS_AT as usize].fill(0x55);
    let disk = SimDisk::recording_from(image);
    drop(options().open_storage(Arc::new(disk.clone())).unwrap());
    let recording = disk.take_recording();
    let (mut crashes, mut broken) = (CrashImages::new(&recording), 0);
    loop {
        let image = crashes.killed(0);
        let on = |image: &[u8]| Arc::new(SimDisk::untracked(image.to_vec()));
        let reader = ReaderOptions::new().open_storage(on(&image)).unwrap().recovery_report();
        let log = options().open_storage(on(&image)).unwrap();
        let (said, expected) = (reader.salvaged, log.recovery_report().salvaged);
        assert_eq!(said, expected, "killed at {}: {reader}", crashes.boundary());
        let has_manifest =
            reader.damaged.iter().all(|one| !matches!(one.place, Place::Manifest { .. }));
        broken += usize::from(said && has_manifest);
        if !crashes.advance() {
            break;
        }
    }
    assert!(broken > 3, "{broken}");
}
