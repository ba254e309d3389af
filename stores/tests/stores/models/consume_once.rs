//! Ids that are consumed, and effects that are begun and finished by their claims.

use std::collections::BTreeMap;
use std::sync::Mutex;

use runlog::NewRecord;
use runlog_stores::consume_once::{
    Begin, Claim, ConsumeError, ConsumeOnce, EffectLedger, LedgerError,
};

use super::*;

/// Those who share a set all want the same ids; what they won is noted.
#[derive(Default)]
struct Once {
    won: Mutex<BTreeMap<String, String>>,
}

struct Stores {
    log: RunLog,
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    Begun,
    Completed(u32),
    Failed(u32),
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    /// Ids, and the calls that consumed them.
    consumed: BTreeMap<u8, u32>,
    /// Effects: how often they were begun, and how they stand.
    effects: BTreeMap<u8, (u32, Option<State>)>,
    /// What was recorded with them.
    records: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Call {
    Consume {
        id: u8,
        number: u32,
        with_record: bool,
    },
    CleanUp(u8),
    ClearIds,
    Begin(u8),
    /// By the claim of a beginning: its number.
    Complete {
        key: u8,
        begun: u32,
        number: u32,
        with_record: bool,
    },
    Fail {
        key: u8,
        begun: u32,
        number: u32,
    },
    Forget(u8),
    ClearEffects,
    /// One of the ids that all want.
    Contend(u8),
}

type Claims = BTreeMap<(u8, u32), Claim>;

/// The claims by their effects and beginnings, and the one that came with the last answer.
#[derive(Default)]
struct Memory {
    claims: Claims,
    latest: Option<Claim>,
}

impl Stores {
    fn ids(&self, actor: usize) -> ConsumeOnce {
        ConsumeOnce::named(&self.log, &format!("actor {actor}"))
    }

    fn ledger(&self, actor: usize) -> EffectLedger {
        EffectLedger::named(&self.log, &format!("actor {actor}"))
    }

    fn run(&self, actor: usize) -> Result<String, Error> {
        let run = format!("run {actor}");
        match self.log.run(("agent", run.as_str())) {
            Err(error) if error.is_not_found() => {
                drop(self.log.start_run("agent", &run, ())?);
            }
            found => drop(found?),
        }
        Ok(run)
    }
}

fn consumed(done: Result<(), ConsumeError>) -> Result<String, Box<dyn StdError>> {
    match done {
        Ok(()) => Ok("consumed".into()),
        Err(ConsumeError::AlreadyConsumed(earlier)) => Ok(format!("by {}", earlier.by)),
        Err(error) => Err(error.into()),
    }
}

fn finished(done: Result<(), LedgerError>) -> Result<String, Box<dyn StdError>> {
    match done {
        Ok(()) => Ok("finished".into()),
        Err(LedgerError::Superseded { .. }) => Ok("superseded".into()),
        Err(error) => Err(error.into()),
    }
}

impl Subject for Once {
    type Model = Model;
    type Call = Call;
    type Store = Stores;
    type Memory = Memory;

    fn open(&self, log: &RunLog) -> Stores {
        Stores { log: log.clone() }
    }

    fn call(&self, random: &mut SplitMix64, model: &Model, number: u32) -> Call {
        let id = random.index(8) as u8;
        let begun = model.effects.get(&id).map_or(0, |(begun, _)| *begun);
        // Now and then an old claim.
        let begun = if random.index(5) == 0 { begun.saturating_sub(1) } else { begun };
        let with_record = random.coin();
        match random.index(30) {
            0..7 => Call::Consume { id, number, with_record },
            7..10 => Call::CleanUp(id),
            10 => Call::ClearIds,
            11..18 => Call::Begin(id),
            18..23 => Call::Complete { key: id, begun, number, with_record },
            23..26 => Call::Fail { key: id, begun, number },
            26 => Call::Forget(id),
            27 => Call::ClearEffects,
            _ => Call::Contend((number % 251) as u8),
        }
    }

    fn make(
        &self,
        stores: &Stores,
        actor: usize,
        call: &Call,
        memory: &mut Memory,
    ) -> Result<String, Box<dyn StdError>> {
        let (ids, ledger) = (stores.ids(actor), stores.ledger(actor));
        memory.latest = None;
        match call {
            Call::Consume { id, number, with_record } => {
                let (id, by) = (id.to_string(), number.to_string());
                if !with_record {
                    return consumed(ids.consume(&id, &by));
                }
                let run = stores.run(actor)?;
                let record = NewRecord::new(by.as_bytes());
                consumed(ids.consume_with(&id, &by, ("agent", &run), &record))
            }
            Call::CleanUp(id) => {
                ids.cleanup(&id.to_string())?;
                Ok(String::new())
            }
            Call::ClearIds => {
                ids.clear()?;
                Ok(String::new())
            }
            Call::Begin(key) => Ok(match ledger.begin(&key.to_string(), "me")? {
                Begin::Go(claim) => {
                    memory.latest = Some(claim);
                    "go".into()
                }
                Begin::Unfinished { claim, .. } => {
                    memory.latest = Some(claim);
                    "unfinished".into()
                }
                Begin::Completed { result, .. } => {
                    format!("completed {}", String::from_utf8_lossy(&result))
                }
            }),
            Call::Complete { key, begun, number, with_record } => {
                let Some(claim) = memory.claims.get(&(*key, *begun)) else {
                    return Ok("no claim".into());
                };
                let result = number.to_string();
                if !with_record {
                    return finished(ledger.complete(claim, result.as_bytes()));
                }
                let run = stores.run(actor)?;
                let record = NewRecord::new(result.as_bytes());
                let run = ("agent", run.as_str());
                finished(ledger.complete_with(claim, result.as_bytes(), run, &record))
            }
            Call::Fail { key, begun, number } => {
                let Some(claim) = memory.claims.get(&(*key, *begun)) else {
                    return Ok("no claim".into());
                };
                finished(ledger.fail(claim, &number.to_string()))
            }
            Call::Forget(key) => {
                ledger.forget(&key.to_string())?;
                Ok(String::new())
            }
            Call::ClearEffects => {
                ledger.clear()?;
                Ok(String::new())
            }
            Call::Contend(id) => {
                let id = id.to_string();
                let me = format!("actor {actor}");
                let done = consumed(ConsumeOnce::named(&stores.log, "all").consume(&id, &me))?;
                let mut won = self.won.lock().unwrap();
                let winner = done.strip_prefix("by ").unwrap_or(&me);
                let known = won.entry(id.clone()).or_insert_with(|| winner.to_owned());
                assert_eq!(known, winner, "{id} has one winner for good");
                Ok(String::new())
            }
        }
    }

    fn apply(&self, model: &mut Model, call: &Call) -> String {
        match call {
            Call::Consume { id, number, with_record } => match model.consumed.get(id) {
                Some(by) => format!("by {by}"),
                None => {
                    model.consumed.insert(*id, *number);
                    model.records.extend(with_record.then_some(*number));
                    "consumed".into()
                }
            },
            Call::CleanUp(id) => {
                model.consumed.remove(id);
                String::new()
            }
            Call::ClearIds => {
                model.consumed.clear();
                String::new()
            }
            Call::Begin(key) => {
                let (begun, state) = model.effects.entry(*key).or_default();
                match state {
                    Some(State::Begun) => "unfinished".into(),
                    Some(State::Completed(result)) => format!("completed {result}"),
                    None | Some(State::Failed(_)) => {
                        (*begun, *state) = (*begun + 1, Some(State::Begun));
                        "go".into()
                    }
                }
            }
            Call::Complete { key, begun, number, with_record } => {
                let done = finish(model, *key, *begun, State::Completed(*number));
                model.records.extend((done == "now" && *with_record).then_some(*number));
                if done == "now" { "finished".into() } else { done }
            }
            Call::Fail { key, begun, number } => {
                let done = finish(model, *key, *begun, State::Failed(*number));
                if done == "now" { "finished".into() } else { done }
            }
            Call::Forget(key) => {
                model.effects.entry(*key).or_default().1 = None;
                String::new()
            }
            Call::ClearEffects => {
                model.effects.values_mut().for_each(|effect| effect.1 = None);
                String::new()
            }
            Call::Contend(_) => String::new(),
        }
    }

    fn learn(&self, memory: &mut Memory, call: &Call, model: &Model) {
        if let (Call::Begin(key), Some(claim)) = (call, memory.latest.take()) {
            memory.claims.insert((*key, model.effects[key].0), claim);
        }
    }

    fn shown(&self, stores: &Stores, actor: usize) -> Result<Model, Box<dyn StdError>> {
        let (ids, ledger, mut model) = (stores.ids(actor), stores.ledger(actor), Model::default());
        for id in 0..8 {
            if let Some(found) = ids.consumption(&id.to_string())? {
                model.consumed.insert(id, found.by.parse()?);
            }
            let document =
                stores.log.docs().get(&format!("\0effects/actor {actor}"), &id.to_string())?;
            let state = match document {
                None => None,
                Some(_) if ledger.failure(&id.to_string())?.is_some() => {
                    Some(State::Failed(ledger.failure(&id.to_string())?.unwrap().parse()?))
                }
                Some(document) => {
                    let text = String::from_utf8_lossy(document.payload()).into_owned();
                    match text.split_once('\n') {
                        Some((_, result)) => Some(State::Completed(result.parse()?)),
                        None => Some(State::Begun),
                    }
                }
            };
            model.effects.insert(id, (0, state));
        }
        let unfinished = ledger.unfinished()?.len();
        let begun = model.effects.values().filter(|(_, state)| *state == Some(State::Begun));
        assert_eq!(unfinished, begun.count());
        match stores.log.trace(("agent", format!("run {actor}").as_str())) {
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
            Ok(trace) => {
                for record in trace {
                    let record = record?;
                    model.records.push(String::from_utf8_lossy(record.payload()).parse()?);
                }
            }
        }
        Ok(model)
    }

    /// How often an effect was begun is not shown.
    fn fits(&self, shown: &Model, candidate: &Model, _: bool) -> bool {
        let state = |model: &Model, id| model.effects.get(id).and_then(|effect| effect.1.clone());
        shown.consumed == candidate.consumed
            && shown.records == candidate.records
            && shown.effects.keys().all(|id| state(shown, id) == state(candidate, id))
    }

    fn with_hidden(&self, shown: Model, candidates: &[Model]) -> Model {
        let fitting = candidates.iter().find(|known| self.fits(&shown, known, false));
        fitting.cloned().unwrap_or(shown)
    }
}

/// What an end by a claim does: "now" if it is the first.
fn finish(model: &mut Model, key: u8, begun: u32, end: State) -> String {
    let (last, state) = model.effects.entry(key).or_default();
    if begun == 0 {
        return "no claim".into();
    }
    match state {
        Some(State::Begun) if *last == begun => {
            *state = Some(end);
            "now".into()
        }
        Some(known) if *last == begun && *known == end => "finished".into(),
        _ => "superseded".into(),
    }
}

#[test]
fn what_happens_once_is_as_plain_collections_say_in_all_troubles() {
    run(&Once::default(), 3_000);
}

#[test]
fn what_happens_once_is_as_plain_collections_say_on_real_files() {
    run_on_files(&Once::default(), 1_000);
}
