//! What is known of each run and in which segments it is: a cache over the directories of the
//! sealed segments, and the same answers without it.
//!
//! The index is built by applying whole sealed segments and compactions. It can be dropped and
//! rebuilt from the directories at any time. It serves lists, `verify`, and answers beside a
//! segment that cannot be read. Lookups by id ask the directories, by way of the [`Locator`], and
//! no lookup waits for the index to open.
//!
//! Section 17 of FORMAT.md lists the tables.
//!
//! Invariants:
//!
//! - The index may lag behind the log but never leads it: a segment is applied when it is sealed
//!   and durable. The engine has younger segments in memory, and merges both.
//! - One fold ([`RunRow::apply`]) makes all rows, so a rebuilt index equals one that grew (I4),
//!   which [`check()`] verifies.
//! - If a directory evicts a run, the run does not exist, wherever its entries are. A run number is
//!   never used again. The index forgets evictions after they were applied, so
//!   [`SegmentChange::read`] leaves out entries of such runs.
//! - Rows do not depend on the order of segments: the numbers of compaction outputs are unrelated
//!   to the order of the log.
//! - Every value has a checksum of its table, its key and itself. A wrong entry is an error that
//!   makes the engine rebuild the index, never a wrong answer. [`check()`] detects a missing or
//!   outdated entry.
//! - Neither bytes in the storage nor a panic of redb cause a panic of the caller.
//!
//! Overview:
//!
//! - [`Catalog`]: the questions, which [`IndexSnapshot`] and [`DirectoryScan`] answer.
//! - [`IndexStore`]: the tables in redb; applies each [`SegmentChange`] and [`Relocation`].
//! - [`RunRow`]: what is known of a run, and the fold.
//! - [`Locator`]: where the entries of runs are in the file.
//! - [`Directories`]: how the engine provides the directories.
//! - `key`, `value`: the bytes of keys and values.

mod catalog;
mod check;
mod listing;
pub(crate) mod locator;
mod merge;
mod plan;
mod row;
mod scan;
mod snapshot;
mod store;
mod tables;
mod value;

pub(crate) use catalog::{Catalog, Order, RunKey, RunList, Statuses};
pub(crate) use check::check;
pub(crate) use listing::Listing;
pub(crate) use locator::Locator;
pub(crate) use merge::{Applied, Directories, Said};
pub(crate) use plan::{Relocated, Relocation, SegmentChange};
pub(crate) use row::{RowSummary, RunRow};
pub(crate) use scan::DirectoryScan;
pub(crate) use snapshot::IndexSnapshot;
pub(crate) use store::{IndexIdentity, IndexStore};
pub(crate) use tables::fence::{IndexError, RedbFailure};

#[cfg(test)]
mod tests;
