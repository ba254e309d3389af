//! `runlog usage`: what the models of runs read and wrote, and what that cost, as the data say it.
//!
//! Each message counts once, as [`count`](runlog_formats::count) says.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use runlog::{AgentId, Error, Reader, RunId, RunRef, RunSummary, Timestamp};
use runlog_formats::Format;
use runlog_formats::count::{Before, Counted, Counting, Said, Words};
use runlog_formats::origin::Origin;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::limit::Limit;
use crate::message::{damaged, more};
use crate::output::{Output, grouped};
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
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
struct Sum {
    messages: u64,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    reasoning_tokens: u64,
    /// In US dollars, of the messages that say what they cost.
    cost: f64,
    /// How many messages say what they cost.
    messages_with_cost: u64,
}

impl Sum {
    fn add(&mut self, counted: &Counted) {
        let added = counted.added;
        for (sum, tokens) in [
            (&mut self.input_tokens, added.input_tokens),
            (&mut self.output_tokens, added.output_tokens),
            (&mut self.cache_read_tokens, added.cache_read_tokens),
            (&mut self.cache_write_tokens, added.cache_write_tokens),
            (&mut self.reasoning_tokens, added.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(tokens);
        }
        self.messages = self.messages.saturating_add(counted.messages);
        self.messages_with_cost =
            self.messages_with_cost.saturating_add(counted.messages_with_cost);
        self.cost += added.cost.unwrap_or_default();
    }

    /// What rows are sorted by.
    fn tokens(&self) -> u64 {
        [self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A row of the output.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    group: &'a Group,
    #[serde(flatten)]
    sum: &'a Sum,
}

pub(crate) fn run(args: &UsageArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    args.filters.check(&log)?;
    let mut sums = Sums::new(args);
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
    let (rows, total) = sums.rows();
    print(args, &rows, &total, out)?;
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
        let format = Origin::of(metadata.as_ref()).and_then(|origin| origin.format);
        // The records of other runs are read by their shapes.
        let format = format.unwrap_or(Format::JsonLines);
        let mut trace = match log.trace(named) {
            // It was deleted since it was listed.
            Err(error) if error.is_not_found() => return Ok(says),
            trace => trace?,
        };
        while let Some(record) = trace.next_view() {
            match record {
                Ok(record) => says.said.extend(words.said(format, &record)),
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => says.damage.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(says)
    }
}

/// Where the messages of records are added up.
struct Sums<'a> {
    args: &'a UsageArgs,
    counting: Counting,
    groups: HashMap<Group, Sum>,
    total: Sum,
    exit: Exit,
}

impl<'a> Sums<'a> {
    fn new(args: &'a UsageArgs) -> Self {
        let (counting, groups) = (Counting::default(), HashMap::new());
        Self { args, counting, groups, total: Sum::default(), exit: Exit::Fine }
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
            let Says { said, damage } = says?;
            for error in damage {
                damaged(&error);
                self.exit = Exit::Damage;
            }
            let mut before = Before::default();
            for said in said {
                if let Some(counted) = self.counting.said(&run.agent, said, &mut before) {
                    self.add(run, counted);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, run: &RunSummary, mut counted: Counted) {
        if !self.args.filters.takes_time(counted.time) {
            return;
        }
        let group = match self.args.by {
            By::Agent => Group::Agent { agent: run.agent.clone() },
            By::Run => Group::Run { agent: run.agent.clone(), run: run.run.clone() },
            By::Model => Group::Model { model: counted.model.take() },
            By::Day => Group::Day { day: day(counted.time) },
        };
        self.total.add(&counted);
        self.groups.entry(group).or_default().add(&counted);
    }

    /// The largest first; days in their order.
    fn rows(self) -> (Vec<(Group, Sum)>, Sum) {
        let sorted: BTreeMap<Group, Sum> = self.groups.into_iter().collect();
        let mut rows: Vec<_> = sorted.into_iter().collect();
        if self.args.by != By::Day {
            rows.sort_by_key(|(_, sum)| u64::MAX - sum.tokens());
        }
        (rows, self.total)
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
    rows: &[(Group, Sum)],
    total: &Sum,
    out: &mut Output,
) -> Result<(), Failure> {
    let listed = rows.iter().take(args.wanted());
    if out.is_json() {
        for (group, sum) in listed {
            out.object(&Row { group, sum })?;
        }
        out.object(&Row { group: &Group::Total, sum: total })?;
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
    Ok(table::write(out, &columns, &cells)?)
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
    [
        name,
        grouped(sum.messages).into(),
        grouped(sum.input_tokens).into(),
        grouped(sum.output_tokens).into(),
        grouped(sum.cache_read_tokens).into(),
        grouped(sum.cache_write_tokens).into(),
        grouped(sum.reasoning_tokens).into(),
        cost(sum).into(),
    ]
}

/// Dollars to four digits; with a sign where some messages do not say what they cost.
fn cost(sum: &Sum) -> String {
    if sum.messages_with_cost == 0 {
        return "-".to_owned();
    }
    let mut text = format!("${:.4}", sum.cost);
    if sum.messages_with_cost < sum.messages {
        // Writing to a string cannot fail.
        let _ = write!(text, "+");
    }
    text
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
