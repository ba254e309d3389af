//! What stands in front of the extents, and who owns each of these.

pub mod extents;
pub mod header;
pub mod manifest;
pub mod owner;
pub mod superblock;
