//! Refreshes of a reader between any two frames of the writer.

use core::ops::Range;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{NewRecord, Options, Outcome, ReadLog, Reader, ReaderOptions, RunLog, RunStatus};

use crate::support::frames::frames;
use crate::support::tap::Tap;

fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// A store whose writer has written a document, and a run with a long record and a batch; and where
/// the frames of these are.
fn written() -> (Vec<u8>, Vec<Range<usize>>) {
    let file = Arc::new(MemoryStorage::new());
    let log = small().create_storage(file.clone()).unwrap();
    let before = frames(&file.to_bytes()).len();
    let _ = log.docs().put("space", "key", &NewRecord::new(&[7; 20_000])).unwrap();
    let run = log.start_run("agent", "run", b"metadata").unwrap();
    let _ = run.append(&[8; 18_000]).unwrap();
    let _ = run.append_batch(&[NewRecord::new(b"one"), NewRecord::new(b"two")]).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let whole = file.to_bytes();
    let new: Vec<_> = frames(&whole).into_iter().skip(before).map(|(range, _)| range).collect();
    assert!(new.len() > 8, "{new:?}");
    (whole, new)
}

/// The same before these frames were written.
fn without(whole: &[u8], frames: &[Range<usize>]) -> Vec<u8> {
    let mut image = whole.to_vec();
    for frame in frames {
        image[frame.clone()].fill(0);
    }
    image
}

fn has_all_that_was_written(reader: &Reader, what: &str) {
    let document = reader.document("space", "key").unwrap().unwrap();
    assert_eq!(document.payload(), [7; 20_000], "{what}");
    let trace = reader.trace("run").unwrap();
    let lens: Vec<_> = trace.map(|record| record.unwrap().payload().len()).collect();
    assert_eq!(lens, [18_000, 3, 3], "{what}");
    assert_eq!(reader.run("run").unwrap().status, RunStatus::Completed, "{what}");
}

/// A writer writes several frames at once, and a reader may look in between, again and again.
#[test]
fn a_reader_that_looks_between_any_two_frames_has_all_of_them_in_the_end() {
    let (whole, new) = written();
    for first in 0..new.len() {
        let shared = Arc::new(MemoryStorage::from_bytes(without(&whole, &new[first..])));
        let reader = ReaderOptions::new().open_storage(shared.clone()).unwrap();
        for frame in &new[first..] {
            shared.write_at(frame.start as u64, &whole[frame.clone()]).unwrap();
            let _ = reader.refresh().unwrap();
        }
        has_all_that_was_written(&reader, &format!("{first} frames at first"));
    }
}

/// A segment is sealed, moved and freed while a reader looks at it: its frames are zeros then.
#[test]
fn a_reader_misses_nothing_of_a_segment_that_moves_while_it_is_opened_or_refreshed() {
    [true, false].into_iter().for_each(look_while_the_segment_moves);
}

fn look_while_the_segment_moves(is_opened: bool) {
    for at in 1.. {
        let file = Arc::new(MemoryStorage::new());
        let log = small().create_storage(file.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let reads = Arc::new(AtomicI64::new(i64::MAX));
        let (counts, writer) = (Arc::clone(&reads), log.clone());
        let tap = Tap::only_reads(file.clone(), move |_, _| {
            if counts.fetch_sub(1, Ordering::Relaxed) == 1 {
                move_first_segment(&writer);
            }
            Ok(())
        });
        let open = || ReaderOptions::new().open_storage(tap.clone()).unwrap();
        let earlier = (!is_opened).then(open);
        let _ = run.append(b"acknowledged").unwrap();
        reads.store(at, Ordering::Relaxed);
        let reader = earlier.unwrap_or_else(open);
        if !is_opened {
            let _ = reader.refresh().unwrap();
        }
        let is_over = reads.swap(i64::MAX, Ordering::Relaxed) > 0;
        let records: Vec<_> = reader.trace("run").unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 1, "opened: {is_opened}, read {at}");
        if is_over {
            assert!(at > 2);
            break;
        }
    }
}

/// Seals the segment that takes frames, and moves what lives out of it.
fn move_first_segment(log: &RunLog) {
    let first = log.stats().unwrap().end.segment;
    let filler = log.start_run("agent", "filler", ()).unwrap();
    while log.stats().unwrap().end.segment == first {
        let _ = filler.append(&[9; 9_000]).unwrap();
    }
    let _ = filler.end(&Outcome::completed()).unwrap();
    let _ = log.delete_run("filler").unwrap();
    log.checkpoint().unwrap();
    assert!(log.compact().unwrap().outputs > 0);
    log.reclaim().unwrap();
}

/// Whichever read of a reader that looks between any two frames.
#[test]
fn a_read_that_failed_costs_the_next_refresh_nothing() {
    let (whole, new) = written();
    let mut failed = 0;
    for first in 0..new.len() {
        for number in 1.. {
            let shared = Arc::new(MemoryStorage::from_bytes(without(&whole, &new[first..])));
            // Which of the next reads fails; none if it is not positive.
            let fails = Arc::<AtomicI64>::default();
            let counts = Arc::clone(&fails);
            let tap = Tap::only_reads(shared.clone(), move |_, _| {
                let is_due = counts.fetch_sub(1, Ordering::Relaxed) == 1;
                if is_due { Err(io::Error::other("this read alone")) } else { Ok(()) }
            });
            let reader = ReaderOptions::new().open_storage(tap).unwrap();
            fails.store(number, Ordering::Relaxed);
            let before = failed;
            for frame in &new[first..] {
                shared.write_at(frame.start as u64, &whole[frame.clone()]).unwrap();
                failed += usize::from(reader.refresh().is_err());
            }
            if fails.swap(0, Ordering::Relaxed) > 0 {
                break;
            }
            let _ = reader.refresh().unwrap();
            let what = format!("{first} frames at first, read {number} fails");
            assert_eq!(failed - before, 1, "{what}");
            has_all_that_was_written(&reader, &what);
        }
    }
    assert!(failed > 100, "{failed}");
}

/// The payload of a record is damaged in the file while the writer goes on.
#[test]
fn a_damaged_record_of_a_living_writer_hides_no_record_behind_it() {
    let file = Arc::new(MemoryStorage::new());
    let log = small().create_storage(file.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let reader = ReaderOptions::new().open_storage(file.clone()).unwrap();
    for number in 0..9_u8 {
        run.append(&[number; 600]).unwrap();
    }
    log.sync().unwrap();
    run.append(b"behind a sync").unwrap();
    let at = file.to_bytes().windows(600).position(|part| *part == [4; 600]).unwrap();
    file.write_at(at as u64 + 300, &[0x55]).unwrap();
    for _ in 0..2 {
        let _ = reader.refresh().unwrap();
    }
    let items: Vec<bool> = reader.trace("run").unwrap().map(|item| item.is_ok()).collect();
    let expected: Vec<bool> = (0..10).map(|number| number != 4).collect();
    assert_eq!(items, expected);
}
