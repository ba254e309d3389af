//! What becomes of whole threads, and of checkpoints that are old: deleting, copying, pruning.

use core::time::Duration;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use super::error::{CheckpointError, Defect};
use super::id::CheckpointId;
use super::key::ThreadKey;
use super::parts::{PREFIX, PartName};
use super::space::{Hidden, PAGE, Thread, Written};
use super::store::Checkpointer;
use super::stored::{Stored, encode, encode_place, id_key, ordinal_of};
use crate::{Document, Durability, NewRecord, Result};

/// Held by the one who copies a thread.
static COPYING: Mutex<()> = Mutex::new(());

/// What a pruning deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// Checkpoints.
    pub checkpoints: usize,
    /// Parts of states that no checkpoint has any more.
    pub parts: usize,
    /// The bytes of these parts.
    pub part_bytes: u64,
}

/// A thread with all of its checkpoints, the newest first, without their states.
struct Inventory {
    thread: Thread,
    checkpoints: Vec<(String, Stored)>,
}

impl<S> Checkpointer<S> {
    /// Deletes checkpoints of a thread: those that are not among the `newest`, and those that are
    /// older than `max_age` by the store's clock. `None` means no limit.
    ///
    /// What stays whatever the limits are: the newest checkpoint, and all ancestors of one that
    /// stays. So a thread in which each checkpoint names the one before it as its parent stays as
    /// it is; the parent is meant for branches. Parts of states go once no checkpoint has them.
    ///
    /// Reads all checkpoints of the thread, without their states. A thread that is not there has
    /// nothing to delete.
    ///
    /// # Durability
    /// Disk. A crash in between leaves a part of what was to go; each checkpoint that is there is
    /// whole.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] and [`CheckpointError::NewerSchema`] if it cannot be told what
    /// a checkpoint needs: then nothing is deleted. What made a write fail; what was deleted before
    /// stays so.
    pub fn prune(
        &self,
        key: &ThreadKey,
        newest: Option<usize>,
        max_age: Option<Duration>,
    ) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        while !self.try_prune(key, newest, max_age, &mut pruned)? {}
        self.space.sweep()?;
        Ok(pruned)
    }

    /// Answers whether nobody has changed the thread meanwhile.
    fn try_prune(
        &self,
        key: &ThreadKey,
        newest: Option<usize>,
        max_age: Option<Duration>,
        pruned: &mut Pruned,
    ) -> Result<bool, CheckpointError> {
        let Some(Inventory { mut thread, checkpoints }) = self.inventory(key)? else {
            return Ok(true);
        };
        let oldest = max_age.map(|age| {
            let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
            self.space.log.environment().clock.now().0.saturating_sub(age)
        });
        let kept = kept(&checkpoints, newest, oldest);
        let stay = |stored: &Stored| kept.contains(&stored.body.id);
        let (mut marked, mut nodes) = (HashSet::new(), HashSet::new());
        for (_, stored) in checkpoints.iter().filter(|(_, stored)| stay(stored)) {
            match self.parts(&thread).mark(&stored.layout, &mut marked, &mut nodes) {
                Err(error) if error.is_missing() && self.has_changed(key, &thread)? => {
                    return Ok(false);
                }
                known => known?,
            }
        }
        let unused = self.unused_parts(&thread, &marked)?;
        let gone: Vec<[String; 2]> = checkpoints
            .into_iter()
            .filter(|(_, stored)| !stay(stored))
            .map(|(at, stored)| [at, id_key(&stored.body.id)])
            .collect();
        for some in gone.chunks(PAGE / 2) {
            let keys = some.iter().flatten().map(String::as_str);
            if !self.delete_documents(key, &mut thread, keys)? {
                return Ok(false);
            }
            pruned.checkpoints += some.len();
        }
        for some in unused.chunks(PAGE) {
            let keys = some.iter().map(|(key, _)| key.as_str());
            if !self.delete_documents(key, &mut thread, keys)? {
                return Ok(false);
            }
            pruned.parts += some.len();
            pruned.part_bytes += some.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        Ok(true)
    }

    /// Deletes documents of a thread, if nobody has changed it. Answers whether.
    fn delete_documents<'k>(
        &self,
        key: &ThreadKey,
        thread: &mut Thread,
        keys: impl Iterator<Item = &'k str>,
    ) -> Result<bool> {
        let head = thread.head;
        let write = self.space.head_write(key, &head)?;
        let mut batch = self.space.begin(thread, &write);
        let namespace = thread.documents.clone();
        for key in keys {
            batch.delete(&namespace, key);
        }
        // On a full disk this is what gives space back.
        match self.space.commit(batch.durability(Durability::Disk).use_reserve())? {
            Written::Yes(versions) => {
                *thread = thread.written(head, &versions);
                Ok(true)
            }
            Written::No => Ok(false),
        }
    }

    /// The keys and sizes of parts that are not marked.
    fn unused_parts(
        &self,
        thread: &Thread,
        marked: &HashSet<PartName>,
    ) -> Result<Vec<(String, u64)>> {
        let marked: HashSet<String> = marked.iter().map(|name| name.key()).collect();
        let (mut unused, mut after) = (Vec::new(), None::<String>);
        loop {
            let log = &self.space.log;
            let page = log.list(&thread.documents, PREFIX, after.as_deref(), PAGE)?;
            let parts = page.documents.into_iter().filter(|part| !marked.contains(&part.key));
            unused.extend(parts.map(|part| (part.key, part.bytes)));
            after = page.next;
            if after.is_none() {
                return Ok(unused);
            }
        }
    }

    /// All checkpoints of a thread as of one moment.
    fn inventory(&self, key: &ThreadKey) -> Result<Option<Inventory>, CheckpointError> {
        self.space.read(key, |thread| {
            let keys = self.newest(thread, usize::MAX)?;
            let checkpoints = keys
                .into_iter()
                .map(|at| self.stored(key, thread, &at).map(|stored| (at, stored)))
                .collect::<Result<_, _>>()?;
            Ok(Inventory { thread: thread.clone(), checkpoints })
        })
    }

    /// Deletes a thread with all of its checkpoints, at once: whatever happens, all of them are
    /// there or none. Answers whether there was such a thread.
    ///
    /// Their space is given back behind that; where a crash comes in between, by the next call of
    /// this, or of [`Checkpointer::prune`], whatever the thread.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::NewerSchema`]; [`CheckpointError::Damaged`] if it cannot be told which
    /// documents the thread has. Damage of its checkpoints is no reason not to delete it.
    pub fn delete_thread(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let deleted = self.space.delete(key)?;
        self.space.sweep()?;
        Ok(deleted)
    }

    /// Copies a thread, as it is now, to a key that has none: checkpoints keep their ids, their
    /// order, their parents and their times. Answers how many there are. The two know nothing of
    /// one another afterwards.
    ///
    /// The copy appears at once, whatever happens; where a crash comes before that, what was
    /// written of it goes with the next call. Of several copies at the same time in a process one
    /// waits for the other.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownThread`], [`CheckpointError::ThreadExists`];
    /// [`CheckpointError::Damaged`] and [`CheckpointError::NewerSchema`] if it cannot be told what
    /// a checkpoint needs.
    pub fn copy_thread(&self, from: &ThreadKey, to: &ThreadKey) -> Result<usize, CheckpointError> {
        // So nobody else makes threads, and what there is of them is left from a crash.
        let _nobody_else = COPYING.lock();
        loop {
            self.space.sweep_copies()?;
            if self.space.thread(to)?.is_some() {
                return Err(CheckpointError::ThreadExists { key: to.clone() });
            }
            let Some(inventory) = self.inventory(from)? else {
                return Err(CheckpointError::UnknownThread { key: from.clone() });
            };
            let Some(hidden) = self.space.hidden()? else { continue };
            let copied = self.fill(hidden, &inventory, to);
            let missing = copied.as_ref().is_err_and(CheckpointError::is_missing);
            let again = missing && self.has_changed(from, &inventory.thread)?;
            match copied {
                Ok(true) => return Ok(inventory.checkpoints.len()),
                Ok(false) => {}
                Err(_) if again => {}
                Err(error) => {
                    self.space.sweep_copies()?;
                    return Err(error);
                }
            }
        }
    }

    /// Writes the documents of a copy, and shows it. Answers whether nobody was in the way.
    fn fill(
        &self,
        mut hidden: Hidden,
        from: &Inventory,
        to: &ThreadKey,
    ) -> Result<bool, CheckpointError> {
        let (mut marked, mut nodes) = (HashSet::new(), HashSet::new());
        for (_, stored) in &from.checkpoints {
            self.parts(&from.thread).mark(&stored.layout, &mut marked, &mut nodes)?;
        }
        let keys: Vec<String> = marked.into_iter().map(PartName::key).collect();
        let source = &from.thread.documents;
        for some in keys.chunks(PAGE) {
            let mut parts: Vec<(String, Document)> = Vec::with_capacity(some.len());
            for key in some {
                let missing = || CheckpointError::damaged(source, key, Defect::Missing);
                let part = self.space.log.get(source, key)?.ok_or_else(missing)?;
                parts.push((key.clone(), part));
            }
            let records: Vec<(&str, NewRecord<'_>)> = parts
                .iter()
                .map(|(key, part)| (key.as_str(), NewRecord::new(part.payload()).kind("part")))
                .collect();
            if !hidden.write(&self.space, &records)? {
                return Ok(false);
            }
        }
        for some in from.checkpoints.chunks(PAGE / 2) {
            let documents = copies(some, to, source)?;
            let records: Vec<(&str, NewRecord<'_>)> = documents
                .iter()
                .map(|(key, kind, bytes)| (key.as_str(), NewRecord::new(bytes).kind(kind)))
                .collect();
            if !hidden.write(&self.space, &records)? {
                return Ok(false);
            }
        }
        Ok(hidden.show(&self.space, to, from.thread.head.last)?)
    }
}

/// Documents: their keys, their kinds, their bytes.
type Documents = Vec<(String, &'static str, Vec<u8>)>;

/// The documents of checkpoints in another thread.
fn copies(
    checkpoints: &[(String, Stored)],
    to: &ThreadKey,
    source: &str,
) -> Result<Documents, CheckpointError> {
    let mut documents = Vec::with_capacity(2 * checkpoints.len());
    for (at, stored) in checkpoints {
        let mut body = stored.body.clone();
        (body.tenant_id, body.thread_id) = (to.tenant_id().clone(), to.thread_id().to_owned());
        let foreign = || CheckpointError::damaged(source, at, Defect::Foreign);
        let place = encode_place(ordinal_of(at).ok_or_else(foreign)?)?;
        documents.push((id_key(&body.id), "id", place));
        documents.push((at.clone(), "checkpoint", encode(&body, &stored.layout, &stored.rest)?));
    }
    Ok(documents)
}

/// The ids of the checkpoints that stay: those within the limits, the newest, and their ancestors.
fn kept(
    checkpoints: &[(String, Stored)],
    newest: Option<usize>,
    oldest: Option<i64>,
) -> HashSet<CheckpointId> {
    let bodies = || checkpoints.iter().map(|(_, stored)| &stored.body);
    let parents: HashMap<CheckpointId, Option<CheckpointId>> =
        bodies().map(|body| (body.id, body.parent_id)).collect();
    let oldest = oldest.map(chrono::DateTime::from_timestamp_nanos);
    let mut kept = HashSet::new();
    for (place, body) in bodies().enumerate() {
        let young = oldest.is_none_or(|oldest| body.timestamp >= oldest);
        let stays = place == 0 || young && newest.is_none_or(|newest| place < newest);
        let mut next = Some(body.id).filter(|_| stays);
        // Ends where it was before, so that parents in a circle are no matter.
        while let Some(id) = next.filter(|id| parents.contains_key(id) && kept.insert(*id)) {
            next = parents.get(&id).copied().flatten();
        }
    }
    kept
}
