//! [`Checkpointer`]: putting and getting checkpoints.

use core::fmt;
use core::marker::PhantomData;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::Checkpoint;
use super::error::{CheckpointError, Defect};
use super::id::CheckpointId;
use super::key::{TenantId, ThreadKey};
use super::parts::{Parts, Plan};
use super::space::{PAGE, Space, Thread, Written, is_batch_too_large};
use super::stored::{
    Body, CHECKPOINTS, Stored, checkpoint_key, decode, decode_place, encode, encode_place, id_key,
};
use crate::objects::readable;
use crate::worker::Later;
use runlog::{NewRecord, Result, RunLog};

/// The prefix of the namespaces of checkpoints. Callers should not use it.
const NAMESPACE: &str = "\0checkpoints/";

/// The checkpoints of threads, with states of one type. Cheap to clone; clones are the same store,
/// and so are all that were made with the same name on the same [`RunLog`], also with another type
/// of state: states are JSON.
///
/// Calls may come from any number of threads at once. They wait for the disk; for async code there
/// is [`AsyncCheckpointer`](super::AsyncCheckpointer). The store is `Send`, `Sync` and `'static`,
/// and its calls take `&self`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-cp-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::checkpoints::{Checkpointer, TenantId, ThreadKey};
///
/// let log = runlog::Options::new().open(&path)?;
/// let store: Checkpointer<Vec<String>> = Checkpointer::new(&log);
/// let key = ThreadKey::new(TenantId::default(), "thread-1")?;
/// let first = store.checkpoint(&key, 1, vec!["boil water".into()], Some("brew".into()))?;
/// store.put(&first)?;
/// let branch = store.update_state(&key, &first.id, vec!["buy a kettle".into()])?;
/// let latest = store.get_latest(&key)?.expect("two were put");
/// assert_eq!((latest.id, latest.parent_id, latest.step), (branch, Some(first.id), 2));
/// # drop(store); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
pub struct Checkpointer<S> {
    pub(super) space: Space,
    state: PhantomData<fn(S) -> S>,
}

impl<S> Clone for Checkpointer<S> {
    fn clone(&self) -> Self {
        Self { space: self.space.clone(), state: PhantomData }
    }
}

impl<S> fmt::Debug for Checkpointer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpointer").field("space", &self.space).finish_non_exhaustive()
    }
}

impl<S> Checkpointer<S> {
    /// The checkpoints of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several independent sets of threads. The name and a tenant have at most 470 bytes
    /// together, else every call fails with [`runlog::Error::InvalidId`].
    pub fn named(log: &RunLog, name: &str) -> Self {
        Self { space: Space::new(log, NAMESPACE, name), state: PhantomData }
    }

    /// The same for calls that do not wait for the disk themselves.
    pub(super) fn put_off(&self, later: Later) -> Self {
        Self { space: self.space.put_off(later), state: PhantomData }
    }

    /// The log of the engine, for everything else.
    pub fn log(&self) -> &RunLog {
        &self.space.log
    }

    /// A new checkpoint, with a fresh id and the time of the store's clock. It is not stored yet.
    ///
    /// # Errors
    /// [`runlog::Error::Io`] if the system gives no random bytes.
    pub fn checkpoint(
        &self,
        key: &ThreadKey,
        step: usize,
        state: S,
        next_node: Option<String>,
    ) -> Result<Checkpoint<S>, CheckpointError> {
        let (id, timestamp) = self.fresh()?;
        Ok(Checkpoint::from_parts(id, key, None, step, state, next_node, timestamp))
    }

    fn fresh(&self) -> Result<(CheckpointId, DateTime<Utc>)> {
        let environment = self.space.log.environment();
        let id = CheckpointId::generate(environment)?;
        Ok((id, DateTime::from_timestamp_nanos(environment.clock.now().0)))
    }

    /// Ids of threads of a tenant that have checkpoints, in their order, behind `after`.
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

    /// The JSON of a state as it is stored, for one that cannot be read as its type.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::NewerSchema`].
    pub fn state_bytes(
        &self,
        key: &ThreadKey,
        id: &CheckpointId,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let found = self.space.read(key, |thread| {
            let Some((at, stored)) = self.find(key, thread, id)? else { return Ok(None) };
            self.parts(thread).state(&stored.layout, &stored.rest, &at).map(Some)
        })?;
        Ok(found.flatten())
    }

    pub(super) fn parts<'a>(&'a self, thread: &'a Thread) -> Parts<'a> {
        Parts { log: &self.space.log, namespace: &thread.documents }
    }

    /// The checkpoint with an ordinal, which must be there.
    pub(super) fn stored(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        at: &str,
    ) -> Result<Stored, CheckpointError> {
        let missing = || CheckpointError::damaged(&thread.documents, at, Defect::Missing);
        let document = self.space.log.docs().get(&thread.documents, at)?.ok_or_else(missing)?;
        decode(&document, key, &thread.documents, at)
    }

    /// The checkpoint with an id, and its key.
    fn find(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        id: &CheckpointId,
    ) -> Result<Option<(String, Stored)>, CheckpointError> {
        let place_key = id_key(id);
        let Some(place) = self.space.log.docs().get(&thread.documents, &place_key)? else {
            return Ok(None);
        };
        let at = checkpoint_key(decode_place(&place, &thread.documents, &place_key)?);
        let stored = self.stored(key, thread, &at)?;
        if stored.body.id != *id {
            return Err(CheckpointError::damaged(&thread.documents, &at, Defect::Foreign));
        }
        Ok(Some((at, stored)))
    }

    /// Writes a checkpoint as the newest of its thread. `body` is called again if another caller
    /// was faster.
    fn write(
        &self,
        key: &ThreadKey,
        state: &[u8],
        body: impl Fn(&Thread) -> Result<Body, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        // Kept from one attempt to the next, so that a sweep never takes the thread for an
        // interrupted one.
        let mut _writing = None;
        loop {
            let thread = self.space.thread_or_new(key)?;
            _writing = (thread.head.last == 0).then(|| self.space.writing(&thread));
            match self.try_write(key, &thread, state, &body) {
                Ok(true) => return Ok(self.space.settle()?),
                Ok(false) => {}
                Err(error) if error.is_missing() && self.has_changed(key, &thread)? => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the checkpoint is there, because no other writer was faster.
    fn try_write(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        state: &[u8],
        body: impl Fn(&Thread) -> Result<Body, CheckpointError>,
    ) -> Result<bool, CheckpointError> {
        let body = body(thread)?;
        if let Some((at, stored)) = self.find_in_old(key, thread, &body.id)? {
            let known = self.parts(thread).state(&stored.layout, &stored.rest, &at)?;
            // An earlier attempt or another caller may have written it, and it may not be durable
            // yet.
            self.space.settle()?;
            if stored.body == body && is_same_json(&known, state) {
                return Ok(true);
            }
            return Err(CheckpointError::Exists { id: body.id });
        }
        let plan = self.parts(thread).plan(state)?;
        self.commit(key, thread, &body, &plan, state)
    }

    /// As [`Self::find`]; a new thread has nothing.
    fn find_in_old(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        id: &CheckpointId,
    ) -> Result<Option<(String, Stored)>, CheckpointError> {
        if thread.is_new() { Ok(None) } else { self.find(key, thread, id) }
    }

    /// Whether another caller has changed the thread since it was read.
    pub(super) fn has_changed(
        &self,
        key: &ThreadKey,
        thread: &Thread,
    ) -> Result<bool, CheckpointError> {
        Ok(self.space.thread(key)?.is_none_or(|now| !now.is_as(thread)))
    }

    /// Writes a checkpoint and its new parts. Returns whether no other writer was faster.
    fn commit(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        body: &Body,
        plan: &Plan,
        state: &[u8],
    ) -> Result<bool, CheckpointError> {
        let (mut head, begun, number) =
            (thread.head, self.space.begun(), thread.head.number.to_string());
        head.last += 1;
        let rest = state.get(plan.rest..).unwrap_or_default();
        let document = encode(body, &plan.layout, rest)?;
        let (at, id, place) =
            (checkpoint_key(head.last), id_key(&body.id), encode_place(head.last)?);
        let write = self.space.head_write(key, &head)?;
        let mut batch = self.space.begin(thread, &write);
        batch.put(&thread.documents, &at, NewRecord::new(&document).kind("checkpoint"));
        batch.put(&thread.documents, &id, NewRecord::json(&place).kind("id"));
        if thread.head.last == 0 && !thread.is_new() {
            batch.delete(&begun, &number);
        }
        for (name, bytes) in &plan.fresh {
            batch.put(&thread.documents, name, NewRecord::new(bytes).kind("part"));
        }
        match self.space.commit(&mut batch) {
            Ok(Written::Yes(_)) => Ok(true),
            Ok(Written::No) => Ok(false),
            Err(error) if is_batch_too_large(&error) && !plan.fresh.is_empty() => {
                self.write_ahead(key, thread.clone(), &plan.fresh)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes new parts, more than fit into one batch. Until a checkpoint has them, the next
    /// [`Checkpointer::prune`] deletes them; if it is the first checkpoint of the thread, the next
    /// one of any thread. Each batch writes the head, so that no other call puts other bytes under
    /// the same names, or deletes them. It stops if another call did so.
    fn write_ahead(
        &self,
        key: &ThreadKey,
        mut thread: Thread,
        fresh: &[(String, Vec<u8>)],
    ) -> Result<()> {
        let (mut rest, mut most) = (fresh, PAGE);
        let (begun, number) = (self.space.begun(), thread.head.number.to_string());
        let mark = Space::begun_mark(key)?;
        while !rest.is_empty() {
            let (some, behind) = rest.split_at(most.min(rest.len()));
            let head = thread.head;
            let write = self.space.head_write(key, &head)?;
            let mut batch = self.space.begin(&thread, &write);
            if thread.is_new() {
                batch.put(&begun, &number, NewRecord::json(&mark));
            }
            for (name, bytes) in some {
                batch.put(&thread.documents, name, NewRecord::new(bytes).kind("part"));
            }
            match self.space.commit(&mut batch) {
                Err(error) if is_batch_too_large(&error) && most > 1 => most /= 2,
                Err(error) => return Err(error),
                Ok(Written::No) => return Ok(()),
                Ok(Written::Yes(versions)) => {
                    thread = thread.written(head, &versions);
                    rest = behind;
                }
            }
        }
        Ok(())
    }
}

impl<S: Serialize + DeserializeOwned> Checkpointer<S> {
    /// Puts a checkpoint as the newest of its thread, whatever its step and time are. Putting the
    /// same one again, with all its fields, changes nothing, so a caller that does not know whether
    /// the put succeeded can repeat it.
    ///
    /// # Durability
    /// Disk. After any crash, the checkpoint is there as a whole or not at all.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] if the thread has another checkpoint with this id;
    /// [`runlog::Error::TooLarge`] for a state of more than 1 GiB; [`runlog::Error::Json`] for a
    /// state that cannot be written as JSON or not be read back: it is nested deeper than 127
    /// levels, or has a number that is infinite or NaN; [`runlog::Error::InvalidId`],
    /// [`runlog::Error::DiskFull`].
    pub fn put(&self, checkpoint: &Checkpoint<S>) -> Result<(), CheckpointError> {
        let (key, body) = (checkpoint.key()?, Body::of(checkpoint));
        let state = readable::<S>(&checkpoint.state)?;
        self.write(&key, &state, |_| Ok(body.clone()))
    }

    /// Branches off a checkpoint of the thread. The new one has this state, the step behind that of
    /// its parent, the next node of its parent, a fresh id, and the time of the store's clock. It
    /// becomes the newest of its thread.
    ///
    /// # Durability
    /// As [`Checkpointer::put`].
    ///
    /// # Errors
    /// [`CheckpointError::UnknownParent`] if this thread of this tenant has no such checkpoint;
    /// else as [`Checkpointer::put`].
    pub fn update_state(
        &self,
        key: &ThreadKey,
        parent: &CheckpointId,
        new_state: S,
    ) -> Result<CheckpointId, CheckpointError> {
        let state = readable::<S>(&new_state)?;
        drop(new_state);
        let (id, timestamp) = self.fresh()?;
        self.write(key, &state, |thread| {
            let found = self.find_in_old(key, thread, parent)?;
            let Some((_, stored)) = found else {
                // The deletion of the parent may not be durable yet.
                self.space.settle()?;
                return Err(CheckpointError::UnknownParent { parent: *parent });
            };
            let (step, parent_id) = (stored.body.step.saturating_add(1), Some(*parent));
            Ok(Body { id, parent_id, step, timestamp, ..stored.body })
        })?;
        Ok(id)
    }

    /// The checkpoint that was put last.
    ///
    /// # Errors
    /// [`CheckpointError::OtherShape`] if its state is not an `S`, [`CheckpointError::Damaged`],
    /// [`CheckpointError::NewerSchema`]. It never returns an older one instead.
    pub fn get_latest(&self, key: &ThreadKey) -> Result<Option<Checkpoint<S>>, CheckpointError> {
        let found = self.space.read(key, |thread| {
            if thread.head.last == 0 {
                return Ok(None);
            }
            self.load(key, thread, &checkpoint_key(thread.head.last)).map(Some)
        })?;
        Ok(found.flatten())
    }

    /// The checkpoint of this thread with this id.
    ///
    /// # Errors
    /// As [`Checkpointer::get_latest`].
    pub fn get_by_id(
        &self,
        key: &ThreadKey,
        id: &CheckpointId,
    ) -> Result<Option<Checkpoint<S>>, CheckpointError> {
        let found = self.space.read(key, |thread| {
            let Some((at, stored)) = self.find(key, thread, id)? else { return Ok(None) };
            self.with_state(thread, &at, stored).map(Some)
        })?;
        Ok(found.flatten())
    }

    /// The checkpoints that were put last, at most `limit`, newest first.
    ///
    /// # Errors
    /// As [`Checkpointer::get_latest`], for any of them.
    pub fn list_history(
        &self,
        key: &ThreadKey,
        limit: usize,
    ) -> Result<Vec<Checkpoint<S>>, CheckpointError> {
        let found = self.space.read(key, |thread| {
            let keys = self.newest(key, thread, limit)?;
            keys.iter().map(|at| self.load(key, thread, at)).collect()
        })?;
        Ok(found.unwrap_or_default())
    }

    fn load(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        at: &str,
    ) -> Result<Checkpoint<S>, CheckpointError> {
        let stored = self.stored(key, thread, at)?;
        self.with_state(thread, at, stored)
    }

    fn with_state(
        &self,
        thread: &Thread,
        at: &str,
        stored: Stored,
    ) -> Result<Checkpoint<S>, CheckpointError> {
        let bytes = self.parts(thread).state(&stored.layout, &stored.rest, at)?;
        let state = serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::shape(&thread.documents, at, &error))?;
        Ok(stored.body.with_state(state))
    }
}

impl<S> Checkpointer<S> {
    /// The keys of the newest checkpoints as of the head of the thread, newest first. Checkpoints
    /// that are put meanwhile are not included. Something is missing if the thread is deleted
    /// meanwhile: a sweep may have taken some of them.
    pub(super) fn newest(
        &self,
        key: &ThreadKey,
        thread: &Thread,
        limit: usize,
    ) -> Result<Vec<String>, CheckpointError> {
        let newer = checkpoint_key(thread.head.last.saturating_add(1));
        let (mut keys, mut after) = (Vec::new(), Some(newer));
        while keys.len() < limit {
            let wanted = PAGE.min(limit - keys.len());
            let log = &self.space.log;
            let page = log.docs().list(&thread.documents, CHECKPOINTS, after.as_deref(), wanted)?;
            keys.extend(page.documents.into_iter().map(|document| document.key));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        // The head goes before the first of them; see `sweep`.
        let now = self.space.thread(key)?;
        if now.is_none_or(|now| now.head.number != thread.head.number) {
            let namespace = self.space.threads_of(key.tenant_id());
            return Err(CheckpointError::damaged(&namespace, key.thread_id(), Defect::Missing));
        }
        Ok(keys)
    }
}

/// Whether two JSON texts are equal, whatever the order of their maps.
fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    let value = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    one == other || value(one).is_some_and(|one| Some(one) == value(other))
}
