//! The async face: no runtime, all or nothing when a call is dropped, durable where asked for.

use std::task::{Context, Waker};
use std::thread;

use runlog::Options;
use runlog_sim::SimDisk;
use runlog_stores::trajectory::TrajectorySink;
use tempfile::TempDir;

use super::*;
use crate::support::block_on;

#[test]
fn a_recorder_writes_its_records_in_order_through_the_trait() {
    let store = Store::new();
    let sink: Arc<dyn TrajectorySink> = Arc::new(store.log.clone());
    let mut recorder = Recorder::root("run");
    let records = recorder.whole(6);
    block_on(async {
        for record in &records {
            sink.record(record.clone()).await.unwrap();
        }
    });
    store.always(|log| assert_eq!(typed(log, "run"), records));
}

#[test]
fn a_call_that_is_dropped_left_nothing_or_all() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    drop(TrajectorySink::record(&store.log, recorder.started()));
    drop(store.log.record_durable(recorder.turn()));
    assert!(is_run_not_found(store.log.trajectory("run")));
    let mut polled = store.log.record_durable(recorder.ended());
    let _ = polled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(polled);
    store.always(|log| assert_eq!(told(log, "run"), "lost0..2 2"));
}

#[test]
fn what_was_awaited_as_durable_survives_a_power_loss() {
    let disk = SimDisk::new();
    let store = options().sync_interval(None).create_storage(Arc::new(disk.clone())).unwrap();
    let log = TrajectoryLog::new(&store, AGENT).unwrap();
    let mut child = Recorder::root("mother").child("run");
    let records = child.whole(2);
    let after_power_loss = || {
        let store = options().open_storage(Arc::new(SimDisk::from_image(disk.durable()))).unwrap();
        TrajectoryLog::new(&store, AGENT).unwrap()
    };
    block_on(log.record_durable(records[0].clone())).unwrap();
    assert_eq!(typed(&after_power_loss(), "run"), records[..1]);
    assert_eq!(names(&after_power_loss().children("mother").unwrap().runs), ["run"]);
    log.record(&records[1]).unwrap();
    let recorded = log.record(&records[2]).unwrap();
    assert_eq!(typed(&after_power_loss(), "run"), records[..1], "not asked for yet");
    recorded.wait().unwrap();
    assert_eq!(typed(&after_power_loss(), "run"), records[..3]);
    // A call that is repeated waits for the one before it, and an end for its run.
    log.record(&records[3]).unwrap();
    block_on(log.record_durable(records[3].clone())).unwrap();
    assert_eq!(typed(&after_power_loss(), "run"), records);
    assert_eq!(status(&after_power_loss(), "run"), RunStatus::Completed);
}

#[test]
fn many_tasks_wait_for_durability_beside_each_other() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let store = Options::new().create(&path).unwrap();
    let log = TrajectoryLog::new(&store, AGENT).unwrap();
    thread::scope(|scope| {
        for worker in 0..4 {
            let log = log.clone();
            scope.spawn(move || {
                let mut recorder = Recorder::root(&format!("run-{worker}"));
                for record in recorder.whole(20) {
                    block_on(log.record_durable(record)).unwrap();
                }
            });
        }
    });
    for worker in 0..4 {
        assert_eq!(typed(&log, &format!("run-{worker}")).len(), 22);
    }
}

#[test]
fn a_store_that_was_closed_or_is_full_refuses_whole_records() {
    let storage = Arc::new(MemoryStorage::with_limit(600 << 10));
    let store = options().index(false).create_storage(storage.clone()).unwrap();
    let log = TrajectoryLog::new(&store, AGENT).unwrap();
    let mut recorder = Recorder::root("run");
    store_until_full(&log, &mut recorder);
    let before = told(&log, "run");
    let mut child = recorder.child("child");
    let large = json!("x".repeat(20_000));
    let message = AgentMessage::User { content: large, timestamp: None };
    let record = child.next(TrajectoryPayload::MessageAppended { message });
    assert!(log.record(&record).unwrap_err().is_disk_full());
    assert_eq!(told(&log, "run"), before);
    store.close().unwrap();
    assert!(matches!(log.record(&recorder.turn()).unwrap_err(), Error::Closed));
    assert!(matches!(log.trajectory("run").unwrap_err(), Error::Closed));
}

fn store_until_full(log: &TrajectoryLog, recorder: &mut Recorder) {
    log.record(&recorder.started()).unwrap();
    loop {
        let message = AgentMessage::User { content: json!("x".repeat(5000)), timestamp: None };
        let record = recorder.next(TrajectoryPayload::MessageAppended { message });
        match log.record(&record) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_disk_full(), "{error:?}");
                recorder.seq -= 1;
                return;
            }
        }
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_and_the_next_one_is_not() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let huge = json!("x".repeat(3 << 20));
    let message = AgentMessage::User { content: huge, timestamp: None };
    store.log.record(&recorder.started()).unwrap();
    let record = recorder.next(TrajectoryPayload::MessageAppended { message });
    assert!(matches!(store.log.record(&record).unwrap_err(), Error::TooLarge { .. }));
    store.log.record(&recorder.turn()).unwrap();
    store.always(|log| assert_eq!(told(log, "run"), "0 lost1..2 2"));
}

#[test]
fn logs_of_one_agent_on_one_store_know_of_one_another() {
    let store = Store::new();
    let other = TrajectoryLog::new(&store.store, AGENT).unwrap();
    let mut recorder = Recorder::root("run");
    let (started, turn) = (recorder.started(), recorder.turn());
    store.log.record(&started).unwrap();
    assert!(!other.record(&turn).unwrap().repeated);
    // As one who got no answer from the other, in both directions.
    assert!(store.log.record(&turn).unwrap().repeated);
    let turn = recorder.turn();
    assert!(!store.log.record(&turn).unwrap().repeated);
    assert!(other.record(&turn).unwrap().repeated);
    // Those of other agents have runs of their own.
    let third = TrajectoryLog::new(&store.store, "other").unwrap();
    assert!(!third.record(&turn).unwrap().repeated);
    drop((other, third));
    store.always(|log| assert_eq!(whole(log, "run").len(), 3));
}

#[test]
fn of_records_that_come_twice_at_once_through_two_logs_each_is_stored_once() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let records: Vec<TrajectoryRecord> =
        std::iter::once(recorder.started()).chain((0..200).map(|_| recorder.turn())).collect();
    let logs = [0, 1].map(|_| TrajectoryLog::new(&store.store, AGENT).unwrap());
    let both = std::sync::Barrier::new(2);
    thread::scope(|scope| {
        for log in &logs {
            let (records, both) = (&records, &both);
            scope.spawn(move || {
                for record in records {
                    both.wait();
                    log.record(record).unwrap();
                }
            });
        }
    });
    store.always(|log| assert_eq!(typed(log, "run"), records));
}
