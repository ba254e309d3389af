//! A compaction that ends while the store is being closed.

use std::io;
use std::sync::{Arc, Mutex};

use crate::env::{Scheduler, Steps};
use crate::storage::{MemoryStorage, Storage};
use crate::{Compaction, Compression, Durability, Metadata, Options, Outcome, RunLog};

/// No background work.
#[derive(Debug)]
struct Idle;

impl Scheduler for Idle {
    fn begin(&self, _: Steps) {}
}

/// Calls back once in front of a punch.
#[derive(Default)]
struct CallingBack {
    file: MemoryStorage,
    call: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl core::fmt::Debug for CallingBack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("CallingBack")
    }
}

impl Storage for CallingBack {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let call = self.call.lock().unwrap().take();
        if let Some(call) = call {
            call();
        }
        self.file.punch(offset, len)
    }
}

/// Closing applies the first of the segments that the index lacks, and stops there.
fn apply_in_vain(log: &RunLog) {
    let unsynced = || Metadata::default().durability(Durability::Process);
    for run in 0..30_000 {
        let _ = log.start_run("agent", &format!("tiny-{run}"), unsynced()).unwrap();
    }
    let engine = log.engine();
    engine.log.sync_all().unwrap();
    engine.log.note_seals().unwrap();
    engine.log.due.stop();
    engine.checkpoints.checkpoint().unwrap();
    assert!(engine.log.state.lock().unapplied.len() > 1, "it was stopped");
}

#[test]
fn a_compaction_beside_a_close_that_applied_a_segment_in_vain_loses_no_place_there() {
    let storage = Arc::new(CallingBack::default());
    let options = Options::new().compression(Compression::None).scheduler(Arc::new(Idle));
    let options = options.compaction(Compaction::new().automatic(false));
    let log = Arc::new(options.create_storage(storage.clone()).unwrap());
    let lasting = Arc::new(log.start_run("agent", "long", ()).unwrap());
    for part in 0..3 {
        let _ = lasting.append(b"early").unwrap();
        for filler in 0..40 {
            let run = log.start_run("agent", &format!("filler-{part}-{filler}"), ()).unwrap();
            let _ = run.append(&vec![7; 100_000]).unwrap();
            let _ = run.end(&Outcome::completed()).unwrap();
        }
    }
    log.checkpoint().unwrap();
    for part in 0..3 {
        for filler in 1..40 {
            let _ = log.delete_run(format!("filler-{part}-{filler}").as_str()).unwrap();
        }
    }
    log.checkpoint().unwrap();
    let (weak, writer) = (Arc::downgrade(&log), Arc::clone(&lasting));
    *storage.call.lock().unwrap() = Some(Box::new(move || {
        let _ = writer.append(b"late").unwrap();
        apply_in_vain(&weak.upgrade().unwrap());
    }));
    let _ = log.compact();
    assert!(storage.call.lock().unwrap().is_none(), "it was called back");
    drop(lasting);
    Arc::try_unwrap(log).unwrap().close().unwrap();
    for index in [true, false] {
        let file = Arc::new(MemoryStorage::from_bytes(storage.file.to_bytes()));
        let log = Options::new().background(false).index(index).open_storage(file).unwrap();
        log.checkpoint().unwrap();
        assert_eq!(log.trace("long").unwrap().map(Result::unwrap).count(), 4, "index {index}");
        assert!(log.verify().unwrap().is_clean(), "index {index}");
    }
}
