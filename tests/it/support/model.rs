//! What was appended to a store, in order, and how much of it must be there after a crash.
//!
//! - The model is a list of [`Event`]s in the order of the log. A crash leaves a *prefix* of that
//!   list: at least what was acknowledged, at most what was begun.
//! - [`Model::check`] reads everything back through the public API and finds the prefix, or reports
//!   what fits none.

mod moment;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use runlog::{AgentId, Lsn, ReadLog, RunQuery, RunStatus, RunSummary, Timestamp, Version};

/// A record as it was appended.
#[derive(Debug, Clone)]
pub(crate) struct Rec {
    pub(crate) payload: Arc<[u8]>,
    pub(crate) kind: &'static str,
    pub(crate) at: i64,
}

/// A change of one run.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Start {
        metadata: Vec<u8>,
        implicit: bool,
    },
    Records {
        count: usize,
    },
    End {
        status: RunStatus,
        payload: Vec<u8>,
    },
    Hold {
        held: bool,
    },
    Delete,
    /// Documents were written, or deleted; they belong to no run ([`NO_RUN`]).
    Documents {
        writes: Vec<(String, Option<Arc<[u8]>>)>,
    },
}

/// Replaces the run of events without one.
pub(crate) const NO_RUN: usize = usize::MAX;

/// The namespace of all documents.
pub(crate) const SPACE: &str = "documents";

/// Documents by key.
pub(crate) type Documents = BTreeMap<String, Arc<[u8]>>;

/// A change, and when it happened in terms of operations on the disk.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) run: usize,
    pub(crate) change: Change,
    pub(crate) at: i64,
    /// Operations that were done when the call began: before that it can have had no effect.
    pub(crate) begin: usize,
    /// Operations that were done when it was acknowledged at Process level.
    pub(crate) process: usize,
    /// Operations that were done when it, or something behind it, was acknowledged at Disk level.
    pub(crate) disk: usize,
}

/// A run and all that was ever appended to it.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) agent: String,
    pub(crate) run: String,
    pub(crate) records: Vec<Rec>,
    /// Its events, by their place in the list of all events.
    pub(crate) events: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) runs: Vec<Run>,
    pub(crate) events: Vec<Event>,
    /// The orders and versions that callers were given, and how many operations were done then.
    pub(crate) given: Vec<(usize, Lsn, Option<Version>)>,
}

/// The contents of a store by run: `None` for a run that does not exist.
pub(crate) type Seen = Vec<Option<(usize, RunStatus)>>;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// How many events of the list are there.
    pub(crate) prefix: usize,
    pub(crate) seen: Seen,
    pub(crate) documents: Documents,
}

/// The state of a run after some of its events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    exists: bool,
    started_at: Option<i64>,
    created_at: i64,
    ended_at: Option<i64>,
    last_at: i64,
    status: RunStatus,
    records: usize,
    late: u64,
    bytes: u64,
    held: bool,
}

impl State {
    fn apply(&mut self, event: &Event, run: &Run) {
        if let Change::Hold { held } = event.change {
            self.held = held;
            return;
        }
        self.last_at = if self.exists { self.last_at.max(event.at) } else { event.at };
        match &event.change {
            Change::Start { implicit, .. } => {
                if !self.exists {
                    self.created_at = event.at;
                }
                self.exists = true;
                if !implicit {
                    self.started_at = Some(event.at);
                }
            }
            Change::Records { count } => {
                let added = &run.records[self.records..self.records + count];
                self.records += count;
                self.bytes += added.iter().map(|rec| rec.payload.len() as u64).sum::<u64>();
                if self.status.is_ended() {
                    self.late += *count as u64;
                }
            }
            Change::End { status, .. } => {
                self.status = *status;
                self.ended_at = Some(event.at);
            }
            Change::Hold { .. } | Change::Documents { .. } => {}
            Change::Delete => self.exists = false,
        }
    }
}

impl Model {
    /// How many events must be there, and how many may be, after a power loss at this boundary.
    pub(crate) fn after_power_loss(&self, boundary: usize) -> (usize, usize) {
        let kept = self.events.iter().rposition(|event| event.disk <= boundary);
        let begun = self.events.iter().take_while(|event| event.begin < boundary).count();
        let kept = kept.map_or(0, |last| last + 1);
        (kept, begun.max(kept))
    }

    /// The largest order and version that a caller was given before this boundary.
    pub(crate) fn given_before(&self, boundary: usize) -> (Lsn, Option<Version>) {
        let given = self.given.iter().filter(|given| given.0 <= boundary);
        given.fold((Lsn(0), None), |last, given| (last.0.max(given.1), last.1.max(given.2)))
    }

    /// As [`Model::after_power_loss`], after the process was killed; `torn` says that the next
    /// operation was stored in part.
    pub(crate) fn after_kill(&self, boundary: usize, torn: bool) -> (usize, usize) {
        let end = boundary + usize::from(torn);
        let kept = self.events.iter().rposition(|event| event.process <= boundary);
        let begun = self.events.iter().take_while(|event| event.begin < end).count();
        let kept = kept.map_or(0, |last| last + 1);
        (kept, begun.max(kept))
    }

    /// Forgets everything behind the first `prefix` events, and treats these as durable: the state
    /// after a recovery.
    pub(crate) fn recovered(&self, prefix: usize) -> Self {
        let mut next = self.clone();
        next.truncate(prefix);
        next.given.clear();
        for event in &mut next.events {
            (event.begin, event.process, event.disk) = (0, 0, 0);
        }
        next
    }

    /// Forgets everything behind the first `prefix` events.
    pub(crate) fn truncate(&mut self, prefix: usize) {
        let Self { runs, events, .. } = self;
        for run in runs {
            run.events.retain(|&at| at < prefix);
            let count = |at: &usize| match events[*at].change {
                Change::Records { count } => count,
                _ => 0,
            };
            run.records.truncate(run.events.iter().map(count).sum());
        }
        events.truncate(prefix);
    }

    /// The last events, for messages.
    pub(crate) fn describe(&self, prefix: usize) -> String {
        let mut text = String::new();
        for (place, event) in self.events.iter().enumerate() {
            if place.abs_diff(prefix) > 3 {
                continue;
            }
            let run = self.runs.get(event.run);
            let change = match &event.change {
                Change::Start { implicit, .. } => format!("start, implicit {implicit}"),
                Change::Records { count } => format!("{count} records"),
                Change::End { status, .. } => format!("end {status}"),
                Change::Hold { held } => format!("hold {held}"),
                Change::Delete => "delete".to_owned(),
                Change::Documents { writes } => {
                    let keys = writes.iter().map(|(key, value)| (key, value.is_some()));
                    let keys: Vec<_> = keys.collect();
                    format!("documents {keys:?}")
                }
            };
            let _ = write!(
                text,
                "\n  event {place}: {:?} {change}, begin {} process {} disk {}",
                run.map(|run| (&run.agent, &run.run)),
                event.begin,
                event.process,
                if event.disk == usize::MAX { "-".to_owned() } else { event.disk.to_string() }
            );
        }
        text
    }

    /// Reads everything back and compares it with the model: the store must hold the effects of
    /// the first `n` events for one `n` from `least` to `most`, and nothing else.
    pub(crate) fn check(
        &self,
        log: &impl ReadLog,
        least: usize,
        most: usize,
    ) -> Result<Found, String> {
        let mut listed = listing(log)?;
        let mut seen: Seen = Vec::with_capacity(self.runs.len());
        let (mut low, mut high) = (least, most);
        let (mut gone, mut there) = (Vec::new(), Vec::new());
        for run in &self.runs {
            let summary = listed.remove(&(run.agent.clone(), run.run.clone()));
            seen.push(summary.as_ref().map(|found| (count(found.records), found.status)));
            let Some(summary) = summary else {
                gone.push(run);
                continue;
            };
            let (state, places) = self.find_state(run, &summary)?;
            let (first, last) = (places[0], places[places.len() - 1]);
            compare_summary(run, &summary, &state)?;
            compare_records(log, run, state.records)?;
            self.compare_ends(log, run, &run.events[..first])?;
            low = low.max(run.events[..first].last().map_or(0, |last| last + 1));
            high = high.min(run.events.get(last).copied().unwrap_or(usize::MAX));
            there.push((run, places));
        }
        if let Some((foreign, _)) = listed.pop_first() {
            return Err(format!("run {foreign:?} was never started"));
        }
        // A run that was held twice was not released in between.
        let is_so = |run: &Run, places: &[usize], prefix: usize| {
            places.contains(&run.events.partition_point(|at| *at < prefix))
        };
        let fits = |prefix: usize| {
            gone.iter().all(|run| !self.exists_after(run, prefix))
                && there.iter().all(|(run, places)| is_so(run, places, prefix))
        };
        let documents = read_documents(log)?;
        let mut expected = self.documents_after(low.min(self.events.len()));
        let mut same = expected == documents;
        let prefix = (low..=high).find(|&prefix| {
            if prefix > low && write_documents(&self.events[prefix - 1], &mut expected) {
                same = expected == documents;
            }
            same && fits(prefix)
        });
        let Some(prefix) = prefix else {
            let missing = gone.iter().find(|run| self.exists_after(run, low.max(least)));
            return Err(format!(
                "no prefix fits: at least {least}, at most {most}; what is there needs {low} to \
                 {high}; missing run {:?}; documents {:?}{}",
                missing.map(|run| (&run.agent, &run.run)),
                documents.iter().map(|(key, value)| (key, value.len())).collect::<Vec<_>>(),
                self.describe(low.min(high)),
            ));
        };
        Ok(Found { prefix, seen, documents })
    }

    /// The documents after some of the events.
    pub(crate) fn documents_after(&self, prefix: usize) -> Documents {
        let mut documents = Documents::new();
        for event in &self.events[..prefix] {
            write_documents(event, &mut documents);
        }
        documents
    }

    fn exists_after(&self, run: &Run, prefix: usize) -> bool {
        let events = run.events.iter().take_while(|at| **at < prefix);
        events.last().is_some_and(|at| !matches!(self.events[*at].change, Change::Delete))
    }

    /// The number of events after which a run has this state: one that was held and released is as
    /// before.
    fn find_state(&self, run: &Run, summary: &RunSummary) -> Result<(State, Vec<usize>), String> {
        let mut state = State::default();
        let mut found: Option<(State, Vec<usize>)> = None;
        for (place, at) in run.events.iter().enumerate() {
            state.apply(&self.events[*at], run);
            let same = state.exists
                && state.records == count(summary.records)
                && state.status == summary.status
                && state.started_at.is_some() == summary.started
                && state.held == summary.held;
            if same {
                let mut places = found.map_or_else(Vec::new, |found| found.1);
                places.push(place + 1);
                found = Some((state.clone(), places));
            }
        }
        found.ok_or_else(|| {
            format!("{}/{} was never in this state: {summary:?}", run.agent, run.run)
        })
    }

    /// Compares metadata and outcome.
    fn compare_ends(&self, log: &impl ReadLog, run: &Run, events: &[usize]) -> Result<(), String> {
        let name = (run.agent.as_str(), run.run.as_str());
        let fail = |what: &str| format!("{name:?}: {what}");
        let mut metadata = None;
        let mut outcome = None;
        for at in events {
            match &self.events[*at].change {
                Change::Start { metadata: bytes, implicit: false } => metadata = Some(bytes),
                Change::End { status, payload } => outcome = Some((*status, payload)),
                _ => {}
            }
        }
        let found = log.metadata(name).map_err(|error| fail(&format!("metadata: {error}")))?;
        if found.as_ref().map(runlog::RunMetadata::payload) != metadata.map(Vec::as_slice) {
            return Err(fail("other metadata"));
        }
        let found = log.outcome(name).map_err(|error| fail(&format!("outcome: {error}")))?;
        let found = found.as_ref().map(|found| (found.status(), found.payload()));
        if found != outcome.map(|(status, payload)| (status, payload.as_slice())) {
            return Err(fail("another outcome"));
        }
        Ok(())
    }
}

/// Clocks of simulations never go back.
const EARLIEST: Timestamp = Timestamp(i64::MIN / 2);

/// Applies an event to documents; returns whether it changes any.
fn write_documents(event: &Event, documents: &mut Documents) -> bool {
    let Change::Documents { writes } = &event.change else { return false };
    for (key, value) in writes {
        match value {
            Some(value) => documents.insert(key.clone(), value.clone()),
            None => documents.remove(key),
        };
    }
    true
}

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

fn count(records: u64) -> usize {
    usize::try_from(records).unwrap_or(usize::MAX)
}

fn compare_summary(run: &Run, summary: &RunSummary, state: &State) -> Result<(), String> {
    let expected = (
        Timestamp(state.started_at.unwrap_or(state.created_at)),
        state.ended_at.map(Timestamp),
        Timestamp(state.last_at),
        state.late,
        state.bytes,
    );
    let found = (
        summary.started_at,
        summary.ended_at,
        summary.last_at,
        summary.late_records,
        summary.bytes,
    );
    if found != expected {
        return Err(format!(
            "{}/{}: the summary is {found:?}, not {expected:?}",
            run.agent, run.run
        ));
    }
    Ok(())
}

/// Compares a run's records with the first `count` that were appended to it.
fn compare_records(log: &impl ReadLog, run: &Run, count: usize) -> Result<(), String> {
    let name = (run.agent.as_str(), run.run.as_str());
    let fail = |what: String| format!("{name:?}: {what}");
    let trace = log.trace(name).map_err(|error| fail(format!("trace: {error}")))?;
    let mut found = 0;
    for record in trace {
        let record = record.map_err(|error| fail(format!("record {found}: {error}")))?;
        let Some(expected) = run.records[..count].get(found) else {
            return Err(fail(format!("more than {count} records")));
        };
        let same = record.seq().0 == found as u64
            && *record.payload() == *expected.payload
            && record.kind().unwrap_or("") == expected.kind
            && record.timestamp() == Timestamp(expected.at);
        if !same {
            return Err(fail(format!("record {found} is another one: {record:?}")));
        }
        found += 1;
    }
    if found != count {
        return Err(fail(format!("{found} records instead of {count}")));
    }
    Ok(())
}

/// All runs by their names; every list of the store must agree.
fn listing(log: &impl ReadLog) -> Result<BTreeMap<(String, String), RunSummary>, String> {
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
