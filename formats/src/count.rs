//! What runs used, each message counted once.
//!
//! What repeats a message, and how that is known:
//!
//! - Lines of one answer, and an answer that is written again: by the id of the message. The
//!   largest numbers count.
//! - A session that was resumed or forked: by the id, with the time where the id is of the session
//!   only. The first run counts.
//! - A copy of a file: by its digest, and of a thread of Codex by the bytes of its turns.
//! - A thread of Codex that begins with the turns of its parent: by their sums, in their order,
//!   from before the fork.
//! - A sum of the whole run, however often: for what the messages do not say.
//!
//! Runs are therefore counted in the order in which they began.

use std::collections::{BTreeMap, HashMap, HashSet};

use memchr::memmem::Finder;
use runlog::{RecordView, RunSummary, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::facts::{Facts, Thread, Usage, items};
use crate::origin::Origin;
use crate::{Format, MEMBER, PART, documents, facts_in, value_of};

/// How long a fork takes at most to copy the turns of its parent.
const COPYING: i64 = 30_000_000_000;

/// Tokens and cost as numbers: 0, or no cost, where the data has none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    /// What the model read.
    pub input_tokens: u64,
    /// What the model wrote.
    pub output_tokens: u64,
    /// What was read from the cache of the provider.
    pub cache_read_tokens: u64,
    /// What was written into the cache of the provider.
    pub cache_write_tokens: u64,
    /// What the model wrote to itself.
    pub reasoning_tokens: u64,
    /// In US dollars.
    pub cost: Option<f64>,
}

impl Amount {
    fn of(usage: &Usage) -> Self {
        let is_amount = |cost: &f64| cost.is_finite() && *cost >= 0.0;
        Self {
            input_tokens: usage.input_tokens.unwrap_or_default(),
            output_tokens: usage.output_tokens.unwrap_or_default(),
            cache_read_tokens: usage.cache_read_tokens.unwrap_or_default(),
            cache_write_tokens: usage.cache_write_tokens.unwrap_or_default(),
            reasoning_tokens: usage.reasoning_tokens.unwrap_or_default(),
            cost: usage.cost.as_ref().and_then(serde_json::Number::as_f64).filter(is_amount),
        }
    }

    /// Combines each number with that of another amount.
    fn with(self, other: Self, of: fn(u64, u64) -> u64, cost: Option<f64>) -> Self {
        Self {
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cache_read_tokens: of(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: of(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: of(self.reasoning_tokens, other.reasoning_tokens),
            cost,
        }
    }

    /// Adds each number. A cost stays unknown where both are.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let costs = self.cost.into_iter().chain(other.cost);
        self.with(other, u64::saturating_add, costs.reduce(|sum, cost| sum + cost))
    }

    /// What of each number is beyond that of the other; a cost only where there is more of it, or
    /// where the other is unknown.
    fn beyond(self, other: Self) -> Self {
        let is_more = |cost: &f64| other.cost.is_none_or(|other| *cost > other);
        let cost = self.cost.filter(is_more).map(|cost| cost - other.cost.unwrap_or_default());
        self.with(other, u64::saturating_sub, cost)
    }

    /// The smaller one of each two numbers.
    fn at_most(self, other: Self) -> Self {
        let cost = self.cost.zip(other.cost).map(|(cost, other)| cost.min(other));
        self.with(other, u64::min, cost)
    }
}

/// What a record adds.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// The record that says it.
    pub seq: u64,
    /// When the message happened: what the data says, else the time of the record.
    pub time: Timestamp,
    /// The model: that of the message, else the last one that a record in front names.
    pub model: Option<String>,
    /// What it adds.
    pub sum: Sum,
}

/// A sum over messages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sum {
    /// How many messages there are.
    pub messages: u64,
    /// How many of them have a cost.
    pub messages_with_cost: u64,
    /// What they used.
    pub amount: Amount,
}

impl Sum {
    fn of(amount: Amount) -> Self {
        Self { messages: 1, messages_with_cost: u64::from(amount.cost.is_some()), amount }
    }

    /// Adds each number.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            messages_with_cost: self.messages_with_cost.saturating_add(other.messages_with_cost),
            amount: self.amount.plus(other.amount),
        }
    }

    /// Takes the larger of each number; answers how much was added.
    fn grow(&mut self, other: Self) -> Self {
        let added = Self {
            messages: other.messages.saturating_sub(self.messages),
            messages_with_cost: other.messages_with_cost.saturating_sub(self.messages_with_cost),
            amount: other.amount.beyond(self.amount),
        };
        *self = self.plus(added);
        added
    }
}

/// What tells a message from others: a digest, and which it is of those with the same one.
type Key = ([u8; 16], u64);

/// What a record says of what it used, as far as it can be read without other records.
#[derive(Debug)]
pub struct Said {
    facts: Facts,
    digest: Option<[u8; 16]>,
    /// The digest is of a turn of Codex, and not of an id.
    is_of_bytes: bool,
    seq: u64,
    stored_at: Timestamp,
}

impl Said {
    /// Whether it says that anything was used.
    pub fn is_of_use(&self) -> bool {
        self.facts.usage.is_some() || !self.facts.totals.is_empty()
    }

    /// The record that says it.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The id that the provider gave the message.
    pub fn message_id(&self) -> Option<&str> {
        self.facts.message_id.as_deref()
    }

    fn new(facts: Facts, record: &RecordView<'_>) -> Option<Self> {
        let is_silent = facts.usage.is_none()
            && facts.model.is_none()
            && facts.thread.is_none()
            && facts.totals.is_empty();
        if is_silent {
            return None;
        }
        let id = facts.message_id.as_ref().or(facts.key.as_ref());
        let is_of_bytes = id.is_none();
        let is_turn = facts.running.is_some() && facts.time.is_some();
        let bytes = id.map(String::as_bytes).or(is_turn.then_some(record.payload()));
        let digest = bytes.map(|bytes| digest(&[bytes]));
        let (seq, stored_at) = (record.seq().0, record.timestamp());
        Some(Self { facts, digest, is_of_bytes, seq, stored_at })
    }

    /// What was read and written.
    fn size(&self) -> Option<(Option<u64>, Option<u64>)> {
        self.facts.usage.as_ref().map(|usage| (usage.input_tokens, usage.output_tokens))
    }

    fn time(&self) -> Timestamp {
        self.facts.time.unwrap_or(self.stored_at)
    }
}

/// A record that states usage has one of these words.
#[derive(Debug, Clone)]
pub struct Words([Finder<'static>; 4]);

impl Default for Words {
    fn default() -> Self {
        let words = ["model", "okens", "usage", "session_meta"];
        Self(words.map(|word| Finder::new(word.as_bytes())))
    }
}

impl Words {
    /// Adds what a record says of what it used to `said`. Most records say nothing of it, which is
    /// seen without reading their JSON.
    pub fn read(&self, format: Format, record: &RecordView<'_>, said: &mut Vec<Said>) {
        let payload = record.payload();
        if matches!(record.kind(), Some(PART | MEMBER)) {
            let part = std::str::from_utf8(payload).unwrap_or_default();
            let totals = documents::totals(format, part);
            said.extend(Said::new(Facts { totals, ..Facts::default() }, record));
            return;
        }
        if !self.0.iter().any(|word| word.find(payload).is_some()) {
            return;
        }
        let Some(value) = value_of(record.kind(), record.content_type(), payload) else { return };
        let rewritten = items(&value, "$set.messages").map(|message| facts_in(format, message));
        said.extend(rewritten.filter_map(|facts| Said::new(facts, record)));
        said.extend(Said::new(facts_in(format, &value), record));
    }
}

/// A turn of a thread of Codex.
#[derive(Debug, Clone, Copy)]
struct Turn {
    running: Amount,
    last: Amount,
    at: Timestamp,
}

/// The messages that were counted. Takes about 100 bytes for each message that can be told from
/// others, and as much for each turn of Codex.
#[derive(Debug, Default)]
pub struct Counting {
    messages: HashMap<Key, Sum>,
    threads: HashMap<String, Vec<Turn>>,
    /// The digests of the files that were counted.
    files: HashSet<String>,
}

/// What is known of a run while it is counted.
#[derive(Debug, Default)]
struct Run {
    thread: Option<Thread>,
    model: Option<String>,
    messages: HashMap<Key, Sum>,
    /// How many records have the same bytes.
    same: HashMap<[u8; 16], u64>,
    /// What the messages say, whichever run they count for.
    sum: Sum,
    by_model: HashMap<Option<String>, Amount>,
    /// What the run states of its parts and their models, the last of each.
    stated: BTreeMap<(Option<String>, Option<String>), Sum>,
    /// What was counted, once the run gave a sum of its own.
    counted: Option<Sum>,
    /// The last sum of a thread of Codex.
    running: Option<Usage>,
    /// The last record of a call of Codex, until its turn comes.
    recorded: Option<(Option<u64>, Option<u64>)>,
    /// The record of the last turn comes next.
    is_awaited: bool,
}

impl Counting {
    /// Whether a run is byte for byte the file of one in front, and is therefore not counted.
    pub fn is_copy(&mut self, run: &RunSummary, origin: Option<&Origin>) -> bool {
        let is_file = |origin: &&Origin| origin.records == Some(run.records);
        let digest = origin.filter(is_file).and_then(|origin| origin.digest.clone());
        digest.is_some_and(|digest| !self.files.insert(digest))
    }

    /// Counts what the records of a run say: `each` gets what they add.
    pub fn run(&mut self, all: &[Said], each: &mut dyn FnMut(Counted)) {
        let thread = all.iter().find_map(|said| said.facts.thread.clone());
        let mut run = Run { thread, ..Run::default() };
        let mut copied = self.thread(all);
        for (number, said) in (1..).zip(all) {
            let facts = &said.facts;
            if facts.model.is_some() {
                run.model.clone_from(&facts.model);
            }
            if let Some(usage) = facts.usage.as_ref().filter(|_| facts.totals.is_empty()) {
                let is_repeated = facts.running.is_some() && facts.running == run.running;
                let is_copied = facts.running.is_some() && copied > 0 && !is_repeated;
                copied -= usize::from(is_copied);
                run.running.clone_from(&facts.running);
                let mut next = all.iter().skip(number).filter(|next| next.facts.usage.is_some());
                if !is_repeated && !is_copied && !run.is_recorded(said, next.next()) {
                    self.message(&mut run, said, Amount::of(usage), each);
                }
            }
            run.totals(said, each);
        }
    }

    /// Counts a message, and what other models used for it.
    fn message(
        &mut self,
        run: &mut Run,
        said: &Said,
        amount: Amount,
        each: &mut dyn FnMut(Counted),
    ) {
        let (facts, seq, time) = (&said.facts, said.seq, said.time());
        let key = run.key(said, &self.messages);
        let own = Some((run.model.clone(), amount));
        let besides = facts.besides.iter();
        let besides = besides.map(|total| (total.model.clone(), Amount::of(&total.usage)));
        for (number, (model, amount)) in own.into_iter().chain(besides).enumerate() {
            let key = key.map(|(digest, same)| (digest, same + ((number as u64) << 48)));
            let said = grow(&mut run.messages, key, amount);
            let new = grow(&mut self.messages, key, amount);
            run.sum = run.sum.plus(said);
            let of_model = run.by_model.entry(model.clone()).or_default();
            *of_model = of_model.plus(said.amount);
            let sum = match &mut run.counted {
                Some(counted) => counted.grow(run.sum),
                None => new,
            };
            tell(Counted { seq, time, model, sum }, each);
        }
    }

    /// Keeps the turns of a thread of Codex; answers how many of the first ones are copies.
    fn thread(&mut self, said: &[Said]) -> usize {
        let Some(begins) = said.iter().find(|said| said.facts.thread.is_some()) else { return 0 };
        let Some(Thread { id, parent }) = &begins.facts.thread else { return 0 };
        let mut turns: Vec<Turn> = Vec::new();
        for said in said {
            if let (Some(last), Some(running)) = (&said.facts.usage, &said.facts.running) {
                let (last, running) = (Amount::of(last), Amount::of(running));
                if turns.last().is_none_or(|turn| turn.running != running) {
                    turns.push(Turn { running, last, at: said.time() });
                }
            }
        }
        let started = begins.time();
        let copied = parent.as_ref().map_or(0, |parent| match self.threads.get(parent) {
            Some(known) => copied(known, &turns, started),
            None => {
                // The parent is not there. What the fork has of it counts for the fork, and not
                // again for another one.
                let until = Timestamp(started.0.saturating_add(COPYING / 10));
                let of_parent = turns.iter().filter(|turn| turn.at <= until);
                let of_parent = of_parent.map(|turn| Turn { at: Timestamp(i64::MIN), ..*turn });
                self.threads.insert(parent.clone(), of_parent.collect());
                0
            }
        });
        let known = self.threads.entry(id.clone()).or_default();
        if known.len() < turns.len() {
            *known = turns;
        }
        copied
    }
}

/// How many of the first turns of a fork are copies of those of its parent: either these have their
/// times, or they are from before the fork, and the copies from its beginning.
fn copied(parent: &[Turn], fork: &[Turn], started: Timestamp) -> usize {
    let until = Timestamp(started.0.saturating_add(COPYING));
    let is_copy = |turn: &Turn, copy: &Turn| {
        let is_same = turn.running == copy.running && turn.last == copy.last;
        is_same && (turn.at == copy.at || (turn.at <= started && copy.at <= until))
    };
    let Some(first) = fork.first() else { return 0 };
    let Some(start) = parent.iter().position(|turn| is_copy(turn, first)) else { return 0 };
    let turns = parent.get(start..).unwrap_or_default();
    let count = turns.iter().zip(fork).take_while(|(turn, copy)| is_copy(turn, copy)).count();
    // A single turn may be one of the fork itself that used as much.
    let is_whole = turns.get(count).is_none_or(|next| next.at > started);
    let has_time = turns.first().is_some_and(|turn| turn.at == first.at);
    if count > 1 || is_whole || has_time { count } else { 0 }
}

impl Run {
    /// What tells a message from others, if anything does. A call of Codex is of its thread, unless
    /// the thread that it was forked from has it.
    fn key(&mut self, said: &Said, known: &HashMap<Key, Sum>) -> Option<Key> {
        let id = said.digest?;
        let Some(Thread { id: thread, parent }) = &self.thread else {
            return Some((id, 0)).filter(|_| !said.is_of_bytes);
        };
        let of_parent = parent.as_ref().map(|parent| (digest(&[&id, parent.as_bytes()]), 0));
        if let Some(copy) = of_parent.filter(|key| !said.is_of_bytes && known.contains_key(key)) {
            return Some(copy);
        }
        let id = digest(&[&id, thread.as_bytes()]);
        let same = self.same.entry(id).or_default();
        *same += u64::from(said.is_of_bytes);
        Some((id, *same))
    }

    /// Whether the usage of a turn of Codex is also in a record of the call, in front or next. That
    /// has an id, and counts instead.
    fn is_recorded(&mut self, said: &Said, next: Option<&Said>) -> bool {
        let (size, is_turn) = (said.size(), said.facts.running.is_some());
        if !is_turn {
            let is_new = !std::mem::take(&mut self.is_awaited) && said.facts.message_id.is_some();
            self.recorded = size.filter(|_| is_new);
            return false;
        }
        let is_behind = self.recorded.take().is_some_and(|recorded| Some(recorded) == size);
        let is_record = |next: &Said| {
            next.facts.running.is_none() && next.facts.message_id.is_some() && next.size() == size
        };
        self.is_awaited = !is_behind && next.is_some_and(is_record);
        is_behind || self.is_awaited
    }

    /// Counts what sums of the run say that its messages do not.
    fn totals(&mut self, said: &Said, each: &mut dyn FnMut(Counted)) {
        if said.facts.totals.is_empty() {
            return;
        }
        let (seq, time) = (said.seq, said.time());
        for total in &said.facts.totals {
            let (messages, amount) = (total.calls, Amount::of(&total.usage));
            let model = total.model.clone().or_else(|| self.model.clone());
            let sum = Sum { messages, messages_with_cost: 0, amount };
            self.stated.insert((total.of.clone(), model), sum);
        }
        let (mut sum, mut by_model) = (Sum::default(), BTreeMap::new());
        for ((_, model), stated) in &self.stated {
            sum = sum.plus(*stated);
            let of_model: &mut Amount = by_model.entry(model.clone()).or_default();
            *of_model = of_model.plus(stated.amount);
        }
        sum.messages = sum.messages.max(self.sum.messages).max(1);
        sum.messages_with_cost = if sum.amount.cost.is_some() { sum.messages } else { 0 };
        let mut left = self.counted.get_or_insert(self.sum).grow(sum);
        let models = by_model.len();
        for ((model, amount), number) in by_model.into_iter().zip(1..) {
            let known = self.by_model.entry(model.clone()).or_default();
            // No more than is left, in case that messages name their model in another way.
            let part = amount.beyond(*known).at_most(left.amount);
            let part = if number == models { left.amount } else { part };
            *known = known.plus(part);
            let rest = Sum { amount: left.amount.beyond(part), ..Sum::default() };
            let sum = Sum { amount: part, ..std::mem::replace(&mut left, rest) };
            tell(Counted { seq, time, model, sum }, each);
        }
    }
}

/// Takes the larger of each number of a message; answers how much was added.
fn grow(messages: &mut HashMap<Key, Sum>, key: Option<Key>, amount: Amount) -> Sum {
    let sum = Sum::of(amount);
    key.map_or(sum, |key| messages.entry(key).or_default().grow(sum))
}

/// Passes on what a record adds, unless that is nothing.
fn tell(counted: Counted, each: &mut dyn FnMut(Counted)) {
    if counted.sum != Sum::default() {
        each(counted);
    }
}

/// What stands for some bytes.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let digest = parts.iter().fold(Sha256::new(), Sha256::chain_update);
    digest.finalize().first_chunk().copied().unwrap_or_default()
}
