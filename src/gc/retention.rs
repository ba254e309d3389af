//! What the owner of a store wants to keep, as a value; [`plan`](mod@super::plan) applies it.
//!
//! - [`Retention`]: limits for all runs, and others for some agents and outcomes.
//! - [`Limits`]: the limits of such an exception.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::types::{AgentId, RunStatus};

/// How many codes of [`RunStatus`] there are.
pub(super) const STATUSES: usize = 5;

/// What to keep. Only limits delete runs: a new value has none and keeps everything.
///
/// | limit | a completed run is deleted if | if several apply |
/// |---|---|---|
/// | [`keep_newest`](Self::keep_newest) | its agent has N newer ones | the narrowest decides |
/// | [`max_age`](Self::max_age) | it ended longer ago than that | the narrowest decides |
/// | [`max_bytes`](Self::max_bytes) | more is kept, and it ended first | each, for its runs |
///
/// A run is deleted if any limit says so. `None` and zero mean "no limit" for each of them.
///
/// A **completed** run is one that has ended, with success or without. A run in progress is never
/// deleted, however old it is, and does not count among the newest N. A held run is never deleted
/// either, but does count among them, so that a hold changes what happens to this run only. The
/// bytes of both count.
///
/// A **newer** run was created later, as in lists; of two from the same instant the one with the
/// larger run number is newer. The run that **ended first** has the earlier end; of two from the
/// same instant the one with the smaller run number ended first.
///
/// **Exceptions** apply [to an agent](Self::for_agent), [to a status](Self::for_status), or [to a
/// status of an agent](Self::for_agent_status). An exception replaces the limits that it names and
/// inherits the others. For number and age, an exception for agent and status takes precedence over
/// one for the agent, that one over one for the status, and that one over the limit for all. If an
/// exception for a status limits the number, its runs are counted separately: with
/// `keep_newest(20)`, and 100 for failed runs, the newest 100 failed runs of each agent are kept,
/// and the newest 20 others. A maximum of bytes applies to the runs of its scope together, and
/// never lifts the maximum of a larger scope.
///
/// **Clocks** are trusted. If the clock is earlier than the end of a run, the run has no age. If
/// the clock is years ahead, every run is old: where that can happen, use
/// [`protect_newest`](Self::protect_newest) and [`keep_newest`](Self::keep_newest), which do not
/// depend on the time.
///
/// ```
/// use runlog::{AgentId, Limits, Retention, RunStatus};
/// use std::time::Duration;
///
/// # fn main() -> runlog::Result<()> {
/// const DAY: Duration = Duration::from_secs(86_400);
/// let policy = Retention::new()
///     .keep_newest(100)
///     .max_age(30 * DAY)
///     .max_bytes(1 << 30)
///     .for_status(RunStatus::Failed, Limits::new().max_age(90 * DAY))
///     .for_agent(AgentId::new("billing")?, Limits::new().keep_newest(None).max_age(None))
///     .protect_newest(true);
/// policy.check()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "super::serial::Form", into = "super::serial::Form"))]
pub struct Retention {
    pub(super) all: Scope,
    pub(super) agents: BTreeMap<AgentId, Scope>,
    pub(super) only: BTreeSet<AgentId>,
    pub(super) protects_newest: bool,
}

/// The limits of an exception. It inherits every limit that it does not name.
///
/// ```
/// use runlog::Limits;
/// let few = Limits::new().keep_newest(5); // ages and bytes as for everybody else
/// let for_ever = Limits::new().keep_newest(None).max_age(None);
/// assert_ne!(few, for_ever);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Limits {
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Limit::is_inherited"))]
    pub(super) keep_newest: Limit<u64>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Limit::is_inherited"))]
    pub(super) max_age: Limit<Duration>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Limit::is_inherited"))]
    pub(super) max_bytes: Limit<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Limit<T> {
    /// Inherits the limit.
    #[default]
    Inherited,
    /// Sets no limit.
    Unlimited,
    AtMost(T),
}

/// The limits of one agent, or of all agents: for any status, and for each status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(try_from = "super::serial::Form", into = "super::serial::Form")
)]
pub(super) struct Scope {
    pub(super) any: Limits,
    pub(super) each: [Limits; STATUSES],
}

/// The limits for the runs of one agent that have one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The most runs that are kept; never zero.
    pub(super) keep_newest: Option<u64>,
    /// Whether they are counted separately from the agent's other runs.
    pub(super) apart: bool,
    /// The largest age in nanoseconds; never zero.
    pub(super) max_age: Option<i64>,
}

impl<T: Default + PartialEq> Limit<T> {
    pub(super) fn new(limit: Option<T>) -> Self {
        match limit {
            Some(limit) if limit != T::default() => Self::AtMost(limit),
            _ => Self::Unlimited,
        }
    }

    fn at_most(self) -> Option<T> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::Inherited | Self::Unlimited => None,
        }
    }

    fn is_named(&self) -> bool {
        *self != Self::Inherited
    }

    #[cfg(feature = "serde")]
    fn is_inherited(&self) -> bool {
        !self.is_named()
    }

    /// This limit, or `other` if this one is inherited.
    fn or(self, other: Self) -> Self {
        if self.is_named() { self } else { other }
    }
}

impl Limits {
    /// Limits that inherit everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the newest `count` completed runs of an agent. `None` and 0: any number.
    #[must_use]
    pub fn keep_newest(mut self, count: impl Into<Option<u64>>) -> Self {
        self.keep_newest = Limit::new(count.into());
        self
    }

    /// Keeps runs until they ended longer ago than `age`. `None` and zero: for ever.
    #[must_use]
    pub fn max_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.max_age = Limit::new(age.into());
        self
    }

    /// Keeps at most `bytes` of the runs of this scope together. `None` and 0: any number.
    #[must_use]
    pub fn max_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.max_bytes = Limit::new(bytes.into());
        self
    }

    /// These limits, and those of `other` where these inherit.
    fn or(self, other: Self) -> Self {
        Self {
            keep_newest: self.keep_newest.or(other.keep_newest),
            max_age: self.max_age.or(other.max_age),
            max_bytes: self.max_bytes.or(other.max_bytes),
        }
    }

    fn is_unlimited(&self) -> bool {
        self.keep_newest.at_most().is_none()
            && self.max_age.at_most().is_none()
            && self.max_bytes.at_most().is_none()
    }

    fn check(&self) -> Result<()> {
        match self.max_age.at_most() {
            Some(age) if i64::try_from(age.as_nanos()).is_err() => {
                Err(Error::InvalidArgument { what: "a maximum age is at most 292 years" })
            }
            _ => Ok(()),
        }
    }
}

impl Scope {
    fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.each.iter().chain([&self.any])
    }

    fn check(&self) -> Result<()> {
        let [in_progress, ..] = &self.each;
        if *in_progress != Limits::default() {
            return Err(Error::InvalidArgument {
                what: "runs in progress are never deleted, so they have no limits",
            });
        }
        self.limits().try_for_each(Limits::check)
    }
}

impl Retention {
    /// Keeps everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the newest `count` completed runs of each agent and deletes older ones. `None` and 0:
    /// no limit.
    #[must_use]
    pub fn keep_newest(mut self, count: impl Into<Option<u64>>) -> Self {
        self.all.any = self.all.any.keep_newest(count);
        self
    }

    /// Deletes runs that ended longer ago than `age`; a run of exactly that age is kept. `None` and
    /// zero: no limit.
    #[must_use]
    pub fn max_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.all.any = self.all.any.max_age(age);
        self
    }

    /// Keeps at most `bytes`, including runs in progress and held ones. Of the runs that the other
    /// limits keep, completed ones are deleted in the order of their ends, until the limit is met
    /// or no more may be deleted: if the runs in progress are larger than this, no other run is
    /// kept. `None` and 0: no limit.
    #[must_use]
    pub fn max_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.all.any = self.all.any.max_bytes(bytes);
        self
    }

    /// Makes an exception for an agent. A later exception for the same agent replaces the limits
    /// that both name.
    #[must_use]
    pub fn for_agent(mut self, agent: AgentId, limits: Limits) -> Self {
        let scope = self.agents.entry(agent).or_default();
        scope.any = limits.or(scope.any);
        self
    }

    /// Makes an exception for the runs, of any agent, that ended with this status.
    #[must_use]
    pub fn for_status(mut self, status: RunStatus, limits: Limits) -> Self {
        let said = &mut self.all.each[usize::from(status.code())];
        *said = limits.or(*said);
        self
    }

    /// Makes an exception for the runs of an agent that ended with this status.
    #[must_use]
    pub fn for_agent_status(mut self, agent: AgentId, status: RunStatus, limits: Limits) -> Self {
        let scope = self.agents.entry(agent).or_default();
        let said = &mut scope.each[usize::from(status.code())];
        *said = limits.or(*said);
        self
    }

    /// Restricts the policy to this agent and other agents that are named in this way. The runs of
    /// other agents are kept, and their bytes do not count.
    #[must_use]
    pub fn only_agent(mut self, agent: AgentId) -> Self {
        self.only.insert(agent);
        self
    }

    /// Whether to keep the newest completed run of each agent regardless of the limits.
    #[must_use]
    pub fn protect_newest(mut self, protect: bool) -> Self {
        self.protects_newest = protect;
        self
    }

    /// Whether no run can ever be deleted.
    pub fn is_unlimited(&self) -> bool {
        self.scopes().flat_map(Scope::limits).all(Limits::is_unlimited)
    }

    /// Whether the policy applies to the runs of this agent.
    pub fn covers(&self, agent: &AgentId) -> bool {
        self.only.is_empty() || self.only.contains(agent)
    }

    /// Checks whether these limits can be applied. Planning checks this too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a maximum age that no timestamp can reach, and for limits on
    /// runs in progress.
    ///
    /// ```
    /// use runlog::Retention;
    /// use std::time::Duration;
    /// assert!(Retention::new().max_age(Duration::from_secs(3600)).check().is_ok());
    /// assert!(Retention::new().max_age(Duration::MAX).check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        self.scopes().try_for_each(Scope::check)
    }

    fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.agents.values().chain([&self.all])
    }

    pub(super) fn protects_newest(&self) -> bool {
        self.protects_newest
    }

    /// The limits of the runs of an agent, by the code of their status.
    pub(super) fn resolve(&self, agent: &AgentId) -> [Resolved; STATUSES] {
        let own = self.agents.get(agent).copied().unwrap_or_default();
        core::array::from_fn(|code| {
            let by_agent = own.each[code].or(own.any);
            let limits = by_agent.or(self.all.each[code]).or(self.all.any);
            let of_agent = own.any.keep_newest.is_named();
            let of_status = self.all.each[code].keep_newest.is_named();
            Resolved {
                keep_newest: limits.keep_newest.at_most(),
                apart: own.each[code].keep_newest.is_named() || (of_status && !of_agent),
                max_age: limits.max_age.at_most().map(nanos),
            }
        })
    }

    /// The most bytes of all runs together.
    pub(super) fn bytes_of_all(&self) -> Option<u64> {
        self.all.any.max_bytes.at_most()
    }

    /// The most bytes of the runs of each status, by its code.
    pub(super) fn bytes_of_statuses(&self) -> [Option<u64>; STATUSES] {
        self.all.each.map(|limits| limits.max_bytes.at_most())
    }

    /// The most bytes of the runs of an agent.
    pub(super) fn bytes_of_agent(&self, agent: &AgentId) -> Option<u64> {
        self.agents.get(agent)?.any.max_bytes.at_most()
    }

    /// The most bytes of the runs of an agent with each status, by its code.
    pub(super) fn bytes_of_agent_statuses(&self, agent: &AgentId) -> [Option<u64>; STATUSES] {
        let scope = self.agents.get(agent).copied().unwrap_or_default();
        scope.each.map(|limits| limits.max_bytes.at_most())
    }
}

/// An age in nanoseconds. No run ever reaches an age that is too long, which `check` refuses.
fn nanos(age: Duration) -> i64 {
    i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)
}
