//! The command as a person meets it: whole processes, from start to end, on large stores; a backup
//! beside `cp`, a search beside ripgrep, and the first lookup in a store that was just opened.
//!
//! - **Lists**: 100,000 ended runs of 8 records with log-normal sizes, by 20 agents.
//! - **Copies and searches**: a store with runs as long as real ones and as much payload as asked.
//!   `cp` copies the file while no process writes. A second row syncs what `cp` wrote, as the
//!   backup does. ripgrep reads the same records as a tree of JSON Lines files.
//! - **Following**: `tail -f` of a run to which this process appends now and then.
//! - **Lookups**: runs of 30 records of 1 KB, in this process, by a reader that was just opened.
//! - **Imports**: 10,000 files of 30 lines, beside a loop of `SQLite` with a transaction for each.
//!
//! The files are in the page cache. Each round measures all rows of a table in turn; the medians of
//! all rounds are printed, and each round.

mod follow;
pub(crate) mod imports;
mod stores;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use runlog::Reader;
use runlog_sim::SplitMix64;

use crate::measure::{folder, median, micros};
use crate::report::{describe, load};
use crate::workload::runs::Runs;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) small: bool,
    pub(crate) rounds: usize,
    pub(crate) dir: &'a Path,
    /// Only tables with one of these in their names; all if it is empty.
    pub(crate) tables: &'a [String],
    /// Megabytes of payload in the store for copies and searches, and in the one for lookups.
    pub(crate) megabytes: [u64; 2],
}

/// Rows of times, in milliseconds, each by round.
#[derive(Default)]
struct Table(Vec<(String, Vec<f64>)>);

impl Table {
    fn note(&mut self, row: &str, time: Duration) {
        let time = micros(time) / 1e3;
        match self.0.iter_mut().find(|(name, _)| name == row) {
            Some((_, times)) => times.push(time),
            None => self.0.push((row.to_owned(), vec![time])),
        }
    }

    /// Prints the rows, and their ratios to one of them.
    fn print(&self, beside: Option<&str>) {
        let median_of = |row: &str| {
            let times = self.0.iter().find(|(name, _)| name == row)?;
            median(times.1.clone())
        };
        let beside = beside.and_then(|row| Some((row, median_of(row)?)));
        let column = beside.map_or(String::new(), |(row, _)| format!(" times {row} |"));
        println!("| | ms |{column} each round |");
        println!("|---|---|{}---|", if beside.is_some() { "---|" } else { "" });
        for (name, times) in &self.0 {
            let time = median(times.clone()).unwrap_or_default();
            let ratio = beside.map_or(String::new(), |(_, one)| format!(" {:.2} |", time / one));
            let digits = if time < 1.0 { 4 } else { 1 };
            let all: Vec<_> = times.iter().map(|time| format!("{time:.digits$}")).collect();
            println!("| {name} | {time:.digits$} |{ratio} {} |", all.join(" "));
        }
        println!("load {}\n", load());
    }
}

/// Prints all tables.
pub(crate) fn compare(asked: &Asked<'_>) {
    let command = command();
    println!("{}, {}", describe(asked.dir), command.display());
    let within = folder(asked.dir);
    let place = |table: &str| {
        let is_wanted = asked.tables.is_empty() || asked.tables.iter().any(|w| table.contains(w));
        is_wanted.then(|| within.path().join(table))
    };
    if let Some(folder) = place("lists") {
        lists(asked, &command, &folder);
    }
    if let Some(folder) = place("following") {
        following(asked, &command, &folder);
    }
    if let Some(folder) = place("copies and searches") {
        copies_and_searches(asked, &command, &folder);
    }
    if let Some(folder) = place("lookups") {
        lookups(asked, &folder);
    }
    if let Some(folder) = place("imports") {
        imports::imports(asked, &command, &folder);
    }
}

/// The command that was built beside this program.
fn command() -> PathBuf {
    let command = std::env::current_exe().unwrap().with_file_name("runlog");
    assert!(command.exists(), "build the command first: cargo build --release -p runlog-cli");
    command
}

/// Runs a command to its end, reads what it prints, and returns the time and how much that was.
fn timed(command: &Path, arguments: &[&str], store: &Path) -> (Duration, usize) {
    let began = Instant::now();
    let done = Command::new(command)
        .args(arguments)
        .env("RUNLOG_STORE", store)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", command.display()));
    let time = began.elapsed();
    assert!(done.status.success(), "{} {arguments:?}: {}", command.display(), done.status);
    (time, done.stdout.len())
}

fn lists(asked: &Asked<'_>, command: &Path, folder: &Path) {
    let runs = if asked.small { 2_000 } else { 100_000 };
    let (store, bytes) = stores::short_runs(folder, runs);
    println!("{runs} runs, {} MB in the file\n", bytes / 1_000_000);
    let (mut table, mut random) = (Table::default(), SplitMix64::new(5));
    for _ in 0..asked.rounds {
        let one = Runs::id(random.below(runs));
        let rows: [&[&str]; 9] = [
            &["ls"],
            &["ls", "--all", "--json"],
            &["ls", "--all", "--no-titles"],
            &["ls", "--all"],
            &["show", &one],
            &["stat"],
            &["du"],
            &["du", "--by", "run"],
            &["usage"],
        ];
        for words in rows {
            let (time, printed) = timed(command, words, &store);
            assert!(printed > 0, "{words:?}");
            table.note(&words.join(" ").replace(&one, "RUN"), time);
        }
    }
    table.print(None);
    std::fs::remove_dir_all(folder).unwrap();
}

fn following(asked: &Asked<'_>, command: &Path, folder: &Path) {
    let follow::Followed { behind, idle } = follow::follow(command, folder, asked.small);
    let millis = |of_a_hundred: usize| micros(behind[behind.len() * of_a_hundred / 100]) / 1e3;
    println!(
        "tail -f of a run, {} records: {:.1} ms behind in the middle, {:.1} ms for 95 of 100, \
         {:.1} ms at most; {:.3} % of a processor while nothing happens\n",
        behind.len(),
        millis(50),
        millis(95),
        micros(behind[behind.len() - 1]) / 1e3,
        idle.as_secs_f64() * 100.0
    );
}

fn copies_and_searches(asked: &Asked<'_>, command: &Path, folder: &Path) {
    let made = stores::long_runs(folder, asked.megabytes[0]);
    let len = std::fs::metadata(&made.plain).unwrap().len();
    println!("{} MB of payload, {} MB in the file\n", made.payload / 1_000_000, len / 1_000_000);
    let mut table = Table::default();
    let (ours, theirs) = (folder.join("backup"), folder.join("copy"));
    for round in 0..asked.rounds {
        let backup = |table: &mut Table| {
            let (time, _) = timed(command, &["backup", ours.to_str().unwrap()], &made.plain);
            table.note("backup", time);
            std::fs::remove_file(&ours).unwrap();
        };
        let copy = |table: &mut Table| {
            let began = Instant::now();
            let paths = [made.plain.to_str().unwrap(), theirs.to_str().unwrap()];
            timed(Path::new("cp"), &paths, &made.plain);
            table.note("cp", began.elapsed());
            std::fs::File::open(&theirs).unwrap().sync_all().unwrap();
            table.note("cp, then sync", began.elapsed());
            std::fs::remove_file(&theirs).unwrap();
        };
        // Each is first in every second round.
        if round % 2 == 0 {
            copy(&mut table);
            backup(&mut table);
        } else {
            backup(&mut table);
            copy(&mut table);
        }
    }
    table.print(Some("cp"));
    searches(asked, command, &made);
    std::fs::remove_dir_all(folder).unwrap();
}

fn searches(asked: &Asked<'_>, command: &Path, made: &stores::Long) {
    let tree = made.tree.to_str().unwrap();
    let rg = Path::new("rg");
    let has_rg = Command::new(rg).arg("--version").output().is_ok();
    if !has_rg {
        println!("NOT MEASURED: there is no rg\n");
    }
    for (what, pattern) in [("text", &made.needle), ("expression", &made.expression)] {
        let mut table = Table::default();
        let ours: Vec<&str> = match what {
            "text" => vec!["search", "--count", pattern],
            _ => vec!["search", "--count", "-e", pattern],
        };
        let theirs = if what == "text" { vec!["-c", "-F", pattern] } else { vec!["-c", pattern] };
        let theirs = [theirs, vec!["--no-ignore", "--hidden", tree]].concat();
        for _ in 0..asked.rounds {
            if has_rg {
                table.note("rg", timed(rg, &theirs, &made.plain).0);
            }
            table.note("search", timed(command, &ours, &made.plain).0);
            table.note("search, compressed", timed(command, &ours, &made.compressed).0);
        }
        println!("search of {what}:\n");
        table.print(has_rg.then_some("rg"));
    }
}

fn lookups(asked: &Asked<'_>, folder: &Path) {
    let made = stores::many_lookups(folder, asked.megabytes[1]);
    let len = std::fs::metadata(&made.plain).unwrap().len();
    println!("a reader's lookups in {} MB, {} runs:\n", len / 1_000_000, made.runs);
    let (mut table, mut random) = (Table::default(), SplitMix64::new(6));
    for _ in 0..asked.rounds {
        let began = Instant::now();
        let reader = Reader::open(&made.plain).unwrap();
        table.note("open", began.elapsed());
        let mut later = Vec::new();
        for number in 0..2_000 {
            let id = Runs::id(random.below(made.runs));
            let began = Instant::now();
            let agent = reader.agent_of(&id).unwrap();
            let time = began.elapsed();
            assert!(!agent.as_str().is_empty());
            if number == 0 {
                table.note("first lookup", time);
            } else {
                later.push(time);
            }
        }
        later.sort_unstable();
        table.note("later lookups, median", later[later.len() / 2]);
        table.note("later lookups, 99 of 100 within", later[later.len() * 99 / 100]);
    }
    table.print(None);
}
