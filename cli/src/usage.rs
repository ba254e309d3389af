//! `runlog usage`: what the models of runs read and wrote, and what that cost, as the data say it.
//!
//! Each message counts once: several records may be one message, and a session that was resumed
//! repeats those of the session before. A message that more than one run of an agent has counts
//! for the run that began first. Where its records say different numbers, as while a message is
//! streamed, the largest count.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use memchr::memmem::Finder;
use runlog::{
    AgentId, Error, Reader, RecordView, RunId, RunMetadata, RunQuery, RunRef, RunSummary, Timestamp,
};
use runlog_formats::facts::{Facts, Usage, at};
use runlog_formats::origin::Origin;
use runlog_formats::{Format, facts_in, value_of};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::args::parse_time;
use crate::failure::{Exit, Failure};
use crate::message::{damaged, more};
use crate::output::{Output, grouped};
use crate::screen::Style;
use crate::store;
use crate::table::{self, Cell, Column};

/// The options of `usage`.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// What to add up.
    #[arg(long, value_name = "WHAT", default_value = "agent")]
    by: By,

    /// Only the runs of this agent.
    #[arg(long)]
    agent: Option<String>,

    /// Only messages of this time (2026-01-31T12:00:00Z) or later.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,

    /// Only messages before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,

    /// The most rows to list.
    #[arg(long, default_value_t = 20, conflicts_with = "all")]
    limit: usize,

    /// List all.
    #[arg(long)]
    all: bool,
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

/// What a message says, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Said {
    tokens: [u64; 5],
    cost: Option<f64>,
}

impl Said {
    fn of(usage: &Usage) -> Self {
        let tokens = [
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            usage.reasoning_tokens,
        ];
        let is_amount = |cost: &f64| cost.is_finite() && *cost >= 0.0;
        Self {
            tokens: tokens.map(Option::unwrap_or_default),
            cost: usage.cost.as_ref().and_then(|cost| cost.as_f64()).filter(is_amount),
        }
    }

    /// Takes the larger of each number, and returns how much was added.
    fn grow(&mut self, other: Self) -> Self {
        let mut added = Self::default();
        for ((own, other), added) in
            self.tokens.iter_mut().zip(other.tokens).zip(&mut added.tokens)
        {
            *added = other.saturating_sub(*own);
            *own += *added;
        }
        if let Some(cost) = other.cost
            && self.cost.is_none_or(|own| cost > own)
        {
            added.cost = Some(cost - self.cost.unwrap_or_default());
            self.cost = Some(cost);
        }
        added
    }
}

impl Sum {
    fn add(&mut self, said: Said) {
        let [input, output, cache_read, cache_write, reasoning] = said.tokens;
        for (sum, tokens) in [
            (&mut self.input_tokens, input),
            (&mut self.output_tokens, output),
            (&mut self.cache_read_tokens, cache_read),
            (&mut self.cache_write_tokens, cache_write),
            (&mut self.reasoning_tokens, reasoning),
        ] {
            *sum = sum.saturating_add(tokens);
        }
        self.cost += said.cost.unwrap_or_default();
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
    let mut counting = Counting::new(args);
    let query = RunQuery::new().oldest_first();
    let query = match &args.agent {
        Some(agent) => query.agent(agent),
        None => query,
    };
    for run in log.runs(&query) {
        counting.run(&log, &run?)?;
    }
    let exit = counting.exit;
    let (rows, total) = counting.rows();
    print(args, &rows, &total, out)?;
    out.flush()?;
    if rows.len() > args.wanted() {
        more(args.by.plural(), None, "--limit N, or --all");
    }
    Ok(exit)
}

impl UsageArgs {
    fn wanted(&self) -> usize {
        if self.all { usize::MAX } else { self.limit }
    }

    fn wants(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
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

/// Where the messages of records are added up.
struct Counting<'a> {
    args: &'a UsageArgs,
    groups: HashMap<Group, Sum>,
    total: Sum,
    /// The messages that have an id, by a digest of their agent and it: what they said, and where
    /// they were counted.
    messages: HashMap<[u8; 16], (Said, Option<Group>)>,
    words: [Finder<'static>; 3],
    exit: Exit,
}

/// What of the records of a run in front is needed to read the next one.
#[derive(Default)]
struct Before {
    model: Option<String>,
    /// The sum that Codex gave last: it repeats what it said of a turn as long as that is the last.
    total: Option<Value>,
}

impl<'a> Counting<'a> {
    fn new(args: &'a UsageArgs) -> Self {
        Self {
            args,
            groups: HashMap::new(),
            total: Sum::default(),
            messages: HashMap::new(),
            words: ["model", "okens", "usage"].map(|word| Finder::new(word.as_bytes())),
            exit: Exit::Fine,
        }
    }

    fn run(&mut self, log: &Reader, run: &RunSummary) -> Result<(), Failure> {
        let named = RunRef::from(run);
        let metadata = match log.metadata(named) {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.is_corruption() => {
                self.damage(&error);
                None
            }
            metadata => metadata?,
        };
        let format = format_of(metadata.as_ref());
        let mut before = Before::default();
        let mut trace = match log.trace(named) {
            // It was deleted since it was listed.
            Err(error) if error.is_not_found() => return Ok(()),
            trace => trace?,
        };
        while let Some(record) = trace.next_view() {
            match record {
                Ok(record) => self.record(run, format, &record, &mut before),
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => self.damage(&error),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn damage(&mut self, error: &Error) {
        damaged(&error.to_string());
        self.exit = Exit::Damage;
    }

    fn record(
        &mut self,
        run: &RunSummary,
        format: Format,
        record: &RecordView<'_>,
        before: &mut Before,
    ) {
        // Most records say nothing of this, and reading JSON takes the longest.
        if !self.words.iter().any(|word| word.find(record.payload()).is_some()) {
            return;
        }
        let value = value_of(record.kind(), record.content_type(), record.payload());
        let Some(value) = value else { return };
        let facts = facts_in(format, &value);
        if facts.model.is_some() {
            before.model.clone_from(&facts.model);
        }
        let Some(usage) = &facts.usage else { return };
        let total = at(&value, "payload.info.total_token_usage");
        if total.is_some() && total == before.total.as_ref() {
            return;
        }
        before.total = total.cloned();
        let time = facts.time.unwrap_or_else(|| record.timestamp());
        let model = facts.model.clone().or_else(|| before.model.clone());
        self.message(run, &facts, Said::of(usage), time, model);
    }

    fn message(
        &mut self,
        run: &RunSummary,
        facts: &Facts,
        mut said: Said,
        time: Timestamp,
        model: Option<String>,
    ) {
        let mut group = self.args.wants(time).then(|| match self.args.by {
            By::Agent => Group::Agent { agent: run.agent.clone() },
            By::Run => Group::Run { agent: run.agent.clone(), run: run.run.clone() },
            By::Model => Group::Model { model },
            By::Day => Group::Day { day: day(time) },
        });
        let (mut is_new, mut is_first_cost) = (true, said.cost.is_some());
        if let Some(id) = &facts.message_id {
            let known = self.messages.entry(digest(&run.agent, id));
            let (known, counted) =
                known.and_modify(|_| is_new = false).or_insert((Said::default(), group.clone()));
            is_first_cost &= known.cost.is_none();
            said = known.grow(said);
            group.clone_from(counted);
        }
        let Some(group) = group else { return };
        for sum in [&mut self.total, self.groups.entry(group).or_default()] {
            sum.messages += u64::from(is_new);
            sum.messages_with_cost += u64::from(is_first_cost);
            sum.add(said);
        }
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

/// The format of the records of a run; those of others are read by their shapes.
fn format_of(metadata: Option<&RunMetadata>) -> Format {
    let origin = Origin::of(metadata);
    origin.and_then(|origin| origin.format).unwrap_or(Format::JsonLines)
}

/// The day of a time, in UTC.
fn day(time: Timestamp) -> String {
    let mut text = time.to_string();
    text.truncate(text.find('T').unwrap_or(text.len()));
    text
}

/// What stands for a message of an agent.
fn digest(agent: &AgentId, id: &str) -> [u8; 16] {
    let mut digest = Sha256::new();
    digest.update((agent.as_str().len() as u64).to_le_bytes());
    digest.update(agent.as_str());
    digest.update(id);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest.finalize()).for_each(|(byte, digit)| *byte = digit);
    bytes
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

    fn said(input: u64, output: u64, cost: Option<f64>) -> Said {
        Said { tokens: [input, output, 0, 0, 0], cost }
    }

    #[test]
    fn a_message_that_grows_counts_as_its_largest() {
        let mut known = Said::default();
        assert_eq!(known.grow(said(3, 1, None)), said(3, 1, None));
        assert_eq!(known.grow(said(3, 9, Some(0.5))), said(0, 8, Some(0.5)));
        assert_eq!(known.grow(said(1, 2, Some(0.25))), said(0, 0, None));
        assert_eq!(known, said(3, 9, Some(0.5)));
    }

    #[test]
    fn a_day_is_that_of_utc() {
        assert_eq!(day(Timestamp(0)), "1970-01-01");
        assert_eq!(day(Timestamp(86_400_000_000_000 - 1)), "1970-01-01");
        assert_eq!(day(Timestamp(86_400_000_000_000)), "1970-01-02");
    }
}
