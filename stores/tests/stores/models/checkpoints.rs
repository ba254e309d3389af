//! Checkpoints of threads, and the events of session logs.

use std::collections::BTreeMap;

use runlog_stores::checkpoints::{
    Checkpoint, CheckpointError, CheckpointId, Checkpointer, SessionLog, TenantId, ThreadKey,
};
use serde_json::{Value, json};

use super::*;

struct Threads;

struct Stores {
    checkpoints: Checkpointer<Value>,
    events: SessionLog<u32>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    /// The checkpoints of threads by their numbers, the newest first. No thread has none.
    threads: BTreeMap<u8, Vec<u32>>,
    /// The events of threads; those that are archived are zeros.
    events: BTreeMap<u8, Vec<u32>>,
}

#[derive(Debug, Clone)]
enum Call {
    Put {
        thread: u8,
        number: u32,
    },
    /// With the id of another.
    PutOther {
        thread: u8,
        number: u32,
    },
    Prune {
        thread: u8,
        newest: usize,
    },
    Delete(u8),
    Copy {
        from: u8,
        to: u8,
    },
    Append {
        thread: u8,
        events: Vec<u32>,
    },
    Archive {
        thread: u8,
        before: usize,
    },
    DeleteEvents(u8),
}

fn key(actor: usize, thread: u8) -> ThreadKey {
    let tenant = TenantId::new(&format!("actor {actor}")).unwrap();
    ThreadKey::new(tenant, thread.to_string()).unwrap()
}

/// States that share most of their bytes; now and then one with more parts than a batch takes.
fn state(number: u32) -> Value {
    let words = if number % 97 == 5 { 6_000 } else { 3 * (number as u64 % 60) };
    let word = |place: u64| format!("{:x}", place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    json!({ "words": (0..words).map(word).collect::<Vec<_>>(), "number": number })
}

fn checkpoint(key: &ThreadKey, number: u32) -> Checkpoint<Value> {
    let mut id = [7; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let at = chrono::DateTime::from_timestamp_nanos(1_700_000_000_000_000_000);
    let (id, step) = (CheckpointId::from_bytes(id), number as usize);
    Checkpoint::from_parts(id, key, None, step, state(number), None, at)
}

impl Subject for Threads {
    type Model = Model;
    type Call = Call;
    type Store = Stores;
    type Memory = ();

    fn open(&self, log: &RunLog) -> Stores {
        Stores { checkpoints: Checkpointer::new(log), events: SessionLog::new(log) }
    }

    fn call(&self, random: &mut SplitMix64, model: &Model, number: u32) -> Call {
        let (thread, to) = (random.index(3) as u8, random.index(3) as u8);
        match random.index(32) {
            0..12 => Call::Put { thread, number },
            12..14 => match model.threads.get(&thread) {
                Some(all) => Call::PutOther { thread, number: all[random.index(all.len())] },
                None => Call::Put { thread, number },
            },
            14..17 => Call::Prune { thread, newest: random.index(6) },
            17 => Call::Delete(thread),
            18..20 => Call::Copy { from: thread, to },
            20..28 => {
                let count = random.index(4) as u32;
                Call::Append { thread, events: (0..count).map(|add| number * 10 + add).collect() }
            }
            28..31 => Call::Archive { thread, before: random.index(40) },
            _ => Call::DeleteEvents(thread),
        }
    }

    fn make(
        &self,
        stores: &Stores,
        actor: usize,
        call: &Call,
        (): &mut (),
    ) -> Result<String, Box<dyn StdError>> {
        let (checkpoints, events) = (&stores.checkpoints, &stores.events);
        let key = |thread: &u8| key(actor, *thread);
        match call {
            Call::Put { thread, number } => {
                checkpoints.put(&checkpoint(&key(thread), *number))?;
                Ok(String::new())
            }
            Call::PutOther { thread, number } => {
                let mut other = checkpoint(&key(thread), *number);
                other.state = json!("other");
                match checkpoints.put(&other) {
                    Err(CheckpointError::Exists { .. }) => Ok("exists".into()),
                    done => Ok(format!("{:?}", done?)),
                }
            }
            Call::Prune { thread, newest } => {
                checkpoints.prune(&key(thread), Some(*newest), None)?;
                Ok(String::new())
            }
            Call::Delete(thread) => Ok(checkpoints.delete_thread(&key(thread))?.to_string()),
            Call::Copy { from, to } => match checkpoints.copy_thread(&key(from), &key(to)) {
                Err(CheckpointError::UnknownThread { .. }) => Ok("unknown".into()),
                Err(CheckpointError::ThreadExists { .. }) => Ok("there".into()),
                copied => Ok(copied?.to_string()),
            },
            Call::Append { thread, events: new } => {
                Ok(events.append(&key(thread), new)?.to_string())
            }
            Call::Archive { thread, before } => {
                events.archive_before(&key(thread), *before as u64)?;
                Ok(String::new())
            }
            Call::DeleteEvents(thread) => Ok(events.delete_thread(&key(thread))?.to_string()),
        }
    }

    fn apply(&self, model: &mut Model, call: &Call) -> String {
        match call {
            Call::Put { thread, number } => {
                let thread = model.threads.entry(*thread).or_default();
                if !thread.contains(number) {
                    thread.insert(0, *number);
                }
                String::new()
            }
            Call::PutOther { thread, number } => {
                let is_there = model.threads.get(thread).is_some_and(|all| all.contains(number));
                if is_there { "exists".into() } else { "there is nothing to be other than".into() }
            }
            Call::Prune { thread, newest } => {
                if let Some(all) = model.threads.get_mut(thread) {
                    all.truncate((*newest).max(1));
                }
                String::new()
            }
            Call::Delete(thread) => model.threads.remove(thread).is_some().to_string(),
            Call::Copy { from, to } => {
                if model.threads.contains_key(to) {
                    return "there".into();
                }
                let Some(all) = model.threads.get(from).cloned() else { return "unknown".into() };
                let count = all.len();
                model.threads.insert(*to, all);
                count.to_string()
            }
            Call::Append { thread, events } => {
                if events.is_empty() {
                    return model.events.get(thread).map_or(0, Vec::len).to_string();
                }
                let all = model.events.entry(*thread).or_default();
                all.extend(events);
                all.len().to_string()
            }
            Call::Archive { thread, before } => {
                let all = model.events.get_mut(thread).into_iter().flatten();
                all.take(*before).for_each(|event| *event = 0);
                String::new()
            }
            Call::DeleteEvents(thread) => model.events.remove(thread).is_some().to_string(),
        }
    }

    /// Events have no ids, so that the same ones again are more.
    fn is_repeatable(&self, call: &Call) -> bool {
        !matches!(call, Call::Append { .. })
    }

    fn shown(&self, stores: &Stores, actor: usize) -> Result<Model, Box<dyn StdError>> {
        let mut model = Model::default();
        let tenant = TenantId::new(&format!("actor {actor}"))?;
        for thread in stores.checkpoints.threads(&tenant, None, 99)? {
            let key = ThreadKey::new(tenant.clone(), thread.clone())?;
            let history = stores.checkpoints.list_history(&key, 9_999)?;
            let numbers: Vec<u32> = history.iter().map(|found| found.step as u32).collect();
            for (found, number) in history.iter().zip(&numbers) {
                assert!(*found == checkpoint(&key, *number), "{key} has another {number}");
            }
            let latest = stores.checkpoints.get_latest(&key)?;
            assert!(latest.as_ref() == history.first());
            model.threads.insert(thread.parse()?, numbers);
        }
        for thread in stores.events.threads(&tenant, None, 99)? {
            let key = ThreadKey::new(tenant.clone(), thread.clone())?;
            let last = stores.events.append(&key, &[])? as usize;
            let numbered = stores.events.load_numbered_since(&key, 0)?;
            let archived = last - numbered.len();
            let ordinals = numbered.iter().map(|(ordinal, _)| *ordinal as usize);
            assert!(ordinals.eq(archived + 1..=last));
            let shown = numbered.into_iter().map(|(_, event)| event);
            let all = std::iter::repeat_n(0, archived).chain(shown).collect();
            model.events.insert(thread.parse()?, all);
        }
        Ok(model)
    }

    /// A pruning that is broken off has deleted a part of what was to go.
    fn partly(&self, shown: &Model, before: &Model, call: &Call) -> bool {
        let Call::Prune { thread, newest } = call else { return false };
        let Some(found) = shown.threads.get(thread) else { return false };
        let Some(all) = before.threads.get(thread) else { return false };
        let kept = &all[..(*newest).clamp(1, all.len())];
        let mut rest = all.iter();
        found.starts_with(kept) && found.iter().all(|one| rest.any(|other| one == other))
    }
}

#[test]
fn threads_are_as_plain_collections_say_in_all_troubles() {
    run(&Threads, 1_500);
}

#[test]
fn threads_are_as_plain_collections_say_on_real_files() {
    run_on_files(&Threads, 500);
}
