//! Runs that were written at the same time, searched together in the order of the log: what they
//! share of the file is still in the processor's cache when the next of them comes to it.

use std::collections::VecDeque;

use runlog::{Lsn, RunRef, RunSummary};

use super::searcher::{CHUNK, Searched, Searcher};
use super::turns::Found;
use crate::failure::Failure;
use crate::output::Output;

/// How many runs are searched together.
const TOGETHER: usize = 16;

/// How far one run is searched before the others, in places of the log.
const STRIDE: u64 = 256;

/// Gives a result, and answers whether more is wanted.
type Give<'g> = dyn FnMut(Result<Found, Failure>) -> bool + 'g;

impl Searcher<'_> {
    /// Searches these runs, and gives what it finds in their order, as long as that is wanted.
    pub(super) fn runs(&self, runs: &[RunSummary], give: &mut Give<'_>) -> Result<(), Failure> {
        for some in runs.chunks(TOGETHER) {
            if !self.together(some, give)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether more is wanted.
    fn together(&self, runs: &[RunSummary], give: &mut Give<'_>) -> Result<bool, Failure> {
        let mut open = VecDeque::new();
        for run in runs {
            let trace = match self.log.trace(RunRef::from(run)) {
                // It was deleted since the list was made.
                Err(error) if error.is_not_found() => None,
                trace => Some(trace?),
            };
            let out = Output::memory(self.is_json, self.screen.clone());
            open.push_back(Searched::new(run, trace, out));
        }
        while let Some(first) = open.front_mut() {
            let is_over = first.trace.is_none();
            let may_give = is_over || first.out.len() >= CHUNK;
            // To give nothing takes as long as to search a short run.
            if may_give && first.take().is_some_and(|found| !give(Ok(found))) {
                return Ok(false);
            }
            if is_over {
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

/// The run whose place in the log is the earliest, and how far it is to go. One that has found much
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
