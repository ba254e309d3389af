//! A check before all measurements: all engines get the same runs and must give the same answers,
//! byte for byte, also after they were closed and reopened, and after they were compacted.

use std::path::Path;

use crate::engine::{Engine, Kind, Level, New, Run};
use crate::measure::folder;
use crate::workload::runs::{Records, Runs, kind};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

/// Runs that are loaded at once, and further runs that are appended to record by record.
const LOADED: u64 = 90;
const APPENDED: u64 = 10;
const RECORDS: usize = 18;
/// Records per call where a call appends several.
const BATCH: usize = 3;
/// The length of pages: some agents have fewer runs, some more.
const PAGE: usize = 20;

/// The answers of an engine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    /// Sequence, kind and payload of the records of each run.
    traces: Vec<Vec<(u64, String, Vec<u8>)>>,
    agents: Vec<String>,
    newest: Vec<Vec<String>>,
}

/// Compares the answers of all engines at both levels. Returns what was compared, for the report.
pub(crate) fn check(kinds: &[Kind], dir: &Path) -> String {
    let (records, sizes, words) = (Records::Fixed(RECORDS), Sizes::Real, Words::new());
    let (agents, at_once) = (5, 8);
    let runs = Runs { count: LOADED, agents, at_once, favourite: true, records, sizes, words };
    let expected = expected(&runs);
    let kinds = kinds.iter().copied().filter(|kind| kind.answers());
    let names: Vec<&str> = kinds.map(|kind| checked(kind, dir, &runs, &expected)).collect();
    let records = expected.traces.iter().map(Vec::len).sum::<usize>();
    let bytes = expected.traces.iter().flatten().map(|(.., payload)| payload.len()).sum::<usize>();
    format!(
        "{records} records ({bytes} B) of {} runs and {} lists of runs are the same, byte for \
         byte, in {}; as written, opened again, and compacted; at both levels",
        expected.traces.len(),
        expected.newest.len(),
        names.join(", ")
    )
}

/// Compares the answers of one engine.
fn checked(kind: Kind, dir: &Path, runs: &Runs, expected: &Answers) -> &'static str {
    let name = kind.name();
    for level in [Level::Process, Level::Disk] {
        let folder = folder(dir);
        let engine = kind.open(folder.path(), level);
        write(runs, &*engine);
        assert!(answers(runs, &*engine) == *expected, "{name} answers what was written");
        engine.close();
        let mut engine = kind.open(folder.path(), level);
        assert!(answers(runs, &*engine) == *expected, "{name} answers so when opened again");
        engine.settle();
        engine.compact();
        assert!(answers(runs, &*engine) == *expected, "{name} answers so when compacted");
        engine.close();
    }
    name
}

fn numbers() -> std::ops::Range<u64> {
    0..LOADED + APPENDED
}

fn write(runs: &Runs, engine: &dyn Engine) {
    runs.load(&[engine]);
    for number in LOADED..LOADED + APPENDED {
        let run: Run = runs.run(number);
        let mut writer = engine.start(&run);
        let records = runs.records(number);
        let all: Vec<New<'_>> = (0..)
            .zip(&records)
            .map(|(seq, payload)| New { kind: kind(number, seq), payload })
            .collect();
        let calls = if number % 2 == 0 { 1 } else { BATCH };
        for records in all.chunks(calls) {
            writer.append(records);
        }
    }
}

fn expected(runs: &Runs) -> Answers {
    let trace = |number| {
        let records = (0..).zip(runs.records(number));
        records.map(|(seq, payload)| (seq as u64, kind(number, seq).to_owned(), payload)).collect()
    };
    let newest = |agent: &String| {
        let runs = numbers().rev().map(|number| runs.run(number));
        runs.filter(|run| run.agent == *agent).take(PAGE).map(|run| run.id).collect()
    };
    Answers {
        traces: numbers().map(trace).collect(),
        agents: numbers().map(|number| runs.run(number).agent).collect(),
        newest: agents(runs).iter().map(newest).collect(),
    }
}

fn answers(runs: &Runs, engine: &dyn Engine) -> Answers {
    let mut answers = Answers::default();
    for number in numbers() {
        let id = runs.run(number).id;
        let mut trace = Vec::new();
        engine.trace(&id, &mut |seq, kind, payload| {
            trace.push((seq, kind.to_owned(), payload.to_vec()));
        });
        answers.traces.push(trace);
        engine.agent_of(&id, &mut |agent| answers.agents.push(agent.to_owned()));
    }
    for agent in agents(runs) {
        let mut newest = Vec::new();
        engine.newest(&agent, PAGE, &mut |run| newest.push(run.to_owned()));
        answers.newest.push(newest);
    }
    answers
}

/// All agents, each once.
fn agents(runs: &Runs) -> Vec<String> {
    let mut agents: Vec<String> = numbers().map(|number| runs.run(number).agent).collect();
    agents.sort_unstable();
    agents.dedup();
    agents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_engines_give_the_same_answers() {
        let folder = tempfile::tempdir().unwrap();
        let told = check(&Kind::ALL, folder.path());
        for kind in Kind::ALL.into_iter().filter(|kind| kind.answers()) {
            assert!(told.contains(kind.name()), "{told}");
        }
    }
}
