//! The example of the README: a daemon keeps the run of an agent.

use std::path::Path;

use runlog::{Durability, NewRecord, Options, Outcome};

/// Writes one run and reads it back.
pub fn tea(path: &Path) -> runlog::Result<()> {
    let log = Options::new().open(path)?; // recovers after a crash; `Clone + Send + Sync`
    log.adopt_orphans()?; // runs whose process died are ended as interrupted
    let run = log.start_run("planner", "run-1", b"{\"goal\":\"tea\"}")?;

    let step = run.append_json(&serde_json::json!({ "tool": "kettle" }))?; // survives a kill
    step.ticket.wait()?; // and from here on a power loss
    let paid = NewRecord::json(b"{\"paid\":3}").kind("payment").durability(Durability::Disk);
    println!("record {} survives a power loss", run.append_record(&paid)?.seq);
    println!("ended as append {}", run.end(&Outcome::completed())?.lsn);

    println!("run-1 belongs to {}", log.agent_of("run-1")?);
    for record in log.trace("run-1")? {
        let record = record?;
        println!("{} {:?} {} bytes", record.seq(), record.kind(), record.payload().len());
    }
    drop(run);
    log.close()
}

fn main() -> runlog::Result<()> {
    tea(Path::new("agents.runlog"))
}
