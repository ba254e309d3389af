//! The key-value interface of a store, and batches.

use core::fmt;

use crate::engine::api::read_log::ReadLog;
use crate::engine::api::run_log::RunLog;
use crate::engine::read::documents::{Document, DocumentPage};
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::pages::Erased;
use crate::engine::write::batch::{Batch, Committed, Expected};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::types::{Durability, Version};

/// The documents of a store: values under keys, in namespaces. [`RunLog::docs`] returns this value,
/// and [`Reader::docs`](crate::Reader::docs) one that only reads.
///
/// Namespaces and keys are any text of 1 to 512 bytes, and are separate from agents and runs.
/// Retention policies do not apply to documents.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-docs-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::NewRecord;
/// let log = runlog::Options::new().open(&path)?;
/// log.docs().put("sessions", "s-1", &NewRecord::json(b"{\"turn\":1}"))?;
/// log.docs().put("sessions", "s-1", &NewRecord::json(b"{\"turn\":2}"))?;
/// let session = log.docs().get("sessions", "s-1")?.expect("it was put");
/// assert_eq!(session.payload(), b"{\"turn\":2}");
/// assert!(log.docs().delete("sessions", "s-1")?);
/// assert!(log.docs().get("sessions", "s-1")?.is_none());
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
pub struct Documents<'l, L = RunLog> {
    pub(crate) log: &'l L,
}

impl<L> Clone for Documents<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Documents<'_, L> {}

impl<L: fmt::Debug> fmt::Debug for Documents<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("log", self.log).finish()
    }
}

impl RunLog {
    /// The documents of the store.
    pub fn docs(&self) -> Documents<'_> {
        Documents { log: self }
    }

    /// Applies a [`Batch`]: all of its writes, or none.
    ///
    /// # Durability
    /// The highest level that one of the writes asks for.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a document does not have the expected version, [`Error::RunNotFound`]
    /// or [`Error::RunEnded`] if a record cannot be appended, [`Error::InvalidArgument`] if there
    /// is no write or if two writes name the same document, [`Error::InvalidId`],
    /// [`Error::TooLarge`], [`Error::DiskFull`]. After each of these nothing was written.
    pub fn commit(&self, batch: &Batch<'_>) -> Result<Committed> {
        self.work(|engine| engine.retainer.commit(batch))
    }
}

impl Documents<'_> {
    /// Writes a document: sets the value under a key of a namespace, and replaces an older value.
    /// The older version is dead at once; compaction frees its space.
    ///
    /// # Durability
    /// [`crate::Durability::Process`] unless the value asks for more. After any crash the document
    /// has either the old or the new value, never a mix.
    ///
    /// # Errors
    /// [`Error::InvalidId`], [`Error::TooLarge`], [`Error::DiskFull`].
    pub fn put(&self, namespace: &str, key: &str, value: &NewRecord<'_>) -> Result<Version> {
        self.put_if(namespace, key, value, Expected::Anything)
    }

    /// Writes a document if its current version is the expected one: an atomic compare-and-set.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`]; the level of the value for [`Expected::Anything`].
    ///
    /// # Errors
    /// Those of [`Documents::put`]; [`Error::Conflict`] with the current version.
    pub fn put_if(
        &self,
        namespace: &str,
        key: &str,
        value: &NewRecord<'_>,
        expected: Expected,
    ) -> Result<Version> {
        let mut batch = Batch::new();
        batch.put_if(namespace, key, *value, expected);
        let committed = self.log.commit(&batch)?;
        Ok(committed.versions.first().copied().flatten().unwrap_or_default())
    }

    /// Deletes a document, at [`crate::Durability::Disk`]. Returns whether it existed.
    ///
    /// # Errors
    /// [`Error::InvalidId`], [`Error::DiskFull`].
    pub fn delete(&self, namespace: &str, key: &str) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete(namespace, key).durability(Durability::Disk);
        let committed = self.log.commit(&batch)?;
        Ok(committed.versions.iter().any(Option::is_some))
    }

    /// Deletes a document, and copies its neighbours to other extents, until the file contains no
    /// byte of any value that the document ever had: not of older versions, not of failed writes,
    /// and not in free extents. If the document does not exist, the remains of its older values are
    /// erased. Its namespace and key may remain where they are stored apart from the values.
    ///
    /// It copies the segments that had versions of the document, and takes as long as that. Extents
    /// that still have readers keep their bytes until the readers drop them:
    /// [`Erased::pinned_extents`] counts these extents, and the next call of [`RunLog::reclaim`]
    /// frees them. A value that another call writes meanwhile is kept.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-unput-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::NewRecord;
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// log.docs().put("people", "7", &NewRecord::new(b"born in 1970"))?;
    /// log.docs().put("people", "7", &NewRecord::new(b"moved to Rome"))?;
    /// let erased = log.docs().erase("people", "7")?;
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
    /// Those of [`Documents::delete`]; [`Error::Corrupt`] if a segment with versions of the
    /// document is damaged, since a copy would hide what is missing: the document is deleted then,
    /// and bytes remain only in the segment that the error names. [`Error::Io`] if one cannot be
    /// read, and [`Error::Closed`] if the store is closed meanwhile. After any error, call it again
    /// to continue. In a store with a quarantined segment it returns [`Error::Corrupt`] and deletes
    /// nothing.
    pub fn erase(&self, namespace: &str, key: &str) -> Result<Erased> {
        let erased = self.log.work(|engine| engine.retainer.erase_document(namespace, key));
        let (bytes, pinned_extents) = erased?;
        Ok(Erased { bytes, pinned_extents })
    }
}

impl<L: ReadLog> Documents<'_, L> {
    /// The current value of a document; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidId`]; [`Error::Corrupt`] if the current version is damaged. An older version
    /// is never returned in its place.
    pub fn get(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
        self.log.document(namespace, key)
    }

    /// The current version of a document, without reading the value; `None` if it does not exist.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-vof-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::NewRecord;
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// assert_eq!(log.docs().version_of("plans", "tea")?, None);
    /// let written = log.docs().put("plans", "tea", &NewRecord::new(b"boil water"))?;
    /// assert_eq!(log.docs().version_of("plans", "tea")?, Some(written));
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidId`].
    pub fn version_of(&self, namespace: &str, key: &str) -> Result<Option<Version>> {
        self.log.document_version(namespace, key)
    }

    /// A page of at most `limit` documents of a namespace whose keys begin with `prefix`, sorted by
    /// key, after the key `after`. It does not read their payloads.
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
        self.log.list_documents(namespace, prefix, after, limit)
    }
}
