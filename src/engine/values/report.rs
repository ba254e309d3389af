//! What opening a store found, and what closing it left, for people and programs.

use core::fmt;

use crate::error::Corruption;
use crate::types::LogPosition;

/// What opening a store found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The store had been closed cleanly.
    pub clean: bool,
    /// The number of sealed segments, which were not read.
    pub sealed_segments: u64,
    /// The number of segments that were read frame by frame.
    pub scanned_segments: u64,
    /// The number of frames that these segments kept.
    pub frames: u64,
    /// Where the log ends now, if a crash had left bytes behind that place, which do not count. A
    /// kill tears at most the last append; a power cut only what was not acknowledged as durable.
    pub torn: Option<LogPosition>,
    /// The damage that was found. Each entry affects only the place that it names. Directories of
    /// older segments are read when they are needed, so their damage may be missing here:
    /// [`RunLog::verify`](crate::RunLog::verify) reads everything.
    pub damaged: Vec<Corruption>,
    /// What happened to the index.
    pub index: IndexRecovery,
}

/// What closing a store left. [`RunLog::close`](crate::RunLog::close) returns it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Closed {
    /// How many views of the file the program still holds. All records, payloads and traces that
    /// show bytes of one segment share a view. The last view releases the lock of the file.
    pub live_views: usize,
}

/// What happened to the index when the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum IndexRecovery {
    /// The store has no index, because it is small or the options forbid one.
    #[default]
    None,
    /// The index is kept: it is opened, here or in the background, and brought up to date.
    Kept,
    /// The index could not be trusted and is rebuilt.
    Dropped,
}

impl RecoveryReport {
    /// Whether nothing was damaged or torn.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.torn.is_none()
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.clean { "was" } else { "was not" };
        writeln!(f, "the store {state} closed cleanly")?;
        writeln!(
            f,
            "{} sealed segments trusted, {} segments read, {} frames kept from them",
            self.sealed_segments, self.scanned_segments, self.frames
        )?;
        if let Some(at) = self.torn {
            writeln!(f, "the log was torn at {at}, where it ends now")?;
        }
        for corruption in &self.damaged {
            writeln!(f, "{corruption}")?;
        }
        match self.index {
            IndexRecovery::None => f.write_str("there is no index"),
            IndexRecovery::Kept => f.write_str("the index is kept"),
            IndexRecovery::Dropped => f.write_str("the index is rebuilt"),
        }
    }
}
