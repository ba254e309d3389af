//! Everything that a caller can do to a store, with bounded memory.

use std::sync::Arc;

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Batch, Expected, NewRecord, Outcome, Retention, RunLog, RunQuery, RunStatus, RunSummary,
};

use crate::surroundings::options;

/// The most runs that are read.
const RUNS: usize = 256;
/// By how much a file may grow.
const ROOM: u64 = 64 << 20;
const AGENT: &str = "fuzz agent";
const RUN: &str = "fuzz run";
/// The namespace of the sample's documents.
pub const SPACE: &str = "space";

/// Opens a file of these bytes, reads, writes, closes and opens it again. Whatever the bytes are,
/// nothing panics, and everything that was acknowledged after the opening is there.
///
/// `seen` is called for each record that is read, with agent, run, sequence and payload; and for
/// each document, with [`SPACE`], key, version and payload.
pub fn open_and_use(bytes: Vec<u8>, mut seen: impl FnMut(&str, &str, u64, &[u8])) {
    // A manifest may claim extents far behind the end of the file. On a disk these are holes; in
    // memory they would take space, so it is limited.
    let storage = Arc::new(MemoryStorage::with_limit(bytes.len() as u64 + ROOM));
    storage.write_at(0, &bytes).expect("there is room");
    let Ok(log) = options().open_storage(storage.clone()) else { return };
    let _ = log.recovery_report().to_string();
    read_all(&log, &mut seen);
    let _ = log.verify();
    let _ = log.stats();
    let written = write(&log);
    let closed = log.close();
    let reopened = options().open_storage(storage);
    let (Ok(written), Ok(_)) = (written, closed) else { return };
    let log = reopened.expect("what was closed in order can be opened");
    let trace = log.trace((AGENT, RUN)).expect("the run was acknowledged");
    let back: Vec<Vec<u8>> =
        trace.map(|record| record.expect("an acknowledged record").payload().to_vec()).collect();
    assert_eq!(back, written, "what was acknowledged comes back");
    let document = log.docs().get(SPACE, RUN).expect("an acknowledged document");
    let document = document.expect("it is there");
    assert_eq!(document.payload(), b"written together");
    read_all(&log, &mut seen);
}

/// Reads everything that can be read; an error ends only the current item.
pub fn read_all(log: &RunLog, seen: &mut impl FnMut(&str, &str, u64, &[u8])) {
    let mut runs: Vec<RunSummary> = Vec::new();
    let mut after = None;
    while let Ok(page) = log.list_runs(&RunQuery::new().limit(16).after(after)) {
        runs.extend(page.runs);
        after = page.next;
        if after.is_none() || runs.len() >= RUNS {
            break;
        }
    }
    for agent in log.agents(None, 16).unwrap_or_default() {
        let _ = log.list_runs(&RunQuery::new().agent(agent.as_str()).limit(16));
    }
    let _ = log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(16));
    let documents = log.docs().list(SPACE, "", None, RUNS).map(|page| page.documents);
    for listed in documents.unwrap_or_default() {
        if let Ok(Some(document)) = log.docs().get(SPACE, &listed.key) {
            let version = document.version().0;
            seen(SPACE, &listed.key, version, document.payload());
        }
    }
    let _ = (log.receipts(16), log.held_runs(), log.gc_plan(&Retention::new().keep_newest(1)));
    for summary in runs {
        let (agent, run) = (summary.agent.as_str(), summary.run.as_str());
        let _ = (log.agent_of(run), log.run((agent, run)), log.metadata((agent, run)));
        let _ = log.outcome((agent, run));
        let Ok(trace) = log.trace((agent, run)) else { continue };
        for record in trace.take(RUNS).flatten() {
            let _ = (record.kind(), record.timestamp(), record.content_type());
            seen(agent, run, record.seq().0, record.payload());
        }
        let Ok(trace) = log.trace((agent, run)) else { continue };
        for record in trace.rev().take(4).flatten() {
            seen(agent, run, record.seq().0, record.payload());
        }
    }
}

/// Does what a writer does; returns the acknowledged payloads if all calls succeeded.
fn write(log: &RunLog) -> runlog::Result<Vec<Vec<u8>>> {
    let writer = log.start_run(AGENT, RUN, b"metadata")?;
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    if let Ok(trace) = log.trace((AGENT, RUN)) {
        for record in trace {
            payloads.push(record?.payload().to_vec());
        }
    }
    let large = vec![9; 30_000];
    for payload in [&b"one"[..], b"", &large, b"four"] {
        let _ = writer.append(payload)?;
        payloads.push(payload.to_vec());
    }
    let batch = [NewRecord::new(b"five"), NewRecord::new(b"six")];
    let _ = writer.append_batch(&batch)?;
    payloads.extend([b"five".to_vec(), b"six".to_vec()]);
    let mut batch = Batch::new();
    batch
        .put(SPACE, "key-1", NewRecord::new(&large))
        .put(SPACE, RUN, NewRecord::new(b"written together"))
        .append(AGENT, RUN, NewRecord::new(b"seven"))
        .delete(SPACE, "key-2");
    log.commit(&batch)?;
    payloads.push(b"seven".to_vec());
    let _ = log.docs().put_if(SPACE, "key-3", &NewRecord::new(b"new"), Expected::Absent);
    log.sync()?;
    let _ = writer.end(&Outcome::completed())?;
    let _ = log.adopt_orphans();
    if let Ok(page) = log.list_runs(&RunQuery::new().limit(3)) {
        for summary in page.runs.iter().filter(|summary| summary.run != RUN) {
            let _ = log.delete_run((summary.agent.as_str(), summary.run.as_str()));
        }
    }
    log.checkpoint()?;
    log.reclaim()?;
    // None of these may affect held runs; in a damaged file they may be refused.
    log.hold((AGENT, RUN), "a reason")?;
    if let Some(summary) =
        log.list_runs(&RunQuery::new().limit(2))?.runs.iter().find(|summary| summary.run != RUN)
    {
        let _ = log.erase_run((summary.agent.as_str(), summary.run.as_str()));
    }
    let _ = log.gc(&Retention::new().keep_newest(1).max_bytes(1 << 20));
    let _ = log.compact();
    Ok(payloads)
}
