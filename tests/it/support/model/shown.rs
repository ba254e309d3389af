//! What a store shows: all lists and lookups of it agree.

use std::collections::BTreeMap;

use runlog::{AgentId, HeldRun, ReadLog, RunQuery, RunStatus, RunSummary, Timestamp};

use super::{Documents, Rec, Run, SPACE};

/// Clocks of simulations never go back.
const EARLIEST: Timestamp = Timestamp(i64::MIN / 2);

/// All documents of a store. Lists and lookups must agree.
pub(crate) fn read_documents(log: &impl ReadLog) -> Result<Documents, String> {
    let fail = |error: runlog::Error| format!("documents: {error}");
    let (mut documents, mut after) = (Documents::new(), None::<String>);
    loop {
        let page = log.list_documents(SPACE, "", after.as_deref(), 3).map_err(fail)?;
        for listed in page.documents {
            let found = log.document(SPACE, &listed.key).map_err(fail)?;
            let Some(found) = found else {
                return Err(format!("document {} is listed and not there", listed.key));
            };
            if (found.version(), found.payload().len() as u64) != (listed.version, listed.bytes) {
                return Err(format!("document {} is not the one that is listed", listed.key));
            }
            if listed.timestamp < EARLIEST {
                return Err(format!("document {} was written at {}", listed.key, listed.timestamp));
            }
            documents.insert(listed.key, found.payload().into());
        }
        after = page.next;
        if after.is_none() {
            return Ok(documents);
        }
    }
}

/// Compares a run's records with those that were appended to it.
pub(super) fn compare_records(
    log: &impl ReadLog,
    run: &Run,
    records: &[Rec],
) -> Result<(), String> {
    let name = (run.agent.as_str(), run.run.as_str());
    let fail = |what: String| format!("{name:?}: {what}");
    let trace = log.trace(name).map_err(|error| fail(format!("trace: {error}")))?;
    let (mut found, mut last) = (0, None);
    for record in trace {
        let record = record.map_err(|error| fail(format!("record {found}: {error}")))?;
        let Some(expected) = records.get(found) else {
            return Err(fail(format!("more than {} records", records.len())));
        };
        if !expected.is(&record, found) || Some(record.lsn()) <= last {
            return Err(fail(format!("record {found} is another one: {record:?}")));
        }
        (found, last) = (found + 1, Some(record.lsn()));
    }
    if found != records.len() {
        return Err(fail(format!("{found} records instead of {}", records.len())));
    }
    Ok(())
}

/// The runs that are held, by their names.
pub(super) fn holds(log: &impl ReadLog) -> Result<BTreeMap<(String, String), HeldRun>, String> {
    let held = log.held_runs().map_err(|error| format!("holds: {error}"))?;
    let named = |held: HeldRun| ((held.agent.to_string(), held.run.to_string()), held);
    Ok(held.into_iter().map(named).collect())
}

/// All runs by their names; every list of the store must agree.
pub(super) fn listing(
    log: &impl ReadLog,
) -> Result<BTreeMap<(String, String), RunSummary>, String> {
    let fail = |error: runlog::Error| format!("list: {error}");
    let mut all = BTreeMap::new();
    let mut cursor = None;
    loop {
        let page = log.list_runs(&RunQuery::new().limit(16).after(cursor)).map_err(fail)?;
        for summary in page.runs {
            let name = (summary.agent.to_string(), summary.run.to_string());
            if all.insert(name, summary.clone()).is_some() {
                return Err(format!("listed twice: {summary:?}"));
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let agents: Vec<AgentId> = log.agents(None, 1000).map_err(fail)?;
    let mut by_agent = 0;
    for agent in &agents {
        let page =
            log.list_runs(&RunQuery::new().agent(agent.as_str()).limit(10_000)).map_err(fail)?;
        for summary in &page.runs {
            let name = (summary.agent.to_string(), summary.run.to_string());
            if all.get(&name) != Some(summary) {
                return Err(format!("two lists differ about {name:?}"));
            }
        }
        by_agent += page.runs.len();
    }
    let running = log
        .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10_000))
        .map_err(fail)?
        .runs;
    let expected = all.values().filter(|summary| !summary.status.is_ended()).count();
    let stray = running.iter().find(|summary| summary.status.is_ended());
    if by_agent != all.len() || running.len() != expected || stray.is_some() {
        let (all, running) = (all.len(), running.len());
        return Err(format!(
            "the lists differ: {all} runs, {by_agent} by agent, {running} of {expected} running"
        ));
    }
    Ok(all)
}
