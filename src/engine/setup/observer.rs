//! Telling the embedder what the engine does.

use core::fmt;
use core::time::Duration;

use crate::error::Error;

/// Something that the engine does and that takes longer than an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Activity {
    /// Recovering the state of the store while it is opened.
    Recovery,
    /// Continuing the log in the next segment.
    Roll,
    /// Writing the directory of a full segment, and noting that it is durable.
    Seal,
    /// Setting a segment aside for later.
    Reserve,
    /// Syncing the file.
    Sync,
    /// Bringing the index up to the last sealed segment.
    IndexCheckpoint,
    /// Rebuilding the index.
    IndexRebuild,
    /// Freeing the extents of dead segments.
    Reclaim,
    /// Giving the blocks of free extents back to the file system.
    GiveBack,
    /// Moving living runs out of segments that are mostly dead.
    Compaction,
    /// Closing the store, also when its last handle is dropped.
    Close,
}

impl Activity {
    /// Its name in snake case: `index_checkpoint`. The feature `tracing` calls its span
    /// `runlog.index_checkpoint`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recovery => "recovery",
            Self::Roll => "roll",
            Self::Seal => "seal",
            Self::Reserve => "reserve",
            Self::Sync => "sync",
            Self::IndexCheckpoint => "index_checkpoint",
            Self::IndexRebuild => "index_rebuild",
            Self::Reclaim => "reclaim",
            Self::GiveBack => "give_back",
            Self::Compaction => "compaction",
            Self::Close => "close",
        }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether an activity begins or ends.
#[derive(Debug, Clone, Copy)]
pub enum Phase<'a> {
    /// It begins.
    Begin,
    /// It has ended.
    End(&'a Finished<'a>),
}

impl Phase<'_> {
    /// Whether the activity begins.
    pub fn is_begin(&self) -> bool {
        matches!(self, Self::Begin)
    }

    /// Why the activity failed; `None` if it begins or has succeeded.
    pub fn failure(&self) -> Option<&Error> {
        match self {
            Self::Begin => None,
            Self::End(finished) => finished.result.err(),
        }
    }
}

/// How an activity ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Finished<'a> {
    /// How long it took, by [`Clock::monotonic`](crate::env::Clock::monotonic).
    pub took: Duration,
    /// Why it failed, if it did. [`Error::Closed`] means that closing the store stopped it, which
    /// is harmless; [`Error::Panicked`] means that it panicked.
    pub result: Result<(), &'a Error>,
}

/// Receives what the engine does. The engine calls it on the thread that does the activity, with
/// locks held: an observer must return quickly and must not call the store. If the observer panics,
/// only that call of it ends.
///
/// Each activity that begins also ends, on the same thread. Others may begin and end in between:
/// for example, continuing in the next segment seals the last one. A failure ends every activity
/// that it interrupts. Small work beside an activity is reported only if it fails, as an activity
/// that begins and ends at once.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-observer-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use std::sync::{Arc, Mutex};
/// use runlog::{Activity, Observer, Options, Phase};
///
/// #[derive(Debug, Default)]
/// struct Failures(Mutex<Vec<String>>);
///
/// impl Observer for Failures {
///     fn observe(&self, activity: Activity, phase: Phase<'_>) {
///         if let Some(error) = phase.failure() {
///             self.0.lock().unwrap().push(format!("{activity} failed: {error}"));
///         }
///     }
/// }
///
/// let failures = Arc::new(Failures::default());
/// let log = Options::new().observer(failures.clone()).open(&path)?;
/// log.close()?;
/// assert_eq!(failures.0.lock().unwrap().as_slice(), [] as [&str; 0]);
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// An activity begins or ends.
    fn observe(&self, activity: Activity, phase: Phase<'_>);
}
