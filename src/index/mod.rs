//! Where a run lives: a cache over the directories of the sealed segments, and the same answers
//! without it.
//!
//! The index is built by applying whole sealed segments and compactions, and can be dropped and
//! rebuilt from the directories at any time. It knows runs and spans, never
//! records: within a segment the directory leads on to the frames.
//!
//! Section 17 of FORMAT.md lists the tables.
//!
//! Invariants:
//!
//! - The index may lag behind the log, it never leads: a segment is applied when it is sealed and
//!   durable. What is younger is in the engine's memory, and the engine merges both.
//! - One fold ([`RunRow::apply`]) makes all rows, so the rebuilt index equals the one that grew
//!   (I4), and [`check()`] can tell.
//! - A run that is evicted in a directory does not exist, wherever its entries are. A run number is
//!   never used again. Entries of a run whose eviction was applied before are left out when
//!   they are read ([`SegmentChange::read`]), since the index forgets evictions.
//! - Rows do not depend on the order of segments, and spans are read in that of their records: the
//!   numbers of compaction's outputs say nothing about the order of the log.
//! - Every value carries a checksum of its table, its key and itself. A wrong entry is an error
//!   that makes the engine rebuild, never a wrong answer. A missing or outdated one shows in
//!   [`RunRow::is_covered_by`] and in [`check()`].
//! - No bytes in the storage, and no panic of redb, lead to a panic out of here.
//!
//! Overview:
//!
//! - [`Catalog`]: the questions; answered by [`IndexSnapshot`] and by [`DirectoryScan`].
//! - [`IndexStore`]: the tables in redb; applies each [`SegmentChange`] and [`Relocation`].
//! - `RunState`, [`RunRow`], [`Span`]: what is known of a run, and the fold.
//! - [`Directories`]: how the engine lends the directories.
//! - `key`, `value`: the bytes of keys and values.

mod catalog;
mod check;
mod fence;
mod key;
mod merge;
mod plan;
mod row;
mod scan;
mod snapshot;
mod store;
mod value;

pub(crate) use catalog::{Catalog, RunFilter};
pub(crate) use check::{DifferenceKind, Subject, check};
pub(crate) use fence::{IndexError, RedbFailure};
#[cfg(test)]
pub(crate) use merge::run_state;
pub(crate) use merge::{Applied, Directories, fold_spans};
pub(crate) use plan::{Relocation, SegmentChange};
pub(crate) use row::{RowSummary, RunRow, RunState, Span};
pub(crate) use scan::DirectoryScan;
pub(crate) use snapshot::IndexSnapshot;
pub(crate) use store::{IndexIdentity, IndexStore};

#[cfg(test)]
mod tests;
