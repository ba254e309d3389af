//! What is wrong with an open store, as far as its calls and its background work have noticed.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::engine::setup::environment::Clock;
use crate::engine::setup::observer::{Activity, Finished, Observer};
use crate::engine::setup::options::Options;
use crate::engine::storage::disk::Witness;
use crate::error::{Error, Result};
use crate::types::{SegmentId, Timestamp};

/// The state of an open store: the answer of [`RunLog::health`](crate::RunLog::health).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Health {
    /// Why the store accepts no more writes, if so: a write or sync failed, or background work
    /// panicked. The caller should close the store and open it again.
    pub poisoned: Option<Poison>,
    /// Since when space has been short: the file system refused an allocation or write at that
    /// time, and has not granted as much since. Appends may still succeed in space that was
    /// allocated before. The caller should free space.
    pub disk_full_since: Option<Timestamp>,
    /// The last successful sync of the log, for a call or after appends in the background.
    pub last_sync: Option<LastDone>,
    /// The last successful checkpoint. Checkpoints follow when segments have become full.
    pub last_checkpoint: Option<LastDone>,
    /// Why compaction cannot free the space that it should, if so.
    pub compaction: Option<Stalled>,
    /// The segments of which the directory is lost, as far as they were read. What they have is
    /// damaged, they are never moved or freed, and nothing is erased. `salvage` reads what is left.
    pub quarantined: Vec<SegmentId>,
    /// Activities whose last attempt failed, in the background or in a call. Failures that are only
    /// a consequence of poison or of closing do not count.
    pub failures: Vec<Failing>,
}

impl Health {
    /// Whether nothing is wrong.
    pub fn is_well(&self) -> bool {
        let Self { poisoned, disk_full_since, compaction, quarantined, failures, .. } = self;
        poisoned.is_none()
            && disk_full_since.is_none()
            && compaction.is_none()
            && quarantined.is_empty()
            && failures.is_empty()
    }
}

/// Why a store accepts no more writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Poison {
    /// The first failure and its cause.
    pub why: String,
    /// When.
    pub at: Timestamp,
}

/// A successful activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LastDone {
    /// How long ago it ended, by [`Clock::monotonic`].
    pub ago: Duration,
    /// How long it took.
    pub took: Duration,
}

/// Why compaction cannot free the space that it should.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stalled {
    /// Why the last pass ended early, usually because there was no space for a copy. `None` if it
    /// went to its end and skipped damaged segments.
    pub why: Option<String>,
    /// Segments that the last pass should have moved but could not, because they are damaged or
    /// could not be read. `verify` tells which. They are freed once all their runs are deleted and
    /// their directories can be read.
    pub damaged: Vec<SegmentId>,
    /// When compaction first failed; every pass since then has failed.
    pub since: Timestamp,
}

/// An activity that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Failing {
    /// The activity.
    pub activity: Activity,
    /// Why the last attempt failed.
    pub why: String,
    /// How many attempts have failed since one succeeded.
    pub count: u64,
    /// When the first of them failed.
    pub since: Timestamp,
    /// When the last of them failed.
    pub last: Timestamp,
}

/// Keeps the data of [`Health`] and tells the observer, which it calls without its lock.
#[derive(Debug)]
pub(crate) struct Monitor {
    clock: Arc<dyn Clock>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    noted: Mutex<Noted>,
    /// Whether `Noted::full` is set. With it a successful allocation takes no lock.
    is_full: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    poisoned: Option<Poison>,
    full: Option<Full>,
    /// When the last sync ended, by the monotonic clock, and how long it took.
    last_sync: Option<(Duration, Duration)>,
    last_checkpoint: Option<(Duration, Duration)>,
    compaction: Option<Stalled>,
    failures: BTreeMap<Activity, Failing>,
}

/// A file system that refused space.
#[derive(Debug, Clone, Copy)]
struct Full {
    /// The smallest amount that it refused.
    len: u64,
    since: Timestamp,
}

impl Monitor {
    pub(crate) fn new(options: &Options) -> Self {
        let (clock, observer) = (Arc::clone(&options.environment.clock), options.observer.clone());
        Self { clock, observer, noted: Mutex::default(), is_full: AtomicBool::new(false) }
    }

    pub(super) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Notes the result of an activity that ended at `now` by the monotonic clock.
    pub(super) fn note(&self, activity: Activity, now: Duration, finished: &Finished<'_>) {
        let error = match finished.result {
            Ok(()) => {
                let mut noted = self.noted.lock();
                noted.failures.remove(&activity);
                match activity {
                    Activity::Sync => noted.last_sync = Some((now, finished.took)),
                    Activity::IndexCheckpoint => noted.last_checkpoint = Some((now, finished.took)),
                    _ => {}
                }
                return;
            }
            Err(error) => error,
        };
        if is_consequence(error) {
            return;
        }
        let (at, why) = (self.clock.now(), error.in_full());
        let new = Failing { activity, why: String::new(), count: 0, since: at, last: at };
        let mut noted = self.noted.lock();
        let failing = noted.failures.entry(activity).or_insert(new);
        (failing.why, failing.last) = (why, at);
        failing.count += 1;
    }

    /// Notes the result of a pass of compaction, and which segments it found damaged.
    pub(crate) fn note_compaction<T>(&self, passed: &Result<T>, damaged: &BTreeSet<SegmentId>) {
        let why = match passed {
            Ok(_) if damaged.is_empty() => {
                self.noted.lock().compaction = None;
                return;
            }
            Ok(_) => None,
            Err(error) if is_consequence(error) => return,
            Err(error) => Some(error.in_full()),
        };
        let (now, damaged) = (self.clock.now(), damaged.iter().copied().collect());
        let mut noted = self.noted.lock();
        let since = noted.compaction.as_ref().map_or(now, |stalled| stalled.since);
        noted.compaction = Some(Stalled { why, damaged, since });
    }

    pub(crate) fn health(&self) -> Health {
        let now = self.monotonic();
        let noted = self.noted.lock();
        let done =
            |(at, took): (Duration, Duration)| LastDone { ago: now.saturating_sub(at), took };
        Health {
            poisoned: noted.poisoned.clone(),
            disk_full_since: noted.full.map(|full| full.since),
            last_sync: noted.last_sync.map(done),
            last_checkpoint: noted.last_checkpoint.map(done),
            compaction: noted.compaction.clone(),
            quarantined: Vec::new(),
            failures: noted.failures.values().cloned().collect(),
        }
    }
}

impl Witness for Monitor {
    fn poisons(&self, why: &Error) {
        let poison = Poison { why: why.in_full(), at: self.clock.now() };
        let mut noted = self.noted.lock();
        if noted.poisoned.is_none() {
            noted.poisoned = Some(poison);
            drop(noted);
            #[cfg(feature = "tracing")]
            super::traced::poisoned(why);
        }
    }

    fn asked_for_space(&self, len: u64, is_given: bool) {
        if is_given && !self.is_full.load(Ordering::Acquire) {
            return;
        }
        let now = self.clock.now();
        let mut noted = self.noted.lock();
        let was = noted.full;
        noted.full = match was {
            Some(full) if is_given && len >= full.len => None,
            Some(full) if is_given => Some(full),
            None if is_given => None,
            Some(full) => Some(Full { len: full.len.min(len), ..full }),
            None => Some(Full { len, since: now }),
        };
        let is_full = noted.full.is_some();
        self.is_full.store(is_full, Ordering::Release);
        drop(noted);
        #[cfg(feature = "tracing")]
        if is_full != was.is_some() {
            super::traced::disk_full(is_full, len);
        }
    }
}

/// Whether an error only says that the store accepts no more writes.
fn is_consequence(error: &Error) -> bool {
    error.is_poisoned() || error.is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_amount_that_is_given_does_not_end_a_shortage_of_larger_ones() {
        let monitor = Monitor::new(&Options::new());
        monitor.asked_for_space(4096, true);
        assert_eq!(monitor.health().disk_full_since, None);
        monitor.asked_for_space(1 << 20, false);
        let since = monitor.health().disk_full_since;
        assert!(since.is_some());
        monitor.asked_for_space(4096, true);
        assert_eq!(monitor.health().disk_full_since, since);
        monitor.asked_for_space(4096, false);
        assert_eq!(monitor.health().disk_full_since, since, "since the first refusal");
        monitor.asked_for_space(4096, true);
        assert_eq!(monitor.health().disk_full_since, None);
    }
}
