//! Transactions shared by threads, for engines with one writer. A program with many threads would
//! do the same, since a commit costs as much for many records as for one.
//!
//! A thread that finds the store free commits, including the records of waiting threads. A thread
//! that finds it busy leaves its records in a queue. A thread that commits alone copies nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::Thread;

use super::{Change, New};

/// A store with one writer at a time.
pub(super) trait Store: Send {
    /// Makes all of these changes in one transaction.
    fn commit(&mut self, changes: &[Change<'_>]);
}

#[derive(Debug)]
pub(super) struct Group<S> {
    store: Mutex<S>,
    queue: Mutex<Vec<Waiting>>,
}

/// Records of threads that sleep until they are committed.
#[derive(Debug)]
struct Waiting {
    records: Vec<(u64, u32, &'static str, Vec<u8>)>,
    done: Arc<AtomicBool>,
    thread: Thread,
}

impl<S: Store> Group<S> {
    pub(super) fn new(store: S) -> Self {
        Self { store: Mutex::new(store), queue: Mutex::default() }
    }

    /// Commits its own records, after the thread that has the store now.
    pub(super) fn alone(&self, changes: &[Change<'_>]) {
        self.store.lock().unwrap().commit(changes);
        self.hand_over();
    }

    /// The store, for reading. Not while other threads append: nothing would wake them.
    pub(super) fn store(&self) -> MutexGuard<'_, S> {
        self.store.lock().unwrap()
    }

    pub(super) fn store_mut(&mut self) -> &mut S {
        self.store.get_mut().unwrap()
    }

    pub(super) fn into_store(self) -> S {
        self.store.into_inner().unwrap()
    }

    /// Returns when these records of a run are committed, together with those of waiting threads.
    pub(super) fn append(&self, run: u64, first: u32, records: &[New<'_>]) {
        if let Some(store) = self.try_store() {
            return self.lead(store, &changes(run, first, records));
        }
        let done = Arc::new(AtomicBool::new(false));
        let copy = (first..).zip(records);
        let records = copy.map(|(seq, new)| (run, seq, new.kind, new.payload.to_vec())).collect();
        let thread = std::thread::current();
        let waiting = Waiting { records, done: Arc::clone(&done), thread };
        self.queue.lock().unwrap().push(waiting);
        while !done.load(Ordering::Acquire) {
            match self.try_store() {
                Some(store) => self.lead(store, &[]),
                None => std::thread::park(),
            }
        }
    }

    fn try_store(&self) -> Option<MutexGuard<'_, S>> {
        match self.store.try_lock() {
            Ok(store) => Some(store),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("another thread failed"),
        }
    }

    fn lead(&self, mut store: MutexGuard<'_, S>, own: &[Change<'_>]) {
        let others = std::mem::take(&mut *self.queue.lock().unwrap());
        if others.is_empty() {
            if !own.is_empty() {
                store.commit(own);
            }
        } else {
            let records = others.iter().flat_map(|waiting| &waiting.records);
            let theirs = records.map(|(run, seq, kind, payload)| Change::Record {
                run: *run,
                seq: *seq,
                new: New { kind, payload },
            });
            store.commit(&own.iter().copied().chain(theirs).collect::<Vec<_>>());
        }
        drop(store);
        // Before the others: the next commit starts while they wake.
        self.hand_over();
        for waiting in others {
            waiting.done.store(true, Ordering::Release);
            waiting.thread.unpark();
        }
    }

    /// Wakes one of the threads that came meanwhile: it finds the store free, or another thread has
    /// it and handles the queue.
    fn hand_over(&self) {
        if let Some(next) = self.queue.lock().unwrap().first() {
            next.thread.unpark();
        }
    }
}

fn changes<'a>(run: u64, first: u32, records: &[New<'a>]) -> Vec<Change<'a>> {
    (first..).zip(records).map(|(seq, new)| Change::Record { run, seq, new: *new }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: u64 = 8;
    const APPENDS: u32 = 2_000;

    /// The number of records and of commits.
    #[derive(Default)]
    struct Memory {
        records: Vec<(u64, u32)>,
        commits: usize,
    }

    impl Store for Memory {
        fn commit(&mut self, changes: &[Change<'_>]) {
            assert!(!changes.is_empty());
            self.commits += 1;
            for change in changes {
                if let Change::Record { run, seq, new } = change {
                    assert_eq!(new.payload, [u8::try_from(run + u64::from(*seq) % 100).unwrap()]);
                    self.records.push((*run, *seq));
                }
            }
        }
    }

    #[test]
    fn each_record_is_committed_once_before_its_append_returns() {
        let group = Group::new(Memory::default());
        std::thread::scope(|scope| {
            for run in 0..THREADS {
                let group = &group;
                scope.spawn(move || {
                    for seq in 0..APPENDS {
                        let payload = [u8::try_from(run + u64::from(seq) % 100).unwrap()];
                        group.append(run, seq, &[New { kind: "kind", payload: &payload }]);
                        if seq % 100 == 0 {
                            assert!(group.store().records.contains(&(run, seq)));
                            group.hand_over();
                        }
                    }
                });
            }
        });
        let Memory { records, commits } = group.into_store();
        assert!(commits <= records.len());
        for run in 0..THREADS {
            let of_run = records.iter().filter(|(of, _)| *of == run).map(|(_, seq)| *seq);
            assert!(of_run.eq(0..APPENDS), "the records of run {run} are there, in order");
        }
    }
}
