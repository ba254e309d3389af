//! What messages use, each counted once.
//!
//! Several records may be one message, and a session that was resumed repeats those of the session
//! before. So records of an agent with the same id of a message count together, and each record
//! counts for what it adds: nothing, if it says what a record in front said; where numbers grow, as
//! while a message is streamed, what is new. Runs are therefore counted in the order in which they
//! began.
//!
//! Some documents also say what their run used as a whole. That counts for what the messages of the
//! run do not say, so that nothing of it counts twice, whichever of the two comes first.

use std::collections::HashMap;

use memchr::memmem::Finder;
use runlog::{AgentId, RecordView, Timestamp};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::facts::{Facts, Usage, at};
use crate::{Format, PART, documents, facts_in, value_of};

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

    /// Adds each number.
    fn add(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.cache_read_tokens, other.cache_read_tokens),
            (&mut self.cache_write_tokens, other.cache_write_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
        if let Some(cost) = other.cost {
            self.cost = Some(self.cost.unwrap_or_default() + cost);
        }
    }

    /// Takes the larger of each number, and returns how much was added.
    fn grow(&mut self, other: Self) -> Self {
        let grown = |own: &mut u64, other: u64| {
            let added = other.saturating_sub(*own);
            *own += added;
            added
        };
        let mut added = Self {
            input_tokens: grown(&mut self.input_tokens, other.input_tokens),
            output_tokens: grown(&mut self.output_tokens, other.output_tokens),
            cache_read_tokens: grown(&mut self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens: grown(&mut self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: grown(&mut self.reasoning_tokens, other.reasoning_tokens),
            cost: None,
        };
        if let Some(cost) = other.cost
            && self.cost.is_none_or(|own| cost > own)
        {
            added.cost = Some(cost - self.cost.unwrap_or_default());
            self.cost = Some(cost);
        }
        added
    }
}

/// What a record adds.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// When the message happened: what the data says, else the time of the record.
    pub time: Timestamp,
    /// The model: that of the message, else the last one that a record in front names.
    pub model: Option<String>,
    /// How many messages it adds: none, if a record in front is of the same one.
    pub messages: u64,
    /// How many of which no record in front has a cost, and this one does.
    pub messages_with_cost: u64,
    /// What it adds.
    pub added: Amount,
}

/// A sum over messages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sum {
    messages: u64,
    messages_with_cost: u64,
    amount: Amount,
}

impl Sum {
    fn add(&mut self, counted: &Counted) {
        self.messages = self.messages.saturating_add(counted.messages);
        self.messages_with_cost =
            self.messages_with_cost.saturating_add(counted.messages_with_cost);
        self.amount.add(counted.added);
    }

    /// Takes the larger of each number; how much was added takes the place of what `counted` adds.
    fn grow(&mut self, other: Self, counted: &mut Counted) {
        let grown = |own: &mut u64, other: u64| {
            let added = other.saturating_sub(*own);
            *own += added;
            added
        };
        counted.messages = grown(&mut self.messages, other.messages);
        counted.messages_with_cost = grown(&mut self.messages_with_cost, other.messages_with_cost);
        counted.added = self.amount.grow(other.amount);
    }
}

/// The messages that were counted. Takes about 100 bytes for each message that has an id.
#[derive(Debug, Default)]
pub struct Counting {
    messages: HashMap<[u8; 16], Amount>,
    words: Words,
}

/// The words of which a record that says what it used has one.
#[derive(Debug, Clone)]
pub struct Words([Finder<'static>; 3]);

/// What a record says of what it used, as far as it can be read without the records in front.
#[derive(Debug)]
pub struct Said(Saying);

#[derive(Debug)]
enum Saying {
    /// A part of a document says what the run used as a whole.
    Whole { whole: Box<documents::WholeUsage>, stored_at: Timestamp },
    /// A message, and the sum of the session that Codex gives.
    Message { facts: Box<Facts>, total: Option<Value>, stored_at: Timestamp },
}

/// What of the records of a run in front is needed to read the next one.
#[derive(Debug, Default)]
pub struct Before {
    model: Option<String>,
    /// The sum that Codex gave last: it repeats what it said of a turn while that is the last.
    total: Option<Value>,
    /// What the messages of the run add.
    messages: Sum,
    /// What was counted of the run, once it said what it used as a whole.
    counted: Option<Sum>,
}

impl Default for Words {
    fn default() -> Self {
        Self(["model", "okens", "usage"].map(|word| Finder::new(word.as_bytes())))
    }
}

impl Words {
    /// What a record says of what it used. Most records say nothing of it, which is seen without
    /// reading their JSON.
    pub fn said(&self, format: Format, record: &RecordView<'_>) -> Option<Said> {
        let stored_at = record.timestamp();
        if record.kind() == Some(PART) {
            let whole = Box::new(documents::whole(format, record.payload())?);
            return Some(Said(Saying::Whole { whole, stored_at }));
        }
        if !self.0.iter().any(|word| word.find(record.payload()).is_some()) {
            return None;
        }
        let value = value_of(record.kind(), record.content_type(), record.payload())?;
        let facts = Box::new(facts_in(format, &value));
        let total = at(&value, TOTAL).cloned();
        Some(Said(Saying::Message { facts, total, stored_at }))
    }
}

/// The sum of a session, as Codex gives it.
const TOTAL: &str = "payload.info.total_token_usage";

impl Counting {
    /// What a record adds, if it says what it used.
    pub fn record(
        &mut self,
        agent: &AgentId,
        format: Format,
        record: &RecordView<'_>,
        before: &mut Before,
    ) -> Option<Counted> {
        let said = self.words.said(format, record)?;
        self.said(agent, said, before)
    }

    /// What a record adds that says this.
    pub fn said(&mut self, agent: &AgentId, said: Said, before: &mut Before) -> Option<Counted> {
        match said.0 {
            Saying::Whole { whole, stored_at } => Some(Self::part(*whole, stored_at, before)),
            Saying::Message { facts, total, stored_at } => {
                self.message(agent, total.as_ref(), &facts, stored_at, before)
            }
        }
    }

    /// What a part of a document adds that says what the run used as a whole.
    fn part(whole: documents::WholeUsage, stored_at: Timestamp, before: &mut Before) -> Counted {
        let said = Amount::of(&whole.usage);
        let messages_with_cost = if said.cost.is_some() { whole.calls } else { 0 };
        let sum = Sum { messages: whole.calls, messages_with_cost, amount: said };
        let mut counted = Counted {
            time: stored_at,
            model: whole.model.or_else(|| before.model.clone()),
            messages: 0,
            messages_with_cost: 0,
            added: Amount::default(),
        };
        before.counted.get_or_insert(before.messages).grow(sum, &mut counted);
        counted
    }

    /// As [`Counting::record`], for a record whose value and facts are known.
    pub fn facts(
        &mut self,
        agent: &AgentId,
        value: &Value,
        facts: &Facts,
        stored_at: Timestamp,
        before: &mut Before,
    ) -> Option<Counted> {
        self.message(agent, at(value, TOTAL), facts, stored_at, before)
    }

    fn message(
        &mut self,
        agent: &AgentId,
        total: Option<&Value>,
        facts: &Facts,
        stored_at: Timestamp,
        before: &mut Before,
    ) -> Option<Counted> {
        if facts.model.is_some() {
            before.model.clone_from(&facts.model);
        }
        let usage = facts.usage.as_ref()?;
        if total.is_some() && total == before.total.as_ref() {
            return None;
        }
        before.total = total.cloned();
        let said = Amount::of(usage);
        let mut counted = Counted {
            time: facts.time.unwrap_or(stored_at),
            model: before.model.clone(),
            messages: 1,
            messages_with_cost: u64::from(said.cost.is_some()),
            added: said,
        };
        if let Some(id) = &facts.message_id {
            let known = self.messages.entry(digest(agent, id));
            let known = known.and_modify(|_| counted.messages = 0).or_default();
            if known.cost.is_some() {
                counted.messages_with_cost = 0;
            }
            counted.added = known.grow(said);
        }
        before.messages.add(&counted);
        if let Some(sum) = &mut before.counted {
            sum.grow(before.messages, &mut counted);
        }
        Some(counted)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(input_tokens: u64, output_tokens: u64, cost: Option<f64>) -> Amount {
        Amount { input_tokens, output_tokens, cost, ..Amount::default() }
    }

    #[test]
    fn a_message_that_grows_counts_as_its_largest() {
        let mut known = Amount::default();
        assert_eq!(known.grow(said(3, 1, None)), said(3, 1, None));
        assert_eq!(known.grow(said(3, 9, Some(0.5))), said(0, 8, Some(0.5)));
        assert_eq!(known.grow(said(1, 2, Some(0.25))), said(0, 0, None));
        assert_eq!(known, said(3, 9, Some(0.5)));
    }
}
