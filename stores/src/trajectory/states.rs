//! The state of runs that are being recorded, so that recording does not read the run.
//!
//! **Invariant:** at any time all calls for a run use one [`RunState`]: a state that a call holds
//! is not dropped. So calls for the same run wait for one another.
//!
//! **Invariant:** each state can be read from the store again. So any state can be dropped between
//! two calls, and memory is bounded however many runs never end.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use runlog::{Seq, Ticket};

/// The most states in memory, besides those that calls hold.
const KEPT: usize = 1024;

/// The state of a run that is being recorded. Calls for the same run wait for one another here.
#[derive(Debug, Default)]
pub(super) struct RunState {
    /// It was looked up in the store.
    pub(super) known: bool,
    /// The parent that has a link to this child.
    pub(super) linked: Option<String>,
    /// The last record: its place, and its sequence.
    pub(super) last: Option<(Seq, Option<u64>)>,
    pub(super) ticket: Option<Ticket>,
}

/// The states in memory.
#[derive(Debug, Default)]
pub(super) struct States {
    runs: HashMap<String, Entry>,
    /// Counts the requests.
    asked: u64,
}

#[derive(Debug)]
struct Entry {
    state: Arc<Mutex<RunState>>,
    /// The number of the latest request for it.
    asked: u64,
}

impl States {
    /// The state of a run, as long as the caller holds it.
    pub(super) fn of(&mut self, run: &str) -> Arc<Mutex<RunState>> {
        self.asked += 1;
        if let Some(entry) = self.runs.get_mut(run) {
            entry.asked = self.asked;
            return Arc::clone(&entry.state);
        }
        if self.runs.len() >= KEPT {
            self.forget_oldest();
        }
        let entry = Entry { state: Arc::default(), asked: self.asked };
        Arc::clone(&self.runs.entry(run.to_owned()).or_insert(entry).state)
    }

    /// Drops the state of an ended run, unless another call waits for it. The caller holds the
    /// state.
    pub(super) fn forget(&mut self, run: &str, held: &Arc<Mutex<RunState>>) {
        let is_own = |entry: &Entry| Arc::ptr_eq(&entry.state, held);
        if self.runs.get(run).is_some_and(is_own) && Arc::strong_count(held) == 2 {
            self.runs.remove(run);
        }
    }

    /// Drops the half that was requested the longest ago, except for those that calls hold.
    fn forget_oldest(&mut self) {
        let mut asked: Vec<u64> = self.runs.values().map(|entry| entry.asked).collect();
        let middle = asked.len() / 2;
        let (_, oldest, _) = asked.select_nth_unstable(middle);
        let oldest = *oldest;
        self.runs.retain(|_, entry| entry.asked > oldest || Arc::strong_count(&entry.state) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_runs_a_bounded_number_is_remembered_and_those_in_use_are() {
        let mut states = States::default();
        let held = states.of("held");
        for number in 0..10 * KEPT {
            let _ = states.of(&number.to_string());
            let _ = states.of("often");
            assert!(states.runs.len() <= KEPT + 1);
        }
        assert!(Arc::ptr_eq(&states.of("held"), &held));
        let often = states.runs.contains_key("often");
        assert!(often && states.runs.contains_key(&(10 * KEPT - 1).to_string()));
        assert!(!states.runs.contains_key("0"));
    }

    #[test]
    fn a_run_that_ended_is_forgotten_once_no_call_waits_for_it() {
        let mut states = States::default();
        let (one, other) = (states.of("run"), states.of("run"));
        states.forget("run", &one);
        assert!(Arc::ptr_eq(&states.of("run"), &other), "the other call would be alone");
        drop(other);
        states.forget("run", &one);
        assert!(!Arc::ptr_eq(&states.of("run"), &one));
        // The state of an earlier process is not that of the next.
        states.forget("run", &one);
        assert_eq!(states.runs.len(), 1);
    }
}
