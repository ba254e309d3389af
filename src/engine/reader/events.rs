//! What following a log gives, and where it goes on.

use core::fmt;
use core::str::FromStr;

use crate::engine::read::record::Record;
use crate::engine::reader::Replica;
use crate::engine::values::{RunMetadata, RunOutcome};
use crate::error::{Error, Result};
use crate::format::map::superblock::FLAG_COPY;
use crate::gc::Rule;
use crate::types::as_text::serde_as_text;
use crate::types::{AgentId, Lsn, RunId, RunNo, RunRef, Timestamp};

/// Something that happened in the log, as a follower tells it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogEvent {
    /// The agent of the run.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// The number of the run, which no other run of the store ever gets.
    pub number: RunNo,
    /// What happened.
    pub kind: LogEventKind,
    /// Where to go on behind it.
    pub cursor: LogCursor,
}

/// What happened to a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LogEventKind {
    /// The run was started. A run that came into being with a record or an end has no start.
    Started(RunMetadata),
    /// A record was appended.
    Record(Record),
    /// The run ended.
    Ended(RunOutcome),
    /// The run was deleted. Its records that were not followed by then are not told any more.
    Deleted {
        /// When.
        at: Timestamp,
        /// Why.
        rule: Rule,
    },
}

impl<'a> From<&'a LogEvent> for RunRef<'a> {
    /// The run that the event is about, and no other with its ids.
    fn from(event: &'a LogEvent) -> Self {
        Self::from((&event.agent, &event.run)).numbered(event.number)
    }
}

/// A place in the log of one store, behind which a follower goes on. Its text can be stored; it
/// stays valid through compaction and restarts of all processes. A cursor of a version of this
/// program is read by all later ones.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// let cursor = runlog::LogCursor::START;
/// let text = cursor.to_string();
/// assert_eq!(text.parse::<runlog::LogCursor>()?, cursor);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogCursor {
    /// The first bytes of the store's id; zero for the start of any store.
    store: u32,
    /// The last thing that was told.
    pub(super) after: Place,
}

/// The place of an event: the order of its frame or record, and its number within that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Place {
    pub(super) lsn: Lsn,
    pub(super) item: u32,
}

impl LogCursor {
    /// In front of everything, in any store.
    pub const START: Self = Self { store: 0, after: Place { lsn: Lsn(0), item: 0 } };

    /// The cursor so many frames earlier in the log, at the earliest [`LogCursor::START`]. A record
    /// is a frame or a part of one, and so are starts, ends and whatever else is in the log.
    #[must_use]
    pub fn earlier(self, frames: u64) -> Self {
        match self.after.lsn.0.saturating_sub(frames) {
            0 => Self::START,
            lsn => Self { store: self.store, after: Place { lsn: Lsn(lsn), item: 0 } },
        }
    }

    pub(super) fn new(uuid: [u8; 16], after: Place) -> Self {
        Self { store: store_of(uuid), after }
    }

    /// Refuses a cursor of another store.
    pub(super) fn check(self, uuid: [u8; 16]) -> Result<()> {
        if self.store == 0 || self.store == store_of(uuid) {
            return Ok(());
        }
        Err(Error::InvalidArgument { what: "a cursor must be of the store that is followed" })
    }

    /// Refuses a cursor behind all numbers that the store has promised: it has been set back since
    /// the cursor was made, and what is appended now would be left out. A copy may only be behind,
    /// and a file without superblocks does not say what it has promised.
    pub(super) fn check_promise(self, replica: &Replica) -> Result<()> {
        let is_ahead = || -> Result<bool> {
            let block = replica.superblock()?;
            Ok(block.flags & FLAG_COPY == 0 && self.after.lsn >= block.next_lsn)
        };
        if !is_ahead()? {
            return Ok(());
        }
        // The store may have promised more since the reader looked.
        replica.refresh()?;
        if is_ahead()? { Err(Error::InvalidArgument { what: CURSOR_AHEAD }) } else { Ok(()) }
    }
}

const CURSOR_AHEAD: &str = "a cursor must not be ahead of the store that is followed: the store \
    was set back to an earlier state; follow it from its start";

/// Never zero.
fn store_of(uuid: [u8; 16]) -> u32 {
    let [a, b, c, d, ..] = uuid;
    u32::from_be_bytes([a, b, c, d]).max(1)
}

impl fmt::Display for LogCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}", self.store, self.after.lsn.0)?;
        if self.after.item > 0 {
            write!(f, ".{}", self.after.item)?;
        }
        Ok(())
    }
}

impl FromStr for LogCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            Error::InvalidArgument { what: "a cursor is 8 hex digits, `-`, and a number" };
        let parsed = || {
            let (store, place) = text.split_once('-')?;
            let is_hex = store.len() == 8 && store.bytes().all(|byte| byte.is_ascii_hexdigit());
            let store = is_hex.then(|| u32::from_str_radix(store, 16).ok()).flatten()?;
            let (lsn, item) = place.split_once('.').unwrap_or((place, "0"));
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let numbers = digits(lsn) && digits(item);
            let lsn = numbers.then(|| lsn.parse().ok()).flatten()?;
            Some(Self { store, after: Place { lsn: Lsn(lsn), item: item.parse().ok()? } })
        };
        parsed().ok_or(invalid)
    }
}

serde_as_text!(LogCursor);

/// What is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Follow<'a> {
    /// All runs.
    Everything,
    /// The runs of an agent.
    Agent(&'a str),
    /// A run: all runs with these ids, one after the other, or only the one with this number.
    Run(RunRef<'a>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_cursor_is_of_the_same_store_or_the_start() {
        let cursor = LogCursor { store: 7, after: Place { lsn: Lsn(9), item: 3 } };
        assert_eq!(cursor.earlier(8).to_string(), "00000007-1");
        for frames in [9, 10, u64::MAX] {
            assert_eq!(cursor.earlier(frames), LogCursor::START);
        }
    }
}
