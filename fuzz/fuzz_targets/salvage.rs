//! A damaged file: salvaging it returns an error or a sound store, in which each record is one that
//! was appended, and the records of a run have their order. With corrected checksums only the first
//! can be expected.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use runlog::storage::MemoryStorage;
use runlog::{ReaderOptions, RunQuery, salvage_storage};
use runlog_fuzz::checks::repair_file;
use runlog_fuzz::mutation::Mutation;
use runlog_fuzz::sample::sample;

#[derive(Debug, Arbitrary)]
struct Input {
    closed: bool,
    believed: bool,
    /// Nothing is left in front of the segments.
    headless: bool,
    mutations: Vec<Mutation>,
}

fuzz_target!(|input: Input| {
    let sample = sample();
    let mut bytes = if input.closed { sample.closed.clone() } else { sample.killed.clone() };
    for mutation in input.mutations.iter().take(16) {
        mutation.apply(&mut bytes);
    }
    if input.believed {
        repair_file(&mut bytes);
    }
    let front = bytes.len().min(64 << 10);
    if input.headless {
        bytes[..front].fill(0);
    }
    let out = Arc::new(MemoryStorage::new());
    let broken = Arc::new(MemoryStorage::from_bytes(bytes));
    let Ok(report) = salvage_storage(broken, out.clone()) else { return };
    let found = ReaderOptions::new().open_storage(out).expect("a new store");
    let verified = found.verify().expect("a new store");
    assert!(verified.is_clean(), "{:?}", verified.problems);
    let mut records = 0;
    for run in found.runs(&RunQuery::new()) {
        let run = run.expect("a sound store");
        let trace = found.trace((&run.agent, &run.run)).expect("a sound store");
        let name = (run.agent.to_string(), run.run.to_string());
        let mut appended = sample.runs.get(&name).map(|known| known.iter());
        for record in trace {
            let record = record.expect("a sound store");
            records += 1;
            if let Some(appended) = appended.as_mut().filter(|_| !input.believed) {
                let same = appended.any(|known| known.as_slice() == record.payload());
                assert!(same, "a record of {} is not as it was appended", run.run);
            }
        }
    }
    assert_eq!(records, report.records);
});
