//! Tables in Markdown, and a description of the machine.

use std::path::Path;
use std::process::Command;

use crate::engine::Kind;
use crate::measure::clock;
use crate::results::{Entry, Measured, Results, Setting, figure};

/// Machine, system, commit, versions.
pub(crate) fn setting(dir: &Path, kinds: &[Kind], scale: &str, checked: String) -> Setting {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let versions = kinds.iter().filter_map(|kind| version(*kind)).collect::<Vec<_>>();
    let about = [
        ("date", output("date", &["-u", "+%F"]).unwrap_or("unknown".to_owned())),
        ("processor", format!("{}, {cores} cores", processor())),
        ("kernel", format!("{} {}", text(system.sysname()), text(system.release()))),
        ("file system", file_system(dir).unwrap_or("unknown".to_owned())),
        ("commit", commit()),
        ("versions", format!("{}; SQLite {}", versions.join(", "), rusqlite::version())),
        ("scale", scale.to_owned()),
        ("one look at the clock", format!("{} ns, in each quantile", clock().as_nanos())),
        ("load", load()),
    ];
    let about = about.map(|(name, value)| (name.to_owned(), value)).into();
    Setting { about, engines: kinds.to_vec(), checked }
}

/// The same in one line, for tables that compare no engines.
pub(crate) fn describe(dir: &Path) -> String {
    let about = setting(dir, &[], "", String::new()).about;
    let wanted = ["date", "processor", "kernel", "file system", "commit"];
    let parts = about.into_iter().filter(|(name, _)| wanted.contains(&name.as_str()));
    parts.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join("; ")
}

fn processor() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = all.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown");
    format!("{model} ({})", std::env::consts::ARCH)
}

/// The mount point of the stores.
fn file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let above = fields.filter(|fields| fields.len() > 3 && dir.starts_with(fields[1]));
    let nearest = above.max_by_key(|fields| fields[1].len())?;
    Some(format!("{} ({})", nearest[2], nearest[3]))
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        output("git", &[&["-C", root], arguments].concat())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".to_owned() };
    let status = git(&["status", "--porcelain", "--untracked-files=no"]);
    let clean = status.is_none_or(|files| files.is_empty());
    format!("{commit}{}", if clean { "" } else { ", with changes" })
}

/// The output of a program, if it exists and succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The version of an engine's package, from the lock file.
fn version(kind: Kind) -> Option<String> {
    let package = kind.package()?;
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    Some(format!("{package} {}", rest.split('"').next()?))
}

pub(crate) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or("unknown".to_owned()).trim().to_owned()
}

/// The measurements as they come: the setting, then a table for each row.
pub(crate) fn print(entry: &Entry) {
    match entry {
        Entry::Setting(setting) => print_setting(setting),
        Entry::Row(row) => print_row(row),
    }
}

fn print_setting(setting: &Setting) {
    println!("| | |\n|---|---|");
    setting.about.iter().for_each(|(name, value)| println!("| {name} | {value} |"));
    println!("\n{}.\n", setting.checked);
}

/// The table of one row: one line per engine.
fn print_row(row: &Measured) {
    println!("### {}\n\n{}\n", row.name, row.what);
    println!("| | {} | guarantee at return |", row.columns.join(" | "));
    println!("|---|{}---|", "--:|".repeat(row.columns.len()));
    for (kind, _) in &row.values {
        let told = (0..row.columns.len()).map(|column| row.told(*kind, column));
        let told = told.collect::<Vec<_>>().join(" | ");
        println!("| {} | {told} | {} |", kind.name(), kind.guarantee(row.level));
    }
    let firsts = |rounds: &[Vec<Option<f64>>]| {
        let firsts = rounds.iter().filter_map(|round| Some(figure((*round.first()?)?, row.digits)));
        firsts.collect::<Vec<_>>().join(", ")
    };
    let rounds = row.values.iter().map(|(kind, rounds)| (kind.name(), firsts(rounds)));
    let rounds: Vec<String> = rounds.map(|(name, firsts)| format!("{name} {firsts}")).collect();
    println!("\nEach round, {}: {}.", row.columns[0], rounds.join("; "));
    row.notes.iter().for_each(|note| println!("{note}."));
    println!("{:.0} seconds, load at the end {}.\n", row.seconds, row.load);
}

/// One line per row: the first column of each engine, and the ratio to the best peer.
pub(crate) fn print_summary(results: &Results) {
    let kinds = &results.setting.engines;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    println!("### All rows\n\nLess is better. Times: the best peer's figure over ours.\n");
    println!("| | unit | {} | best peer | times |", names.join(" | "));
    println!("|---|---|{}---|--:|", "--:|".repeat(kinds.len()));
    for row in &results.rows {
        let cells = kinds.iter().map(|kind| row.told(*kind, 0)).collect::<Vec<_>>().join(" | ");
        let (name, times) = match (row.best_peer(0), row.times(0)) {
            (Some((kind, _)), Some(times)) => (kind.name(), format!("{times:.2}")),
            _ => ("", String::new()),
        };
        println!("| {} | {} | {cells} | {name} | {times} |", row.name, row.columns[0]);
    }
}
