//! The answers of a store, and which of them are right.

use std::collections::{BTreeMap, BTreeSet};

use runlog::{Error, ReadLog, RunQuery, RunSummary, SalvageReport};

use super::Fault;
use super::store::{SPACE, Store};

/// The answers to all questions, as text.
pub(super) type State = BTreeMap<Question, String>;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Question {
    Runs,
    Held,
    Agents,
    Documents,
    Summary(String),
    Metadata(String),
    Outcome(String),
    /// Of a run, the record with this sequence; an error of its trace answers any of them.
    Record(String, u64),
    Trace(String),
    Document(String),
    Version(String),
}

/// The answers, and the questions that ended in an error.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) answers: State,
    errors: Vec<(Question, Error)>,
}

impl Found {
    pub(super) fn of(log: &impl ReadLog, store: &Store) -> Self {
        let mut found = Self::default();
        let query = RunQuery::new().limit(1000);
        let listed = log.list_runs(&query);
        let listed = listed.map(|page| page.runs.iter().map(about).collect::<Vec<_>>());
        found.note(Question::Runs, listed.map(|all| all.join("\n")));
        found.note(Question::Held, log.held_runs().map(|held| format!("{held:?}")));
        found.note(Question::Agents, log.agents(None, 100).map(|all| format!("{all:?}")));
        let listed = log.list_documents(SPACE, "", None, 1000);
        found.note(Question::Documents, listed.map(|page| format!("{page:?}")));
        for run in &store.runs {
            found.ask_run(log, run);
        }
        for key in &store.keys {
            let value = log.document(SPACE, key);
            let value = value.map(|one| one.map(|one| text_of(one.payload())));
            found.note(Question::Document(key.clone()), value.map(|one| format!("{one:?}")));
            let version = log.document_version(SPACE, key);
            found.note(Question::Version(key.clone()), version.map(|one| format!("{one:?}")));
        }
        found
    }

    fn ask_run(&mut self, log: &impl ReadLog, run: &str) {
        let name = ("agent", run);
        let summary = log.run(name).map(|summary| about(&summary));
        self.note(Question::Summary(run.to_owned()), summary);
        let metadata = log.metadata(name);
        let metadata = metadata.map(|one| one.map(|one| text_of(one.payload())));
        self.note(Question::Metadata(run.to_owned()), metadata.map(|one| format!("{one:?}")));
        let outcome = log.outcome(name);
        let outcome = outcome.map(|one| one.map(|one| (one.status(), text_of(one.payload()))));
        self.note(Question::Outcome(run.to_owned()), outcome.map(|one| format!("{one:?}")));
        let trace = match log.trace(name) {
            Ok(trace) => trace,
            Err(error) => return self.note(Question::Trace(run.to_owned()), Err(error)),
        };
        let mut last = None;
        for record in trace {
            match record {
                Ok(record) => {
                    let seq = record.seq().0;
                    assert!(last < Some(seq), "{run} is in order");
                    last = Some(seq);
                    let told = format!("{:?} {}", record.kind(), text_of(record.payload()));
                    self.note(Question::Record(run.to_owned(), seq), Ok(told));
                }
                Err(error) => self.note(Question::Trace(run.to_owned()), Err(error)),
            }
        }
    }

    fn note(&mut self, question: Question, answer: Result<String, Error>) {
        match answer {
            Ok(answer) => drop(self.answers.insert(question, answer)),
            // There is no such run: an answer like others.
            Err(error @ Error::RunNotFound { .. }) => {
                drop(self.answers.insert(question, error.to_string()));
            }
            Err(error) => self.errors.push((question, error)),
        }
    }

    /// The state of which each answer is, unless it is an error that names the place of the fault.
    pub(super) fn state<'s>(&self, store: &'s Store, fault: &Fault) -> Result<&'s State, String> {
        let judged: Vec<_> =
            store.states.iter().map(|state| is_right(self, state, fault)).collect();
        let which = judged.iter().position(Result::is_ok);
        which.map(|which| &store.states[which]).ok_or(format!("as of no moment: {judged:#?}"))
    }

    /// Each record is one that the store had.
    pub(super) fn has_only_records_of(&self, store: &Store) -> Result<(), String> {
        for (question, answer) in &self.answers {
            let mut states = store.states.iter().chain([&store.before]);
            let mut is_known = || states.any(|state| state.get(question) == Some(answer));
            if matches!(question, Question::Record(..)) && !is_known() {
                return Err(format!("{question:?} is {}", shortened(answer)));
            }
        }
        Ok(())
    }

    pub(super) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }
}

/// Whether each answer is that of this state, or an error that names the place of the fault.
pub(super) fn is_right(found: &Found, state: &State, fault: &Fault) -> Result<(), String> {
    for (question, error) in &found.errors {
        if !fault.is_named_by(error) {
            return Err(format!("{question:?}: {error}"));
        }
    }
    for (question, answer) in &found.answers {
        if state.get(question) != Some(answer) {
            let right = state.get(question).map_or("", String::as_str);
            return Err(format!("{question:?}: {}", difference(answer, right)));
        }
    }
    let failed: BTreeSet<&Question> = found.errors.iter().map(|(question, _)| question).collect();
    for question in state.keys().filter(|question| !found.answers.contains_key(question)) {
        let is_told = match question {
            Question::Record(run, _) => failed.contains(&Question::Trace(run.clone())),
            other => failed.contains(other),
        };
        if !is_told {
            return Err(format!("{question:?} is missing without an error"));
        }
    }
    Ok(())
}

/// Checks a salvaged store: it has each payload of the last state except those that were `lost`,
/// and none that was never written.
pub(super) fn check_salvaged(
    log: &impl ReadLog,
    store: &Store,
    lost: &BTreeSet<(String, u64)>,
    report: &SalvageReport,
) -> Result<(), String> {
    let last = store.states.last().expect("it has a state");
    let found = Found::of(log, store);
    if let Some((question, error)) = found.errors.first() {
        return Err(format!("{question:?}: {error}"));
    }
    // Sequences are given anew after what is lost.
    let (now, before) = (payloads(&found.answers), payloads(last));
    let may_be_deleted = !report.caveats.is_empty() || !report.missing.is_empty();
    for &(run, text) in &now {
        let payload = text.split_once(' ').map_or("", |(_, payload)| payload);
        if !store.ever.get(run).is_some_and(|ever| ever.contains(payload)) {
            return Err(format!("{run} has a record that was never written"));
        }
        if !before.contains(&(run, text)) && !may_be_deleted {
            return Err(format!("{run} has a deleted record, and the report does not say so"));
        }
    }
    for (question, text) in last {
        let Question::Record(run, seq) = question else { continue };
        if !now.contains(&(run, text)) && !lost.contains(&(run.clone(), *seq)) {
            return Err(format!("{run} record {seq} is whole and was not brought out"));
        }
    }
    for key in &store.keys {
        let question = Question::Document(key.clone());
        let (now, before) = (&found.answers[&question], &last[&question]);
        let is_lost = lost.iter().any(|(name, _)| name == key);
        if now != before && !(is_lost || may_be_deleted && before == "None") {
            let (now, before) = (shortened(now), shortened(before));
            return Err(format!("document {key} is {now}, not {before}"));
        }
    }
    Ok(())
}

/// The records of a state, each with its run.
fn payloads(state: &State) -> BTreeSet<(&str, &str)> {
    let mut all = BTreeSet::new();
    for (question, text) in state {
        if let Question::Record(run, _) = question {
            let _ = all.insert((run.as_str(), text.as_str()));
        }
    }
    all
}

/// A summary without what a compaction changes.
fn about(summary: &RunSummary) -> String {
    let RunSummary { agent, run, status, started_at, ended_at, .. } = summary;
    let RunSummary { last_at, records, bytes, held, .. } = summary;
    let times = (started_at, ended_at, last_at);
    format!("{agent} {run} {} {status:?} {times:?} {records} {bytes} {held}", summary.number())
}

pub(super) fn text_of(payload: &[u8]) -> String {
    format!("{} B, {:08x}", payload.len(), crc32fast::hash(payload))
}

/// The first place in which two texts differ.
fn difference(found: &str, right: &str) -> String {
    let same = found.chars().zip(right.chars()).take_while(|(one, two)| one == two).count();
    let near =
        |text: &str| text.chars().skip(same.saturating_sub(40)).take(120).collect::<String>();
    format!("is {:?}, not {:?}", near(found), near(right))
}

fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}
