//! Checking everything that the file holds, and listing every problem with its place.

use std::sync::Arc;

use super::core::Core;
use super::recovery::{SegmentCheck, check_sealed, check_tail};
use super::segment::Segment;
use super::shared::Engine;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::header::{HeaderFault, StaticHeader};
use crate::format::manifest::{AreaHeader, read_area};
use crate::format::superblock::Superblock;
use crate::format::{OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT, owner};

/// What a check of everything found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Every problem, with its place; a damaged frame costs its record and nothing else.
    pub problems: Vec<Corruption>,
    /// Segments that were read.
    pub segments: u64,
    /// Frames that were checked.
    pub frames: u64,
    /// Records among them, large ones counted once.
    pub records: u64,
    /// Living runs.
    pub runs: u64,
    /// Runs that have frames in the segments that were read, counted per segment.
    pub run_parts: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether there was an index to compare with the segments.
    pub index_checked: bool,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Engine {
    pub(crate) fn verify(&self) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.verify_front(&mut report)?;
        report.runs = self.stats()?.runs;
        let (sealed, tail, end, catalog, deleted) = {
            let core = self.core.lock();
            self.check_open(&core)?;
            let (tail, catalog) = (Arc::clone(&core.tail.segment), Arc::clone(&core.catalog));
            (sealed_segments(&core), tail, core.tail.offset, catalog, Arc::clone(&core.deleted))
        };
        for segment in &sealed {
            verify_segment_header(segment, &mut report);
            report.add(check_sealed(segment)?);
        }
        verify_segment_header(&tail, &mut report);
        let name_of = |run_no| {
            let core = self.core.lock();
            self.row(&core, run_no).ok().map(|row| row.run)
        };
        report.add(check_tail(&tail, end, name_of)?);
        if catalog.index().is_some() {
            report.index_checked = true;
            if !catalog.index_matches(&deleted) {
                report.problems.push(Corruption::new(Place::Index, Damage::Mismatch));
            }
        }
        Ok(report)
    }

    /// Checks what stands in front of the extents, and the manifest wherever it is.
    fn verify_front(&self, report: &mut VerifyReport) -> Result<()> {
        let keeper = self.keeper.lock();
        let header = self.disk.read_padded(0, PAGE_LEN)?;
        if let Err(fault) = StaticHeader::decode(&header) {
            let damage = match fault {
                HeaderFault::Damaged(damage) => damage,
                _ => Damage::Magic,
            };
            report.problems.push(Corruption::new(Place::Header, damage));
        }
        for slot in 0..2u8 {
            let bytes = self.disk.read_padded(SUPERBLOCK_AT + u64::from(slot) * PAGE, PAGE_LEN)?;
            if let Err(damage) = Superblock::decode(&bytes) {
                let unwritten = bytes.iter().all(|&byte| byte == 0);
                if !unwritten || keeper.superblock.epoch.0 > 1 {
                    report.problems.push(Corruption::new(Place::Superblock { slot }, damage));
                }
            }
        }
        if let Err(damage) = owner::decode(&self.disk.read_padded(OWNER_AT, PAGE_LEN)?) {
            report.problems.push(Corruption::new(Place::OwnerPage, damage));
        }
        let at = keeper.manifest.at(true);
        let area = self.disk.read_padded(at.offset, usize::try_from(at.len).unwrap_or(0))?;
        let damage = match read_area(&area, self.uuid, at.generation) {
            Ok(read) if read.extents == *keeper.manifest.extents() => None,
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

fn verify_segment_header(segment: &Segment, report: &mut VerifyReport) {
    if let Err(Error::Corrupt(corruption)) = segment.header() {
        report.problems.push(corruption);
    }
}

fn sealed_segments(core: &Core) -> Vec<Arc<Segment>> {
    core.catalog.segments().iter().chain(&core.unapplied).cloned().collect()
}

impl VerifyReport {
    fn add(&mut self, check: SegmentCheck) {
        self.segments += 1;
        self.frames += check.frames;
        self.records += check.records;
        self.run_parts += check.run_parts;
        self.bytes += check.bytes;
        self.problems.extend(check.problems);
    }
}
