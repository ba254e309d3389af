//! Writing documents, and records with them, so that all of it is there or nothing, whatever
//! happens.
//!
//! A version of a document is stored as a run of its own with one record (`FLAG_DOCUMENT`). Writing
//! the next version evicts the ones before it, in the same batch of frames: so what becomes of old
//! versions is what becomes of deleted runs, and nothing else in the engine knows of documents.
//!
//! Ordering: versions are evicted only by the batch that has their successor, and that batch counts
//! only with its COMMIT. So at any moment, after any crash, a document has exactly one version, or
//! none if it was deleted.

mod commit;

use core::fmt;

use crate::engine::state::log_state::reserve_len;
use crate::engine::values::new_record::NewRecord;
use crate::engine::write::ticket::Ticket;
use crate::format::ExtentSize;
use crate::format::frames::frame::frame_len;
use crate::types::{Durability, Lsn, Version};

/// How a document must be for a batch, or a write, to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// In any way, there or not.
    #[default]
    Anything,
    /// Not there.
    Absent,
    /// There, with this version: it was not written since that was read.
    Version(Version),
}

/// Writes that happen together or not at all: of documents, and of records of runs.
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
    /// Documents that are only looked at.
    conditions: usize,
    durability: Durability,
    /// It may use a part of the space that is kept back for ends.
    is_urgent: bool,
    /// The caller waits for the disk.
    defers_sync: bool,
}

/// How many last records of runs the space that is kept back takes at least.
const LAST_WORDS: usize = 4;

/// The bytes of frames that an urgent batch has at most.
fn most_urgent(extent_size: ExtentSize) -> usize {
    reserve_len(extent_size) as usize / LAST_WORDS
}

/// An item of a batch. One that only says how a document must be counts as no write.
#[derive(Clone, Copy)]
enum Write<'a> {
    Put { namespace: &'a str, key: &'a str, value: NewRecord<'a>, expected: Expected },
    Delete { namespace: &'a str, key: &'a str, expected: Expected },
    Append { agent: &'a str, run: &'a str, record: NewRecord<'a> },
    Expect { namespace: &'a str, key: &'a str, expected: Expected },
}

impl<'a> Batch<'a> {
    /// A batch of nothing yet.
    pub fn new() -> Self {
        Self {
            writes: Vec::new(),
            conditions: 0,
            durability: Durability::Process,
            is_urgent: false,
            defers_sync: false,
        }
    }

    /// Writes a document, whatever is there.
    pub fn put(&mut self, namespace: &'a str, key: &'a str, value: NewRecord<'a>) -> &mut Self {
        self.put_if(namespace, key, value, Expected::Anything)
    }

    /// Writes a document if it is as expected; else the batch fails as a whole. Makes the batch
    /// [`Durability::Disk`] unless nothing is expected.
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

    /// Deletes a document; one that is not there is fine.
    pub fn delete(&mut self, namespace: &'a str, key: &'a str) -> &mut Self {
        self.delete_if(namespace, key, Expected::Anything)
    }

    /// Deletes a document if it is as expected; else the batch fails as a whole. Makes the batch
    /// [`Durability::Disk`] unless nothing is expected.
    pub fn delete_if(&mut self, namespace: &'a str, key: &'a str, expected: Expected) -> &mut Self {
        self.note(expected);
        self.writes.push(Write::Delete { namespace, key, expected });
        self
    }

    /// Lets the batch happen only if a document is as expected at that moment, and leaves that
    /// document as it is: nothing is stored of it, and its version stays. Makes the batch
    /// [`Durability::Disk`] unless nothing is expected.
    ///
    /// All conditions of a batch, those of its writes included, are looked at together with what
    /// was there before any of the writes; so a document may be expected and written by one batch.
    /// A condition is no write: a batch needs at least one besides, and [`Committed::versions`]
    /// says nothing of it. If it is not as expected the commit fails with
    /// [`crate::Error::Conflict`], which names the document and the version that it has. Of several
    /// that are not as expected it names the first that was given here, before any that is written:
    /// such as who leads.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-expect-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::{Batch, Expected, NewRecord};
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// let leader = log.put("leaders", "cron", &NewRecord::new(b"worker-1"))?;
    /// let mut batch = Batch::new();
    /// batch.expect("leaders", "cron", Expected::Version(leader));
    /// batch.put("jobs", "nightly", NewRecord::new(b"done"));
    /// log.commit(&batch)?;
    /// log.put("leaders", "cron", &NewRecord::new(b"worker-2"))?;
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

    /// What the batch must survive before the commit returns, if that is more than its writes ask
    /// for.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = self.durability.max(durability);
        self
    }

    /// Lets the batch use the space that is kept back for ends and deletions, if it is small: when
    /// the disk is full and the batch is what finishes something or gives space back, such as the
    /// last record of a run, or a deletion that also writes a document.
    ///
    /// Small means that all records and documents, with the headers of their frames, take at most
    /// 8 KiB, or a 64th of an extent if that is less; a larger batch is treated as not urgent. A
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

    /// Leaves it to the caller to wait until the batch survives power loss: the commit writes it
    /// at [`Durability::Process`], whatever its writes and conditions ask for. So many batches
    /// share one sync.
    ///
    /// Wait with [`Committed::ticket`], or with [`crate::RunLog::sync`], before anyone is told of
    /// the batch. This holds for refusals as well: what a [`crate::Error::Conflict`] was refused
    /// for may itself not survive power loss before [`crate::RunLog::sync`] has returned.
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

    /// Whether it gives space back on a full disk, so that it is worth an attempt to free some.
    pub(crate) fn gives_back(&self, extent_size: ExtentSize) -> bool {
        let len = |write: &Write<'_>| match write {
            Write::Put { value: record, .. } | Write::Append { record, .. } => {
                frame_len(record.name().len() + record.payload().len())
            }
            Write::Delete { .. } | Write::Expect { .. } => 0,
        };
        let is_short = || self.writes.iter().map(len).sum::<usize>() <= most_urgent(extent_size);
        self.only_deletes() || self.is_urgent && is_short()
    }

    /// Whether it writes nothing new.
    fn only_deletes(&self) -> bool {
        let adds = |write: &Write<'_>| matches!(write, Write::Put { .. } | Write::Append { .. });
        !self.writes.iter().any(adds)
    }

    /// What it must survive before the commit returns.
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
    /// Shows how many writes there are: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// What a committed batch did.
#[derive(Debug, Clone)]
pub struct Committed {
    /// Of each write in turn: the version of the document that it wrote or deleted, if any.
    pub versions: Vec<Option<Version>>,
    /// The place of the batch in the whole log.
    pub lsn: Lsn,
    /// Its durability.
    pub ticket: Ticket,
}
