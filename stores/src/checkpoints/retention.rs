//! Whole threads and old checkpoints: deleting, copying, pruning.

use std::collections::HashSet;

use parking_lot::{Mutex, MutexGuard};

use super::error::{CheckpointError, Defect};
use super::key::ThreadKey;
use super::parts::PartName;
use super::space::{Hidden, PAGE, Thread};
use super::store::Checkpointer;
use super::stored::{Stored, encode, encode_place, id_key, ordinal_of};
use runlog::{Document, NewRecord, Result, RunLog};

/// Held by the call that copies or prunes a thread of a store, so that no other call deletes what
/// it reads. Two stores may share a lock.
static ONE_AT_A_TIME: [Mutex<()>; 32] = [const { Mutex::new(()) }; 32];

/// See [`ONE_AT_A_TIME`].
pub(super) fn one_at_a_time(log: &RunLog) -> MutexGuard<'static, ()> {
    // All clones of a log have one environment.
    let place = core::ptr::from_ref(log.environment()).addr() >> 6;
    ONE_AT_A_TIME[place % ONE_AT_A_TIME.len()].lock()
}

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

/// A thread with all of its checkpoints, newest first, without their states.
pub(super) struct Inventory {
    pub(super) thread: Thread,
    pub(super) checkpoints: Vec<(String, Stored)>,
}

impl<S> Checkpointer<S> {
    /// All checkpoints of a thread as of one moment.
    pub(super) fn inventory(&self, key: &ThreadKey) -> Result<Option<Inventory>, CheckpointError> {
        self.space.read(key, |thread| {
            let keys = self.newest(key, thread, usize::MAX)?;
            let checkpoints = keys
                .into_iter()
                .map(|at| self.stored(key, thread, &at).map(|stored| (at, stored)))
                .collect::<Result<_, _>>()?;
            Ok(Inventory { thread: thread.clone(), checkpoints })
        })
    }

    /// Deletes a thread with all of its checkpoints atomically. Returns whether there was such a
    /// thread.
    ///
    /// Then it frees their space. After a crash in between, the next call of this or of
    /// [`Checkpointer::prune`] does so, for any thread. These two also free what an interrupted
    /// first checkpoint of any thread has left.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::NewerSchema`]; [`CheckpointError::Damaged`] if the documents of the
    /// thread are unknown. A thread with damaged checkpoints can be deleted.
    pub fn delete_thread(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let deleted = self.space.delete(key)?;
        self.space.sweep()?;
        self.space.settle()?;
        Ok(deleted)
    }

    /// Copies a thread, as it is now, to a key without a thread. Checkpoints keep their ids, order,
    /// parents and times. Returns how many there are. The two threads are independent afterwards.
    ///
    /// The copy appears atomically. After a crash before that, the next call deletes what was
    /// written of it. Copies and prunings of the same store wait for one another.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`CheckpointError::UnknownThread`], [`CheckpointError::ThreadExists`];
    /// [`CheckpointError::Damaged`] and [`CheckpointError::NewerSchema`] if the needs of a
    /// checkpoint are unknown.
    pub fn copy_thread(&self, from: &ThreadKey, to: &ThreadKey) -> Result<usize, CheckpointError> {
        // So no other call creates threads, and unfinished ones are left from a crash.
        let _one_at_a_time = one_at_a_time(&self.space.log);
        loop {
            self.space.sweep_copies()?;
            self.space.sweep()?;
            if self.space.thread(to)?.is_some() {
                self.space.settle()?;
                return Err(CheckpointError::ThreadExists { key: to.clone() });
            }
            let inventory = self.inventory(from)?;
            let Some(inventory) = inventory.filter(|found| found.thread.head.last > 0) else {
                self.space.settle()?;
                return Err(CheckpointError::UnknownThread { key: from.clone() });
            };
            let Some(hidden) = self.space.hidden()? else { continue };
            let copied = self.fill(hidden, &inventory, to);
            let missing = copied.as_ref().is_err_and(CheckpointError::is_missing);
            let again = missing && self.has_changed(from, &inventory.thread)?;
            match copied {
                Ok(true) => {
                    self.space.settle()?;
                    return Ok(inventory.checkpoints.len());
                }
                Ok(false) => {}
                Err(_) if again => {}
                Err(error) => {
                    self.space.sweep_copies()?;
                    return Err(error);
                }
            }
        }
    }

    /// Writes the documents of a copy, and makes it visible. Returns whether no other writer
    /// interfered.
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
                let part = self.space.log.docs().get(source, key)?.ok_or_else(missing)?;
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
