//! The structures in front of the extents, and the owner of each extent.

pub mod extents;
pub mod header;
pub mod manifest;
pub mod owner;
pub mod superblock;
