//! The background work of a store under the control of a test.

use std::sync::{Arc, Mutex};

use runlog::env::{Scheduler, Step, Steps};
use runlog_sim::SplitMix64;

/// The steps of the last opened store. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Background {
    steps: Arc<Mutex<Option<Steps>>>,
}

impl Scheduler for Background {
    fn begin(&self, steps: Steps) {
        *self.steps.lock().unwrap() = Some(steps);
    }
}

impl Background {
    /// Runs a step; false if no store is open.
    pub(crate) fn run(&self, step: Step) -> bool {
        let steps = self.steps.lock().unwrap().clone();
        steps.is_some_and(|steps| steps.run(step))
    }

    /// Runs some steps in any order, or all of them, of a newly opened store.
    pub(crate) fn run_after_opening(&self, random: &mut SplitMix64) {
        if random.coin() {
            return self.run_some(random, 5);
        }
        let mut steps = Step::ALL;
        for last in (1..steps.len()).rev() {
            steps.swap(last, random.index(last + 1));
        }
        for step in steps {
            self.run(step);
        }
    }

    /// Runs up to `most` random steps.
    pub(crate) fn run_some(&self, random: &mut SplitMix64, most: usize) {
        for _ in 0..random.index(most + 1) {
            self.run(Step::ALL[random.index(Step::ALL.len())]);
        }
    }
}
