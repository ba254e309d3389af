//! Deletes checkpoints of a thread while other calls write to it.
//!
//! **Invariant:** no checkpoint needs a document at the moment at which it is deleted. A batch that
//! deletes is written only if the head of the thread is unchanged since it was read, and all
//! checkpoints up to that head were checked. So a checkpoint that is put meanwhile costs one check,
//! of that checkpoint. A call that puts checks in the same way.

use core::time::Duration;
use std::collections::{HashMap, HashSet};

use super::error::CheckpointError;
use super::id::CheckpointId;
use super::key::ThreadKey;
use super::parts::{Layout, PREFIX, PartName};
use super::retention::{Inventory, Pruned, one_at_a_time};
use super::space::{PAGE, Thread, Written};
use super::store::Checkpointer;
use super::stored::{Stored, checkpoint_key, id_key};
use crate::room::{IsFull, in_steps};
use runlog::Result;

/// A thread of which checkpoints are deleted.
struct Pruning<'a, S> {
    store: &'a Checkpointer<S>,
    key: &'a ThreadKey,
    thread: Thread,
    /// All checkpoints: their parents, and what their states are made of.
    known: HashMap<CheckpointId, (Option<CheckpointId>, Layout)>,
    /// Those that stay.
    kept: HashSet<CheckpointId>,
    /// The parts of their states.
    marked: HashSet<PartName>,
    nodes: HashSet<(u8, PartName)>,
}

/// Documents that are deleted together, unless they are needed.
struct Candidate {
    keys: Vec<String>,
    /// Of the part.
    bytes: u64,
    what: What,
}

enum What {
    Checkpoint(CheckpointId),
    /// `None` for a document that no checkpoint can name.
    Part(Option<PartName>),
}

impl Candidate {
    /// The name of a part that checkpoints can have.
    fn name(&self) -> Option<PartName> {
        match self.what {
            What::Part(name) => name,
            What::Checkpoint(_) => None,
        }
    }
}

impl IsFull for CheckpointError {
    fn is_full(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_disk_full())
    }
}

impl<S> Checkpointer<S> {
    /// Deletes checkpoints of a thread: those that are not among the `newest`, and those that are
    /// older than `max_age` by the store's clock. `None` means no limit.
    ///
    /// Whatever the limits are, the newest checkpoint stays, and so do all ancestors of a
    /// checkpoint that stays. So nothing is deleted from a thread in which each checkpoint names
    /// the one before it as its parent; the parent is meant for branches. Parts of states are
    /// deleted once no checkpoint has them, also those of an interrupted put. Those of an
    /// interrupted first put are deleted by pruning any thread. Checkpoints that are put meanwhile
    /// stay.
    ///
    /// It reads all checkpoints of the thread, without their states. It deletes nothing if there is
    /// no such thread. Other calls can put meanwhile; copies and prunings of the same store wait
    /// for one another.
    ///
    /// # Durability
    /// Disk. A crash in between leaves a part of the checkpoints to delete; each checkpoint that is
    /// there is whole.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] and [`CheckpointError::NewerSchema`] if the needs of a
    /// checkpoint are unknown: then it deletes nothing, or nothing more. The cause of a failed
    /// write; earlier deletions stay.
    pub fn prune(
        &self,
        key: &ThreadKey,
        newest: Option<usize>,
        max_age: Option<Duration>,
    ) -> Result<Pruned, CheckpointError> {
        let _one_at_a_time = one_at_a_time(&self.space.log);
        let mut pruned = Pruned::default();
        while !self.try_prune(key, newest, max_age, &mut pruned)? {}
        self.space.sweep()?;
        self.space.settle()?;
        Ok(pruned)
    }

    /// Returns whether it is done. It is not if the thread was created again meanwhile.
    fn try_prune(
        &self,
        key: &ThreadKey,
        newest: Option<usize>,
        max_age: Option<Duration>,
        pruned: &mut Pruned,
    ) -> Result<bool, CheckpointError> {
        let Some(Inventory { thread, checkpoints }) = self.inventory(key)? else {
            return Ok(true);
        };
        let oldest = max_age.map(|age| {
            let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
            let oldest = self.space.log.now().0.saturating_sub(age);
            chrono::DateTime::from_timestamp_nanos(oldest)
        });
        let stays = |(place, (_, stored)): &(usize, &(String, Stored))| {
            let young = oldest.is_none_or(|oldest| stored.body.timestamp >= oldest);
            *place == 0 || young && newest.is_none_or(|newest| *place < newest)
        };
        let staying = checkpoints.iter().enumerate().filter(stays);
        let staying: Vec<CheckpointId> = staying.map(|(_, (_, stored))| stored.body.id).collect();
        let all: Vec<(CheckpointId, String)> =
            checkpoints.iter().map(|(at, stored)| (stored.body.id, at.clone())).collect();
        let known = checkpoints.into_iter().map(|(_, stored)| parts_of(stored)).collect();
        let mut pruning = Pruning {
            store: self,
            key,
            thread,
            known,
            kept: HashSet::new(),
            marked: HashSet::new(),
            nodes: HashSet::new(),
        };
        for id in staying {
            if !pruning.keep(id)? {
                return Ok(false);
            }
        }
        let mut parts = self.all_parts(&pruning.thread)?;
        parts.retain(|part| !pruning.needs(part));
        let candidates = pruning.in_order(&all, parts);
        let mut is_same = true;
        in_steps(&candidates, PAGE / 2, |some| {
            is_same = is_same && pruning.delete(some, pruned)?;
            Ok::<_, CheckpointError>(())
        })?;
        Ok(is_same)
    }

    /// All parts of states in a thread.
    fn all_parts(&self, thread: &Thread) -> Result<Vec<Candidate>> {
        let (mut parts, mut after) = (Vec::new(), None::<String>);
        loop {
            let log = &self.space.log;
            let page = log.docs().list(&thread.documents, PREFIX, after.as_deref(), PAGE)?;
            parts.extend(page.documents.into_iter().map(|part| Candidate {
                what: What::Part(PartName::of_key(&part.key)),
                bytes: part.bytes,
                keys: vec![part.key],
            }));
            after = page.next;
            if after.is_none() {
                return Ok(parts);
            }
        }
    }
}

fn parts_of(stored: Stored) -> (CheckpointId, (Option<CheckpointId>, Layout)) {
    (stored.body.id, (stored.body.parent_id, stored.layout))
}

impl<S> Pruning<'_, S> {
    fn needs(&self, candidate: &Candidate) -> bool {
        match &candidate.what {
            What::Checkpoint(id) => self.kept.contains(id),
            What::Part(name) => name.is_some_and(|name| self.marked.contains(&name)),
        }
    }

    /// The documents to delete, in order: the parts that no checkpoint has; then the checkpoints,
    /// the newest first, and behind each the parts that no older one has.
    ///
    /// So each checkpoint that is there is whole after any step, and the ancestors that were put
    /// before it are there: one that is put meanwhile may name it as its parent.
    fn in_order(
        &self,
        newest_first: &[(CheckpointId, String)],
        parts: Vec<Candidate>,
    ) -> Vec<Candidate> {
        let mut nodes = self.nodes.clone();
        let (named, mut ordered): (Vec<Candidate>, Vec<Candidate>) =
            parts.into_iter().partition(|part| part.name().is_some());
        let mut named: HashMap<PartName, Candidate> =
            named.into_iter().filter_map(|part| Some((part.name()?, part))).collect();
        let (mut groups, mut is_known) = (Vec::new(), true);
        for (id, at) in newest_first.iter().rev().filter(|(id, _)| !self.kept.contains(id)) {
            let keys = vec![at.clone(), id_key(id)];
            let mut group = vec![Candidate { keys, bytes: 0, what: What::Checkpoint(*id) }];
            let mut own = HashSet::new();
            if let (true, Some((_, layout))) = (is_known, self.known.get(id)) {
                let marked = self.store.parts(&self.thread).mark(layout, &mut own, &mut nodes);
                is_known = marked.is_ok();
            }
            if is_known {
                group.extend(own.iter().filter_map(|name| named.remove(name)));
            }
            groups.push(group);
        }
        // The parts of a damaged checkpoint are unknown. Newer checkpoints may have them too.
        let rest = named.into_values();
        if is_known {
            ordered.extend(rest);
            ordered.extend(groups.into_iter().rev().flatten());
        } else {
            ordered.extend(groups.into_iter().rev().flatten());
            ordered.extend(rest);
        }
        ordered
    }

    /// Keeps a checkpoint with its ancestors. Returns whether all of their parts were there, as
    /// they are unless the thread was created again.
    fn keep(&mut self, id: CheckpointId) -> Result<bool, CheckpointError> {
        let mut next = Some(id);
        // Ends at a checkpoint that was visited before, so parents in a circle do no harm.
        while let Some(id) = next {
            let Some((parent, layout)) = self.known.get(&id) else { break };
            if !self.kept.insert(id) {
                break;
            }
            let parts = self.store.parts(&self.thread);
            match parts.mark(layout, &mut self.marked, &mut self.nodes) {
                Err(error) if error.is_missing() && self.is_another()? => return Ok(false),
                known => known?,
            }
            next = *parent;
        }
        Ok(true)
    }

    /// Whether the thread is no longer the one that was read.
    fn is_another(&self) -> Result<bool, CheckpointError> {
        let now = self.store.space.thread(self.key)?;
        Ok(now.is_none_or(|now| now.head.number != self.thread.head.number))
    }

    /// Deletes those of the candidates that are not needed. Returns whether the thread is still the
    /// same.
    fn delete(
        &mut self,
        candidates: &[Candidate],
        pruned: &mut Pruned,
    ) -> Result<bool, CheckpointError> {
        loop {
            let going: Vec<&Candidate> =
                candidates.iter().filter(|candidate| !self.needs(candidate)).collect();
            if going.is_empty() {
                return Ok(true);
            }
            if self.delete_documents(going.iter().flat_map(|candidate| &candidate.keys))? {
                for candidate in going {
                    if let What::Checkpoint(id) = candidate.what {
                        // One that is put later may name it as its parent nevertheless.
                        self.known.remove(&id);
                    }
                    let is_part = matches!(candidate.what, What::Part(_));
                    pruned.checkpoints += usize::from(!is_part);
                    pruned.parts += usize::from(is_part);
                    pruned.part_bytes += candidate.bytes;
                }
                return Ok(true);
            }
            if !self.catch_up()? {
                return Ok(false);
            }
        }
    }

    /// Deletes documents, unless another call has changed the thread. Returns whether they are
    /// deleted.
    fn delete_documents<'k>(&mut self, keys: impl Iterator<Item = &'k String>) -> Result<bool> {
        let (space, head) = (&self.store.space, self.thread.head);
        let write = space.head_write(self.key, &head)?;
        let mut batch = space.begin(&self.thread, &write);
        for key in keys {
            batch.delete(&self.thread.documents, key);
        }
        match space.commit_deletion(&mut batch)? {
            Written::Yes(versions) => {
                self.thread = self.thread.written(head, &versions);
                Ok(true)
            }
            Written::No => Ok(false),
        }
    }

    /// Keeps what was put since the thread was read. Returns whether it is still the same thread.
    fn catch_up(&mut self) -> Result<bool, CheckpointError> {
        let now = self.store.space.thread(self.key)?;
        let Some(now) = now.filter(|now| now.head.number == self.thread.head.number) else {
            return Ok(false);
        };
        for ordinal in self.thread.head.last.saturating_add(1)..=now.head.last {
            let stored = match self.store.stored(self.key, &now, &checkpoint_key(ordinal)) {
                Err(error) if error.is_missing() && self.is_another()? => return Ok(false),
                stored => stored?,
            };
            let (id, known) = parts_of(stored);
            self.known.insert(id, known);
            if !self.keep(id)? {
                return Ok(false);
            }
        }
        self.thread = now;
        Ok(true)
    }
}
