//! Answers for the sealed segments up to a position, from the index if it can be trusted, else from
//! the directories of the segments. A catalog never changes; the engine replaces it. It holds its
//! segments, so their extents are not reused while the catalog is in use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::engine::state::segment::Segment;
use crate::engine::values::summary::RunSummary;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::Purpose;
use crate::index::locator::Stamped;
use crate::index::{
    self, Applied, Directories, DirectoryScan, IndexError, IndexSnapshot, Listing, Locator,
    RedbFailure, RunKey, RunList, RunRow, Said,
};
use crate::types::{AgentId, RunNo, SegmentId};

/// After looking into so many directories, or at so many of their entries, adding them to the
/// locator takes less time.
const PROBES: usize = 16 << 10;

/// The most bytes that all runs in the order of lists may take.
const LIST_BYTES: usize = 64 << 20;

/// The most agents whose newest runs are kept, up to 8 KiB each.
const AGENTS: usize = 256;

/// The newest runs of an agent, the most common question.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// Whether the agent has no other runs.
    pub(crate) all: bool,
}

/// The answers for everything up to a sealed segment.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    segments: Vec<Arc<Segment>>,
    ids: Vec<SegmentId>,
    /// Where each segment starts in the file, ascending, and its index.
    starts: Vec<(u64, usize)>,
    through: Option<SegmentId>,
    index: Option<IndexSnapshot>,
    /// Why the index failed to answer.
    failed: OnceLock<IndexError>,
    /// The newest runs of agents, as far as they were asked for.
    newest_runs: Mutex<HashMap<AgentId, Arc<Newest>>>,
    locator: Arc<Locator>,
    /// All segments are in the locator.
    is_located: OnceLock<()>,
    /// How many directories were looked into that are not, and at how many of their entries.
    probes: AtomicUsize,
    /// The rows that the index has in segments that cannot be read, once they were asked for.
    rows_in: Mutex<HashMap<SegmentId, Arc<Vec<RunRow>>>>,
    /// The most bytes that all runs in the order of lists may take.
    list_bytes: usize,
    /// They, if the directories were asked for a list, and if there is room.
    listing: OnceLock<Option<Listing>>,
    making: Mutex<()>,
}

impl Catalog {
    /// A catalog of these segments, ascending. If there is an index, it covers exactly them. The
    /// locator may have other segments too.
    pub(crate) fn new(
        segments: Vec<Arc<Segment>>,
        through: Option<SegmentId>,
        index: Option<IndexSnapshot>,
        locator: Arc<Locator>,
    ) -> Self {
        let ids = segments.iter().map(|segment| segment.id()).collect();
        let starts = segments.iter().enumerate().map(|(at, one)| (one.file_offset(), at));
        let mut starts: Vec<_> = starts.collect();
        starts.sort_unstable();
        let list_bytes = LIST_BYTES;
        Self { segments, ids, starts, through, index, locator, list_bytes, ..Self::default() }
    }

    /// A catalog of other segments of the same store.
    pub(crate) fn of_others(
        &self,
        segments: Vec<Arc<Segment>>,
        through: Option<SegmentId>,
        index: Option<IndexSnapshot>,
    ) -> Self {
        Self::new(segments, through, index, Arc::clone(&self.locator))
    }

    /// The same with a new locator, if most entries of this one are of segments that are gone.
    pub(crate) fn without_stale_places(mut self) -> Self {
        if self.locator.is_stale(self.segments.iter().map(|segment| stamped(segment))) {
            self.locator = Arc::default();
        }
        self
    }

    /// Adds all segments to the locator that it does not have.
    pub(crate) fn locate_all(&self, deleted: &RunSet) {
        for segment in self.waiting(deleted) {
            self.locate(segment, deleted);
        }
    }

    /// The same, with another limit for the memory of lists.
    pub(crate) fn with_list_bytes(mut self, most: usize) -> Self {
        self.list_bytes = most;
        self
    }

    pub(crate) fn without_index(&self) -> Self {
        Self::new(self.segments.clone(), self.through, None, Arc::clone(&self.locator))
    }

    /// Where entries are in the directories of the segments.
    pub(crate) fn locator(&self) -> &Arc<Locator> {
        &self.locator
    }

    /// The segments that the locator does not have, the last one first. Once many were looked into,
    /// this adds them.
    pub(crate) fn waiting(&self, deleted: &RunSet) -> Vec<&Arc<Segment>> {
        if self.is_located.get().is_some() {
            return Vec::new();
        }
        let is_waiting = |segment: &&Arc<Segment>| !self.locator.has(stamped(segment));
        let mut waiting: Vec<_> = self.segments.iter().rev().filter(is_waiting).collect();
        if self.probes.fetch_add(waiting.len(), Ordering::Relaxed) >= PROBES {
            waiting.retain(|segment| !self.locate(segment, deleted));
        }
        if waiting.is_empty() {
            let _ = self.is_located.set(());
        }
        waiting
    }

    /// Counts entries that were looked at in segments that the locator does not have.
    pub(crate) fn count_probes(&self, entries: usize) {
        self.probes.fetch_add(entries, Ordering::Relaxed);
    }

    /// Adds a segment to the locator, without the entries of `deleted` runs; returns whether that
    /// was possible. One that cannot be read is asked each time, and says why.
    pub(crate) fn locate(&self, segment: &Segment, deleted: &RunSet) -> bool {
        locate(&self.locator, segment, Some(deleted))
    }

    /// Whether it is known, without reading, that no segment has a run with this id.
    pub(crate) fn is_known_to_lack(&self, run: &str) -> bool {
        let Some(first) = self.segments.first() else { return true };
        // With any agent the answer has the first entries of the id, if there are some.
        let hashes = (first.ids().of_run(run), Some(0));
        self.is_located.get().is_some() && self.locator.places(hashes).0.is_empty()
    }

    /// The segment with the directory that has this place of the file, and the place in it.
    pub(crate) fn in_directory_at(&self, place: u64) -> Option<(&Arc<Segment>, u32)> {
        let (index, at) = self.directory_at(place)?;
        Some((self.segments.get(index)?, at))
    }

    fn directory_at(&self, place: u64) -> Option<(usize, u32)> {
        let behind = self.starts.partition_point(|(start, _)| *start <= place);
        let (file_offset, index) = *self.starts.get(behind.checked_sub(1)?)?;
        let sealed = self.segments.get(index)?.sealed()?;
        let at = place.checked_sub(file_offset + u64::from(sealed.directory()))?;
        let at = u32::try_from(at).ok().filter(|at| *at < sealed.len)?;
        Some((index, at))
    }

    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Whether an index with this progress covers all segments.
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

    /// Why the index failed to answer since the catalog was made.
    pub(crate) fn index_failure(&self) -> Option<IndexError> {
        self.failed.get().copied()
    }

    /// Stops asking the index. The first failure is kept.
    pub(crate) fn blame_index(&self, failure: IndexError) {
        let _ = self.failed.set(failure);
        // They are what the index said.
        self.newest_runs.lock().clear();
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
            && self.failed.get().is_none()
        {
            match question(index) {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.blame_index(failure),
            }
        }
        self.ask_directories(question)
    }

    /// The rows of the runs that an index which can be trusted has in a segment.
    pub(crate) fn rows_in(&self, segment: SegmentId) -> Option<Arc<Vec<RunRow>>> {
        let index = self.index().filter(|_| self.index_failure().is_none())?;
        let mut known = self.rows_in.lock();
        if let Some(rows) = known.get(&segment) {
            return Some(Arc::clone(rows));
        }
        let rows = index.rows_in(segment).map_err(|failure| self.blame_index(failure)).ok()?;
        let rows = Arc::new(rows);
        known.insert(segment, Arc::clone(&rows));
        Some(rows)
    }

    /// Stops asking an index whose answers contradict each other. Answers whether there is one that
    /// was asked until now.
    fn doubt_index(&self) -> bool {
        if self.index.is_none() || self.failed.get().is_some() {
            return false;
        }
        self.blame_index(IndexError::Damaged(Damage::IndexPages));
        true
    }

    /// Asks the directories and not the index.
    fn ask_directories<T>(
        &self,
        question: impl Fn(&dyn index::Catalog) -> Result<T, IndexError>,
    ) -> Result<T> {
        let mut answer = question(&DirectoryScan::new(self));
        if answer.is_err() {
            // A failed read is not damage, and the next read may succeed.
            self.read_directories()?;
            answer = question(&DirectoryScan::new(self));
        }
        answer.map_err(|error| {
            // An entry of a directory, which could not be built again.
            let lost = self.segments.iter().find_map(|segment| segment.damaged_entry());
            let damage = match error {
                IndexError::Damaged(damage) => damage,
                _ => Damage::IndexPages,
            };
            lost.unwrap_or_else(|| Error::corrupt(Place::Index, damage))
        })
    }

    /// Whether the index agrees with the directories (I4); `None` if there is no index or it could
    /// not be read. For deleted runs a difference is accepted: while the index has not applied an
    /// eviction, segments of its run may already be gone.
    pub(crate) fn index_matches(&self, deleted: &RunSet) -> Result<Option<bool>> {
        let Some(index) = &self.index else { return Ok(None) };
        let matches = || {
            let is_excused = |run_no: Option<RunNo>| match run_no {
                Some(run_no) => deleted.contains(run_no),
                None => !deleted.is_empty(),
            };
            match index::check(index, self, &is_excused) {
                Ok(same) => Some(same),
                Err(IndexError::Redb(RedbFailure::Io | RedbFailure::Closed)) => None,
                Err(_) => Some(false),
            }
        };
        // A failed read is not a difference, and the next read may succeed.
        let mut same = matches();
        if same == Some(false) {
            self.read_directories()?;
            same = matches();
        }
        if same != Some(true) {
            self.blame_index(IndexError::Damaged(Damage::IndexPages));
        }
        Ok(same)
    }

    /// Reads the directories that were not read yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a segment is quarantined.
    pub(crate) fn read_directories(&self) -> Result<()> {
        self.segments.iter().try_for_each(|segment| segment.directory().map(drop))
    }

    /// The newest runs of an agent: at least `count` if it has that many. Evicted ones are included
    /// if the catalog does not cover their eviction.
    pub(crate) fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        if let Some(newest) = self.newest_runs.lock().get(agent)
            && (newest.all || newest.runs.len() >= count)
        {
            return Ok(Arc::clone(newest));
        }
        let (list, had_failed) = (RunList::of_agent(agent), self.index_failure());
        let rows = self.ask(|catalog| catalog.rows_page(&list, count, &|_| true))?;
        let all = rows.len() < count;
        let runs = rows.into_iter().filter_map(|(_, row)| row.map(RunSummary::from_row)).collect();
        let newest = Arc::new(Newest { runs, all });
        let mut kept = self.newest_runs.lock();
        if kept.len() >= AGENTS {
            kept.clear();
        }
        if self.index_failure() == had_failed {
            kept.insert(AgentId::new(agent)?, Arc::clone(&newest));
        }
        Ok(newest)
    }

    /// Whether it is known, without reading, that all runs of an agent have smaller keys.
    pub(crate) fn is_known_to_have_older(&self, agent: &str, key: RunKey) -> bool {
        let kept = self.newest_runs.lock();
        kept.get(agent).is_some_and(|newest| match newest.runs.first() {
            Some(first) => first.key() < key,
            None => newest.all,
        })
    }

    /// The row of a run that the catalog listed. An index that has none is not asked again.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<RunRow> {
        let mut row = self.ask(|catalog| catalog.row(run_no))?;
        if row.is_none() && self.doubt_index() {
            row = self.ask(|catalog| catalog.row(run_no))?;
        }
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }
}

/// What tells a segment from another one with the same id, with another end or with another
/// directory.
pub(crate) fn stamp_of(segment: &Segment) -> u64 {
    let end = segment.sealed().map_or(0, |at| u64::from(at.end) << 32 | u64::from(at.digest));
    segment.key().salt.rotate_left(1) ^ end
}

/// Adds a segment to a locator, if its directory can be read; returns whether the locator has it.
pub(crate) fn locate(locator: &Locator, segment: &Segment, deleted: Option<&RunSet>) -> bool {
    let (Some(sealed), Ok(directory)) = (segment.sealed(), segment.directory()) else {
        return false;
    };
    let start = segment.file_offset() + u64::from(sealed.directory());
    let is_deleted = deleted.map(|deleted| |run_no| deleted.contains(run_no));
    let is_deleted = is_deleted.as_ref().map(|is| is as &dyn Fn(RunNo) -> bool);
    locator.add(stamped(segment), start, &directory, is_deleted).is_ok()
        && locator.has(stamped(segment))
}

fn stamped(segment: &Segment) -> Stamped {
    (segment.id(), stamp_of(segment))
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
        let answer = read(segment.directory().map_err(|_| Damage::Missing)?);
        // The next question finds an entry that could be built again.
        answer.inspect_err(|damage| segment.mend(*damage))
    }

    fn places_beside(&self, said: Said) -> Option<Vec<usize>> {
        if !self.waiting(&RunSet::default()).is_empty() {
            return None;
        }
        let segment = self.segments.get(said.directory)?;
        let hashes = segment.in_directory(|directory| directory.hashes_of(said.slot));
        let (hash, both) = hashes.ok()?;
        let places = self.locator.places((hash, Some(both))).0.into_iter();
        let mut places: Vec<usize> =
            places.filter_map(|place| Some(self.directory_at(place)?.0)).collect();
        places.sort_unstable();
        places.dedup();
        Some(places)
    }

    fn listing(&self) -> Decoded<Option<&Listing>> {
        if self.listing.get().is_none() {
            // One thread makes it.
            let _making = self.making.lock();
            if self.listing.get().is_none() {
                let made = Listing::of(self, self.list_bytes)?;
                let _ = self.listing.set(made);
            }
        }
        Ok(self.listing.get().and_then(Option::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::storage::disk::Disk;
    use crate::format::ExtentSize;
    use crate::format::frames::frame::SegmentKey;
    use crate::format::map::manifest::SealedAt;
    use crate::format::segments::directory::IdHash;
    use crate::storage::MemoryStorage;
    use crate::types::ExtentNo;

    /// The formula of section 17 of FORMAT.md.
    #[test]
    fn a_stamp_is_made_of_the_salt_the_end_and_the_digest_alone() {
        let stamp = |extent, id, purpose, len| {
            let disk = Disk::new(Arc::new(MemoryStorage::new()));
            let key = SegmentKey { id: SegmentId(id), salt: 0x8000_0000_0000_0005 };
            let size = ExtentSize::from_bytes(64 << 10).unwrap();
            let segment =
                Segment::new(disk, size, ExtentNo(extent), key, purpose, IdHash::default());
            assert_eq!(stamp_of(&segment), 0x0000_0000_0000_000b, "not sealed");
            let (end, digest, next_run_no) = (0x0001_2340, 0x89ab_cdef, RunNo(u64::from(len)));
            let has_evictions = len % 16 == 0;
            segment.seal(SealedAt { end, len, digest, has_evictions, next_run_no });
            stamp_of(&segment)
        };
        assert_eq!(stamp(0, 1, Purpose::Log, 0x0001_2340), 0x0001_2340_89ab_cde4);
        assert_eq!(stamp(7, 9, Purpose::Output, 0x0001_2348), 0x0001_2340_89ab_cde4);
    }
}
