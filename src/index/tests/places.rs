//! The maps of a process without an index change no answer, however old they are.

use std::sync::Arc;

use super::log::{KEY, Log, Random};
use super::model::assert_same;
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::segment::Purpose;
use crate::index::{Directories, DirectoryScan, Listing, Places};
use crate::types::{RunNo, SegmentId};

/// A log with maps of it.
struct Mapped<'l> {
    log: &'l Log,
    places: Option<Arc<Places>>,
    listing: Option<Listing>,
}

impl<'l> Mapped<'l> {
    fn new(log: &'l Log, known: Option<&Arc<Places>>, most: usize) -> Self {
        let mut mapped = Self { log, places: None, listing: None };
        let places = Places::of(&mapped, known, most);
        mapped.listing = Listing::of(&mapped, most).unwrap();
        mapped.places = Some(places);
        mapped
    }
}

impl Directories for Mapped<'_> {
    fn segments(&self) -> &[SegmentId] {
        self.log.segments()
    }

    fn purpose(&self, index: usize) -> Purpose {
        self.log.purpose(index)
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R> {
        self.log.with(index, read)
    }

    fn stamp(&self, index: usize) -> u64 {
        self.log.stamp(index)
    }

    fn listing(&self) -> Decoded<Option<&Listing>> {
        Ok(self.listing.as_ref())
    }

    fn wants_few(&self) -> bool {
        self.listing.is_none()
    }

    fn places_of(&self, run_no: RunNo) -> Option<Vec<usize>> {
        let (places, ids) = (self.places.as_ref()?, self.log.segments());
        Some(places.of_run(run_no, ids, &places.unlisted(ids)))
    }

    fn places_of_ids(&self, namespace: Option<&str>, id: &str) -> Option<Vec<usize>> {
        let (places, ids) = (self.places.as_ref()?, self.log.segments());
        let hash = match namespace {
            Some(namespace) => KEY.ids.of_document(namespace, id),
            None => KEY.ids.of_run(id),
        };
        Some(places.of_hash(hash, ids, &places.unlisted(ids)))
    }
}

fn part(log: &Log, from: usize, to: usize) -> Log {
    Log {
        segments: log.segments[from..to].to_vec(),
        directories: log.directories[from..to].to_vec(),
    }
}

#[test]
fn maps_of_an_earlier_moment_change_no_answer() {
    let mut random = Random(5);
    for seed in 0..24 {
        let log = Log::generate(seed, 40, 24);
        let count = log.segments.len();
        let cut = usize::try_from(random.below(count as u64 + 1)).unwrap();
        let most = [0, 900, 1 << 20][usize::try_from(seed % 3).unwrap()];
        let before = part(&log, 0, cut);
        let known = Mapped::new(&before, None, most).places.unwrap();
        // The oldest segments are gone, and others came.
        let now = part(&log, cut / 3, count);
        let mapped = Mapped::new(&now, Some(&known), most);
        let context = format!("seed {seed}, {cut} of {count}, {most} bytes");
        assert_same(&DirectoryScan::new(&mapped), &DirectoryScan::new(&now), &context);
    }
}

#[test]
fn another_segment_with_the_same_id_is_not_taken_for_the_one_that_was_mapped() {
    let (one, other) = (Log::generate(1, 12, 9), Log::generate(2, 12, 9));
    let known = Mapped::new(&one, None, 1 << 20).places.unwrap();
    let mapped = Mapped::new(&other, Some(&known), 1 << 20);
    assert_same(&DirectoryScan::new(&mapped), &DirectoryScan::new(&other), "replaced");
}

#[test]
fn a_map_that_has_no_room_is_not_made_again_each_time() {
    let log = Log::generate(3, 60, 24);
    let known = Mapped::new(&log, None, 1).places.unwrap();
    let again = Mapped::new(&log, Some(&known), 1);
    assert!(Arc::ptr_eq(&known, again.places.as_ref().unwrap()));
    assert!(again.listing.is_none(), "a part of the runs is no list");
}
