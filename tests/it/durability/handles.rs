//! Runs, orphans, numbers and handles over the end of an open store, and into the next one.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, ContentType, Durability, Error, Metadata, NewRecord, Outcome, RunQuery, RunStatus, Seq,
};
use tempfile::TempDir;

use super::levels::{on_demand, quiet, unsynced};
use crate::support::tasks::block_on;

#[test]
fn a_run_whose_writer_is_dropped_stays_in_progress_and_can_be_gone_on_with() {
    let storage = Arc::new(MemoryStorage::new());
    let log = quiet().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", b"goal").unwrap();
    run.append(b"0").unwrap();
    drop(run);
    assert_eq!(log.run("run").unwrap().status, RunStatus::InProgress);
    assert!(log.outcome("run").unwrap().is_none());
    log.writer("run").unwrap().append(b"1").unwrap();
    log.close().unwrap();
    let log = quiet().open_storage(storage).unwrap();
    assert_eq!(log.run("run").unwrap().status, RunStatus::InProgress);
    let run = log.writer(("agent", "run")).unwrap();
    assert_eq!((run.agent().as_str(), run.run().as_str()), ("agent", "run"));
    assert_eq!(run.append(b"2").unwrap().seq, Seq(2));
    log.start_run("agent", "run", b"goal").unwrap().append(b"3").unwrap();
    run.end(&Outcome::completed()).unwrap();
    assert!(matches!(log.writer("run"), Err(Error::RunEnded { .. })));
    assert!(matches!(log.writer("other"), Err(Error::RunNotFound { .. })));
    assert_eq!(log.run("run").unwrap().records, 4);
}

#[test]
fn an_identical_second_start_or_end_is_fine_in_each_state_and_a_different_one_is_an_error() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = quiet().create_storage(storage.clone()).unwrap();
    let metadata = Metadata::json(b"{\"goal\":1}");
    let outcome = Outcome::failed().bytes(b"why").content_type(ContentType::TEXT);
    log.start_run("agent", "open", metadata).unwrap();
    log.start_run("agent", "ended", metadata).unwrap().end(&outcome).unwrap();
    for reopened in [false, true] {
        if reopened {
            log.close().unwrap();
            log = quiet().open_storage(storage.clone()).unwrap();
        }
        let exists = |metadata: Metadata<'_>, run: &str| {
            matches!(log.start_run("agent", run, metadata), Err(Error::RunExists { .. }))
        };
        for run in ["open", "ended"] {
            log.start_run("agent", run, metadata).unwrap();
            assert!(exists(Metadata::json(b"{\"goal\":2}"), run));
            assert!(exists(Metadata::new(b"{\"goal\":1}"), run), "another content type");
            assert!(exists(Metadata::default(), run));
        }
        let run = log.start_run("agent", "ended", metadata).unwrap();
        run.end(&outcome).unwrap();
        log.end_run("agent", "ended", &outcome, Allow::nothing()).unwrap();
        let other = [
            Outcome::failed(),
            Outcome::completed().bytes(b"why").content_type(ContentType::TEXT),
            Outcome::failed().bytes(b"why"),
            Outcome::failed().bytes(b"why not").content_type(ContentType::TEXT),
        ];
        for other in other {
            let ended = run.end(&other);
            assert!(matches!(ended, Err(Error::RunEnded { status: RunStatus::Failed, .. })));
        }
        assert!(matches!(run.append(b"x"), Err(Error::RunEnded { .. })));
        assert!(matches!(run.append_batch(&[NewRecord::new(b"x")]), Err(Error::RunEnded { .. })));
        assert_eq!(log.outcome("ended").unwrap().unwrap().payload(), b"why");
        assert_eq!(log.run("ended").unwrap().records, 0);
        assert_eq!(
            log.list_runs(&RunQuery::new().limit(10)).unwrap().runs.len(),
            2,
            "nothing was started twice"
        );
    }
}

#[test]
fn orphans_are_adopted_once_and_only_if_nobody_touched_them() {
    let storage = Arc::new(MemoryStorage::new());
    let log = quiet().create_storage(storage.clone()).unwrap();
    for number in 0..300 {
        let run = log.start_run("agent", &format!("run-{number}"), unsynced()).unwrap();
        run.append(b"x").unwrap();
        if number % 3 == 0 {
            run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
        }
    }
    assert!(log.adopt_orphans().unwrap().runs.is_empty(), "their writers are of this open");
    drop(log);
    let log = quiet().open_storage(storage.clone()).unwrap();
    log.writer("run-1").unwrap();
    log.start_run("agent", "run-2", unsynced()).unwrap();
    log.append_to("agent", "run-4", &NewRecord::new(b"y"), Allow::nothing()).unwrap();
    log.start_run("agent", "new", ()).unwrap();
    let adopted = log.adopt_orphans().unwrap();
    let ids: Vec<_> =
        adopted.runs.iter().map(|(agent, run)| (agent.as_str(), run.as_str())).collect();
    let wanted: Vec<String> = (0..300)
        .filter(|number| number % 3 != 0 && ![1, 2, 4].contains(number))
        .map(|number| format!("run-{number}"))
        .collect();
    let wanted: Vec<_> = wanted.iter().map(|run| ("agent", run.as_str())).collect();
    assert_eq!(ids, wanted);
    assert!(log.adopt_orphans().unwrap().runs.is_empty(), "once");
    let stats = log.stats().unwrap();
    assert_eq!(stats.durable, stats.end, "adoption is durable");
    assert_eq!(log.run("run-5").unwrap().status, RunStatus::Interrupted);
    assert_eq!(log.outcome("run-5").unwrap().unwrap().status(), RunStatus::Interrupted);
    for run in ["run-1", "run-2", "run-4", "new"] {
        assert_eq!(log.run(run).unwrap().status, RunStatus::InProgress);
    }
    drop(log);
    let log = quiet().open_storage(storage).unwrap();
    let ids: Vec<_> =
        log.adopt_orphans().unwrap().runs.iter().map(|(_, run)| run.to_string()).collect();
    assert_eq!(ids, ["run-1", "run-2", "run-4", "new"], "those of the open before");
}

#[test]
fn after_close_every_other_handle_is_told_so() {
    for background in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let options = quiet().background(background);
        let log = options.create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let ticket = run.append(b"0").unwrap().ticket;
        let (second, third) = (log.clone(), log.clone());
        log.close().unwrap();
        let bytes = storage.to_bytes();
        let closed = |error: Error| matches!(error, Error::Closed);
        assert!(closed(run.append(b"1").unwrap_err()));
        assert!(closed(run.append(&vec![0; 100_000]).unwrap_err()));
        assert!(closed(run.append_batch(&[NewRecord::new(b"1"); 2]).unwrap_err()));
        assert!(closed(run.end(&Outcome::completed()).unwrap_err()));
        assert!(closed(second.start_run("agent", "other", ()).unwrap_err()));
        assert!(closed(second.writer("run").unwrap_err()));
        let all = Allow::everything();
        assert!(closed(second.append_to("a", "b", &NewRecord::new(b"1"), all).unwrap_err()));
        assert!(closed(second.end_run("a", "b", &Outcome::failed(), all).unwrap_err()));
        assert!(closed(second.trace("run").unwrap_err()));
        assert!(closed(second.agent_of("run").unwrap_err()));
        assert!(closed(second.run("run").unwrap_err()));
        assert!(closed(second.metadata("run").unwrap_err()));
        assert!(closed(second.outcome("run").unwrap_err()));
        assert!(closed(second.list_runs(&RunQuery::new().agent("agent").limit(1)).unwrap_err()));
        assert!(closed(second.list_runs(&RunQuery::new().limit(1)).unwrap_err()));
        assert!(closed(
            second
                .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(1))
                .unwrap_err()
        ));
        assert!(closed(second.agents(None, 1).unwrap_err()));
        assert!(closed(second.adopt_orphans().unwrap_err()));
        assert!(closed(second.delete_run("run").unwrap_err()));
        assert!(closed(second.stats().unwrap_err()));
        assert!(closed(second.verify().unwrap_err()));
        assert!(closed(second.checkpoint().unwrap_err()));
        assert!(closed(second.reclaim().unwrap_err()));
        assert!(closed(second.sync().unwrap_err()));
        second.recovery_report();
        block_on(ticket).unwrap();
        third.close().unwrap();
        drop((run, second));
        assert!(storage.to_bytes() == bytes, "written to after it was closed");
        let log = options.open_storage(storage).unwrap();
        assert!(log.recovery_report().clean);
        assert_eq!(log.trace("run").unwrap().count(), 1);
    }
}

#[test]
fn dropping_the_last_handle_closes_the_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    for _ in 0..3 {
        let log = on_demand().open(&path).unwrap();
        assert!(log.recovery_report().clean, "the first time it is new, then it was closed");
        let run = log.start_run("agent", "run", ()).unwrap();
        run.append(b"x").unwrap();
        let clone = log.clone();
        drop(log);
        clone.run("run").unwrap();
        drop(clone);
        run.append(b"a writer is a handle too").unwrap();
    }
    assert_eq!(on_demand().open(&path).unwrap().run("run").unwrap().records, 6);
}

#[test]
fn the_numbers_of_a_store_that_was_closed_go_on_without_a_gap() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = quiet().create_storage(storage.clone()).unwrap();
    for version in 1..5 {
        let found = log.docs().put("space", "key", &NewRecord::new(b"x")).unwrap();
        assert_eq!(found.0, version);
        log.close().unwrap();
        log = quiet().open_storage(storage.clone()).unwrap();
    }
}
