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

/// The most run ids that are kept, about 300 bytes each.
const KEPT: usize = 64 << 10;

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
    parts: OnceLock<Vec<Part>>,
}

impl Catalog {
    /// What is known of a run id.
    pub(crate) fn find(&self, run: &str) -> Result<Arc<Found>> {
        if let Some(found) = self.lookups().found.lock().get(run) {
            return Ok(Arc::clone(found));
        }
        let numbers = self.ask(|catalog| catalog.run_numbers(RunRef::from(run)))?;
        let keep = !numbers.is_empty();
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

    fn parts_of(&self, run_no: RunNo) -> Result<Vec<Part>> {
        let spans = self.all_spans(run_no)?;
        let segments = spans.iter().map(|span| (self.segment(span.segment), span));
        let parts = segments.filter_map(|(segment, span)| Some(Part::sealed(segment?, span)));
        let mut parts: Vec<Part> = parts.collect();
        for part in &mut parts {
            part.confirm(run_no)?;
        }
        Ok(parts)
    }
}

impl Found {
    /// Whether this is the one run with the id.
    fn is_only(&self, run_no: RunNo) -> bool {
        self.numbers == [run_no]
    }

    /// The row of a run with this id.
    pub(crate) fn row(&self, catalog: &Catalog, run_no: RunNo) -> Result<Arc<RunRow>> {
        if !self.is_only(run_no) {
            return catalog.row_of(run_no).map(Arc::new);
        }
        if let Some(row) = self.row.get() {
            return Ok(Arc::clone(row));
        }
        let row = Arc::new(catalog.row_of(run_no)?);
        Ok(Arc::clone(self.row.get_or_init(|| row)))
    }

    /// What sealed segments have of a run with this id; nothing if the catalog does not know it.
    pub(crate) fn parts(&self, catalog: &Catalog, run_no: RunNo) -> Result<Vec<Part>> {
        if !self.numbers.contains(&run_no) {
            return Ok(Vec::new());
        }
        if !self.is_only(run_no) {
            return catalog.parts_of(run_no);
        }
        if let Some(parts) = self.parts.get() {
            return Ok(parts.clone());
        }
        let parts = catalog.parts_of(run_no)?;
        Ok(self.parts.get_or_init(|| parts).clone())
    }
}
