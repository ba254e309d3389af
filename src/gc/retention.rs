//! What the owner of a store wants to keep. A value; [`plan`](mod@super::plan) applies it.
//!
//! - [`Retention`]: limits for all runs, and others for some agents and outcomes.
//! - [`Limits`]: what such an exception says.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::types::{AgentId, RunStatus};

/// How many codes of [`RunStatus`] there are.
pub(super) const STATUSES: usize = 5;

/// What is to be kept. Nothing ever goes that no limit names: a new value has no limits.
///
/// | limit | a completed run goes if | of several applies |
/// |---|---|---|
/// | [`keep_newest`](Self::keep_newest) | its agent has N newer ones | the narrowest |
/// | [`max_age`](Self::max_age) | it ended longer ago than that | the narrowest |
/// | [`max_bytes`](Self::max_bytes) | more is kept, and it ended first | each, for its runs |
///
/// A run goes if any of them says so. `None` and zero mean "no limit", for each of them.
///
/// **Completed** is a run that has ended, with success or without. A run in progress never goes,
/// however old it is, and takes no place among the newest N. A held run never goes either; it does
/// take its place, so that a hold changes what happens to this run and to no other. The bytes of
/// both count.
///
/// **Newer** is the run that was created later, as lists have it; of two from the same instant the
/// one with the larger run number. **Ended first** is the run with the earlier end; of two from
/// the same instant the one with the smaller run number.
///
/// **Exceptions** are made [for an agent](Self::for_agent), [for a status](Self::for_status), and
/// [for a status of an agent](Self::for_agent_status). One replaces the limits that it names and
/// inherits the others. For the number and the age, an exception for agent and status goes before
/// one for the agent, that before one for the status, and that before the limit for all. Runs whose
/// number is limited by their status are counted apart: with `keep_newest(20)` and 100 for failed
/// runs, the newest 100 failed runs of each agent stay, and the newest 20 others. A maximum of
/// bytes is for the runs of its scope together, and never lifts that of a larger scope.
///
/// **Clocks** are taken at their word. For a clock that stands before the end of a run, the run has
/// no age. A clock that is years ahead makes every run old: where that can happen,
/// [`protect_newest`](Self::protect_newest) and [`keep_newest`](Self::keep_newest) do not depend on
/// what time it is.
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
pub struct Retention {
    all: Scope,
    agents: BTreeMap<AgentId, Scope>,
    only: BTreeSet<AgentId>,
    protects_newest: bool,
}

/// The limits of an exception. What is not named is inherited.
///
/// ```
/// use runlog::Limits;
/// let few = Limits::new().keep_newest(5); // ages and bytes as for everybody else
/// let for_ever = Limits::new().keep_newest(None).max_age(None);
/// assert_ne!(few, for_ever);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    keep_newest: Limit<u64>,
    max_age: Limit<Duration>,
    max_bytes: Limit<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Limit<T> {
    /// Nothing is said.
    #[default]
    Inherited,
    /// It is said that there is no limit.
    Unlimited,
    AtMost(T),
}

/// The limits of one agent, or of all: those for any status, and those for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Scope {
    any: Limits,
    each: [Limits; STATUSES],
}

/// The limits for the runs of one agent that have one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    /// How many stay at most; never zero.
    pub(super) keep_newest: Option<u64>,
    /// They are counted by themselves, and not with the agent's other runs.
    pub(super) apart: bool,
    /// The largest age in nanoseconds; never zero.
    pub(super) max_age: Option<i64>,
}

impl<T: Default + PartialEq> Limit<T> {
    fn new(limit: Option<T>) -> Self {
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

    /// This limit, or the other where nothing is said.
    fn or(self, other: Self) -> Self {
        if self.is_named() { self } else { other }
    }
}

impl Limits {
    /// Names nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest `count` completed runs of an agent stay. `None` and 0: any number.
    #[must_use]
    pub fn keep_newest(mut self, count: impl Into<Option<u64>>) -> Self {
        self.keep_newest = Limit::new(count.into());
        self
    }

    /// Runs stay until they ended longer ago than `age`. `None` and zero: for ever.
    #[must_use]
    pub fn max_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.max_age = Limit::new(age.into());
        self
    }

    /// The runs of this scope together have at most `bytes`. `None` and 0: any number.
    #[must_use]
    pub fn max_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.max_bytes = Limit::new(bytes.into());
        self
    }

    /// These limits, and those of `other` where nothing is said.
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
                what: "runs in progress never go, so there are no limits for them",
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

    /// The newest `count` completed runs of each agent stay, older ones go. `None` and 0: no limit.
    #[must_use]
    pub fn keep_newest(mut self, count: impl Into<Option<u64>>) -> Self {
        self.all.any = self.all.any.keep_newest(count);
        self
    }

    /// Runs that ended longer ago than `age` go; one that ended exactly so long ago stays. `None`
    /// and zero: no limit.
    #[must_use]
    pub fn max_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.all.any = self.all.any.max_age(age);
        self
    }

    /// The store keeps at most `bytes`, runs in progress and held ones included. Of what the other
    /// limits leave, completed runs go in the order of their ends until that is so, or until none
    /// is left that may go: who has runs in progress that are larger than this keeps no other.
    /// `None` and 0: no limit.
    #[must_use]
    pub fn max_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.all.any = self.all.any.max_bytes(bytes);
        self
    }

    /// Makes an exception for an agent. Of two for the same agent, the later counts for what both
    /// name.
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

    /// Looks at the runs of this agent only, and of all others that are named so. The runs of other
    /// agents stay, and their bytes do not count.
    #[must_use]
    pub fn only_agent(mut self, agent: AgentId) -> Self {
        self.only.insert(agent);
        self
    }

    /// Whether the newest completed run of each agent stays whatever the limits say.
    #[must_use]
    pub fn protect_newest(mut self, protect: bool) -> Self {
        self.protects_newest = protect;
        self
    }

    /// Whether no run can ever go.
    pub fn is_unlimited(&self) -> bool {
        self.scopes().flat_map(Scope::limits).all(Limits::is_unlimited)
    }

    /// Whether the runs of this agent are looked at.
    pub fn covers(&self, agent: &AgentId) -> bool {
        self.only.is_empty() || self.only.contains(agent)
    }

    /// Whether these limits can be applied. Planning asks this too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a maximum age that no timestamp can reach, and for limits of
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

    /// What holds for the runs of an agent, by the code of their status.
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

/// An age in nanoseconds; one that is too long, which `check` refuses, is never reached.
fn nanos(age: Duration) -> i64 {
    i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)
}
