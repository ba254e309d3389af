//! Index, directory scan and model answer the same to every question, however the log was cut
//! into batches.

use super::log::{AGENTS, CACHE, IDENTITY, Log, Model, RUNS, Random, Shape, SharedBytes};
use crate::index::{Catalog, DirectoryScan, IndexSnapshot, IndexStore, RunFilter, check};
use crate::types::{RunNo, RunRef, SegmentId, Timestamp};

const NOWHERE: [&str; 3] = ["", "b", "zz"];

fn assert_same(left: &dyn Catalog, right: &dyn Catalog, context: &str) {
    assert_eq!(left.count_runs(), right.count_runs(), "{context}");
    for run in RUNS.into_iter().chain(NOWHERE) {
        let by_id = RunRef::from(run);
        assert_eq!(left.run_numbers(by_id), right.run_numbers(by_id), "{context} {run:?}");
        for agent in AGENTS.into_iter().chain(NOWHERE) {
            let by_both = RunRef::from((agent, run));
            let numbers = left.run_numbers(by_both);
            assert_eq!(numbers, right.run_numbers(by_both), "{context} {agent:?} {run:?}");
        }
    }
    let all = right.runs_page(RunFilter::All, None, usize::MAX).unwrap();
    let last = all.iter().map(|key| key.1.0).max().unwrap_or(0);
    for number in 0..last + 3 {
        let run_no = RunNo(number);
        assert_eq!(left.row(run_no), right.row(run_no), "{context}");
        assert_eq!(left.spans(run_no), right.spans(run_no), "{context}");
    }
    assert_same_pages(left, right, context);
}

fn assert_same_pages(left: &dyn Catalog, right: &dyn Catalog, context: &str) {
    let agents = AGENTS.into_iter().chain(NOWHERE).map(RunFilter::Agent);
    for filter in agents.chain([RunFilter::All]) {
        for limit in [0, 1, 3, usize::MAX] {
            let mut before = None;
            loop {
                let page = left.runs_page(filter, before, limit).unwrap();
                let expected = right.runs_page(filter, before, limit).unwrap();
                assert_eq!(page, expected, "{context} {filter:?} {before:?} {limit}");
                before = page.last().copied();
                if before.is_none() {
                    break;
                }
            }
        }
        for at in [i64::MIN, -1, 0, i64::MAX] {
            let before = Some((Timestamp(at), RunNo(0)));
            let page = left.runs_page(filter, before, 9);
            assert_eq!(page, right.runs_page(filter, before, 9), "{context} {filter:?} {at}");
        }
    }
    for limit in [0, 1, 3, usize::MAX] {
        let mut after = None;
        loop {
            let page = left.in_progress_page(after, limit).unwrap();
            let expected = right.in_progress_page(after, limit).unwrap();
            assert_eq!(page, expected, "{context} {after:?} {limit}");
            after = page.last().copied();
            if after.is_none() {
                break;
            }
        }
        let mut after = None;
        loop {
            let page = left.agents_page(after.as_deref(), limit).unwrap();
            let expected = right.agents_page(after.as_deref(), limit).unwrap();
            assert_eq!(page, expected, "{context} {after:?} {limit}");
            after = page.last().map(|agent| agent.as_str().to_owned());
            if after.is_none() {
                break;
            }
        }
    }
    let end = Some(RunNo(u64::MAX));
    assert_eq!(left.in_progress_page(end, 9), right.in_progress_page(end, 9), "{context}");
}

fn assert_checks(snapshot: &IndexSnapshot, log: &Log, context: &str) {
    let mut differences = Vec::new();
    let compared = check(snapshot, log, &mut |difference| {
        differences.push(difference);
    });
    assert_eq!(differences, [], "{context}");
    assert_eq!(compared, snapshot.count_runs(), "{context}");
}

/// Tells a log to the index in random batches and compares after each.
fn grow(seed: u64, shape: Shape) {
    let mut random = Random(!seed);
    let log = Log::generate(seed, 12, 14, shape);
    let changes = log.changes();
    let mut model = Model::default();
    let mut bytes = SharedBytes::default();
    let mut store = IndexStore::create(bytes.clone(), CACHE, IDENTITY).unwrap();
    let mut at = 0;
    while at < changes.len() {
        let to = (at + 1 + usize::try_from(random.below(4)).unwrap()).min(changes.len());
        // What was applied before may be given again.
        let from = at.saturating_sub(usize::try_from(random.below(3)).unwrap());
        store.apply(&changes[from..to]).unwrap();
        for change in &changes[at..to] {
            model.apply(change);
        }
        at = to;
        if random.once_in(3) {
            // As after a crash: what is in the storage, without what closing writes.
            bytes = SharedBytes::new(bytes.copy());
            store = IndexStore::open(bytes.clone(), CACHE, IDENTITY).unwrap();
        }
        let context = format!("seed {seed} {shape:?} segment {at}");
        let snapshot = store.snapshot().unwrap();
        let last = Some(changes[at - 1].segment);
        assert_eq!(snapshot.applied(), last, "{context}");
        assert_same(&snapshot, &model, &context);
        assert_same(&DirectoryScan::up_to(&log, last), &model, &context);
        assert_checks(&snapshot, &log, &context);
    }
    rebuild(&log, &model, &format!("seed {seed} {shape:?} rebuilt"));
}

fn rebuild(log: &Log, model: &Model, context: &str) {
    let changes = log.changes();
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    store.apply(&changes).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_same(&snapshot, model, context);
    assert_same(&DirectoryScan::new(log), model, context);
    assert_checks(&snapshot, log, context);
}

#[test]
fn index_scan_and_model_agree_on_every_question() {
    for seed in 0..60 {
        grow(seed, Shape::Proper);
    }
}

#[test]
fn they_agree_on_a_log_that_lost_segments_too() {
    for seed in 1000..1040 {
        grow(seed, Shape::Wild);
    }
}

#[test]
fn an_empty_log_has_empty_answers() {
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let log = Log::default();
    assert_eq!(snapshot.applied(), None);
    assert_same(&snapshot, &Model::default(), "empty index");
    assert_same(&DirectoryScan::new(&log), &Model::default(), "empty scan");
    assert_checks(&snapshot, &log, "empty");
    let scan = DirectoryScan::up_to(&log, Some(SegmentId(7)));
    assert_same(&scan, &Model::default(), "empty scan");
}
