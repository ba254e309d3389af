//! Runs of agents in one file instead of a tree of JSON Lines files: started, with turns, ended,
//! listed, and exported as the tree again.

use std::error::Error;

use runlog_stores::run_store::{
    RetentionConfig, RunEnded, RunRecord, RunStarted, RunStore, RunTurn,
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("run-store-{}", std::process::id()));
    let store = RunStore::new(folder.clone(), RetentionConfig::default());
    store.write_started(&RunStarted {
        run_id: "run-1".to_owned(),
        agent_id: "planner".to_owned(),
        intent: "make tea".to_owned(),
        ..RunStarted::default()
    })?;
    let turn = RunRecord::Turn(RunTurn { tool: Some("kettle".to_owned()), ..RunTurn::default() });
    store.append_turns("planner", "run-1", &[turn])?;
    store.write_ended(&RunEnded {
        run_id: "run-1".to_owned(),
        agent_id: "planner".to_owned(),
        ..RunEnded::default()
    })?;
    for run in store.list_runs("planner") {
        println!("{}: {}, {} turns", run.run_id, run.intent, run.turn_count);
    }
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
