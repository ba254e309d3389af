//! `runlog du`: what takes how much: agents, runs or kinds of records, and the parts of the file.
//!
//! The parts add up to the length of the file, and the agents and documents to what lives of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use runlog::{AgentId, Error, Reader, RunId, RunQuery, RunRef, RunSummary, Stats, Taken, Usage};
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::find;
use crate::limit::Limit;
use crate::message::{damaged, more};
use crate::output::{Output, grouped, size};
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

/// Something that takes space.
#[derive(Debug, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Row<'a> {
    Agent {
        agent: &'a AgentId,
        #[serde(flatten)]
        taken: Taken,
    },
    Run {
        agent: &'a AgentId,
        run: &'a RunId,
        #[serde(flatten)]
        taken: Taken,
    },
    Kind {
        kind: Option<&'a str>,
        records: u64,
        bytes: u64,
    },
    Documents(Taken),
    Runs(Taken),
    File(&'a Parts),
}

/// The parts of the file. All but the last one add up to its length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are those of the output")]
pub(crate) struct Parts {
    /// The frames of living runs and documents.
    stored_bytes: u64,
    /// What else lives in the log: directories, and frames that concern no run.
    directory_bytes: u64,
    pub(crate) dead_bytes: u64,
    /// The room behind the end of the log, as far as the file has it.
    pub(crate) open_bytes: u64,
    index_bytes: u64,
    map_bytes: u64,
    retired_bytes: u64,
    pub(crate) free_bytes: u64,
    /// In front of the extents: what the store is, and its first map.
    front_bytes: u64,
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
        let mut parts = Self {
            stored_bytes: living.min(stats.live_bytes),
            directory_bytes: stats.live_bytes.saturating_sub(living),
            dead_bytes: stats.dead_bytes,
            open_bytes: 0,
            index_bytes: bytes(stats.index_extents),
            map_bytes: bytes(stats.meta_extents),
            retired_bytes: bytes(stats.retired_extents),
            free_bytes: stats.free_bytes,
            front_bytes: stats.front_bytes,
            file_bytes: stats.file_len,
            allocated_bytes: found.blocks().saturating_mul(BLOCK),
        };
        let mut all = parts.sum();
        // The last extent may be there in part, with dead bytes or none.
        for part in [&mut parts.dead_bytes, &mut parts.free_bytes] {
            let excess = all.saturating_sub(stats.file_len);
            all -= excess.min(*part);
            *part -= excess.min(*part);
        }
        parts.open_bytes = stats.file_len.saturating_sub(all);
        Ok(parts)
    }

    /// What the parts add up to.
    fn sum(&self) -> u64 {
        self.named().iter().map(|(bytes, _)| bytes).sum()
    }

    /// The parts, and what they are.
    fn named(&self) -> [(u64, &'static str); 9] {
        [
            (self.stored_bytes, "records of runs, and documents"),
            (self.directory_bytes, "directories of the log"),
            (self.dead_bytes, "dead: deleted, or unused ends of segments"),
            (self.open_bytes, "room behind the end of the log"),
            (self.index_bytes, "index"),
            (self.map_bytes, "map of the file"),
            (self.retired_bytes, "dead, being read"),
            (self.free_bytes, "free"),
            (self.front_bytes, "header"),
        ]
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
    let exit = match args.by {
        By::Agent => agents(args, &usage, out)?,
        By::Run => runs(&log, args, out)?,
        By::Kind => kinds(&log, args, out)?,
    };
    if out.is_json() {
        if args.agent.is_none() {
            out.object(&Row::Documents(usage.documents))?;
            out.object(&Row::Runs(stored(&usage)))?;
        }
        out.object(&Row::File(&parts))?;
    } else {
        file(path, &parts, out)?;
    }
    out.flush()?;
    Ok(exit)
}

/// The parts of the file, without those that it does not have.
fn file(path: &Path, parts: &Parts, out: &mut Output) -> Result<(), Failure> {
    let columns = [Column::right("BYTES"), Column::right("SHARE"), Column::text("OF THE FILE")];
    let share = |bytes: u64| {
        let percent = u128::from(bytes) * 100 / u128::from(parts.file_bytes.max(1));
        format!("{percent}%")
    };
    let mut rows: Vec<[Cell; 3]> = Vec::new();
    for (bytes, what) in parts.named() {
        if bytes > 0 {
            rows.push([size(bytes).into(), share(bytes).into(), what.into()]);
        }
    }
    let all = format!("{}, {} allocated", shown(path), size(parts.allocated_bytes));
    rows.push([size(parts.file_bytes).into(), "100%".into(), Cell::styled(all, Style::Strong)]);
    out.line("")?;
    Ok(table::write(out, &columns, &rows)?)
}

impl DuArgs {
    fn wanted(&self) -> usize {
        self.limit.wanted()
    }

    /// Says that there are more.
    fn tell_more(&self, found: usize, what: &str, out: &mut Output) -> Result<(), Failure> {
        if found > self.wanted() {
            out.flush()?;
            more(what, None, "-n N, or --all");
        }
        Ok(())
    }
}

fn agents(args: &DuArgs, usage: &Usage, out: &mut Output) -> Result<Exit, Failure> {
    let is_wanted = |agent: &&AgentId| args.agent.as_ref().is_none_or(|wanted| **agent == **wanted);
    let mut found: Vec<_> = usage.agents.iter().filter(|usage| is_wanted(&&usage.agent)).collect();
    found.sort_by_key(|usage| u64::MAX - usage.runs.stored_bytes);
    let listed = found.iter().take(args.wanted());
    if out.is_json() {
        for usage in listed {
            out.object(&Row::Agent { agent: &usage.agent, taken: usage.runs })?;
        }
    } else {
        let columns =
            [Column::id("AGENT"), Column::right("RUNS"), Column::right("BYTES"), STORED, OF_BYTES];
        let mut rows: Vec<[Cell; 5]> = Vec::new();
        for usage in listed {
            rows.push(cells(usage.agent.as_str().into(), usage.runs));
        }
        if args.agent.is_none() {
            if usage.documents.count > 0 {
                let cell = Cell::styled("(documents)", Style::Lively);
                rows.push(cells(cell, usage.documents));
            }
            rows.push(cells(Cell::styled("(all runs)", Style::Strong), stored(usage)));
        }
        table::write(out, &columns, &rows)?;
    }
    args.tell_more(found.len(), "agents", out)?;
    Ok(Exit::Fine)
}

const STORED: Column = Column::right("STORED");
const OF_BYTES: Column = Column::right("OF BYTES").optional(0);

fn cells(name: Cell, taken: Taken) -> [Cell; 5] {
    let [bytes, stored, share] = amounts(taken);
    [name, grouped(taken.count).into(), bytes, stored, share]
}

/// What was appended, what is stored of it with headers, and how much that is of it.
fn amounts(taken: Taken) -> [Cell; 3] {
    let share = match taken.bytes {
        0 => "-".to_owned(),
        bytes => format!("{}%", u128::from(taken.stored_bytes) * 100 / u128::from(bytes)),
    };
    [size(taken.bytes).into(), size(taken.stored_bytes).into(), share.into()]
}

fn query(args: &DuArgs) -> RunQuery {
    args.agent.as_ref().map_or_else(RunQuery::new, |agent| RunQuery::new().agent(agent))
}

/// The largest runs, and how many there are; of the same size in their order. So that a store of
/// many runs takes little memory and time, no more than some times as many are kept at once.
fn largest(
    runs: impl Iterator<Item = Result<RunSummary, Error>>,
    wanted: usize,
) -> Result<(Vec<RunSummary>, usize), Error> {
    let by_size = |(at, run): &(usize, RunSummary)| (u64::MAX - run.stored_bytes, *at);
    let (mut kept, mut found) = (Vec::new(), 0);
    for run in runs {
        kept.push((found, run?));
        found += 1;
        if kept.len() >= wanted.saturating_mul(2).max(KEPT) {
            kept.select_nth_unstable_by_key(wanted, by_size);
            kept.truncate(wanted);
        }
    }
    kept.sort_unstable_by_key(by_size);
    Ok((kept.into_iter().map(|(_, run)| run).take(wanted).collect(), found))
}

fn runs(log: &Reader, args: &DuArgs, out: &mut Output) -> Result<Exit, Failure> {
    let (runs, found) = largest(log.runs(&query(args)), args.wanted())?;
    let columns = [
        Column::id("RUN"),
        Column::id("AGENT"),
        Column::right("RECORDS"),
        Column::right("BYTES"),
        STORED,
        OF_BYTES,
    ];
    let mut rows: Vec<[Cell; 6]> = Vec::new();
    for run in &runs {
        let mut taken = Taken::default();
        (taken.count, taken.bytes, taken.stored_bytes) = (run.records, run.bytes, run.stored_bytes);
        if out.is_json() {
            out.object(&Row::Run { agent: &run.agent, run: &run.run, taken })?;
            continue;
        }
        let [bytes, stored, share] = amounts(taken);
        let name = Cell::styled(run.run.as_str(), Style::Strong);
        let records = grouped(run.records).into();
        rows.push([name, run.agent.as_str().into(), records, bytes, stored, share]);
    }
    if !out.is_json() {
        table::write(out, &columns, &rows)?;
    }
    args.tell_more(found, "runs", out)?;
    Ok(Exit::Fine)
}

fn kinds(log: &Reader, args: &DuArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut kinds: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    let mut exit = Exit::Fine;
    for run in log.runs(&query(args)) {
        let mut trace = match log.trace(RunRef::from(&run?)) {
            // It was deleted since it was listed.
            Err(error) if error.is_not_found() => continue,
            trace => trace?,
        };
        while let Some(record) = trace.next_view() {
            let record = match record {
                Ok(record) => record,
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => {
                    damaged(&error.to_string());
                    exit = Exit::Damage;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let kind = record.kind().map(str::to_owned);
            let sum = kinds.entry(kind).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(record.payload().len() as u64));
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, bytes))| u64::MAX - bytes);
    let columns = [Column::id("KIND"), Column::right("RECORDS"), Column::right("BYTES")];
    let mut rows: Vec<[Cell; 3]> = Vec::new();
    for (kind, (records, bytes)) in kinds.iter().take(args.wanted()) {
        if out.is_json() {
            out.object(&Row::Kind { kind: kind.as_deref(), records: *records, bytes: *bytes })?;
        } else {
            let kind = kind.as_deref().unwrap_or("-");
            rows.push([kind.into(), grouped(*records).into(), size(*bytes).into()]);
        }
    }
    if !out.is_json() {
        table::write(out, &columns, &rows)?;
    }
    args.tell_more(kinds.len(), "kinds", out)?;
    Ok(exit)
}
