//! Answers for the sealed segments up to a position, from the index if it can be trusted, else from
//! the directories of the segments. A catalog never changes; the engine replaces it. It holds its
//! segments, so their extents are not reused while the catalog is in use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::engine::state::location_cache::LocationCache;
use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::Purpose;
use crate::index::{
    self, Applied, Directories, DirectoryScan, IndexError, IndexSnapshot, Listing, Places,
    RedbFailure, RunState,
};
use crate::types::{RunNo, SegmentId};

/// After looking into so many directories for runs, a map of all runs takes less time.
const PROBES: usize = 16 << 10;

/// After so many short pages of lists, the order of all runs takes less time.
const PAGES: usize = 8;

/// The answers for everything up to a sealed segment.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    segments: Vec<Arc<Segment>>,
    ids: Vec<SegmentId>,
    through: Option<SegmentId>,
    index: Option<IndexSnapshot>,
    /// Why the index failed to answer.
    failed: OnceLock<IndexError>,
    location_cache: LocationCache,
    /// For a process that has no index.
    maps: Option<Maps>,
}

/// What is made of the directories in the place of an index, once it is worth while.
#[derive(Debug, Default)]
struct Maps {
    /// The most bytes that they may take.
    most: usize,
    /// The map of an earlier catalog.
    known: Option<Arc<Places>>,
    /// Where runs are, and the indexes of the segments of which the map says nothing.
    places: OnceLock<(Arc<Places>, Vec<usize>)>,
    /// All runs in the order of lists, if there is room for that.
    listing: OnceLock<Option<Listing>>,
    /// How many directories were looked into without the one, and pages were made without the
    /// other.
    probes: AtomicUsize,
    pages: AtomicUsize,
    making: Mutex<()>,
}

impl Catalog {
    /// A catalog of these segments, ascending. If there is an index, it covers exactly them.
    pub(crate) fn new(
        segments: Vec<Arc<Segment>>,
        through: Option<SegmentId>,
        index: Option<IndexSnapshot>,
    ) -> Self {
        let ids = segments.iter().map(|segment| segment.id()).collect();
        let (failed, location_cache) = (OnceLock::new(), LocationCache::default());
        Self { segments, ids, through, index, failed, location_cache, maps: None }
    }

    /// The same, which makes maps of the directories when they are worth while, each in at most
    /// `most` bytes: that of an earlier catalog is used as long as it says enough.
    pub(crate) fn with_maps(mut self, known: Option<&Arc<Places>>, most: usize) -> Self {
        self.maps = Some(Maps { most, known: known.cloned(), ..Maps::default() });
        self
    }

    /// Whether it makes maps of the directories, having no index.
    pub(crate) fn has_maps(&self) -> bool {
        self.maps.is_some()
    }

    /// Where runs are in the directories, as far as this catalog or an earlier one knows.
    pub(crate) fn places(&self) -> Option<&Arc<Places>> {
        let maps = self.maps.as_ref()?;
        maps.places.get().map(|(places, _)| places).or(maps.known.as_ref())
    }

    /// The map of the runs, if it is worth while for one more lookup.
    fn map(&self) -> Option<&(Arc<Places>, Vec<usize>)> {
        let maps = self.maps.as_ref()?;
        if maps.places.get().is_none() {
            let probes = maps.probes.fetch_add(self.segments.len(), Ordering::Relaxed);
            if maps.known.is_none() && probes < PROBES {
                return None;
            }
            // One thread makes it.
            let _making = maps.making.lock();
            if maps.places.get().is_none() {
                let places = Places::of(self, maps.known.as_ref(), maps.most);
                let unlisted = places.unlisted(&self.ids);
                let _ = maps.places.set((places, unlisted));
            }
        }
        maps.places.get()
    }

    pub(crate) fn without_index(&self) -> Self {
        Self::new(self.segments.clone(), self.through, None)
    }

    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) fn location_cache(&self) -> &LocationCache {
        &self.location_cache
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
    fn blame_index(&self, failure: IndexError) {
        let _ = self.failed.set(failure);
        // It has what the index said.
        self.location_cache.clear();
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

    /// The row and the spans of a run. The index is trusted only if its spans add up to its row;
    /// otherwise a missing span would go unnoticed.
    pub(crate) fn run_state(&self, run_no: RunNo) -> Result<RunState> {
        let state = self.ask(|catalog| catalog.run_state(run_no))?;
        let whole = match &state.row {
            Some(row) => row.is_covered_by(&state.spans),
            None => state.spans.is_empty(),
        };
        if whole || !self.doubt_index() {
            return Ok(state);
        }
        self.ask(|catalog| catalog.run_state(run_no))
    }

    /// Stops asking an index whose answers contradict each other. Answers whether there is one that
    /// was asked until now.
    pub(crate) fn doubt_index(&self) -> bool {
        if self.index.is_none() || self.failed.get().is_some() {
            return false;
        }
        self.blame_index(IndexError::Damaged(Damage::IndexPages));
        true
    }

    /// Asks the directories and not the index.
    pub(crate) fn ask_directories<T>(
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
}

/// What tells a segment from another one with the same id, with another end or with another
/// directory.
pub(crate) fn stamp_of(segment: &Segment) -> u64 {
    let end = segment.sealed().map_or(0, |at| u64::from(at.end) << 32 | u64::from(at.digest));
    segment.key().salt.rotate_left(1) ^ end
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

    fn places_of(&self, run_no: RunNo) -> Option<Vec<usize>> {
        let (places, unlisted) = self.map()?;
        Some(places.of_run(run_no, &self.ids, unlisted))
    }

    fn stamp(&self, index: usize) -> u64 {
        self.segments.get(index).map_or(0, |segment| stamp_of(segment))
    }

    fn listing(&self) -> Decoded<Option<&Listing>> {
        let Some(maps) = &self.maps else { return Ok(None) };
        if maps.listing.get().is_none() {
            let _making = maps.making.lock();
            if maps.listing.get().is_none() {
                let made = Listing::of(self, maps.most)?;
                let _ = maps.listing.set(made);
            }
        }
        Ok(maps.listing.get().and_then(Option::as_ref))
    }

    fn wants_few(&self) -> bool {
        let Some(maps) = &self.maps else { return true };
        match maps.listing.get() {
            Some(listing) => listing.is_none(),
            None => maps.pages.fetch_add(1, Ordering::Relaxed) < PAGES,
        }
    }

    fn places_of_ids(&self, namespace: Option<&str>, id: &str) -> Option<Vec<usize>> {
        let (hash, (places, unlisted)) = (self.segments.first()?.ids(), self.map()?);
        let hash = match namespace {
            Some(namespace) => hash.of_document(namespace, id),
            None => hash.of_run(id),
        };
        Some(places.of_hash(hash, &self.ids, unlisted))
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
