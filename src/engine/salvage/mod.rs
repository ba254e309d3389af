//! Reading everything that can still be read out of a damaged store into a new one.
//!
//! 1. [`locate`] finds the segments: by the manifest if it is whole, else by their headers. Pages
//!    that the device cannot read are zeros ([`skip_unreadable`]).
//! 2. [`scan`] reads each segment once: which runs there are, where their frames are, and which
//!    runs were deleted.
//! 3. [`new_store`] writes run after run into the new store, and [`read`] reads the frames for it.
//!
//! A record is known by the number of its run and its sequence, so it does not matter in which of
//! several copies it is read.

mod locate;
mod new_store;
mod read;
pub(crate) mod replace;
pub(crate) mod report;
mod scan;
mod skip_unreadable;

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use crate::engine::open::create::write_store;
use crate::engine::salvage::locate::{Located, locate};
use crate::engine::salvage::new_store::NewStore;
use crate::engine::salvage::report::{Caveat, Missing, SalvageReport};
use crate::engine::salvage::scan::scan;
use crate::engine::salvage::skip_unreadable::SkipUnreadable;
use crate::engine::setup::options::{Compaction, Options};
use crate::engine::storage::{Creation, FileStorage, Storage};
use crate::error::{Error, Result};
use crate::format::frames::block::MAX_RECORD;

/// Reads everything that can still be read out of the damaged store at `broken` into a new store at
/// `out`, and reports what is missing. The header, the superblocks, the manifest, directories and
/// the index may be lost.
///
/// The damaged file is only read. The new one gets its name when it is complete and durable. The
/// salvage takes about 40 bytes of memory for each frame of a record, and the ids of all runs.
///
/// - Every record whose bytes are whole comes out, unless its batch is not whole. Records keep
///   their order, time, kind, content type and bytes. If one is missing, the sequences of the later
///   ones of its run get smaller.
/// - Numbers of runs and versions of documents are larger than all that the file names; orders are
///   those of a new store.
/// - A document has the latest value that can be read.
/// - Runs in progress stay in progress. Holds are as old as the salvage.
/// - Deleted runs stay deleted, as far as a deletion can still be read. Of several runs with one
///   name the last counts. Receipts are kept.
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
/// damaged store open for writing, where the system tells; [`Error::NotAStore`] if no structure in
/// the file is one of a store; [`Error::UnsupportedVersion`] and [`Error::UnsupportedFeatures`];
/// [`Error::DiskFull`]; [`Error::Io`], but not for pages that the device cannot read. After an
/// error there is no new file.
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
    let new = Arc::<FileStorage>::clone(creation.storage());
    let report = salvage_between(Arc::new(source), new)?;
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
    let located = locate(Arc::new(SkipUnreadable::new(broken)))?;
    let scan = scan(&located)?;
    let options = options_for(&located);
    write_store(&*out, &options)?;
    let log = options.start(out, None)?;
    let random = log.log().setup.options.environment.random()?;
    let last = scan.last_run_no().max(located.next_run_no);
    log.log().state.lock().leave_numbers_out(last, random);
    let mut report = SalvageReport {
        has_manifest: located.has_manifest,
        segments: located.segments.len() as u64,
        damaged: located.damaged.clone(),
        ..SalvageReport::default()
    };
    let mut store = NewStore { log: &log, located: &located, scan: &scan, report: &mut report };
    store.write_runs()?;
    store.write_receipts()?;
    // After the last read, because a page may fail at the second read.
    let bytes = scan.lost_bytes(&located);
    if !located.has_manifest {
        report.caveats.push(Caveat::NoManifest);
    }
    if scan.lost_evictions || !bytes.is_empty() {
        report.caveats.push(Caveat::Deletions);
    }
    if scan.left_out > 0 {
        report.caveats.push(Caveat::Unfinished { frames: scan.left_out });
    }
    let bytes = bytes.into_iter();
    let bytes = bytes.map(|at| Missing::Bytes { offset: at.start, len: at.end - at.start });
    report.missing.extend(bytes);
    log.close()?;
    Ok(report)
}

/// How the new store is made.
fn options_for(located: &Located) -> Options {
    let mut options = Options::new()
        .background(false)
        .index(false)
        .max_record_len(MAX_RECORD.into())
        .compaction(Compaction::new().automatic(false))
        .receipts(u64::MAX, Duration::MAX);
    options.keeps_file = true;
    match located.extent_size {
        Some(size) => options.extent_size(size.bytes()),
        None => options,
    }
}
