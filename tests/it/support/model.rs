//! What was appended to a store, in order, and how much of it must be there after a crash.
//!
//! - The model is a list of [`Event`]s in the order of the log. A crash leaves a *prefix* of that
//!   list: at least what was acknowledged, at most what was begun.
//! - [`Model::check`] reads everything back through the public API and finds the prefix, or reports
//!   what fits none.

mod moment;
mod shown;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use runlog::{
    ContentType, HeldRun, Lsn, NewRecord, ReadLog, Record, Rule, RunStatus, RunSummary, Timestamp,
    Version,
};

pub(crate) use self::shown::read_documents;
use self::shown::{compare_records, holds, listing};

/// A record as it was appended.
#[derive(Debug, Clone)]
pub(crate) struct Rec {
    pub(crate) payload: Arc<[u8]>,
    pub(crate) kind: &'static str,
    pub(crate) content: ContentType,
    pub(crate) at: i64,
}

impl Rec {
    /// What appends it.
    pub(crate) fn to_append(&self) -> NewRecord<'_> {
        NewRecord::new(&self.payload).kind(self.kind).content_type(self.content)
    }

    /// Whether this is the record that was read, where it should be.
    pub(crate) fn is<B: core::ops::Deref<Target = [u8]>>(
        &self,
        record: &Record<B>,
        seq: usize,
    ) -> bool {
        record.seq().0 == seq as u64
            && *record.payload() == *self.payload
            && record.kind().unwrap_or("") == self.kind
            && record.content_type() == self.content
            && record.timestamp() == Timestamp(self.at)
    }
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
    /// A hold for this reason, or a release.
    Hold {
        reason: Option<&'static str>,
    },
    Delete {
        rule: Rule,
    },
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

/// A run and all that was ever appended to it. If it was deleted and its name is used again, the
/// new run goes on here.
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
pub(crate) struct State {
    pub(crate) exists: bool,
    /// The event that created it.
    pub(crate) number: usize,
    pub(crate) started_at: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) ended_at: Option<i64>,
    pub(crate) last_at: i64,
    pub(crate) status: RunStatus,
    /// The records of deleted runs with the same name, which are not its own.
    pub(crate) first: usize,
    pub(crate) records: usize,
    pub(crate) late: u64,
    pub(crate) bytes: u64,
    /// Since when it is held, and why.
    pub(crate) hold: Option<(i64, &'static str)>,
}

impl State {
    fn apply(&mut self, place: usize, event: &Event, run: &Run) {
        if let Change::Hold { reason } = event.change {
            self.hold = reason.map(|reason| (event.at, reason));
            return;
        }
        if let Change::Delete { .. } = event.change {
            *self = Self { first: self.first + self.records, ..Self::default() };
            return;
        }
        let mut last = event.at;
        match &event.change {
            Change::Start { implicit, .. } => {
                if !self.exists {
                    (self.created_at, self.number) = (event.at, place);
                    self.last_at = event.at;
                }
                self.exists = true;
                if !implicit {
                    self.started_at = Some(event.at);
                }
            }
            Change::Records { count } => {
                let added = &run.records[self.first + self.records..][..*count];
                self.records += count;
                self.bytes += added.iter().map(|rec| rec.payload.len() as u64).sum::<u64>();
                if self.status.is_ended() {
                    self.late += *count as u64;
                }
                last = added.iter().map(|rec| rec.at).max().unwrap_or(last);
            }
            Change::End { status, .. } => {
                self.status = *status;
                self.ended_at = Some(event.at);
            }
            Change::Hold { .. } | Change::Documents { .. } | Change::Delete { .. } => {}
        }
        self.last_at = self.last_at.max(last);
    }

    /// Whether this is the run that was listed.
    pub(crate) fn is(&self, found: &RunSummary) -> bool {
        self.exists
            && self.records == count(found.records)
            && self.status == found.status
            && self.started_at.is_some() == found.started
            && self.hold.is_some() == found.held
            && Timestamp(self.started_at.unwrap_or(self.created_at)) == found.started_at
            && self.ended_at.map(Timestamp) == found.ended_at
            && Timestamp(self.last_at) == found.last_at
            && (self.late, self.bytes) == (found.late_records, found.bytes)
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
                Change::Hold { reason } => format!("hold {reason:?}"),
                Change::Delete { rule } => format!("delete by {rule:?}"),
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
        let (mut listed, mut holds) = (listing(log)?, holds(log)?);
        let mut seen: Seen = Vec::with_capacity(self.runs.len());
        let (mut low, mut high) = (least, most);
        let (mut gone, mut there) = (Vec::new(), Vec::new());
        for run in &self.runs {
            let name = (run.agent.clone(), run.run.clone());
            let (summary, hold) = (listed.remove(&name), holds.remove(&name));
            seen.push(summary.as_ref().map(|found| (count(found.records), found.status)));
            let Some(summary) = summary else {
                gone.push(run);
                continue;
            };
            let (state, places) = self.find_state(run, &summary, hold.as_ref())?;
            let (first, last) = (places[0], places[places.len() - 1]);
            compare_records(log, run, &run.records[state.first..][..state.records])?;
            self.compare_ends(log, run, &run.events[..first])?;
            low = low.max(run.events[..first].last().map_or(0, |last| last + 1));
            high = high.min(run.events.get(last).copied().unwrap_or(usize::MAX));
            there.push((run, places));
        }
        if let Some(foreign) = listed.into_keys().chain(holds.into_keys()).next() {
            return Err(format!("run {foreign:?} was never started, or is not listed"));
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

    /// The state of a run after all events.
    pub(crate) fn state(&self, run: usize) -> State {
        let (mut state, run) = (State::default(), &self.runs[run]);
        run.events.iter().for_each(|at| state.apply(*at, &self.events[*at], run));
        state
    }

    fn exists_after(&self, run: &Run, prefix: usize) -> bool {
        let events = run.events.iter().take_while(|at| **at < prefix);
        events.last().is_some_and(|at| !matches!(self.events[*at].change, Change::Delete { .. }))
    }

    /// The number of events after which a run has this state: one that was held and released is as
    /// before.
    fn find_state(
        &self,
        run: &Run,
        summary: &RunSummary,
        hold: Option<&HeldRun>,
    ) -> Result<(State, Vec<usize>), String> {
        let hold = hold.map(|held| (held.since.0, held.reason.as_str()));
        let mut state = State::default();
        let mut found: Option<(State, Vec<usize>)> = None;
        for (place, at) in run.events.iter().enumerate() {
            state.apply(*at, &self.events[*at], run);
            if state.is(summary) && state.hold == hold {
                let mut places = found.map_or_else(Vec::new, |found| found.1);
                places.push(place + 1);
                found = Some((state.clone(), places));
            }
        }
        found.ok_or_else(|| {
            let Run { agent, run, .. } = run;
            format!(
                "{agent}/{run} was never in this state: {summary:?}, {hold:?}; at last {state:?}"
            )
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
                Change::Delete { .. } => (metadata, outcome) = (None, None),
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

fn count(records: u64) -> usize {
    usize::try_from(records).unwrap_or(usize::MAX)
}
