//! What owners of records need of the engine to make their own plans.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Error, Options, Outcome, Rule, RunLog, RunQuery, RunRef};

fn log() -> RunLog {
    let options = Options::new().extent_size(64 << 10).background(false);
    options.create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

fn ended(log: &RunLog, run: &str) {
    log.start_run("agent", run, ()).unwrap().end(&Outcome::completed()).unwrap();
}

#[test]
fn what_is_named_goes_for_the_reason_that_is_named_and_what_may_not_go_stays() {
    let log = log();
    for run in ["old", "many", "held", "other"] {
        ended(&log, run);
    }
    log.start_run("agent", "open", ()).unwrap();
    log.hold("held", "evidence").unwrap();
    let named = [("old", Rule::Age), ("many", Rule::NewestN), ("held", Rule::Age)];
    let more = [("open", Rule::Age), ("never", Rule::Age)];
    let runs: Vec<(RunRef<'_>, Rule)> =
        named.iter().chain(&more).map(|&(run, rule)| (("agent", run).into(), rule)).collect();
    let gone = log.evict(&runs).unwrap().plan;
    let told: Vec<_> = gone.evict.iter().collect();
    let told: Vec<_> = told.iter().map(|run| (run.run.as_str(), run.rule)).collect();
    assert_eq!(told, [("old", Rule::Age), ("many", Rule::NewestN)]);
    assert_eq!(gone.totals.going, 2);
    let left: Vec<_> = log.list_runs(&RunQuery::new().agent("agent").limit(9)).unwrap().runs;
    let mut left: Vec<_> = left.iter().map(|run| run.run.as_str()).collect();
    left.sort_unstable();
    assert_eq!(left, ["held", "open", "other"]);
    let mut receipts: Vec<_> =
        log.receipts(9).unwrap().iter().map(|receipt| receipt.run.as_str().to_owned()).collect();
    receipts.sort_unstable();
    assert_eq!(receipts, ["many", "old"]);
    let again = log.evict(&runs).unwrap();
    assert!(again.plan.evict.is_empty());
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn an_eviction_does_not_claim_to_erase() {
    let log = log();
    ended(&log, "run");
    let refused = log.evict(&[("run".into(), Rule::Erased)]).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
    assert_eq!(log.run("run").unwrap().run.as_str(), "run");
}

#[test]
fn a_number_is_of_one_run_also_when_its_ids_are_used_again() {
    let log = log();
    ended(&log, "run");
    let first = log.run("run").unwrap();
    assert_eq!(first.created_at(), first.started_at);
    log.delete_run("run").unwrap();
    ended(&log, "run");
    let second = log.run("run").unwrap();
    assert!(second.number() > first.number());
    assert!(second.created_at() <= log.now());
}
