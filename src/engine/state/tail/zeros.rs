//! Zeros ahead of the tail, and who writes them.
//!
//! A thread writes them, so that appends rarely have to. A call that finds too few writes them
//! itself. These rules keep the thread away from written bytes (O23):
//!
//! - [`Zeros::end`] is behind all that was written. Whoever writes zeros or moves the end has the
//!   lock; a call that writes beyond the end moves it first.
//! - The thread reads the end and writes from there, up to what is allocated, under the lock.
//! - Before the SEAL frame is written, and before closing gives space back, the tail stops
//!   ([`Zeros::stop`]): from then on the thread has no segment.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::storage::TailWindow;
use crate::engine::storage::disk::Disk;
use crate::error::Result;
use crate::format::ExtentSize;
use crate::types::{LogPosition, SegmentId};

/// What one call writes while threads wait for syncs: zeros that are written together lie in one
/// folio of the page cache, which a sync writes as a whole whenever a part of it changes.
pub(super) const BLOCK: u32 = 4 << 10;

/// How far zeros go ahead at least, and the most that one call writes.
pub(super) const AHEAD: u32 = 64 << 10;

/// How far zeros go ahead at most: for the fastest appends between two steps of the thread.
const MOST_AHEAD: u32 = 1 << 20;

/// Pages are not mapped for so long after a thread waited for a sync.
const NO_MAPPING: Duration = Duration::from_secs(1);

/// The zeros ahead of a tail.
#[derive(Debug)]
pub(crate) struct Zeros {
    disk: Disk,
    /// From the end of the log up to here there are zeros that this process wrote. It changes under
    /// the lock, and becomes less only in a call that has the tail: 0 if frames cannot be stored.
    end: AtomicU32,
    ahead: Ranked<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    /// `None` if no zeros are written.
    tail: Option<Target>,
    /// Where the log ended at the last step.
    written: Option<LogPosition>,
    /// How many calls had waited for a sync at the last step, and when that last changed.
    waiters: (u64, Option<Duration>),
}

/// The segment of a tail.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) segment: SegmentId,
    /// Where its extent begins in the file.
    pub(super) at: u64,
    pub(super) extent_size: ExtentSize,
    pub(super) window: Arc<dyn TailWindow>,
    pub(super) allocated: u32,
}

impl Zeros {
    pub(crate) fn new(disk: &Disk) -> Self {
        let ahead = Ranked::of(disk, Rank::Zeros, Ahead::default());
        Self { disk: disk.clone(), end: AtomicU32::new(0), ahead }
    }

    /// Where they end: frames can be stored in front of this.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.end.load(Ordering::Acquire)
    }

    /// Begins at the end of the log, `offset`.
    pub(super) fn begin(&self, offset: u32, tail: Target) {
        let mut ahead = self.ahead.lock();
        self.end.store(offset, Ordering::Release);
        ahead.tail = Some(tail);
    }

    /// Stops: no zeros are written any more.
    pub(crate) fn stop(&self) {
        let mut ahead = self.ahead.lock();
        self.end.store(0, Ordering::Release);
        ahead.tail = None;
    }

    /// The segment is allocated up to here.
    pub(crate) fn allow(&self, allocated: u32) {
        if let Some(tail) = &mut self.ahead.lock().tail {
            tail.allocated = allocated;
        }
    }

    /// Moves the end behind what a call writes next, up to `end`.
    pub(crate) fn skip_to(&self, end: u32) {
        if self.end() < end {
            let ahead = self.ahead.lock();
            if ahead.tail.is_some() {
                self.end.fetch_max(end, Ordering::AcqRel);
            }
        }
    }

    /// Writes zeros up to `end` at least, for a call that finds too few, `at_once` bytes together;
    /// returns whether they are there. A failure changes nothing.
    pub(crate) fn write_to(&self, end: u32, at_once: u32) -> Result<bool> {
        let ahead = self.ahead.lock();
        let Some(tail) = &ahead.tail else { return Ok(false) };
        if end > tail.allocated {
            return Ok(false);
        }
        tail.window.pause();
        self.write(tail, end.next_multiple_of(tail.least()), at_once)?;
        Ok(true)
    }

    /// One step of the thread: writes zeros, and maps their pages unless that costs syncs. The log
    /// is written up to `written`, `waiters` calls have waited for a sync so far, and it is `now`.
    pub(crate) fn step(&self, written: LogPosition, waiters: u64, now: Duration) -> Result<()> {
        let mut ahead = self.ahead.lock();
        let last = ahead.written.replace(written).filter(|last| last.segment == written.segment);
        if ahead.waiters.0 != waiters {
            ahead.waiters = (waiters, Some(now));
        }
        let maps = ahead.waiters.1.is_none_or(|at| now.saturating_sub(at) >= NO_MAPPING);
        let Some(tail) = ahead.tail.as_ref().filter(|tail| tail.segment == written.segment) else {
            return Ok(());
        };
        let moved = last.map_or(0, |last| written.offset.saturating_sub(last.offset));
        if maps {
            tail.window.pause();
        }
        let goal = written.offset.saturating_add(tail.distance(moved));
        let goal = goal.next_multiple_of(tail.least());
        if let Err(error) = self.write(tail, goal, if maps { AHEAD } else { BLOCK }) {
            // Behind the end calls write frames, and report what is wrong. The end stays: a call
            // may be about to store a frame in front of it.
            ahead.tail = None;
            return Err(error);
        }
        if maps && moved > 0 {
            tail.window.map_ahead(written.offset as usize, self.end() as usize);
        }
        Ok(())
    }

    /// Writes zeros from the end up to `goal`, as far as space is allocated.
    fn write(&self, tail: &Target, goal: u32, at_once: u32) -> Result<()> {
        let goal = goal.min(tail.allocated);
        let mut from = self.end();
        while from < goal {
            let next = (from + 1).next_multiple_of(at_once).min(goal);
            let at = tail.at + u64::from(from);
            self.disk.zero(at, (next - from) as usize)?;
            self.end.store(next, Ordering::Release);
            from = next;
        }
        Ok(())
    }
}

impl Target {
    fn least(&self) -> u32 {
        (self.extent_size.bytes_u32() / 16).clamp(BLOCK, AHEAD)
    }

    /// How far zeros go ahead if the log moved by so many bytes since the last step.
    fn distance(&self, moved: u32) -> u32 {
        let least = self.least();
        moved.saturating_mul(2).clamp(least, MOST_AHEAD.min(4 * least).max(least))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::engine::storage::MemoryStorage;
    use crate::error::Error;

    /// Counts how often it is asked to map.
    #[derive(Debug, Default)]
    struct Maps(AtomicUsize);

    impl TailWindow for Maps {
        fn store(&self, _: usize, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn map_ahead(&self, _: usize, _: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    const SEGMENT: SegmentId = SegmentId(1);

    /// The zeros of a segment that is allocated up to here, and what counts how often they are
    /// mapped.
    fn begun(disk: &Disk, allocated: u32) -> (Zeros, Arc<Maps>) {
        let (zeros, maps) = (Zeros::new(disk), Arc::new(Maps::default()));
        let (extent_size, window) = (ExtentSize::DEFAULT, maps.clone());
        zeros.begin(0, Target { segment: SEGMENT, at: 0, extent_size, window, allocated });
        (zeros, maps)
    }

    #[test]
    fn pages_are_not_mapped_within_a_second_after_a_call_waited_for_a_sync() {
        let (zeros, maps) = begun(&Disk::new(Arc::new(MemoryStorage::new())), 4 << 20);
        let mut offset = 0;
        let mut step = |waiters, millis| {
            offset += 8;
            let written = LogPosition { segment: SEGMENT, offset };
            zeros.step(written, waiters, Duration::from_millis(millis)).unwrap();
            maps.0.swap(0, Ordering::Relaxed)
        };
        assert_eq!([step(0, 0), step(0, 1), step(1, 2)], [0, 1, 0]);
        assert_eq!([step(1, 900), step(1, 1_001), step(1, 1_002)], [0, 0, 1]);
        assert_eq!([step(2, 1_003), step(3, 1_500), step(3, 2_499), step(3, 2_500)], [0, 0, 0, 1]);
        assert!(zeros.end() >= offset + AHEAD && zeros.end() <= offset + 2 * AHEAD);
    }

    /// A call checks that there are zeros, and then stores a frame onto them.
    #[test]
    fn zeros_end_where_space_does_and_a_step_that_fails_takes_none_back() {
        let disk = Disk::new(Arc::new(MemoryStorage::new()));
        let (zeros, _) = begun(&disk, 5000);
        let step = |offset| {
            let written = LogPosition { segment: SEGMENT, offset };
            zeros.step(written, 0, Duration::ZERO)
        };
        step(0).unwrap();
        assert_eq!(zeros.end(), 5000);
        assert!(!zeros.write_to(5008, AHEAD).unwrap());
        zeros.allow(1 << 20);
        step(0).unwrap();
        let end = zeros.end();
        assert!(end >= AHEAD);
        disk.poison(&Error::Panicked);
        assert!(step(end).is_err() && step(end).is_ok(), "it fails once");
        assert_eq!(zeros.end(), end);
        assert!(!zeros.write_to(end + 8, AHEAD).unwrap());
    }
}
