//! What a follower has found in the log and has not told yet, and which of it is wanted.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::reader::events::{Follow, Place};
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

/// The smallest order that the directory of a sealed segment has.
pub(super) fn first_order(segment: &Segment) -> Option<Lsn> {
    segment.sealed()?;
    segment.in_directory(|view| Ok(view.first_lsn())).ok()
}
