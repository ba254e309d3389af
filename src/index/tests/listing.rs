//! The order of lists that a process without an index makes changes no answer.

use super::log::{Log, Random};
use super::model::assert_same;
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::segment::Purpose;
use crate::index::{Directories, DirectoryScan, Listing};
use crate::types::SegmentId;

/// A log with all runs in the order of lists.
struct Ordered<'l> {
    log: &'l Log,
    listing: Option<Listing>,
}

impl Directories for Ordered<'_> {
    fn segments(&self) -> &[SegmentId] {
        self.log.segments()
    }

    fn purpose(&self, index: usize) -> Purpose {
        self.log.purpose(index)
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R> {
        self.log.with(index, read)
    }

    fn listing(&self) -> Decoded<Option<&Listing>> {
        Ok(self.listing.as_ref())
    }
}

#[test]
fn lists_are_the_same_whether_all_runs_were_put_in_order_or_not() {
    let mut random = Random(5);
    for seed in 0..24 {
        let log = Log::generate(seed, 40, 24);
        let most = if random.below(3) == 0 { 900 } else { 1 << 20 };
        let listing = Listing::of(&log, most).unwrap();
        let ordered = Ordered { log: &log, listing };
        assert_same(&DirectoryScan::new(&ordered), &DirectoryScan::new(&log), &format!("{seed}"));
    }
}

#[test]
fn runs_that_do_not_fit_the_memory_are_not_put_in_order() {
    let log = Log::generate(3, 60, 24);
    assert!(Listing::of(&log, 1).unwrap().is_none(), "a part of the runs is no list");
}
