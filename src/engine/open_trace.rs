//! From the id of a run to its trace: what memory knows, what the catalog knows, or both.

use std::sync::Arc;

use super::core::Core;
use super::lookup::Found;
use super::part::{Offsets, Part};
use super::shared::Engine;
use super::trace::{Pin, Trace};
use crate::error::Result;
use crate::types::{RunId, RunNo, RunRef};

impl Engine {
    /// The trace of a run as of now.
    pub(crate) fn trace(&self, run: RunRef<'_>) -> Result<Trace> {
        let mut trace = self.begin_trace(run)?;
        trace.pin = self.options.compaction.pin_age.map(|most| Pin {
            clock: Arc::clone(&self.options.environment.clock),
            since: self.now(),
            most,
        });
        Ok(trace)
    }

    fn begin_trace(&self, run: RunRef<'_>) -> Result<Trace> {
        let core = self.core.lock();
        self.check_open(&core)?;
        if let Some((run_no, found)) = self.only_in_catalog(&core, run)? {
            if let Some(opened) = found.opened() {
                return Ok(Trace::of(opened, run_no));
            }
            let catalog = Arc::clone(&core.catalog);
            drop(core);
            let parts = found.parts(&catalog, run_no)?;
            let (agent, id) = found.ids(&catalog, run_no)?;
            return Ok(Trace::new(agent, id, run_no, parts));
        }
        let id = RunId::new(run.run())?;
        let run_no = self.resolve(&core, run)?;
        let agent = core.hot.get(run_no).map(|hot| hot.agent.clone());
        let mut fresh = parts_in_memory(&core, run_no);
        let catalog = Arc::clone(&core.catalog);
        drop(core);
        for part in &mut fresh {
            part.confirm(run_no)?;
        }
        let found = catalog.find_of_known(run.run())?;
        let mut parts = found.parts(&catalog, run_no)?;
        if !fresh.is_empty() {
            parts = parts.iter().cloned().chain(fresh).collect();
        }
        let agent = match agent {
            Some(agent) => agent,
            None => found.row(&catalog, run_no)?.agent.clone(),
        };
        Ok(Trace::new(agent, id, run_no, parts))
    }

    /// The one run with an id of which memory knows nothing: the short way of most lookups.
    fn only_in_catalog(&self, core: &Core, run: RunRef<'_>) -> Result<Option<(RunNo, Arc<Found>)>> {
        RunId::check(run.run())?;
        let (hot, complete) = core.hot.by_id(run.run());
        if complete || !hot.is_empty() || run.agent().is_some() {
            return Ok(None);
        }
        let found = core.catalog.find(run.run())?;
        let only = found.only().filter(|run_no| !core.deleted.contains(run_no));
        Ok(only.map(|run_no| (run_no, found)))
    }
}

/// What segments that the catalog does not cover have of a run.
pub(super) fn parts_in_memory(core: &Core, run_no: RunNo) -> Vec<Part> {
    let mut parts = Vec::new();
    for span in core.hot.get(run_no).map_or(&[][..], |hot| &hot.spans) {
        let segment = core.unapplied.iter().find(|segment| segment.id() == span.segment);
        let segment = segment.or_else(|| core.catalog.segment(span.segment));
        parts.extend(segment.map(|segment| Part::sealed(segment, span)));
    }
    if let Some(built) = core.tail.builder.run(run_no) {
        parts.push(Part {
            segment: Arc::clone(&core.tail.segment),
            records: built.entry.records,
            first_seq: built.entry.first_seq,
            next_seq: built.entry.next_seq,
            offsets: Offsets::Listed(built.offsets.as_slice().into()),
        });
    }
    parts
}
