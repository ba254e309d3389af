//! A small store with everything in it: sealed segments, outputs of a compaction, an index, ended,
//! deleted, held and unfinished runs, records in chunks, batches, records after the end, documents.
//! Moved records of ended runs are compressed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use runlog::storage::MemoryStorage;
use runlog::{Allow, Compression, NewRecord, Outcome, RunLog};

use crate::surroundings::options;

/// The store as bytes, and what was appended to it.
#[derive(Debug)]
pub struct Sample {
    /// The file of a process that was killed.
    pub killed: Vec<u8>,
    /// The file after a clean close.
    pub closed: Vec<u8>,
    /// The payloads of each run, by agent and run.
    pub runs: BTreeMap<(String, String), Vec<Vec<u8>>>,
}

/// The same sample each time.
pub fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| build().expect("the sample can be built"))
}

fn build() -> runlog::Result<Sample> {
    let storage = Arc::new(MemoryStorage::new());
    let zstd = Compression::Zstd { level: 3 };
    let log = options().compression(zstd).create_storage(storage.clone())?;
    let mut runs = BTreeMap::new();
    for number in 0..18_usize {
        add_run(&log, number, &mut runs)?;
        add_documents(&log, number)?;
        if number % 6 == 5 {
            log.sync()?;
            log.checkpoint()?;
        }
    }
    for number in [6, 8] {
        let (agent, run) = ids(number);
        log.hold((agent.as_str(), run.as_str()), "kept")?;
    }
    let (agent, run) = ids(8);
    log.release((agent.as_str(), run.as_str()))?;
    for number in (0..5).chain([13]) {
        let (agent, run) = ids(number);
        if log.run((agent.as_str(), run.as_str()))?.status.is_ended() {
            log.delete_run((agent.as_str(), run.as_str()))?;
        }
        if number == 2 {
            // The runs beside them are moved.
            let _ = log.compact()?;
        }
    }
    let killed = storage.to_bytes();
    log.close()?;
    Ok(Sample { killed, closed: storage.to_bytes(), runs })
}

/// Documents that replace one another; some are deleted, and some are long.
fn add_documents(log: &RunLog, number: usize) -> runlog::Result<()> {
    let (key, len) = (format!("key-{}", number % 4), if number == 9 { 20_000 } else { 300 });
    log.docs().put("space", &key, &NewRecord::new(&vec![number as u8; len]))?;
    if number == 14 {
        log.docs().delete("space", "key-1")?;
    }
    Ok(())
}

fn ids(number: usize) -> (String, String) {
    (format!("agent-{}", number % 5), format!("run-{number}"))
}

fn add_run(
    log: &RunLog,
    number: usize,
    runs: &mut BTreeMap<(String, String), Vec<Vec<u8>>>,
) -> runlog::Result<()> {
    let (agent, run) = ids(number);
    let writer = log.start_run(&agent, &run, &[number as u8; 20])?;
    let mut payloads = Vec::new();
    for seq in 0..20 {
        let len = if seq == 7 && number % 9 == 0 { 20_000 } else { (number * 31 + seq * 57) % 700 };
        payloads.push(vec![(number * 3 + seq) as u8; len]);
    }
    let (single, batch) = payloads.split_at(14);
    for payload in single {
        let _ = writer.append_record(&NewRecord::new(payload).kind("turn"))?;
    }
    let batch: Vec<NewRecord<'_>> = batch.iter().map(|payload| NewRecord::new(payload)).collect();
    let _ = writer.append_batch(&batch)?;
    if number % 7 != 3 {
        let _ = writer.end(&Outcome::completed())?;
    }
    if number % 7 == 5 {
        let late = NewRecord::new(b"late");
        let _ = log.append_to(&agent, &run, &late, Allow::everything())?;
        payloads.push(b"late".to_vec());
    }
    runs.insert((agent, run), payloads);
    Ok(())
}
