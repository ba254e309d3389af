//! What a follower has found in the log and has not told yet, and which of it is wanted.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::reader::events::{Follow, LogCursor, Place};
use crate::engine::state::log_state::LogState;
use crate::engine::state::scan::Item;
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::types::{AgentId, Lsn, RunId, RunNo, SegmentId, Seq};

/// Which runs are followed.
#[derive(Debug)]
pub(super) enum Wanted {
    Everything,
    Agent(AgentId),
    Run { agent: Option<AgentId>, run: RunId, number: Option<RunNo> },
}

impl Wanted {
    pub(super) fn new(follow: Follow<'_>) -> Result<Self> {
        Ok(match follow {
            Follow::Everything => Self::Everything,
            Follow::Agent(agent) => Self::Agent(AgentId::new(agent)?),
            Follow::Run(run) => Self::Run {
                agent: run.agent().map(AgentId::new).transpose()?,
                run: RunId::new(run.run())?,
                number: run.number(),
            },
        })
    }

    pub(super) fn has(&self, number: RunNo, (agent, run): &(AgentId, RunId)) -> bool {
        match self {
            Self::Everything => true,
            Self::Agent(wanted) => wanted == agent,
            Self::Run { agent: of, run: wanted, number: only } => {
                wanted == run
                    && of.as_ref().is_none_or(|of| of == agent)
                    && only.is_none_or(|only| only == number)
            }
        }
    }
}

/// Something to tell, by its place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) run_no: RunNo,
    pub(super) segment: SegmentId,
    pub(super) offset: u32,
    pub(super) in_output: bool,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Start,
    /// A record, which is one of a block or of chunks, or not.
    Record {
        seq: Seq,
        within: bool,
    },
    End,
    /// One of an EVICT; the last one of those with this order, or not.
    Eviction {
        is_last: bool,
    },
    /// A frame that cannot be read.
    Damaged {
        seq: Option<Seq>,
    },
}

/// What comes next. The deletions of one order may be in several frames.
pub(super) fn next_of(all: &mut BinaryHeap<Reverse<Found>>) -> Option<Found> {
    let Reverse(mut found) = all.pop()?;
    if let What::Eviction { is_last } = &mut found.what {
        let next = all.peek().map(|Reverse(next)| (next.place.lsn, &next.what));
        let lsn = found.place.lsn;
        *is_last = !matches!(next, Some((same, What::Eviction { .. })) if same == lsn);
    }
    Some(found)
}

impl Found {
    /// Where a later follower goes on behind it. In front of all of an EVICT that was told in part.
    pub(super) fn resume(&self) -> Place {
        let Place { lsn, item } = self.place;
        match self.what {
            What::Eviction { is_last: false } => Place { lsn, item: 0 },
            // In front of damage that stands behind the frame.
            What::Eviction { is_last: true } => Place { lsn, item: u32::MAX - 1 },
            _ => Place { lsn, item },
        }
    }
}

/// A segment, and which orders the frames in it have or had.
#[derive(Debug, Clone)]
pub(super) struct Ordered {
    /// The smallest one. Nothing is known to be missing in front of it.
    pub(super) first: Lsn,
    /// The largest one, or more if that cannot be told.
    pub(super) last: Lsn,
    pub(super) segment: Arc<Segment>,
}

impl Ordered {
    /// The gaps between these items of the segment, by their offsets, each with the largest order
    /// that a frame missing there may have had. A follower is told of the gap behind that order.
    ///
    /// An output has its runs one behind the other, so a gap in it may have had any order of the
    /// segment.
    pub(super) fn gaps<'i>(&'i self, items: &'i [Item]) -> impl Iterator<Item = (u32, Lsn)> + 'i {
        let is_output = self.segment.is_output();
        (1..).zip(items).filter(|(_, item)| item.frame().is_none()).map(move |(number, item)| {
            let mut rest = items.iter().skip(number).filter_map(Item::frame);
            let next = rest.next().filter(|_| !is_output);
            (item.offset(), next.map_or(self.last, |lexed| before(lexed.header.lsn)))
        })
    }
}

fn before(lsn: Lsn) -> Lsn {
    Lsn(lsn.0.saturating_sub(1))
}

/// All sealed segments.
pub(super) fn sealed_in_order(state: &LogState) -> Result<Vec<Ordered>> {
    let mut all = Vec::new();
    for segment in state.catalog.segments().iter().chain(&state.unapplied) {
        let (first, last) = segment.in_directory(|view| Ok((view.first_lsn(), view.last_lsn())))?;
        all.push(Ordered { first, last, segment: Arc::clone(segment) });
    }
    // The order of the log is that of the ids.
    all.sort_by_key(|one| (one.segment.is_output(), one.segment.id()));
    Ok(all)
}

/// Behind everything that is in the log of the replica, and in front of what is lost behind that.
pub(crate) fn end_of(replica: &Replica) -> Result<LogCursor> {
    let state = replica.answers.open()?;
    let mut last = state.tail.builder.last_lsn();
    for segment in state.catalog.segments().iter().chain(&state.unapplied) {
        last = last.max(segment.in_directory(|view| Ok(view.last_lsn()))?);
    }
    Ok(LogCursor::new(replica.uuid(), Place { lsn: last, item: u32::MAX - 1 }))
}
