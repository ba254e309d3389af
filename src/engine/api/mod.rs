//! The handles of the public API: what a caller sees of an open store.

pub(crate) mod documents;
pub(crate) mod holds;
pub(crate) mod open;
pub(crate) mod run_log;
pub(crate) mod run_writer;
pub(crate) mod stats;
