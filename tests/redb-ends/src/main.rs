//! `redb-ends FILE ROUND`: continues with the store at FILE, and creates it in round 0. Whichever
//! version of redb wrote the index, this one must read it, keep it and write it.

use std::process::ExitCode;

use runlog::{Error, IndexRecovery, NewRecord, Options, Outcome, Result, RunLog, RunQuery};

const AGENTS: u64 = 7;
const RUNS: u64 = 300;
const RECORDS: u64 = 12;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, round] = &arguments[..] else {
        eprintln!("usage: redb-ends FILE ROUND");
        return ExitCode::from(2);
    };
    match round.parse().map(|round| play(file, round)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("redb-ends: round {round}: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("redb-ends: {round:?}: {error}");
            ExitCode::from(2)
        }
    }
}

/// One life of the store: checks what earlier rounds left, and adds to it.
fn play(file: &str, round: u64) -> Result<()> {
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = if round == 0 { options.create(file)? } else { options.open_existing(file)? };
    if round > 0 {
        // Bringing the index up to date opens it, and drops it if it cannot be trusted.
        log.checkpoint()?;
        let report = log.recovery_report();
        expect("the index is kept", report.clean && report.index == IndexRecovery::Kept)?;
        check(&log, round)?;
    }
    for run in round * RUNS..(round + 1) * RUNS {
        let agent = format!("agent-{}", run % AGENTS);
        let writer = log.start_run(&agent, &format!("run-{run}"), ())?;
        for record in 0..RECORDS {
            writer.append(format!("record {record} of run {run}").as_bytes())?;
        }
        writer.end(&Outcome::completed())?;
    }
    log.docs().put("rounds", "last", &NewRecord::new(round.to_string().as_bytes()))?;
    // This removes rows from the tables too.
    for run in (round * RUNS..(round + 1) * RUNS).filter(|run| is_deleted(*run)) {
        log.delete_run(&*format!("run-{run}"))?;
    }
    log.checkpoint()?;
    log.compact()?;
    log.checkpoint()?;
    check(&log, round + 1)?;
    log.close().map(drop)
}

fn is_deleted(run: u64) -> bool {
    run % 10 == 3
}

/// Checks that all runs of the rounds are there, by each way to find them, and that the index
/// agrees with the log.
fn check(log: &RunLog, rounds: u64) -> Result<()> {
    for run in 0..rounds * RUNS {
        let id = format!("run-{run}");
        let found = match log.run(&id) {
            Ok(found) => Some(found),
            Err(Error::RunNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        expect("deleted runs are gone, and no others", found.is_none() == is_deleted(run))?;
        if found.is_some() {
            let records: Vec<_> = log.trace(&id)?.collect::<Result<_>>()?;
            let last = format!("record {} of run {run}", RECORDS - 1);
            let same = records.last().is_some_and(|record| record.payload() == last.as_bytes());
            expect("each record is there", same && records.len() as u64 == RECORDS)?;
        }
    }
    let listed = log.runs(&RunQuery::new()).collect::<Result<Vec<_>>>()?.len() as u64;
    let left = (0..rounds * RUNS).filter(|run| !is_deleted(*run)).count() as u64;
    expect("all runs are listed", listed == left)?;
    let last = log.docs().get("rounds", "last")?.map(|document| document.payload().to_vec());
    expect("the document is there", last == Some((rounds - 1).to_string().into_bytes()))?;
    expect("there is an index", log.stats()?.index_open)?;
    let report = log.verify()?;
    for problem in &report.problems {
        eprintln!("redb-ends: {problem}");
    }
    expect("the index agrees with the log", report.is_clean() && report.index_checked)
}

fn expect(what: &'static str, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::InvalidArgument { what }) }
}
