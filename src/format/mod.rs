//! What the bytes of the file mean. Pure: bytes in, values out.
//!
//! One structure, one file, one section of `docs/FORMAT.md`, which has their layouts.
//!
//! - [`map`]: what stands in front of the extents, and who owns each of these.
//! - [`segments`]: what fills an extent of the log.
//! - [`frames`]: what a segment is made of.

pub mod codec;
pub mod frames;
pub mod layout;
pub mod map;
pub mod segments;

pub use frames::frame::{FrameCheck, FrameHeader, FrameKind, SegmentKey};
pub use layout::{
    EXTENTS_AT, ExtentSize, FORMAT_VERSION, LAST_WRITTEN, MANIFEST_AREA_LEN, MANIFEST_AT,
    MAX_OUTCOME, NUMBERS_END, OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT,
};
pub use segments::directory::{Directory, RunEntry};
pub use segments::directory_builder::DirectoryBuilder;
