//! Checking everything in the file, and listing every problem with its place.

mod segments;

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::read::list::count_runs;
use crate::engine::reader::Replica;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::storage::disk::Disk;
use crate::engine::verify::segments::check_segment;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::Decoded;
use crate::format::map::header::{HeaderFault, StaticHeader};
use crate::format::map::manifest::read_area;
use crate::format::map::owner;
use crate::format::map::superblock::Superblock;
use crate::format::segments::run_set::RunSet;
use crate::format::{OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT};
use crate::types::LogPosition;

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

/// How often a page is read that does not check: another process may be writing it.
const LOOKS: usize = 8;

/// The log at one moment.
struct Moment {
    /// Ascending.
    sealed: Vec<Arc<Segment>>,
    tail: Arc<Segment>,
    /// The end of the log in the tail.
    end: u32,
    deleted: Arc<RunSet>,
    /// The directory of the tail that is being built.
    directory: Vec<u8>,
}

impl Moment {
    fn of(state: &LogState) -> Self {
        let mut sealed: Vec<_> =
            state.catalog.segments().iter().chain(&state.unapplied).cloned().collect();
        sealed.sort_by_key(|segment| segment.id());
        Self {
            sealed,
            tail: Arc::clone(&state.tail.segment),
            end: state.tail.offset,
            deleted: Arc::clone(&state.deleted),
            directory: {
                let key = state.tail.segment.directory_key(state.tail.offset);
                state.tail.builder.encode(&key, state.next_run_no)
            },
        }
    }
}

impl Engine {
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.verify_front(&mut report)?;
        let counted = self.stats();
        report.runs = report.unless_damaged(counted)?.map_or(0, |counted| counted.runs);
        let reader = &self.log.reader;
        let (moment, catalog, host) = {
            let index = self.checkpoints.index.lock();
            let state = reader.open()?;
            (Moment::of(&state), Arc::clone(&state.catalog), index.host().cloned())
        };
        report.check_log(&moment, &|_| Ok(true))?;
        if let Some(host) = host.filter(|_| catalog.index().is_some()) {
            let matches = catalog.index_matches(&moment.deleted);
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

    /// Checks everything before the extents, and the manifest wherever it is.
    fn verify_front(&self, report: &mut VerifyReport) -> Result<()> {
        let allocator = self.log.space.allocator.lock();
        report.check_pages(&self.log.disk)?;
        let at = allocator.manifest.at();
        let area = self.log.disk.read_padded(at.offset, usize::try_from(at.len).unwrap_or(0))?;
        let damage = match read_area(&area, self.log.setup.uuid, at.generation) {
            Ok(read) if read.extents == *allocator.manifest.extents() => None,
            Ok(_) => Some(Damage::Mismatch),
            Err(damage) => Some(damage),
        };
        if let Some(damage) = damage {
            report.problems.push(Corruption::new(Place::Manifest { offset: at.offset }, damage));
        }
        report.bytes += at.len;
        Ok(())
    }
}

/// Checks a store that this process only reads. What the writer moved meanwhile is left out: where
/// it is now was checked, or will be the next time.
pub(crate) fn verify_replica(replica: &Arc<Replica>) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    report.check_pages(&replica.disk)?;
    let known = replica.report();
    let moment = Moment::of(&*replica.answers.open()?);
    // Directories are read below, and so are frames in front of the ends of their segments.
    let is_read = |at: LogPosition| {
        let in_sealed = |segment: &Arc<Segment>| {
            segment.id() == at.segment && segment.sealed().is_some_and(|seal| at.offset < seal.end)
        };
        let in_tail = moment.tail.id() == at.segment && at.offset < moment.end;
        in_tail || moment.sealed.iter().any(in_sealed)
    };
    let is_told = |found: &&Corruption| match found.place {
        Place::Manifest { .. } | Place::Extent { .. } => true,
        Place::Frame(at) => !is_read(at),
        _ => false,
    };
    report.problems.extend(known.damaged.iter().filter(is_told).cloned());
    report.check_log(&moment, &|segment| replica.holds(segment))?;
    report.runs = report.unless_damaged(replica.ask(count_runs))?.unwrap_or(0);
    Ok(report)
}

impl VerifyReport {
    /// Checks each segment. Problems in one count if it `holds` that the segment is still in its
    /// extent.
    fn check_log(
        &mut self,
        moment: &Moment,
        holds: &dyn Fn(&Segment) -> Result<bool>,
    ) -> Result<()> {
        let open = (moment.end, &*moment.directory);
        for segment in moment.sealed.iter().chain([&moment.tail]) {
            // A store without any segment has a tail without an extent.
            if segment.extent().0 == u32::MAX {
                continue;
            }
            let mut found = Self::default();
            verify_segment_header(segment, &mut found)?;
            found.add(check_segment(segment, open))?;
            if found.is_clean() || holds(segment)? {
                self.add(Ok(found))?;
            }
        }
        Ok(())
    }

    /// Checks what stands in front of the manifest.
    fn check_pages(&mut self, disk: &Disk) -> Result<()> {
        let header = |page: &[u8]| match StaticHeader::decode(page) {
            Err(HeaderFault::Damaged(damage)) => Err(damage),
            Err(_) => Err(Damage::Magic),
            Ok(_) => Ok(()),
        };
        self.check_page(disk, (0, Place::Header), &header)?;
        for slot in 0..2u8 {
            let at = SUPERBLOCK_AT + u64::from(slot) * PAGE;
            let superblock = |page: &[u8]| Superblock::decode(page).map(drop);
            self.check_page(disk, (at, Place::Superblock { slot }), &superblock)?;
        }
        let owner = |page: &[u8]| owner::decode(page).map(drop);
        self.check_page(disk, (OWNER_AT, Place::OwnerPage), &owner)
    }

    fn check_page(
        &mut self,
        disk: &Disk,
        (at, place): (u64, Place),
        check: &dyn Fn(&[u8]) -> Decoded<()>,
    ) -> Result<()> {
        self.bytes += PAGE;
        let mut damage = None;
        for _ in 0..LOOKS {
            match check(&disk.read_padded(at, PAGE_LEN)?) {
                Ok(()) => return Ok(()),
                Err(found) => damage = Some(found),
            }
        }
        self.problems.extend(damage.map(|damage| Corruption::new(place, damage)));
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
        self.bytes += check.bytes;
        self.problems.extend(check.problems);
        Ok(())
    }
}
