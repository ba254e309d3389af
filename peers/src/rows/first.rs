//! Lookups of new ids, in a store that was just opened and in one that has been open for a while;
//! and its anonymous memory at that time. A separate process does each round, so that no answer and
//! no memory remains from another one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use runlog_sim::SplitMix64;

use super::read::{RECORD_LEN, RECORDS};
use super::stores::{Order, Shared};
use super::{Context, Row};
use crate::engine::{Engine, Kind, Level};
use crate::measure::{micros, quantile};
use crate::workload::runs::Runs;

/// The argument that makes this program query a store and print the times.
pub(crate) const ASK: &str = "ask-for-the-first-time";

/// Until the work of an engine after its opening is done.
const OPENED: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Trace,
    AgentOf,
}

/// Looking runs of a store up, each for the first time.
pub(super) struct First {
    pub(super) question: Question,
    pub(super) at_once: usize,
    pub(super) stores: Shared,
}

/// The input of the querying process: the kind of query, how many runs there are, and how many are
/// looked up directly after the opening and later.
struct Asked {
    trace: bool,
    count: u64,
    lookups: usize,
}

impl Asked {
    fn words(&self) -> [String; 3] {
        let Self { trace, count, lookups } = self;
        [u64::from(*trace), *count, *lookups as u64].map(|number| number.to_string())
    }

    fn parse(words: &[String]) -> Option<Self> {
        let numbers: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
        let &[trace, count, lookups] = numbers?.as_slice() else { return None };
        Some(Self { trace: trace == 1, count, lookups: usize::try_from(lookups).ok()? })
    }
}

/// Queries the store in this folder, and prints the columns.
pub(crate) fn ask(kind: Kind, folder: &Path, words: &[String]) {
    let asked = Asked::parse(words).expect("they are the words of a row");
    // Each id once: caches of earlier ids are of no use to it.
    let mut numbers: Vec<u64> = (0..asked.count).collect();
    let mut random = SplitMix64::new(99);
    let some = (2 * asked.lookups).min(numbers.len());
    for at in 0..some {
        let other = at + random.index(numbers.len() - at);
        numbers.swap(at, other);
    }
    let ids: Vec<String> = numbers[..some].iter().map(|&number| Runs::id(number)).collect();
    let (first, later) = ids.split_at(some / 2);
    let engine = kind.open(folder, Level::Process);
    let mut told = told(&*engine, &asked, first);
    std::thread::sleep(OPENED);
    told.extend(self::told(&*engine, &asked, later));
    told.push(anonymous_memory());
    engine.close();
    let told: Vec<String> = told.iter().map(|column| format!("{column:?}")).collect();
    println!("{}", told.join(" "));
}

/// The mean and the 99th percentile of lookups, in microseconds.
fn told(engine: &dyn Engine, asked: &Asked, ids: &[String]) -> Vec<f64> {
    let mut nanos = Vec::with_capacity(ids.len());
    let mut buffer = Vec::with_capacity(RECORDS * RECORD_LEN);
    for id in ids {
        buffer.clear();
        let began = Instant::now();
        if asked.trace {
            engine.trace(id, &mut |_, _, payload| buffer.extend_from_slice(payload));
        } else {
            engine.agent_of(id, &mut |agent| buffer.extend_from_slice(agent.as_bytes()));
        }
        nanos.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
        assert!(!asked.trace || buffer.len() == RECORDS * RECORD_LEN, "{id} is whole");
        assert!(!buffer.is_empty(), "{id} is there");
    }
    let all: Duration = nanos.iter().map(|&one| Duration::from_nanos(one.into())).sum();
    nanos.sort_unstable();
    let most = quantile(&nanos, 9_900).unwrap_or(f64::NAN);
    vec![micros(all) / f64::from(u32::try_from(ids.len()).unwrap()), most]
}

/// The anonymous memory of this process in megabytes, if the system reports it.
fn anonymous_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u32>().ok());
    kib.map_or(f64::NAN, |kib| f64::from(kib) * 1.024e-3)
}

impl Row for First {
    fn name(&self) -> String {
        let count = self.stores.borrow().runs().count;
        match self.question {
            Question::Trace => format!("first trace of each run among {count}"),
            Question::AgentOf => format!("first agent of each run among {count}"),
        }
    }

    fn what(&self) -> String {
        let what = match self.question {
            Question::Trace => "The records of a run by its id alone",
            Question::AgentOf => "The agent of a run by its id",
        };
        format!(
            "{what}, for ids of which none was asked for before: in a process that has just opened \
             the store, and {} ms later for as many others. Runs at random, in the page cache. The \
             last column is what the process has in memory then, without files that it maps.",
            OPENED.as_millis()
        )
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["later mean us", "later p99 us", "after opening mean us", "p99 us", "memory MB"]
    }

    fn lines(&self) -> Vec<(usize, String)> {
        let name = self.name();
        vec![
            (0, format!("{name}: us")),
            (2, "the same, just opened: us".to_owned()),
            (4, "memory then: MB".to_owned()),
        ]
    }

    fn takes(&self, kind: Kind) -> bool {
        let many = self.stores.borrow().runs().count > 100_000;
        kind.answers() && !(many && kind.has_file_for_each_run())
    }

    fn prepare(&mut self, context: &Context, kinds: &[Kind]) {
        self.stores.borrow_mut().make(context, kinds, Order::Interleaved(self.at_once));
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let count = self.stores.borrow().runs().count;
        let trace = self.question == Question::Trace;
        let asked = Asked { trace, count, lookups: context.scale.first };
        let words = asked.words();
        let told = self.stores.borrow_mut().while_closed(kind, |folder| {
            let mut asking = Command::new(std::env::current_exe().unwrap());
            asking.arg(ASK).arg(kind.name()).arg(folder).args(words);
            let output = asking.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        });
        let columns = told.split_whitespace().map(|word| word.parse::<f64>().unwrap());
        let columns: Vec<_> =
            columns.map(|told| Some(told).filter(|told| !told.is_nan())).collect();
        let &[first, of_first, later, of_later, memory] = columns.as_slice() else {
            panic!("{told} has five columns")
        };
        vec![later, of_later, first, of_first, memory]
    }

    fn finish(&mut self, context: &Context) {
        if std::rc::Rc::strong_count(&self.stores) == 1 {
            self.stores.borrow_mut().finish(context);
        }
    }
}
