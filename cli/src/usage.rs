//! `runlog usage`: what the models of runs read and wrote, and what that cost, as the data say it.
//!
//! Each message counts once, as [`count`](runlog_formats::count) says.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use runlog::{AgentId, Error, Reader, RunId, RunRef, RunSummary, Timestamp};
use runlog_formats::Format;
use runlog_formats::count::{Amount, Counted, Counting, Said, Sum, Words};
use runlog_formats::origin::Origin;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::limit::Limit;
use crate::message::{damaged, more};
use crate::output::{Output, count, grouped};
use crate::screen::Style;
use crate::store;
use crate::table::{self, Cell, Column};

/// How many runs are read at once, and about how many bytes of them.
const TOGETHER: (usize, u64) = (1024, 32 << 20);

/// The options of `usage`.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// What to add up.
    #[arg(long, value_name = "WHAT", default_value = "agent")]
    by: By,

    #[command(flatten)]
    filters: Filters,

    #[command(flatten)]
    limit: Limit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Agent,
    Run,
    Model,
    /// Of the message, in UTC.
    Day,
}

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Group {
    Agent { agent: AgentId },
    Run { agent: AgentId, run: RunId },
    Model { model: Option<String> },
    Day { day: String },
    Total,
}

/// What the messages of a group say.
#[derive(Debug, Serialize)]
struct Sums {
    messages: u64,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    reasoning_tokens: u64,
    /// In US dollars, of the messages that say what they cost; none where no message does.
    cost: Option<f64>,
    /// How many messages say what they cost.
    messages_with_cost: u64,
}

impl From<Sum> for Sums {
    fn from(sum: Sum) -> Self {
        let Sum { messages, messages_with_cost, amount } = sum;
        Self {
            messages,
            input_tokens: amount.input_tokens,
            output_tokens: amount.output_tokens,
            cache_read_tokens: amount.cache_read_tokens,
            cache_write_tokens: amount.cache_write_tokens,
            reasoning_tokens: amount.reasoning_tokens,
            cost: amount.cost,
            messages_with_cost,
        }
    }
}

/// What rows are sorted by.
fn tokens(sum: &Sum) -> u64 {
    let Amount { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, .. } =
        sum.amount;
    [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens]
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// A row of the output.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    group: &'a Group,
    #[serde(flatten)]
    sums: Sums,
    /// Of the total only.
    #[serde(flatten)]
    silent: Option<&'a Silent>,
}

/// The runs that add nothing.
#[derive(Debug, Default, Serialize)]
struct Silent {
    /// They say nothing of usage that is understood.
    runs_without_usage: u64,
    /// They are byte for byte what another run is.
    duplicate_runs: u64,
}

pub(crate) fn run(args: &UsageArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    args.filters.check(&log)?;
    let mut sums = Adding::new(args);
    let (mut some, mut bytes) = (Vec::new(), 0);
    for run in log.runs(&args.filters.query().oldest_first()) {
        let run = run?;
        bytes += run.bytes;
        some.push(run);
        if some.len() >= TOGETHER.0 || bytes >= TOGETHER.1 {
            sums.runs(&log, &some)?;
            (some, bytes) = (Vec::new(), 0);
        }
    }
    sums.runs(&log, &some)?;
    let exit = sums.exit;
    let rows = sums.rows();
    print(args, &rows, &sums, out)?;
    out.flush()?;
    if rows.len() > args.wanted() {
        more(args.by.plural(), None, "-n N, or --all");
    }
    Ok(exit)
}

impl UsageArgs {
    fn wanted(&self) -> usize {
        self.limit.wanted()
    }
}

impl By {
    /// The row of what a record of a run adds.
    fn group(self, run: &RunSummary, counted: &Counted) -> Group {
        match self {
            Self::Agent => Group::Agent { agent: run.agent.clone() },
            Self::Run => Group::Run { agent: run.agent.clone(), run: run.run.clone() },
            Self::Model => Group::Model { model: counted.model.clone() },
            Self::Day => Group::Day { day: day(counted.time) },
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Run => "runs",
            Self::Model => "models",
            Self::Day => "days",
        }
    }
}

/// What the records of a run say.
#[derive(Debug, Default)]
struct Says {
    said: Vec<Said>,
    /// What could not be read.
    damage: Vec<String>,
    /// Where the run was imported from.
    origin: Option<Origin>,
}

impl Says {
    fn read(log: &Reader, words: &Words, run: &RunSummary) -> Result<Self, Failure> {
        let (named, mut says) = (RunRef::from(run), Self::default());
        let metadata = match log.metadata(named) {
            Err(error) if error.is_not_found() => return Ok(says),
            Err(error) if error.is_corruption() => {
                says.damage.push(error.to_string());
                None
            }
            metadata => metadata?,
        };
        says.origin = Origin::of(metadata.as_ref());
        let format = says.origin.as_ref().and_then(|origin| origin.format);
        // The records of other runs are read by their shapes.
        let format = format.unwrap_or(Format::JsonLines);
        let mut trace = match log.trace(named) {
            // It was deleted since it was listed.
            Err(error) if error.is_not_found() => return Ok(says),
            trace => trace?,
        };
        while let Some(record) = trace.next_view() {
            match record {
                Ok(record) => words.read(format, &record, &mut says.said),
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => says.damage.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(says)
    }
}

/// Where the messages of records are added up.
struct Adding<'a> {
    args: &'a UsageArgs,
    counting: Counting,
    groups: HashMap<Group, Sum>,
    total: Sum,
    silent: Silent,
    exit: Exit,
}

impl<'a> Adding<'a> {
    fn new(args: &'a UsageArgs) -> Self {
        Self {
            args,
            counting: Counting::default(),
            groups: HashMap::new(),
            total: Sum::default(),
            silent: Silent::default(),
            exit: Exit::Fine,
        }
    }

    /// Reads runs on all processors, and counts them in their order.
    fn runs(&mut self, log: &Reader, runs: &[RunSummary]) -> Result<(), Failure> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
        let next = AtomicUsize::new(0);
        let read = || {
            // Each thread has a handle and words of its own, so that none waits for another.
            let (log, words) = (log.clone(), Words::default());
            let mut all = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(run) = runs.get(place) else { return all };
                all.push((place, Says::read(&log, &words, run)));
            }
        };
        let mut all = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            let joined = workers.into_iter().map(|worker| match worker.join() {
                Ok(all) => all,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.flatten().collect::<Vec<_>>()
        });
        all.sort_unstable_by_key(|(place, _)| *place);
        for (run, (_, says)) in runs.iter().zip(all) {
            let Says { said, damage, origin } = says?;
            for error in damage {
                damaged(&error);
                self.exit = Exit::Damage;
            }
            if !said.iter().any(Said::is_of_use) {
                self.silent.runs_without_usage += 1;
            } else if self.counting.is_copy(run, origin.as_ref()) {
                self.silent.duplicate_runs += 1;
            } else {
                self.run(run, &said);
            }
        }
        Ok(())
    }

    fn run(&mut self, run: &RunSummary, said: &[Said]) {
        let Self { args, counting, groups, total, .. } = self;
        counting.run(said, &mut |counted| {
            if args.filters.takes_time(counted.time) {
                *total = total.plus(counted.sum);
                let sum = groups.entry(args.by.group(run, &counted)).or_default();
                *sum = sum.plus(counted.sum);
            }
        });
    }

    /// The largest first; days in their order.
    fn rows(&self) -> Vec<(&Group, &Sum)> {
        let sorted: BTreeMap<&Group, &Sum> = self.groups.iter().collect();
        let mut rows: Vec<_> = sorted.into_iter().collect();
        if self.args.by != By::Day {
            rows.sort_by_key(|(_, sum)| u64::MAX - tokens(sum));
        }
        rows
    }
}

/// The day of a time, in UTC.
fn day(time: Timestamp) -> String {
    let mut text = time.to_string();
    text.truncate(text.find('T').unwrap_or(text.len()));
    text
}

fn print(
    args: &UsageArgs,
    rows: &[(&Group, &Sum)],
    sums: &Adding<'_>,
    out: &mut Output,
) -> Result<(), Failure> {
    let listed = rows.iter().take(args.wanted());
    let (total, silent) = (&sums.total, &sums.silent);
    if out.is_json() {
        for (group, sum) in listed {
            out.object(&Row { group, sums: Sums::from(**sum), silent: None })?;
        }
        let (group, sums) = (&Group::Total, Sums::from(*total));
        out.object(&Row { group, sums, silent: Some(silent) })?;
        return Ok(());
    }
    let mut cells: Vec<[Cell; 8]> = Vec::new();
    for (group, sum) in listed {
        cells.push(row(Cell::styled(name(group), Style::Strong), sum));
    }
    cells.push(row(Cell::styled("(all)", Style::Strong), total));
    let what = match args.by {
        By::Agent => "AGENT",
        By::Run => "RUN",
        By::Model => "MODEL",
        By::Day => "DAY",
    };
    let columns = [
        Column::id(what),
        Column::right("MESSAGES").optional(3),
        Column::right("INPUT"),
        Column::right("OUTPUT"),
        Column::right("CACHE READ").optional(2),
        Column::right("CACHE WRITE").optional(1),
        Column::right("REASONING").optional(0),
        Column::right("COST"),
    ];
    table::write(out, &columns, &cells)?;
    if silent.runs_without_usage > 0 {
        let (runs, say) = said_of(silent.runs_without_usage, "says", "say");
        out.line(format!("{runs} {say} nothing of usage that is understood"))?;
    }
    if silent.duplicate_runs > 0 {
        let (runs, are) = said_of(silent.duplicate_runs, "is a copy", "are copies");
        out.line(format!("{runs} {are} of another run, which counts once"))?;
    }
    Ok(())
}

/// A number of runs, and the verb for it.
fn said_of(runs: u64, one: &'static str, many: &'static str) -> (String, &'static str) {
    (count(runs, "run"), if runs == 1 { one } else { many })
}

fn name(group: &Group) -> String {
    match group {
        Group::Agent { agent } => agent.to_string(),
        Group::Run { agent, run } => format!("{agent}/{run}"),
        Group::Model { model } => model.clone().unwrap_or_else(|| "-".to_owned()),
        Group::Day { day } => day.clone(),
        Group::Total => "(all)".to_owned(),
    }
}

fn row(name: Cell, sum: &Sum) -> [Cell; 8] {
    let amount = &sum.amount;
    [
        name,
        grouped(sum.messages).into(),
        grouped(amount.input_tokens).into(),
        grouped(amount.output_tokens).into(),
        grouped(amount.cache_read_tokens).into(),
        grouped(amount.cache_write_tokens).into(),
        grouped(amount.reasoning_tokens).into(),
        cost(sum).into(),
    ]
}

/// Dollars to four digits; with a sign where some messages do not say what they cost.
fn cost(sum: &Sum) -> String {
    let sign = if sum.messages_with_cost < sum.messages { "+" } else { "" };
    sum.amount.cost.map_or_else(String::new, |cost| format!("${cost:.4}{sign}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_that_of_utc() {
        assert_eq!(day(Timestamp(0)), "1970-01-01");
        assert_eq!(day(Timestamp(86_400_000_000_000 - 1)), "1970-01-01");
        assert_eq!(day(Timestamp(86_400_000_000_000)), "1970-01-02");
    }
}
