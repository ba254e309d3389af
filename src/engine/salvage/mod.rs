//! Reading everything that can still be read out of a damaged store into a new one.
//!
//! 1. [`locate`] finds the segments. From then on what the disk cannot read is zeros ([`around`]).
//! 2. [`census`] reads each of them once: which runs there are, and which were deleted; what a loss
//!    of power left of a batch does not count ([`torn`]).
//! 3. [`refill`] writes run after run into the new store; [`gather`] finds the frames of some runs
//!    at a time, and reads them.
//!
//! Records are known by the number of their run and their sequence. So it does not matter which of
//! several segments with the same record count, and the manifest is needed only to know that a
//! segment no longer counts.

mod around;
mod census;
mod gather;
mod kept;
mod locate;
mod refill;
pub(crate) mod report;
mod torn;

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::open::create::write_store;
use crate::engine::open::front_matter::read_slots;
use crate::engine::reader::only_reading::OnlyReading;
use crate::engine::salvage::around::Around;
use crate::engine::salvage::census::take_census;
use crate::engine::salvage::kept::Kept;
use crate::engine::salvage::locate::{Located, locate};
use crate::engine::salvage::refill::Refill;
use crate::engine::salvage::report::{Doubt, Missing, SalvageReport};
use crate::engine::setup::options::{Compaction, Options};
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, Storage};
use crate::engine::values::report::RecoveryReport;
use crate::error::{Error, Result};
use crate::format::frames::block::MAX_RECORD;

/// Reads everything that can still be read out of the damaged store at `broken` into a new store at
/// `out`, and reports what is missing. The header, the superblocks, the manifest, directories and
/// the index may be lost; so may the headers of segments.
///
/// The damaged file is only read. The new one gets its name when it is complete and durable. Most
/// of the memory that it takes is for the ids of runs, and about 50 bytes for each of a million
/// records, or of all records of the longest run.
///
/// - Records keep their order, time, kind, content type and bytes. If one is missing, the sequences
///   of the later ones of its run get smaller. Numbers of runs and versions of documents are larger
///   than all that the file names; orders are those of a new store.
/// - Runs in progress stay in progress. Holds are as old as the salvage.
/// - Deleted runs stay deleted, as far as a deletion can still be read; the report names what is in
///   doubt. Receipts are kept.
/// - Records that were written and never durable count, as they do after the death of a process.
/// - What has lost its name is at the agent, or in the namespace, `salvaged`.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-salvage-{}", std::process::id()));
/// # let out = path.with_extension("out");
/// # for file in [&path, &out] { let _ = std::fs::remove_file(file); }
/// let log = runlog::Options::new().open(&path)?;
/// log.start_run("planner", "run-1", ())?.append(b"step")?;
/// log.close()?;
/// # use std::os::unix::fs::FileExt as _;
/// let file = std::fs::File::options().write(true).open(&path).expect("the store");
/// file.write_all_at(&[0; 64 << 10], 0).expect("nothing is left in front of the segments");
/// assert!(runlog::Reader::open(&path).is_err());
///
/// let report = runlog::salvage(&path, &out)?;
/// assert!(report.is_complete());
/// assert_eq!(runlog::Reader::open(&out)?.trace("run-1")?.count(), 1);
/// # for file in [&path, &out] { let _ = std::fs::remove_file(file); }
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::AlreadyExists`] if there is anything at `out`; [`Error::Busy`] if a process has the
/// damaged store open for writing, where the system tells; [`Error::NotAStore`] if nothing in the
/// file shows that it was a store; [`Error::Truncated`] if it ends in front of the first segment,
/// and its header or a superblock is whole; [`Error::UnsupportedVersion`] and
/// [`Error::UnsupportedFeatures`]; [`Error::NeedsFeature`] if records are compressed and the
/// program lacks the codec; [`Error::DiskFull`]; [`Error::Io`] if the device does not answer any
/// more, or has 16 MiB in a row that cannot be read, but not for smaller places: copy such a file
/// to another device first. After an error there is no new file.
pub fn salvage(broken: impl AsRef<Path>, out: impl AsRef<Path>) -> Result<SalvageReport> {
    let (broken, out) = (broken.as_ref(), out.as_ref());
    let source = FileStorage::open_to_read(broken)?;
    if source.locked_by().is_some() {
        return Err(Error::Busy { path: broken.to_owned(), owner: None });
    }
    let creation = Creation::begin(out)?;
    if let Some(name) = creation.storage().network() {
        return Err(Error::NetworkFileSystem { name });
    }
    let kept = Kept(Arc::<FileStorage>::clone(creation.storage()));
    let report = salvage_between(Arc::new(source), Arc::new(kept))?;
    drop(creation.finish()?);
    Ok(report)
}

/// The same from a storage into an empty one.
///
/// # Errors
/// Those of [`salvage`] that are not about files.
#[cfg(any(test, feature = "unstable-internals"))]
pub fn salvage_storage(broken: Arc<dyn Storage>, out: Arc<dyn Storage>) -> Result<SalvageReport> {
    salvage_between(broken, out)
}

fn salvage_between(broken: Arc<dyn Storage>, out: Arc<dyn Storage>) -> Result<SalvageReport> {
    let broken: Arc<dyn Storage> = Arc::new(OnlyReading(broken));
    let around = Arc::new(Around::new(Arc::clone(&broken)));
    let located = locate(&Disk::without_views(broken), &around)?;
    let census = take_census(&located)?;
    around.check_answers()?;
    let options = options_for(&located);
    write_store(&*out, &options)?;
    let log = options.start(out, None)?;
    let slots = read_slots(&located.disk, &mut RecoveryReport::default())?;
    let promised = slots.iter().map(|block| block.next_run_no).max().unwrap_or_default();
    let random = log.log().setup.options.environment.random()?;
    let last = census.last_run_no().max(promised);
    log.log().state.lock().leave_numbers_out(last, random);
    let mut report = SalvageReport {
        has_manifest: located.has_manifest,
        segments: located.segments.len() as u64,
        lost_headers: located.lost_headers,
        damaged: located.damaged.clone(),
        ..SalvageReport::default()
    };
    let is_there = |run_no: &_| census.runs.get(run_no).is_some_and(|known| known.is_live);
    report.deleted = census.evicted.iter().filter(|run_no| is_there(run_no)).count() as u64;
    fill(&log, &located, &census, &mut report)?;
    around.check_answers()?;
    log.close()?;
    Ok(report)
}

fn fill(
    log: &RunLog,
    located: &Located,
    census: &census::Census,
    report: &mut SalvageReport,
) -> Result<()> {
    if !located.has_manifest {
        report.doubts.push(Doubt::NoManifest);
    }
    if census.lost_evictions > 0 {
        report.doubts.push(Doubt::Deletions { count: census.lost_evictions });
    }
    if census.uncommitted > 0 {
        report.doubts.push(Doubt::Unfinished { frames: census.uncommitted });
    }
    let mut refill = Refill::new(log, located, census, report);
    refill.write_runs()?;
    refill.write_receipts()?;
    // Behind the last read, since a sector may fail at the second.
    let lost = census.lost_bytes(&located.around).into_iter();
    report.missing.extend(lost.map(|(offset, len)| Missing::Bytes { offset, len }));
    for (&number, found) in &census.unfinished {
        let name = census.name_of_unfinished(number).cloned();
        let (agent, run) = match name {
            Some((agent, run)) => (Some(agent), Some(run)),
            None => (None, None),
        };
        let (first, count, is_document) = (found.first, found.count, found.is_document);
        let unfinished = Missing::Unfinished { agent, run, number, is_document, first, count };
        report.missing.push(unfinished);
    }
    Ok(())
}

/// How the new store is made.
fn options_for(located: &Located) -> Options {
    let options = Options::new()
        .background(false)
        .index(false)
        .max_record_len(MAX_RECORD.into())
        .compaction(Compaction::new().automatic(false))
        .receipts(u64::MAX, Duration::MAX);
    if located.is_size_known {
        return options.extent_size(located.extent_size.bytes());
    }
    options
}
