//! The damage that `verify`, `doctor`, `backup` and `salvage` tell of.

use std::collections::HashSet;

use runlog::{Corruption, Reader, VerifyReport};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

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

/// A place with damage, as an object.
#[derive(Serialize)]
struct Row<'a> {
    event: &'static str,
    message: String,
    #[serde(flatten)]
    problem: &'a Corruption,
}

/// Tells of each place with damage, as an event of this name.
pub(crate) fn tell_problems(
    event: &'static str,
    problems: &[Corruption],
    out: &mut Output,
) -> Result<(), Failure> {
    for problem in problems {
        let message = problem.to_string();
        let text = if event == "problem" { message.clone() } else { format!("{event}: {message}") };
        out.tell(&Row { event, message, problem }, text)?;
    }
    Ok(())
}
