//! Telling a hole from a sequence that is shared.
//!
//! A recorder that a parent and its children share numbers what it sees of all of them. Then each
//! run alone lacks the numbers of the others. They are found by looking at the whole tree that the
//! run is in, and at what was recorded without a run.
//!
//! A relative with a recorder of its own has the same numbers by chance, often at the same time. So
//! the missing ones must all be there, in between in the log, the last of them directly in front of
//! the record that goes on; and
//!
//! - if a relative started in between with 0, which is what sets a recorder back, everything from
//!   that start on must count on without a gap, as one recorder does, and none may go on with a
//!   number that the run has;
//! - if none did, only relatives count that have no number in common with the run, since one
//!   recorder gives no number twice.
//!
//! Where that is not so, a hole is reported, at the worst one too many. What cannot be told apart
//! is a child with a recorder of its own that ended when it had counted to exactly what its parent
//! lost.

use core::ops::Range;
use std::collections::HashSet;

use super::envelope::seq_of;
use super::links::Link;
use super::{CHILD, TrajectoryLog, UNATTRIBUTED};
use runlog::{AgentId, Lsn, Result, RunId};

/// The sequences of all relatives of a run, in the order of the log.
#[derive(Debug, Default)]
pub(super) struct Family {
    sequences: Vec<Sequence>,
    /// Those of the run itself.
    own: HashSet<u64>,
    /// The relatives that have a sequence that the run has too.
    alike: HashSet<usize>,
}

/// A sequence of a relative.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    lsn: Lsn,
    seq: u64,
    relative: usize,
    /// Its record is a `run_started`.
    starts: bool,
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
            if seen.insert(key.clone()) {
                let relative = (key != own).then_some(seen.len());
                let _ = family.survey(log, (&key.0, &key.1), relative, &mut waiting);
            }
        }
        let before = (UNATTRIBUTED, log.agent().as_str());
        let _ = family.survey(log, before, Some(0), &mut waiting);
        let all = family.sequences.iter();
        let alike = all.filter(|known| family.own.contains(&known.seq));
        family.alike = alike.map(|known| known.relative).collect();
        family.sequences.sort_unstable_by_key(|known| known.lsn);
        family
    }

    /// Notes the sequences of a run, and its children.
    fn survey(
        &mut self,
        log: &TrajectoryLog,
        key: (&str, &str),
        relative: Option<usize>,
        children: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let mut trace = log.store().trace(key)?;
        while let Some(record) = trace.next_view() {
            let Ok(record) = record else { continue };
            if record.kind() == Some(CHILD) {
                if let Ok(Link { agent, run_id, .. }) = record.json() {
                    children.push((agent, run_id));
                }
            } else if let Some(seq) = seq_of(record.payload()) {
                match relative {
                    Some(relative) => self.sequences.push(Sequence {
                        lsn: record.lsn(),
                        seq,
                        relative,
                        starts: record.kind() == Some("run_started"),
                    }),
                    None => drop(self.own.insert(seq)),
                }
            }
        }
        Ok(())
    }

    /// Whether relatives have all of these sequences between these two places, from the same
    /// recorder, as far as can be told.
    pub(super) fn have(&self, missing: &Range<u64>, between: &Range<Option<Lsn>>) -> bool {
        let place = |lsn: Option<Lsn>| {
            self.sequences.partition_point(|known| lsn.is_some_and(|lsn| known.lsn < lsn))
        };
        let window = self.sequences.get(place(between.start)..place(between.end));
        let window = window.unwrap_or_default();
        if window.last().and_then(|last| last.seq.checked_add(1)) != Some(missing.end) {
            return false;
        }
        let set_back = window.iter().rposition(|known| known.starts && known.seq == 0);
        // A recorder cannot have been set back before the run had anything.
        let set_back = set_back.filter(|_| between.start.is_some());
        if let Some(counted) = set_back.and_then(|start| window.get(start..)) {
            let counts_on = (0..).zip(counted).all(|(seq, known)| known.seq == seq);
            return counts_on && !self.go_on_alike(counted, place(between.end));
        }
        if missing.end - missing.start > window.len() as u64 {
            return false;
        }
        let unlike = window.iter().filter(|known| !self.alike.contains(&known.relative));
        let found: HashSet<u64> = unlike.map(|known| known.seq).collect();
        missing.clone().all(|seq| found.contains(&seq))
    }

    /// Whether one of these relatives has, from this place on, a sequence that the run has too.
    fn go_on_alike(&self, counted: &[Sequence], place: usize) -> bool {
        let who: HashSet<usize> = counted.iter().map(|known| known.relative).collect();
        let mut behind = self.sequences.iter().skip(place);
        behind.any(|known| who.contains(&known.relative) && self.own.contains(&known.seq))
    }
}

/// The run above a run without a start, as far up as there are any.
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
