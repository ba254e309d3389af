//! What the engine knows about an open store: its segments, the tail of the log, the runs.

pub(crate) mod active_runs;
pub(crate) mod catalog;
pub(crate) mod fold;
pub(crate) mod log_state;
pub(crate) mod payload;
pub(crate) mod run_slice;
pub(crate) mod scan;
pub(crate) mod segment;
pub(crate) mod segment_directory;
pub(crate) mod stored_run;
pub(crate) mod tail;
