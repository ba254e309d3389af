//! Where the threads of a store are, and how they appear and disappear atomically.
//!
//! | namespace | key | what |
//! |---|---|---|
//! | base | `next` | the number of the next thread |
//! | base `/t/` tenant | thread id | the head of a thread: its number, how far it goes |
//! | base `/` number | | the documents of that thread |
//! | base `/gone` | number | a deleted thread whose documents still exist |
//! | base `/copy` | number | a thread that is being copied, or was when the process died |
//! | base `/begun` | number | a thread whose first checkpoint takes several batches |
//!
//! The base is the prefix of the store, the length of its name, `/`, and the name, so that no two
//! names, tenants and threads share a place.
//!
//! **Invariant:** each change of a thread writes its head in the same batch, and only if the head
//! is unchanged since it was read. So of two concurrent changes one starts again, and a thread
//! without a head is deleted, however many documents it has.
//!
//! **Invariant:** numbers are never used twice.
//!
//! [`sweep`](super::sweep) deletes the documents.

use serde::{Deserialize, Serialize};

use super::error::{CheckpointError, Defect};
use super::json::{SCHEMA_VERSION, json, read_json};
use super::key::{TenantId, ThreadKey};
use crate::worker::Later;
use runlog::{Batch, Error, Expected, NewRecord, Result, RunLog, SizedThing, Version};

/// How many documents one step reads or deletes.
pub(super) const PAGE: usize = 128;

/// The key of the number of the next thread.
const NEXT: &str = "next";

/// The value of the mark of a thread that is being copied.
const MARK: &[u8] = b"{\"schema_version\":1}";

/// The threads of a store of a name.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub(super) log: RunLog,
    pub(super) base: String,
    /// The thread that waits for the disk for its callers.
    later: Option<Later>,
}

/// How far a thread goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    schema_version: u32,
    pub(super) number: u64,
    /// The highest ordinal that was assigned; 0 without one.
    pub(super) last: u64,
    /// Everything up to this ordinal was archived. Only session logs do so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) archived: u64,
    /// Events up to this ordinal are not merged any more. Only session logs use it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) packed: u64,
}

impl Default for Head {
    fn default() -> Self {
        Self { schema_version: SCHEMA_VERSION, number: 0, last: 0, archived: 0, packed: 0 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The number of the next thread.
#[derive(Serialize, Deserialize)]
struct Next {
    schema_version: u32,
    number: u64,
}

/// A thread as it was read.
#[derive(Debug, Clone)]
pub(super) struct Thread {
    pub(super) head: Head,
    known: Known,
    /// The namespace of its documents.
    pub(super) documents: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// The head is there, with this version.
    There(Version),
    /// There is no head; the number comes from a counter with this version.
    New(Option<Version>),
}

impl Thread {
    /// Whether it is not stored yet.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.known, Known::New(_))
    }

    /// Whether no writer has written it since `other` was read.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.known == other.known
    }

    /// The thread after a batch that began with its head.
    pub(super) fn written(&self, head: Head, versions: &[Option<Version>]) -> Self {
        let version = versions.first().copied().flatten().unwrap_or_default();
        Self { head, known: Known::There(version), documents: self.documents.clone() }
    }
}

/// What a batch writes of a thread.
pub(super) struct HeadWrite<'a> {
    namespace: String,
    key: &'a str,
    head: Vec<u8>,
    counter: Vec<u8>,
}

/// Whether a batch was written, or another caller was faster.
pub(super) enum Written {
    /// With these versions, in the order of the writes.
    Yes(Vec<Option<Version>>),
    No,
}

impl Space {
    pub(super) fn new(log: &RunLog, prefix: &str, name: &str) -> Self {
        Self { log: log.clone(), base: format!("{prefix}{}/{name}", name.len()), later: None }
    }

    /// The same for calls that do not wait for the disk themselves.
    pub(super) fn put_off(&self, later: Later) -> Self {
        Self { later: Some(later), ..self.clone() }
    }

    /// Everything written, and the state that an answer depends on, survives power loss once this
    /// returns.
    pub(super) fn settle(&self) -> Result<()> {
        match &self.later {
            Some(later) => {
                later.once_durable();
                Ok(())
            }
            None => self.log.sync(),
        }
    }

    pub(super) fn threads_of(&self, tenant: &TenantId) -> String {
        format!("{}/t/{tenant}", self.base)
    }

    fn documents_of(&self, number: u64) -> String {
        format!("{}/{number}", self.base)
    }

    /// A thread that is there.
    pub(super) fn thread(&self, key: &ThreadKey) -> Result<Option<Thread>, CheckpointError> {
        let namespace = self.threads_of(key.tenant_id());
        let Some(document) = self.log.docs().get(&namespace, key.thread_id())? else {
            return Ok(None);
        };
        let head: Head = read_json(document.payload(), &namespace, key.thread_id())?;
        if head.last == u64::MAX || head.archived.max(head.packed) > head.last {
            return Err(CheckpointError::damaged(&namespace, key.thread_id(), Defect::Shape));
        }
        let documents = self.documents_of(head.number);
        Ok(Some(Thread { head, known: Known::There(document.version()), documents }))
    }

    /// A thread that exists, or one that exists once its head is written.
    pub(super) fn thread_or_new(&self, key: &ThreadKey) -> Result<Thread, CheckpointError> {
        match self.thread(key)? {
            Some(thread) => Ok(thread),
            None => self.new_thread(),
        }
    }

    fn new_thread(&self) -> Result<Thread, CheckpointError> {
        let (number, version) = self.next_number()?;
        let head = Head { number, ..Head::default() };
        let documents = self.documents_of(number);
        Ok(Thread { head, known: Known::New(version), documents })
    }

    fn next_number(&self) -> Result<(u64, Option<Version>), CheckpointError> {
        let Some(document) = self.log.docs().get(&self.base, NEXT)? else { return Ok((1, None)) };
        let next: Next = read_json(document.payload(), &self.base, NEXT)?;
        if next.number == u64::MAX {
            return Err(CheckpointError::damaged(&self.base, NEXT, Defect::Shape));
        }
        Ok((next.number, Some(document.version())))
    }

    /// Ids of threads of a tenant that have data, in their order, behind `after`.
    pub(super) fn threads(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>> {
        let namespace = self.threads_of(tenant);
        let (mut threads, mut after) = (Vec::new(), after.map(str::to_owned));
        while threads.len() < limit {
            let wanted = limit - threads.len();
            let page = self.log.docs().list(&namespace, "", after.as_deref(), wanted)?;
            for listed in page.documents {
                if !self.is_empty(&namespace, &listed.key)? {
                    threads.push(listed.key);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(threads)
    }

    /// Whether a thread is still empty: its first checkpoint is being written in several batches,
    /// or was interrupted. A thread that cannot be read does not count as empty.
    fn is_empty(&self, namespace: &str, thread: &str) -> Result<bool> {
        let document = match self.log.docs().get(namespace, thread) {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(true),
            Err(error) if error.is_corruption() => return Ok(false),
            Err(error) => return Err(error),
        };
        let head = read_json::<Head>(document.payload(), namespace, thread);
        Ok(head.is_ok_and(|head| head.last == 0))
    }

    /// The bytes of a head that a batch writes.
    pub(super) fn head_write<'a>(&self, key: &'a ThreadKey, head: &Head) -> Result<HeadWrite<'a>> {
        let next = Next { schema_version: SCHEMA_VERSION, number: head.number.saturating_add(1) };
        Ok(HeadWrite {
            namespace: self.threads_of(key.tenant_id()),
            key: key.thread_id(),
            head: json(head)?,
            counter: json(&next)?,
        })
    }

    /// Begins a batch with the head of a thread, which must be unchanged since it was read.
    pub(super) fn begin<'a>(&'a self, thread: &Thread, write: &'a HeadWrite<'_>) -> Batch<'a> {
        let mut batch = Batch::new();
        let head = NewRecord::json(&write.head).kind("thread");
        match thread.known {
            Known::There(version) => {
                let expected = Expected::Version(version);
                batch.put_if(&write.namespace, write.key, head, expected);
            }
            Known::New(counter) => {
                let expected = counter.map_or(Expected::Absent, Expected::Version);
                batch.put_if(&write.namespace, write.key, head, Expected::Absent);
                batch.put_if(&self.base, NEXT, NewRecord::json(&write.counter), expected);
            }
        }
        batch
    }

    /// Writes a batch, which survives power loss only after [`Space::settle`]. Nothing that is
    /// written later survives without it.
    pub(super) fn commit(&self, batch: &mut Batch<'_>) -> Result<Written> {
        match self.log.commit(batch.defer_sync()) {
            Ok(committed) => Ok(Written::Yes(committed.versions)),
            Err(Error::Conflict { .. }) => Ok(Written::No),
            Err(error) => Err(error),
        }
    }

    /// The same for a batch that deletes, and so frees space on a full disk.
    pub(super) fn commit_deletion(&self, batch: &mut Batch<'_>) -> Result<Written> {
        batch.urgent();
        self.commit(batch)
    }

    /// Reads from a thread as of one moment: it reads again if something was missing because the
    /// thread changed meanwhile.
    pub(super) fn read<T>(
        &self,
        key: &ThreadKey,
        read: impl Fn(&Thread) -> Result<T, CheckpointError>,
    ) -> Result<Option<T>, CheckpointError> {
        loop {
            let Some(thread) = self.thread(key)? else { return Ok(None) };
            match read(&thread) {
                Err(error) if error.is_missing() => {
                    let known = self.thread(key)?.map(|now| now.known);
                    if known == Some(thread.known) {
                        return Err(error);
                    }
                }
                known => return known.map(Some),
            }
        }
    }

    /// A thread that no reader sees until it is made visible; `None` if another writer took the
    /// number.
    pub(super) fn hidden(&self) -> Result<Option<Hidden>, CheckpointError> {
        let (number, counter) = self.next_number()?;
        let next =
            json(&Next { schema_version: SCHEMA_VERSION, number: number.saturating_add(1) })?;
        let (marks, mark) = (self.copies(), number.to_string());
        let expected = counter.map_or(Expected::Absent, Expected::Version);
        let mut batch = Batch::new();
        batch.put_if(&marks, &mark, NewRecord::json(MARK), Expected::Absent);
        batch.put_if(&self.base, NEXT, NewRecord::json(&next), expected);
        let Written::Yes(versions) = self.commit(&mut batch)? else { return Ok(None) };
        let version = versions.first().copied().flatten().unwrap_or_default();
        let documents = self.documents_of(number);
        Ok(Some(Hidden { number, marks, mark, version, documents }))
    }
}

/// A thread that is being created, and that no reader sees yet.
pub(super) struct Hidden {
    number: u64,
    marks: String,
    mark: String,
    version: Version,
    /// The namespace of its documents.
    documents: String,
}

impl Hidden {
    /// Writes documents of the thread. Returns whether the thread still is being created.
    pub(super) fn write(
        &mut self,
        space: &Space,
        documents: &[(&str, NewRecord<'_>)],
    ) -> Result<bool> {
        let mut rest = documents;
        let mut most = PAGE;
        while !rest.is_empty() {
            let (some, behind) = rest.split_at(most.min(rest.len()));
            let mut batch = Batch::new();
            let expected = Expected::Version(self.version);
            batch.put_if(&self.marks, &self.mark, NewRecord::json(MARK), expected);
            for (key, document) in some {
                batch.put(&self.documents, key, *document);
            }
            match space.commit(&mut batch) {
                Err(error) if most > 1 && is_batch_too_large(&error) => most /= 2,
                Err(error) => return Err(error),
                Ok(Written::No) => return Ok(false),
                Ok(Written::Yes(versions)) => {
                    self.version = versions.first().copied().flatten().unwrap_or_default();
                    rest = behind;
                }
            }
        }
        Ok(true)
    }

    /// Makes the thread visible under a key without a thread. Returns whether that worked.
    pub(super) fn show(self, space: &Space, key: &ThreadKey, last: u64) -> Result<bool> {
        let head = json(&Head { number: self.number, last, ..Head::default() })?;
        let heads = space.threads_of(key.tenant_id());
        let mut batch = Batch::new();
        let value = NewRecord::json(&head).kind("thread");
        batch.put_if(&heads, key.thread_id(), value, Expected::Absent);
        batch.delete_if(&self.marks, &self.mark, Expected::Version(self.version));
        Ok(matches!(space.commit(&mut batch)?, Written::Yes(_)))
    }
}

/// Whether a batch has too many writes.
pub(super) fn is_batch_too_large(error: &Error) -> bool {
    matches!(error, Error::TooLarge { what: SizedThing::Batch, .. })
}
