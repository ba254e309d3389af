//! Documents: finding the current version, reading it, and listing documents.

use core::fmt;
use core::ops::{Bound, Deref};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::read::named::{Detail, Slices, unlisted};
use crate::engine::read::record::Record;
use crate::engine::read::trace::Trace;
use crate::engine::read::{Moment, Reader};
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::run_slice::Opened;
use crate::engine::state::stored_run::{Name, StoredRun};
use crate::error::{Error, Result};
use crate::format::segments::run_set::RunSet;
use crate::index::RunRow;
use crate::types::{AgentId, IdKind, InvalidId, RunId, RunNo, SegmentId, Timestamp, Version};

/// A document as it was stored: a [`Record`] with a version.
#[derive(Clone)]
pub struct Document {
    version: Version,
    record: Record,
}

impl Document {
    /// Its version, for writing it back only if it has not changed since.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The bytes, to keep without a copy.
    pub fn into_payload(self) -> Payload {
        self.record.into_payload()
    }
}

impl Deref for Document {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl fmt::Debug for Document {
    /// Shows only the length of the payload: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("version", &self.version)
            .field("content_type", &self.content_type())
            .field("len", &self.payload().len())
            .finish_non_exhaustive()
    }
}

/// What a list reports of a document, without reading its value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DocumentSummary {
    /// Its key.
    pub key: String,
    /// Its version.
    pub version: Version,
    /// When it was written.
    pub timestamp: Timestamp,
    /// The bytes of its payload.
    pub bytes: u64,
}

/// A page of a list of documents, sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DocumentPage {
    /// The documents.
    pub documents: Vec<DocumentSummary>,
    /// The key after which the next page starts; `None` if this is the last page.
    pub next: Option<String>,
}

impl Reader {
    /// A document, as of now.
    pub(crate) fn document(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let (moment, in_memory) = {
            let state = self.open()?;
            let in_memory = VersionsInMemory::of(&state, &namespace, &key, Detail::Records)?;
            (Moment::of(&state), in_memory)
        };
        let stored = StoredVersion::all(&moment, (&namespace, &key))?;
        let versions = Versions::new(stored, in_memory, &moment.deleted);
        // While its deleted runs are held, each deletion copies the whole set.
        drop(moment);
        let Some(found) = versions.current() else { return Ok(None) };
        let run_no = found.run_no;
        let parts = found.slices.behind(found.stored.as_ref(), run_no)?;
        let opened = Arc::new(Opened::new(namespace, key, parts));
        let mut trace = Trace::new(opened, run_no, None);
        let record = trace.next().ok_or_else(unlisted)??;
        Ok(Some(Document { version: Version(run_no.0), record }))
    }

    /// The current version of a document, without reading a value; `None` if it does not exist.
    pub(crate) fn version_of(&self, namespace: &str, key: &str) -> Result<Option<Version>> {
        let (namespace, key) = document_ids(namespace, key)?;
        let versions = self.versions(&namespace, &key)?;
        Ok(versions.current().map(|version| Version(version.run_no.0)))
    }

    /// A page of documents.
    pub(crate) fn list_documents(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DocumentPage> {
        // Only the namespace is checked, so any key will do.
        let (namespace, _) = document_ids(namespace, "key")?;
        let first = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ if prefix.is_empty() => Bound::Unbounded,
            _ => Bound::Included(prefix),
        };
        let most = limit.saturating_add(1);
        let (moment, mut found) = {
            let state = self.open()?;
            (Moment::of(&state), in_memory(&state, namespace.as_str(), prefix, first, most)?)
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
            |(key, versions)| moment.document(&key, &versions),
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

    /// The versions of a document as of now.
    pub(crate) fn versions(&self, namespace: &AgentId, key: &RunId) -> Result<Versions> {
        let (moment, in_memory) = {
            let state = self.open()?;
            (Moment::of(&state), VersionsInMemory::of(&state, namespace, key, Detail::Name)?)
        };
        let stored = StoredVersion::all(&moment, (namespace, key))?;
        Ok(Versions::new(stored, in_memory, &moment.deleted))
    }
}

/// A version of a document in the catalog.
pub(crate) struct StoredVersion {
    /// Whether its writing was completed.
    whole: bool,
    /// The bytes of its payload.
    bytes: u64,
    stored: StoredRun,
}

impl StoredVersion {
    /// The versions of a document in the catalog. Called without the lock.
    pub(crate) fn all(moment: &Moment, (namespace, key): (&AgentId, &RunId)) -> Result<Vec<Self>> {
        let found = moment.stored(Name::Document(namespace.as_str(), key.as_str()))?;
        let version = |stored: StoredRun| {
            let row = stored.row()?;
            Ok(Self { whole: is_written(&row), bytes: row.bytes, stored })
        };
        found.into_iter().map(version).collect()
    }
}

/// The versions of a document in memory, with what is known of each.
pub(crate) struct VersionsInMemory(Vec<(RunNo, Option<RunRow>, Slices)>);

impl VersionsInMemory {
    pub(crate) fn of(
        state: &LogState,
        namespace: &AgentId,
        key: &RunId,
        detail: Detail,
    ) -> Result<Self> {
        let slices = |run_no| match detail {
            Detail::Records => Slices::of(state, run_no),
            Detail::Name | Detail::Row => Slices::default(),
        };
        let known = |&run_no: &RunNo| Ok((run_no, state.row_in_memory(run_no)?, slices(run_no)));
        let numbers = state.active.versions(namespace.as_str(), key.as_str());
        Ok(Self(numbers.iter().map(known).collect::<Result<_>>()?))
    }
}

/// The versions of a document as of one moment.
pub(crate) struct Versions {
    /// The versions that were not evicted, by number.
    all: Vec<FoundVersion>,
}

/// A version of a document.
pub(crate) struct FoundVersion {
    pub(crate) run_no: RunNo,
    whole: bool,
    pub(crate) bytes: u64,
    stored: Option<StoredRun>,
    slices: Slices,
}

impl Versions {
    /// For a version in both places, memory is newer than the catalog.
    pub(crate) fn new(
        stored: Vec<StoredVersion>,
        in_memory: VersionsInMemory,
        deleted: &RunSet,
    ) -> Self {
        let mut all = BTreeMap::new();
        for StoredVersion { whole, bytes, stored } in stored {
            let (run_no, stored, slices) = (stored.run_no, Some(stored), Slices::default());
            all.insert(run_no, FoundVersion { run_no, whole, bytes, stored, slices });
        }
        for (run_no, row, slices) in in_memory.0 {
            let (whole, bytes) = row.map_or((false, 0), |row| (is_written(&row), row.bytes));
            let stored = all.remove(&run_no).and_then(|version| version.stored);
            all.insert(run_no, FoundVersion { run_no, whole, bytes, stored, slices });
        }
        all.retain(|run_no, _| !deleted.contains(*run_no));
        Self { all: all.into_values().collect() }
    }

    /// Their numbers, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = RunNo> + '_ {
        self.all.iter().map(|version| version.run_no)
    }

    /// The bytes of their payloads.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.iter().map(|version| version.bytes).fold(0, u64::saturating_add)
    }

    /// The segments in which the catalog knows frames of them.
    pub(crate) fn stored_in(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.all.iter().flat_map(|version| &version.stored).flat_map(StoredRun::segments)
    }

    /// The current version: the last one whose writing was completed.
    pub(crate) fn current(&self) -> Option<&FoundVersion> {
        self.all.iter().rfind(|version| version.whole)
    }
}

impl Moment {
    /// The document under a key. `versions` are its versions in the catalog, by number.
    fn document(&self, key: &str, versions: &[RunNo]) -> Result<Option<DocumentSummary>> {
        for &run_no in versions.iter().rev() {
            if self.deleted.contains(run_no) {
                continue;
            }
            let row = self.catalog.row(run_no)?;
            if is_written(&row) {
                return Ok(Some(summary(key, &row)));
            }
        }
        Ok(None)
    }
}

/// At most `most` documents of a namespace that are in memory, by key.
fn in_memory(
    state: &LogState,
    namespace: &str,
    prefix: &str,
    from: Bound<&str>,
    most: usize,
) -> Result<BTreeMap<String, DocumentSummary>> {
    let mut current = BTreeMap::new();
    for (key, numbers) in state.active.documents(namespace, from) {
        if current.len() == most || !key.starts_with(prefix) {
            break;
        }
        let mut last: Option<RunRow> = None;
        for number in numbers {
            let row = state.row_in_memory(*number)?.filter(is_written);
            if row.as_ref().map(|row| row.run_no) > last.as_ref().map(|last| last.run_no) {
                last = row;
            }
        }
        current.extend(last.map(|row| (key.to_owned(), summary(key, &row))));
    }
    Ok(current)
}

/// Whether the batch that ends a version counts: it has the RECORD.
fn is_written(row: &RunRow) -> bool {
    row.records > 0
}

fn summary(key: &str, row: &RunRow) -> DocumentSummary {
    let (version, timestamp, bytes) = (Version(row.run_no.0), row.created_at, row.bytes);
    DocumentSummary { key: key.to_owned(), version, timestamp, bytes }
}

/// A checked namespace and key.
pub(crate) fn document_ids(namespace: &str, key: &str) -> Result<(AgentId, RunId)> {
    let named = |invalid: InvalidId, kind: IdKind| Error::from(InvalidId { kind, ..invalid });
    let space = AgentId::new(namespace).map_err(|error| named(error, IdKind::Namespace))?;
    let key = RunId::new(key).map_err(|error| named(error, IdKind::Key))?;
    Ok((space, key))
}
