//! `runlog du`: what takes how much: agents or runs, and the parts of the file.
//!
//! The parts add up to the length of the file, and the agents and documents to what lives of it.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use runlog::{RunQuery, Stats, Taken, Usage};
use serde_json::{Value, json};

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::find;
use crate::limit::Limit;
use crate::message::more;
use crate::output::{Output, size};
use crate::screen::Style;
use crate::store;
use crate::table::{self, Column};

/// How many bytes a block has in which systems count what is allocated.
const BLOCK: u64 = 512;

/// The options of `du`.
#[derive(Debug, clap::Args)]
pub(crate) struct DuArgs {
    /// What to list, the largest first.
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
            ("open_bytes", room, "room after the end of the log"),
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
    let (stats, usage) = (log.stats()?, log.usage()?);
    let mut query = RunQuery::new();
    if let Some(agent) = &args.agent {
        find::agent(&log, agent)?;
        query = query.agent(agent);
    }
    let is_wanted = |agent: &str| args.agent.as_ref().is_none_or(|wanted| agent == wanted);
    let mut found = Vec::new();
    match args.by {
        By::Agent => {
            let agents = usage.agents.iter().filter(|usage| is_wanted(usage.agent.as_str()));
            found.extend(agents.map(|usage| (usage.runs, usage.agent.clone(), None)));
        }
        By::Run => {
            for run in log.runs(&query) {
                let (run, mut taken) = (run?, Taken::default());
                (taken.count, taken.bytes) = (run.records, run.bytes);
                taken.stored_bytes = run.stored_bytes;
                found.push((taken, run.agent, Some(run.run)));
            }
        }
    }
    found.sort_by_key(|(taken, ..)| Reverse(taken.stored_bytes));
    let listed = found.iter().take(args.limit.wanted());
    let mut rows: Vec<_> = listed
        .map(|(taken, agent, run)| match run {
            Some(run) => row("run", *taken, json!({"agent": agent, "run": run})),
            None => row("agent", *taken, json!({"agent": agent})),
        })
        .collect();
    if args.agent.is_none() {
        rows.push(row("documents", usage.documents, json!({})));
        rows.push(row("runs", stored(&usage), json!({})));
    }
    let (named, counted) = match args.by {
        By::Agent => ("agent", "RUNS"),
        By::Run => ("run", "RECORDS"),
    };
    let columns = [
        Column::id(named).made(name_of).styled(Style::Strong),
        Column::right("count").named(counted),
        Column::right("bytes"),
        Column::right("stored_bytes").named("STORED"),
        Column::right("share").named("OF BYTES").made(share).optional(0),
    ];
    table::list(out, &columns, &rows)?;
    let parts = Parts::of(path, &stats, &usage)?;
    if out.is_json() {
        out.object(&parts.object())?;
    } else {
        print(path, &parts, out)?;
    }
    out.flush()?;
    if found.len() > args.limit.wanted() {
        more(&format!("{named}s"), None, "-n N, or --all");
    }
    Ok(Exit::Fine)
}

/// A row of what takes space.
fn row(what: &str, taken: Taken, names: Value) -> Value {
    let mut row = names;
    (row["what"], row["count"]) = (json!(what), json!(taken.count));
    (row["bytes"], row["stored_bytes"]) = (json!(taken.bytes), json!(taken.stored_bytes));
    row
}

fn name_of(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or("-");
    match text("what") {
        "run" => format!("{}/{}", text("agent"), text("run")),
        "agent" => text("agent").to_owned(),
        what => format!("(all {what})"),
    }
}

/// How much is stored, with headers, of what was appended.
fn share(row: &Value) -> String {
    let bytes = row["bytes"].as_u64().filter(|bytes| *bytes > 0);
    let known = row["stored_bytes"].as_u64().zip(bytes);
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
    let row = |(bytes, what): (u64, &str)| {
        let share = percent(bytes, parts.file_bytes);
        json!({"bytes": bytes, "share": share, "of_the_file": what})
    };
    let rows: Vec<_> = rows.map(row).collect();
    out.line("")?;
    Ok(table::list(out, &columns, &rows)?)
}
