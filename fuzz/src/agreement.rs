//! A process that only reads a file, against one that opens it to write.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Follow, IndexRecovery, LogCursor, LogEventKind, NewRecord, ReadLog, Reader, ReaderOptions,
    Retention, RunLog, RunQuery,
};

use crate::exercise::SPACE;
use crate::surroundings::{options, reader_options};

/// The most that is read of one list or trace.
const MOST: usize = 1_000;

/// A file that is only read.
#[derive(Debug)]
struct OnlyRead(Vec<u8>);

impl Storage for OnlyRead {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = from.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(self.0.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        unreachable!("a reader writes nothing")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("a reader syncs nothing")
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("a reader changes no length")
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader allocates nothing")
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader punches nothing")
    }
}

/// Reads these bytes without changing them, follows and copies them. With `agrees` the answers must
/// be those of a process that opens the bytes to write.
pub fn read_and_compare(bytes: Vec<u8>, agrees: bool) {
    let reader = reader_options().open_storage(Arc::new(OnlyRead(bytes.clone())));
    let log = agrees.then(|| {
        let copy = Arc::new(MemoryStorage::from_bytes(bytes));
        options().receipts(u64::MAX, core::time::Duration::MAX).open_storage(copy)
    });
    let (reader, log) = match (reader, log) {
        (Ok(reader), Some(Ok(log))) => (reader, Some(log)),
        (Ok(reader), None) => (reader, None),
        // A reader needs the manifest only.
        (Ok(reader), Some(Err(error))) if error.is_damaged() => (reader, None),
        (Err(_), None) => return,
        (Err(_), Some(Err(_))) => return,
        (one, other) => {
            let other = other.map(|log| log.err());
            panic!("the reader: {:?}, and the writer: {other:?}", one.err());
        }
    };
    let _ = reader.recovery_report().to_string();
    let (mine, agrees) = (all_of(&reader), log.is_some());
    if let Some(log) = log {
        compare(&mine, &log);
    }
    let _ = (reader.verify(), reader.stats(), reader.end_cursor(), reader.refresh());
    let _ = reader.gc_plan(&Retention::new().keep_newest(1));
    let followed = follow(&reader);
    let (_, whole) = copy(&reader);
    if agrees {
        assert_eq!(followed, whole, "a follower of the copy is told the same");
    }
}

fn compare(mine: &[String], log: &RunLog) {
    // Its index still knows the runs of a segment that is lost. A reader does without an index.
    let report = log.recovery_report();
    if !report.damaged.is_empty() && report.index == IndexRecovery::Kept {
        return;
    }
    let expected = all_of(log);
    if let Some((mine, expected)) = mine.iter().zip(&expected).find(|(one, other)| one != other) {
        let report = log.recovery_report();
        panic!("{report}\nthe reader answers\n{mine}\nand not\n{expected}");
    }
    assert_eq!(mine.len(), expected.len(), "so many answers");
}

/// What a follower is told, in short; errors only count.
fn follow(reader: &Reader) -> Vec<String> {
    let Ok(mut follower) = reader.follow(Follow::Everything, LogCursor::START) else {
        return Vec::new();
    };
    let (mut told, mut last) = (Vec::new(), LogCursor::START);
    for _ in 0..8 * MOST {
        match follower.try_next() {
            Ok(Some(event)) => {
                // The deletions of one call have one cursor, from which all are told again.
                let is_deletion = matches!(event.kind, LogEventKind::Deleted { .. });
                assert!(
                    event.cursor > last || is_deletion && event.cursor == last,
                    "{event:?} behind {last:?}"
                );
                last = event.cursor;
                if let LogEventKind::Record(record) = &event.kind {
                    told.push(format!("{} {}", event.number, record.seq()));
                }
            }
            Ok(None) => return told,
            Err(error) if error.is_corruption() => {}
            // It comes again.
            Err(_) => return told,
        }
    }
    panic!("a follower without end");
}

/// A copy fails, or opens; returns what a follower of it is told.
fn copy(reader: &Reader) -> (usize, Vec<String>) {
    let storage = Arc::new(MemoryStorage::new());
    let Ok(report) = reader.backup_to_storage(storage.clone()) else {
        return (0, follow(reader));
    };
    let found = ReaderOptions::new().open_storage(storage.clone());
    let found = found.unwrap_or_else(|error| panic!("the copy: {error}, {report:?}"));
    let told = follow(&found);
    // The same again copies the segment that takes records, and no other one. A store that has lost
    // its end does not change an earlier copy.
    match reader.backup_to_storage(storage.clone()) {
        Ok(again) => assert!(again.copied_segments <= 1, "{again:?}"),
        Err(error) => assert!(error.is_damaged(), "once more: {error}"),
    }
    let log = options().open_storage(storage);
    let log = log.unwrap_or_else(|error| panic!("the copy, to write to: {error}"));
    if let Ok(run) = log.start_run("fuzz agent", "of the copy", ()) {
        let _ = run.append_record(&NewRecord::new(b"new"));
    }
    let _ = log.close();
    (report.damaged.len(), told)
}

/// All that a store answers, as text.
fn all_of(log: &impl ReadLog) -> Vec<String> {
    let mut all = Vec::new();
    let page = log.list_runs(&RunQuery::new().limit(MOST));
    let runs = page.as_ref().map(|page| page.runs.clone()).unwrap_or_default();
    all.push(format!("{page:?}"));
    for run in &runs {
        all.push(format!("{:?}: {:?}", run.run, log.run(run)));
        all.push(format!("{:?} {:?}", log.metadata(run), log.outcome(run)));
        match log.trace(run) {
            Ok(trace) => all.extend(trace.take(MOST).map(|item| {
                short(&item.map(|record| {
                    (record.seq(), record.lsn(), record.timestamp(), record.payload().to_vec())
                }))
            })),
            Err(error) => all.push(format!("{error:?}")),
        }
    }
    all.push(format!("{:?}", log.agents(None, MOST)));
    all.push(format!("{:?}", log.held_runs()));
    all.push(format!("{:?}", log.receipts(MOST)));
    let page = log.list_documents(SPACE, "", None, MOST);
    all.push(format!("{page:?}"));
    for document in page.map(|page| page.documents).unwrap_or_default() {
        let found = log.document(SPACE, &document.key);
        all.push(short(
            &found.map(|found| found.map(|found| (found.version(), found.payload().to_vec()))),
        ));
    }
    all
}

/// The beginning of a value, and a check of all of it.
fn short(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let check = crc32fast::hash(text.as_bytes());
    format!("{} {check:08x}", text.chars().take(120).collect::<String>())
}
