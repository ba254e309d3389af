//! Damage of stored bytes: what is wrong, and where.

use core::fmt;

use crate::types::{ExtentNo, LogPosition, RunId, SegmentId, Seq};

/// Damage, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// Where.
    pub place: Place,
    /// What.
    pub damage: Damage,
    /// The run that is affected, where it is known.
    pub run: Option<RunId>,
    /// The record that is affected, where it is known.
    pub seq: Option<Seq>,
}

/// A place in the file, named by the structure that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// A length or offset reaches outside of what holds it.
    OutOfRange {
        /// The value that was found.
        found: u64,
        /// The largest that is possible there.
        max: u64,
    },
    /// Bytes that must be zero are not.
    ReservedNotZero,
    /// The structure belongs to another store, segment, or place.
    Misplaced,
    /// A structure ends before all of it is there.
    Truncated,
    /// Text is not UTF-8.
    NotUtf8,
    /// What is stored twice differs.
    Mismatch,
    /// Something that must be there is missing.
    Missing,
    /// The index library refused its pages.
    IndexPages,
    /// Compressed bytes that do not become what they should.
    Undecodable,
    /// A record that is there already, in another segment.
    Repeated,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum { expected, found } => {
                write!(f, "checksum {found:#010x} where {expected:#010x} was stored")
            }
            Self::Magic => f.write_str("wrong magic bytes"),
            Self::UnknownCode { found } => write!(f, "unknown code {found}"),
            Self::OutOfRange { found, max } => write!(f, "value {found} above the limit {max}"),
            Self::ReservedNotZero => f.write_str("bytes that must be zero are not"),
            Self::Misplaced => f.write_str("belongs to another store, segment or place"),
            Self::Truncated => f.write_str("ends too early"),
            Self::NotUtf8 => f.write_str("text that is not UTF-8"),
            Self::Mismatch => f.write_str("what is stored twice differs"),
            Self::Missing => f.write_str("missing"),
            Self::IndexPages => f.write_str("index pages that do not check"),
            Self::Repeated => f.write_str("a record that another segment has already"),
            Self::Undecodable => f.write_str("compressed bytes that cannot be decompressed"),
        }
    }
}

impl Corruption {
    pub(crate) fn new(place: Place, damage: Damage) -> Self {
        Self { place, damage, run: None, seq: None }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged: {}", self.place, self.damage)?;
        if let Some(run) = &self.run {
            write!(f, " (run {:?}", run.as_str())?;
            if let Some(seq) = self.seq {
                write!(f, ", record {seq}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
