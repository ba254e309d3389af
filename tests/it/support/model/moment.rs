//! Of which moment one answer is: after how many events the store was like that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use runlog::RunSummary;

use super::{Documents, Model, NO_RUN, State, write_documents};

/// The store after some of the events.
pub(crate) struct Moment<'m> {
    model: &'m Model,
    states: Vec<State>,
    documents: Documents,
}

impl Moment<'_> {
    fn apply(&mut self, place: usize) -> usize {
        let event = &self.model.events[place];
        if event.run == NO_RUN {
            write_documents(event, &mut self.documents);
        } else {
            self.states[event.run].apply(place, event, &self.model.runs[event.run]);
        }
        event.run
    }

    /// How many records a run has, if it is there.
    pub(crate) fn records(&self, run: usize) -> Option<usize> {
        let state = &self.states[run];
        state.exists.then_some(state.records)
    }

    /// The value of a document.
    pub(crate) fn document(&self, key: &str) -> Option<&[u8]> {
        self.documents.get(key).map(|value| &**value)
    }

    /// Whether a list has of this run what it should have.
    fn is_listed(&self, run: usize, found: Option<&RunSummary>, running: bool) -> bool {
        let state = &self.states[run];
        match found {
            None => !state.exists || running && state.status.is_ended(),
            Some(found) => state.is(found),
        }
    }
}

impl Model {
    /// The first of these numbers of events after which the store was like that.
    pub(crate) fn moment(
        &self,
        range: RangeInclusive<usize>,
        mut is_so: impl FnMut(&Moment<'_>, Option<usize>) -> bool,
    ) -> Option<usize> {
        let (states, documents) = (vec![State::default(); self.runs.len()], Documents::new());
        let mut moment = Moment { model: self, states, documents };
        let (first, last) = range.into_inner();
        for place in 0..first {
            let _ = moment.apply(place);
        }
        if is_so(&moment, None) {
            return Some(first);
        }
        (first..last).find_map(|place| {
            let run = moment.apply(place);
            is_so(&moment, Some(run)).then_some(place + 1)
        })
    }

    /// The first of these numbers of events after which these are all runs, or all that run.
    pub(crate) fn moment_of_list(
        &self,
        range: RangeInclusive<usize>,
        listed: &[RunSummary],
        running: bool,
    ) -> Result<usize, String> {
        let mut by_name = BTreeMap::new();
        for found in listed {
            if by_name.insert((found.agent.as_str(), found.run.as_str()), found).is_some() {
                return Err(format!("listed twice: {found:?}"));
            }
        }
        let of: Vec<_> = self
            .runs
            .iter()
            .map(|run| by_name.remove(&(run.agent.as_str(), run.run.as_str())))
            .collect();
        if let Some((name, _)) = by_name.pop_first() {
            return Err(format!("{name:?} was never started"));
        }
        let (mut others, all) = (BTreeSet::new(), 0..self.runs.len());
        let mut nearest = None::<(usize, Vec<usize>)>;
        let found = self.moment(range.clone(), |moment, changed| {
            let changed = changed.map_or(all.clone(), |run| run..run.saturating_add(1));
            for run in changed.filter(|run| *run != NO_RUN) {
                match moment.is_listed(run, of[run], running) {
                    true => others.remove(&run),
                    false => others.insert(run),
                };
            }
            if nearest.as_ref().is_none_or(|nearest| others.len() < nearest.0) {
                nearest = Some((others.len(), others.iter().copied().take(3).collect()));
            }
            others.is_empty()
        });
        found.ok_or_else(|| {
            let (count, some) = nearest.unwrap_or_default();
            let some: Vec<_> = some.iter().map(|run| (&self.runs[*run].run, of[*run])).collect();
            format!("the list is of no moment in {range:?}: at best {count} are others: {some:#?}")
        })
    }
}
