//! What the catalog knows of a run id, kept once it was asked.
//!
//! A catalog never changes, so neither does what was found in it; the next catalog starts without.
//! What happened since is added by whoever asks: memory knows it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::catalog::Catalog;
use super::part::Part;
use crate::error::{Damage, Error, Place, Result};
use crate::index::RunRow;
use crate::types::{RunNo, RunRef};

/// The most run ids that are kept, about 700 bytes each.
const KEPT: usize = 128 << 10;

/// Run ids that were looked up.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    found: Mutex<HashMap<Box<str>, Arc<Found>>>,
}

/// What the catalog knows of one run id.
#[derive(Debug)]
pub(crate) struct Found {
    /// The runs with this id, evicted ones included if their eviction is younger than the catalog.
    pub(crate) numbers: Vec<RunNo>,
    row: OnceLock<Arc<RunRow>>,
    parts: OnceLock<Arc<[Part]>>,
}

impl Catalog {
    /// What is known of a run id. That nothing is known is not kept: ids that never were would
    /// take the place of others.
    pub(crate) fn find(&self, run: &str) -> Result<Arc<Found>> {
        self.find_and_keep(run, false)
    }

    /// What is known of the id of a run that memory has; often nothing, which is kept too.
    pub(crate) fn find_of_known(&self, run: &str) -> Result<Arc<Found>> {
        self.find_and_keep(run, true)
    }

    fn find_and_keep(&self, run: &str, keep_none: bool) -> Result<Arc<Found>> {
        if let Some(found) = self.lookups().found.lock().get(run) {
            return Ok(Arc::clone(found));
        }
        let numbers = self.ask(|catalog| catalog.run_numbers(RunRef::from(run)))?;
        let keep = keep_none || !numbers.is_empty();
        let found = Arc::new(Found { numbers, row: OnceLock::new(), parts: OnceLock::new() });
        if keep {
            let mut kept = self.lookups().found.lock();
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(run.into(), Arc::clone(&found));
        }
        Ok(found)
    }

    fn row_of(&self, run_no: RunNo) -> Result<RunRow> {
        let row = self.ask(|catalog| catalog.row(run_no))?;
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }

    /// What sealed segments have of a run, and the row if the catalog has one.
    fn parts_of(&self, run_no: RunNo) -> Result<(Option<RunRow>, Arc<[Part]>)> {
        let state = self.run_state(run_no)?;
        let mut parts = Vec::with_capacity(state.spans.len());
        for span in &state.spans {
            if let Some(segment) = self.segment(span.segment) {
                let mut part = Part::sealed(segment, span);
                part.confirm(run_no)?;
                part.list();
                parts.push(part);
            }
        }
        Ok((state.row, parts.into()))
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
            return catalog.row_of(run_no).map(Arc::new);
        }
        if let Some(row) = self.row.get() {
            return Ok(Arc::clone(row));
        }
        let row = Arc::new(catalog.row_of(run_no)?);
        Ok(Arc::clone(self.row.get_or_init(|| row)))
    }

    /// What sealed segments have of a run with this id; nothing if the catalog does not know it.
    pub(crate) fn parts(&self, catalog: &Catalog, run_no: RunNo) -> Result<Arc<[Part]>> {
        if !self.numbers.contains(&run_no) {
            return Ok(Arc::default());
        }
        if self.only() != Some(run_no) {
            return Ok(catalog.parts_of(run_no)?.1);
        }
        if let Some(parts) = self.parts.get() {
            return Ok(Arc::clone(parts));
        }
        let (row, parts) = catalog.parts_of(run_no)?;
        if let Some(row) = row {
            self.row.get_or_init(|| Arc::new(row));
        }
        Ok(Arc::clone(self.parts.get_or_init(|| parts)))
    }
}
