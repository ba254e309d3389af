//! Telling a hole from a sequence that is shared.
//!
//! A recorder that a parent and its children share numbers what it sees of all of them. Then each
//! run alone lacks the numbers of the others. They are found by looking at the whole tree that the
//! run is in, and at what was recorded without a run.
//!
//! The rule errs on the side of reporting. A relative with a recorder of its own has the same
//! numbers at the same time by chance; so all of the missing ones must be there, in between in the
//! log, and the last of them directly in front of the record that goes on.

use core::ops::Range;
use std::collections::HashSet;

use super::envelope::seq_of;
use super::links::Link;
use super::{CHILD, TrajectoryLog, UNATTRIBUTED};
use crate::{AgentId, Lsn, Result, RunId};

/// The sequences of all relatives of a run, and where they are, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Family {
    sequences: Vec<(Lsn, u64)>,
}

impl Family {
    /// Looks at all relatives. One that cannot be read is one that has nothing: a hole is reported
    /// then, and not explained away.
    pub(super) fn around(log: &TrajectoryLog, agent: &AgentId, run: &RunId) -> Self {
        let own = (agent.to_string(), run.to_string());
        let mut family = Self::default();
        let mut seen = HashSet::new();
        let mut waiting = vec![root_of(log, &own)];
        while let Some(key) = waiting.pop() {
            if !seen.insert(key.clone()) {
                continue;
            }
            let own_sequences = family.sequences.len();
            let _ = family.survey(log, (&key.0, &key.1), &mut waiting);
            if key == own {
                family.sequences.truncate(own_sequences);
            }
        }
        let _ = family.survey(log, (UNATTRIBUTED, log.agent().as_str()), &mut waiting);
        family.sequences.sort_unstable();
        family
    }

    /// Notes the sequences of a run, and its children.
    fn survey(
        &mut self,
        log: &TrajectoryLog,
        key: (&str, &str),
        children: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let mut trace = log.store().trace(key)?;
        while let Some(record) = trace.next_view() {
            let Ok(record) = record else { continue };
            if record.kind() == Some(CHILD) {
                if let Ok(Link { agent, run_id }) = record.json() {
                    children.push((agent, run_id));
                }
            } else if let Some(seq) = seq_of(record.payload()) {
                self.sequences.push((record.lsn(), seq));
            }
        }
        Ok(())
    }

    /// Whether relatives have all of these sequences between these two places, and the last of
    /// them directly in front of the second place.
    pub(super) fn have(&self, missing: &Range<u64>, between: &Range<Option<Lsn>>) -> bool {
        let place = |lsn: Option<Lsn>| {
            self.sequences.partition_point(|(known, _)| lsn.is_some_and(|lsn| *known < lsn))
        };
        let window = self.sequences.get(place(between.start)..place(between.end));
        let window = window.unwrap_or_default();
        let adjacent =
            window.last().is_some_and(|(_, seq)| seq.checked_add(1) == Some(missing.end));
        let enough = usize::try_from(missing.end - missing.start).is_ok_and(|n| n <= window.len());
        if !adjacent || !enough {
            return false;
        }
        let found: HashSet<u64> = window.iter().map(|(_, seq)| *seq).collect();
        missing.clone().all(|seq| found.contains(&seq))
    }
}

/// The run above a run that nobody started, as far up as there are any.
fn root_of(log: &TrajectoryLog, run: &(String, String)) -> (String, String) {
    let mut root = run.clone();
    let mut seen = HashSet::from([root.clone()]);
    while let Ok(Some(parent)) = log.parent_of((root.0.as_str(), root.1.as_str())) {
        let Ok(home) = log.home_of(&parent) else { break };
        let above = (home.to_string(), parent);
        // A parent that is not there has nothing; a run above itself would go round for ever.
        if log.store().run((above.0.as_str(), above.1.as_str())).is_err()
            || !seen.insert(above.clone())
        {
            break;
        }
        root = above;
    }
    root
}
