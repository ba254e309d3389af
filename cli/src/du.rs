//! `runlog du`: what takes how much: agents, runs or kinds of records, and the parts of the file.
//!
//! The parts add up to the length of the file, and the agents and documents to what lives of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use runlog::{AgentId, Reader, RecordView, RunQuery, RunSummary, Stats, Taken, Usage};
use serde_json::{Value, json};

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::find;
use crate::limit::Limit;
use crate::message::{damaged, more};
use crate::output::{Output, size};
use crate::records;
use crate::screen::Style;
use crate::store;
use crate::table::{self, Cell, Column};

/// How many runs are kept at once to find the largest, at least.
const KEPT: usize = 1000;

/// How many bytes a block has in which systems count what is allocated.
const BLOCK: u64 = 512;

/// The options of `du`.
#[derive(Debug, clap::Args)]
pub(crate) struct DuArgs {
    /// What to add up: agents, runs (the largest first), or kinds of records, for which every
    /// record is read.
    #[arg(long, value_name = "WHAT", default_value = "agent")]
    by: By,

    /// Only the runs of this agent.
    #[arg(long)]
    agent: Option<String>,

    #[command(flatten)]
    limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Agent,
    Run,
    Kind,
}

/// The parts of the file: field, bytes, and what they are. They add up to its length.
#[derive(Debug)]
pub(crate) struct Parts {
    named: [(&'static str, u64, &'static str); 9],
    pub(crate) dead_bytes: u64,
    /// The length of the file.
    file_bytes: u64,
    /// What the file system has given it.
    pub(crate) allocated_bytes: u64,
}

impl Parts {
    pub(crate) fn of(path: &Path, stats: &Stats, usage: &Usage) -> Result<Self, Failure> {
        let found = fs::metadata(path).map_err(|source| Failure::file(path, source))?;
        let bytes = |extents: u64| extents.saturating_mul(stats.extent_len);
        let living = stored(usage).stored_bytes.saturating_add(usage.documents.stored_bytes);
        let directories = stats.live_bytes.saturating_sub(living);
        let known = [
            living.min(stats.live_bytes),
            directories,
            bytes(stats.index_extents),
            bytes(stats.meta_extents),
            bytes(stats.retired_extents),
            stats.front_bytes,
        ];
        // The last extent may be there in part, with dead bytes or none.
        let mut room = stats.file_len.saturating_sub(known.iter().sum());
        let mut of_room = |bytes: u64| {
            let some = bytes.min(room);
            room -= some;
            some
        };
        let (free_bytes, dead_bytes) = (of_room(stats.free_bytes), of_room(stats.dead_bytes));
        let [stored, directories, index, map, retired, front] = known;
        let named = [
            ("stored_bytes", stored, "records of runs, and documents"),
            ("directory_bytes", directories, "directories of the log"),
            ("dead_bytes", dead_bytes, "dead: deleted, or unused ends of segments"),
            ("open_bytes", room, "room behind the end of the log"),
            ("index_bytes", index, "index"),
            ("map_bytes", map, "map of the file"),
            ("retired_bytes", retired, "dead, being read"),
            ("free_bytes", free_bytes, "free"),
            ("front_bytes", front, "header"),
        ];
        let allocated_bytes = found.blocks().saturating_mul(BLOCK);
        Ok(Self { named, dead_bytes, file_bytes: stats.file_len, allocated_bytes })
    }

    fn object(&self) -> Value {
        let mut object = json!({
            "what": "file",
            "file_bytes": self.file_bytes,
            "allocated_bytes": self.allocated_bytes,
        });
        for (name, bytes, _) in self.named {
            object[name] = json!(bytes);
        }
        object
    }
}

/// What all runs take.
fn stored(usage: &Usage) -> Taken {
    let mut sum = Taken::default();
    for agent in &usage.agents {
        sum.count += agent.runs.count;
        sum.bytes = sum.bytes.saturating_add(agent.runs.bytes);
        sum.stored_bytes = sum.stored_bytes.saturating_add(agent.runs.stored_bytes);
    }
    sum
}

pub(crate) fn run(args: &DuArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    args.agent.as_deref().map_or(Ok(()), |agent| find::agent(&log, agent))?;
    let (stats, usage) = (log.stats()?, log.usage()?);
    let parts = Parts::of(path, &stats, &usage)?;
    let wanted = args.limit.wanted();
    let mut exit = Exit::Fine;
    let (mut rows, found) = match args.by {
        By::Agent => agents(args, &usage),
        By::Run => runs(&log, args)?,
        By::Kind => kinds(&log, args, &mut exit)?,
    };
    if args.agent.is_none() {
        rows.push(row("documents", json!({}), usage.documents));
        rows.push(row("runs", json!({}), stored(&usage)));
    }
    let counted = if args.by == By::Agent { "RUNS" } else { "RECORDS" };
    let columns = [
        Column::id(args.by.name()).made(name_of).styled(Style::Strong),
        Column::right(if args.by == By::Kind { "records" } else { "count" }).named(counted),
        Column::right("bytes"),
        Column::right("stored_bytes").named("STORED"),
        Column::right("share").named("OF BYTES").made(share).optional(0),
    ];
    table::list(out, &columns, &rows)?;
    if out.is_json() {
        out.object(&parts.object())?;
    } else {
        print(path, &parts, out)?;
    }
    out.flush()?;
    if found > wanted {
        more(&format!("{}s", args.by.name()), None, "-n N, or --all");
    }
    Ok(exit)
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Run => "run",
            Self::Kind => "kind",
        }
    }
}

/// A row of what takes space.
fn row(what: &str, names: Value, taken: Taken) -> Value {
    let mut row = json!(taken);
    row["what"] = json!(what);
    if let (Value::Object(row), Value::Object(names)) = (&mut row, names) {
        row.extend(names);
    }
    row
}

fn name_of(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or("-");
    match text("what") {
        "run" => format!("{}/{}", text("agent"), text("run")),
        what @ ("agent" | "kind") => text(what).to_owned(),
        what => format!("(all {what})"),
    }
}

/// How much is stored, with headers, of what was appended.
fn share(row: &Value) -> String {
    let (stored, bytes) = (row["stored_bytes"].as_u64(), row["bytes"].as_u64());
    let known = stored.zip(bytes).filter(|(_, bytes)| *bytes > 0);
    known.map_or_else(|| "-".to_owned(), |(stored, bytes)| percent(stored, bytes))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{}%", u128::from(part) * 100 / u128::from(whole.max(1)))
}

/// The parts of the file, without those that it does not have.
fn print(path: &Path, parts: &Parts, out: &mut Output) -> Result<(), Failure> {
    let columns = [Column::right("bytes"), Column::right("share"), Column::text("of_the_file")];
    let some = parts.named.iter().filter(|(_, bytes, _)| *bytes > 0);
    let all = format!("{}, {} allocated", shown(path), size(parts.allocated_bytes));
    let rows = some.map(|(_, bytes, what)| (*bytes, *what)).chain([(parts.file_bytes, &*all)]);
    let cells = |(bytes, what): (u64, &str)| -> [Cell; 3] {
        [size(bytes).into(), percent(bytes, parts.file_bytes).into(), what.into()]
    };
    let rows: Vec<_> = rows.map(cells).collect();
    out.line("")?;
    Ok(table::write(out, &columns, &rows)?)
}

fn agents(args: &DuArgs, usage: &Usage) -> (Vec<Value>, usize) {
    let is_wanted =
        |agent: &AgentId| args.agent.as_ref().is_none_or(|wanted| agent.as_str() == wanted);
    let mut found: Vec<_> = usage.agents.iter().filter(|usage| is_wanted(&usage.agent)).collect();
    found.sort_by_key(|usage| u64::MAX - usage.runs.stored_bytes);
    let listed = found.iter().take(args.limit.wanted());
    let rows = listed.map(|usage| row("agent", json!({"agent": usage.agent}), usage.runs));
    (rows.collect(), found.len())
}

fn query(args: &DuArgs) -> RunQuery {
    args.agent.as_ref().map_or_else(RunQuery::new, |agent| RunQuery::new().agent(agent))
}

/// The largest runs, and how many there are; of the same size in their order. So that a store of
/// many runs takes little memory and time, no more than some times as many are kept at once.
fn runs(log: &Reader, args: &DuArgs) -> Result<(Vec<Value>, usize), Failure> {
    let by_size = |(at, run): &(usize, RunSummary)| (u64::MAX - run.stored_bytes, *at);
    let (wanted, mut kept, mut found) = (args.limit.wanted(), Vec::new(), 0);
    for run in log.runs(&query(args)) {
        kept.push((found, run?));
        found += 1;
        if kept.len() >= wanted.saturating_mul(2).max(KEPT) {
            kept.select_nth_unstable_by_key(wanted, by_size);
            kept.truncate(wanted);
        }
    }
    kept.sort_unstable_by_key(by_size);
    let listed = kept.iter().take(wanted).map(|(_, run)| {
        let mut taken = Taken::default();
        (taken.count, taken.bytes, taken.stored_bytes) = (run.records, run.bytes, run.stored_bytes);
        row("run", json!({"agent": run.agent, "run": run.run}), taken)
    });
    Ok((listed.collect(), found))
}

fn kinds(log: &Reader, args: &DuArgs, exit: &mut Exit) -> Result<(Vec<Value>, usize), Failure> {
    let mut kinds: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    for run in log.runs(&query(args)) {
        let add = |record: &RecordView<'_>| {
            let sum = kinds.entry(record.kind().map(str::to_owned)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(record.payload().len() as u64));
            Ok::<_, Failure>(())
        };
        records::each(log, &run?, add, |error| {
            damaged(&error.to_string());
            *exit = Exit::Damage;
        })?;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, bytes))| u64::MAX - bytes);
    let listed = kinds.iter().take(args.limit.wanted()).map(|(kind, (records, bytes))| {
        json!({"what": "kind", "kind": kind, "records": records, "bytes": bytes})
    });
    Ok((listed.collect(), kinds.len()))
}
