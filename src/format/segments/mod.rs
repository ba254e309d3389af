//! The parts of a log extent: its header, and the directory of its runs.

pub mod directory;
pub mod directory_builder;
pub mod directory_key;
pub mod directory_tables;
pub(crate) mod run_entry;
pub(crate) mod run_map;
pub(crate) mod run_set;
pub mod segment;
