//! Watching commits: a watcher gets each session that changed, in the order of the changes.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::snapshot::digest_of;
use crate::worker::wake_all;
use runlog::{Lsn, Version};

/// How many commits are kept for watchers.
const KEPT: usize = 256;

/// A change of a session that survives power loss.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionCommit {
    /// The session.
    pub session: String,
    /// Its new version, larger with each change; `None` if it was deleted.
    pub version: Option<Version>,
    /// The place of the change in the whole log.
    pub lsn: Lsn,
    /// How many commits before this one the watcher missed, because it lagged.
    pub skipped: u64,
}

impl SessionCommit {
    /// The digest of the snapshot after the change; `None` if the session was deleted.
    pub fn digest(&self) -> Option<String> {
        self.version.map(digest_of)
    }
}

/// The list of commits for watchers.
pub(super) struct Hub {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commits: VecDeque<SessionCommit>,
    /// The number of the next commit.
    next: u64,
    /// The watchers that wait, by number, each with one waker, however often it is polled.
    waiting: BTreeMap<u64, Waker>,
    /// How many watchers there were.
    watchers: u64,
    ended: bool,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("next", &self.state.lock().next).finish_non_exhaustive()
    }
}

impl Hub {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default() }
    }

    pub(super) fn tell(&self, session: &str, version: Option<Version>, lsn: Lsn) {
        let session = session.to_owned();
        let mut state = self.state.lock();
        if state.commits.len() == KEPT {
            state.commits.pop_front();
        }
        state.commits.push_back(SessionCommit { session, version, lsn, skipped: 0 });
        state.next += 1;
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        wake_all(waiting.into_values());
    }

    /// No more commits will come.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let waiting = core::mem::take(&mut state.waiting);
        drop(state);
        wake_all(waiting.into_values());
    }

    /// Watches commits from now on.
    pub(super) fn watch(self: &Arc<Self>) -> CommitWatch {
        let mut state = self.state.lock();
        state.watchers += 1;
        CommitWatch { hub: Arc::clone(self), number: state.watchers, next: state.next }
    }
}

/// The commits of a store and of its clones, from the creation of this watch on.
///
/// 256 commits are kept; a watcher that lags more misses the oldest. [`SessionCommit::skipped`] is
/// the number of missed commits.
pub struct CommitWatch {
    hub: Arc<Hub>,
    number: u64,
    /// The number of the commit that it returns next.
    next: u64,
}

impl Drop for CommitWatch {
    fn drop(&mut self) {
        let waker = self.hub.state.lock().waiting.remove(&self.number);
        // Dropping a waker may run any code: not under the lock.
        drop(waker);
    }
}

impl CommitWatch {
    /// The next commit, if there was one.
    pub fn try_next(&mut self) -> Option<SessionCommit> {
        let state = self.hub.state.lock();
        take(&state, &mut self.next)
    }

    /// The next commit, once there is one; `None` once the last handle of the store is dropped and
    /// all commits were returned. Dropping the future loses no commit.
    pub fn next_commit(&mut self) -> NextCommit<'_> {
        NextCommit { watch: self }
    }
}

fn take(state: &State, next: &mut u64) -> Option<SessionCommit> {
    let oldest = state.next - state.commits.len() as u64;
    let skipped = oldest.saturating_sub(*next);
    let place = (*next).max(oldest) - oldest;
    let found = state.commits.get(usize::try_from(place).ok()?)?;
    *next = oldest + place + 1;
    Some(SessionCommit { skipped, ..found.clone() })
}

impl fmt::Debug for CommitWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitWatch").field("next", &self.next).finish_non_exhaustive()
    }
}

/// The next commit; see [`CommitWatch::next_commit`].
#[derive(Debug)]
pub struct NextCommit<'a> {
    watch: &'a mut CommitWatch,
}

impl Future for NextCommit<'_> {
    type Output = Option<SessionCommit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (watch, waker) = (&mut *self.watch, context.waker().clone());
        let mut state = watch.hub.state.lock();
        if let Some(commit) = take(&state, &mut watch.next) {
            return Poll::Ready(Some(commit));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let last = state.waiting.insert(watch.number, waker);
        drop(state);
        drop(last);
        Poll::Pending
    }
}
