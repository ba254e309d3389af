//! Tables in Markdown, and where they were made.

use std::path::Path;
use std::process::Command;

use crate::engine::Kind;
use crate::measure::{clock, median};
use crate::rows::Row;

/// The values of a row: of each engine, of each round, the columns.
#[derive(Debug)]
pub(crate) struct Values(pub(crate) Vec<(Kind, Vec<Vec<f64>>)>);

/// A row that was measured, for the summary.
#[derive(Debug)]
pub(crate) struct Measured {
    name: String,
    unit: &'static str,
    /// The median of the first column.
    of: Vec<(Kind, f64)>,
}

/// Machine, system, commit, versions.
pub(crate) fn print_header(dir: &Path, kinds: &[Kind], rounds: usize) {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    println!("| | |\n|---|---|");
    println!("| processor | {}, {cores} cores |", processor());
    println!("| kernel | {} {} |", text(system.sysname()), text(system.release()));
    println!("| file system | {} |", file_system(dir).unwrap_or("unknown".to_owned()));
    println!("| commit | {} |", commit());
    let versions = kinds.iter().filter_map(|kind| version(*kind)).collect::<Vec<_>>();
    println!("| versions | {}; SQLite {} |", versions.join(", "), rusqlite::version());
    println!("| rounds | {rounds}, each engine in turn in each; medians over rounds |");
    println!("| one look at the clock | {} ns, in each quantile |", clock().as_nanos());
    println!("| load | {} |\n", load());
}

fn processor() -> String {
    let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = all.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown");
    format!("{model} ({})", std::env::consts::ARCH)
}

/// What is mounted where the stores lie.
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
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".to_owned() };
    let status = git(&["status", "--porcelain", "--untracked-files=no"]);
    let clean = status.is_none_or(|files| files.is_empty());
    format!("{commit}{}", if clean { "" } else { ", with changes" })
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

/// The table of one row: an engine a line.
pub(crate) fn print(row: &dyn Row, values: &Values) -> Measured {
    let columns = row.columns();
    println!("### {}\n\n{}\n", row.name(), row.what());
    println!("| | {} | guarantee at return |", columns.join(" | "));
    println!("|---|{}---|", "--:|".repeat(columns.len()));
    let mut of = Vec::new();
    for (kind, rounds) in &values.0 {
        let of_column = |column: usize| median(rounds.iter().map(|round| round[column]).collect());
        let medians: Vec<f64> = (0..columns.len()).map(of_column).collect();
        let told: Vec<String> = medians.iter().map(|value| figure(*value)).collect();
        println!("| {} | {} | {} |", kind.name(), told.join(" | "), kind.guarantee(row.level()));
        of.push((*kind, medians[0]));
    }
    let firsts = |rounds: &[Vec<f64>]| {
        rounds.iter().map(|round| figure(round[0])).collect::<Vec<_>>().join(", ")
    };
    let rounds = values.0.iter().map(|(kind, rounds)| (kind.name(), firsts(rounds)));
    let rounds: Vec<String> = rounds.map(|(name, firsts)| format!("{name} {firsts}")).collect();
    println!("\nEach round, {}: {}.\n", columns[0], rounds.join("; "));
    Measured { name: row.name(), unit: columns[0], of }
}

/// One line a row: the first column of each engine, and by how much the best peer is behind.
pub(crate) fn print_summary(rows: &[Measured], kinds: &[Kind]) {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    println!("### All rows\n\nLess is better. Times: the best peer's figure over ours.\n");
    println!("| | unit | {} | best peer | times |", names.join(" | "));
    println!("|---|---|{}---|--:|", "--:|".repeat(kinds.len()));
    for row in rows {
        let value = |kind: Kind| row.of.iter().find(|(of, _)| *of == kind).map(|(_, value)| *value);
        let cell = |kind: &Kind| value(*kind).map_or(String::new(), figure);
        let cells: Vec<String> = kinds.iter().map(cell).collect();
        let peers = row.of.iter().filter(|(kind, _)| kind.answers() && *kind != Kind::Ours);
        let best = peers.min_by(|left, right| left.1.total_cmp(&right.1));
        let (name, times) = match (best, value(Kind::Ours)) {
            (Some((kind, best)), Some(ours)) => (kind.name(), format!("{:.2}", best / ours)),
            _ => ("", String::new()),
        };
        let cells = cells.join(" | ");
        println!("| {} | {} | {cells} | {name} | {times} |", row.name, row.unit);
    }
    println!("\nLoad at the end: {}", load());
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}
