//! The static header: the first 4 KiB of the file, written once (section 4 of FORMAT.md).

use crate::error::Damage;
use crate::format::codec::{open_checked, put_checked};
use crate::format::layout::{ExtentSize, FORMAT_VERSION, PAGE_LEN};
use crate::types::Timestamp;

/// The first 16 bytes of every store.
pub const MAGIC: [u8; 16] = *b"\x93RUNLOG1\r\n\x1a\n\0\0\0\0";

/// The bytes that the header's checksum covers.
const CHECKED_LEN: usize = 80;

/// The feature bits that this program knows. A reader refuses a file with unknown required bits. It
/// may read, but not write, a file with unknown optional bits.
pub const KNOWN_REQUIRED: u64 = 0;
/// See [`KNOWN_REQUIRED`].
pub const KNOWN_OPTIONAL: u64 = 0;

/// The static header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StaticHeader {
    /// The version that wrote the file.
    pub version: u32,
    /// The oldest version that can read the file.
    pub min_reader: u32,
    /// Features that a reader must know.
    pub required: u64,
    /// Features that a reader may ignore.
    pub optional: u64,
    /// The identity of the store; each structure contains it or is keyed by it.
    pub uuid: [u8; 16],
    /// The size of the extents.
    pub extent_size: ExtentSize,
    /// When the store was created.
    pub created: Timestamp,
}

impl StaticHeader {
    /// The header of a new store.
    pub fn new(uuid: [u8; 16], extent_size: ExtentSize, created: Timestamp) -> Self {
        Self {
            version: FORMAT_VERSION,
            min_reader: FORMAT_VERSION,
            required: 0,
            optional: 0,
            uuid,
            extent_size,
            created,
        }
    }

    /// The page's bytes.
    pub fn encode(&self) -> Vec<u8> {
        put_checked(&MAGIC, (CHECKED_LEN, PAGE_LEN), |out| {
            out.u32(self.version)
                .u32(self.min_reader)
                .u64(self.required)
                .u64(self.optional)
                .bytes(&self.uuid)
                .u8(self.extent_size.log2())
                .zeros(7)
                .i64(self.created.0);
        })
    }

    /// Reads a page. It checks the version before everything that a version may change, so that it
    /// can distinguish a file of another version from a damaged one; see [`HeaderFault`].
    pub fn decode(page: &[u8]) -> Result<Self, HeaderFault> {
        let mut reader = open_checked(page, &MAGIC, CHECKED_LEN)?;
        let (version, min_reader) = (reader.u32()?, reader.u32()?);
        if min_reader > FORMAT_VERSION {
            return Err(HeaderFault::Version { found: min_reader });
        }
        if version < FORMAT_VERSION {
            return Err(HeaderFault::Version { found: version });
        }
        let header = Self {
            version,
            min_reader,
            required: reader.u64()?,
            optional: reader.u64()?,
            uuid: reader.array()?,
            extent_size: ExtentSize::read(&mut reader)?,
            created: Timestamp(reader.zeros(7)?.i64()?),
        };
        reader.zeros(8)?;
        match header.required & !KNOWN_REQUIRED {
            0 => Ok(header),
            unknown => Err(HeaderFault::Features { unknown }),
        }
    }
}

impl From<Damage> for HeaderFault {
    fn from(damage: Damage) -> Self {
        if damage == Damage::Magic { Self::Foreign } else { Self::Damaged(damage) }
    }
}

/// Why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFault {
    /// The magic is not that of a runlog file.
    Foreign,
    /// The file has another version.
    Version {
        /// The version that the file needs; of an older file, the one that wrote it.
        found: u32,
    },
    /// The file needs features that this program does not know.
    Features {
        /// The unknown bits.
        unknown: u64,
    },
    /// It is a runlog header, but damaged.
    Damaged(Damage),
}
