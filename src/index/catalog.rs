//! The questions that the engine asks about sealed segments. The index answers them; if it is
//! missing, the directories do.

use core::ops::Bound;

use super::row::{RowSummary, RunRow};
use super::tables::fence::IndexError;
use super::tables::key::State;
use crate::error::Damage;
use crate::types::{AgentId, RunNo, RunStatus, Timestamp};

/// The place of a run in lists: when it was created, and its number.
pub(crate) type RunKey = (Timestamp, RunNo);

const FIRST_KEY: RunKey = (Timestamp(i64::MIN), RunNo(0));
const LAST_KEY: RunKey = (Timestamp(i64::MAX), RunNo(u64::MAX));

/// The direction in which a range of keys is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Of runs: the oldest first.
    Ascending,
    /// Of runs: the newest first.
    Descending,
}

/// Some of the statuses that a run can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statuses(u8);

impl Statuses {
    /// All of them.
    pub(crate) const ALL: Self = Self(0x1f);
    /// None of them.
    pub(crate) const NONE: Self = Self(0);

    /// These, and one more.
    pub(crate) fn with(self, status: RunStatus) -> Self {
        Self(self.0 | 1 << status.code())
    }

    /// Whether a status is among them.
    pub(crate) fn has(self, status: RunStatus) -> bool {
        self.0 & 1 << status.code() != 0
    }

    /// Each of them, by code.
    pub(crate) fn each(self) -> impl Iterator<Item = RunStatus> {
        (0..8).filter_map(RunStatus::from_code).filter(move |status| self.has(*status))
    }
}

/// Which runs a list is of, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunList<'a> {
    /// Of one agent only.
    pub(crate) agent: Option<&'a str>,
    /// Of these statuses only.
    pub(crate) statuses: Statuses,
    /// Held ones only, or only others.
    pub(crate) held: Option<bool>,
    /// The smallest key that the list may have, and the largest; the other way round of a list that
    /// has none.
    pub(crate) keys: (RunKey, RunKey),
    /// The order.
    pub(crate) order: Order,
}

impl<'a> RunList<'a> {
    /// All runs, newest first.
    pub(crate) const ALL: Self = Self {
        agent: None,
        statuses: Statuses::ALL,
        held: None,
        keys: (FIRST_KEY, LAST_KEY),
        order: Order::Descending,
    };

    /// The runs of an agent, newest first.
    pub(crate) fn of_agent(agent: &'a str) -> Self {
        Self { agent: Some(agent), ..Self::ALL }
    }

    /// No run can be in the list.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.0 > self.keys.1
    }

    /// A run can come into the list, or leave it, by what happens to it.
    pub(crate) fn is_of_states(&self) -> bool {
        self.statuses != Statuses::ALL || self.held.is_some()
    }

    /// The states that the runs of the list can have.
    pub(super) fn states(&self) -> impl Iterator<Item = State> {
        let held = [false, true].into_iter();
        let held = held.filter(move |held| self.held.is_none_or(|wanted| wanted == *held));
        held.flat_map(|held| self.statuses.each().map(move |status| State { status, held }))
    }

    /// The list asks for no more than an agent and an order, from its beginning on.
    pub(crate) fn is_newest_of(&self) -> Option<&'a str> {
        let begins = self.order == Order::Descending && self.keys.1 == LAST_KEY;
        self.agent.filter(|_| begins && !self.is_of_states())
    }

    /// The part of the list from a time on.
    pub(crate) fn since(mut self, at: Timestamp) -> Self {
        self.keys.0 = self.keys.0.max((at, RunNo(0)));
        self
    }

    /// The part of the list before a time.
    pub(crate) fn until(self, at: Timestamp) -> Self {
        self.below((at, RunNo(0)))
    }

    /// What the list has behind a place in it.
    pub(crate) fn behind(self, key: RunKey) -> Self {
        match self.order {
            Order::Ascending => self.above(key),
            Order::Descending => self.below(key),
        }
    }

    /// What the list has in front of a place in it.
    pub(crate) fn in_front_of(self, key: RunKey) -> Self {
        match self.order {
            Order::Ascending => self.below(key),
            Order::Descending => self.above(key),
        }
    }

    fn above(mut self, (at, run_no): RunKey) -> Self {
        let next = match (run_no.0.checked_add(1), at.0.checked_add(1)) {
            (Some(next), _) => (at, RunNo(next)),
            (None, Some(at)) => (Timestamp(at), RunNo(0)),
            (None, None) => return self.none(),
        };
        self.keys.0 = self.keys.0.max(next);
        self
    }

    fn below(mut self, (at, run_no): RunKey) -> Self {
        let last = match (run_no.0.checked_sub(1), at.0.checked_sub(1)) {
            (Some(last), _) => (at, RunNo(last)),
            (None, Some(at)) => (Timestamp(at), RunNo(u64::MAX)),
            (None, None) => return self.none(),
        };
        self.keys.1 = self.keys.1.min(last);
        self
    }

    fn none(mut self) -> Self {
        self.keys = (LAST_KEY, FIRST_KEY);
        self
    }

    /// Puts keys in the order of the list.
    pub(crate) fn sort<T>(&self, runs: &mut [T], key: impl Fn(&T) -> RunKey) {
        match self.order {
            Order::Ascending => runs.sort_unstable_by_key(key),
            Order::Descending => runs.sort_unstable_by_key(|run| core::cmp::Reverse(key(run))),
        }
    }

    /// Whether a run is in the list.
    pub(crate) fn has(&self, row: &RunRow) -> bool {
        let (first, last) = self.keys;
        !row.document
            && self.agent.is_none_or(|agent| row.agent == agent)
            && self.statuses.has(row.status)
            && self.held.is_none_or(|held| row.is_held() == held)
            && (first..=last).contains(&row.time_key())
    }
}

/// Answers from sealed segments. [`super::IndexSnapshot`] and [`super::DirectoryScan`] give the
/// same answers to every question here, as of the same segments.
pub(crate) trait Catalog {
    /// The row of a run. That of the index has no places of frames.
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError>;

    /// The first runs of a list, up to `limit`.
    fn runs_page(&self, list: &RunList<'_>, limit: usize) -> Result<Vec<RunKey>, IndexError>;

    /// The first runs of a list, up to `limit`, with the rows of those that are wanted. Each row is
    /// one of the list: an index with an old page in the place of a newer one is found out here.
    fn rows_page(
        &self,
        list: &RunList<'_>,
        limit: usize,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<Vec<(RunKey, Option<RunRow>)>, IndexError> {
        rows_of(self, list, &self.runs_page(list, limit)?, is_wanted)
    }

    /// Whether an agent has a run that is wanted.
    fn has_run_of(
        &self,
        agent: &str,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<bool, IndexError>;

    /// Up to `limit` agents that have runs, by id, strictly above `after`.
    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError>;

    /// All versions of up to `limit` documents of a namespace, by key from `from` on, then by
    /// number.
    fn documents_page(
        &self,
        namespace: &str,
        from: Bound<&str>,
        limit: usize,
    ) -> Result<Vec<(String, RunNo)>, IndexError>;

    /// How many runs there are.
    fn count_runs(&self) -> Result<u64, IndexError>;

    /// Calls `visit` for each run and each version of a document, by number. If it returns an
    /// error, the caller must discard what it visited.
    fn each_summary(&self, visit: &mut dyn FnMut(RowSummary<'_>)) -> Result<(), IndexError>;
}

/// These runs of a list, with the rows of those that are wanted.
pub(super) fn rows_of(
    catalog: &(impl Catalog + ?Sized),
    list: &RunList<'_>,
    keys: &[RunKey],
    is_wanted: &dyn Fn(RunNo) -> bool,
) -> Result<Vec<(RunKey, Option<RunRow>)>, IndexError> {
    let with_row = |key: &RunKey| {
        if !is_wanted(key.1) {
            return Ok((*key, None));
        }
        match catalog.row(key.1)? {
            Some(row) if row.time_key() == *key && list.has(&row) => Ok((*key, Some(row))),
            _ => Err(Damage::IndexPages.into()),
        }
    };
    keys.iter().map(with_row).collect()
}
