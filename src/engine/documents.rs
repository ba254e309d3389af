//! Reading documents: the key-value face of the store.
//!
//! A document is found by namespace and key: memory first, then the catalog, as with runs. What is
//! read is its version as of the moment of the call; the bytes stay as they are while somebody
//! holds them, whatever is written meanwhile.

use core::fmt;
use core::ops::Bound;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::{Batch, Committed, Expected, document_ids};
use super::core::Core;
use super::draft::NewRecord;
use super::handle::RunLog;
use super::open_trace::parts_now;
use super::pages::Erased;
use super::query::Moment;
use super::shared::Engine;
use super::trace::Trace;
use super::values::Record;
use super::walk::Opened;
use crate::error::{Error, Result};
use crate::index::RunRow;
use crate::types::{AgentId, ContentType, Durability, RunId, RunNo, Timestamp, Version};

/// A document as it was stored.
#[derive(Clone)]
pub struct Document {
    version: Version,
    record: Record,
}

impl Document {
    /// Its version, to write it back only if nobody else did.
    pub fn version(&self) -> Version {
        self.version
    }

    /// When it was written.
    pub fn timestamp(&self) -> Timestamp {
        self.record.timestamp()
    }

    /// The kind that the caller gave it, if any.
    pub fn kind(&self) -> Option<&str> {
        self.record.kind()
    }

    /// What the payload is.
    pub fn content_type(&self) -> ContentType {
        self.record.content_type()
    }

    /// The bytes exactly as they were written.
    pub fn payload(&self) -> &[u8] {
        self.record.payload()
    }

    /// The bytes, to keep without copying.
    pub fn into_payload(self) -> super::payload::Payload {
        self.record.into_payload()
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] when it is not JSON of that shape; the bytes stay readable.
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        self.record.json()
    }
}

impl fmt::Debug for Document {
    /// Shows the payload's length only: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("version", &self.version)
            .field("content_type", &self.content_type())
            .field("len", &self.payload().len())
            .finish_non_exhaustive()
    }
}

/// What a list says of a document, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DocumentSummary {
    /// Its key.
    pub key: String,
    /// Its version.
    pub version: Version,
    /// When it was written.
    pub at: Timestamp,
    /// The bytes of its payload.
    pub bytes: u64,
}

/// A page of a list of documents, by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentPage {
    /// The documents.
    pub documents: Vec<DocumentSummary>,
    /// The key behind which the next page starts; `None` behind the last page.
    pub next: Option<String>,
}

/// The key-value face.
impl RunLog {
    /// Writes a document: `value` under a key of a namespace, in the place of what was there. Old
    /// versions are dead at once, and compaction gives their space back.
    ///
    /// Namespaces and keys are any text of 1 to 512 bytes, and have nothing to do with agents and
    /// runs. No policy of retention touches a document.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-put-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::NewRecord;
    /// let log = runlog::Options::new().open(&path)?;
    /// log.put("sessions", "s-1", &NewRecord::json(b"{\"turn\":1}"))?;
    /// log.put("sessions", "s-1", &NewRecord::json(b"{\"turn\":2}"))?;
    /// let session = log.get("sessions", "s-1")?.expect("it was put");
    /// assert_eq!(session.payload(), b"{\"turn\":2}");
    /// assert!(log.delete("sessions", "s-1")?);
    /// assert!(log.get("sessions", "s-1")?.is_none());
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Durability
    /// [`crate::Durability::Process`] unless the value says otherwise. Whatever happens, the
    /// document is afterwards as it was before, or as it was written.
    ///
    /// # Errors
    /// [`Error::InvalidId`], [`Error::TooLarge`], [`Error::DiskFull`].
    pub fn put(&self, namespace: &str, key: &str, value: &NewRecord<'_>) -> Result<Version> {
        self.put_if(namespace, key, value, Expected::Anything)
    }

    /// Writes a document if it is as expected: compare and set, atomically.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`], unless nothing is expected.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is not as expected, with the version that it has; and as
    /// [`RunLog::put`].
    pub fn put_if(
        &self,
        namespace: &str,
        key: &str,
        value: &NewRecord<'_>,
        expected: Expected,
    ) -> Result<Version> {
        let mut batch = Batch::new();
        batch.put_if(namespace, key, *value, expected);
        let committed = self.engine().commit_batch(&batch)?;
        Ok(committed.versions.first().copied().flatten().unwrap_or_default())
    }

    /// Writes several documents of a namespace, all or none of them.
    ///
    /// # Errors
    /// As [`RunLog::put`]; [`Error::InvalidArgument`] if there are none, or a key comes twice.
    pub fn put_many(
        &self,
        namespace: &str,
        documents: &[(&str, NewRecord<'_>)],
    ) -> Result<Committed> {
        let mut batch = Batch::new();
        for (key, value) in documents {
            batch.put(namespace, key, *value);
        }
        self.engine().commit_batch(&batch)
    }

    /// A document, as of now.
    ///
    /// # Errors
    /// [`Error::InvalidId`], and [`Error::Corrupt`] if it is damaged: an older version is never
    /// given in its place.
    pub fn get(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let core = self.engine().open_core()?;
        let row = self.engine().current_row(&core, &namespace, &key)?;
        let Some(run_no) = row.map(|row| row.run_no) else { return Ok(None) };
        let parts = parts_now(core, run_no)?;
        let opened = Opened { agent: namespace, run: key, parts };
        let mut trace = Trace::new(Arc::new(opened), run_no, None);
        let record = trace.next().ok_or(Error::Evicted { run: None })??;
        Ok(Some(Document { version: Version(run_no.0), record }))
    }

    /// The version of a document, if it is there: what [`RunLog::get`] would say, without reading
    /// the value.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-vof-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::NewRecord;
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// assert_eq!(log.version_of("plans", "tea")?, None);
    /// let written = log.put("plans", "tea", &NewRecord::new(b"boil water"))?;
    /// assert_eq!(log.version_of("plans", "tea")?, Some(written));
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidId`].
    pub fn version_of(&self, namespace: &str, key: &str) -> Result<Option<Version>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let core = self.engine().open_core()?;
        let row = self.engine().current_row(&core, &namespace, &key)?;
        Ok(row.map(|row| Version(row.run_no.0)))
    }

    /// Deletes a document, at [`crate::Durability::Disk`]; answers whether it was there.
    ///
    /// # Errors
    /// [`Error::InvalidId`], [`Error::DiskFull`].
    pub fn delete(&self, namespace: &str, key: &str) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete(namespace, key).durability(Durability::Disk);
        let committed = self.engine().commit_batch(&batch)?;
        Ok(committed.versions.iter().any(Option::is_some))
    }

    /// Deletes a document, and rewrites what is stored near it, until no byte of any value that it
    /// ever had is left in the file: not of older versions, nor of writes of it that failed, nor in
    /// free extents. One that is not there any more, or never was, is fine: what is left of it
    /// goes. Its namespace and key may remain where they are stored beside the values.
    ///
    /// Takes as long as copying the segments that had versions of the document. Extents that
    /// somebody still reads keep their bytes until they are let go: [`Erased::pinned_extents`]
    /// counts them, and the next call of [`RunLog::reclaim`] frees them. A value that somebody
    /// writes meanwhile stays.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-unput-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::NewRecord;
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// log.put("people", "7", &NewRecord::new(b"born in 1970"))?;
    /// log.put("people", "7", &NewRecord::new(b"moved to Rome"))?;
    /// let erased = log.erase("people", "7")?;
    /// assert_eq!((erased.bytes, erased.pinned_extents), (13, 0));
    /// let bytes = std::fs::read(&path).expect("the file");
    /// assert!(!bytes.windows(7).any(|part| part == b"born in" || part == b"to Rome"));
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// As [`RunLog::delete`]; [`Error::Corrupt`] when a segment with versions of the document is
    /// damaged, since a copy would hide what is missing: the document is deleted, and bytes remain.
    /// After this and other errors another call goes on.
    pub fn erase(&self, namespace: &str, key: &str) -> Result<Erased> {
        let (bytes, pinned_extents) = self.engine().erase_document(namespace, key)?;
        Ok(Erased { bytes, pinned_extents })
    }

    /// A page of the documents of a namespace whose keys begin with `prefix`, by key, behind the
    /// key `after`. Their payloads are not read.
    ///
    /// # Errors
    /// [`Error::InvalidId`].
    pub fn list(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DocumentPage> {
        // Any key will do: only the namespace is checked.
        let (namespace, _) = document_ids(namespace, "key")?;
        let first = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ if prefix.is_empty() => Bound::Unbounded,
            _ => Bound::Included(prefix),
        };
        let most = limit.saturating_add(1);
        let (moment, mut found) = {
            let core = self.engine().open_core()?;
            (Moment::of(&core), in_memory(&core, namespace.as_str(), prefix, first, most))
        };
        let sealed = moment.listed(
            (None, most),
            |index, from: Option<&(String, Vec<RunNo>)>, wanted| {
                let from = from.map_or(first, |(key, _)| Bound::Excluded(key.as_str()));
                let page = index.documents_page(namespace.as_str(), from, wanted)?;
                let keys = page.chunk_by(|one, two| one.0 == two.0).filter_map(|versions| {
                    let (key, _) = versions.first()?;
                    let numbers = versions.iter().map(|version| version.1).collect();
                    Some((key.clone(), numbers))
                });
                Ok(keys.take_while(|(key, _)| key.starts_with(prefix)).collect())
            },
            |(key, versions)| moment.document(key, versions),
        )?;
        for sealed in sealed {
            let known = found.entry(sealed.key.clone()).or_insert_with(|| sealed.clone());
            if known.version < sealed.version {
                *known = sealed;
            }
        }
        let more = found.len() > limit;
        let documents: Vec<_> = found.into_values().take(limit).collect();
        let next = documents.last().filter(|_| more).map(|last| last.key.clone());
        Ok(DocumentPage { documents, next })
    }

    /// Does everything that a [`Batch`] says, or nothing of it.
    ///
    /// # Durability
    /// The highest level that one of the writes asks for.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a document is not as expected, [`Error::RunNotFound`] and
    /// [`Error::RunEnded`] if a record cannot be appended, [`Error::InvalidArgument`] if there is
    /// no write, or two of one document, [`Error::InvalidId`], [`Error::TooLarge`],
    /// [`Error::DiskFull`]. Nothing was written then.
    pub fn commit(&self, batch: &Batch<'_>) -> Result<Committed> {
        self.engine().commit_batch(batch)
    }
}

impl Engine {
    /// The numbers of all versions of a document that were not evicted, ascending.
    pub(crate) fn version_numbers(
        &self,
        core: &Core,
        namespace: &AgentId,
        key: &RunId,
    ) -> Result<Vec<RunNo>> {
        let ask = |catalog: &dyn crate::index::Catalog| {
            catalog.document_numbers(namespace.as_str(), key.as_str())
        };
        let mut numbers = core.catalog.ask(ask)?;
        numbers.extend_from_slice(core.hot.versions(namespace.as_str(), key.as_str()));
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !core.deleted.contains(number));
        Ok(numbers)
    }

    /// The row of the version of a document that counts.
    pub(crate) fn current_row(
        &self,
        core: &Core,
        namespace: &AgentId,
        key: &RunId,
    ) -> Result<Option<RunRow>> {
        self.current_version(core, &self.version_numbers(core, namespace, key)?)
    }

    /// The row of the version that counts: the last one that was written to its end.
    pub(crate) fn current_version(&self, core: &Core, numbers: &[RunNo]) -> Result<Option<RunRow>> {
        for &run_no in numbers.iter().rev() {
            let row = match core.hot.get(run_no) {
                Some(hot) => hot.row(core.tail.segment.id(), &core.tail.builder),
                None => core.catalog.ask(|catalog| catalog.row(run_no))?,
            };
            if let Some(row) = row.filter(|row| row.records > 0) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

impl Moment {
    /// The document under a key of which the catalog has these versions, by number.
    fn document(&self, key: &str, versions: &[RunNo]) -> Result<Option<DocumentSummary>> {
        for &run_no in versions.iter().rev() {
            if !self.deleted.contains(&run_no)
                && let Some(row) = self.catalog.ask(|catalog| catalog.row(run_no))?
                && row.records > 0
            {
                return Ok(Some(summary(key, &row)));
            }
        }
        Ok(None)
    }
}

/// So many documents of a namespace that are in memory, by key.
fn in_memory(
    core: &Core,
    namespace: &str,
    prefix: &str,
    from: Bound<&str>,
    most: usize,
) -> BTreeMap<String, DocumentSummary> {
    let row =
        |number: &RunNo| core.hot.get(*number)?.row(core.tail.segment.id(), &core.tail.builder);
    let keys = core.hot.documents(namespace, from);
    let current = keys.take_while(|(key, _)| key.starts_with(prefix)).filter_map(|found| {
        let rows = found.1.iter().filter_map(row).filter(|row| row.records > 0);
        let row = rows.max_by_key(|row| row.run_no)?;
        Some((found.0.to_owned(), summary(found.0, &row)))
    });
    current.take(most).collect()
}

fn summary(key: &str, row: &RunRow) -> DocumentSummary {
    let (version, at, bytes) = (Version(row.run_no.0), row.created_at, row.bytes);
    DocumentSummary { key: key.to_owned(), version, at, bytes }
}
