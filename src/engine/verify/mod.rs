//! Checking everything in the file, and listing every problem with its place.

mod replica;
mod segments;

pub(crate) use replica::verify_replica;

use core::cell::RefCell;
use core::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::read::trace::Trace;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::verify::segments::{Large, check_sealed, check_tail, read_large};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::map::header::{HeaderFault, StaticHeader};
use crate::format::map::manifest::{AreaHeader, read_area};
use crate::format::map::owner;
use crate::format::map::superblock::Superblock;
use crate::format::{OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT};
use crate::index::{DirectoryScan, RunRow, Span};
use crate::types::{RunNo, SegmentId, Seq};

/// The result of checking everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "the problems that were found are in the report"]
pub struct VerifyReport {
    /// Every problem, with its place. A damaged frame affects only its record.
    pub problems: Vec<Corruption>,
    /// How many segments were read.
    pub segments: u64,
    /// How many frames were checked.
    pub frames: u64,
    /// How many records they have; a large record counts once.
    pub records: u64,
    /// How many runs live.
    pub runs: u64,
    /// How many runs have frames in each segment, summed over the segments.
    pub run_parts: u64,
    /// How many bytes were read.
    pub bytes: u64,
    /// Whether the index was compared: there was one, and it was not dropped meanwhile.
    pub index_checked: bool,
}

impl VerifyReport {
    /// Whether there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Engine {
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.verify_front(&mut report)?;
        let counted = self.stats();
        report.runs = report.unless_damaged(counted)?.map_or(0, |counted| counted.runs);
        let (sealed, tail, end, catalog, deleted, host, in_tail) = {
            let index = self.checkpoints.index.lock();
            let state = self.log.reader.open()?;
            let (tail, catalog) = (Arc::clone(&state.tail.segment), Arc::clone(&state.catalog));
            let (end, deleted) = (state.tail.offset, Arc::clone(&state.deleted));
            let runs = state.tail.builder.runs().iter().map(|built| &built.entry);
            let in_tail = runs.filter_map(|run| Some((run.run_no, run.first_seq?))).collect();
            (sealed_segments(&state), tail, end, catalog, deleted, index.host().cloned(), in_tail)
        };
        let mut large = Large::new();
        let row_of = |run_no| self.log.reader.row_of(run_no).ok().flatten();
        let name_of = |run_no| row_of(run_no).map(|row| (row.agent, row.run));
        for segment in &sealed {
            verify_segment_header(segment, &mut report)?;
            report.add(check_sealed(segment, &name_of, &mut large))?;
        }
        verify_segment_header(&tail, &mut report)?;
        report.add(check_tail(&tail, end, &name_of, &mut large))?;
        self.verify_large(large, &mut report)?;
        verify_sequences(sealed, (tail.id(), &in_tail), &deleted, &mut report)?;
        if let Some(host) = host.filter(|_| catalog.index().is_some()) {
            let matches = catalog.index_matches(&deleted);
            // An index that was dropped meanwhile does not answer, which is not a problem.
            let matches = report.unless_damaged(matches)?.flatten();
            let matches = matches.filter(|matches| *matches || !host.is_detached());
            report.index_checked = matches.is_some();
            if matches == Some(false) {
                report.problems.push(Corruption::new(Place::Index, Damage::Mismatch));
            }
        }
        Ok(report)
    }

    fn verify_large(&self, large: Large, report: &mut VerifyReport) -> Result<()> {
        for (run_no, seqs) in large {
            let opened = report.unless_damaged(self.log.reader.open_number(run_no))?;
            // It may have been deleted meanwhile.
            let Some(opened) = opened.flatten() else { continue };
            let trace = Trace::new(Arc::new(opened), run_no, None);
            read_large(trace, &seqs, report)?;
        }
        Ok(())
    }

    /// Checks everything before the extents, and the manifest wherever it is.
    fn verify_front(&self, report: &mut VerifyReport) -> Result<()> {
        let allocator = self.log.space.allocator.lock();
        let header = self.log.disk.read_padded(0, PAGE_LEN)?;
        if let Err(fault) = StaticHeader::decode(&header) {
            let damage = match fault {
                HeaderFault::Damaged(damage) => damage,
                _ => Damage::Magic,
            };
            report.problems.push(Corruption::new(Place::Header, damage));
        }
        for slot in 0..2u8 {
            let bytes =
                self.log.disk.read_padded(SUPERBLOCK_AT + u64::from(slot) * PAGE, PAGE_LEN)?;
            if let Err(damage) = Superblock::decode(&bytes) {
                report.problems.push(Corruption::new(Place::Superblock { slot }, damage));
            }
        }
        if let Err(damage) = owner::decode(&self.log.disk.read_padded(OWNER_AT, PAGE_LEN)?) {
            report.problems.push(Corruption::new(Place::OwnerPage, damage));
        }
        let at = allocator.manifest.at();
        let area = self.log.disk.read_padded(at.offset, usize::try_from(at.len).unwrap_or(0))?;
        let damage = match read_area(&area, self.log.setup.uuid, at.generation) {
            Ok(read) if read.extents == *allocator.manifest.extents() => None,
            Ok(_) => Some(Damage::Mismatch),
            Err(damage) => Some(damage),
        };
        let damage = damage.or_else(|| AreaHeader::decode(&area).err());
        if let Some(damage) = damage {
            report.problems.push(Corruption::new(Place::Manifest { offset: at.offset }, damage));
        }
        report.bytes += 4 * PAGE + at.len;
        Ok(())
    }
}

fn verify_segment_header(segment: &Segment, report: &mut VerifyReport) -> Result<()> {
    match segment.header() {
        // Zeroed on purpose: the segment was retired after the check began.
        Err(Error::Corrupt(_)) if segment.is(Mark::Retired) => {}
        Err(Error::Corrupt(corruption)) => report.problems.push(corruption),
        read => drop(read?),
    }
    Ok(())
}

/// Reports runs whose records in a segment overlap those of an earlier segment, or do not directly
/// follow them: records in between are lost.
fn verify_sequences(
    sealed: Vec<Arc<Segment>>,
    (tail, in_tail): (SegmentId, &HashMap<RunNo, Seq>),
    deleted: &HashSet<RunNo>,
    report: &mut VerifyReport,
) -> Result<()> {
    let catalog = Catalog::new(sealed, None, None);
    let found = RefCell::new(Vec::new());
    let walk = |row: RunRow, spans: Vec<Span>| {
        let sealed =
            spans.iter().filter_map(|span| Some((span.segment, span.first_seq?, span.next_seq)));
        let last = in_tail.get(&row.run_no).map(|first| (tail, *first, *first));
        let mut next = Seq(0);
        let odd = sealed.chain(last).find_map(|(segment, first, end)| {
            let odd = match first.cmp(&next) {
                Ordering::Less => Some((segment, Damage::Repeated, first)),
                Ordering::Equal => None,
                Ordering::Greater => Some((segment, Damage::Missing, next)),
            };
            next = next.max(end);
            odd
        });
        if let Some((segment, damage, seq)) = odd
            && !deleted.contains(&row.run_no)
        {
            let odd = Corruption::new(Place::Directory { segment }, damage);
            found.borrow_mut().push(odd.of(&row.agent, &row.run).at(Some(seq)));
        }
        Ok(())
    };
    let walked = catalog.ask_directories(|_| {
        found.borrow_mut().clear();
        DirectoryScan::new(&catalog).each_state(&walk)
    });
    let is_clean = report.is_clean();
    report.problems.append(&mut found.borrow_mut());
    match walked {
        Err(Error::Corrupt(damage)) if is_clean => report.problems.push(damage),
        Err(Error::Corrupt(_)) => {}
        walked => walked?,
    }
    Ok(())
}

/// The sealed segments, ascending.
fn sealed_segments(state: &LogState) -> Vec<Arc<Segment>> {
    let mut sealed: Vec<_> =
        state.catalog.segments().iter().chain(&state.unapplied).cloned().collect();
    sealed.sort_by_key(|segment| segment.id());
    sealed
}

impl VerifyReport {
    /// The result, or `None` for damage, which is reported once per place.
    fn unless_damaged<T>(&mut self, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Error::Corrupt(damage)) => {
                if !self.problems.iter().any(|known| known.place == damage.place) {
                    self.problems.push(damage);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds the result of checking a segment.
    fn add(&mut self, check: Result<Self>) -> Result<()> {
        let Some(check) = self.unless_damaged(check)? else { return Ok(()) };
        self.segments += check.segments;
        self.frames += check.frames;
        self.records += check.records;
        self.run_parts += check.run_parts;
        self.bytes += check.bytes;
        self.problems.extend(check.problems);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::storage::MemoryStorage;
    use crate::types::Seq;
    use crate::{Options, RunLog};

    /// Appends to the run until the log continues in another segment.
    fn fill(log: &RunLog) {
        let full = log.stats().unwrap().end.segment;
        while log.stats().unwrap().end.segment == full {
            let _ = log.writer("run").unwrap().append(&[7; 5_000]).unwrap();
        }
    }

    #[test]
    fn a_run_that_has_records_twice_in_several_segments_is_told() {
        let options = Options::new().extent_size(64 << 10).background(false);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        drop(log.start_run("agent", "run", ()).unwrap());
        let run_no = log.run("run").unwrap().number();
        fill(&log);
        log.checkpoint().unwrap();
        let _ = log.writer("run").unwrap().append(b"the first of another segment").unwrap();
        let twice = log.trace("run").unwrap().count() as u64 - 3;
        assert!(log.verify().unwrap().is_clean());
        log.log().roll(&mut log.log().state.lock()).unwrap();
        log.engine().log.state.lock().active.get_mut(run_no).unwrap().next_seq = Seq(twice);
        // In the tail, in a sealed segment, and in one that the index covers.
        for _ in 0..3 {
            let _ = log.writer("run").unwrap().append(b"again").unwrap();
            let told = log.verify().unwrap().problems;
            let [told] = told.as_slice() else { panic!("{told:?}") };
            assert_eq!((told.run.as_ref().unwrap().as_str(), told.seq), ("run", Some(Seq(twice))));
            log.log().roll(&mut log.log().state.lock()).unwrap();
            log.checkpoint().unwrap();
        }
    }
}
