//! Deletes threads, and frees what they have left.
//!
//! Ordering, when documents of a number are deleted:
//! 1. The head is deleted in the batch that marks the number as gone, since a thread without some
//!    of its documents would be damaged.
//! 2. A call that deletes first rewrites the mark of the number, and a call that creates a thread
//!    rewrites it with each of its writes. So a thread that counts as dead never becomes visible.
//! 3. The mark is deleted last, since nothing else refers to the documents.
//!
//! A first checkpoint that takes several batches marks its thread as begun in the first of them,
//! since [`threads`](super::Checkpointer::threads) does not list the thread before the last. The
//! mark is deleted with the last batch, or with the head.

use std::collections::BinaryHeap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::json::{SCHEMA_VERSION, json, read_json};
use super::key::ThreadKey;
use super::space::{Head, PAGE, Space, Thread, Written};
use crate::of_log::OfLogs;
use crate::room::in_steps;
use runlog::{Batch, Document, Expected, NewRecord, Result, Version};

/// The most keys in memory while the documents of a thread are deleted.
const MOST: usize = 1 << 16;

/// The numbers of threads whose first checkpoints are being written now.
static WRITING: OfLogs<String, ()> = OfLogs::new();

/// The mark of a thread that was begun.
#[derive(Serialize, Deserialize)]
struct Begun {
    schema_version: u32,
    thread: ThreadKey,
}

impl Space {
    /// Marks of threads that were deleted.
    fn gone(&self) -> String {
        format!("{}/gone", self.base)
    }

    /// Marks of threads that are being copied.
    pub(super) fn copies(&self) -> String {
        format!("{}/copy", self.base)
    }

    /// Marks of threads whose first checkpoints take several batches.
    pub(super) fn begun(&self) -> String {
        format!("{}/begun", self.base)
    }

    /// The value of the mark of a thread that was begun.
    pub(super) fn begun_mark(thread: &ThreadKey) -> Result<Vec<u8>> {
        json(&Begun { schema_version: SCHEMA_VERSION, thread: thread.clone() })
    }

    /// As long as the caller holds this, the thread does not count as interrupted.
    pub(super) fn writing(&self, thread: &Thread) -> Arc<()> {
        WRITING.get_or(&self.log, thread.documents.clone(), || ())
    }

    /// Deletes a thread atomically. Returns whether it existed: a thread without a complete first
    /// checkpoint does not.
    pub(super) fn delete(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let heads = self.threads_of(key.tenant_id());
        loop {
            let Some(document) = self.log.docs().get(&heads, key.thread_id())? else {
                // An earlier attempt may have deleted it.
                self.settle()?;
                return Ok(false);
            };
            let head: Head = read_json(document.payload(), &heads, key.thread_id())?;
            if self.delete_head(key, &document, head)? {
                return Ok(head.last > 0);
            }
        }
    }

    /// Deletes a head, and marks its number as gone. Returns whether the head was unchanged since
    /// it was read.
    fn delete_head(&self, key: &ThreadKey, document: &Document, head: Head) -> Result<bool> {
        let (heads, gone) = (self.threads_of(key.tenant_id()), self.gone());
        let (begun, number) = (self.begun(), head.number.to_string());
        let mut batch = Batch::new();
        batch.delete_if(&heads, key.thread_id(), Expected::Version(document.version()));
        batch.put(&gone, &number, NewRecord::json(document.payload()));
        if head.last == 0 {
            batch.delete(&begun, &number);
        }
        Ok(matches!(self.commit_deletion(&mut batch)?, Written::Yes(_)))
    }

    /// Deletes the documents of all deleted threads, and of those whose first checkpoint was
    /// interrupted.
    pub(super) fn sweep(&self) -> Result<()> {
        self.sweep_begun()?;
        let gone = self.gone();
        self.each_mark(&gone, |number| self.sweep_number(&gone, number))
    }

    /// Deletes the documents of all unfinished copies. No other call may be copying.
    pub(super) fn sweep_copies(&self) -> Result<()> {
        let copies = self.copies();
        self.each_mark(&copies, |number| self.sweep_number(&copies, number))
    }

    /// Deletes the heads of threads whose first checkpoint was interrupted.
    fn sweep_begun(&self) -> Result<()> {
        let begun = self.begun();
        self.each_mark(&begun, |number| {
            if WRITING.get(&self.log, format!("{}/{number}", self.base)).is_some() {
                return Ok(());
            }
            let Some(mark) = self.log.docs().get(&begun, number)? else { return Ok(()) };
            // A thread that cannot be read does not count as interrupted.
            let Ok(Begun { thread, .. }) = read_json(mark.payload(), &begun, number) else {
                return Ok(());
            };
            let heads = self.threads_of(thread.tenant_id());
            if let Some(document) = self.log.docs().get(&heads, thread.thread_id())? {
                let Ok(head) = read_json::<Head>(document.payload(), &heads, thread.thread_id())
                else {
                    return Ok(());
                };
                if head.number.to_string() == number {
                    if head.last == 0 {
                        self.delete_head(&thread, &document, head)?;
                    }
                    return Ok(());
                }
            }
            let mut batch = Batch::new();
            batch.delete(&begun, number);
            self.commit_deletion(&mut batch).map(drop)
        })
    }

    /// Calls `visit` for every number that has such a mark.
    fn each_mark(&self, marks: &str, mut visit: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let mut after = None::<String>;
        loop {
            let page = self.log.docs().list(marks, "", after.as_deref(), PAGE)?;
            for document in &page.documents {
                // This store did not write anything else there.
                if document.key.parse().is_ok_and(|number: u64| number.to_string() == document.key)
                {
                    visit(&document.key)?;
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    fn sweep_number(&self, marks: &str, number: &str) -> Result<()> {
        let documents = format!("{}/{number}", self.base);
        let Some(mark) = self.log.docs().get(marks, number)? else { return Ok(()) };
        let mut claim = Batch::new();
        let value = NewRecord::json(mark.payload());
        claim.put_if(marks, number, value, Expected::Version(mark.version()));
        if let Written::No = self.commit_deletion(&mut claim)? {
            // Another call does it.
            return Ok(());
        }
        loop {
            let keys = self.oldest(&documents)?;
            if keys.is_empty() {
                let mut last = Batch::new();
                last.delete(marks, number);
                return self.commit_deletion(&mut last).map(drop);
            }
            in_steps(&keys, PAGE, |some| {
                let mut batch = Batch::new();
                for key in some {
                    batch.delete(&documents, key);
                }
                self.commit_deletion(&mut batch).map(drop)
            })?;
        }
    }

    /// The keys of the oldest [`MOST`] documents, in the order of writing, which frees space early.
    fn oldest(&self, documents: &str) -> Result<Vec<String>> {
        let (mut oldest, mut after) = (BinaryHeap::<(Version, String)>::new(), None::<String>);
        loop {
            let page = self.log.docs().list(documents, "", after.as_deref(), PAGE)?;
            for document in page.documents {
                oldest.push((document.version, document.key));
                if oldest.len() > MOST {
                    oldest.pop();
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(oldest.into_sorted_vec().into_iter().map(|(_, key)| key).collect())
    }
}
