//! Documents: finding the version that counts, reading it, and listing them.

use core::fmt;
use core::ops::Bound;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::list::Moment;
use crate::engine::read::named::{Detail, Slices};
use crate::engine::read::record::Record;
use crate::engine::read::trace::Trace;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::run_slice::{Opened, Part};
use crate::error::{Error, Result};
use crate::index::RunRow;
use crate::types::{AgentId, ContentType, IdKind, InvalidId, RunId, RunNo, Timestamp, Version};

/// A document as it was stored.
#[derive(Clone)]
pub struct Document {
    version: Version,
    record: Record,
}

impl Document {
    /// Its version, to write it back only if it did not change since.
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
    pub fn into_payload(self) -> Payload {
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

impl Reader {
    /// A document, as of now.
    pub(crate) fn document(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let versions = self.versions(&namespace, &key, Detail::Records)?;
        let Some(run_no) = versions.current(&versions.numbers()?)? else { return Ok(None) };
        let parts = versions.parts(run_no)?;
        let opened = Opened { agent: namespace, run: key, parts };
        let mut trace = Trace::new(Arc::new(opened), run_no, None);
        let record = trace.next().ok_or(Error::Evicted { run: None })??;
        Ok(Some(Document { version: Version(run_no.0), record }))
    }

    /// The version of a document, if it is there. Reads no value.
    pub(crate) fn version_of(&self, namespace: &str, key: &str) -> Result<Option<Version>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let versions = self.versions(&namespace, &key, Detail::Name)?;
        Ok(versions.current(&versions.numbers()?)?.map(|run_no| Version(run_no.0)))
    }

    /// A page of documents.
    pub(crate) fn list_documents(
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
            let state = self.open()?;
            (Moment::of(&state), in_memory(&state, namespace.as_str(), prefix, first, most))
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

    /// The versions of a document, as of now.
    fn versions(&self, namespace: &AgentId, key: &RunId, detail: Detail) -> Result<Versions> {
        Ok(Versions::of(&*self.open()?, namespace, key, detail))
    }

    /// The payload bytes of a document, if it is there.
    pub(crate) fn document_bytes(&self, namespace: &AgentId, key: &RunId) -> Result<u64> {
        let versions = self.versions(namespace, key, Detail::Name)?;
        let current = versions.current(&versions.numbers()?)?;
        Ok(match current {
            Some(run_no) => versions.row(run_no)?.map_or(0, |row| row.bytes),
            None => 0,
        })
    }
}

/// The versions of a document as of one moment: taken in one hold of the lock, and asked without it.
pub(crate) struct Versions {
    namespace: AgentId,
    key: RunId,
    catalog: Arc<Catalog>,
    deleted: Arc<HashSet<RunNo>>,
    /// Those in memory, with what is known of each.
    in_memory: Vec<(RunNo, Option<RunRow>, Slices)>,
}

impl Versions {
    pub(crate) fn of(state: &LogState, namespace: &AgentId, key: &RunId, detail: Detail) -> Self {
        let numbers = state.hot.versions(namespace.as_str(), key.as_str()).iter();
        let slices = |run_no| match detail {
            Detail::Records => Slices::of(state, run_no),
            Detail::Name | Detail::Row => Slices::default(),
        };
        let known = |&run_no: &RunNo| (run_no, state.row_in_memory(run_no), slices(run_no));
        Self {
            namespace: namespace.clone(),
            key: key.clone(),
            catalog: Arc::clone(&state.catalog),
            deleted: Arc::clone(&state.deleted),
            in_memory: numbers.map(known).collect(),
        }
    }

    /// The numbers of all versions that were not evicted, ascending.
    pub(crate) fn numbers(&self) -> Result<Vec<RunNo>> {
        let (namespace, key) = (self.namespace.as_str(), self.key.as_str());
        let mut numbers = self.catalog.ask(|catalog| catalog.document_numbers(namespace, key))?;
        numbers.extend(self.in_memory.iter().map(|(run_no, ..)| *run_no));
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !self.deleted.contains(number));
        Ok(numbers)
    }

    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>> {
        match self.in_memory.iter().find(|(number, ..)| *number == run_no) {
            Some((_, row, _)) => Ok(row.clone()),
            None => self.catalog.ask(|catalog| catalog.row(run_no)),
        }
    }

    /// The version that counts: the last one of these that was written to its end.
    pub(crate) fn current(&self, numbers: &[RunNo]) -> Result<Option<RunNo>> {
        for &run_no in numbers.iter().rev() {
            if self.row(run_no)?.is_some_and(|row| row.records > 0) {
                return Ok(Some(run_no));
            }
        }
        Ok(None)
    }

    /// What all segments have of a version.
    fn parts(&self, run_no: RunNo) -> Result<Arc<[Part]>> {
        let spans = self.catalog.run_state(run_no)?.spans;
        match self.in_memory.iter().find(|(number, ..)| *number == run_no) {
            Some((.., slices)) => slices.behind(&self.catalog, run_no, &spans),
            None => self.catalog.parts_of(run_no, &spans),
        }
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
    state: &LogState,
    namespace: &str,
    prefix: &str,
    from: Bound<&str>,
    most: usize,
) -> BTreeMap<String, DocumentSummary> {
    let row = |number: &RunNo| state.row_in_memory(*number);
    let keys = state.hot.documents(namespace, from);
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

/// A namespace and a key, checked.
pub(crate) fn document_ids(namespace: &str, key: &str) -> Result<(AgentId, RunId)> {
    let named = |invalid: InvalidId, kind: IdKind| Error::from(InvalidId { kind, ..invalid });
    let space = AgentId::new(namespace).map_err(|error| named(error, IdKind::Namespace))?;
    let key = RunId::new(key).map_err(|error| named(error, IdKind::Key))?;
    Ok((space, key))
}
