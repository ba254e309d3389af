//! Retention, next to `SQLite`: both do the same work on the same data in one run.
//!
//! 100,000 completed runs of 30 records of 256 B by 50 agents, 64 at a time, and 64 runs in
//! progress. The newest 100 runs of each agent and the runs in progress are kept; the file releases
//! the space of all others. There are two cases: the runs in progress are the latest ones, as with
//! runs of some minutes; or they began at any time in the life of the store (`scattered`).
//!
//! - **runlog** has the default options. Its time is that of `RunLog::gc`, and until the file is
//!   back at 1.15 times the bytes of the kept runs, with their frame headers, and 8 extents.
//! - **`SQLite`** is configured as an expert would do it: a write-ahead log, `synchronous =
//!   NORMAL`, a cache of 256 MiB, prepared statements, records clustered by run, an index for the
//!   policy. One transaction deletes all runs that are not kept; then come `VACUUM` and a
//!   checkpoint that truncates the log. A second row has `auto_vacuum = INCREMENTAL` instead of
//!   `VACUUM`.
//!
//! A round fills all stores anew and measures one after the other; the medians of all rounds are
//! printed. Each engine checks that what is left matches the policy.

mod data;
mod ours;
mod sizes;
mod sqlite;

use std::path::Path;
use std::time::Duration;

use self::data::Data;
use self::sqlite::Vacuum;
use crate::measure::folder;
use crate::report::load;

/// The result of one engine in one round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Choosing the runs to delete and deleting them, until the call or the transaction ended.
    delete: Duration,
    /// Until the file was small again.
    space: Duration,
    /// The processor time of both, and of the background work.
    processor: Duration,
    /// The length of the file and its allocated bytes when the work ended, and later.
    right_after: sizes::Sizes,
    later: sizes::Sizes,
    /// The limit for the file.
    bound: u64,
    /// The bytes of the kept runs.
    live: u64,
}

/// Prints a table for each case.
pub(crate) fn compare(small: bool, once: bool, ours: bool, dir: &Path) {
    let rounds = if small || once { 1 } else { 3 };
    let completed = if small { 20_000 } else { 100_000 };
    let engines: &[&str] = if ours { &NAMES[..1] } else { &NAMES };
    for scattered in [false, true] {
        let data = Data::new(completed, scattered);
        println!("{data}; load {}", load());
        let mut all = vec![Vec::new(); engines.len()];
        for round in 0..rounds {
            for turn in 0..engines.len() {
                let at = (turn + round) % engines.len();
                let folder = folder(dir);
                let measured = measure(engines[at], data, folder.path());
                all[at].push(measured);
            }
        }
        print(engines, &all);
    }
}

const NAMES: [&str; 3] = ["runlog", "SQLite, VACUUM", "SQLite, incremental"];

fn measure(engine: &str, data: Data, folder: &Path) -> Measured {
    match engine {
        "runlog" => ours::measure(data, folder),
        "SQLite, VACUUM" => sqlite::measure(data, folder, Vacuum::Full),
        _ => sqlite::measure(data, folder, Vacuum::Incremental),
    }
}

fn print(engines: &[&str], all: &[Vec<Measured>]) {
    let median = |rounds: &[Measured], part: fn(&Measured) -> Duration| {
        let mut times: Vec<Duration> = rounds.iter().map(part).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let mib = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap()) / 1024.0;
    println!(
        "| | delete, ms | and space, ms | processor, ms | \
         file / allocated after, MiB | later, MiB | may |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, rounds) in engines.iter().zip(all) {
        let one = &rounds[rounds.len() / 2];
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} | \
             {:.1} / {:.1} | {:.1} / {:.1} | {:.1} (live {:.1}) |",
            median(rounds, |round| round.delete),
            median(rounds, |round| round.space),
            median(rounds, |round| round.processor),
            mib(one.right_after.len),
            mib(one.right_after.allocated),
            mib(one.later.len),
            mib(one.later.allocated),
            mib(one.bound),
            mib(one.live),
        );
    }
    let own = median(&all[0], |round| round.space);
    for (name, rounds) in engines.iter().zip(all).skip(1) {
        println!("{name}: {:.1} times as long", median(rounds, |round| round.space) / own);
    }
    for (name, rounds) in engines.iter().zip(all) {
        let all = rounds.iter().map(|round| (round.delete.as_millis(), round.space.as_millis()));
        println!("{name}, each round: {:?} ms", all.collect::<Vec<_>>());
    }
    println!("load {}\n", load());
}
