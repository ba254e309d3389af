//! Walks the directories of many segments at once, run by run.
//!
//! Each directory lists its runs and its evictions by run number. Merging these lists gives, for
//! one run after the other in ascending order, everything the log says of it, in the order of the
//! log, with memory for one position per directory.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::row::RunState;
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::types::{RunNo, SegmentId};

/// The directories of the sealed segments, however they are kept.
pub(crate) trait Directories {
    /// The segments that have a directory, ascending.
    fn segments(&self) -> &[SegmentId];

    /// Reads the directory of the segment at `index` of [`Directories::segments`]. None when it
    /// cannot be read; the answers then leave out what only this segment says.
    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> R) -> Option<R>;
}

/// Which of a directory's two lists. Entries come before evictions of the same segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    Runs,
    Evictions,
}

/// One thing that the log says of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Said {
    /// The place of the segment in [`Directories::segments`].
    pub(super) directory: usize,
    pub(super) list: List,
    /// The place in the list.
    pub(super) index: u32,
}

/// Walks runs by number.
#[derive(Debug)]
pub(super) struct Merge<'a, D> {
    directories: &'a D,
    heap: BinaryHeap<Reverse<(RunNo, Said)>>,
}

impl<'a, D: Directories> Merge<'a, D> {
    /// The runs above `after` in the first `count` directories.
    pub(super) fn new(directories: &'a D, count: usize, after: Option<RunNo>) -> Decoded<Self> {
        let mut heap = BinaryHeap::new();
        for directory in 0..count {
            for list in [List::Runs, List::Evictions] {
                let first = directories.with(directory, |view| first_above(&view, list, after));
                if let Some((run_no, index)) = first.transpose()?.flatten() {
                    heap.push(Reverse((run_no, Said { directory, list, index })));
                }
            }
        }
        Ok(Self { directories, heap })
    }

    /// Puts what the log says of the next run into `said`, and returns the run.
    pub(super) fn next_run(&mut self, said: &mut Vec<Said>) -> Decoded<Option<RunNo>> {
        said.clear();
        let mut current = None;
        while let Some(mut top) = self.heap.peek_mut() {
            let Reverse((run_no, found)) = *top;
            if *current.get_or_insert(run_no) != run_no {
                break;
            }
            said.push(found);
            let next = Said { index: found.index + 1, ..found };
            let next_no = self
                .directories
                .with(found.directory, |view| number(&view, next.list, next.index))
                .transpose()?
                .flatten();
            match next_no {
                Some(next_no) => *top = Reverse((next_no, next)),
                None => drop(PeekMut::pop(top)),
            }
        }
        Ok(current)
    }
}

/// What the log says of one run in the first `count` directories, in the order of the log.
pub(super) fn said_of<D: Directories>(
    directories: &D,
    count: usize,
    run_no: RunNo,
) -> Decoded<Vec<Said>> {
    let mut said = Vec::new();
    for directory in 0..count {
        let found = directories.with(directory, |view| {
            let run = view.find_no(run_no)?;
            let after = run_no.0.checked_sub(1).map(RunNo);
            let eviction = first_above(&view, List::Evictions, after)?;
            let eviction = eviction.filter(|(evicted, _)| *evicted == run_no);
            Ok((run, eviction.map(|(_, index)| index)))
        });
        let Some((run, eviction)) = found.transpose()? else {
            continue;
        };
        said.extend(run.map(|index| Said { directory, list: List::Runs, index }));
        said.extend(eviction.map(|index| Said { directory, list: List::Evictions, index }));
    }
    Ok(said)
}

/// Folds what the log says of one run.
pub(super) fn fold<D: Directories>(directories: &D, said: &[Said]) -> Decoded<RunState> {
    let mut state = RunState::default();
    for found in said {
        let Some(&segment) = directories.segments().get(found.directory) else {
            continue;
        };
        match found.list {
            List::Evictions => state.evict(),
            List::Runs => {
                let entry = directories.with(found.directory, |view| view.run(found.index));
                if let Some(entry) = entry.transpose()? {
                    state.apply(segment, found.index, &entry);
                }
            }
        }
    }
    Ok(state)
}

/// The run number at a place of a list; none behind its end.
fn number(view: &Directory<'_>, list: List, index: u32) -> Decoded<Option<RunNo>> {
    let (len, read): (_, fn(&Directory<'_>, u32) -> Decoded<RunNo>) = match list {
        List::Runs => (view.run_count(), |view, index| view.run_no(index)),
        List::Evictions => (view.eviction_count(), |view, index| view.eviction(index)),
    };
    if index < len { read(view, index).map(Some) } else { Ok(None) }
}

/// The first run number of a list above `after`, and its place.
fn first_above(
    view: &Directory<'_>,
    list: List,
    after: Option<RunNo>,
) -> Decoded<Option<(RunNo, u32)>> {
    let len = match list {
        List::Runs => view.run_count(),
        List::Evictions => view.eviction_count(),
    };
    let (mut low, mut high) = (0, len);
    while after.is_some() && low < high {
        let middle = low + (high - low) / 2;
        if number(view, list, middle)? <= after {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(number(view, list, low)?.map(|run_no| (run_no, low)))
}
