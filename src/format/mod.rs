//! The meaning of the bytes of the file. No I/O: bytes in, values out.
//!
//! Each structure has one file here and one section of `docs/FORMAT.md`, which has its layout.
//!
//! - [`map`]: the structures in front of the extents, and the owner of each extent.
//! - [`segments`]: the contents of an extent of the log.
//! - [`frames`]: the contents of a segment.

pub mod codec;
pub mod frames;
pub mod layout;
pub mod map;
pub mod segments;

pub use frames::frame::{FrameCheck, FrameHeader, FrameKind, SegmentKey};
pub use layout::{
    EXTENTS_AT, ExtentSize, FORMAT_VERSION, MANIFEST_AREA_LEN, MANIFEST_AT, MAX_OUTCOME, OWNER_AT,
    PAGE, PAGE_LEN, SUPERBLOCK_AT,
};
pub use segments::directory::{Directory, RunEntry};
pub use segments::directory_builder::DirectoryBuilder;
