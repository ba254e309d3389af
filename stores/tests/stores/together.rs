//! Several stores in one log do not touch each other's runs, also where they have the same agent.

use runlog::{RunQuery, RunStatus};
use runlog_stores::run_store::RetentionConfig;
use runlog_stores::trajectory::{RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord};

use super::run_store_world::{DAY, NOW, World, ended, ids, in_all_lives, started, success};

/// Milliseconds, long ago.
const AT: u64 = 1_600_000_000_000;

fn record(world: &World, run: &str, ends: bool) {
    let log = TrajectoryLog::new(&world.log(), "a").unwrap();
    let run = RunIdentity::root(run);
    let payloads = [
        TrajectoryPayload::RunStarted { identity: run.clone() },
        TrajectoryPayload::TurnStarted,
        TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] },
    ];
    let count = if ends { 3 } else { 2 };
    for (seq, payload) in (0..).zip(payloads.into_iter().take(count)) {
        log.record(&TrajectoryRecord::new(&run, seq, AT, payload)).unwrap();
    }
}

#[test]
fn traces_of_runs_are_adopted_and_collected_and_trajectories_are_not() {
    let retention = RetentionConfig { max_per_agent: 1, max_age_days: 1 };
    in_all_lives(retention, |world| {
        record(world, "ended trajectory", true);
        record(world, "open trajectory", false);
        for (run, at) in [("old", NOW - 9 * DAY), ("new", NOW - 1)] {
            world.store().write_started(&started("a", run, at)).unwrap();
            world.store().write_ended(&ended("a", run, at, success())).unwrap();
        }
        world.store().write_started(&started("a", "orphan", NOW - 9 * DAY)).unwrap();
        assert_eq!((world.store().adopt_orphans(), world.store().gc()), (1, 2));
        assert_eq!(ids(&world.store(), "a"), ["new"]);
        assert!(world.store().get_run_trace("ended trajectory").is_none());
        assert!(world.store().write_started(&started("a", "open trajectory", NOW)).is_err());

        let log = TrajectoryLog::new(&world.log(), "a").unwrap();
        for (run, count) in [("ended trajectory", 3), ("open trajectory", 2)] {
            assert_eq!(log.trajectory(run).unwrap().count(), count);
        }
        let in_progress = RunQuery::new().status(RunStatus::InProgress);
        assert_eq!(world.log().runs(&in_progress).count(), 1);
    });
}
