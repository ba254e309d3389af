//! The frames of a segment, and their payloads.

pub mod block;
pub mod compression;
pub mod eviction;
pub mod frame;
pub mod ids;
pub(crate) mod record_frame;
pub mod slice;
