//! What opening a store found, for people and programs.

use core::fmt;

use crate::error::Corruption;
use crate::types::LogPosition;

/// What opening a store found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The store had been closed in order.
    pub clean: bool,
    /// The machine was not restarted since the store was last written: what a killed process had
    /// written is all there.
    pub same_boot: bool,
    /// The map of the file was damaged and was put together again from the segments themselves.
    pub salvaged: bool,
    /// Sealed segments, which were not read.
    pub sealed_segments: u64,
    /// Segments that were read frame by frame.
    pub scanned_segments: u64,
    /// Frames that were taken over from them.
    pub frames: u64,
    /// Where the log was torn.
    pub torn: Vec<TornTail>,
    /// Damage that was met. Each entry costs what it names and nothing else. Directories of older
    /// segments are looked at when they are needed, so not all of theirs need be here:
    /// [`RunLog::verify`](crate::RunLog::verify) looks at everything.
    pub damaged: Vec<Corruption>,
    /// What became of the index.
    pub index: IndexRecovery,
}

/// The end of a log that a crash tore off. What lies behind it was never acknowledged as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Where the log ends now.
    pub at: LogPosition,
    /// Whole frames behind that position. They are kept as they are, but do not count, since
    /// frames in front of them are missing.
    pub orphans: u64,
}

/// What became of the index when the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IndexRecovery {
    /// The store has no index: it is small, or the options say so.
    #[default]
    None,
    /// It is opened, here or in the background, and brought up to the log.
    Kept,
    /// It could not be trusted and is built anew.
    Dropped,
}

impl RecoveryReport {
    /// Whether everything was in order.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.torn.is_empty() && !self.salvaged
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.clean, self.same_boot) {
            (true, _) => "the store had been closed in order",
            (false, true) => "the process that wrote had died",
            (false, false) => "the machine had been restarted, or may have been",
        };
        writeln!(f, "{state}")?;
        writeln!(
            f,
            "{} sealed segments trusted, {} read, {} frames taken over",
            self.sealed_segments, self.scanned_segments, self.frames
        )?;
        if self.salvaged {
            writeln!(f, "the map of the file was damaged and was rebuilt from its segments")?;
        }
        for torn in &self.torn {
            let TornTail { at, orphans } = torn;
            writeln!(f, "the log was torn at {at}; {orphans} whole frames behind do not count")?;
        }
        for corruption in &self.damaged {
            writeln!(f, "{corruption}")?;
        }
        match self.index {
            IndexRecovery::None => f.write_str("there is no index"),
            IndexRecovery::Kept => f.write_str("the index is kept"),
            IndexRecovery::Dropped => f.write_str("the index is built anew"),
        }
    }
}
