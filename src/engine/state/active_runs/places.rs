//! The places of runs in lists: by their status, each in the order of their keys.

use std::collections::BTreeSet;

use crate::index::{Order, RunKey, RunList};
use crate::types::RunStatus;

/// How many statuses there are.
const STATUSES: usize = 5;

/// The places of some runs.
#[derive(Debug, Default)]
pub(crate) struct Places([BTreeSet<RunKey>; STATUSES]);

impl Places {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeSet::is_empty)
    }

    pub(crate) fn insert(&mut self, (status, key): (RunStatus, RunKey)) {
        if let Some(keys) = self.0.get_mut(usize::from(status.code())) {
            keys.insert(key);
        }
    }

    pub(crate) fn remove(&mut self, (status, key): (RunStatus, RunKey)) {
        if let Some(keys) = self.0.get_mut(usize::from(status.code())) {
            keys.remove(&key);
        }
    }

    /// The places of all runs, by status.
    pub(crate) fn all(&self) -> impl Iterator<Item = RunKey> {
        self.0.iter().flatten().copied()
    }

    /// The first places of a list, up to `limit`, of the runs that `is_wanted` accepts.
    pub(crate) fn listed(
        &self,
        list: &RunList<'_>,
        limit: usize,
        is_wanted: impl Fn(&RunKey) -> bool,
    ) -> Vec<RunKey> {
        let mut found = Vec::with_capacity(limit.min(64));
        if list.is_empty() {
            return found;
        }
        let mut lists = 0;
        for status in list.statuses.each() {
            let keys = self.0.get(usize::from(status.code())).filter(|keys| !keys.is_empty());
            let Some(keys) = keys else { continue };
            let mut rest = keys.range(list.keys.0..=list.keys.1);
            let mut next = || match list.order {
                Order::Ascending => rest.next(),
                Order::Descending => rest.next_back(),
            };
            let most = found.len().saturating_add(limit);
            while found.len() < most
                && let Some(key) = next()
            {
                if is_wanted(key) {
                    found.push(*key);
                }
            }
            lists += 1;
        }
        if lists > 1 {
            list.sort(&mut found, |key| *key);
        }
        found.truncate(limit);
        found
    }
}
