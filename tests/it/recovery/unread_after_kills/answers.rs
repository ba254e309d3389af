//! What a store answers, and whether that is right.

use std::collections::BTreeMap;
use std::ops::Range;

use runlog::{Error, IoAction, ReadLog, RunQuery};

use super::story::{AGENT, KEYS, Known, Run, SPACE, identify, key_name, note, run_name};
use crate::support::frames::EXTENT;

/// What is wrong with the disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    pub(super) unread: Vec<Range<u64>>,
    pub(super) has_damage: bool,
}

impl Faults {
    /// Whether an error is one that these faults explain.
    pub(super) fn explain(&self, error: &Error) -> bool {
        let reach = 3 * EXTENT as u64;
        match error {
            Error::Io { action: IoAction::Read { offset }, .. } => {
                self.unread.iter().any(|bad| *offset < bad.end && bad.start < offset + reach)
            }
            error => self.has_damage && error.is_corruption(),
        }
    }
}

/// What a store answers about one run.
#[derive(Debug)]
pub(super) struct OfRun {
    /// Whether it has ended, and how many records it has.
    summary: Result<Option<(bool, u64)>, Error>,
    /// Whether there is one.
    metadata: Result<bool, Error>,
    outcome: Result<bool, Error>,
    /// `None` if it says that there is no such run.
    trace: Option<(Vec<u64>, Vec<Error>)>,
}

#[derive(Debug)]
pub(super) struct Answers {
    runs: BTreeMap<u64, OfRun>,
    docs: BTreeMap<u64, Result<Option<u64>, Error>>,
    listed: Result<Vec<u64>, Error>,
    keys: Result<Vec<u64>, Error>,
}

fn unless_missing<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::RunNotFound { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

pub(super) fn number(name: &str) -> u64 {
    name.rsplit(' ').next().unwrap().parse().unwrap()
}

fn of_run(log: &impl ReadLog, run: u64) -> OfRun {
    let name = run_name(run);
    let named = (AGENT, name.as_str());
    let summary = unless_missing(log.run(named));
    let summary = summary.map(|found| found.map(|run| (run.status.is_ended(), run.records)));
    let is_there = |found: Option<&[u8]>, what| {
        let found = found.unwrap_or_default();
        assert!(found.is_empty() || found == note(what, run), "{what} of {run}");
        !found.is_empty()
    };
    let metadata = unless_missing(log.metadata(named))
        .map(|found| is_there(found.flatten().as_ref().map(|known| known.payload()), "metadata"));
    let outcome = unless_missing(log.outcome(named))
        .map(|found| is_there(found.flatten().as_ref().map(|known| known.payload()), "outcome"));
    let trace = match log.trace(named) {
        Err(Error::RunNotFound { .. }) => None,
        Err(error) => Some((Vec::new(), vec![error])),
        Ok(trace) => {
            let (mut ids, mut errors) = (Vec::new(), Vec::new());
            for record in trace {
                match record {
                    Ok(record) => ids.push(identify(record.kind(), record.payload())),
                    Err(error) => errors.push(error),
                }
                assert!(errors.len() < 5_000, "a trace does not end");
            }
            Some((ids, errors))
        }
    };
    OfRun { summary, metadata, outcome, trace }
}

impl Answers {
    /// What it answers about `runs` runs and all documents.
    pub(super) fn of(log: &impl ReadLog, runs: u64) -> Self {
        let listed: Result<Vec<_>, _> = log.runs(&RunQuery::new()).collect();
        let listed = listed.map(|runs| {
            let mut all: Vec<_> = runs.iter().map(|run| number(run.run.as_str())).collect();
            all.sort_unstable();
            all
        });
        let keys = log.list_documents(SPACE, "", None, 1_000);
        let keys = keys.map(|page| page.documents.iter().map(|key| number(&key.key)).collect());
        let document = |key| {
            let found = log.document(SPACE, &key_name(key))?;
            Ok(found.map(|found| identify(found.kind(), found.payload())))
        };
        Self {
            runs: (0..runs).map(|run| (run, of_run(log, run))).collect(),
            docs: (0..KEYS).map(|key| (key, document(key))).collect(),
            listed,
            keys,
        }
    }

    /// All errors.
    pub(super) fn errors(&self) -> impl Iterator<Item = &Error> {
        let of_runs = self.runs.values().flat_map(|run| {
            let traced = run.trace.iter().flat_map(|(_, errors)| errors);
            let all = [run.summary.as_ref().err(), run.metadata.as_ref().err()];
            all.into_iter().chain([run.outcome.as_ref().err()]).flatten().chain(traced)
        });
        let of_docs = self.docs.values().filter_map(|found| found.as_ref().err());
        let lists = [self.listed.as_ref().err(), self.keys.as_ref().err()];
        of_runs.chain(of_docs).chain(lists.into_iter().flatten())
    }

    /// What a damaged store must go on to answer.
    pub(super) fn known(&self) -> Known {
        let mut known = Known::default();
        for (number, run) in &self.runs {
            let is_dim = run.lacks_notes() || run.summary.is_err();
            if let Some((ids, errors)) = &run.trace {
                let has_ended = matches!(run.summary, Ok(Some((true, _))));
                let _ = known.runs.insert(*number, Run { ids: ids.clone(), has_ended });
                let count = match run.summary {
                    Ok(Some((_, count))) => count,
                    _ => u64::MAX,
                };
                if is_dim || !errors.is_empty() || count != ids.len() as u64 {
                    let _ = known.dim.insert(*number);
                }
            } else if is_dim {
                let _ = known.dim.insert(*number);
            }
        }
        for (key, found) in &self.docs {
            match found {
                Ok(Some(id)) => drop(known.docs.insert(*key, *id)),
                Ok(None) => {}
                Err(_) => drop(known.dim_docs.insert(*key)),
            }
        }
        known.dim_lists = self.listed.is_err() || self.keys.is_err();
        known
    }

    /// Whether each answer is right or an error that the faults explain.
    pub(super) fn check(&self, known: &Known, faults: &Faults) -> Result<(), String> {
        if let Some(error) = self.errors().find(|error| !faults.explain(error)) {
            return Err(format!("it answers {error:?}"));
        }
        for (number, run) in &self.runs {
            let wanted = known.runs.get(number);
            if known.half_gone.contains(number) && run.is_gone() {
                continue;
            }
            if wanted.is_none() && faults.has_damage {
                // What deleted it may be lost.
                continue;
            }
            run.check(wanted, known.dim.contains(number))
                .map_err(|error| format!("run {number}: {error}, wanted {wanted:?}"))?;
        }
        for (key, found) in &self.docs {
            let wanted = known.docs.get(key).copied();
            let may_be_gone = known.half_gone_docs.contains(key) && matches!(found, Ok(None));
            let is_right = match found {
                Ok(_) if wanted.is_none() && faults.has_damage => true,
                Ok(id) => *id == wanted || may_be_gone || known.dim_docs.contains(key),
                Err(_) => true,
            };
            if !is_right {
                return Err(format!("document {key} is {found:?} and was {wanted:?}"));
            }
        }
        if known.dim_lists {
            return Ok(());
        }
        let is_right = |found: &[u64], wanted: Vec<&u64>| {
            let has_all = wanted.iter().all(|number| found.contains(number));
            has_all && (found.len() == wanted.len() || faults.has_damage)
        };
        if let Ok(listed) = &self.listed {
            let unsure = |run: &u64| known.dim.contains(run) || known.half_gone.contains(run);
            let listed: Vec<u64> = listed.iter().copied().filter(|run| !unsure(run)).collect();
            let wanted: Vec<_> = known.runs.keys().filter(|run| !unsure(run)).collect();
            if !is_right(&listed, wanted) {
                return Err(format!("the list has {listed:?} of {:?}", known.runs.keys()));
            }
        }
        if let Ok(keys) = &self.keys {
            let unsure =
                |key: &u64| known.dim_docs.contains(key) || known.half_gone_docs.contains(key);
            let keys: Vec<u64> = keys.iter().copied().filter(|key| !unsure(key)).collect();
            let wanted: Vec<_> = known.docs.keys().filter(|key| !unsure(key)).collect();
            if !is_right(&keys, wanted) {
                return Err(format!("the keys are {keys:?} of {:?}", known.docs));
            }
        }
        Ok(())
    }
}

impl OfRun {
    fn is_gone(&self) -> bool {
        matches!(self.summary, Ok(None)) && self.trace.is_none()
    }

    /// Whether its metadata or outcome are not there, or cannot be read.
    fn lacks_notes(&self) -> bool {
        let (exists, has_ended) = match self.summary {
            Ok(Some((has_ended, _))) => (true, has_ended),
            _ => (false, false),
        };
        let lacks = |wanted, found: &Result<bool, Error>| match found {
            Ok(found) => wanted && !found,
            Err(_) => true,
        };
        lacks(exists, &self.metadata) || lacks(has_ended, &self.outcome)
    }

    fn check(&self, wanted: Option<&Run>, is_dim: bool) -> Result<(), String> {
        let has_errors = self.trace.as_ref().is_some_and(|(_, errors)| !errors.is_empty());
        let Some(wanted) = wanted else {
            let has_trace = self.trace.is_some() && !has_errors;
            let is_there = has_trace || matches!(self.summary, Ok(Some(_)));
            return if is_there && !is_dim { Err("it came back".to_owned()) } else { Ok(()) };
        };
        // Damage may have made an index and the log different.
        if is_dim && wanted.ids.is_empty() && self.is_gone() {
            return Ok(());
        }
        let Some((ids, errors)) = &self.trace else {
            return Err("a trace does not find it".to_owned());
        };
        if matches!(self.summary, Ok(None)) {
            return Err("a summary does not find it".to_owned());
        }
        let mut rest = wanted.ids.iter();
        if is_dim {
            let has_all = wanted.ids.iter().all(|id| ids.contains(id));
            return if has_all || !errors.is_empty() {
                Ok(())
            } else {
                Err(format!("it has only {ids:?}"))
            };
        }
        let in_order = ids.iter().all(|id| rest.any(|known| known == id));
        if !in_order || (errors.is_empty() && ids.len() != wanted.ids.len()) {
            return Err(format!("its trace is {ids:?} and {} errors", errors.len()));
        }
        match &self.summary {
            Ok(Some(found)) if *found != (wanted.has_ended, wanted.ids.len() as u64) => {
                Err(format!("its summary is {found:?}"))
            }
            Ok(_) if matches!(self.metadata, Ok(false)) => Err("no metadata".to_owned()),
            Ok(_) if wanted.has_ended && matches!(self.outcome, Ok(false)) => {
                Err("no outcome".to_owned())
            }
            _ => Ok(()),
        }
    }
}
