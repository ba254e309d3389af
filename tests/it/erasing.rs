//! Of an erased run the file has no byte, whatever happens meanwhile, and whatever a crash leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{Compaction, Error, Options, Outcome, RunLog, SpaceReturn};
use runlog_sim::{CrashImages, SimDisk, SplitMix64, Survivors};

use super::support::background::Background;
use super::support::callout::{Points, beside};

const SECRET: &[u8] = b"a secret of some length";

fn options(space: SpaceReturn) -> Options {
    let compaction = Compaction::new().automatic(false).space_return(space);
    Options::new().extent_size(64 << 10).background(false).compaction(compaction)
}

fn has_secret(image: &[u8]) -> bool {
    image.windows(SECRET.len()).any(|part| part == SECRET)
}

/// Writes a run that ends.
fn fill(log: &RunLog, run: &str, payload: &[u8]) {
    let writer = log.start_run("agent", run, ()).unwrap();
    (0..4).for_each(|_| drop(writer.append(payload).unwrap()));
    let _ = writer.end(&Outcome::completed()).unwrap();
}

/// Of a run that cannot be erased again nothing is left, at each operation at which the erasure is
/// broken off, once the store was opened and has freed what is dead.
#[test]
fn what_a_crash_leaves_of_an_erasure_goes_after_the_next_opening() {
    for space in [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink] {
        let disk = SimDisk::recording();
        let log = options(space).create_storage(Arc::new(disk.clone())).unwrap();
        fill(&log, "run", SECRET);
        (0..5).for_each(|run| fill(&log, &format!("other-{run}"), &[7; 8000]));
        log.checkpoint().unwrap();
        let begin = disk.op_count();
        assert_eq!(log.erase_run("run").unwrap().pinned_extents, 0);
        let end = disk.op_count();
        drop(log);
        let recording = disk.take_recording();
        let (mut images, mut gone) = (CrashImages::new(&recording), 0);
        for at in begin..=end {
            images.seek(at);
            for survivors in [Survivors::Everything, Survivors::Nothing] {
                let storage = Arc::new(MemoryStorage::from_bytes(images.image(survivors, 1)));
                let log = options(space).open_storage(storage.clone()).unwrap();
                log.reclaim().unwrap();
                let image = storage.to_bytes();
                if let Err(Error::RunNotFound { .. }) = log.erase_run("run") {
                    assert!(!has_secret(&image), "{space:?}, {at} of {end}, {survivors:?}");
                    gone += 1;
                }
                assert!(!has_secret(&storage.to_bytes()), "{space:?}, {at} of {end}");
            }
        }
        assert!(gone > 10, "{gone}");
    }
}

/// Closing returns the blocks of a few rows of free extents. The others are not forgotten because
/// the store was closed.
#[test]
fn what_closing_leaves_of_an_erasure_goes_after_a_later_opening_in_any_number_of_extents() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options(SpaceReturn::Keep).create_storage(Arc::new(disk.clone())).unwrap();
    let mut random = SplitMix64::new(7);
    let names: Vec<String> = (0..80).map(|number| format!("run-{number}")).collect();
    for name in &names {
        let writer = log.start_run("agent", name, ()).unwrap();
        // Two segments, of which one has nothing else.
        let mut payload = SECRET.to_vec();
        payload.resize(9_000, 0);
        // It is stored as it is.
        random.fill(&mut payload[SECRET.len()..]);
        (0..14).for_each(|_| drop(writer.append(&payload).unwrap()));
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    for name in names.iter().step_by(2) {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    log.reclaim().unwrap();
    let free = log.stats().unwrap().free_extents;
    assert!(free > 30, "{free}");
    let have = |image: &[u8]| image.chunks(64 << 10).filter(|extent| has_secret(extent)).count();
    // A kill leaves it to the next opening what of it was an erasure.
    let storage = Arc::new(MemoryStorage::from_bytes(disk.image()));
    // Its thread does not come to it.
    let threads = options(SpaceReturn::Keep).scheduler(Arc::new(Background::default()));
    threads.open_storage(storage.clone()).unwrap().close().unwrap();
    let left = have(&storage.to_bytes());
    drop(options(SpaceReturn::Keep).open_storage(storage.clone()).unwrap());
    let image = storage.to_bytes();
    let extents = image.len() / (64 << 10);
    let have = have(&image);
    assert!(have < left && have + free as usize <= extents, "{have} of {left}, {free} free");
}

/// Beside the append of a large record, which chooses free extents for its chunks: they have bytes
/// of the run, from before it was moved.
#[test]
fn an_erasure_empties_free_extents_also_while_another_call_has_chosen_them() {
    for point in 0.. {
        let disk = SimDisk::new();
        let points = Points::new(disk.clone());
        let storage: Arc<dyn Storage> = Arc::new(points.clone());
        let log = options(SpaceReturn::Keep).create_storage(storage).unwrap();
        fill(&log, "first", &[1; 7000]);
        fill(&log, "run", SECRET);
        (0..3).for_each(|run| fill(&log, &format!("other-{run}"), &[7; 7000]));
        let large = log.start_run("agent", "large", ()).unwrap();
        log.checkpoint().unwrap();
        let _ = log.delete_run("first").unwrap();
        assert!(log.compact().unwrap().segments > 0);
        let left = AtomicUsize::new(0);
        let append = || format!("{:?}", large.append(&[9; 400_000]).map(drop));
        let erase = || {
            let erased = log.erase_run("run").map(|erased| erased.pinned_extents);
            left.store(usize::from(has_secret(&disk.image())), Ordering::Relaxed);
            format!("{erased:?}")
        };
        let done = beside(&points, point, append, erase);
        assert_eq!(done.answers, ["Ok(())", "Ok(0)"], "at {point}");
        assert_eq!(left.into_inner(), 0, "bytes are left at {point}");
        if !done.held {
            assert!(point > 20, "{point} points");
            break;
        }
    }
}
