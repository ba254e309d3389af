//! A newtype for each number that means something, and the place of a frame.

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(number: &str) -> Result<Self, ParseIntError> {
                number.parse().map(Self)
            }
        }
    };
}

number!(
    /// The place of a record in its run: 0, 1, 2, ... in the order of the appends.
    Seq(u64)
);
number!(
    /// The place of an append in the order of the whole log; a later append has a larger one. It
    /// never changes, even when compaction moves the record.
    Lsn(u64)
);
number!(
    /// The number that the store gives a run at its start. It is never reused, even after the run
    /// is deleted.
    RunNo(u64)
);
number!(
    /// The version of a document. The store never gives a version twice, and compaction does not
    /// change it. It is larger than the versions of all values whose writing began earlier. A large
    /// value counts when its writing ends: a value that was written meanwhile has a larger version,
    /// and the version of the document may then go back to that of the large value.
    Version(u64)
);
number!(
    /// The number of a segment of the log. It is never reused; later segments have larger numbers.
    SegmentId(u32)
);
number!(
    /// The number of an extent: a fixed-size piece of the file.
    ExtentNo(u32)
);
number!(
    /// Counts how often the store was opened or its manifest moved. The superblock with the larger
    /// epoch is the newer one.
    Epoch(u64)
);

/// The physical place of a frame: a segment and the offset from that segment's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
