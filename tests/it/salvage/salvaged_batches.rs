//! Salvage of batches that a loss of power tore: a document is as an opening in another boot finds
//! it, whatever was written behind the batch, and what is in doubt is told.

use std::sync::Arc;

use runlog::env::{Environment, Step};
use runlog::format::frames::frame::{FLAG_DOCUMENT, LONG_HEADER_LEN};
use runlog::format::{FrameKind, MANIFEST_AT};
use runlog::salvaged::{Caveat, Missing};
use runlog::storage::MemoryStorage;
use runlog::{
    Batch, Durability, Metadata, NewRecord, Options, Outcome, ReaderOptions, RunLog, SalvageReport,
    salvage_storage,
};

use crate::support::background::Background;
use crate::support::frames::{EXTENT, Frame, frames_in, unindexed};

/// A document as a store has it.
fn document(log: &RunLog, key: &str) -> Option<Vec<u8>> {
    let found = log.docs().get("state", key).unwrap()?;
    Some(found.payload().to_vec())
}

/// The same after an opening in another boot.
fn opened(image: &[u8], key: &str) -> Option<Vec<u8>> {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    document(&unindexed().open_storage(storage).unwrap(), key)
}

/// The report of a salvage, and what the new store has of a document.
fn salvaged(image: &[u8], key: &str) -> (SalvageReport, Option<Vec<u8>>) {
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let report = salvage_storage(broken, out.clone()).unwrap();
    let reader = ReaderOptions::new().open_storage(out).unwrap();
    let found = reader.docs().get("state", key).unwrap();
    (report, found.map(|found| found.payload().to_vec()))
}

fn has_lost_deletions(report: &SalvageReport) -> bool {
    report.caveats.contains(&Caveat::Deletions)
}

fn put(log: &RunLog, key: &str, value: &[u8]) {
    let value = NewRecord::new(value).durability(Durability::Process);
    let _ = log.docs().put("state", key, &value).unwrap();
}

/// A store with a durable document, its next version, which is not durable, and whatever `behind`
/// appends to a run.
fn with_two_versions(next: &[u8], behind: impl FnOnce(&RunLog, &Background)) -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let background = Background::default();
    let environment = Environment::system();
    let options = Options::new().extent_size(EXTENT as u64).index(false);
    let options = options.environment(environment).scheduler(Arc::new(background.clone()));
    let log = options.create_storage(storage.clone()).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let _ = log.start_run("agent", "run", about).unwrap();
    let _ = background.run(Step::Reserve);
    put(&log, "key", b"durable");
    log.sync().unwrap();
    put(&log, "key", next);
    behind(&log, &background);
    storage.to_bytes()
}

fn append(log: &RunLog) {
    let record = NewRecord::new(&[1; 5000]).durability(Durability::Process);
    let _ = log.writer("run").unwrap().append_record(&record).unwrap();
}

/// The last frame of a kind that is of a document, or of nothing.
fn last(image: &[u8], kind: FrameKind) -> Frame {
    let is_one = |frame: &Frame| {
        let is_commit = kind == FrameKind::Commit;
        frame.1.kind == kind && (is_commit || frame.1.flags & FLAG_DOCUMENT != 0)
    };
    frames_in(image, 0).into_iter().rfind(is_one).unwrap()
}

/// The SEAL frame of the segment was stored, and lists what was lost.
#[test]
fn a_directory_is_not_believed_about_a_document_whose_next_version_was_torn() {
    let roll = |log: &RunLog, _: &Background| {
        let first = log.stats().unwrap().end.segment;
        while log.stats().unwrap().end.segment == first {
            append(log);
        }
    };
    let image = with_two_versions(&[7; 2000], roll);
    assert_eq!(salvaged(&image, "key").1, Some(vec![7; 2000]));
    assert_eq!(frames_in(&image, 0).last().unwrap().1.kind, FrameKind::Seal);
    let (torn, _) = last(&image, FrameKind::Put);
    for harm in [torn.start + 1024..torn.end, torn] {
        let mut image = image.clone();
        image[harm.clone()].fill(0);
        assert_eq!(opened(&image, "key"), Some(b"durable".to_vec()), "{harm:x?}");
        let (report, found) = salvaged(&image, "key");
        assert_eq!(found, Some(b"durable".to_vec()), "{harm:x?}, {report:?}");
        assert!(!report.is_complete() && has_lost_deletions(&report), "{harm:x?}, {report:?}");
    }
}

/// What is left is the EVICT: with its COMMIT, behind a batch of a run that has lost its own; or
/// alone, between what was lost in front of it and behind it.
#[test]
fn what_is_left_of_a_torn_batch_deletes_no_document_that_counts() {
    let image = with_two_versions(b"next", |log, _| {
        let record = NewRecord::new(&[2; 100]).durability(Durability::Process);
        let _ = log.writer("run").unwrap().append_batch(&[record; 4]).unwrap();
        let mut batch = Batch::new();
        batch.put("state", "other", NewRecord::new(b"torn")).delete("state", "key");
        let _ = log.commit(batch.durability(Durability::Process)).unwrap();
        append(log);
    });
    let frames = frames_in(&image, 0);
    let commits: Vec<_> =
        frames.iter().filter(|frame| frame.1.kind == FrameKind::Commit).cloned().collect();
    let [.., of_run, of_torn] = &commits[..] else { panic!("{commits:?}") };
    let (record, _) = last(&image, FrameKind::Put);
    assert!(of_run.0.end <= record.start && record.end < of_torn.0.start);
    let nothing = 0..0;
    for harms in [
        [of_run.0.start..record.end, nothing],
        [of_run.0.end..record.end, of_torn.0.clone()],
        [of_run.0.start..record.end, of_torn.0.clone()],
    ] {
        let mut image = image.clone();
        harms.iter().for_each(|harm| image[harm.clone()].fill(0));
        assert_eq!(opened(&image, "key"), Some(b"next".to_vec()), "{harms:x?}");
        let (report, found) = salvaged(&image, "key");
        assert_eq!(found, Some(b"next".to_vec()), "{harms:x?}, {report:?}");
        assert!(!report.is_complete(), "{report:?}");
    }
}

/// The torn version was deleted afterwards, so that it replaces nothing.
#[test]
fn a_document_that_comes_back_behind_a_version_that_was_deleted_is_in_doubt() {
    let image = with_two_versions(&[7; 2000], |log, _| {
        let mut batch = Batch::new();
        batch.delete("state", "key").durability(Durability::Process);
        let _ = log.commit(&batch).unwrap();
        append(log);
    });
    let (record, _) = last(&image, FrameKind::Put);
    let mut image = image.clone();
    image[record.end - 9] ^= 1;
    let (report, found) = salvaged(&image, "key");
    assert_eq!(found, Some(b"durable".to_vec()), "{report:?}");
    assert!(has_lost_deletions(&report), "{report:?}");
}

/// What is deleted in the batch of another document that was torn comes back, and that is told.
#[test]
fn a_deletion_that_was_left_out_with_a_torn_document_is_in_doubt() {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed().create_storage(storage.clone()).unwrap();
    ["deleted", "other"].iter().for_each(|key| put(&log, key, b"durable"));
    log.sync().unwrap();
    let mut batch = Batch::new();
    batch.delete("state", "deleted").put("state", "other", NewRecord::new(&[7; 2000]));
    batch.durability(Durability::Process);
    let _ = log.commit(&batch).unwrap();
    let mut image = storage.to_bytes();
    assert_eq!(salvaged(&image, "deleted").1, None);
    let (torn, _) = last(&image, FrameKind::Put);
    image[torn.end - 100] ^= 1;
    for key in ["deleted", "other"] {
        let (report, found) = salvaged(&image, key);
        assert_eq!(found, Some(b"durable".to_vec()), "{key}, {report:?}");
        assert!(has_lost_deletions(&report), "{report:?}");
        let said: Vec<String> = report.caveats.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|caveat| caveat.contains("are not whole")), "{said:?}");
    }
}

/// Its ids have a checksum of their own.
#[test]
fn a_durable_document_whose_record_is_lost_is_named_as_missing() {
    for with_earlier in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let log = unindexed().create_storage(storage.clone()).unwrap();
        if with_earlier {
            put(&log, "key", b"earlier");
        }
        put(&log, "key", &[7; 2000]);
        log.sync().unwrap();
        log.close().unwrap();
        let mut image = storage.to_bytes();
        let (record, _) = last(&image, FrameKind::Put);
        image[record.end - 16] ^= 1;
        let (report, found) = salvaged(&image, "key");
        assert_eq!(found, None, "{report:?}");
        let is_named = |missing: &Missing| match missing {
            Missing::Document { namespace, key } => {
                (namespace.as_str(), key.as_str()) == ("state", "key")
            }
            _ => false,
        };
        assert!(report.missing.iter().any(is_named), "{report:?}");
    }
}

#[test]
fn one_damaged_frame_of_a_durable_batch_costs_only_its_document() {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed().create_storage(storage.clone()).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let _ = log.start_run("agent", "run", about).unwrap();
    let keys = ["first", "second", "third"];
    keys.iter().for_each(|key| put(&log, key, b"old"));
    let mut batch = Batch::new();
    for key in keys {
        batch.put("state", key, NewRecord::new(b"new"));
    }
    let _ = log.commit(batch.durability(Durability::Disk)).unwrap();
    // It states that the batch is durable. No superblock does.
    append(&log);
    let mut image = storage.to_bytes();
    let (record, _) = last(&image, FrameKind::Put);
    image[record.start + 20] ^= 1;
    for key in &keys[..2] {
        let (report, found) = salvaged(&image, key);
        assert_eq!(found.as_deref(), Some(&b"new"[..]), "{key}, {report:?}");
    }
}

/// A store with two runs that have ended, of which `deleted` is deleted by the last frames.
fn with_a_deletion(before: impl FnOnce(&RunLog), after: impl FnOnce(&RunLog)) -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = unindexed().create_storage(storage.clone()).unwrap();
    for run in ["run", "deleted"] {
        drop(log.start_run("agent", run, ()).unwrap());
    }
    let _ = log.writer("deleted").unwrap().append(b"record").unwrap();
    let _ = log.writer("deleted").unwrap().end(&Outcome::completed()).unwrap();
    before(&log);
    let _ = log.delete_run("deleted").unwrap();
    after(&log);
    storage.to_bytes()
}

fn has_deleted_run(image: &[u8]) -> (SalvageReport, bool) {
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let report = salvage_storage(broken, out.clone()).unwrap();
    let reader = ReaderOptions::new().open_storage(out).unwrap();
    let found = reader.run("deleted");
    (report, found.is_ok())
}

/// Recovery would end the log at the loss, so the caller was not told that the run is deleted.
#[test]
fn a_deletion_behind_what_a_power_cut_took_deletes_nothing() {
    let mut image = with_a_deletion(append, |_| ());
    let frames = frames_in(&image, 0);
    let lost = frames.iter().rfind(|frame| frame.1.kind == FrameKind::Record).unwrap();
    image[lost.0.clone()].fill(0);
    let (report, found) = has_deleted_run(&image);
    assert!(found && has_lost_deletions(&report), "{report:?}");
}

/// The segment was full, later frames state that it was durable, and a power cut took its SEAL
/// record.
#[test]
fn a_damaged_deletion_below_the_floor_is_in_the_directory_of_its_segment() {
    let after = |log: &RunLog| {
        let first = log.stats().unwrap().end.segment;
        while log.stats().unwrap().end.segment == first {
            append(log);
        }
        log.sync().unwrap();
        append(log);
    };
    let mut image = with_a_deletion(|_| (), after);
    let (manifest, record) = (usize::try_from(MANIFEST_AT).unwrap(), 40);
    let used = image[manifest..EXTENT].iter().rposition(|byte| *byte != 0).unwrap();
    let last = manifest + 64 + (used - 64) / record * record;
    image[last..last + record].fill(0);
    let frames = frames_in(&image, 0);
    assert_eq!(frames.last().unwrap().1.kind, FrameKind::Seal);
    let evict = frames.iter().find(|frame| frame.1.kind == FrameKind::Evict).unwrap();
    image[evict.0.start + LONG_HEADER_LEN] ^= 1;
    let (report, found) = has_deleted_run(&image);
    assert!(!found, "{report:?}");
}
