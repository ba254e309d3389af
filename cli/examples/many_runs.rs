//! Makes a store of many runs, to measure the command with: `cargo run --release -p runlog-cli
//! --example many_runs -- STORE [RUNS]`.
//!
//! The runs are of 20 agents, have a message of a user, a call of a tool and its answer, and have
//! ended but for one in a thousand.

use std::error::Error;

use runlog::{ContentType, Durability, Metadata, NewRecord, Options, Outcome, Timestamp};

/// A second.
const SECOND: i64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: many_runs STORE [RUNS]")?;
    let runs: u32 = args.next().map_or(Ok(100_000), |runs| runs.parse())?;
    let log = Options::new().create(path)?;
    for number in 0..runs {
        let at = Timestamp((1_767_000_000 + i64::from(number) * 30) * SECOND);
        // In the order in which hashes come.
        let id = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start =
            Metadata::json(b"{\"goal\":\"measure\"}").at(at).durability(Durability::Process);
        let agent = format!("agent-{:02}", number % 20);
        let run = log.start_run(&agent, &format!("run-{id:016x}"), start)?;
        for (kind, text) in [
            ("user", format!("{{\"role\":\"user\",\"content\":\"Task {number}: fix the build\"}}")),
            ("call", format!("{{\"role\":\"assistant\",\"tool\":\"sh\",\"n\":{number}}}")),
            ("answer", format!("{{\"role\":\"tool\",\"output\":\"{}\"}}", "x".repeat(200))),
        ] {
            let record = NewRecord::new(text.as_bytes()).kind(kind);
            let record = record.content_type(ContentType::JSON).at(at);
            let _ = run.append_record(&record)?;
        }
        if number % 1000 != 0 {
            let outcome = if number % 10 == 0 { Outcome::failed() } else { Outcome::completed() };
            run.end(&outcome.at(Timestamp(at.0 + 20 * SECOND)).durability(Durability::Process))?;
        }
    }
    log.close()?;
    Ok(())
}
