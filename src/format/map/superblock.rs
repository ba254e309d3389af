//! A superblock slot: where the manifest is, and how far the log was durable. O9 defines how the
//! two slots are written, so that either of them may be lost.

use crate::format::codec::{Decoded, open_checked, put_checked};
use crate::format::layout::{ExtentSize, PAGE_LEN};
use crate::types::{Epoch, LogPosition, Lsn, RunNo, SegmentId};

const MAGIC: [u8; 8] = *b"RLOGSUP2";
/// The bytes that the check covers; it stands behind them.
pub const CHECKED_LEN: usize = 152;

/// The store was closed properly: no segment has unsynced frames.
pub const FLAG_CLEAN: u32 = 1;
/// The index was about to be opened. If this is set after a crash, the index is dropped and
/// rebuilt, since opening it may have killed the process.
pub const FLAG_INDEX_OPENING: u32 = 1 << 1;
/// The file is a copy that a backup made, and no process has opened it for writing since.
pub const FLAG_COPY: u32 = 1 << 3;

/// Where the current manifest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ManifestAt {
    /// The offset of the area in the file.
    pub offset: u64,
    /// The length of the area.
    pub len: u64,
    /// The generation of its snapshot.
    pub generation: u64,
    /// How many manifest records were durable when the superblock was written. If fewer are valid,
    /// that is damage.
    pub records: u64,
}

/// One superblock slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Superblock {
    /// The store it belongs to.
    pub uuid: [u8; 16],
    /// The size of the extents; a backup of the value in the static header.
    pub extent_size: ExtentSize,
    /// Counts the superblocks of the store; the slot is the epoch modulo 2.
    pub epoch: Epoch,
    /// All frames of the log in front of this position were durable.
    pub durable: LogPosition,
    /// Where the manifest is.
    pub manifest: ManifestAt,
    /// No segment was reserved with this id or a larger one.
    pub next_segment: SegmentId,
    /// No run got this number or a larger one.
    pub next_run_no: RunNo,
    /// No frame got this order or a larger one.
    pub next_lsn: Lsn,
    /// See the `FLAG_` constants.
    pub flags: u32,
    /// If the store was closed properly: how many bytes were deleted since a compaction found
    /// nothing more to gain, roughly.
    pub dead: u64,
}

impl Superblock {
    /// The page that is written.
    pub fn encode(&self) -> Vec<u8> {
        put_checked(&MAGIC, (CHECKED_LEN, PAGE_LEN), |out| {
            out.bytes(&self.uuid)
                .u8(self.extent_size.log2())
                .zeros(3)
                .u32(self.flags)
                .u64(self.epoch.0)
                .u64(self.durable.to_u64())
                .u64(self.manifest.offset)
                .u64(self.manifest.len)
                .u64(self.manifest.generation)
                .u64(self.manifest.records)
                .u32(self.next_segment.0)
                .zeros(4)
                .u64(self.next_run_no.0)
                .u64(self.next_lsn.0)
                .u64(self.dead);
        })
    }

    /// Whether this slot was written after the other one. Epochs may wrap around: the two that are
    /// compared are close to each other.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (1..1 << 63).contains(&self.epoch.0.wrapping_sub(other.epoch.0))
    }

    /// Reads a page.
    pub fn decode(page: &[u8]) -> Decoded<Self> {
        let mut reader = open_checked(page, &MAGIC, CHECKED_LEN)?;
        Ok(Self {
            uuid: reader.array()?,
            extent_size: ExtentSize::read(&mut reader)?,
            flags: reader.zeros(3)?.u32()?,
            epoch: Epoch(reader.u64()?),
            durable: LogPosition::from_u64(reader.u64()?),
            manifest: ManifestAt {
                offset: reader.u64()?,
                len: reader.u64()?,
                generation: reader.u64()?,
                records: reader.u64()?,
            },
            next_segment: SegmentId(reader.u32()?),
            next_run_no: RunNo(reader.zeros(4)?.u64()?),
            next_lsn: Lsn(reader.u64()?),
            dead: reader.u64()?,
        })
    }
}
