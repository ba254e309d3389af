//! What answers for the sealed segments up to a position: the index if it can be trusted, the
//! directories of the segments if not. A catalog never changes; the engine replaces it. It holds
//! its segments, so that their extents are not reused while anything holds it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::state::location_cache::LocationCache;
use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::segment::Purpose;
use crate::index::{
    self, Applied, DifferenceKind, Directories, DirectoryScan, IndexError, IndexSnapshot,
    RedbFailure, RunState, Subject,
};
use crate::types::{RunNo, SegmentId};

/// The answers for everything up to a sealed segment.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    segments: Vec<Arc<Segment>>,
    ids: Vec<SegmentId>,
    through: Option<SegmentId>,
    index: Option<IndexSnapshot>,
    /// The index failed to answer.
    failed: AtomicBool,
    location_cache: LocationCache,
}

impl Catalog {
    /// A catalog of these segments, ascending, and perhaps an index that covers exactly them.
    pub(crate) fn new(
        segments: Vec<Arc<Segment>>,
        through: Option<SegmentId>,
        index: Option<IndexSnapshot>,
    ) -> Self {
        let ids = segments.iter().map(|segment| segment.id()).collect();
        let (failed, location_cache) = (AtomicBool::new(false), LocationCache::default());
        Self { segments, ids, through, index, failed, location_cache }
    }

    /// The same without the index.
    pub(crate) fn without_index(&self) -> Self {
        Self::new(self.segments.clone(), self.through, None)
    }

    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) fn location_cache(&self) -> &LocationCache {
        &self.location_cache
    }

    /// Whether an index that goes so far knows all segments.
    pub(crate) fn is_covered_by(&self, applied: Applied) -> bool {
        self.segments.iter().all(|segment| segment.is_covered_by(applied))
    }

    /// The last segment of the log that is covered.
    pub(crate) fn through(&self) -> Option<SegmentId> {
        self.through
    }

    pub(crate) fn index(&self) -> Option<&IndexSnapshot> {
        self.index.as_ref()
    }

    /// Whether the index failed to answer since the catalog was made.
    pub(crate) fn index_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.ids.binary_search(&id).ok().and_then(|at| self.segments.get(at))
    }

    /// Asks the index; without one, or if it fails, asks the directories.
    pub(crate) fn ask<T>(
        &self,
        question: impl Fn(&dyn index::Catalog) -> Result<T, IndexError>,
    ) -> Result<T> {
        if let Some(index) = &self.index
            && !self.index_failed()
        {
            match question(index) {
                Ok(answer) => return Ok(answer),
                Err(_) => self.failed.store(true, Ordering::Release),
            }
        }
        self.ask_directories(question)
    }

    /// The row and the spans of a run. The index is believed only if its spans add up to its row:
    /// one that is missing would otherwise go unnoticed.
    pub(crate) fn run_state(&self, run_no: RunNo) -> Result<RunState> {
        let state = self.ask(|catalog| catalog.run_state(run_no))?;
        let whole = match &state.row {
            Some(row) => row.is_covered_by(&state.spans),
            None => state.spans.is_empty(),
        };
        if whole || self.index.is_none() || self.index_failed() {
            return Ok(state);
        }
        self.failed.store(true, Ordering::Release);
        self.ask(|catalog| catalog.run_state(run_no))
    }

    /// Asks the directories, whatever the index may know.
    pub(crate) fn ask_directories<T>(
        &self,
        question: impl Fn(&dyn index::Catalog) -> Result<T, IndexError>,
    ) -> Result<T> {
        let mut answer = question(&DirectoryScan::new(self));
        if answer.is_err() {
            // A failed read is no damage, and tells nothing of the next.
            self.read_directories()?;
            answer = question(&DirectoryScan::new(self));
        }
        answer.map_err(|error| match error {
            IndexError::Damaged(damage) => Error::corrupt(Place::Index, damage),
            _ => Error::corrupt(Place::Index, Damage::IndexPages),
        })
    }

    /// Whether the index says what the directories say (I4); none if it could not be read. A run
    /// whose eviction the index has not applied may have lost segments already, so that the two
    /// differ about it for a while.
    pub(crate) fn index_matches(&self, deleted: &HashSet<RunNo>) -> Result<Option<bool>> {
        let Some(index) = &self.index else { return Ok(None) };
        let is_unread =
            |error| matches!(error, IndexError::Redb(RedbFailure::Io | RedbFailure::Closed));
        let matches = || {
            let (mut same, mut is_read) = (true, true);
            let checked = index::check(index, self, &mut |difference| {
                if let DifferenceKind::Unreadable(error) = difference.kind {
                    is_read &= !is_unread(error);
                }
                let excused = match difference.subject {
                    Some(Subject::Run(run_no)) => deleted.contains(&run_no),
                    _ => !deleted.is_empty(),
                };
                same &= excused;
            });
            is_read &= !checked.is_err_and(is_unread);
            is_read.then(|| same && checked.is_ok())
        };
        // A failed read is no difference, and tells nothing of the next.
        let mut same = matches();
        if same == Some(false) {
            self.read_directories()?;
            same = matches();
        }
        if same != Some(true) {
            self.failed.store(true, Ordering::Release);
        }
        Ok(same)
    }

    /// Reads what was not read yet; a directory that is damaged is made anew.
    fn read_directories(&self) -> Result<()> {
        self.segments.iter().try_for_each(|segment| segment.directory().map(drop))
    }
}

impl Directories for Catalog {
    fn segments(&self) -> &[SegmentId] {
        &self.ids
    }

    fn purpose(&self, index: usize) -> Purpose {
        self.segments.get(index).map(|segment| segment.purpose()).unwrap_or_default()
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R> {
        let segment = self.segments.get(index).ok_or(Damage::Missing)?;
        read(segment.directory().map_err(|_| Damage::Missing)?)
    }
}
