//! Runs that were written at the same time, searched together in the order of the log: what they
//! share of the file is still in the processor's cache when the next of them comes to it.

use std::collections::VecDeque;

use runlog::{Lsn, RunRef, RunSummary};

use super::searcher::{CHUNK, Searched, Searcher};
use crate::failure::Failure;
use crate::output::Output;

/// How far one run goes on in front of the others, in places of the log.
const STRIDE: u64 = 256;

impl Searcher<'_, '_> {
    /// Searches these runs, and hands over what it finds in their order. `over` is told of each
    /// that is done. Answers whether to go on.
    pub(super) fn together<'r>(
        &self,
        runs: impl Iterator<Item = (usize, &'r RunSummary)>,
        over: impl Fn(&RunSummary),
    ) -> Result<bool, Failure> {
        let open: Result<VecDeque<_>, Failure> = runs
            .map(|(place, run)| {
                let trace = match self.log.trace(RunRef::from(run)) {
                    // It was deleted since the list was made.
                    Err(error) if error.is_not_found() => None,
                    trace => Some(trace?),
                };
                let out = Output::memory(self.is_json, self.screen.clone());
                Ok(Searched::new((place, run), trace, out))
            })
            .collect();
        let mut open = open?;
        while let Some(first) = open.front_mut() {
            let is_over = first.trace.is_none();
            if (is_over || first.out.len() >= CHUNK)
                && !self.turns.give(first.place, first.take(), is_over)
            {
                return Ok(false);
            }
            if is_over {
                over(first.run);
                open.pop_front();
                continue;
            }
            let (number, until) = next(&open);
            if let Some(one) = open.get_mut(number) {
                self.records(one, until)?;
            }
        }
        Ok(true)
    }
}

/// The run that is furthest behind in the log, and how far it is to go. One that has found much
/// must wait until it is the first, since only that is printed.
fn next(open: &VecDeque<Searched<'_>>) -> (usize, Lsn) {
    let goes_on = |(number, one): &(usize, &Searched<'_>)| {
        one.trace.is_some() && (*number == 0 || one.out.len() < CHUNK)
    };
    let mut places: Vec<_> =
        open.iter().enumerate().filter(goes_on).map(|(number, one)| (one.at, number)).collect();
    places.sort_unstable();
    let until = places.get(1).map_or(u64::MAX, |(at, _)| at.0.saturating_add(STRIDE));
    (places.first().map_or(0, |(_, number)| *number), Lsn(until))
}
