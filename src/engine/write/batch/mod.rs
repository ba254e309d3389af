//! Writing documents, and records with them: after any failure all of it exists, or nothing.
//!
//! A version of a document is a run of its own with one record, in one PUT frame. That frame also
//! evicts the version before it. So the engine treats old versions like deleted runs, and needs no
//! special case for documents.
//!
//! Ordering: only the frame of the next version, or its batch, evicts a version. A frame counts as
//! a whole, and a batch with its COMMIT. So at any moment, after any crash, a document has exactly
//! one version, or none if it was deleted.

mod commit;

use core::fmt;

use crate::engine::state::log_state::reserve_len;
use crate::engine::values::new_record::NewRecord;
use crate::engine::write::ticket::Ticket;
use crate::format::{ExtentSize, FrameKind};
use crate::types::{Durability, Lsn, Version};

/// A condition on a document, for a write or a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Expected {
    /// No condition: the document may exist or not.
    #[default]
    Anything,
    /// The document must not exist.
    Absent,
    /// The document must exist with this version: it was not written since that version was read.
    Version(Version),
}

/// Writes of documents and of records of runs that happen all together or not at all.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-batch-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{Batch, Expected, NewRecord};
///
/// let log = runlog::Options::new().open(&path)?;
/// let run = log.start_run("payer", "run-1", ())?;
/// let mut batch = Batch::new();
/// batch.put_if("approvals", "42", NewRecord::new(b"paid"), Expected::Absent);
/// batch.append("payer", "run-1", NewRecord::json(b"{\"paid\":42}").kind("payment"));
/// log.commit(&batch)?;
/// assert!(log.commit(&batch).is_err(), "the approval was used up");
/// assert_eq!(log.trace("run-1")?.count(), 1);
/// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Batch<'a> {
    writes: Vec<Write<'a>>,
    /// How many of the items are only conditions.
    conditions: usize,
    durability: Durability,
    /// Whether it may use a part of the reserve for ends.
    is_urgent: bool,
    /// Whether the caller waits for the disk itself.
    defers_sync: bool,
}

/// For how many last records of runs the reserve is large enough at least.
const LAST_WORDS: usize = 4;

/// The most bytes of frames that an urgent batch may have.
fn most_urgent(extent_size: ExtentSize) -> usize {
    reserve_len(extent_size) as usize / LAST_WORDS
}

/// An item of a batch. `Expect` is only a condition and does not count as a write.
#[derive(Clone, Copy)]
enum Write<'a> {
    Put { namespace: &'a str, key: &'a str, value: NewRecord<'a>, expected: Expected },
    Delete { namespace: &'a str, key: &'a str, expected: Expected },
    Append { agent: &'a str, run: &'a str, record: NewRecord<'a> },
    Expect { namespace: &'a str, key: &'a str, expected: Expected },
}

impl<'a> Batch<'a> {
    /// An empty batch.
    pub fn new() -> Self {
        Self {
            writes: Vec::new(),
            conditions: 0,
            durability: Durability::Process,
            is_urgent: false,
            defers_sync: false,
        }
    }

    /// Writes a document, whatever its current version is.
    pub fn put(&mut self, namespace: &'a str, key: &'a str, value: NewRecord<'a>) -> &mut Self {
        self.put_if(namespace, key, value, Expected::Anything)
    }

    /// Writes a document if the condition holds; otherwise the whole batch fails. Any condition
    /// except [`Expected::Anything`] sets the level of the batch to [`Durability::Disk`].
    pub fn put_if(
        &mut self,
        namespace: &'a str,
        key: &'a str,
        value: NewRecord<'a>,
        expected: Expected,
    ) -> &mut Self {
        self.durability = self.durability.max(value.level());
        self.note(expected);
        self.writes.push(Write::Put { namespace, key, value, expected });
        self
    }

    /// Deletes a document. Deleting a document that does not exist succeeds.
    pub fn delete(&mut self, namespace: &'a str, key: &'a str) -> &mut Self {
        self.delete_if(namespace, key, Expected::Anything)
    }

    /// Deletes a document if the condition holds; otherwise the whole batch fails. Any condition
    /// except [`Expected::Anything`] sets the level of the batch to [`Durability::Disk`].
    pub fn delete_if(&mut self, namespace: &'a str, key: &'a str, expected: Expected) -> &mut Self {
        self.note(expected);
        self.writes.push(Write::Delete { namespace, key, expected });
        self
    }

    /// Adds a condition on a document that the batch does not change. Any condition except
    /// [`Expected::Anything`] sets the level of the batch to [`Durability::Disk`].
    ///
    /// All conditions of a batch, including those of its writes, are checked against the state
    /// before any of its writes, so a batch may expect and write the same document. Conditions are
    /// not writes: a batch needs at least one write, and [`Committed::versions`] has no entry for a
    /// condition. If a condition does not hold, the commit fails with [`crate::Error::Conflict`],
    /// which names the document and its current version. If several do not hold, the error names
    /// the first condition from this method, and only then one of a write: so a condition on a
    /// lease or a leader is reported first.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-expect-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::{Batch, Expected, NewRecord};
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// let leader = log.docs().put("leaders", "cron", &NewRecord::new(b"worker-1"))?;
    /// let mut batch = Batch::new();
    /// batch.expect("leaders", "cron", Expected::Version(leader));
    /// batch.put("jobs", "nightly", NewRecord::new(b"done"));
    /// log.commit(&batch)?;
    /// log.docs().put("leaders", "cron", &NewRecord::new(b"worker-2"))?;
    /// assert!(log.commit(&batch).is_err(), "worker-1 leads no more");
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn expect(&mut self, namespace: &'a str, key: &'a str, expected: Expected) -> &mut Self {
        self.note(expected);
        self.writes.push(Write::Expect { namespace, key, expected });
        self.conditions += 1;
        self
    }

    /// Appends a record to a run in progress.
    pub fn append(&mut self, agent: &'a str, run: &'a str, record: NewRecord<'a>) -> &mut Self {
        self.durability = self.durability.max(record.level());
        self.writes.push(Write::Append { agent, run, record });
        self
    }

    /// Raises the level of the batch: which failure it must survive before the commit returns. The
    /// batch never has a lower level than its writes ask for.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = self.durability.max(durability);
        self
    }

    /// Lets a small batch use the reserve for ends and deletions. Use it on a full disk for a batch
    /// that finishes something or frees space, such as the last record of a run, or a deletion that
    /// also writes a document.
    ///
    /// Small means that all records and documents, with the headers of their frames, take at most 8
    /// KiB, or a 64th of an extent if that is less. A larger batch is treated as not urgent. A
    /// batch that only deletes is always urgent.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-urgent-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::{Batch, NewRecord, Outcome};
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// let run = log.start_run("planner", "run-1", ())?;
    /// // Also on a full disk the run says why it stopped.
    /// let mut batch = Batch::new();
    /// batch.append("planner", "run-1", NewRecord::new(b"no space left").kind("stopped"));
    /// log.commit(batch.urgent())?;
    /// run.end(&Outcome::failed())?;
    /// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn urgent(&mut self) -> &mut Self {
        self.is_urgent = true;
        self
    }

    /// Makes the commit write the batch at [`Durability::Process`], whatever its writes and
    /// conditions ask for; the caller waits until it survives power loss. So many batches share one
    /// sync.
    ///
    /// Wait with [`Committed::ticket`] or [`crate::RunLog::sync`] before you report the batch to
    /// anyone. The same holds for refusals: the write that caused a [`crate::Error::Conflict`] may
    /// not survive power loss before [`crate::RunLog::sync`] has returned.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-defer-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::{Batch, Expected, NewRecord};
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// for job in ["1", "2", "3"] {
    ///     let mut batch = Batch::new();
    ///     batch.put_if("jobs", job, NewRecord::new(b"taken"), Expected::Absent).defer_sync();
    ///     log.commit(&batch)?;
    /// }
    /// log.sync()?; // one for all three
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn defer_sync(&mut self) -> &mut Self {
        self.defers_sync = true;
        self
    }

    /// Whether the batch frees space on a full disk, so that making room for it is worthwhile.
    pub(crate) fn gives_back(&self, extent_size: ExtentSize) -> bool {
        let len = |write: &Write<'_>| match write {
            Write::Put { value: record, .. } | Write::Append { record, .. } => {
                FrameKind::Record.frame_len(0, record.record_kind().len() + record.payload().len())
            }
            Write::Delete { .. } | Write::Expect { .. } => 0,
        };
        let is_short = || self.writes.iter().map(len).sum::<usize>() <= most_urgent(extent_size);
        self.only_deletes() || self.is_urgent && is_short()
    }

    /// Whether the batch writes nothing new.
    fn only_deletes(&self) -> bool {
        let adds = |write: &Write<'_>| matches!(write, Write::Put { .. } | Write::Append { .. });
        !self.writes.iter().any(adds)
    }

    /// Which failure it must survive before the commit returns.
    fn level(&self) -> Durability {
        if self.defers_sync { Durability::Process } else { self.durability }
    }

    /// How many writes it has. Conditions are not writes.
    pub fn len(&self) -> usize {
        self.writes.len() - self.conditions
    }

    /// Whether it has no writes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn note(&mut self, expected: Expected) {
        if expected != Expected::Anything {
            self.durability = Durability::Disk;
        }
    }
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Batch<'_> {
    /// Shows only the number of writes: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// What a committed batch did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Committed {
    /// For each write, in order: the version of the document that it wrote or deleted, if any.
    pub versions: Vec<Option<Version>>,
    /// The place of the batch in the whole log.
    pub lsn: Lsn,
    /// Its durability.
    pub ticket: Ticket,
}
