//! Which sealed segments may have frames of a run, by the next numbers in their headers (section 9
//! of FORMAT.md): so bringing the runs of the tail into memory opens a few directories, not all.
//!
//! A SEAL frame has a larger order than all frames that it closes, and the victims of an output
//! were sealed before it was set aside. A damaged header excludes nothing.

use std::sync::Arc;

use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::segments::segment::SegmentHeader;
use crate::index::RunRow;
use crate::types::{Lsn, RunNo};

/// The sealed segments, with the headers read so far.
#[derive(Debug)]
pub(crate) struct Homes {
    /// Sealed segments of the log, the last one first, and the order of their SEAL frames.
    sealed: Vec<(Arc<Segment>, Asked<Lsn>)>,
    /// All segments of the log, the last one first, and their headers.
    log: Vec<(Arc<Segment>, Asked<SegmentHeader>)>,
    outputs: Vec<(Arc<Segment>, Asked<SegmentHeader>)>,
}

/// A value from a header once it was read; the inner option is `None` if the header is damaged.
type Asked<T> = Option<Option<T>>;

impl Homes {
    /// All segments of a catalog, and the unsealed ones, in the order of the log.
    pub(crate) fn new<'a>(
        catalog: &'a Catalog,
        unsealed: impl DoubleEndedIterator<Item = &'a Arc<Segment>>,
    ) -> Self {
        let (outputs, sealed): (Vec<_>, Vec<_>) =
            catalog.segments().iter().rev().partition(|segment| segment.is_output());
        let log = unsealed.rev().chain(sealed.iter().copied()).map(|one| (Arc::clone(one), None));
        Self {
            log: log.collect(),
            sealed: sealed.into_iter().map(|one| (Arc::clone(one), None)).collect(),
            outputs: outputs.into_iter().map(|one| (Arc::clone(one), None)).collect(),
        }
    }

    /// The row of a run in the sealed segments. No segment may evict the run. `begins` tells
    /// whether an unsealed segment has its beginning.
    pub(crate) fn row(&mut self, run_no: RunNo, begins: bool) -> Result<Option<RunRow>> {
        if begins {
            return Ok(None);
        }
        let segments = self.of(run_no);
        Catalog::new(segments, None, None).ask_directories(|catalog| catalog.row(run_no))
    }

    /// The segments that may have frames of a run, by id.
    fn of(&mut self, run_no: RunNo) -> Vec<Arc<Segment>> {
        let is_ahead = |header: &SegmentHeader| header.next_run_no <= run_no;
        let begins = self.log.iter_mut().find_map(|(segment, header)| {
            let header = (*header.get_or_insert_with(|| segment.header().ok()))?;
            is_ahead(&header).then_some(header.next_lsn)
        });
        let mut segments = Vec::new();
        for (segment, seal) in &mut self.sealed {
            let seal = seal.get_or_insert_with(|| {
                let at = segment.sealed()?.end;
                Some(segment.read_header(at).ok()?.lsn)
            });
            if seal.is_some_and(|seal| Some(seal) < begins) {
                break;
            }
            segments.push(Arc::clone(segment));
        }
        for (segment, header) in &mut self.outputs {
            let header = header.get_or_insert_with(|| segment.header().ok());
            if header.as_ref().is_none_or(|header| !is_ahead(header)) {
                segments.push(Arc::clone(segment));
            }
        }
        segments.sort_by_key(|segment| segment.id());
        segments
    }
}
