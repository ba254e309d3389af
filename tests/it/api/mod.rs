//! The calls of the public API, good input and bad.

pub(crate) mod bad_files;
pub(crate) mod bad_input;
pub(crate) mod basics;
pub(crate) mod closing;
#[cfg(target_os = "linux")]
pub(crate) mod forks;
pub(crate) mod health;
pub(crate) mod large_records;
pub(crate) mod lists;
pub(crate) mod locking;
pub(crate) mod lookups;
pub(crate) mod memory_storage;
pub(crate) mod observed;
pub(crate) mod pairs;
pub(crate) mod panics;
pub(crate) mod queries;
pub(crate) mod reading;
pub(crate) mod readme;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
pub(crate) mod scale;
pub(crate) mod tail_writers;
pub(crate) mod waiting_reads;
pub(crate) mod wakers;
