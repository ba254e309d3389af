//! A supervisor is killed in the middle of its work, and its successor adopts the runs that it
//! left: no acknowledged record is lost, and no run stays in progress for ever.
//!
//! `cargo run --example supervisor`

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use runlog::{NewRecord, Options, Outcome, RunQuery, RunStatus};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("work"), Some(path)) => work(Path::new(&path)),
        _ => supervise(),
    }
}

/// The supervisor that will be killed: it works on two runs, ends one of them, and waits.
fn work(path: &Path) -> Result<(), Box<dyn Error>> {
    let log = Options::new().open(path)?;
    let done = log.start_run("planner", "done", ())?;
    let _ = done.append(b"boil water")?;
    done.end(&Outcome::completed())?;
    let left = log.start_run("planner", "left", ())?;
    for step in ["boil water", "brew"] {
        let _ = left.append_record(&NewRecord::new(step.as_bytes()).kind("step"))?;
    }
    println!("both steps are acknowledged");
    std::io::stdout().flush()?;
    // Until it is killed.
    let _ = std::io::stdin().read(&mut [0])?;
    Ok(())
}

/// Kills a supervisor, and adopts the runs that it left.
fn supervise() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("supervisor-{}.runlog", std::process::id()));
    let mut child = Command::new(std::env::current_exe()?)
        .args(["work".as_ref(), path.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    println!("killed, after it said: {}", line.trim_end());

    let log = Options::new().open(&path)?;
    println!("recovery found the file closed cleanly: {}", log.recovery_report().clean);
    let left = log.list_runs(&RunQuery::new().status(RunStatus::InProgress))?.runs;
    assert_eq!(left.len(), 1, "the run that was in progress");
    for (agent, run) in log.adopt_orphans()?.runs {
        let run = log.run((&agent, &run))?;
        println!("adopted {}: {}, with {} records", run.run, run.status, run.records);
        assert_eq!((run.status, run.records), (RunStatus::Interrupted, 2));
    }
    assert_eq!(log.run("done")?.status, RunStatus::Completed);
    log.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
