//! The behaviour of a store through its public API. The list of modules is the index.

#![allow(
    clippy::pedantic,
    clippy::manual_is_multiple_of,
    clippy::needless_range_loop,
    reason = "tests count and compare; the strict lints are for what ships"
)]

mod api;
mod backup;
mod compaction;
mod documents;
mod durability;
mod format;
mod full_disk;
mod readers;
mod recovery;
mod retention;
mod salvage;
mod support;
