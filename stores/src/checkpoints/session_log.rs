//! [`SessionLog`]: the events of threads, in order; old ones can be archived.
//!
//! Events that are appended together are one document. A document costs some hundred bytes beside
//! its events, so the log merges small ones, [`TOGETHER`] events at a time: the append that reaches
//! this number writes one document that replaces them, in its own batch. A reader that looks for
//! one of them meanwhile finds that the head has changed, and starts again.

use core::fmt;
use core::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{CheckpointError, Defect};
use super::json::{SCHEMA_VERSION, json, read_json};
use super::key::{TenantId, ThreadKey};
use super::space::{PAGE, Space, Thread, Written};
use crate::objects::readable;
use crate::room::in_steps;
use crate::worker::Later;
use runlog::{NewRecord, Result, RunLog};

/// The prefix of the namespaces of session logs. Callers should not use it.
const NAMESPACE: &str = "\0session-log/";

/// Events that are appended together are in documents of about this many bytes.
const DOCUMENT: usize = 1 << 20;

/// How many events of small documents are merged into one.
const TOGETHER: u64 = 64;

/// The most bytes of a merged document: merging large events gains little.
const TOGETHER_LEN: u64 = 32 << 10;

/// The events of threads, of one type. Cheap to clone; clones are the same log, and so are all that
/// were made with the same name on the same [`RunLog`].
///
/// Events of a thread have ordinals 1, 2, 3, ... in the order of the appends. An ordinal is never
/// used twice, as long as the thread is not deleted.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-sl-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::checkpoints::{SessionLog, TenantId, ThreadKey};
///
/// let log = runlog::Options::new().open(&path)?;
/// let session: SessionLog<String> = SessionLog::new(&log);
/// let key = ThreadKey::new(TenantId::default(), "thread-1")?;
/// assert_eq!(session.append(&key, &["hello".into(), "world".into()])?, 2);
/// assert_eq!(session.load_since(&key, 1)?, ["world"]);
/// assert_eq!(session.archive_before(&key, 1)?, 1);
/// assert_eq!(session.load_since(&key, 0)?, ["world"]);
/// # drop(session); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
pub struct SessionLog<E> {
    space: Space,
    event: PhantomData<fn(E) -> E>,
}

impl<E> Clone for SessionLog<E> {
    fn clone(&self) -> Self {
        Self { space: self.space.clone(), event: PhantomData }
    }
}

impl<E> fmt::Debug for SessionLog<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionLog").field("space", &self.space).finish_non_exhaustive()
    }
}

/// The first line of a document of events. Each event is a line behind it.
#[derive(Serialize, Deserialize)]
struct Line {
    schema_version: u32,
    /// The ordinal of the first event.
    first: u64,
    count: u64,
}

/// Events that are stored together.
struct Chunk {
    last: u64,
    bytes: Vec<u8>,
}

/// The key of the document whose last event has this ordinal.
fn key_of(last: u64) -> String {
    format!("{last:016x}")
}

impl<E> SessionLog<E> {
    /// The session log of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several independent logs. The name and a tenant have at most 470 bytes together, else
    /// every call fails with [`runlog::Error::InvalidId`].
    pub fn named(log: &RunLog, name: &str) -> Self {
        Self { space: Space::new(log, NAMESPACE, name), event: PhantomData }
    }

    /// The same for calls that do not wait for the disk themselves.
    pub(super) fn put_off(&self, later: Later) -> Self {
        Self { space: self.space.put_off(later), event: PhantomData }
    }

    /// The log of the engine, for everything else.
    pub fn log(&self) -> &RunLog {
        &self.space.log
    }

    /// Ids of threads of a tenant that have a log, in their order, behind `after`.
    ///
    /// # Errors
    /// [`runlog::Error::InvalidId`] if the tenant is too long.
    pub fn threads(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, CheckpointError> {
        Ok(self.space.threads(tenant, after, limit)?)
    }

    /// Archives the events up to and including an ordinal: readers never see them again, at any
    /// cursor. Their space is freed once all events in the same document are archived too: those
    /// that were appended with them and, of small ones, up to 63 others. Returns how many events it
    /// archived. Ordinals that were not assigned yet, or were archived before, do not count.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::NewerSchema`],
    /// [`runlog::Error::DiskFull`].
    pub fn archive_before(&self, key: &ThreadKey, watermark: u64) -> Result<u64, CheckpointError> {
        loop {
            let Some(thread) = self.space.thread(key)? else {
                self.space.settle()?;
                return Ok(0);
            };
            let mut head = thread.head;
            head.archived = watermark.min(head.last);
            if head.archived <= thread.head.archived {
                // An earlier attempt may have been interrupted.
                self.delete_archived(&thread, thread.head.archived)?;
                self.space.settle()?;
                return Ok(0);
            }
            let write = self.space.head_write(key, &head)?;
            let mut batch = self.space.begin(&thread, &write);
            if let Written::Yes(_) = self.space.commit_deletion(&mut batch)? {
                self.delete_archived(&thread, head.archived)?;
                self.space.settle()?;
                return Ok(head.archived - thread.head.archived);
            }
        }
    }

    /// Deletes documents whose events are all archived, also those that an earlier call left
    /// because of a crash.
    fn delete_archived(&self, thread: &Thread, archived: u64) -> Result<()> {
        let (mut after, last) = (None::<String>, key_of(archived));
        loop {
            let page = self.space.log.docs().list(&thread.documents, "", after.as_deref(), PAGE)?;
            let keys: Vec<String> = page.documents.into_iter().map(|found| found.key).collect();
            let count = keys.iter().take_while(|key| **key <= last).count();
            let Some((old, _)) = keys.split_at_checked(count).filter(|_| count > 0) else {
                return Ok(());
            };
            in_steps(old, PAGE, |some| {
                let mut batch = runlog::Batch::new();
                for key in some {
                    batch.delete(&thread.documents, key);
                }
                self.space.commit_deletion(&mut batch).map(drop)
            })?;
            after = old.last().cloned();
        }
    }

    /// Deletes the log of a thread atomically. Returns whether there was one. Later appends start
    /// with ordinal 1.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::NewerSchema`]; [`CheckpointError::Damaged`] if the documents of the
    /// thread are unknown.
    pub fn delete_thread(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let deleted = self.space.delete(key)?;
        self.space.sweep()?;
        self.space.settle()?;
        Ok(deleted)
    }
}

impl<E: Serialize + DeserializeOwned> SessionLog<E> {
    /// Appends all events or none, and returns the highest ordinal of the thread. For an empty
    /// slice it writes nothing.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`runlog::Error::Json`] for an event that cannot be written as JSON, or not be read back;
    /// [`runlog::Error::TooLarge`], [`runlog::Error::InvalidId`], [`runlog::Error::DiskFull`].
    pub fn append(&self, key: &ThreadKey, events: &[E]) -> Result<u64, CheckpointError> {
        self.append_lines(key, &lines_of(events)?)
    }

    /// Appends events as [`lines_of`] returns them.
    pub(super) fn append_lines(
        &self,
        key: &ThreadKey,
        lines: &[Vec<u8>],
    ) -> Result<u64, CheckpointError> {
        if lines.is_empty() {
            let last = self.space.thread(key)?.map_or(0, |thread| thread.head.last);
            self.space.settle()?;
            return Ok(last);
        }
        loop {
            let thread = self.space.thread_or_new(key)?;
            let mut chunks = chunks(lines, thread.head.last)?;
            let Some(last) = chunks.last().map(|chunk| chunk.last) else { return Ok(0) };
            let mut head = thread.head;
            head.last = last;
            let mut old = Vec::new();
            if last - head.packed >= TOGETHER {
                head.packed = last;
                if let Some((whole, keys)) = self.put_together(&thread, &chunks)? {
                    (chunks, old) = (vec![whole], keys);
                }
            }
            let write = self.space.head_write(key, &head)?;
            let keys: Vec<String> = chunks.iter().map(|chunk| key_of(chunk.last)).collect();
            let mut batch = self.space.begin(&thread, &write);
            for (key, chunk) in keys.iter().zip(&chunks) {
                batch.put(&thread.documents, key, NewRecord::new(&chunk.bytes).kind("events"));
            }
            for key in &old {
                batch.delete(&thread.documents, key);
            }
            if let Written::Yes(_) = self.space.commit(&mut batch)? {
                self.space.settle()?;
                return Ok(last);
            }
        }
    }

    /// The events that are not merged yet and the new ones, as one document, and the keys of the
    /// documents that it replaces; `None` if they are too long, too many, or cannot be read.
    fn put_together(&self, thread: &Thread, new: &[Chunk]) -> Result<Option<(Chunk, Vec<String>)>> {
        let (log, namespace) = (&self.space.log, &thread.documents);
        let from = key_of(thread.head.packed.max(thread.head.archived));
        let page = log.docs().list(namespace, "", Some(&from), PAGE)?;
        let old = page.documents.iter().map(|document| document.bytes);
        let len: u64 = old.chain(new.iter().map(|chunk| chunk.bytes.len() as u64)).sum();
        if page.next.is_some() || page.documents.is_empty() || len > TOGETHER_LEN {
            return Ok(None);
        }
        let (mut line, mut lines) = (None, Vec::new());
        for listed in &page.documents {
            let document = match log.docs().get(namespace, &listed.key) {
                Ok(Some(document)) => document,
                // Readers report the damage.
                Err(error) if error.is_corruption() => return Ok(None),
                missing => return missing.map(|_| None),
            };
            if !join(&mut line, &mut lines, &listed.key, document.payload()) {
                return Ok(None);
            }
        }
        for chunk in new {
            if !join(&mut line, &mut lines, &key_of(chunk.last), &chunk.bytes) {
                return Ok(None);
            }
        }
        let Some(line) = line else { return Ok(None) };
        let mut bytes = json(&line)?;
        bytes.append(&mut lines);
        let keys = page.documents.into_iter().map(|document| document.key).collect();
        Ok(Some((Chunk { last: line.first + line.count - 1, bytes }, keys)))
    }

    /// The events with an ordinal above the cursor that are not archived, in their order.
    ///
    /// # Errors
    /// [`CheckpointError::OtherShape`] if one is not an `E`, [`CheckpointError::Damaged`] if one is
    /// missing, [`CheckpointError::NewerSchema`].
    pub fn load_since(&self, key: &ThreadKey, cursor: u64) -> Result<Vec<E>, CheckpointError> {
        let numbered = self.load_numbered_since(key, cursor)?;
        Ok(numbered.into_iter().map(|(_, event)| event).collect())
    }

    /// As [`SessionLog::load_since`], each event with its ordinal.
    ///
    /// # Errors
    /// As [`SessionLog::load_since`].
    pub fn load_numbered_since(
        &self,
        key: &ThreadKey,
        cursor: u64,
    ) -> Result<Vec<(u64, E)>, CheckpointError> {
        let found = self.space.read(key, |thread| self.load(thread, cursor))?;
        Ok(found.unwrap_or_default())
    }

    fn load(&self, thread: &Thread, cursor: u64) -> Result<Vec<(u64, E)>, CheckpointError> {
        let (namespace, last) = (&thread.documents, thread.head.last);
        let mut due = cursor.max(thread.head.archived).saturating_add(1);
        let (mut events, mut after) = (Vec::new(), key_of(due - 1));
        while due <= last {
            let page = self.space.log.docs().list(namespace, "", Some(&after), PAGE)?;
            let missing = |due| CheckpointError::damaged(namespace, &key_of(due), Defect::Missing);
            if page.documents.is_empty() {
                return Err(missing(due));
            }
            for document in page.documents {
                // What was appended since the head was read.
                if due > last {
                    break;
                }
                let key = document.key;
                let Some(found) = self.space.log.docs().get(namespace, &key)? else {
                    return Err(missing(due));
                };
                due = read_chunk(found.payload(), (namespace, &key), due, &mut events)?;
                after = key;
            }
        }
        Ok(events)
    }
}

/// Events as they are stored, a line each.
pub(super) fn lines_of<E: Serialize + DeserializeOwned>(events: &[E]) -> Result<Vec<Vec<u8>>> {
    events.iter().map(one_line).collect()
}

/// An event as a line of JSON. Types can write JSON with line breaks, which are white space: within
/// texts they are escaped.
fn one_line<E: Serialize + DeserializeOwned>(event: &E) -> Result<Vec<u8>> {
    let mut line = readable::<E>(event)?;
    line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
    Ok(line)
}

/// Events as one document; the first follows the ordinal `last`.
fn chunks(lines: &[Vec<u8>], last: u64) -> Result<Vec<Chunk>> {
    let (mut chunks, mut rest, mut last) = (Vec::new(), lines, last);
    while !rest.is_empty() {
        let mut len = 0;
        let fitting = rest.iter().take_while(|line| {
            len += line.len() + 1;
            len <= DOCUMENT
        });
        let count = fitting.count().max(1);
        let (some, behind) = rest.split_at(count);
        let (first, count) = (last + 1, count as u64);
        let mut bytes = json(&Line { schema_version: SCHEMA_VERSION, first, count })?;
        for line in some {
            bytes.push(b'\n');
            bytes.extend_from_slice(line);
        }
        last += count;
        chunks.push(Chunk { last, bytes });
        rest = behind;
    }
    Ok(chunks)
}

/// Adds the events of a document to the others. Returns whether it is whole, and the next ordinal.
fn join(all: &mut Option<Line>, lines: &mut Vec<u8>, key: &str, bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (head, rest) = bytes.split_at(end);
    let Ok(line) = read_json::<Line>(head, "", key) else { return false };
    let behind = line.first.checked_add(line.count);
    let last = behind.and_then(|behind| behind.checked_sub(1));
    let count = rest.split(|byte| *byte == b'\n').count() as u64 - 1;
    let is_whole = line.count == count && last.is_some_and(|last| key_of(last) == key);
    match all {
        _ if !is_whole || count == 0 => return false,
        Some(all) if all.first + all.count == line.first => all.count += count,
        Some(_) => return false,
        None => *all = Some(line),
    }
    lines.extend_from_slice(rest);
    true
}

/// Reads the events of a document from the expected ordinal on; returns the next expected one.
fn read_chunk<E: DeserializeOwned>(
    bytes: &[u8],
    (namespace, key): (&str, &str),
    due: u64,
    events: &mut Vec<(u64, E)>,
) -> Result<u64, CheckpointError> {
    let damaged = |defect| CheckpointError::damaged(namespace, key, defect);
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let line: Line = read_json(lines.next().unwrap_or_default(), namespace, key)?;
    let last = line.first.checked_add(line.count).and_then(|behind| behind.checked_sub(1));
    if last.is_none_or(|last| line.count == 0 || key_of(last) != key) {
        return Err(damaged(Defect::Foreign));
    }
    if line.first > due {
        // The events in front are missing, perhaps because they were archived meanwhile.
        return Err(damaged(Defect::Missing));
    }
    let mut next = line.first;
    for (place, line) in (2..).zip(lines) {
        if next >= due {
            let event = serde_json::from_slice(line).map_err(|error| {
                let (namespace, key) = (namespace.to_owned(), key.to_owned());
                let column = error.column();
                CheckpointError::OtherShape { namespace, key, line: place, column }
            })?;
            events.push((next, event));
        }
        next += 1;
    }
    if Some(next) != last.map(|last| last + 1) {
        return Err(damaged(Defect::Shape));
    }
    Ok(next)
}
