//! The words of the public API: identifiers and newtypes for each number that means something.
//!
//! - [`AgentId`], [`RunId`]: raw strings that the caller chose; a run is the pair of both.
//! - [`RunRef`]: how a caller names a run, by id alone or by agent and id.
//! - [`Seq`]: the place of a record in its run. [`Lsn`]: the place of an append in the whole log.
//! - [`Timestamp`]: nanoseconds since the Unix epoch.
//! - [`ContentType`], [`RunStatus`], [`Durability`]: small closed vocabularies.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest agent or run id, in bytes.
pub const MAX_ID_LEN: usize = 512;

/// The longest record kind, in bytes.
pub const MAX_KIND_LEN: usize = 64;

/// Which id was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdKind {
    /// An agent id.
    Agent,
    /// A run id.
    Run,
    /// A record kind.
    RecordKind,
    /// The namespace of a document.
    Namespace,
    /// The key of a document.
    Key,
}

/// An id that is empty or too long; as an error of the store it is
/// [`Error::InvalidId`](crate::Error::InvalidId). The caller should use another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidId {
    /// Which id.
    pub kind: IdKind,
    /// Its length in bytes.
    pub len: usize,
    /// The longest that is accepted, in bytes; the shortest is 1.
    pub max: usize,
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            IdKind::Agent => "an agent id",
            IdKind::Run => "a run id",
            IdKind::RecordKind => "a record kind",
            IdKind::Namespace => "a namespace",
            IdKind::Key => "a key",
        };
        write!(f, "{what} of {} bytes; 1 to {} are accepted", self.len, self.max)
    }
}

impl core::error::Error for InvalidId {}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes any string of 1 to [`MAX_ID_LEN`] bytes as it is: slashes, NULs and control
            /// characters are kept, since an id never becomes a file name.
            ///
            /// # Errors
            /// [`InvalidId`] when the string is empty or too long.
            pub fn new(id: &str) -> Result<Self, InvalidId> {
                Self::check(id)?;
                Ok(Self(Arc::from(id)))
            }

            /// Whether [`Self::new`] would take this string.
            pub(crate) fn check(id: &str) -> Result<(), InvalidId> {
                if id.is_empty() || id.len() > MAX_ID_LEN {
                    return Err(InvalidId { kind: $kind, len: id.len(), max: MAX_ID_LEN });
                }
                Ok(())
            }

            /// The id as the caller gave it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    };
}

id!(
    /// The id of an agent: any string of 1 to 512 bytes.
    AgentId,
    IdKind::Agent
);
id!(
    /// The id of a run: any string of 1 to 512 bytes, unique within its agent.
    RunId,
    IdKind::Run
);

/// How a caller names a run: by its id alone, by agent and id, or by its summary.
///
/// An id that two agents use is answered with
/// [`Error::Ambiguous`](crate::Error::Ambiguous) unless the agent is given. A
/// summary names its own run and no other: not one that was started with the same ids after that
/// run was deleted.
///
/// ```
/// use runlog::RunRef;
/// let by_id = RunRef::from("run-7");
/// let by_both = RunRef::from(("planner", "run-7"));
/// assert_eq!(by_id.run(), by_both.run());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunRef<'a> {
    agent: Option<&'a str>,
    run: &'a str,
    /// The only run that is meant, if one is.
    number: Option<RunNo>,
}

impl<'a> RunRef<'a> {
    /// Only the run with this number: not one that is started with the same ids after that one was
    /// deleted.
    #[must_use]
    pub fn numbered(self, number: RunNo) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The number, where the caller named it.
    pub fn number(&self) -> Option<RunNo> {
        self.number
    }

    /// The agent, where the caller named it.
    pub fn agent(&self) -> Option<&'a str> {
        self.agent
    }

    /// The run id.
    pub fn run(&self) -> &'a str {
        self.run
    }
}

impl<'a> From<&'a str> for RunRef<'a> {
    fn from(run: &'a str) -> Self {
        Self { agent: None, run, number: None }
    }
}

impl<'a> From<&'a String> for RunRef<'a> {
    fn from(run: &'a String) -> Self {
        Self { agent: None, run, number: None }
    }
}

impl<'a> From<&'a RunId> for RunRef<'a> {
    fn from(run: &'a RunId) -> Self {
        Self { agent: None, run: run.as_str(), number: None }
    }
}

impl<'a> From<(&'a str, &'a str)> for RunRef<'a> {
    fn from((agent, run): (&'a str, &'a str)) -> Self {
        Self { agent: Some(agent), run, number: None }
    }
}

impl<'a> From<(&'a AgentId, &'a RunId)> for RunRef<'a> {
    fn from((agent, run): (&'a AgentId, &'a RunId)) -> Self {
        Self { agent: Some(agent.as_str()), run: run.as_str(), number: None }
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// The place of a record in its run: 0, 1, 2, ... in the order of the appends.
    Seq(u64)
);
number!(
    /// The place of an append in the whole log. It is assigned once and kept for ever, also when
    /// compaction moves the record; newer is larger.
    Lsn(u64)
);
number!(
    /// The number the store gave a run at its start. Never reused, also not after a deletion.
    RunNo(u64)
);
number!(
    /// The version of a document: never given twice, and kept for ever, also when compaction moves
    /// the document. Larger than those of all values whose writing had begun before; of two large
    /// values that are written at once, either may count in the end.
    Version(u64)
);
number!(
    /// The number of a segment of the log. Never reused; later segments have larger numbers.
    SegmentId(u32)
);
number!(
    /// The number of an extent: a fixed-size piece of the file.
    ExtentNo(u32)
);
number!(
    /// How often the store was opened or its manifest moved; the newer superblock has the larger.
    Epoch(u64)
);
number!(
    /// Nanoseconds since 1970-01-01T00:00:00Z; negative before.
    ///
    /// It converts from and to [`SystemTime`]. Times before 1677 and after 2262, which 64 bits do
    /// not reach, become the first or the last one that they do.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use runlog::Timestamp;
    /// let at = UNIX_EPOCH + Duration::from_millis(1_500);
    /// assert_eq!(Timestamp::from(at), Timestamp(1_500_000_000));
    /// assert_eq!(std::time::SystemTime::from(Timestamp(1_500_000_000)), at);
    /// ```
    Timestamp(i64)
);

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
            Err(before) => {
                let nanos = i64::try_from(before.duration().as_nanos());
                Self(nanos.map_or(i64::MIN, |nanos| -nanos))
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let distance = Duration::from_nanos(at.0.unsigned_abs());
        if at.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    }
}

/// The physical place of a frame: a segment and the offset from that segment's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes from the segment's start.
    pub offset: u32,
}

impl LogPosition {
    /// The position as one number: the segment in the upper half, the offset in the lower.
    pub fn to_u64(self) -> u64 {
        u64::from(self.segment.0) << 32 | u64::from(self.offset)
    }

    /// The reverse of [`LogPosition::to_u64`].
    pub fn from_u64(value: u64) -> Self {
        Self {
            segment: SegmentId((value >> 32) as u32),
            offset: u32::try_from(value & 0xffff_ffff).unwrap_or(0),
        }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {:#x}", self.segment, self.offset)
    }
}

/// What the bytes of a payload are. The engine stores it and never looks inside the payload.
///
/// Codes 0 to 127 are assigned by this project, 128 to 255 are the application's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ContentType(u8);

impl ContentType {
    /// Bytes of which nothing is said.
    pub const BYTES: Self = Self(0);
    /// One JSON value in UTF-8.
    pub const JSON: Self = Self(1);
    /// UTF-8 text.
    pub const TEXT: Self = Self(2);
    /// One line of a JSON Lines file as it came, valid JSON or not, without its newline.
    pub const JSON_LINE: Self = Self(3);
    /// `MessagePack`.
    pub const MSGPACK: Self = Self(4);
    /// CBOR (RFC 8949).
    pub const CBOR: Self = Self(5);

    /// The content type with this code.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// The code that is stored.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// Not ended. Also the state of a run whose writer died.
    #[default]
    InProgress,
    /// Ended, with success.
    Completed,
    /// Ended, with failure.
    Failed,
    /// Ended because a user or a program asked for it.
    Cancelled,
    /// Ended by adoption: its writer vanished without ending it.
    Interrupted,
}

impl RunStatus {
    /// Whether the run has ended.
    pub fn is_ended(self) -> bool {
        self != Self::InProgress
    }

    /// The code that is stored in END frames and directories.
    pub fn code(self) -> u8 {
        match self {
            Self::InProgress => 0,
            Self::Completed => 1,
            Self::Failed => 2,
            Self::Cancelled => 3,
            Self::Interrupted => 4,
        }
    }

    /// The status with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::InProgress,
            1 => Self::Completed,
            2 => Self::Failed,
            3 => Self::Cancelled,
            4 => Self::Interrupted,
            _ => return None,
        })
    }

    /// The status as one lower-case word, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RunStatus {
    type Err = UnknownWord;

    /// Reads what [`RunStatus::as_str`] gives.
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let all =
            [Self::InProgress, Self::Completed, Self::Failed, Self::Cancelled, Self::Interrupted];
        let expected = "in_progress, completed, failed, cancelled or interrupted";
        all.into_iter().find(|status| status.as_str() == word).ok_or(UnknownWord { expected })
    }
}

/// A word that stands for none of the values of a type. The caller should use one of those named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownWord {
    /// The words that are accepted.
    pub expected: &'static str,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the word is none of {}", self.expected)
    }
}

impl core::error::Error for UnknownWord {}

/// What an acknowledged append survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Survives the death of the process, SIGKILL included: the bytes are in the kernel when the
    /// append returns. A power loss may take what the last background sync (250 ms by default)
    /// had not reached.
    Process,
    /// Survives power loss as well: a sync that covers the bytes was seen to succeed before the
    /// append returns.
    Disk,
}
