//! A typed log of what an agent did: a run with its records, read back in order, holes included.

use std::error::Error;

use runlog_stores::trajectory::{
    Item, RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord,
};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("trajectory-{}.runlog", std::process::id()));
    let log = runlog::Options::new().open(&path)?;
    let trajectories = TrajectoryLog::new(&log, "planner")?;
    let run = RunIdentity::root("run-1");
    let payloads = [
        TrajectoryPayload::RunStarted { identity: run.clone() },
        TrajectoryPayload::TurnStarted,
        TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] },
    ];
    for (seq, payload) in (0..).zip(payloads) {
        trajectories.record(&TrajectoryRecord::new(&run, seq, 1_700_000_000_000, payload))?;
    }
    for item in trajectories.trajectory("run-1")? {
        match item? {
            Item::Record(record) => println!("{}", String::from_utf8_lossy(record.bytes())),
            Item::Hole(hole) => println!("{:?} are missing", hole.missing),
            other => println!("{other:?}"),
        }
    }
    drop(trajectories);
    log.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
