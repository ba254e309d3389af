//! The example of the README: a daemon records the run of an agent.

use std::path::Path;

use runlog::{Durability, NewRecord, Options, Outcome};

/// Writes one run, reads it back, and returns its id.
pub fn tea(path: &Path) -> runlog::Result<String> {
    let log = Options::new().open(path)?; // recovers after a crash
    log.adopt_orphans()?; // ends runs that an earlier process left in progress
    let id = format!("tea-{}", log.now()); // a new id for each run: an ended run stays ended
    let run = log.start_run("planner", &id, b"{\"goal\":\"tea\"}")?;

    let step = run.append_json(&serde_json::json!({ "tool": "kettle" }))?; // survives a kill
    step.ticket.wait()?; // from here on it survives a power loss too
    let paid = NewRecord::json(b"{\"paid\":3}").kind("payment").durability(Durability::Disk);
    println!("record {} survives a power loss", run.append_record(&paid)?.seq);
    run.end(&Outcome::completed())?;

    println!("{id} belongs to {}", log.agent_of(&id)?);
    for record in log.trace(("planner", id.as_str()))? {
        match record {
            Ok(record) => println!("{} {} bytes", record.seq(), record.payload().len()),
            Err(damage) => eprintln!("{damage}"), // one record is lost; the next ones follow
        }
    }
    drop(run);
    log.close()?;
    Ok(id)
}

fn main() -> runlog::Result<()> {
    tea(Path::new("agents.runlog")).map(drop)
}
