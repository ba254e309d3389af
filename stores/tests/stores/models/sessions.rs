//! Sessions with their parts, snapshots and leases.

use std::collections::BTreeMap;
use std::time::Duration;

use runlog_stores::sessions::{
    EngineSessionStore, LoadedSnapshot, SessionError, SessionSnapshot, SessionStore, WriterLease,
};
use serde_json::{Value, json};

use super::*;
use crate::support::block_on;

struct Sessions;

type Store = EngineSessionStore;

#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    /// The numbers in the parts of sessions: the session itself, artifacts, trace.
    sessions: BTreeMap<u8, [Option<u32>; 3]>,
    checkpoints: BTreeMap<u8, u32>,
    leases: BTreeMap<u8, Lease>,
}

/// The leases of a session: by the calls that acquired them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Lease {
    latest: u32,
    before: u32,
    is_held: bool,
}

#[derive(Debug, Clone)]
enum Call {
    /// By the lease of a call, or by none: 0.
    Save {
        id: u8,
        part: usize,
        number: u32,
        lease: u32,
    },
    SaveAll {
        id: u8,
        number: u32,
        lease: u32,
    },
    /// If it is as it is loaded now.
    Swap {
        id: u8,
        number: u32,
    },
    SwapNew {
        id: u8,
        number: u32,
    },
    Delete {
        id: u8,
        lease: u32,
    },
    SaveCheckpoint {
        run: u8,
        number: u32,
    },
    DeleteCheckpoint(u8),
    Acquire {
        id: u8,
        number: u32,
    },
    /// By another holder, while it is held.
    Intrude(u8),
    Renew {
        id: u8,
        lease: u32,
    },
    Release {
        id: u8,
        lease: u32,
    },
}

/// Leases by their sessions and acquisitions.
#[derive(Default)]
struct Memory {
    leases: BTreeMap<(u8, u32), WriterLease>,
    latest: Option<WriterLease>,
}

fn name(actor: usize, id: u8) -> String {
    format!("{actor}/{id}")
}

fn snapshot(name: &str, number: u32) -> SessionSnapshot<runlog_stores::sessions::JsonSessions> {
    let mut snapshot = SessionSnapshot::new(json!({ "id": name, "number": number }));
    snapshot.artifacts = Some(json!(number));
    snapshot
}

fn done<R: ToString>(done: Result<R, SessionError>) -> Result<String, Box<dyn StdError>> {
    match done {
        Ok(answer) => Ok(answer.to_string()),
        Err(SessionError::LeaseHeld { .. }) => Ok("held".into()),
        Err(SessionError::Fenced { .. }) => Ok("fenced".into()),
        Err(error) => Err(error.into()),
    }
}

/// Of calls that answer nothing.
fn unit(result: Result<(), SessionError>) -> Result<String, Box<dyn StdError>> {
    done(result.map(|()| "done"))
}

impl Sessions {
    fn through(store: &Store, memory: &Memory, id: u8, lease: u32) -> Option<Store> {
        if lease == 0 {
            return Some(store.clone());
        }
        memory.leases.get(&(id, lease)).map(|lease| store.through(lease))
    }
}

impl Model {
    /// Why a write is refused, if it is.
    fn refused(&self, id: u8, lease: u32) -> Option<String> {
        let Lease { latest, is_held, .. } = self.leases.get(&id).copied().unwrap_or_default();
        match lease {
            0 if is_held => Some("held".into()),
            0 => None,
            _ if is_held && lease == latest => None,
            _ => Some("fenced".into()),
        }
    }

    fn write(&mut self, id: u8, lease: u32, parts: [Option<u32>; 3]) -> String {
        if let Some(refused) = self.refused(id, lease) {
            return refused;
        }
        self.sessions.insert(id, parts);
        "done".into()
    }
}

impl Subject for Sessions {
    type Model = Model;
    type Call = Call;
    type Store = Store;
    type Memory = Memory;

    fn open(&self, log: &RunLog) -> Store {
        Store::new(log)
    }

    fn call(&self, random: &mut SplitMix64, model: &Model, number: u32) -> Call {
        let id = random.index(3) as u8;
        let known = model.leases.get(&id).copied().unwrap_or_default();
        // Mostly as it should be; now and then by an old lease, or by none.
        let lease = match random.index(8) {
            0 => 0,
            1 => known.before,
            2 => known.latest,
            _ if known.is_held => known.latest,
            _ => 0,
        };
        match random.index(32) {
            0..10 => Call::Save { id, part: random.index(3), number, lease },
            10..15 => Call::SaveAll { id, number, lease },
            15..18 => Call::Swap { id, number },
            18 => Call::SwapNew { id, number },
            19..22 => Call::Delete { id, lease },
            22..24 => Call::SaveCheckpoint { run: id, number },
            24 => Call::DeleteCheckpoint(id),
            27 if known.is_held => Call::Intrude(id),
            25..28 => Call::Acquire { id, number },
            28 => Call::Renew { id, lease: lease.max(1) },
            _ => Call::Release { id, lease: lease.max(1) },
        }
    }

    fn make(
        &self,
        store: &Store,
        actor: usize,
        call: &Call,
        memory: &mut Memory,
    ) -> Result<String, Box<dyn StdError>> {
        let hour = Duration::from_secs(3600);
        memory.latest = None;
        block_on(async {
            match call {
                Call::Save { id, part, number, lease } => {
                    let Some(store) = Self::through(store, memory, *id, *lease) else {
                        return Ok("fenced".into());
                    };
                    let id = name(actor, *id);
                    unit(match part {
                        0 => store.save(&json!({ "id": id, "number": number })).await,
                        1 => store.save_artifacts(&id, &json!(number)).await,
                        _ => store.save_trace_events(&id, &[json!(number)]).await,
                    })
                }
                Call::SaveAll { id, number, lease } => {
                    let Some(store) = Self::through(store, memory, *id, *lease) else {
                        return Ok("fenced".into());
                    };
                    unit(store.save_snapshot(&snapshot(&name(actor, *id), *number)).await)
                }
                Call::Swap { id, number } => {
                    let id = name(actor, *id);
                    let loaded = store.load_snapshot(&id).await?;
                    let digest = loaded.map(|loaded| loaded.digest);
                    let new = snapshot(&id, *number);
                    let swapped = done(store.save_snapshot_cas(&new, digest.as_deref()).await)?;
                    if swapped == "true" {
                        let again = store.save_snapshot_cas(&new, digest.as_deref()).await?;
                        assert!(!again, "it has changed meanwhile");
                    }
                    Ok(swapped)
                }
                Call::SwapNew { id, number } => {
                    let new = snapshot(&name(actor, *id), *number);
                    done(store.save_snapshot_cas(&new, None).await)
                }
                Call::Delete { id, lease } => {
                    let Some(store) = Self::through(store, memory, *id, *lease) else {
                        return Ok("fenced".into());
                    };
                    unit(store.delete(&name(actor, *id)).await)
                }
                Call::SaveCheckpoint { run, number } => {
                    unit(store.save_loop_checkpoint(&name(actor, *run), &json!(number)).await)
                }
                Call::DeleteCheckpoint(run) => {
                    unit(store.delete_loop_checkpoint(&name(actor, *run)).await)
                }
                Call::Acquire { id, .. } => {
                    let lease = store.acquire_writer_lease(&name(actor, *id), "me", hour).await?;
                    memory.latest = Some(lease);
                    Ok("leased".into())
                }
                Call::Intrude(id) => {
                    let id = name(actor, *id);
                    let leased = store.acquire_writer_lease(&id, "another", hour).await;
                    done(leased.map(|_| "leased"))
                }
                Call::Renew { id, lease } => {
                    let Some(lease) = memory.leases.get(&(*id, *lease)) else {
                        return Ok("fenced".into());
                    };
                    done(store.renew_writer_lease(lease, hour).await.map(|_| "renewed"))
                }
                Call::Release { id, lease } => {
                    let Some(lease) = memory.leases.get(&(*id, *lease)) else {
                        return Ok("false".into());
                    };
                    done(store.release_writer_lease(lease).await)
                }
            }
        })
    }

    fn apply(&self, model: &mut Model, call: &Call) -> String {
        let parts = |model: &Model, id: &u8| model.sessions.get(id).copied();
        match call {
            Call::Save { id, part, number, lease } => {
                let mut new = parts(model, id).unwrap_or_default();
                new[*part] = Some(*number);
                model.write(*id, *lease, new)
            }
            Call::SaveAll { id, number, lease } => {
                model.write(*id, *lease, [Some(*number), Some(*number), None])
            }
            Call::Swap { id, number } | Call::SwapNew { id, number } => {
                let is_there = parts(model, id).is_some_and(|parts| parts[0].is_some());
                if let Some(refused) = model.refused(*id, 0) {
                    return refused;
                }
                if is_there && matches!(call, Call::SwapNew { .. }) {
                    return "false".into();
                }
                model.write(*id, 0, [Some(*number), Some(*number), None]);
                "true".into()
            }
            Call::Delete { id, lease } => {
                let is_held = model.leases.get(id).is_some_and(|lease| lease.is_held);
                if *lease > 0 && !is_held && !model.sessions.contains_key(id) {
                    return "done".into();
                }
                if let Some(refused) = model.refused(*id, *lease) {
                    return refused;
                }
                model.sessions.remove(id);
                model.leases.entry(*id).or_default().is_held = false;
                "done".into()
            }
            Call::SaveCheckpoint { run, number } => {
                model.checkpoints.insert(*run, *number);
                "done".into()
            }
            Call::DeleteCheckpoint(run) => {
                model.checkpoints.remove(run);
                "done".into()
            }
            Call::Acquire { id, number } => {
                let lease = model.leases.entry(*id).or_default();
                if lease.latest != *number {
                    (lease.latest, lease.before) = (*number, lease.latest);
                }
                lease.is_held = true;
                "leased".into()
            }
            Call::Intrude(_) => "held".into(),
            Call::Renew { id, lease } => {
                let known = model.leases.get(id).copied().unwrap_or_default();
                let is_own = known.is_held && *lease == known.latest;
                if is_own { "renewed".into() } else { "fenced".into() }
            }
            Call::Release { id, lease } => {
                let known = model.leases.entry(*id).or_default();
                let is_own = known.is_held && *lease == known.latest;
                known.is_held &= !is_own;
                is_own.to_string()
            }
        }
    }

    fn learn(&self, memory: &mut Memory, call: &Call, _: &Model) {
        if let (Call::Acquire { id, number }, Some(lease)) = (call, memory.latest.take()) {
            memory.leases.insert((*id, *number), lease);
        }
    }

    fn shown(&self, store: &Store, actor: usize) -> Result<Model, Box<dyn StdError>> {
        let mut model = Model::default();
        block_on(async {
            for id in 0..3 {
                let name = name(actor, id);
                let number = |value: Value| value.as_u64().map(|number| number as u32);
                let session = store.load(&name).await?;
                let parts = [
                    session.and_then(|mut session| number(session["number"].take())),
                    store.load_artifacts(&name).await?.and_then(number),
                    store.load_trace_events(&name).await?.and_then(|mut all| number(all.remove(0))),
                ];
                let snapshot = store.load_snapshot(&name).await?;
                let shown = snapshot.map(|LoadedSnapshot { snapshot, .. }| {
                    let trace = snapshot.trace_events.map(|mut all| all.remove(0));
                    let session = Some(snapshot.session["number"].clone());
                    [session, snapshot.artifacts, trace].map(|part| part.and_then(number))
                });
                assert_eq!(shown, parts[0].is_some().then_some(parts), "{name}");
                assert_eq!(store.exists(&name).await?, parts[0].is_some());
                if parts != [None; 3] {
                    model.sessions.insert(id, parts);
                }
                if let Some(number) = store.load_loop_checkpoint(&name).await?.and_then(number) {
                    model.checkpoints.insert(id, number);
                }
                let lease = store.writer_lease(&name).await?;
                model.leases.insert(id, Lease { is_held: lease.is_some(), ..Lease::default() });
            }
            Ok(model)
        })
    }

    /// By which call a session was leased is not shown.
    fn fits(&self, shown: &Model, candidate: &Model, _: bool) -> bool {
        let is_held = |id: &u8| candidate.leases.get(id).is_some_and(|lease| lease.is_held);
        shown.sessions == candidate.sessions
            && shown.checkpoints == candidate.checkpoints
            && shown.leases.iter().all(|(id, lease)| lease.is_held == is_held(id))
    }

    fn with_hidden(&self, shown: Model, candidates: &[Model]) -> Model {
        // Two look the same if a lease was perhaps acquired anew. The same call comes again then.
        let fitting = candidates.iter().find(|known| self.fits(&shown, known, false));
        fitting.cloned().unwrap_or(shown)
    }
}

#[test]
fn sessions_are_as_plain_collections_say_in_all_troubles() {
    run(&Sessions, 2_000);
}

#[test]
fn sessions_are_as_plain_collections_say_on_real_files() {
    run_on_files(&Sessions, 700);
}
