//! From the id of a run to its trace: what memory knows, what the catalog knows, or both.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::core::Core;
use super::lookup::Found;
use super::part::{Offsets, Part};
use super::shared::Engine;
use super::trace::{Pin, Trace};
use super::walk::Opened;
use crate::error::Result;
use crate::types::{RunId, RunNo, RunRef};

impl Engine {
    /// The trace of a run as of now.
    pub(crate) fn trace(&self, run: RunRef<'_>) -> Result<Trace> {
        let (opened, run_no) = self.open_run(run)?;
        let pin = self.options.compaction.pin_age.map(|most| Pin {
            clock: Arc::clone(&self.options.environment.clock),
            since: self.now(),
            most,
        });
        Ok(Trace::new(opened, run_no, pin))
    }

    fn open_run(&self, run: RunRef<'_>) -> Result<(Arc<Opened>, RunNo)> {
        let core = self.core.lock();
        self.check_open(&core)?;
        RunId::check(run.run())?;
        if run.agent().is_none() {
            match core.hot.by_id(run.run()) {
                ([], false) => {
                    let lives = |run_no: &RunNo| !core.deleted.contains(run_no);
                    if let Some((run_no, opened)) = core.catalog.opened(run.run())
                        && lives(&run_no)
                    {
                        return Ok((opened, run_no));
                    }
                    let found = core.catalog.find(run.run())?;
                    if let Some(run_no) = found.only().filter(lives) {
                        return Ok((open_found(core, run_no, &found)?, run_no));
                    }
                }
                (&[only], true) => {
                    if let Some(opened) = open_new(&core, only) {
                        return Ok((opened, only));
                    }
                }
                _ => {}
            }
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
        Ok((Arc::new(Opened { agent, run: id, parts }), run_no))
    }
}

/// A run of which only the catalog knows.
fn open_found(core: MutexGuard<'_, Core>, run_no: RunNo, found: &Found) -> Result<Arc<Opened>> {
    if let Some(opened) = found.opened() {
        return Ok(opened);
    }
    let catalog = Arc::clone(&core.catalog);
    drop(core);
    let parts = found.parts(&catalog, run_no)?;
    let (agent, run) = found.ids(&catalog, run_no)?;
    Ok(Arc::new(Opened { agent, run, parts }))
}

/// A run that begins in the segment that takes frames, so that no other has anything of it: the
/// short way of the newest runs.
fn open_new(core: &Core, run_no: RunNo) -> Option<Arc<Opened>> {
    let entry = &core.tail.builder.run(run_no)?.entry;
    entry.created_at?;
    let parts = Arc::new([part_in_tail(core, run_no)?]);
    Some(Arc::new(Opened { agent: entry.agent.clone(), run: entry.run.clone(), parts }))
}

/// What all segments have of a run as of now; lets the lock go.
pub(super) fn parts_now(core: MutexGuard<'_, Core>, run_no: RunNo) -> Result<Arc<[Part]>> {
    let mut fresh = parts_in_memory(&core, run_no);
    let catalog = Arc::clone(&core.catalog);
    drop(core);
    for part in &mut fresh {
        part.confirm(run_no)?;
    }
    let sealed = catalog.parts_of(run_no, &catalog.run_state(run_no)?.spans)?;
    Ok(sealed.iter().cloned().chain(fresh).collect())
}

/// What segments that the catalog does not cover have of a run.
fn parts_in_memory(core: &Core, run_no: RunNo) -> Vec<Part> {
    let mut parts = Vec::new();
    for span in core.hot.get(run_no).map_or(&[][..], |hot| &hot.spans) {
        let segment = core.unapplied.iter().find(|segment| segment.id() == span.segment);
        let segment = segment.or_else(|| core.catalog.segment(span.segment));
        parts.extend(segment.map(|segment| Part::sealed(segment, span)));
    }
    parts.extend(part_in_tail(core, run_no));
    parts
}

/// What the segment that takes frames has of a run.
fn part_in_tail(core: &Core, run_no: RunNo) -> Option<Part> {
    let built = core.tail.builder.run(run_no)?;
    Some(Part {
        segment: Arc::clone(&core.tail.segment),
        records: built.entry.records,
        pieces: built.entry.pieces,
        first_lsn: built.entry.first_lsn,
        first_seq: built.entry.first_seq,
        next_seq: built.entry.next_seq,
        offsets: Offsets::Listed(built.offsets.iter().chain(&built.pieces).copied().collect()),
    })
}
