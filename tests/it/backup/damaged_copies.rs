//! Backups of a store that is damaged, into a file that a backup made before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runlog::env::{BootId, Environment};
use runlog::format::map::manifest::{Use, read_area};
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::format::{EXTENTS_AT, FrameKind, MANIFEST_AT, OWNER_AT};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Backup, Compaction, Compression, Error, IndexRecovery, Metadata, NewRecord, Options, Outcome,
    ReadLog, Reader, ReaderOptions, RunLog, RunQuery,
};
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use crate::backup::backups::{Failing, seals};
use crate::support::frames::{EXTENT, frames_in, unindexed};
use crate::support::harm::newest;
use crate::support::reads::OnlyReads;

fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

pub(crate) fn open(storage: &Arc<MemoryStorage>) -> Reader {
    ReaderOptions::new().open_storage(Arc::<MemoryStorage>::clone(storage)).unwrap()
}

/// How many records can be read.
fn readable(storage: &Arc<MemoryStorage>) -> usize {
    let log = open(storage);
    let runs = log.runs(&RunQuery::new()).map(Result::unwrap);
    runs.map(|run| log.trace(&run).unwrap().filter(Result::is_ok).count()).sum()
}

/// What a copy has that the store has lost since is not replaced, however little else it lacks.
#[test]
fn a_backup_replaces_what_is_damaged_in_the_copy_by_whole_segments_only() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let writer = log.start_run("agent", "run", ()).unwrap();
    for number in 1..=200_u8 {
        writer.append(&[number; 1000]).unwrap();
    }
    drop(writer);
    log.close().unwrap();
    let whole = storage.to_bytes();
    let (start, seal) = seals(&whole)[0];
    // Four entries in the report, of four records.
    let mut few = whole.clone();
    for number in [10_u8, 20, 30, 40] {
        let at = few[start..].windows(1000).position(|part| *part == [number; 1000]).unwrap();
        few[start + at + 9] ^= 1;
    }
    // Two entries, of most records of the segment.
    let mut most = whole.clone();
    most[start + 3000..seal].fill(0x55);
    let back_up = |bytes: &[u8], copy: &Arc<MemoryStorage>| {
        let source = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
        open(&source).backup_to_storage(Arc::<MemoryStorage>::clone(copy)).unwrap()
    };
    let copy = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&few, &copy).damaged.len(), 4);
    assert_eq!(readable(&copy), 196);
    assert_eq!(back_up(&most, &copy).damaged.len(), 4);
    assert_eq!(readable(&copy), 196);
    let last = back_up(&whole, &copy);
    assert_eq!((last.damaged.len(), last.copied_segments, readable(&copy)), (0, 1, 200));
}

/// The writer moves what the backup is about to read.
#[test]
fn a_backup_that_begins_again_still_tells_what_was_damaged_at_first() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for number in 0..200_u32 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        run.append(&[number as u8 + 1; 1000]).unwrap();
    }
    log.sync().unwrap();
    let whole = storage.to_bytes();
    let places = seals(&whole);
    let at = places[0].1 - 32;
    storage.write_at(at as u64, &[0x55; 8]).unwrap();
    let (last, log) = (places[2].0 as u64, Mutex::new(Some(log)));
    let busy = OnlyReads::new(storage.clone(), move |offset, len| {
        let is_copied = len > 20_000 && offset == last;
        if let Some(log) = is_copied.then(|| log.lock().unwrap().take()).flatten() {
            log.checkpoint().unwrap();
            let _ = log.compact().unwrap();
            let run = log.start_run("agent", "more", ()).unwrap();
            for _ in 0..200 {
                run.append(&[7; 1000]).unwrap();
            }
            log.sync().unwrap();
        }
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(busy).unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let report = reader.backup_to_storage(copy.clone()).unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert_eq!(open(&copy).verify().unwrap().problems.len(), 1);
    // The store is restored.
    storage.write_at(at as u64, &whole[at..at + 8]).unwrap();
    let again = open(&storage).backup_to_storage(copy.clone()).unwrap();
    assert!(again.damaged.is_empty() && again.copied_segments > 0, "{again:?}");
    assert!(open(&copy).verify().unwrap().is_clean());
}

/// What is cut off are extents of the index alone, which the log makes again.
#[test]
fn a_store_that_has_lost_extents_of_its_index_owes_no_copy_anything() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for number in 0..60_u8 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        (0..4).for_each(|_| drop(run.append(&[number + 1; 2000]).unwrap()));
        run.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    assert!(back_up(&storage.to_bytes(), &copy).damaged.is_empty());
    for number in 0..30 {
        log.delete_run(format!("run-{number}").as_str()).unwrap();
    }
    log.checkpoint().unwrap();
    assert!(log.compact().unwrap().segments > 0);
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let block = newest(&image).unwrap();
    let area = &image[usize::try_from(block.manifest.offset).unwrap()..];
    let extents = read_area(area, block.uuid, block.manifest.generation).unwrap().extents;
    let (last, used) = extents.uses.last_key_value().unwrap();
    assert!(matches!(used, Use::Index { .. }), "{used:?}");
    let cut = EXTENTS_AT + u64::from(last.0) * EXTENT as u64;
    image.truncate(usize::try_from(cut).unwrap());
    let told = back_up(&image, &Arc::new(MemoryStorage::new())).damaged;
    assert!(told.is_empty(), "{told:?}");
    let storage = Arc::new(MemoryStorage::from_bytes(image));
    let log = small().open_storage(storage.clone()).unwrap();
    assert_eq!(log.recovery_report().damaged, []);
    assert_eq!(log.recovery_report().index, IndexRecovery::Dropped);
    log.close().unwrap();
    let again = back_up(&storage.to_bytes(), &copy);
    assert!(again.damaged.is_empty(), "{again:?}");
    assert_eq!(readable(&copy), 120);
}

#[test]
fn a_reader_verifies_that_the_last_record_of_a_closed_store_is_there() {
    let (storage, log) = of_one_segment(40);
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let last = frames_in(&image, 0).pop().unwrap().0;
    image[last].fill(0);
    let reader = open(&Arc::new(MemoryStorage::from_bytes(image)));
    let told = reader.recovery_report().damaged.clone();
    assert_eq!(told.len(), 1);
    assert_eq!(reader.verify().unwrap().problems, told);
}

/// Each record that can be read, by run number and sequence.
pub(crate) type Sound = BTreeMap<(u64, u64), Vec<u8>>;

pub(crate) fn sound(log: &impl ReadLog) -> Sound {
    let mut sound = Sound::new();
    for run in log.runs(&RunQuery::new()).filter_map(Result::ok) {
        let Ok(trace) = log.trace(&run) else { continue };
        for record in trace.filter_map(Result::ok) {
            sound.insert((run.number().0, record.seq().0), record.payload().to_vec());
        }
    }
    sound
}

fn back_up(store: &[u8], copy: &Arc<MemoryStorage>) -> Backup {
    let source = Arc::new(MemoryStorage::from_bytes(store.to_vec()));
    open(&source).backup_to_storage(Arc::<MemoryStorage>::clone(copy)).unwrap()
}

/// A store whose only segment takes records: one of 40, and what stands where.
fn of_one_segment(number: u8) -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let writer = log.start_run("agent", "run", ()).unwrap();
    for fill in 1..=number {
        writer.append(&[fill; 300]).unwrap();
    }
    log.sync().unwrap();
    (storage, log)
}

fn place_of(image: &[u8], fill: u8) -> usize {
    image.windows(300).position(|part| *part == [fill; 300]).unwrap()
}

#[test]
fn what_the_store_loses_of_the_segment_that_takes_records_stays_in_the_copy() {
    let harms: [(&str, &[u8], i64, usize); 4] = [
        ("a payload", &[7], 10, 1),
        ("a header", &[7], -60, 8),
        ("two in a row", &[7, 8], -70, 200),
        ("the last record of the first backup", &[20], -72, 372),
    ];
    for (what, fills, from, len) in harms {
        for more in [0, 5, 200] {
            let (storage, log) = of_one_segment(20);
            let copy = Arc::new(MemoryStorage::new());
            assert!(back_up(&storage.to_bytes(), &copy).damaged.is_empty());
            let before = sound(&open(&copy));
            let writer = log.writer("run").unwrap();
            (0..more).for_each(|fill| drop(writer.append(&[fill; 400]).unwrap()));
            log.sync().unwrap();
            let (expected, mut image) = (sound(&log), storage.to_bytes());
            for fill in fills {
                let at = (place_of(&image, *fill) as i64 + from) as usize;
                image[at..at + len].fill(0x55);
            }
            let what = format!("{what}, {more} more");
            if more == 0 && *fills == [20] {
                // The log ends earlier.
                let store = Arc::new(MemoryStorage::from_bytes(image));
                assert!(has_more(open(&store).backup_to_storage(copy.clone())));
                assert!(sound(&open(&copy)) == before);
                continue;
            }
            for _ in 0..2 {
                let report = back_up(&image, &copy);
                assert!(report.damaged.is_empty(), "{what}: {:?}", report.damaged);
                let found = sound(&open(&copy));
                assert!(before.iter().all(|(key, value)| found.get(key) == Some(value)), "{what}");
                assert!(found == expected, "{what}: {} of {}", found.len(), expected.len());
                let report = open(&copy).verify().unwrap();
                assert!(report.is_clean(), "{what}: {:?}", report.problems);
            }
            drop(writer);
            log.close().unwrap();
        }
    }
}

pub(crate) fn boot(id: u8) -> Environment {
    Environment::system().boot_id(Some(BootId([id; 16])))
}

pub(crate) fn reader(storage: Arc<dyn Storage>, id: u8) -> Reader {
    ReaderOptions::new().environment(boot(id)).open_storage(storage).unwrap()
}

fn bytes_of(storage: &dyn Storage) -> Vec<u8> {
    let mut bytes = vec![0; storage.len().unwrap() as usize];
    storage.read_at(0, &mut bytes).unwrap();
    bytes
}

fn has_more(done: runlog::Result<Backup>) -> bool {
    matches!(done, Err(Error::CopyHasMore { .. }))
}

/// The store loses power, and goes on with other records at the same places.
#[test]
fn what_a_power_loss_has_cut_off_does_not_come_back_from_a_copy_of_a_damaged_store() {
    // One that both have, the first of the new ones, its header, none.
    for harm in [Some((3, 0)), Some((16, 0)), Some((16, -60)), None] {
        let disk = Arc::new(SimDisk::new());
        let log = small().environment(boot(1)).create_storage(disk.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        for fill in 1..=5 {
            run.append(&[fill; 300]).unwrap();
        }
        log.sync().unwrap();
        (6..=7).for_each(|fill| drop(run.append(&[fill; 300]).unwrap()));
        let copy = Arc::new(MemoryStorage::new());
        let _ = reader(disk.clone(), 1).backup_to_storage(copy.clone()).unwrap();
        assert_eq!(sound(&open(&copy)).len(), 7);
        let left = disk.crash(Survivors::Nothing, 1);
        drop((run, log));
        let disk = Arc::new(SimDisk::from_image(left));
        let log = small().environment(boot(2)).open_storage(disk.clone()).unwrap();
        let run = log.writer("run").unwrap();
        run.append(&[16; 300]).unwrap();
        drop(run);
        log.close().unwrap();
        let mut image = bytes_of(&*disk);
        if let Some((fill, from)) = harm {
            let at = (place_of(&image, fill) as i64 + from) as usize;
            image[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        let store = Arc::new(MemoryStorage::from_bytes(image));
        let done = reader(store, 2).backup_to_storage(copy.clone());
        let found: Vec<u8> = sound(&open(&copy)).values().map(|payload| payload[0]).collect();
        match harm {
            None => assert_eq!((done.is_ok(), &*found), (true, &[1, 2, 3, 4, 5, 16][..])),
            // What is lost is another record than that of the copy.
            Some((16, 0)) => {
                assert_eq!((done.unwrap().damaged.len(), &*found), (1, &[1, 2, 3, 4, 5][..]));
            }
            Some(_) => assert!(has_more(done) && found == [1, 2, 3, 4, 5, 6, 7], "{harm:?}"),
        }
    }
}

/// A process opened the store when records were damaged, and has given their numbers again.
#[test]
fn a_copy_that_has_what_a_writer_went_on_without_is_left_as_it_is() {
    for more in [0, 250] {
        let (storage, log) = of_one_segment(20);
        let copy = Arc::new(MemoryStorage::new());
        let _ = back_up(&storage.to_bytes(), &copy);
        let before = sound(&open(&copy));
        let mut image = storage.to_bytes();
        let at = place_of(&image, 18) - 70;
        image[at..at + 600].fill(0x55);
        drop(log);
        let store = Arc::new(MemoryStorage::from_bytes(image));
        let log = small().open_storage(store.clone()).unwrap();
        let run = log.writer("run").unwrap();
        (0..more + 1).for_each(|_| drop(run.append(&[99; 400]).unwrap()));
        log.sync().unwrap();
        let done = open(&store).backup_to_storage(copy.clone());
        assert!(has_more(done) && sound(&open(&copy)) == before, "{more} more");
        assert!(open(&copy).verify().unwrap().is_clean());
        // Another file gets what the store has.
        let other = Arc::new(MemoryStorage::new());
        let _ = open(&store).backup_to_storage(other.clone()).unwrap();
        assert!(sound(&open(&other)) == sound(&open(&store)));
        drop(run);
        log.close().unwrap();
    }
}

/// A volume that was set back, or the last record of the log is damaged.
#[test]
fn a_log_that_ends_in_front_of_the_end_of_the_copy_is_refused_unless_power_was_lost() {
    let (storage, log) = of_one_segment(5);
    let earlier = storage.to_bytes();
    let run = log.writer("run").unwrap();
    // So few that nothing is synced for the next segment.
    (0..50).for_each(|_| drop(run.append(&[9; 400]).unwrap()));
    let copy = Arc::new(MemoryStorage::new());
    let _ = back_up(&storage.to_bytes(), &copy);
    let whole = copy.to_bytes();
    let mut damaged = storage.to_bytes();
    let mut records = damaged.windows(400).rev();
    let behind = records.position(|part| *part == [9; 400]).unwrap();
    let last = damaged.len() - 1 - behind;
    damaged[last] ^= 1;
    for image in [earlier, damaged] {
        let store = Arc::new(MemoryStorage::from_bytes(image));
        let done = open(&store).backup_to_storage(copy.clone());
        assert!(has_more(done) && copy.to_bytes() == whole);
        // The machine was started anew, so what was not synced may be gone: all of it.
        let other = Arc::new(MemoryStorage::from_bytes(whole.clone()));
        let after = reader(store, 9);
        let done = after.backup_to_storage(other.clone());
        assert!(done.is_ok(), "{done:?}");
        assert!(sound(&open(&other)) == sound(&after));
    }
    drop(run);
    log.close().unwrap();
}

/// One that was to replace something, so that no superblock says where the open segment ends.
#[test]
fn a_backup_behind_one_that_broke_off_loses_nothing_of_the_open_segment() {
    let (storage, log) = of_one_segment(200);
    let whole = storage.to_bytes();
    let mut odd = whole.clone();
    let at = place_of(&odd, 10);
    odd[at] ^= 1;
    let first = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&odd, &first).damaged.len(), 1);
    // It is whole, and another one in the open segment is damaged.
    let mut other = whole.clone();
    let at = place_of(&other, 195);
    other[at] ^= 1;
    for calls in (0..40).flat_map(|one| (0..8).map(move |two| (one, two))) {
        let copy = Arc::new(MemoryStorage::from_bytes(first.to_bytes()));
        for left in [calls.0, calls.1] {
            let failing = Failing { storage: copy.clone(), left: AtomicU64::new(left) };
            let store = Arc::new(MemoryStorage::from_bytes(other.clone()));
            let _ = open(&store).backup_to_storage(Arc::new(failing));
            let found = sound(&open(&copy)).len();
            assert!(found >= 199, "broken off after {calls:?}: {found}");
        }
        assert!(back_up(&other, &copy).damaged.is_empty());
        assert_eq!(sound(&open(&copy)).len(), 200, "broken off after {calls:?}");
    }
    log.close().unwrap();
}

/// What an update of the copy that broke off left behind what counts.
#[test]
fn what_a_backup_that_broke_off_left_is_no_part_of_the_next_one() {
    for calls in 0..60 {
        let disk = Arc::new(SimDisk::new());
        let log = small().environment(boot(1)).create_storage(disk.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        run.append(&[1; 300]).unwrap();
        log.sync().unwrap();
        let copy = Arc::new(MemoryStorage::new());
        let source = reader(disk.clone(), 1);
        let _ = source.backup_to_storage(copy.clone()).unwrap();
        (2..=6).for_each(|fill| drop(run.append(&[fill; 300]).unwrap()));
        let failing = Failing { storage: copy.clone(), left: AtomicU64::new(calls) };
        let done = source.backup_to_storage(Arc::new(failing)).is_ok();
        let left = disk.crash(Survivors::Nothing, 1);
        drop((run, log));
        let disk = Arc::new(SimDisk::from_image(left));
        let log = small().environment(boot(2)).open_storage(disk.clone()).unwrap();
        let run = log.writer("run").unwrap();
        run.append(&[12; 300]).unwrap();
        let source = reader(disk, 2);
        let _ = source.backup_to_storage(copy.clone()).unwrap();
        let found = open(&copy);
        assert!(sound(&found) == sound(&log), "{calls} calls");
        assert!(found.verify().unwrap().is_clean(), "{calls} calls");
        if done {
            return assert!(calls > 3);
        }
    }
    panic!("it never ends");
}

/// Stores that grow, are damaged anywhere behind the front, lose their manifest, are killed and
/// opened again.
#[test]
fn no_backup_loses_what_an_earlier_one_had_whatever_the_store_loses() {
    let rounds = std::env::var("RUNLOG_COPIES").ok().and_then(|text| text.parse().ok());
    let (mut mended, mut refused, mut kept_on) = (0, 0, 0);
    for seed in 0..rounds.unwrap_or(150_u64) {
        let mut rng = SplitMix64::new(seed);
        let mut storage = Arc::new(MemoryStorage::new());
        let mut log = small().create_storage(storage.clone()).unwrap();
        let mut copy = Arc::new(MemoryStorage::new());
        let (mut before, mut deleted) = (Sound::new(), BTreeSet::new());
        // Deletions make it move records.
        let moves = seed % 2 == 0;
        // The writer knows only of what it finds.
        let loses_manifest = seed % 4 == 1;
        for look in 0..8 {
            let what = format!("seed {seed}, look {look}");
            for _ in 0..rng.below(40) {
                let id = format!("run-{}", rng.below(6));
                let fill = rng.below(256) as u8;
                let _ = match rng.below(12) {
                    0 if moves => {
                        // A store that loses this has the run again, and a copy has not.
                        deleted.extend(log.run(&*id).map(|run| run.number().0));
                        log.delete_run(&id).is_ok()
                    }
                    1 => log.writer(&id).is_ok_and(|run| run.end(&Outcome::completed()).is_ok()),
                    2 => log.sync().is_ok(),
                    3 if moves && rng.below(4) == 0 => log.compact().is_ok(),
                    _ => log.start_run("agent", &id, ()).is_ok_and(|run| {
                        let len = 1 + rng.below(3000) as usize;
                        let one = vec![fill; len];
                        let pair = [NewRecord::new(&one), NewRecord::new(b"two")];
                        run.append(&one).is_ok() && run.append_batch(&pair).is_ok()
                    }),
                };
            }
            if moves {
                // What moves is copied before something happens to it.
                let store = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
                if open(&store).backup_to_storage(copy.clone()).is_err() {
                    copy = Arc::new(MemoryStorage::new());
                    let _ = open(&store).backup_to_storage(copy.clone()).unwrap();
                }
                before = sound(&open(&copy));
            }
            // Everything but the last record is known as durable, or one place is damaged.
            let is_durable = rng.below(2) == 0;
            for _ in 0..if is_durable { 2 } else { 0 } {
                let _ = log.sync().is_ok() && log.start_run("agent", "last", ()).is_ok();
                let _ = log.writer("last").is_ok_and(|run| run.append(b"last").is_ok());
            }
            let runs = log.runs(&RunQuery::new()).filter_map(Result::ok);
            let records: BTreeMap<u64, u64> =
                runs.map(|run| (run.number().0, run.records)).collect();
            let kept = sound(&log);
            let mut image = storage.to_bytes();
            let used: Vec<usize> =
                (EXTENTS_AT as usize..image.len()).filter(|at| image[*at] != 0).collect();
            for _ in 0..rng.below(if is_durable { 4 } else { 2 }) {
                let at = used[rng.below(used.len() as u64) as usize];
                let len = [1, 8, 100, 5000][rng.below(4) as usize];
                let end = (at + len).min(image.len());
                image[at..end].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            let is_lost = loses_manifest && rng.below(4) == 0;
            if is_lost {
                // And perhaps the header of a sealed segment, which no writer finds then.
                let sealed = seals(&image);
                if let Some((at, _)) = sealed.get(rng.index(sealed.len() + 1)) {
                    image[*at..at + 64].fill(0x55);
                }
                image[MANIFEST_AT as usize..EXTENTS_AT as usize].fill(0x55);
            }
            let store = Arc::new(MemoryStorage::from_bytes(image.clone()));
            if is_lost && rng.below(2) == 0 {
                // It is opened before another backup is made.
                let Ok(opened) = small().open_storage(store.clone()) else { break };
                (storage, log) = (store, opened);
                continue;
            }
            let Ok(reader) = ReaderOptions::new().open_storage(store.clone()) else { continue };
            let mine = sound(&reader);
            let had = (copy.len().unwrap() > 0).then(|| sound(&open(&copy)));
            let report = match reader.backup_to_storage(copy.clone()) {
                Ok(report) => report,
                Err(Error::CopyHasMore { .. }) => {
                    assert!(sound(&open(&copy)) == had.unwrap(), "{what}");
                    (copy, before) = (Arc::new(MemoryStorage::new()), Sound::new());
                    refused += 1;
                    reader.backup_to_storage(copy.clone()).unwrap()
                }
                Err(error) => panic!("{what}: {error}"),
            };
            let found = open(&copy);
            let now = sound(&found);
            // What the writer has, or had in a place that is damaged now.
            let lost = |(key, value): &(&(u64, u64), &Vec<u8>)| {
                (loses_manifest || records.get(&key.0).is_some_and(|records| key.1 < *records))
                    && !deleted.contains(&key.0)
                    && kept.get(*key).is_none_or(|kept| kept == *value)
                    && now.get(*key) != Some(*value)
            };
            let gone: Vec<_> = before.iter().filter(lost).map(|(key, _)| *key).collect();
            assert!(gone.is_empty(), "{what}: {gone:?} are lost, {report:?}");
            let worse: Vec<_> = mine.iter().filter(lost).map(|(key, _)| *key).collect();
            assert!(worse.is_empty(), "{what}: {worse:?} are not copied, {report:?}");
            let problems = found.verify().unwrap().problems;
            // A number that the store has given again is found by `verify` there, too.
            let is_told = problems.is_empty()
                || !report.damaged.is_empty()
                || !reader.verify().unwrap().is_clean();
            assert!(is_told, "{what}: {problems:?}");
            mended += u64::from(now.len() > mine.len());
            before = now;
            // The damage stays, and perhaps the process dies.
            if rng.below(2) == 0 {
                match small().open_storage(store.clone()) {
                    Ok(opened) => {
                        kept_on += 1;
                        (storage, log) = (store, opened);
                    }
                    Err(_) => break,
                }
            }
        }
    }
    let counts = (mended, refused, kept_on);
    assert!(mended > 20 && refused > 5 && kept_on > 100, "{counts:?}");
}

#[test]
fn a_copy_of_a_store_that_has_lost_its_last_record_says_so() {
    let (storage, log) = of_one_segment(20);
    log.close().unwrap();
    for fill in [0, 0x55] {
        let mut image = storage.to_bytes();
        let at = place_of(&image, 20);
        image[at - 72..at + 300].fill(fill);
        let copy = Arc::new(MemoryStorage::new());
        for _ in 0..2 {
            let told = back_up(&image, &copy).damaged;
            assert!(!told.is_empty(), "{fill:#x}");
            assert_eq!(readable(&copy), 19);
        }
        assert!(back_up(&storage.to_bytes(), &copy).damaged.is_empty());
        assert_eq!(readable(&copy), 20);
    }
}

/// A process opens the store when its last record is damaged, and goes on without it.
#[test]
fn a_last_record_that_a_writer_went_on_without_stays_in_the_copy() {
    for (from, is_closed) in [(-60, false), (-60, true), (0, false)] {
        let (storage, log) = of_one_segment(20);
        let copy = Arc::new(MemoryStorage::new());
        let _ = back_up(&storage.to_bytes(), &copy);
        let before = sound(&open(&copy));
        if is_closed {
            log.close().unwrap();
        }
        let mut image = storage.to_bytes();
        let at = (place_of(&image, 20) as i64 + from) as usize;
        image[at..at + 8].fill(0x55);
        let store = Arc::new(MemoryStorage::from_bytes(image));
        let log = small().open_storage(store.clone()).unwrap();
        for number in 0..3 {
            let run = log.start_run("agent", &format!("more-{number}"), ()).unwrap();
            run.append(&[99; 300]).unwrap();
            log.sync().unwrap();
            let done = open(&store).backup_to_storage(copy.clone());
            assert!(has_more(done) && sound(&open(&copy)) == before, "{from}, {is_closed}");
        }
        log.close().unwrap();
    }
}

/// A session that writes nothing promises the same numbers as the one behind it.
#[test]
fn no_number_is_twice_in_a_copy_that_was_made_while_nothing_was_written() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let one = log.start_run("agent", "one", ()).unwrap();
    (10..12).for_each(|fill| drop(one.append(&[fill; 300]).unwrap()));
    let _ = log.start_run("agent", "two", ()).unwrap().append(&[20; 300]).unwrap();
    drop(one);
    log.close().unwrap();
    let log = small().open_storage(storage.clone()).unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let _ = back_up(&storage.to_bytes(), &copy);
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let at = place_of(&image, 11) - 60;
    image[at..at + 8].fill(0x55);
    let store = Arc::new(MemoryStorage::from_bytes(image));
    let log = small().open_storage(store.clone()).unwrap();
    for run in ["one", "two"] {
        let _ = log.writer(run).unwrap().append(&[99; 300]).unwrap();
    }
    let done = open(&store).backup_to_storage(copy.clone());
    assert!(has_more(done) && sound(&open(&copy)).len() == 3);
    log.close().unwrap();
}

#[test]
fn a_copy_becomes_shorter_with_a_reader_of_what_is_durable_and_a_copy_of_it_too() {
    let disk = Arc::new(SimDisk::new());
    let log = small().create_storage(disk.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    (1..=5).for_each(|fill| drop(run.append(&[fill; 300]).unwrap()));
    log.sync().unwrap();
    (6..=9).for_each(|fill| drop(run.append(&[fill; 300]).unwrap()));
    let (first, second) = (Arc::new(MemoryStorage::new()), Arc::new(MemoryStorage::new()));
    for durable_only in [false, true] {
        let options = ReaderOptions::new().durable_only(durable_only);
        let source = options.open_storage(disk.clone()).unwrap();
        let _ = source.backup_to_storage(first.clone()).unwrap();
        let _ = open(&first).backup_to_storage(second.clone()).unwrap();
        assert!(sound(&open(&first)) == sound(&source));
        assert!(sound(&open(&second)) == sound(&source));
    }
    // A store whose runs are all deleted has no segment of the log.
    drop(run);
    let _ = log.writer("run").unwrap().end(&Outcome::completed()).unwrap();
    log.delete_run("run").unwrap();
    let _ = log.compact().unwrap();
    for _ in 0..2 {
        let source = ReaderOptions::new().open_storage(disk.clone()).unwrap();
        let _ = source.backup_to_storage(first.clone()).unwrap();
        let _ = open(&first).backup_to_storage(second.clone()).unwrap();
        assert!(sound(&open(&second)).is_empty());
    }
    log.close().unwrap();
}

/// A power loss can tear it.
#[test]
fn a_copy_has_a_page_of_the_owner_that_checks_whatever_the_store_has() {
    let (storage, log) = of_one_segment(3);
    log.close().unwrap();
    for harm in [0, 0x55] {
        let mut image = storage.to_bytes();
        image[OWNER_AT as usize..OWNER_AT as usize + 64].fill(harm);
        let copy = Arc::new(MemoryStorage::new());
        let report = back_up(&image, &copy);
        assert!(report.damaged.is_empty() && open(&copy).verify().unwrap().is_clean(), "{harm}");
    }
}

/// Damaged in the copy when it was made, and elsewhere in the store since.
#[test]
fn a_sealed_segment_of_which_copy_and_store_lack_different_parts_is_whole_after_a_backup() {
    let (storage, log) = of_one_segment(200);
    log.close().unwrap();
    let whole = storage.to_bytes();
    let (_, seal) = seals(&whole)[0];
    let places = [("a record", place_of(&whole, 10)), ("the directory", seal + 80)];
    for (what, at) in places {
        let (mut one, mut two) = (whole.clone(), whole.clone());
        one[at] ^= 1;
        let other = place_of(&two, 20);
        two[other] ^= 1;
        let copy = Arc::new(MemoryStorage::new());
        assert_eq!(back_up(&one, &copy).damaged.len(), 1, "{what}");
        let report = back_up(&two, &copy);
        assert_eq!((report.damaged.len(), report.copied_segments), (0, 1), "{what}: {report:?}");
        assert_eq!(sound(&open(&copy)).len(), 200, "{what}");
        assert!(open(&copy).verify().unwrap().is_clean(), "{what}");
    }
}

/// A volume that was set back, and a writer that has gone on behind the end of the copy since.
#[test]
fn a_store_that_was_set_back_and_has_grown_beyond_the_copy_is_refused() {
    for first in [5, 130, 320] {
        let storage = Arc::new(MemoryStorage::new());
        let log = small().create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        (0..first).for_each(|_| drop(run.append(&[1; 300]).unwrap()));
        log.sync().unwrap();
        let earlier = storage.to_bytes();
        (0..400).for_each(|_| drop(run.append(&[2; 300]).unwrap()));
        log.sync().unwrap();
        let copy = Arc::new(MemoryStorage::new());
        let _ = back_up(&storage.to_bytes(), &copy);
        let before = sound(&open(&copy));
        drop(run);
        log.close().unwrap();
        let store = Arc::new(MemoryStorage::from_bytes(earlier));
        let log = small().open_storage(store.clone()).unwrap();
        let run = log.writer("run").unwrap();
        (0..900).for_each(|_| drop(run.append(&[3; 300]).unwrap()));
        log.sync().unwrap();
        let done = open(&store).backup_to_storage(copy.clone());
        assert!(has_more(done) && sound(&open(&copy)) == before, "{first}");
        drop(run);
        log.close().unwrap();
    }
}

/// The same of a run that is compressed in the copy, once the store has given the ids of all
/// segments that the copy has to others, and has none of these any more.
#[test]
fn a_store_that_was_set_back_is_refused_if_a_copy_has_more_of_a_run_in_blocks() {
    let options = || {
        let options = small().environment(boot(1)).receipts(0, Duration::ZERO);
        options.compaction(Compaction::new().automatic(false))
    };
    let storage = Arc::new(MemoryStorage::new());
    let zstd = options().compression(Compression::Zstd { level: 3 });
    let log = zstd.create_storage(storage.clone()).unwrap();
    // With less room behind it than the first frame of what is deleted later.
    let stays = log.start_run("agent", "stays", ()).unwrap();
    (0..28).for_each(|_| drop(stays.append(&[5; 2000]).unwrap()));
    let _ = stays.end(&Outcome::completed()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    (0..3).for_each(|_| drop(run.append(&[1; 300]).unwrap()));
    log.sync().unwrap();
    let earlier = storage.to_bytes();
    (0..97).for_each(|_| drop(run.append(&[2; 300]).unwrap()));
    let _ = run.end(&Outcome::completed()).unwrap();
    let other = log.start_run("agent", "other", ()).unwrap();
    (0..10).for_each(|_| drop(other.append(&[3; 8000]).unwrap()));
    log.checkpoint().unwrap();
    assert!(log.compact().unwrap().segments > 0);
    log.sync().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let _ = reader(storage.clone(), 1).backup_to_storage(copy.clone()).unwrap();
    let (before, image) = (sound(&open(&copy)), copy.to_bytes());
    assert!(before.len() > 100);
    let is_block =
        |number| frames_in(&image, number).iter().any(|(_, frame)| frame.kind == FrameKind::Block);
    assert!((0..4).any(is_block));

    let store = Arc::new(MemoryStorage::from_bytes(earlier));
    let log = options().open_storage(store.clone()).unwrap();
    for number in 0..16 {
        let name = format!("filler {number}");
        let filler = log.start_run("agent", &name, Metadata::new(&[4; 4000])).unwrap();
        (0..8).for_each(|_| drop(filler.append(&[4; 8000]).unwrap()));
        let _ = filler.end(&Outcome::completed()).unwrap();
        let _ = log.delete_run(&*name).unwrap();
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
    }
    log.sync().unwrap();
    let done = reader(store.clone(), 1).backup_to_storage(copy.clone());
    let left = sound(&open(&copy));
    assert!(has_more(done) && left == before, "{} of {}", left.len(), before.len());
}

/// Brings a copy up to date, once the writer has gone on meanwhile: what the segment `tail` has,
/// which takes frames and has the record 250, is not what it had, for one read.
fn begin_again(
    storage: &Arc<MemoryStorage>,
    log: RunLog,
    (tail, expected): (usize, &Sound),
    copy: Arc<MemoryStorage>,
) {
    let image = storage.to_bytes();
    let tail = frames_in(&image, tail)[0].0.start as u64 - u64::from(SEGMENT_HEADER_LEN);
    let (place, end) = (place_of(&image, 250) as u64, log.stats().unwrap().end.offset);
    let reads = Arc::<AtomicU64>::default();
    let (counted, log) = (Arc::clone(&reads), Mutex::new(log));
    let file = Arc::clone(storage);
    let busy = OnlyReads::new(Arc::clone(storage), move |offset, len| {
        // Neither more nor less is copied.
        if offset == tail && len == end as usize {
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            file.write_at(place, &[if is_first { 1 } else { 250 }; 8])?;
            if is_first {
                log.lock().unwrap().sync().unwrap();
                log.lock().unwrap().checkpoint().unwrap();
            }
        }
        Ok(())
    });
    let report = reader(busy, 1).backup_to_storage(copy.clone()).unwrap();
    assert!(reads.load(Ordering::SeqCst) > 1);
    assert!(report.damaged.is_empty(), "{report:?}");
    let found = sound(&open(&copy));
    assert!(found == *expected, "{} of {}", found.len(), expected.len());
    assert!(open(&copy).verify().unwrap().is_clean());
}

/// The store loses a record and the SEAL frame of a segment that the copy has whole. The backup has
/// put both in their places when the writer goes on, so that it begins again.
#[test]
fn what_a_backup_kept_of_a_copy_is_kept_when_it_begins_again() {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed(1).create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    // The second segment has nothing of it, so a directory that is made of the frames there is
    // another one.
    let _ = log.start_run("agent", "other", ()).unwrap();
    let append = |fill: u8| drop(run.append(&[fill; 300]).unwrap());
    let segment = || log.stats().unwrap().end.segment;
    let first = segment();
    while segment() == first {
        append(255);
    }
    let (second, mut fill) = (segment(), 0_u8);
    while segment() == second {
        fill += 1;
        append(fill);
    }
    let copy = Arc::new(MemoryStorage::new());
    let _ = reader(storage.clone(), 1).backup_to_storage(copy.clone()).unwrap();
    append(250);
    append(251);
    let (expected, image) = (sound(&log), storage.to_bytes());
    let frames = frames_in(&image, 1);
    let (seal, _) = frames.iter().find(|(_, frame)| frame.kind == FrameKind::Seal).unwrap();
    for at in [place_of(&image, 7), seal.start + 8] {
        storage.write_at(at as u64, &[0x55; 8]).unwrap();
    }
    begin_again(&storage, log, (2, &expected), copy);
}

/// The copy has a damaged segment, and gets a whole one in another extent: twice, since the writer
/// goes on meanwhile.
#[test]
fn what_a_backup_copies_again_when_it_begins_again_is_there_afterwards() {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed(1).create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let append = |fill: u8| drop(run.append(&[fill; 300]).unwrap());
    let (first, mut fill) = (log.stats().unwrap().end.segment, 0_u8);
    while log.stats().unwrap().end.segment == first {
        fill += 1;
        append(fill);
    }
    let mut damaged = storage.to_bytes();
    let at = place_of(&damaged, 7);
    damaged[at] ^= 1;
    let copy = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&damaged, &copy).damaged.len(), 1);
    append(250);
    append(251);
    let expected = sound(&log);
    drop(run);
    begin_again(&storage, log, (1, &expected), copy);
}

/// Nothing stands behind the frames then, neither in the store nor in the copy.
#[test]
fn a_copy_of_a_segment_whose_seal_both_lack_opens_and_has_the_frames_of_both() {
    let (storage, log) = of_one_segment(200);
    log.close().unwrap();
    let mut whole = storage.to_bytes();
    let (start, seal) = seals(&whole)[0];
    whole[seal..start + EXTENT].fill(0);
    let (mut one, mut two) = (whole.clone(), whole.clone());
    for (image, fill) in [(&mut one, 10), (&mut two, 20)] {
        let at = place_of(image, fill);
        image[at] ^= 1;
    }
    let copy = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&one, &copy).damaged.len(), 2);
    let report = back_up(&two, &copy);
    assert_eq!((report.damaged.len(), report.copied_segments), (1, 1), "{report:?}");
    assert_eq!(sound(&open(&copy)).len(), 200);
}

#[test]
fn a_header_that_the_copy_lacks_is_taken_from_a_store_that_lacks_something_else() {
    let (storage, log) = of_one_segment(200);
    log.close().unwrap();
    let whole = storage.to_bytes();
    let (start, _) = seals(&whole)[0];
    let (mut one, mut two) = (whole.clone(), whole.clone());
    one[start..start + 64].fill(0x55);
    let other = place_of(&two, 20);
    two[other] ^= 1;
    let copy = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&one, &copy).damaged.len(), 1);
    let report = back_up(&two, &copy);
    assert!(report.damaged.is_empty(), "{report:?}");
    assert!(open(&copy).verify().unwrap().is_clean());
}

#[test]
fn a_backup_into_a_copy_that_was_cut_off_says_so() {
    let (storage, log) = of_one_segment(200);
    log.close().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let _ = back_up(&storage.to_bytes(), &copy);
    for len in [copy.len().unwrap() - 300, EXTENTS_AT + 30_000] {
        copy.set_len(len).unwrap();
        let left = copy.to_bytes();
        let done = open(&storage).backup_to_storage(copy.clone());
        assert!(matches!(done, Err(Error::Truncated { .. })), "{len}: {done:?}");
        assert!(copy.to_bytes() == left);
    }
}
