//! Readers beside writers, and next to a compaction that never rests: in the process of the
//! writers, and in others.
//!
//! Goal: whatever is moved, deleted and reused meanwhile, each record that a reader gets has
//! exactly the bytes that its run and its sequence determine, each answer has all that was
//! acknowledged before it was asked, and deleted runs are reported as deleted.
//!
//! Method: on a real file with the smallest extents, workers write runs of which all bytes follow
//! from their names, one thread compacts and gives space back, over and over, and readers read any
//! runs in every way there is. They keep payloads and half-read traces, and come back to them
//! later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{
    Compaction, Compression, Error, NewRecord, Options, Outcome, Payload, ReadLog, Reader,
    ReaderOptions, Retention, RunLog, Seq, SpaceReturn, Trace,
};
use runlog_sim::SplitMix64;
use runlog_sim::settings::scale;
use tempfile::TempDir;

use crate::support::crowd::{Beside, Known, Ledger, RunKey, work_beside};

/// A trace that was begun, and what is left of it.
struct Reading {
    run: RunKey,
    before: Known,
    trace: Trace,
    front: u64,
    back: u64,
}

/// When a trace may end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Never: it keeps the segments of its run.
    Never,
    /// Once its run is deleted.
    Deleted,
    /// Also once its run has moved, since it keeps segments for a time only.
    Moved,
}

/// A thread that reads.
struct Asker<'a, L> {
    log: L,
    ledger: &'a Ledger,
    random: SplitMix64,
    ends: Ends,
    payloads: Vec<(Payload, RunKey, u64)>,
    readings: Vec<Reading>,
    records: u64,
}

impl<'a, L: ReadLog> Asker<'a, L> {
    fn new(log: L, ledger: &'a Ledger, seed: u64, ends: Ends) -> Self {
        let (payloads, readings, random) = (Vec::new(), Vec::new(), SplitMix64::new(seed));
        Self { log, ledger, random, ends, payloads, readings, records: 0 }
    }

    /// Asks until it is over, and once more. Returns how many records it got.
    fn ask(mut self, refresh: impl Fn(&L), over: &AtomicBool) -> u64 {
        loop {
            let is_last = over.load(Ordering::Acquire);
            let before = self.ledger.all();
            refresh(&self.log);
            let runs: Vec<RunKey> = before.keys().copied().collect();
            for _ in 0..if runs.is_empty() { 0 } else { 8 } {
                let is_new = self.random.below(3) == 0;
                let from = if is_new { runs.len().saturating_sub(6) } else { 0 };
                let run = runs[from + self.random.index(runs.len() - from)];
                self.begin(run, before[&run]);
            }
            while self.readings.len() > self.random.index(6) {
                let reading = self.readings.swap_remove(self.random.index(self.readings.len()));
                self.go_on(reading);
            }
            while self.payloads.len() > if is_last { 0 } else { 64 } {
                let place = self.random.index(self.payloads.len());
                let (kept, run, seq) = self.payloads.swap_remove(place);
                assert!(*kept == *run.payload(seq), "{run:?}, record {seq} changed");
            }
            self.ledger.check_list(&self.log, &before);
            if is_last {
                return self.records;
            }
        }
    }

    /// Begins to read a run, or a range of it.
    fn begin(&mut self, run: RunKey, before: Known) {
        let id = run.run();
        let found = self.log.run(&*id).and_then(|summary| Ok((summary, self.log.trace(&*id)?)));
        match found {
            Err(error) => self.ledger.check_gone(run, &before, &error),
            Ok((summary, trace)) => {
                self.ledger.check_count(run, &before, summary.records);
                // More may have been appended since; the range selects the right ones.
                let (low, high) = match self.random.below(3) {
                    0 => (0, summary.records),
                    1 => (self.random.below(summary.records + 1), summary.records),
                    _ => (0, self.random.below(summary.records + 1)),
                };
                let trace = trace.range(Seq(low)..Seq(high)).unwrap();
                self.readings.push(Reading { run, before, trace, front: low, back: high });
            }
        }
    }

    /// Reads on for a while; what is left then is kept for later.
    fn go_on(&mut self, mut reading: Reading) {
        let way = self.random.below(4);
        let most = if self.random.coin() { u64::MAX } else { self.random.below(8) };
        for _ in 0..most {
            if reading.front == reading.back {
                let rest = (reading.trace.next(), reading.trace.next_back());
                assert!(matches!(rest, (None, None)), "{:?}: {rest:?}", reading.run);
                return;
            }
            let is_backward = way == 2 || way == 3 && self.random.coin();
            if let Err(error) = self.step(&mut reading, way == 1, is_backward) {
                assert!(self.ends != Ends::Never, "{:?}: {error}", reading.run);
                if !(self.ends == Ends::Moved && matches!(error, Error::Evicted { .. })) {
                    self.ledger.check_gone(reading.run, &reading.before, &error);
                }
                return;
            }
            self.records += 1;
        }
        self.readings.push(reading);
    }

    fn step(&mut self, reading: &mut Reading, is_view: bool, is_back: bool) -> Result<(), Error> {
        let run = reading.run;
        let record = if is_back {
            let record = reading.trace.next_back().expect("a record is left")?;
            reading.back -= 1;
            run.check(reading.back, &record);
            record
        } else if is_view {
            let record = reading.trace.next_view().expect("a record is left")?;
            run.check(reading.front, &record);
            reading.front += 1;
            return Ok(());
        } else {
            let record = reading.trace.next().expect("a record is left")?;
            run.check(reading.front, &record);
            reading.front += 1;
            record
        };
        if self.random.below(32) == 0 {
            let seq = record.seq().0;
            self.payloads.push((record.into_payload(), run, seq));
        }
        Ok(())
    }
}

pub(crate) fn options() -> Options {
    Options::new().extent_size(64 << 10).compaction(Compaction::new().bytes_per_second(None))
}

/// Compacts, and gives space back, without a pause.
fn collect(log: &RunLog, over: &AtomicBool) -> u64 {
    let mut moved = 0;
    while !over.load(Ordering::Acquire) {
        moved += log.compact().unwrap().segments;
        log.reclaim().unwrap();
    }
    moved
}

#[test]
fn readers_beside_writers_see_all_that_was_acknowledged_and_nothing_else() {
    let steps = scale(800, 3_000);
    for pin_age in [None, Some(Duration::from_millis(2))] {
        let space = if pin_age.is_some() { SpaceReturn::Punch } else { SpaceReturn::Shrink };
        let compaction = Compaction::new().bytes_per_second(None);
        let compaction = compaction.max_pin_age(pin_age).space_return(space);
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("store");
        let log = options().compaction(compaction).open(&path).unwrap();
        let ledger = Ledger::default();
        let (log, path, ledger) = (&log, &path, &ledger);
        let mut others: Vec<Beside<'_, u64>> = vec![Box::new(|over| collect(log, over))];
        for seed in 0..2 {
            let ends = if pin_age.is_some() { Ends::Moved } else { Ends::Never };
            let asker = Asker::new(log.clone(), ledger, seed, ends);
            others.push(Box::new(move |over| asker.ask(|_| {}, over)));
            others.push(Box::new(move |over| {
                let options = ReaderOptions::new().shared_bytes([0, 1 << 20][seed as usize]);
                let asker =
                    Asker::new(options.open(path).unwrap(), ledger, seed + 2, Ends::Deleted);
                asker.ask(|reader| _ = reader.refresh().unwrap(), over)
            }));
        }
        let done = work_beside(log, ledger, steps, others);
        println!("a trace may hold extents for {pin_age:?}: {done:?}");
        assert!(done.iter().all(|count| *count > 0), "too little to do: {done:?}");
        let reader = Reader::open(path).unwrap();
        ledger.settle(&reader);
        ledger.settle(log);
        have_the_same_documents_and_plans(&reader, log);
        log.reclaim().unwrap();
        assert_eq!(log.stats().unwrap().retired_extents, 0, "nobody reads");
        log.clone().close().unwrap();
    }
}

fn have_the_same_documents_and_plans(reader: &Reader, log: &RunLog) {
    for key in 0..9 {
        let key = key.to_string();
        let of = |found: Option<runlog::Document>| {
            found.map(|found| (found.version(), found.payload().to_vec()))
        };
        assert_eq!(
            of(reader.docs().get("docs", &key).unwrap()),
            of(log.docs().get("docs", &key).unwrap())
        );
    }
    for policy in [Retention::new().keep_newest(3), Retention::new().max_bytes(100 << 10)] {
        // The background work may still move runs, which changes what their frames take.
        let same = (0..1000).any(|_| {
            let before = log.gc_plan(&policy).unwrap();
            reader.refresh().unwrap();
            let found = reader.gc_plan(&policy).unwrap();
            found == before && log.gc_plan(&policy).unwrap() == before
        });
        assert!(same, "the plans differ: {policy:?}");
    }
}

#[test]
fn a_plan_counts_what_the_frames_of_a_run_take_after_a_compaction() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new()
        .extent_size(64 << 10)
        .background(false)
        .compression(Compression::Zstd { level: 3 });
    let log = options.create_storage(storage.clone()).unwrap();
    // One that has ended stays in memory beside one in progress with the same id.
    let ended = log.start_run("a", "same", ()).unwrap();
    let running = log.start_run("b", "same", ()).unwrap();
    let text = b"again and again ".repeat(20);
    for round in 0..60 {
        for run in [&ended, &running] {
            run.append_batch(&[NewRecord::new(&text), NewRecord::new(&text)]).unwrap();
        }
        let filler = log.start_run("c", &format!("filler-{round}"), ()).unwrap();
        filler.append(&[7; 3_000]).unwrap();
        filler.end(&Outcome::completed()).unwrap();
    }
    ended.end(&Outcome::completed()).unwrap();
    for again in 0..3 {
        for round in (again * 20)..(again * 20 + 20) {
            log.delete_run(&format!("filler-{round}")).unwrap();
        }
        running.append(&[8; 7_000]).unwrap();
        log.checkpoint().unwrap();
        log.compact().unwrap();
        running.append_batch(&[NewRecord::new(&text), NewRecord::new(&text)]).unwrap();
        let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
        for most in [1, 1 << 10, 16 << 10, 64 << 10] {
            let policy = Retention::new().max_bytes(most);
            assert_eq!(log.gc_plan(&policy).unwrap(), reader.gc_plan(&policy).unwrap(), "{again}");
        }
    }
    let plan = log.gc_plan(&Retention::new().max_bytes(1)).unwrap();
    let bytes = plan.evict.iter().find(|run| run.run.as_str() == "same").unwrap().bytes;
    assert!(bytes < 60 * 2 * text.len() as u64 / 4, "{bytes} bytes are not compressed");
    log.delete_run(("a", "same")).unwrap();
    assert_eq!(log.receipts(1).unwrap()[0].bytes, bytes);
    drop((ended, running));
    log.close().unwrap();
}
