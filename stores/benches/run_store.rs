//! `RunStore` beside the layout that it replaces, one JSON Lines file a run: listing the newest 20
//! of an agent's 20,000 runs, which that layout parses all of; and adopting 64 orphans among
//! 100,000 runs.
//!
//! Both lists are of the same tree of files, and are measured in turns, so that what else goes on
//! in the machine hits both.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use criterion::{Criterion, criterion_group, criterion_main};
use runlog::{Durability, Metadata, NewRecord, Outcome};
use runlog_stores::run_store::{
    RetentionConfig, RunEnded, RunRecord, RunStarted, RunStore, RunTurn,
};

#[path = "../../benches/workload/mod.rs"]
mod workload;

/// Runs of the agent that is listed, and all others.
const LISTED: usize = 20_000;
const OTHERS: usize = 80_000;
/// Turns of a run, and the bytes of a prompt.
const TURNS: usize = 20;
const PROMPT: usize = 400;
const ORPHANS: usize = 64;
const PAGE: usize = 20;

fn at(second: usize) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_225_600 + i64::try_from(second).unwrap(), 0).unwrap()
}

fn started(agent: &str, number: usize) -> RunRecord {
    RunRecord::Started(RunStarted {
        run_id: format!("run-{number:06}"),
        agent_id: agent.to_owned(),
        intent: "look after the garden".to_owned(),
        started_at: at(number),
        ..RunStarted::default()
    })
}

fn turn(index: usize) -> RunRecord {
    let prompt = Some("p".repeat(PROMPT));
    RunRecord::Turn(RunTurn { index, prompt, ..RunTurn::default() })
}

fn ended(agent: &str, number: usize) -> RunRecord {
    RunRecord::Ended(RunEnded {
        run_id: format!("run-{number:06}"),
        agent_id: agent.to_owned(),
        ended_at: at(number + 30),
        ..RunEnded::default()
    })
}

/// A tree of finished runs as the original writes it.
fn write_tree(root: &Path, runs: usize) {
    let folder = root.join("listed");
    fs::create_dir_all(&folder).unwrap();
    for number in 0..runs {
        let mut file = Vec::new();
        let turns = (0..TURNS).map(turn);
        let records = [started("listed", number)].into_iter().chain(turns);
        for record in records.chain([ended("listed", number)]) {
            file.extend(record.to_line());
            file.push(b'\n');
        }
        fs::write(folder.join(format!("run-{number:06}.jsonl")), file).unwrap();
    }
}

/// The newest runs of an agent as the original finds them: each line of each file is parsed.
fn list_files(folder: &Path) -> Vec<(DateTime<Utc>, String, usize, bool)> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read(entry.unwrap().path()).unwrap();
        let (mut start, mut turns, mut is_ended) = (None, 0, false);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match RunRecord::from_line(line) {
                Ok(RunRecord::Started(started)) => start = Some(started),
                Ok(RunRecord::Turn(_)) => turns += 1,
                Ok(RunRecord::Ended(_)) => is_ended = true,
                _ => {}
            }
        }
        runs.extend(start.map(|start| (start.started_at, start.run_id, turns, is_ended)));
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.0));
    runs.truncate(PAGE);
    runs
}

/// Finished runs of other agents, so that there are many.
fn add_others(store: &RunStore) {
    let log = store.log().unwrap();
    let line = turn(0).to_line();
    let records = [NewRecord::json(&line).kind("turn"); TURNS];
    for number in 0..OTHERS {
        let (agent, run) = (format!("other-{}", number % 50), format!("other-run-{number}"));
        let quick = Metadata::default().durability(Durability::Process);
        let writer = log.start_run(&agent, &run, quick).unwrap();
        let _ = writer.append_batch(&records).unwrap();
        let _ = writer.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    }
    log.checkpoint().unwrap();
}

/// The time that `count` adoptions of orphans take, each of as many new ones.
fn adopt(store: &RunStore, round: &mut usize, count: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        *round += 1;
        for number in 0..ORPHANS {
            let agent = format!("crashed-{round}");
            let run = format!("run-{number:06}");
            let records: Vec<_> = (0..TURNS).map(turn).collect();
            store.append_records(&agent, &run, &[started(&agent, number)]).unwrap();
            store.append_turns(&agent, &run, &records).unwrap();
        }
        let began = Instant::now();
        assert_eq!(store.try_adopt_orphans().unwrap().adopted, ORPHANS);
        spent += began.elapsed();
    }
    spent
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn run_store(criterion: &mut Criterion) {
    let folder = workload::folder();
    let tree = folder.path().join("files");
    write_tree(&tree, LISTED);
    let store = RunStore::new(folder.path().join("runs"), RetentionConfig::default());
    assert_eq!(store.import_tree(&tree).unwrap().new, LISTED as u64);
    store.log().unwrap().checkpoint().unwrap();

    let (mut files, mut pages) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let began = Instant::now();
        let listed = list_files(&tree.join("listed"));
        files.push(began.elapsed());
        let began = Instant::now();
        for _ in 0..100 {
            let page = store.list_runs_page("listed", None, PAGE).unwrap();
            assert_eq!(page.runs.len(), listed.len());
            assert!(page.runs.iter().zip(&listed).all(|(run, file)| run.run_id == file.1));
        }
        pages.push(began.elapsed() / 100);
    }
    let (files, pages) = (median(files), median(pages));
    println!(
        "newest {PAGE} of {LISTED} runs: files {files:.1?}, store {pages:.1?}, {:.0} times\n",
        files.as_secs_f64() / pages.as_secs_f64()
    );

    let mut group = criterion.benchmark_group("run store");
    group.bench_function("newest 20 of an agent's 20,000 runs", |bencher| {
        bencher.iter(|| black_box(store.list_runs_page("listed", None, PAGE).unwrap()));
    });
    group.bench_function("all of an agent's 20,000 runs", |bencher| {
        bencher.iter(|| black_box(store.list_runs("listed")));
    });
    add_others(&store);
    let mut round = 0;
    group.bench_function("adopting 64 orphans among 100,000 runs", |bencher| {
        bencher.iter_custom(|count| adopt(&store, &mut round, count));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = workload::criterion();
    targets = run_store
}
criterion_main!(benches);
