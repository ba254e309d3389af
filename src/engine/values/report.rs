//! What opening a store found, and what closing it left, for people and programs.

use core::fmt;

use crate::error::{Corruption, Damage, Place};
use crate::types::{Epoch, LogPosition};

/// What opening a store found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The store had been closed cleanly.
    pub clean: bool,
    /// The machine was not restarted since the store was last written, so everything that a killed
    /// process wrote is there.
    pub same_boot: bool,
    /// The manifest was damaged, and was rebuilt from the headers of the segments.
    pub salvaged: bool,
    /// The number of sealed segments, which were not read.
    pub sealed_segments: u64,
    /// The number of segments that were read frame by frame.
    pub scanned_segments: u64,
    /// The number of frames that these segments kept.
    pub frames: u64,
    /// The places where the log was torn.
    pub torn: Vec<TornTail>,
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

/// The end of a log that a crash tore. What lies behind it was never acknowledged as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TornTail {
    /// Where the log ends now.
    pub at: LogPosition,
    /// Whole frames behind that position. They stay in the file but do not count, because frames
    /// before them are missing.
    pub orphans: u64,
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
    /// The frames that are missing, which neither a kill nor a loss of power takes away. Bytes that
    /// the first opening skips above the floor are below it for the next one.
    fn lost(&self) -> impl Iterator<Item = &Corruption> {
        let is_part = |place: &Place| matches!(place, Place::Frame(_) | Place::Extent { .. });
        let is_gone = |damage| matches!(damage, Damage::Missing | Damage::Truncated);
        self.damaged.iter().filter(move |one| is_gone(one.damage) && is_part(&one.place))
    }

    /// A number for what is missing. It is the same for the same frames, which each opening finds
    /// again until their segment is sealed. A header that is missing is written anew: where an
    /// opening with a later superblock finds none, it was lost again. None if nothing is missing.
    pub(crate) fn number_of_losses(&self, epoch: Epoch) -> Option<u32> {
        let mut hasher = crc32fast::Hasher::new();
        let mut has_any = false;
        for one in self.lost() {
            hasher.update(one.place.to_string().as_bytes());
            if matches!(one.place, Place::Extent { .. }) {
                hasher.update(&epoch.0.to_le_bytes());
            }
            has_any = true;
        }
        has_any.then(|| hasher.finalize())
    }

    /// Whether nothing was damaged or torn.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty() && self.torn.is_empty() && !self.salvaged
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.clean, self.same_boot) {
            (true, _) => "the store was closed cleanly",
            (false, true) => "the process that wrote the store died",
            (false, false) => "the machine was restarted, or may have been",
        };
        writeln!(f, "{state}")?;
        writeln!(
            f,
            "{} sealed segments trusted, {} segments read, {} frames kept from them",
            self.sealed_segments, self.scanned_segments, self.frames
        )?;
        if self.salvaged {
            writeln!(f, "the manifest was damaged and was rebuilt from the segments")?;
        }
        for torn in &self.torn {
            let TornTail { at, orphans } = torn;
            writeln!(f, "the log was torn at {at}; {orphans} whole frames behind it do not count")?;
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
