//! What a segment is made of: frames, and what is in them.

pub mod block;
pub mod compression;
pub mod eviction;
pub mod frame;
pub mod origin;
pub(crate) mod record_frame;
