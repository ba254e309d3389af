//! Walks the directories of many segments at once, run by run.
//!
//! Each directory lists its runs and its evictions by run number. Merging these lists gives each
//! run in ascending order, with its entries in all directories, in memory for one position per
//! directory. A run that any of these directories evicts is left out, wherever its entries are.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::listing::Listing;
use super::row::RunRow;
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::segment::Purpose;
use crate::types::{RunNo, SegmentId};

/// The directories of the sealed segments, independent of how they are stored.
pub(crate) trait Directories {
    /// The segments that have a directory, ascending.
    fn segments(&self) -> &[SegmentId];

    /// The purpose of the segment at `index` of [`Directories::segments`].
    fn purpose(&self, index: usize) -> Purpose;

    /// Reads the directory of the segment at `index` of [`Directories::segments`].
    ///
    /// # Errors
    /// [`Damage::Missing`] if it cannot be read, so that the answer never leaves out what only this
    /// segment says.
    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R>;

    /// The indexes, ascending, of the only directories that can have entries of the run of which
    /// this is one; `None` if that is not known.
    fn places_beside(&self, said: Said) -> Option<Vec<usize>> {
        let _ = said;
        None
    }

    /// All runs in the order of lists, if that is kept.
    ///
    /// # Errors
    /// As [`Directories::with`].
    fn listing(&self) -> Decoded<Option<&Listing>> {
        Ok(None)
    }
}

/// How far an index goes. Compaction outputs are counted separately, since their numbers are
/// unrelated to the order of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Applied {
    /// The last segment of the log that was applied.
    pub(crate) log: Option<SegmentId>,
    /// The largest number of an applied output.
    pub(crate) outputs: Option<SegmentId>,
}

impl Applied {
    /// Whether the index covers a segment.
    pub(crate) fn covers(self, segment: SegmentId, purpose: Purpose) -> bool {
        let last = match purpose {
            Purpose::Log => self.log,
            Purpose::Output => self.outputs,
        };
        Some(segment) <= last
    }
}

/// Which directories are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// All.
    All,
    /// Those of the segments that an index covers.
    UpTo(Applied),
}

impl Reach {
    /// The indexes of the directories in [`Directories::segments`].
    pub(super) fn places<D: Directories>(self, directories: &D) -> impl Iterator<Item = usize> {
        (0..directories.segments().len()).filter(move |index| self.has(directories, *index))
    }

    fn has<D: Directories>(self, directories: &D, index: usize) -> bool {
        let Some(&segment) = directories.segments().get(index) else { return false };
        match self {
            Self::UpTo(applied) => applied.covers(segment, directories.purpose(index)),
            Self::All => true,
        }
    }
}

/// One of a directory's two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Evictions,
    Runs,
}

/// A position in a list of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    directory: usize,
    list: List,
    index: u32,
}

/// The entry of a run in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    /// The index of the segment in [`Directories::segments`].
    pub(crate) directory: usize,
    /// The slot in the run table.
    pub(crate) slot: u32,
}

/// Walks runs by number.
#[derive(Debug)]
pub(super) struct Merge<'a, D> {
    directories: &'a D,
    heap: BinaryHeap<Reverse<(RunNo, Place)>>,
}

impl<'a, D: Directories> Merge<'a, D> {
    /// The runs above `after`.
    pub(super) fn new(directories: &'a D, reach: Reach, after: Option<RunNo>) -> Decoded<Self> {
        let mut heap = BinaryHeap::new();
        for directory in reach.places(directories) {
            for list in [List::Evictions, List::Runs] {
                let first = directories.with(directory, |view| first_above(&view, list, after))?;
                if let Some((run_no, index)) = first {
                    heap.push(Reverse((run_no, Place { directory, list, index })));
                }
            }
        }
        Ok(Self { directories, heap })
    }

    /// Writes the entries of the next run that was not evicted into `said`, and returns the run.
    pub(super) fn next_run(&mut self, said: &mut Vec<Said>) -> Decoded<Option<RunNo>> {
        loop {
            said.clear();
            let mut current = None;
            let mut evicted = false;
            while let Some(mut top) = self.heap.peek_mut() {
                let Reverse((run_no, found)) = *top;
                if *current.get_or_insert(run_no) != run_no {
                    break;
                }
                match found.list {
                    List::Evictions => evicted = true,
                    List::Runs => {
                        said.push(Said { directory: found.directory, slot: found.index });
                    }
                }
                let next = Place { index: found.index + 1, ..found };
                let next_no = self
                    .directories
                    .with(found.directory, |view| number(&view, next.list, next.index))?;
                match next_no {
                    Some(next_no) => *top = Reverse((next_no, next)),
                    None => drop(PeekMut::pop(top)),
                }
            }
            if current.is_none() || !evicted {
                return Ok(current);
            }
        }
    }
}

/// The entries of one run; empty if one of the directories evicts it.
pub(super) fn said_of<D: Directories>(
    directories: &D,
    reach: Reach,
    run_no: RunNo,
) -> Decoded<Vec<Said>> {
    let mut said = Vec::new();
    for directory in reach.places(directories) {
        let found = directories.with(directory, |view| {
            let after = run_no.0.checked_sub(1).map(RunNo);
            let eviction = first_above(&view, List::Evictions, after)?;
            let evicted = eviction.is_some_and(|(evicted, _)| evicted == run_no);
            Ok((evicted, if evicted { None } else { view.find_no(run_no)? }))
        });
        let (is_evicted, slot) = found?;
        if is_evicted {
            return Ok(Vec::new());
        }
        said.extend(slot.map(|slot| Said { directory, slot }));
    }
    Ok(said)
}

/// All entries of the run of which this is one. No directory may evict it.
pub(super) fn said_beside<D: Directories>(directories: &D, said: Said) -> Decoded<Vec<Said>> {
    let run_no = directories.with(said.directory, |view| view.run_no(said.slot))?;
    let places = directories.places_beside(said);
    let places = places.unwrap_or_else(|| (0..directories.segments().len()).collect());
    let find = |directory: usize| {
        let slot = directories.with(directory, |view| view.find_no(run_no));
        slot.map(|slot| Some(Said { directory, slot: slot? })).transpose()
    };
    places.into_iter().filter_map(find).collect()
}

/// Folds the entries of one run.
pub(super) fn fold<D: Directories>(directories: &D, said: &[Said]) -> Decoded<Option<RunRow>> {
    let mut row: Option<RunRow> = None;
    for found in said {
        let Some(&segment) = directories.segments().get(found.directory) else {
            continue;
        };
        let entry = directories.with(found.directory, |view| view.run(found.slot))?;
        match &mut row {
            Some(row) => row.apply(segment, &entry),
            none => *none = Some(RunRow::first(segment, &entry)),
        }
    }
    Ok(row)
}

/// The run number at a position of a list; `None` behind its end.
fn number(view: &Directory<'_>, list: List, index: u32) -> Decoded<Option<RunNo>> {
    let (len, read): (_, fn(&Directory<'_>, u32) -> Decoded<RunNo>) = match list {
        List::Runs => (view.run_count(), |view, index| view.run_no(index)),
        List::Evictions => (view.eviction_count(), |view, index| Ok(view.eviction(index)?.run_no)),
    };
    if index < len { read(view, index).map(Some) } else { Ok(None) }
}

/// The first run number of a list above `after`, and its position.
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
