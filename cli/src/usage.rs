//! `runlog usage`: what the models of runs read and wrote, and what that cost, as the data say it.
//!
//! Each message counts once, as [`count`](runlog_formats::count) says.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use runlog::{Reader, RecordView, RunRef, RunSummary, Timestamp};
use runlog_formats::Format;
use runlog_formats::count::{Amount, Counted, Counting, Said, Sum, Words};
use runlog_formats::origin::Origin;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::in_order::in_order;
use crate::limit::Limit;
use crate::message::{damaged, more};
use crate::output::{Output, count};
use crate::records;
use crate::screen::Style;
use crate::store;
use crate::table::{self, Column};

/// How many runs a thread takes at once: to hand over what one says takes as long as to read a
/// short one.
const TOGETHER: usize = 16;

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

/// What a row is about: the fields of [`By::fields`].
type Group = Vec<Option<String>>;

/// What rows are sorted by.
fn tokens(sum: &Sum) -> u64 {
    let Amount { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, .. } =
        sum.amount;
    [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens]
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// The runs that add nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Silent {
    /// They say nothing of usage that is understood.
    runs_without_usage: u64,
    /// They are byte for byte what another run is.
    duplicate_runs: u64,
}

pub(crate) fn run(args: &UsageArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    args.filters.check(&log)?;
    let mut sums = Adding {
        args,
        counting: Counting::default(),
        groups: HashMap::new(),
        total: Sum::default(),
        silent: Silent::default(),
        exit: Exit::Fine,
    };
    let mut runs = log.runs(&args.filters.query().oldest_first());
    in_order(
        || {
            let some: Vec<_> = runs.by_ref().take(TOGETHER).collect::<Result<_, _>>()?;
            Ok((!some.is_empty()).then_some(some))
        },
        // Each thread has a handle and words of its own, so that none waits for another.
        || (log.clone(), Words::default()),
        |(log, words), runs, give| {
            let read = |run| (Says::read(log, words, &run), run);
            give(runs.into_iter().map(read).collect::<Vec<_>>());
        },
        |read| {
            for (says, run) in read.into_iter().flatten() {
                sums.run(&run, says?);
            }
            Ok(true)
        },
    )?;
    print(args, &sums, out)?;
    Ok(sums.exit)
}

impl By {
    /// What tells rows apart; the last of them is what they are called by.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Agent => &["agent"],
            Self::Run => &["agent", "run"],
            Self::Model => &["model"],
            Self::Day => &["day"],
        }
    }

    fn name(self) -> &'static str {
        self.fields().last().copied().unwrap_or_default()
    }

    /// The row of what a record of a run adds.
    fn group(self, run: &RunSummary, counted: &Counted) -> Group {
        match self {
            Self::Agent => vec![Some(run.agent.to_string())],
            Self::Run => vec![Some(run.agent.to_string()), Some(run.run.to_string())],
            Self::Model => vec![counted.model.clone()],
            Self::Day => vec![Some(day(counted.time))],
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
        let Self { said, damage, .. } = &mut says;
        let read = |record: &RecordView<'_>| {
            words.read(format, record, said);
            Ok::<_, Failure>(())
        };
        records::each(log, run, read, |error| damage.push(error.to_string()))?;
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

impl Adding<'_> {
    fn run(&mut self, run: &RunSummary, says: Says) {
        let Self { args, counting, groups, total, silent, exit } = self;
        for error in says.damage {
            damaged(&error);
            *exit = Exit::Damage;
        }
        if !says.said.iter().any(Said::is_of_use) {
            silent.runs_without_usage += 1;
        } else if counting.is_copy(run, says.origin.as_ref()) {
            silent.duplicate_runs += 1;
        } else {
            counting.run(&says.said, &mut |counted| {
                if args.filters.takes_time(counted.time) {
                    *total = total.plus(counted.sum);
                    let sum = groups.entry(args.by.group(run, &counted)).or_default();
                    *sum = sum.plus(counted.sum);
                }
            });
        }
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

fn print(args: &UsageArgs, sums: &Adding<'_>, out: &mut Output) -> Result<(), Failure> {
    let groups = sums.rows();
    let wanted = args.limit.wanted();
    let mut rows: Vec<Value> =
        groups.iter().take(wanted).map(|(group, sum)| row(args.by, group, sum)).collect();
    let mut total = row(args.by, &Group::new(), &sums.total);
    total["what"] = json!("total");
    let Silent { runs_without_usage: silent, duplicate_runs: copies } = sums.silent;
    (total["runs_without_usage"], total["duplicate_runs"]) = (json!(silent), json!(copies));
    rows.push(total);
    let columns = [
        Column::id(args.by.name()).made(name).styled(Style::Strong),
        Column::right("messages").optional(3),
        Column::right("input_tokens").named("INPUT"),
        Column::right("output_tokens").named("OUTPUT"),
        Column::right("cache_read_tokens").named("CACHE READ").optional(2),
        Column::right("cache_write_tokens").named("CACHE WRITE").optional(1),
        Column::right("reasoning_tokens").named("REASONING").optional(0),
        Column::right("cost").made(cost),
    ];
    table::list(out, &columns, &rows)?;
    let told = [
        (silent, "says", "say", "nothing of usage that is understood"),
        (copies, "is a copy", "are copies", "of another run, which counts once"),
    ];
    for (runs, one, many, what) in told.into_iter().filter(|(runs, ..)| *runs > 0) {
        if !out.is_json() {
            let verb = if runs == 1 { one } else { many };
            out.line(format!("{} {verb} {what}", count(runs, "run")))?;
        }
    }
    out.flush()?;
    if groups.len() > wanted {
        more(&format!("{}s", args.by.name()), None, "-n N, or --all");
    }
    Ok(())
}

fn row(by: By, group: &Group, sum: &Sum) -> Value {
    let (mut row, amount) = (json!({"what": by.name()}), sum.amount);
    for (name, text) in by.fields().iter().zip(group) {
        row[*name] = json!(text);
    }
    for (name, number) in [
        ("messages", sum.messages),
        ("input_tokens", amount.input_tokens),
        ("output_tokens", amount.output_tokens),
        ("cache_read_tokens", amount.cache_read_tokens),
        ("cache_write_tokens", amount.cache_write_tokens),
        ("reasoning_tokens", amount.reasoning_tokens),
        ("messages_with_cost", sum.messages_with_cost),
    ] {
        row[name] = json!(number);
    }
    // In US dollars, of the messages that say what they cost; none where no message does.
    row["cost"] = json!(amount.cost);
    row
}

fn name(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or("-");
    match text("what") {
        "total" => "(all)".to_owned(),
        "run" => format!("{}/{}", text("agent"), text("run")),
        what => text(what).to_owned(),
    }
}

/// Dollars to four digits; with a sign where some messages do not say what they cost.
fn cost(row: &Value) -> String {
    let all_say = row["messages_with_cost"] == row["messages"];
    let sign = if all_say { "" } else { "+" };
    row["cost"].as_f64().map_or_else(String::new, |cost| format!("${cost:.4}{sign}"))
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
