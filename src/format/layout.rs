//! Where structures are in the file, and how large they may be.

use crate::format::codec;
use crate::types::ExtentNo;

/// The format version that this program writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// The size of the header, of a superblock slot and of the owner page.
pub const PAGE: u64 = 4096;
/// [`PAGE`], as the length of a buffer.
pub const PAGE_LEN: usize = 4096;
/// Where superblock slot 0 starts; slot 1 follows one page behind it.
pub const SUPERBLOCK_AT: u64 = PAGE;
/// Where the owner page starts.
pub const OWNER_AT: u64 = 3 * PAGE;
/// Where the first manifest area starts.
pub const MANIFEST_AT: u64 = 4 * PAGE;
/// The length of each of the two manifest areas in front of the extents.
pub const MANIFEST_AREA_LEN: u64 = 6 * PAGE;
/// Where extent 0 starts.
pub const EXTENTS_AT: u64 = 64 * 1024;

const _: () = assert!(PAGE == PAGE_LEN as u64);
const _: () = assert!(MANIFEST_AT + 2 * MANIFEST_AREA_LEN == EXTENTS_AT);

/// The size of the extents of one store: a power of two from 64 KiB to 64 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ExtentSize {
    log2: u8,
}

impl ExtentSize {
    /// 64 KiB.
    pub const MIN: Self = Self { log2: 16 };
    /// 4 MiB.
    pub const DEFAULT: Self = Self { log2: 22 };
    /// 64 MiB.
    pub const MAX: Self = Self { log2: 26 };

    /// The size with this base-2 logarithm, if it is allowed.
    pub fn from_log2(log2: u8) -> Option<Self> {
        (Self::MIN.log2..=Self::MAX.log2).contains(&log2).then_some(Self { log2 })
    }

    /// The size of this many bytes, if it is a power of two that is allowed.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        let log2 = u8::try_from(bytes.trailing_zeros()).ok()?;
        Self::from_log2(log2).filter(|size| size.bytes() == bytes)
    }

    /// Reads the base-2 logarithm of a size.
    pub(crate) fn read(reader: &mut codec::Reader<'_>) -> codec::Decoded<Self> {
        let log2 = reader.u8()?;
        let max = Self::MAX.log2.into();
        Self::from_log2(log2).ok_or(crate::error::Damage::OutOfRange { found: log2.into(), max })
    }

    /// The base-2 logarithm.
    pub fn log2(self) -> u8 {
        self.log2
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        1 << self.log2
    }

    /// The size in bytes, in the type of offsets within a segment.
    pub fn bytes_u32(self) -> u32 {
        1 << self.log2
    }

    /// Where an extent starts in the file.
    pub fn offset_of(self, extent: ExtentNo) -> u64 {
        EXTENTS_AT + (u64::from(extent.0) << self.log2)
    }

    /// Where an extent ends in the file.
    pub fn end_of(self, extent: ExtentNo) -> u64 {
        self.offset_of(extent) + self.bytes()
    }

    /// How many extents a file of this length has, including a partial last one.
    pub fn extents_in(self, file_len: u64) -> u64 {
        file_len.saturating_sub(EXTENTS_AT).div_ceil(self.bytes())
    }

    /// The longest payload that one frame stores; a longer one is split into chunks.
    pub fn inline_limit(self) -> u32 {
        self.bytes_u32() / 8
    }

    /// The most bytes of frames in an atomic batch.
    pub fn max_batch(self) -> u32 {
        self.bytes_u32() / 4
    }

    /// The longest metadata of a start.
    pub fn max_metadata(self) -> u32 {
        (self.inline_limit() / 2).min(64 << 10)
    }
}

/// The longest payload of an outcome.
pub const MAX_OUTCOME: u32 = 4096;
