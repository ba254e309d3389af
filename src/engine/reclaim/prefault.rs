//! What a thread does ahead of lookups: it tells the locator where the runs of a store are that was
//! just opened, and maps segments before they are read. The first touch of a page that is in the
//! page cache costs a fault, and most of the first read of a run is that fault.
//!
//! The thread maps the sealed segments, the newest first after the opening, then each one that is
//! sealed. It maps only pages in the page cache, so it neither reads from the device nor fills
//! holes. It holds a segment only under a lock ([`Reclaimer::await_prefault`]), so it never delays
//! that an extent becomes free.

use std::sync::Arc;

use crate::engine::read::Moment;
use crate::engine::reclaim::Reclaimer;
use crate::types::SegmentId;

/// Which segments were mapped.
#[derive(Debug, Default)]
pub(crate) struct Prefault {
    /// The oldest and the newest segment that was mapped, or both that of the tail at first.
    mapped: Option<(SegmentId, SegmentId)>,
    /// No older segment is to be mapped.
    is_over: bool,
    /// How many bytes of older segments were mapped.
    bytes: u64,
    /// The locator has the segments that the store had when it was opened. Who adds segments to the
    /// catalog tells it at once.
    has_located: bool,
}

impl Reclaimer {
    /// Maps the next segment; returns whether there was one.
    pub(crate) fn prefault_next(&self) -> bool {
        let most = self.log.setup.options.prefault;
        let mut prefault = self.prefault.lock();
        if !prefault.has_located {
            prefault.has_located = true;
            let moment = Moment::of(&self.log.state.lock());
            for segment in moment.catalog.waiting(&moment.deleted) {
                if self.log.due.is_stopping() {
                    return false;
                }
                moment.catalog.locate(segment, &moment.deleted);
            }
            return true;
        }
        let tail = self.log.commit.written().segment;
        let (oldest, newest) = prefault.mapped.unwrap_or((tail, tail));
        if most == 0 || self.log.disk.is_closed() || prefault.is_over && newest >= tail {
            return false;
        }
        let (catalog, fresh) = {
            let state = self.log.state.lock();
            let newer = state.unapplied.iter().find(|segment| segment.id() >= newest);
            (Arc::clone(&state.catalog), newer.cloned())
        };
        let older = catalog.segments().partition_point(|segment| segment.id() < oldest);
        let newer = catalog.segments().partition_point(|segment| segment.id() < newest);
        let newer = catalog.segments().get(newer).cloned().into_iter().chain(fresh);
        if let Some(segment) = newer.min_by_key(|segment| segment.id()) {
            prefault.mapped = Some((oldest, SegmentId(segment.id().0 + 1)));
            segment.prefault();
        } else if let Some(place) = older.checked_sub(1).filter(|_| !prefault.is_over)
            && let Some(segment) = catalog.segments().get(place)
        {
            prefault.mapped = Some((segment.id(), newest));
            prefault.bytes = prefault.bytes.saturating_add(segment.prefault());
            prefault.is_over = prefault.bytes >= most;
        } else {
            prefault.mapped = Some((oldest, newest.max(tail)));
            prefault.is_over = true;
            return false;
        }
        true
    }

    /// Waits until no segment is held that was retired before the call.
    pub(crate) fn await_prefault(&self) {
        drop(self.prefault.lock());
    }
}
