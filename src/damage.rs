//! Damage of stored bytes: what is wrong and where.

use core::fmt;

use crate::types::{AgentId, ExtentNo, LogPosition, RunId, SegmentId, Seq};

/// Damage and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Corruption {
    /// Where it is.
    pub place: Place,
    /// What is wrong there.
    pub damage: Damage,
    /// The agent whose run is affected, where it is known; of a document its namespace.
    pub agent: Option<AgentId>,
    /// The run that is affected, where it is known; of a document its key.
    pub run: Option<RunId>,
    /// The record that is affected, where it is known.
    pub seq: Option<Seq>,
}

/// A place in the file, named by the structure that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Place {
    /// The static header.
    Header,
    /// A superblock slot, 0 or 1.
    Superblock {
        /// The slot.
        slot: u8,
    },
    /// The owner page.
    OwnerPage,
    /// The manifest.
    Manifest {
        /// The offset in the file.
        offset: u64,
    },
    /// The header of an extent.
    Extent {
        /// The extent.
        extent: ExtentNo,
    },
    /// A frame of the log.
    Frame(LogPosition),
    /// The directory of a sealed segment.
    Directory {
        /// The segment.
        segment: SegmentId,
    },
    /// The index.
    Index,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the static header"),
            Self::Superblock { slot } => write!(f, "superblock slot {slot}"),
            Self::OwnerPage => f.write_str("the owner page"),
            Self::Manifest { offset } => write!(f, "the manifest at {offset:#x}"),
            Self::Extent { extent } => write!(f, "the header of extent {extent}"),
            Self::Frame(at) => write!(f, "the frame at {at}"),
            Self::Directory { segment } => write!(f, "the directory of segment {segment}"),
            Self::Index => f.write_str("the index"),
        }
    }
}

/// What is wrong at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Damage {
    /// A checksum does not match.
    Checksum {
        /// The checksum that is stored.
        expected: u32,
        /// The checksum of the bytes that are there.
        found: u32,
    },
    /// The magic bytes are wrong.
    Magic,
    /// A type, state or status code is unknown.
    UnknownCode {
        /// The code that was found.
        found: u32,
    },
    /// A length or offset reaches beyond the structure that contains it.
    OutOfRange {
        /// The value that was found.
        found: u64,
        /// The largest value that is possible there.
        max: u64,
    },
    /// Bytes that must be zero are not.
    ReservedNotZero,
    /// The structure belongs to another store, segment, or place.
    Misplaced,
    /// A structure ends before it is complete.
    Truncated,
    /// Text is not UTF-8.
    NotUtf8,
    /// Two copies of the same value differ.
    Mismatch,
    /// Something that must be there is missing.
    Missing,
    /// Parts that were written later tell more than it does. So it is with a copy that `cp` made
    /// while a process wrote the store: the beginning of the file was copied before the rest of it
    /// was written. `backup_to` makes copies that are of one moment.
    Outdated,
    /// The index library rejected its pages.
    IndexPages,
    /// Compressed bytes cannot be decompressed, or not to the stored length.
    Undecodable,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum { expected, found } => {
                write!(f, "its checksum is {found:#010x}, {expected:#010x} is stored")
            }
            Self::Magic => f.write_str("wrong magic bytes"),
            Self::UnknownCode { found } => write!(f, "unknown code {found}"),
            Self::OutOfRange { found, max } => write!(f, "value {found} above the limit {max}"),
            Self::ReservedNotZero => f.write_str("bytes that must be zero are not zero"),
            Self::Misplaced => f.write_str("it belongs to another store, segment or place"),
            Self::Truncated => f.write_str("it ends too early"),
            Self::NotUtf8 => f.write_str("text that is not UTF-8"),
            Self::Mismatch => f.write_str("two copies of the same value differ"),
            Self::Missing => f.write_str("it is missing"),
            Self::Outdated => f.write_str(
                "it is older than the segments behind it. If the file is a copy that was made \
                 while a process wrote the store, copy the store again, with `backup`",
            ),
            Self::IndexPages => f.write_str("the index library rejected its pages"),
            Self::Undecodable => f.write_str("compressed bytes that cannot be decompressed"),
        }
    }
}

impl Corruption {
    pub(crate) fn new(place: Place, damage: Damage) -> Self {
        Self { place, damage, agent: None, run: None, seq: None }
    }

    /// With the run, unless it names one already.
    #[must_use]
    pub(crate) fn of(mut self, agent: &AgentId, run: &RunId) -> Self {
        self.agent.get_or_insert_with(|| agent.clone());
        self.run.get_or_insert_with(|| run.clone());
        self
    }

    /// With the run, if it is known.
    #[must_use]
    pub(crate) fn of_named(self, name: Option<&(AgentId, RunId)>) -> Self {
        match name {
            Some((agent, run)) => self.of(agent, run),
            None => self,
        }
    }

    /// With the record, unless it names one already.
    #[must_use]
    pub(crate) fn at(mut self, seq: Option<Seq>) -> Self {
        self.seq = self.seq.or(seq);
        self
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged: {}", self.place, self.damage)?;
        let mut said = 0;
        let mut say = |what: fmt::Arguments<'_>| {
            said += 1;
            write!(f, "{}{what}", if said == 1 { " (" } else { ", " })
        };
        if let Some(agent) = &self.agent {
            say(format_args!("agent {agent:?}"))?;
        }
        if let Some(run) = &self.run {
            say(format_args!("run {run:?}"))?;
        }
        if let Some(seq) = self.seq {
            say(format_args!("record {seq}"))?;
        }
        if said > 0 { f.write_str(")") } else { Ok(()) }
    }
}
