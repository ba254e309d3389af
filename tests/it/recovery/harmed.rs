//! A store without a manifest is rebuilt from its segments and answers as before. Unreadable data
//! is reported, and never left out of an answer.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::env::{BootId, Environment, Step};
use runlog::format::frames::frame::SegmentKey;
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, ExtentSize};
use runlog::storage::Storage;
use runlog::{
    Allow, Compaction, Error, Lsn, Options, Outcome, RunLog, RunNo, RunQuery, SegmentId,
    SpaceReturn, Timestamp,
};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;

const EXTENT: u64 = 64 << 10;
/// Where both areas of the manifest are, in front of the extents.
const MANIFEST_AT: u64 = 16 << 10;

/// The test decides when background work runs.
fn options(background: &Background) -> Options {
    let environment = Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(7)))
        .boot_id(Some(BootId([1; 16])));
    let options = Options::new().extent_size(EXTENT).index(false).environment(environment);
    options.scheduler(Arc::new(background.clone()))
}

fn open(disk: &SimDisk) -> RunLog {
    options(&Background::default()).open_storage(Arc::new(disk.clone())).unwrap()
}

fn append(log: &RunLog, run: &str, len: usize) {
    let run = log.writer(("agent", run)).unwrap();
    let _ = run.append(&vec![7; len]).unwrap();
}

fn end(log: &RunLog, run: &str) {
    let _ = log.end_run("agent", run, &Outcome::completed(), Allow::nothing()).unwrap();
}

fn lose_manifest(disk: &SimDisk) {
    disk.write_at(MANIFEST_AT, &vec![0; (EXTENT - MANIFEST_AT) as usize]).unwrap();
}

/// The lengths of a run's records.
fn lens(log: &RunLog, run: &str) -> Vec<usize> {
    let trace = log.trace(("agent", run)).unwrap();
    trace.map(|record| record.unwrap().payload().len()).collect()
}

/// A run that begins in a segment that stays, and continues in segments that a compaction moves.
fn compacted() -> SimDisk {
    let (disk, background) = (SimDisk::recording(), Background::default());
    let log = options(&background).create_storage(Arc::new(disk.clone())).unwrap();
    for run in ["stays", "goes on", "goes"] {
        let _ = log.start_run("agent", run, ()).unwrap();
    }
    append(&log, "goes on", 100);
    for _ in 0..8 {
        append(&log, "stays", 7000);
    }
    for _ in 0..4 {
        append(&log, "goes on", 20_000);
        append(&log, "goes", 50_000);
    }
    end(&log, "goes");
    log.sync().unwrap();
    background.run(Step::Checkpoint);
    let before = log.stats().unwrap().log_extents;
    log.delete_run(("agent", "goes")).unwrap();
    background.run(Step::Compact);
    log.sync().unwrap();
    assert!(log.stats().unwrap().log_extents < before - 1, "it was compacted");
    disk
}

/// The extents of a file that begin with the header of an output of compaction.
fn outputs(image: &[u8]) -> Vec<usize> {
    let is_output = |at: &usize| {
        let header = SegmentHeader::decode(&image[*at..*at + SEGMENT_HEADER_LEN as usize]);
        header.is_ok_and(|header| header.purpose == Purpose::Output)
    };
    (EXTENT as usize..image.len()).step_by(EXTENT as usize).filter(is_output).collect()
}

/// Flips a bit of the payload of the last frame of a segment: the directory in its SEAL.
fn harm_seal(segment: &mut [u8]) {
    let last = segment.iter().rposition(|&byte| byte != 0).unwrap();
    segment[last] ^= 1;
}

#[test]
fn after_a_salvage_runs_that_go_on_in_outputs_are_read_and_listed_as_before() {
    let disk = compacted();
    lose_manifest(&disk);
    let log = open(&disk);
    assert!(log.recovery_report().salvaged);
    assert_eq!(lens(&log, "goes on"), [100, 20_000, 20_000, 20_000, 20_000]);
    assert_eq!(lens(&log, "stays"), [7000; 8]);
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = log.list_runs(&RunQuery::new().limit(1).after(cursor)).unwrap();
        listed.extend(page.runs.iter().map(|run| run.run.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["goes on", "stays"]);
}

#[test]
fn a_store_without_its_manifest_opens_on_a_full_disk() {
    let disk = compacted();
    disk.set_capacity(disk.allocated());
    let log = open(&disk);
    let run = log.writer(("agent", "stays")).unwrap();
    let mut more = 0;
    let refused = loop {
        match run.append(&[8; 3000]) {
            Ok(_) => more += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    log.sync().unwrap();
    drop((run, log));
    lose_manifest(&disk);
    let expected: Vec<usize> = [7000; 8].into_iter().chain(vec![3000; more]).collect();
    for _ in 0..2 {
        let log = open(&disk);
        assert_eq!(lens(&log, "goes on"), [100, 20_000, 20_000, 20_000, 20_000]);
        assert_eq!(lens(&log, "stays"), expected);
    }
    let log = open(&disk);
    end(&log, "stays");
    log.delete_run(("agent", "stays")).unwrap();
    disk.set_capacity(u64::MAX);
    append(&log, "goes on", 50_000);
    append(&log, "goes on", 50_000);
    log.close().unwrap();
    let log = open(&disk);
    assert!(log.recovery_report().is_clean(), "{}", log.recovery_report());
    assert_eq!(lens(&log, "goes on")[1..], [20_000, 20_000, 20_000, 20_000, 50_000, 50_000]);
    assert!(log.verify().unwrap().problems.is_empty());
}

#[test]
fn a_segment_that_cannot_be_read_is_told_and_not_left_out_of_an_answer() {
    let disk = SimDisk::new();
    let log = options(&Background::default()).create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..40 {
        let run = log.start_run("agent", &format!("run {number}"), ()).unwrap();
        let _ = run.append(&[7; 7000]).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    log.close().unwrap();
    let mut failed = 0;
    for nth in 0..20 {
        let log = open(&disk);
        for number in nth..nth + 3 {
            disk.fail_nth(OpKind::Read, number, ErrorKind::Other);
        }
        match log.run(("agent", "run 3")) {
            Ok(run) => assert_eq!(run.records, 1, "{nth}"),
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }), "{nth}: {error}");
                failed += 1;
            }
        }
        disk.clear_faults();
        assert_eq!(
            log.list_runs(&RunQuery::new().limit(100)).unwrap().runs.len(),
            40,
            "{nth}, read again"
        );
    }
    assert!(failed > 1, "{failed} reads failed");
}

#[test]
fn records_of_which_the_name_cannot_be_read_are_not_left_out_by_an_opening() {
    let disk = SimDisk::new();
    let log = options(&Background::default()).create_storage(Arc::new(disk.clone())).unwrap();
    let _ = log.start_run("agent", "goes on", ()).unwrap();
    for number in 0..20 {
        let run = log.start_run("agent", &format!("run {number}"), ()).unwrap();
        let _ = run.append(&[7; 7000]).unwrap();
    }
    append(&log, "goes on", 10);
    log.sync().unwrap();
    drop(log);
    let mut image = disk.image();
    let last = image.windows(7).rposition(|bytes| bytes == b"goes on").unwrap();
    image[last] ^= 1;
    let mut failed = 0;
    for nth in 0..60 {
        let disk = SimDisk::untracked(image.clone());
        disk.fail_nth(OpKind::Read, nth, ErrorKind::Other);
        match options(&Background::default()).open_storage(Arc::new(disk.clone())) {
            Ok(log) => {
                disk.clear_faults();
                assert_eq!(lens(&log, "goes on"), [10], "read {nth}: {}", log.recovery_report());
            }
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }), "{nth}: {error}");
                failed += 1;
            }
        }
    }
    assert!(failed >= 5, "{failed} reads failed");
}

#[test]
fn a_check_of_everything_lists_a_segment_that_is_lost_and_goes_on() {
    let (disk, background) = (SimDisk::new(), Background::default());
    let log = options(&background).index(true).create_storage(Arc::new(disk.clone())).unwrap();
    let _ = log.start_run("agent", "large", ()).unwrap();
    for len in [100, 200_000, 300, 200_000, 100] {
        append(&log, "large", len);
    }
    log.close().unwrap();
    let image = disk.image();
    let extents = (image.len() as u64 - EXTENT) / EXTENT;
    let mut listed = 0;
    for lost in 1..=extents {
        let disk = SimDisk::untracked(image.clone());
        disk.write_at(lost * EXTENT, &vec![0; EXTENT as usize]).unwrap();
        let Ok(log) = options(&Background::default()).open_storage(Arc::new(disk)) else {
            continue;
        };
        listed += u64::from(!log.verify().unwrap().is_clean());
    }
    assert!(listed >= 3, "{listed} of {extents} lost extents are told");
}

#[test]
fn of_two_outputs_with_one_number_the_one_that_was_finished_counts() {
    let (image, extent) = (compacted().image(), EXTENT as usize);
    for output in outputs(&image) {
        let whole = image[output..output + extent].to_vec();
        let mut harmed = whole.clone();
        harm_seal(&mut harmed);
        let mut half = whole.clone();
        half[extent / 2..].fill(0);
        for other in [harmed, half] {
            for parts in [[&whole, &other], [&other, &whole]] {
                let mut both = image.clone();
                both.resize(both.len().next_multiple_of(extent), 0);
                both[output..output + extent].copy_from_slice(parts[0]);
                both.extend_from_slice(parts[1]);
                let disk = SimDisk::untracked(both);
                lose_manifest(&disk);
                let log = open(&disk);
                assert_eq!(lens(&log, "stays").len(), 8, "{output}");
                assert_eq!(lens(&log, "goes on"), [100, 20_000, 20_000, 20_000, 20_000]);
                assert!(log.verify().unwrap().is_clean(), "{output}");
            }
        }
    }
}

/// A segment that could not be set aside has left its header in the extent, and its id is given to
/// the next one.
#[test]
fn a_header_that_was_left_behind_takes_the_place_of_no_segment_with_its_number() {
    let (image, extent) = (compacted().image(), EXTENT as usize);
    let mut image = image;
    image.resize(image.len().next_multiple_of(extent), 0);
    let mut segments = 0;
    for at in (extent..image.len()).step_by(extent) {
        let head = &image[at..at + SEGMENT_HEADER_LEN as usize];
        let Ok(mut header) = SegmentHeader::decode(head) else { continue };
        (header.key.salt, header.purpose) = (!header.key.salt, Purpose::Log);
        let mut left = vec![0; extent];
        left[..SEGMENT_HEADER_LEN as usize].copy_from_slice(&header.encode());
        let whole = image[at..at + extent].to_vec();
        for parts in [[&whole, &left], [&left, &whole]] {
            let mut both = image.clone();
            both[at..at + extent].copy_from_slice(parts[0]);
            both.extend_from_slice(parts[1]);
            let disk = SimDisk::untracked(both);
            lose_manifest(&disk);
            let log = open(&disk);
            assert_eq!(lens(&log, "stays").len(), 8, "{at}");
            assert_eq!(lens(&log, "goes on"), [100, 20_000, 20_000, 20_000, 20_000], "{at}");
            assert!(log.verify().unwrap().is_clean(), "{at}");
        }
        segments += 1;
    }
    assert!(segments > 2, "{segments} segments");
}

/// An id that was given out again may be that of a segment which compaction has replaced since.
#[test]
fn a_header_that_was_left_behind_brings_back_no_segment_that_was_replaced() {
    let (mut image, extent) = (compacted().image(), EXTENT as usize);
    image.resize(image.len().next_multiple_of(extent), 0);
    let heads = (extent..image.len()).step_by(extent);
    let heads = heads.map(|at| SegmentHeader::decode(&image[at..at + SEGMENT_HEADER_LEN as usize]));
    let there: Vec<SegmentHeader> = heads.filter_map(Result::ok).collect();
    let newest = there.iter().map(|header| header.key.id.0).max().unwrap();
    let is_there = |id: &u32| there.iter().any(|header| header.key.id.0 == *id);
    let gone: Vec<u32> = (1..=newest).filter(|id| !is_there(id)).collect();
    assert!(gone.len() > 3, "{gone:?}");
    let mut told = Vec::new();
    // None, each alone, and all of them.
    for ids in [&[][..]].into_iter().chain(gone.chunks(1)).chain([gone.as_slice()]) {
        let mut left = image.clone();
        for &id in ids {
            let mut header = there[0];
            header.key = SegmentKey { id: SegmentId(id), salt: !header.key.salt };
            header.purpose = Purpose::Log;
            let at = left.len();
            left.resize(at + extent, 0);
            left[at..at + SEGMENT_HEADER_LEN as usize].copy_from_slice(&header.encode());
        }
        let disk = SimDisk::untracked(left);
        // Twice: the second salvage must not trust what the first one took over.
        for round in 0..2 {
            lose_manifest(&disk);
            let log = open(&disk);
            assert_eq!(lens(&log, "stays").len(), 8, "{ids:?}");
            assert_eq!(lens(&log, "goes on"), [100, 20_000, 20_000, 20_000, 20_000], "{ids:?}");
            assert!(log.verify().unwrap().is_clean(), "{ids:?}");
            let damaged = log.recovery_report().damaged.clone();
            if ids.is_empty() {
                told.push(damaged);
            } else {
                assert_eq!(damaged, told[round], "{ids:?}");
            }
        }
    }
}

/// The header of a freed extent was zeroed, and its next owner's is written before the manifest
/// knows of it. So a manifest that lost its last records gives the extent to the segment before.
#[test]
fn a_header_that_was_broken_off_brings_back_no_segment_that_was_there_before() {
    let options = options(&Background::default());
    let options =
        options.compaction(Compaction::new().space_return(SpaceReturn::Keep).automatic(false));
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..6 {
        let run = format!("run-{number}");
        let _ = log.start_run("agent", &run, ()).unwrap();
        append(&log, &run, 58_000);
        end(&log, &run);
    }
    log.checkpoint().unwrap();
    let before = disk.image();
    for run in ["run-1", "run-2", "run-3"] {
        log.delete_run(("agent", run)).unwrap();
    }
    log.checkpoint().unwrap();
    log.reclaim().unwrap();
    let after = disk.image();
    let at = |extent: usize| EXTENTS_AT as usize + extent * EXTENT as usize;
    let head = |image: &[u8], extent| image[at(extent)..][..SEGMENT_HEADER_LEN as usize].to_vec();
    let uuid = SegmentHeader::decode(&head(&before, 0)).unwrap().uuid;
    let is_freed = |extent: &usize| {
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        !is_zero(&head(&before, *extent)) && is_zero(&head(&after, *extent))
    };
    let freed: Vec<usize> = (0..6).filter(is_freed).collect();
    assert!(freed.len() >= 2, "{freed:?}");
    let key = SegmentKey { id: SegmentId(40), salt: 0x1234_5678_9abc_def0 };
    let (next_run_no, next_lsn) = (RunNo(60), Lsn(200));
    let (purpose, extent_size) = (Purpose::Log, ExtentSize::MIN);
    let header = SegmentHeader { uuid, key, purpose, extent_size, next_run_no, next_lsn }.encode();
    for len in 0..header.len() {
        let mut image = after.clone();
        let manifest = MANIFEST_AT as usize..EXTENT as usize;
        image[manifest.clone()].copy_from_slice(&before[manifest]);
        for extent in &freed {
            image[at(*extent)..][..len].copy_from_slice(&header[..len]);
        }
        let log = open(&SimDisk::untracked(image));
        assert!(log.recovery_report().salvaged, "{len} bytes");
        assert_eq!(listed(&log, "agent", 10), ["run-0", "run-4", "run-5"], "{len} bytes");
        assert_eq!(log.verify().unwrap().problems, [], "{len} bytes");
    }
}

#[test]
fn a_check_of_everything_tells_of_records_that_are_lost_between_segments() {
    let image = compacted().image();
    let extents = (image.len() as u64 - EXTENT) / EXTENT;
    for lost in 1..=extents {
        let disk = SimDisk::untracked(image.clone());
        lose_manifest(&disk);
        // The page that names the segment.
        disk.write_at(lost * EXTENT, &[0; 4096]).unwrap();
        let Ok(log) = options(&Background::default()).open_storage(Arc::new(disk)) else {
            continue;
        };
        let is_told = |run| {
            let Ok(mut trace) = log.trace(("agent", run)) else { return false };
            trace.any(|record| record.is_err())
        };
        if is_told("goes on") || is_told("stays") {
            assert!(!log.verify().unwrap().is_clean(), "extent {lost}");
        }
    }
}

#[test]
fn a_read_that_fails_in_a_check_of_everything_is_no_damage() {
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let indexed = |background: &Background| options(background).index(true);
    let log = indexed(&background).create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..40 {
        let run = log.start_run("agent", &format!("run {number}"), ()).unwrap();
        let _ = run.append(&[7; 7000]).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    background.run(Step::Checkpoint);
    log.close().unwrap();
    let image = disk.image();
    for nth in 0..120 {
        let (disk, background) = (SimDisk::untracked(image.clone()), Background::default());
        let log = indexed(&background).open_storage(Arc::new(disk.clone())).unwrap();
        background.run(Step::Checkpoint);
        disk.fail_nth(OpKind::Read, nth, ErrorKind::Other);
        match log.verify() {
            Ok(report) => assert!(report.is_clean(), "read {nth}: {:?}", report.problems),
            Err(error) => assert!(matches!(error, Error::Io { .. }), "read {nth}: {error}"),
        }
        disk.clear_faults();
        assert!(log.verify().unwrap().is_clean(), "read {nth}");
    }
}

/// All runs of an agent, by pages of so many.
fn listed(log: &RunLog, agent: &str, limit: usize) -> Vec<String> {
    let (mut runs, mut cursor) = (Vec::new(), None);
    loop {
        let page = log.list_runs(&RunQuery::new().agent(agent).limit(limit).after(cursor)).unwrap();
        runs.extend(page.runs.iter().map(|run| run.run.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            runs.sort_unstable();
            return runs;
        }
    }
}

#[test]
fn no_held_run_is_left_out_because_reads_fail() {
    for index in [false, true] {
        let disk = SimDisk::untracked(Vec::new());
        let small = || Options::new().extent_size(EXTENT).background(false).index(index);
        let small = || small().index_cache(0);
        let log = small().create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..6 {
            let name = format!("run-{run}");
            let _ = log.start_run("agent", &name, ()).unwrap().append(&[run; 30_000]).unwrap();
            end(&log, &name);
            let _ = log.hold(name.as_str(), "asked for").unwrap();
        }
        log.close().unwrap();
        let image = disk.image();
        let mut reads = 0;
        loop {
            let disk = SimDisk::untracked(image.clone());
            let log = small().open_storage(Arc::new(disk.clone())).unwrap();
            let _ = disk.take_counts();
            // From one read on.
            let failing = reads..reads + 99;
            failing.for_each(|nth| disk.fail_nth(OpKind::Read, nth, ErrorKind::Other));
            let held = log.held_runs();
            let is_over = disk.reads() <= reads;
            disk.clear_faults();
            if let Ok(held) = held {
                assert_eq!(held.len(), 6, "index {index}, {reads} reads");
            }
            if is_over {
                break assert!(reads > 3);
            }
            reads += 1;
        }
    }
}
