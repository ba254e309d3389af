//! Records of runs, their parent, and their ends.

use std::collections::BTreeMap;

use runlog_stores::trajectory::{
    Item, RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord,
};

use super::*;
use runlog::{Allow, Outcome, RunStatus};

struct Trajectories;

/// A run: the call that began it, how many records it has, and how many of them are durable.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    begun: u32,
    len: u64,
    durable: u64,
    is_ended: bool,
}

type Model = BTreeMap<u8, Run>;

#[derive(Debug, Clone)]
enum Call {
    /// The next record of a run, or the first.
    Record {
        run: u8,
        begun: u32,
        seq: u64,
        is_last: bool,
        is_durable: bool,
    },
    Delete(u8),
}

fn name(actor: usize, run: u8) -> String {
    format!("{actor}/{run}")
}

/// Calls of an actor after which no run is left that one of them began.
const LONG_OVER: u32 = 4_000;

/// The parent of some runs of an actor, which is never recorded itself.
fn parent(actor: usize, begun: u32) -> String {
    format!("parent {actor} {}", begun / 200)
}

fn record(actor: usize, run: u8, begun: u32, seq: u64, is_last: bool) -> TrajectoryRecord {
    let identity = RunIdentity::root(parent(actor, begun)).child(name(actor, run));
    let payload = match seq {
        0 => TrajectoryPayload::RunStarted { identity: identity.clone() },
        _ if is_last => {
            TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] }
        }
        _ => TrajectoryPayload::TurnStarted,
    };
    TrajectoryRecord::new(&identity, seq, 1_700_000_000_000 + u64::from(begun), payload)
}

/// Deletes a parent, so that there are not more and more runs in progress.
fn forget(log: &RunLog, parent: &str) -> runlog::Result<()> {
    let outcome = Outcome::new(RunStatus::Completed);
    let ended = log.end_run("agent", parent, &outcome, Allow::nothing());
    match ended.and_then(|_| log.delete_run(("agent", parent))) {
        Err(error) if error.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}

impl Subject for Trajectories {
    type Model = Model;
    type Call = Call;
    type Store = TrajectoryLog;
    type Memory = ();

    fn open(&self, log: &RunLog) -> TrajectoryLog {
        let store = TrajectoryLog::new(log, "agent").unwrap();
        store.settle_ends().unwrap();
        store
    }

    fn call(&self, random: &mut SplitMix64, model: &Model, number: u32) -> Call {
        let run = random.index(5) as u8;
        let is_durable = random.index(3) == 0;
        match model.get(&run) {
            None => Call::Record { run, begun: number, seq: 0, is_last: false, is_durable },
            Some(known) if known.is_ended => Call::Delete(run),
            Some(known) => {
                let is_last = random.index(12) == 0;
                Call::Record { run, begun: known.begun, seq: known.len, is_last, is_durable }
            }
        }
    }

    fn make(
        &self,
        store: &TrajectoryLog,
        actor: usize,
        call: &Call,
        (): &mut (),
    ) -> Result<String, Box<dyn StdError>> {
        match call {
            Call::Record { run, begun, seq, is_last, is_durable } => {
                if *seq == 0 && *begun > LONG_OVER {
                    forget(store.store(), &parent(actor, begun - LONG_OVER))?;
                }
                let recorded = store.record(&record(actor, *run, *begun, *seq, *is_last))?;
                if *is_durable {
                    recorded.wait()?;
                }
            }
            Call::Delete(run) => {
                match store.store().delete_run(("agent", name(actor, *run).as_str())) {
                    Err(error) if error.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
        }
        Ok(String::new())
    }

    fn apply(&self, model: &mut Model, call: &Call) -> String {
        match *call {
            Call::Record { run, begun, seq, is_last, is_durable } => {
                let new = Run { begun, len: 0, durable: 0, is_ended: false };
                let known = model.entry(run).or_insert(new);
                known.len = known.len.max(seq + 1);
                known.is_ended |= is_last;
                if is_durable {
                    known.durable = known.len;
                }
            }
            Call::Delete(run) => drop(model.remove(&run)),
        }
        String::new()
    }

    fn follows(&self, call: &Call, model: &Model) -> bool {
        let (run, begun, seq) = match call {
            // A power cut may have taken the end.
            Call::Delete(run) => return model.get(run).is_none_or(|known| known.is_ended),
            Call::Record { run, begun, seq, .. } => (run, begun, seq),
        };
        match model.get(run) {
            Some(known) => known.begun == *begun && (known.len == *seq || known.len == seq + 1),
            None => *seq == 0,
        }
    }

    fn shown(&self, store: &TrajectoryLog, actor: usize) -> Result<Model, Box<dyn StdError>> {
        let mut model = Model::new();
        for run in 0..5 {
            let name = name(actor, run);
            let items = match store.trajectory(&name) {
                Err(error) if error.is_not_found() => continue,
                found => found?,
            };
            let (mut begun, mut len, mut is_last) = (0, 0, false);
            for item in items {
                let found = match item? {
                    Item::Record(found) => found.read().unwrap(),
                    other => return Err(format!("{name} has {other:?} after {len}").into()),
                };
                if len == 0 {
                    begun = (found.recorded_at_unix_ms - 1_700_000_000_000) as u32;
                }
                is_last = matches!(found.payload, TrajectoryPayload::RunEnded { .. });
                assert_eq!(found, record(actor, run, begun, len, is_last), "{name}");
                len += 1;
            }
            if len == 0 {
                continue;
            }
            let children = store.children(&parent(actor, begun))?.runs;
            assert!(children.iter().any(|child| child.run.as_str() == name), "{name}");
            let is_ended = store.store().run(("agent", name.as_str()))?.status.is_ended();
            assert!(is_last || !is_ended);
            model.insert(run, Run { begun, len, durable: 0, is_ended });
        }
        Ok(model)
    }

    /// The record stands in front of the end.
    fn partly(&self, shown: &Model, before: &Model, call: &Call) -> bool {
        let mut after = before.clone();
        self.apply(&mut after, call);
        if let Call::Record { run, is_last: true, .. } = call
            && let Some(run) = after.get_mut(run)
        {
            run.is_ended = false;
        }
        self.fits(shown, &after, false)
    }

    /// What was not waited for may be lost, from some record on.
    fn fits(&self, shown: &Model, candidate: &Model, is_cut: bool) -> bool {
        (0..5).all(|run| match (shown.get(&run), candidate.get(&run)) {
            (None, None) => true,
            (None, Some(known)) => is_cut && known.durable == 0,
            (Some(_), None) => false,
            (Some(shown), Some(known)) => {
                let is_whole = shown.len == known.len && shown.is_ended == known.is_ended;
                let is_beginning = (known.durable..known.len).contains(&shown.len);
                shown.begun == known.begun
                    && (is_whole || is_cut && is_beginning && !shown.is_ended)
            }
        })
    }

    /// What is durable is not shown.
    fn with_hidden(&self, mut shown: Model, candidates: &[Model]) -> Model {
        for (run, shown) in &mut shown {
            let durable =
                candidates.iter().filter_map(|known| known.get(run)).map(|run| run.durable);
            shown.durable = durable.min().unwrap_or(0).min(shown.len);
        }
        shown
    }
}

#[test]
fn trajectories_are_as_plain_collections_say_in_all_troubles() {
    run(&Trajectories, 4_000);
}

#[test]
fn trajectories_are_as_plain_collections_say_on_real_files() {
    run_on_files(&Trajectories, 1_000);
}
