//! What the catalog was asked for, kept: a catalog never changes, and the next one starts without.
//!
//! Of some ids everything is kept ([`Found`]), of many more only where they are ([`Places`]): the
//! directories say the rest, with much less work than the index. Of some agents the newest runs are
//! kept ([`Newest`](super::newest::Newest)).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::catalog::Catalog;
use super::newest::Newest;
use super::part::Part;
use super::places::{Places, SpanAt};
use super::walk::Opened;
use crate::error::{Damage, Error, Place, Result};
use crate::index::{IndexSnapshot, RunRow, RunState};
use crate::types::{AgentId, RunId, RunNo, RunRef};

/// The most run ids of which everything is kept, about 700 bytes each.
const KEPT: usize = if cfg!(test) { 8 } else { 128 << 10 };

/// How many more ids are asked for before others take their place.
const REFUSED: usize = 8 * KEPT;

/// What was looked up.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    found: Mutex<Kept>,
    places: OnceLock<Mutex<Places>>,
    /// The newest runs of agents.
    pub(super) newest: Mutex<HashMap<AgentId, Arc<Newest>>>,
}

/// The ids of which everything is kept.
#[derive(Debug, Default)]
struct Kept {
    found: HashMap<Box<str>, Arc<Found>>,
    /// How many were not kept since there was no room.
    refused: usize,
}

impl Kept {
    /// Keeps what was found. While it is full it takes nothing for a while, and then begins anew:
    /// keeping each of too many ids for a moment would be work for nothing.
    fn insert(&mut self, run: &str, found: &Arc<Found>) {
        if self.found.len() >= KEPT {
            self.refused += 1;
            if self.refused < REFUSED {
                return;
            }
            *self = Self::default();
        }
        self.found.insert(run.into(), Arc::clone(found));
    }
}

/// What the catalog knows of one run id.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The runs with this id, evicted ones included if their eviction is younger than the catalog.
    pub(crate) numbers: Vec<RunNo>,
    row: OnceLock<Arc<RunRow>>,
    opened: OnceLock<Arc<Opened>>,
}

impl Catalog {
    /// What is known of a run id. That nothing is known is kept only of a run that memory has: ids
    /// that never were would take the place of others.
    pub(crate) fn find(&self, run: &str, is_in_memory: bool) -> Result<Arc<Found>> {
        if let Some(found) = self.lookups().found.lock().found.get(run) {
            return Ok(Arc::clone(found));
        }
        let found = match self.find_at_place(run) {
            Some(found) => found,
            None => {
                let numbers = self.ask(|catalog| catalog.run_numbers(RunRef::from(run)))?;
                Found { numbers, ..Found::default() }
            }
        };
        let found = Arc::new(found);
        if is_in_memory || !found.numbers.is_empty() {
            self.lookups().found.lock().insert(run, &found);
        }
        Ok(found)
    }

    /// What the directories say of a run id, if it is known where they do. The place of another id
    /// with the same hash shows by what stands there.
    fn find_at_place(&self, run: &str) -> Option<Found> {
        let [first, last] = self.lookups().places.get()?.lock().get(run)?;
        let directory = self.segment(first.0)?.directory().ok()?;
        let (id, agent) = directory.ids(first.1).ok()?;
        if id != run {
            return None;
        }
        let run_no = directory.run_no(first.1).ok()?;
        let spans = if first == last { &[first][..] } else { &[first, last] };
        let parts = self.parts_of(run_no, spans).ok()?;
        let (agent, run) = (AgentId::new(agent).ok()?, RunId::new(id).ok()?);
        let opened = OnceLock::from(Arc::new(Opened { agent, run, parts }));
        Some(Found { numbers: vec![run_no], opened, ..Found::default() })
    }

    /// Keeps where the only run with its id is.
    fn keep_place(&self, run: &str, spans: &[SpanAt]) {
        let count = || self.index().map_or(0, IndexSnapshot::run_count);
        let places = self.lookups().places.get_or_init(|| Mutex::new(Places::for_runs(count())));
        places.lock().keep(run, spans);
    }

    /// The row of a run that the catalog listed.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<RunRow> {
        let row = self.ask(|catalog| catalog.row(run_no))?;
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }

    /// What sealed segments have of a run, opened.
    pub(crate) fn parts_of(&self, run_no: RunNo, spans: &[SpanAt]) -> Result<Arc<[Part]>> {
        let open = |&(id, slot): &SpanAt| {
            let missing = || Error::corrupt(Place::Directory { segment: id }, Damage::Missing);
            let mut part = Part::sealed(self.segment(id).ok_or_else(missing)?, slot, run_no)?;
            part.list();
            Ok(part)
        };
        spans.iter().map(open).collect()
    }
}

impl Found {
    /// The one run with the id, if it is one.
    pub(crate) fn only(&self) -> Option<RunNo> {
        match self.numbers.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// The row of a run with this id.
    pub(crate) fn row(&self, catalog: &Catalog, run_no: RunNo) -> Result<Arc<RunRow>> {
        if self.only() != Some(run_no) {
            return catalog.row(run_no).map(Arc::new);
        }
        if let Some(row) = self.row.get() {
            return Ok(Arc::clone(row));
        }
        let row = Arc::new(catalog.row(run_no)?);
        Ok(Arc::clone(self.row.get_or_init(|| row)))
    }

    /// What sealed segments have of a run with this id, if the catalog knows it.
    pub(crate) fn open(&self, catalog: &Catalog, run_no: RunNo) -> Result<Option<Arc<Opened>>> {
        let is_only = self.only() == Some(run_no);
        match self.opened.get() {
            Some(opened) if is_only => return Ok(Some(Arc::clone(opened))),
            _ if !self.numbers.contains(&run_no) => return Ok(None),
            _ => {}
        }
        let RunState { row, spans } = catalog.run_state(run_no)?;
        let Some(row) = row else { return Ok(None) };
        let spans: Vec<SpanAt> = spans.iter().map(|span| (span.segment, span.slot)).collect();
        let parts = catalog.parts_of(run_no, &spans)?;
        let opened = Arc::new(Opened { agent: row.agent.clone(), run: row.run.clone(), parts });
        if is_only {
            catalog.keep_place(row.run.as_str(), &spans);
            self.row.get_or_init(|| Arc::new(row));
            return Ok(Some(Arc::clone(self.opened.get_or_init(|| opened))));
        }
        Ok(Some(opened))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::storage::MemoryStorage;
    use crate::{Allow, Error, Metadata, NewRecord, Options, Outcome, RunLog};

    fn records(log: &RunLog, run: &str) -> Vec<(u64, Vec<u8>)> {
        let trace = log.trace(run).unwrap().map(Result::unwrap);
        trace.map(|record| (record.seq().0, record.payload().to_vec())).collect()
    }

    /// Runs of one segment, of two and of many; more than are kept whole.
    fn filled() -> (RunLog, Vec<String>) {
        let options = Options::new().extent_size(64 << 10).background(false);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let runs: Vec<String> = (0..60).map(|run| format!("run-{run}")).collect();
        for (number, run) in runs.iter().enumerate() {
            let writer = log.start_run(&format!("agent-{}", number % 7), run, ()).unwrap();
            for record in 0..(number % 9) * 40 {
                let bytes = format!("{run} {record} {}", "x".repeat(number * 5));
                let _ = writer.append(bytes.as_bytes()).unwrap();
            }
            let _ = writer.end(&Outcome::completed()).unwrap();
        }
        log.checkpoint().unwrap();
        (log, runs)
    }

    #[test]
    fn runs_are_found_again_at_their_places_with_all_of_their_records() {
        let (log, runs) = filled();
        let first: Vec<_> = runs.iter().map(|run| records(&log, run)).collect();
        assert_eq!(first[17].len(), 320);
        for _ in 0..4 {
            for (run, first) in runs.iter().zip(&first) {
                assert_eq!(&records(&log, run), first, "{run}");
                let summary = log.run(run).unwrap();
                assert_eq!(summary.records, first.len() as u64, "{run}");
                assert_eq!(log.agent_of(run).unwrap(), summary.agent);
                assert_eq!(log.trace(run).unwrap().agent(), &summary.agent);
            }
        }
    }

    #[test]
    fn what_happens_after_a_lookup_is_seen_by_the_next_one() {
        let (log, runs) = filled();
        for _ in 0..3 {
            for run in &runs {
                drop(records(&log, run));
            }
        }
        log.delete_run(runs[20].as_str()).unwrap();
        let _ = log.start_run("another", &runs[30], Metadata::new(b"{}")).unwrap();
        let late = NewRecord::new(b"late");
        let _ = log.append_to("agent-5", &runs[40], &late, Allow::everything()).unwrap();
        for checkpointed in [false, true] {
            if checkpointed {
                log.checkpoint().unwrap();
            }
            for _ in 0..2 {
                let gone = log.trace(runs[20].as_str()).unwrap_err();
                assert!(matches!(gone, Error::RunNotFound { .. }), "{gone:?}");
                let two = log.trace(runs[30].as_str()).unwrap_err();
                assert!(matches!(two, Error::Ambiguous { .. }), "{two:?}");
                assert_eq!(records(&log, &runs[40]).last().unwrap().1, b"late");
            }
        }
    }
}
