//! What `stat`, `verify` and `doctor` look at: how much the store has, and what of it is damaged.

use std::collections::HashSet;
use std::path::Path;

use runlog::{Corruption, Reader, Stats, Usage, VerifyReport};

use crate::du::Parts;
use crate::failure::Failure;

/// How much a store has, and what its file consists of.
#[derive(Debug)]
pub(crate) struct Amounts {
    pub(crate) stats: Stats,
    pub(crate) usage: Usage,
    pub(crate) parts: Parts,
}

impl Amounts {
    pub(crate) fn of(log: &Reader, path: &Path) -> Result<Self, Failure> {
        let (stats, usage) = (log.stats()?, log.usage()?);
        let parts = Parts::of(path, &stats, &usage)?;
        Ok(Self { stats, usage, parts })
    }
}

/// The damage of a store, each place once.
#[derive(Debug)]
pub(crate) struct Damages {
    pub(crate) problems: Vec<Corruption>,
    /// What was read to find it, if every byte was.
    pub(crate) verified: Option<VerifyReport>,
}

impl Damages {
    /// What opening the store found, also if it was repaired since; and unless `quick`, what is
    /// found in any byte.
    pub(crate) fn of(log: &Reader, quick: bool) -> Result<Self, Failure> {
        let mut verified = if quick { None } else { Some(log.verify()?) };
        let mut problems =
            verified.as_mut().map(|found| std::mem::take(&mut found.problems)).unwrap_or_default();
        let mut places: HashSet<_> = problems.iter().map(|problem| problem.place).collect();
        let met = log.recovery_report();
        problems.extend(met.damaged.iter().filter(|met| places.insert(met.place)).cloned());
        Ok(Self { problems, verified })
    }
}
