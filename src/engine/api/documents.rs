//! The key-value face of a store.

use crate::engine::api::run_log::RunLog;
use crate::engine::read::documents::{Document, DocumentPage};
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::pages::Erased;
use crate::engine::write::batch::{Batch, Committed, Expected};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::types::{Durability, Version};

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
        let committed = self.commit(&batch)?;
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
        self.commit(&batch)
    }

    /// A document, as of now.
    ///
    /// # Errors
    /// [`Error::InvalidId`], and [`Error::Corrupt`] if it is damaged: an older version is never
    /// given in its place.
    pub fn get(&self, namespace: &str, key: &str) -> Result<Option<Document>> {
        self.ask(|reader| reader.document(namespace, key))
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
        self.ask(|reader| reader.version_of(namespace, key))
    }

    /// Deletes a document, at [`crate::Durability::Disk`]; answers whether it was there.
    ///
    /// # Errors
    /// [`Error::InvalidId`], [`Error::DiskFull`].
    pub fn delete(&self, namespace: &str, key: &str) -> Result<bool> {
        let mut batch = Batch::new();
        batch.delete(namespace, key).durability(Durability::Disk);
        let committed = self.commit(&batch)?;
        Ok(committed.versions.iter().any(Option::is_some))
    }

    /// Deletes a document, and rewrites what is stored near it, until no byte of any value that it
    /// ever had is left in the file: not of older versions, nor of writes of it that failed, nor in
    /// free extents. One that is not there any more, or never was, is fine: what is left of it
    /// goes. Its namespace and key may remain where they are stored beside the values.
    ///
    /// Takes as long as copying the segments that had versions of the document. Extents that
    /// still have readers keep their bytes until they are let go: [`Erased::pinned_extents`]
    /// counts them, and the next call of [`RunLog::reclaim`] frees them. A value that is written
    /// meanwhile stays.
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
        let erased = self.work(|engine| engine.retainer.erase_document(namespace, key));
        let (bytes, pinned_extents) = erased?;
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
        self.ask(|reader| reader.list_documents(namespace, prefix, after, limit))
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
        self.work(|engine| engine.retainer.commit(batch))
    }
}
