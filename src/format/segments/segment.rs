//! The header of a log segment: the first 64 bytes of its extent (section 9 of FORMAT.md).

use crate::error::Damage;
use crate::format::codec::{Decoded, open_checked, put_checked};
use crate::format::frames::frame::SegmentKey;
use crate::format::layout::ExtentSize;
use crate::types::{Lsn, RunNo, SegmentId};

/// What headers begin with; the uuid of the store follows.
pub(crate) const MAGIC: [u8; 8] = *b"RLOGSEG2";
const CHECKED_LEN: usize = 60;

/// The length of a segment header; the first frame follows it.
pub const SEGMENT_HEADER_LEN: u32 = 64;

/// The largest segment number; one more still fits the type.
pub const LAST_SEGMENT: SegmentId = SegmentId(u32::MAX - 1);

/// Refuses a value that is not a segment number.
pub(crate) fn check_id(id: SegmentId) -> Decoded<()> {
    if (SegmentId(1)..=LAST_SEGMENT).contains(&id) {
        return Ok(());
    }
    Err(Damage::OutOfRange { found: id.0.into(), max: LAST_SEGMENT.0.into() })
}

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum Purpose {
    /// A segment in the order of the log.
    #[default]
    Log = 0,
    /// Compaction copies frames into it. It counts once the manifest lists it as sealed.
    Output = 1,
}

impl Purpose {
    /// The purpose with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Log),
            1 => Some(Self::Output),
            _ => None,
        }
    }
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SegmentHeader {
    /// The store it belongs to.
    pub uuid: [u8; 16],
    /// Its number and salt.
    pub key: SegmentKey,
    /// The purpose of the segment.
    pub purpose: Purpose,
    /// The size of its extent; a backup of the value in the static header.
    pub extent_size: ExtentSize,
    /// When the segment was reserved, no run had this number or a larger one.
    pub next_run_no: RunNo,
    /// When the segment was reserved, no frame had this order or a larger one.
    pub next_lsn: Lsn,
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        put_checked(&MAGIC, (CHECKED_LEN, SEGMENT_HEADER_LEN as usize), |out| {
            out.bytes(&self.uuid)
                .u32(self.key.id.0)
                .u8(self.purpose as u8)
                .u8(self.extent_size.log2())
                .zeros(2)
                .u64(self.key.salt)
                .u64(self.next_run_no.0)
                .u64(self.next_lsn.0);
        })
    }

    /// Reads the first bytes of an extent.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = open_checked(bytes, &MAGIC, CHECKED_LEN)?;
        let (uuid, id) = (reader.array()?, SegmentId(reader.u32()?));
        check_id(id)?;
        let purpose = reader.code(Purpose::from_code)?;
        let extent_size = ExtentSize::read(&mut reader)?;
        let salt = reader.zeros(2)?.u64()?;
        let (next_run_no, next_lsn) = (RunNo(reader.u64()?), Lsn(reader.u64()?));
        reader.zeros(4)?;
        let key = SegmentKey { id, salt };
        Ok(Self { uuid, key, purpose, extent_size, next_run_no, next_lsn })
    }
}
