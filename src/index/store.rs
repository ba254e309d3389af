//! The index in redb: opening it, and applying sealed segments to it.
//!
//! Invariants:
//!
//! - Each batch and each compaction is one transaction, so the index always equals the segments up
//!   to [`IndexStore::applied`].
//! - Segments of the log are applied in the order of the log, outputs of compaction by their
//!   numbers. Segments that were applied before are skipped, so applying again after a crash
//!   changes nothing.
//! - After a failure nothing more is applied. Committed entries can still be read.

use std::sync::OnceLock;

use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend,
    WriteTransaction,
};

use super::merge::Applied;
use super::plan::{Current, KeyChange, Plan, Relocation, SegmentChange};
use super::row::RunRow;
use super::snapshot::IndexSnapshot;
use super::tables::fence::{Fenced, IndexError, guarded};
use super::tables::key;
use super::tables::key::{Bytes, Table};
use super::value::{self, Meta, SCHEMA_VERSION};
use crate::error::Damage;
use crate::format::segments::segment::Purpose;
use crate::types::{AgentId, RunNo, SegmentId};

/// So many stamps of segments that are gone may stay in any index.
const FEW_STAMPS: u64 = 64;

/// The key of the one entry of the table `meta`.
pub(super) const META_KEY: &[u8] = b"index";

/// The store that the index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexIdentity {
    /// The identity of the store.
    pub(crate) uuid: [u8; 16],
}

/// The index, open for applying segments. One thread applies; any thread can take snapshots.
#[derive(Debug)]
pub(crate) struct IndexStore {
    database: Fenced<Database>,
    failed: OnceLock<IndexError>,
}

impl IndexStore {
    /// Creates an index in an empty storage.
    ///
    /// # Errors
    /// [`IndexError::Foreign`] if the storage is not empty.
    pub(crate) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        identity: IndexIdentity,
    ) -> Result<Self, IndexError> {
        let store = guarded(|| {
            if backend.len().map_err(redb::StorageError::from)? != 0 {
                return Err(IndexError::Foreign);
            }
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            let database = Fenced::new(builder.create_with_backend(backend)?);
            Ok(Self { database, failed: OnceLock::new() })
        })?;
        store.database.call(|database| {
            let transaction = begin(database)?;
            for table in Table::ALL {
                transaction.open_table(table.definition())?;
            }
            let (uuid, schema) = (identity.uuid, SCHEMA_VERSION);
            let meta = Meta { uuid, schema, applied: Applied::default(), runs: 0 };
            write_meta(&transaction, &meta)?;
            Ok(transaction.commit()?)
        })?;
        Ok(store)
    }

    /// Opens the index in a storage, and verifies all of its pages.
    ///
    /// # Errors
    /// [`IndexError::Foreign`] if it belongs to another store or has another version. After any
    /// error the caller must drop and rebuild the index.
    pub(crate) fn open(
        backend: impl StorageBackend,
        cache_bytes: usize,
        identity: IndexIdentity,
    ) -> Result<Self, IndexError> {
        let store = guarded(|| {
            if backend.len().map_err(redb::StorageError::from)? == 0 {
                return Err(Damage::Missing.into());
            }
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes);
            let mut database = Fenced::new(builder.create_with_backend(backend)?);
            // redb does not verify its pages when it reads them. A damaged key makes it miss
            // existing entries, which no checksum of a value can detect.
            if !database.call_mut(|database| Ok(database.check_integrity()?))? {
                return Err(Damage::IndexPages.into());
            }
            Ok(Self { database, failed: OnceLock::new() })
        })?;
        // Before the tables are opened: another version has others.
        let read_meta = |database: &Database| IndexSnapshot::read_meta(&database.begin_read()?);
        let meta = store.database.call(read_meta)?;
        if meta.uuid != identity.uuid || meta.schema != SCHEMA_VERSION {
            return Err(IndexError::Foreign);
        }
        Ok(store)
    }

    /// How far the index goes.
    pub(crate) fn applied(&self) -> Result<Applied, IndexError> {
        Ok(self.snapshot()?.applied())
    }

    /// Applies sealed segments in one durable transaction. The caller gives segments of the log in
    /// order and outputs by their numbers; in a rebuild the outputs are first. Segments that
    /// [`IndexStore::applied`] covers are skipped. Of those that it knows of the index forgets all
    /// but `living`, which ascend, once most are gone.
    ///
    /// Transactions (two syncs each) and random keys (sorted within a batch) dominate the cost, so
    /// a rebuild should apply several dozen segments at once. A batch holds all its changes in
    /// memory, about 1 KB per run.
    pub(crate) fn apply_among(
        &self,
        living: &[SegmentId],
        changes: &[SegmentChange],
    ) -> Result<(), IndexError> {
        self.apply_some(changes, Some(living))
    }

    #[cfg(test)]
    pub(crate) fn apply(&self, changes: &[SegmentChange]) -> Result<(), IndexError> {
        self.apply_some(changes, None)
    }

    fn apply_some(
        &self,
        changes: &[SegmentChange],
        living: Option<&[SegmentId]>,
    ) -> Result<(), IndexError> {
        for purpose in [Purpose::Log, Purpose::Output] {
            let segments = changes.iter().filter(|change| change.purpose == purpose);
            assert!(
                segments.is_sorted_by(|left, right| left.segment < right.segment),
                "segments are applied in the order of the log"
            );
        }
        self.change(|database| apply(database, changes, living))
    }

    /// Records in one durable transaction that a compaction moved runs. Repeating it changes
    /// nothing.
    ///
    /// The caller must have applied all victims that are segments of the log: a run without a row
    /// is treated as evicted.
    pub(crate) fn relocate(&self, relocation: &Relocation) -> Result<(), IndexError> {
        self.change(|database| relocate(database, relocation))
    }

    fn change(
        &self,
        change: impl FnOnce(&Database) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        if let Some(&failure) = self.failed.get() {
            return Err(failure);
        }
        let outcome = self.database.call(change);
        if let Err(failure) = outcome {
            let _ = self.failed.set(failure);
        }
        outcome
    }

    /// A consistent view of everything applied so far. Opening one costs a few microseconds, so
    /// keep it until more was applied.
    pub(crate) fn snapshot(&self) -> Result<IndexSnapshot, IndexError> {
        self.database.call(|database| IndexSnapshot::new(&database.begin_read()?))
    }

    /// Closes the index. Dropping it does the same but cannot report an error; nothing that was
    /// applied depends on it.
    pub(crate) fn close(self) -> Result<(), IndexError> {
        self.database.consume(|database| Ok(database.close()?))
    }
}

/// A transaction that is durable when committed, and that lets an opening after a crash skip
/// walking the whole tree.
fn begin(database: &Database) -> Result<WriteTransaction, IndexError> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

fn apply(
    database: &Database,
    changes: &[SegmentChange],
    living: Option<&[SegmentId]>,
) -> Result<(), IndexError> {
    let transaction = begin(database)?;
    let mut meta = read_meta(&transaction)?;
    let known = meta.applied;
    let is_new = |change: &&SegmentChange| !known.covers(change.segment, change.purpose);
    let changes: Vec<&SegmentChange> = changes.iter().filter(is_new).collect();
    if changes.is_empty() {
        return Ok(transaction.abort()?);
    }
    let plan = Plan::new(&changes, &Tables::open(&transaction)?)?;
    note_stamps(&transaction, changes.iter().map(|change| (change.segment, change.stamp)))?;
    for change in changes {
        let last = match change.purpose {
            Purpose::Log => &mut meta.applied.log,
            Purpose::Output => &mut meta.applied.outputs,
        };
        *last = (*last).max(Some(change.segment));
    }
    if let Some(living) = living {
        forget_others(&transaction, living)?;
    }
    commit(transaction, &plan, meta)
}

fn relocate(database: &Database, relocation: &Relocation) -> Result<(), IndexError> {
    let transaction = begin(database)?;
    let mut meta = read_meta(&transaction)?;
    let plan = Plan::relocation(relocation, &Tables::open(&transaction)?)?;
    note_stamps(&transaction, relocation.outputs.iter().copied())?;
    let gone = relocation.victims.iter().map(|id| (key::segment_key(*id).to_vec(), None));
    write(&transaction, Table::Segments, gone.collect())?;
    let last = relocation.outputs.iter().map(|(segment, _)| *segment).max();
    meta.applied.outputs = meta.applied.outputs.max(last);
    commit(transaction, &plan, meta)
}

fn commit(transaction: WriteTransaction, plan: &Plan, mut meta: Meta) -> Result<(), IndexError> {
    for table in Table::ALL {
        write(&transaction, table, plan.changes(table))?;
    }
    meta.runs = meta.runs.saturating_add_signed(plan.new_runs());
    write_meta(&transaction, &meta)?;
    Ok(transaction.commit()?)
}

fn note_stamps(
    transaction: &WriteTransaction,
    stamps: impl Iterator<Item = (SegmentId, u64)>,
) -> Result<(), IndexError> {
    let entry = |(segment, stamp)| {
        (key::segment_key(segment).to_vec(), Some(value::stamp_value(segment, stamp)))
    };
    write(transaction, Table::Segments, stamps.map(entry).collect())
}

/// Removes the stamps of all segments but these, which ascend, if it has many others.
fn forget_others(transaction: &WriteTransaction, living: &[SegmentId]) -> Result<(), IndexError> {
    let mut table = transaction.open_table(Table::Segments.definition())?;
    if table.len()? <= 2 * living.len() as u64 + FEW_STAMPS {
        return Ok(());
    }
    let is_there = |key: &[u8]| {
        key::read_segment_key(key).is_ok_and(|segment| living.binary_search(&segment).is_ok())
    };
    Ok(table.retain(|key, _| is_there(key))?)
}

fn write(
    transaction: &WriteTransaction,
    table: Table,
    changes: Vec<KeyChange>,
) -> Result<(), IndexError> {
    let mut table = transaction.open_table(table.definition())?;
    for (key, value) in changes {
        match value {
            Some(value) => table.insert(key.as_slice(), value.as_slice())?,
            None => table.remove(key.as_slice())?,
        };
    }
    Ok(())
}

fn read_meta(transaction: &WriteTransaction) -> Result<Meta, IndexError> {
    let table = transaction.open_table(Table::Meta.definition())?;
    let value = table.get(META_KEY)?.ok_or(Damage::Missing)?;
    Ok(value::read_meta(META_KEY, value.value())?)
}

fn write_meta(transaction: &WriteTransaction, meta: &Meta) -> Result<(), IndexError> {
    let mut table = transaction.open_table(Table::Meta.definition())?;
    table.insert(META_KEY, value::meta_value(META_KEY, meta).as_slice())?;
    Ok(())
}

/// The current index, as far as a plan reads it.
struct Tables<'txn> {
    runs: redb::Table<'txn, Bytes, Bytes>,
    agents: redb::Table<'txn, Bytes, Bytes>,
    /// The largest run number; larger numbers need no search.
    last_run: Option<RunNo>,
}

impl<'txn> Tables<'txn> {
    fn open(transaction: &'txn WriteTransaction) -> Result<Self, IndexError> {
        let runs = transaction.open_table(Table::Runs.definition())?;
        let last_run = match runs.last()? {
            Some((key, _)) => Some(key::read_run_key(key.value())?),
            None => None,
        };
        Ok(Self { runs, agents: transaction.open_table(Table::Agents.definition())?, last_run })
    }
}

impl Current for Tables<'_> {
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        if Some(run_no) > self.last_run {
            return Ok(None);
        }
        let key = key::run_key(run_no);
        match self.runs.get(key.as_slice())? {
            Some(value) => Ok(Some(value::read_row(&key, value.value())?)),
            None => Ok(None),
        }
    }

    fn agent_runs(&self, agent: &AgentId) -> Result<u64, IndexError> {
        let key = agent.as_str().as_bytes();
        match self.agents.get(key)? {
            Some(value) => Ok(value::read_agent(key, value.value())?),
            None => Ok(0),
        }
    }
}
