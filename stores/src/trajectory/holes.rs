//! Distinguishes a hole from a shared sequence.
//!
//! A recorder that a parent and its children share numbers the records of all of them. Then each
//! run lacks the numbers of the others. The log finds them in the whole tree of the run, and in the
//! records without a run.
//!
//! A relative with a recorder of its own can have the same numbers by chance, often at the same
//! time. So all missing numbers must be in the log between the two records, the last of them
//! directly in front of the second record; and
//!
//! - if a relative started in between with 0, which resets a recorder, the numbers from that start
//!   on must have no gap, as with one recorder, and no relative may go on with a number of the run;
//! - otherwise only relatives count that share no number with the run, since one recorder uses no
//!   number twice.
//!
//! Otherwise a hole is reported; at worst there is one too many. One case cannot be distinguished:
//! a child with a recorder of its own that counted to exactly the numbers that its parent lost, and
//! then ended.

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
    /// Reads all relatives. One that cannot be read counts as empty, so that the hole is reported.
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

    /// Whether relatives have all of these sequences between these two places, probably from the
    /// same recorder.
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
        // A recorder cannot have been reset before the run had any record.
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

/// The topmost ancestor of a run.
fn root_of(log: &TrajectoryLog, run: &(String, String)) -> (String, String) {
    let mut root = run.clone();
    let mut seen = HashSet::from([root.clone()]);
    while let Ok(Some(parent)) = log.parent_of((root.0.as_str(), root.1.as_str())) {
        let Ok(home) = log.home_of(&parent) else { break };
        let above = (home.to_string(), parent);
        // A missing parent has no records; a run that is its own ancestor would never end.
        if log.store().run((above.0.as_str(), above.1.as_str())).is_err()
            || !seen.insert(above.clone())
        {
            break;
        }
        root = above;
    }
    root
}
