//! What a thread does ahead of lookups: it tells the locator where the runs of a store are that was
//! just opened, and maps segments before they are read. The first touch of a page that is in the
//! page cache costs a fault, and most of the first read of a run is that fault.
//!
//! The thread maps the tail and the sealed segments, the newest first after the opening, then each
//! one that is sealed. It maps only pages in the page cache, so it does not read from the device or
//! fill holes. It holds a segment only under a lock ([`Reclaimer::await_prefault`]), so it never
//! delays that an extent becomes free.

use std::sync::Arc;

use crate::engine::read::Moment;
use crate::engine::reclaim::Reclaimer;
use crate::engine::state::segment::{Mark, Segment};
use crate::types::SegmentId;

/// Which segments were mapped: they have [`Mark::Prefaulted`].
#[derive(Debug, Default)]
pub(crate) struct Prefault {
    /// The tail when the first step began to add the segments of the opened store to the locator.
    /// Checkpoints and compactions add later ones themselves.
    located: Option<SegmentId>,
    /// How many bytes of older segments were mapped.
    bytes: u64,
    /// Segments with smaller ids were mapped, or are not to be.
    from: SegmentId,
}

impl Reclaimer {
    /// Maps the next segment; returns whether there was one.
    pub(crate) fn prefault_next(&self) -> bool {
        let most = self.log.setup.options.prefault;
        let mut prefault = self.prefault.lock();
        let Some(first_tail) = prefault.located else {
            let (moment, tail) = {
                let state = self.log.state.lock();
                (Moment::of(&state), Arc::clone(&state.tail.segment))
            };
            prefault.located = Some(tail.id());
            for segment in moment.catalog.waiting(&moment.deleted) {
                if self.log.due.is_stopping() {
                    return false;
                }
                moment.catalog.locate(segment, &moment.deleted);
            }
            if most > 0 && !self.log.disk.is_closed() {
                let _ = tail.prefault();
            }
            return true;
        };
        if most == 0 || self.log.disk.is_closed() {
            return false;
        }
        let is_older = |segment: &Arc<Segment>| segment.id() < first_tail;
        let is_full = prefault.bytes >= most;
        let is_left = |segment: &&Arc<Segment>| {
            !(segment.is(Mark::Prefaulted) || is_full && is_older(segment))
        };
        let (catalog, fresh, tail) = {
            let state = self.log.state.lock();
            let fresh = state.unapplied.iter().rfind(is_left).cloned();
            (Arc::clone(&state.catalog), fresh, state.tail.segment.id())
        };
        let known = catalog.segments();
        let first = known.partition_point(|segment| segment.id() < prefault.from);
        let left = known.iter().skip(first).filter(is_left).chain(&fresh);
        let Some(segment) = left.max_by_key(|segment| segment.id()) else {
            // The ids of outputs and of the next segments are larger.
            prefault.from = tail;
            return false;
        };
        let bytes = segment.prefault();
        segment.note(Mark::Prefaulted);
        prefault.bytes += if is_older(segment) { bytes } else { 0 };
        true
    }

    /// Waits until no segment is held that was retired before the call.
    pub(crate) fn await_prefault(&self) {
        drop(self.prefault.lock());
    }
}
