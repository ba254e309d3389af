//! Followers that go on from a stored cursor where frames are lost: none of it is skipped silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compression, Follow, Follower, LogCursor, LogEvent, NewRecord, Options, Outcome, Reader,
    ReaderOptions, RunLog,
};
use runlog_sim::SplitMix64;

use crate::backup::backups::seals;
use crate::readers::following::{all, small, told};
use crate::support::reads::OnlyReads;

const HEADER: usize = 64;

fn read(bytes: &[u8]) -> Reader {
    let storage = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
    ReaderOptions::new().open_storage(storage).unwrap()
}

fn follow(reader: &Reader, from: LogCursor) -> Follower {
    reader.follow(Follow::Everything, from).unwrap()
}

/// All that a follower tells: events, and how many errors after how many events.
fn listen(follower: &mut Follower) -> (Vec<String>, Vec<usize>) {
    let (mut events, mut errors, mut nothing) = (Vec::new(), Vec::new(), 0);
    // A few more calls: nothing is told again.
    while nothing < 3 {
        match follower.try_next() {
            Ok(Some(event)) => events.push(told(&event)),
            Ok(None) => nothing += 1,
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                errors.push(events.len());
            }
        }
    }
    (events, errors)
}

/// A store of several segments, and all that is told of it.
fn plain() -> (Vec<u8>, Vec<LogEvent>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for run in 0..9 {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for _ in 0..30 {
            writer.append(&[run; 1_000]).unwrap();
        }
    }
    log.close().unwrap();
    let image = storage.to_bytes();
    let events = all(&mut follow(&read(&image), LogCursor::START));
    (image, events)
}

#[test]
fn a_cursor_within_what_is_lost_is_told_of_it_once() {
    let (image, events) = plain();
    let whole: Vec<String> = events.iter().map(told).collect();
    let places = seals(&image);
    assert!(places.len() > 2, "{places:?}");
    for (number, (start, seal)) in places.into_iter().enumerate() {
        let third = (seal - start) / 3;
        let harms = [
            ("all frames", start + HEADER, seal),
            ("all frames and the directory", start + HEADER, start + (64 << 10)),
            ("all", start, start + (64 << 10)),
            ("the first third", start + HEADER, start + third),
            ("the second third", start + third, start + 2 * third),
            ("the last third", start + 2 * third, seal),
            ("the last third and the directory", start + 2 * third, start + (64 << 10)),
        ];
        for (what, from, to) in harms {
            let mut bytes = image.clone();
            let to = to.min(bytes.len());
            bytes[from..to].fill(0x55);
            let reader = read(&bytes);
            let cursors = [LogCursor::START].into_iter().chain(events.iter().map(|one| one.cursor));
            for (place, cursor) in cursors.enumerate() {
                let expected = &whole[place..];
                let mut follower = follow(&reader, cursor);
                let (found, errors) = listen(&mut follower);
                let what = format!("segment {number}, {what}, from {place}: {errors:?}");
                let is_some_lost = found.len() < expected.len();
                // What names the runs may be lost without an event. A frame of which the header is
                // left is told for itself.
                assert!(errors.len() <= 2, "{what}");
                assert!(!errors.is_empty() || !is_some_lost, "{what}");
                if let Some(&at) = errors.first() {
                    assert!(errors.iter().all(|other| *other == at), "{what}");
                    assert!(found[..at] == expected[..at], "{what}");
                    let rest = &found[at..];
                    assert!(*rest == expected[expected.len() - rest.len()..], "{what}");
                }
                let (more, again) = listen(&mut follow(&reader, follower.cursor()));
                assert!(more.is_empty() && again.is_empty(), "{what}: {more:?} {again:?}");
            }
        }
    }
}

/// From the cursor behind the damage, which is told between two events.
#[test]
fn a_cursor_behind_what_was_told_as_lost_is_not_told_again() {
    let (image, _) = plain();
    for (start, seal) in seals(&image) {
        for to in [seal, start + (64 << 10)] {
            let mut bytes = image.clone();
            let to = to.min(bytes.len());
            bytes[start + HEADER..to].fill(0x55);
            let reader = read(&bytes);
            let mut follower = follow(&reader, LogCursor::START);
            while follower.try_next().is_ok() {}
            let (_, errors) = listen(&mut follow(&reader, follower.cursor()));
            assert_eq!(errors, [0; 0], "segment at {start}");
        }
    }
}

/// Compaction has put runs one behind the other, so the orders of its segments lie within those of
/// others.
#[test]
fn nothing_is_skipped_silently_where_compaction_wrote_what_is_lost() {
    let storage = Arc::new(MemoryStorage::new());
    let options = small().compression(Compression::Zstd { level: 1 });
    let log = options.create_storage(storage.clone()).unwrap();
    let name = |run: usize| format!("run-{run}");
    let writers: Vec<_> =
        (0..8).map(|run| log.start_run("agent", &name(run), ()).unwrap()).collect();
    for seq in 0..24_u64 {
        for (run, writer) in writers.iter().enumerate() {
            let mut rng = SplitMix64::for_case(seq, run as u64);
            let payload: Vec<u8> = (0..900).map(|_| b'a' + rng.below(26) as u8).collect();
            writer.append(&payload).unwrap();
        }
    }
    for writer in &writers[..6] {
        writer.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
    log.compact().unwrap();
    drop(writers);
    log.close().unwrap();
    let image = storage.to_bytes();
    let events = all(&mut follow(&read(&image), LogCursor::START));
    let mut within = 0;
    for (start, seal) in seals(&image) {
        for to in [seal, start + (64 << 10)] {
            let mut bytes = image.clone();
            let to = to.min(bytes.len());
            bytes[start + HEADER..to].fill(0x55);
            let reader = read(&bytes);
            for (place, event) in events.iter().enumerate() {
                let expected = events.len() - place - 1;
                let (found, errors) = listen(&mut follow(&reader, event.cursor));
                let lost = expected - found.len();
                assert!(lost == 0 || !errors.is_empty(), "at {start}, from {place}: {lost} lost");
                within += usize::from(lost > 0);
            }
        }
    }
    assert!(within > 20, "only {within} cursors");
}

/// A cursor behind all that there was is in front of what is lost behind that.
#[test]
fn a_follower_from_the_end_is_told_of_the_first_record_behind_it_that_is_lost() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    run.append(&[1; 3_000]).unwrap();
    let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
    let mut follower = follow(&reader, reader.end_cursor().unwrap());
    assert_eq!(listen(&mut follower), (Vec::new(), Vec::new()));
    for number in 2..5 {
        run.append(&[number; 3_000]).unwrap();
    }
    log.sync().unwrap();
    let bytes = storage.to_bytes();
    let lost = bytes.windows(3_000).position(|part| *part == [2; 3_000]).unwrap();
    storage.write_at(lost as u64 - 72, &[0x55; 72]).unwrap();
    let (events, errors) = listen(&mut follower);
    assert_eq!((events.len(), errors), (2, vec![0]));
}

/// Looks so often, and returns what was told and how many bytes that read.
fn looks(follower: &mut Follower, read: &AtomicU64, count: u64) -> (Vec<String>, u64) {
    let before = read.load(Ordering::Relaxed);
    let events = (0..count).filter_map(|_| follower.try_next().unwrap());
    let events = events.map(|event| told(&event)).collect();
    (events, read.load(Ordering::Relaxed) - before)
}

/// What looks may read on the average: a second of them at most 12 MiB, of which half are the looks
/// of a healthy store.
const PER_LOOK: u64 = 512 << 10;

#[test]
fn a_record_within_which_the_writer_died_costs_a_follower_little_and_is_told_once_it_is_whole() {
    let storage = Arc::new(MemoryStorage::new());
    let log = Options::new().background(false).create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    run.append(b"short").unwrap();
    let long = vec![7; 300 << 10];
    run.append_record(&NewRecord::new(&long)).unwrap();
    let whole = storage.to_bytes();
    let start = whole.windows(1_000).position(|part| part.iter().all(|byte| *byte == 7)).unwrap();
    let half = start + long.len() / 2..start + long.len();
    let mut torn = whole.clone();
    torn[half.clone()].fill(0);

    let torn = Arc::new(MemoryStorage::from_bytes(torn));
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    let counted = OnlyReads::new(torn.clone(), move |_, len| {
        count.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(counted).unwrap();
    let mut follower = follow(&reader, LogCursor::START);
    assert_eq!(looks(&mut follower, &read, 20).0.len(), 2);
    let (events, bytes) = looks(&mut follower, &read, 1_000);
    assert!(events.is_empty(), "{events:?}");
    assert!(bytes < 1_000 * PER_LOOK, "1,000 looks read {bytes} bytes");
    // The writer lives after all.
    torn.write_at(half.start as u64, &whole[half]).unwrap();
    assert_eq!(looks(&mut follower, &read, 25).0.len(), 1);
    log.close().unwrap();
}

#[test]
fn damage_that_stays_costs_a_follower_little_however_much_it_is() {
    let (image, events) = plain();
    let mut harmed = image.clone();
    let places = seals(&image);
    for (_, seal) in &places {
        harmed[seal + 72..seal + 90].fill(0x55);
    }
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    let storage = Arc::new(MemoryStorage::from_bytes(harmed));
    let counted = OnlyReads::new(storage, move |_, len| {
        count.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(counted).unwrap();
    assert!(reader.recovery_report().damaged.len() >= places.len());
    let mut follower = follow(&reader, LogCursor::START);
    // The directories are made of the frames.
    assert_eq!(listen(&mut follower).0.len(), events.len());
    let _ = looks(&mut follower, &read, 20);
    let (_, bytes) = looks(&mut follower, &read, 1_000);
    let healthy = 1_000 * (64 << 10) * 3;
    let damaged = places.len() as u64 * (64 << 10) * (1_000 / 25 + 1);
    assert!(bytes < healthy + damaged, "1,000 looks read {bytes} bytes");
}

/// A store whose first directory is damaged, a follower of it that has told all, and how often all
/// frames of that segment were read.
fn with_a_damaged_directory() -> (Arc<MemoryStorage>, RunLog, Follower, Arc<AtomicU64>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    (0..100).for_each(|_| drop(run.append(&[1; 1_000]).unwrap()));
    log.sync().unwrap();
    log.checkpoint().unwrap();
    let (start, seal) = seals(&storage.to_bytes())[0];
    storage.write_at(seal as u64 + 72, &[0x55; 18]).unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reads);
    let counted = OnlyReads::new(storage.clone(), move |offset, len| {
        let is_all = offset == start as u64 && len > 32 << 10;
        count.fetch_add(u64::from(is_all), Ordering::Relaxed);
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(counted).unwrap();
    assert_eq!(reader.recovery_report().damaged.len(), 1);
    let mut follower = follow(&reader, LogCursor::START);
    assert_eq!(listen(&mut follower).0.len(), 101);
    (storage, log, follower, reads)
}

#[test]
fn damage_that_stays_costs_a_follower_little_though_the_file_grows() {
    let (storage, _log, mut follower, reads) = with_a_damaged_directory();
    let _ = looks(&mut follower, &reads, 20);
    let (len, before) = (storage.len().unwrap(), reads.load(Ordering::Relaxed));
    for number in 1..=100 {
        storage.set_len(len + number * 4096).unwrap();
        assert!(follower.try_next().unwrap().is_none());
    }
    let now = reads.load(Ordering::Relaxed);
    assert!(now - before < 10, "{} of 100 looks read all frames", now - before);
}

/// Each time the view is built anew.
#[test]
fn damage_that_stays_costs_a_follower_little_though_the_log_goes_on() {
    let (_storage, log, mut follower, reads) = with_a_damaged_directory();
    let mut vain = 0;
    for _ in 0..20 {
        let run = log.writer("run").unwrap();
        (0..60).for_each(|_| drop(run.append(&[2; 1_000]).unwrap()));
        log.sync().unwrap();
        assert_eq!(listen(&mut follower).0.len(), 60);
        vain += looks(&mut follower, &reads, 6).1;
    }
    assert!(vain < 30, "{vain} of 120 looks read all frames");
}
