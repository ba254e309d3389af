//! Lists of runs: with cursors that stay valid, and the same whatever happens to the index. The
//! lives campaign compares lists with a model in each state of a store.

use std::collections::BTreeSet;
use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::segments::segment::SegmentHeader;
use runlog::storage::MemoryStorage;
use runlog::{
    AgentId, Allow, Cursor, Error, NewRecord, Options, Outcome, RunLog, RunQuery, RunStatus,
    Timestamp,
};
use runlog_sim::settings::scale;
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::model::Model;
use crate::support::world::{EXTENT, Machine, World};

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

#[test]
fn a_run_without_a_start_is_listed_at_the_time_of_its_first_record() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = options().create_storage(storage.clone()).unwrap();
    let all = Allow::everything();
    let imported = |at: i64| NewRecord::new(b"imported").at(Timestamp(at));
    log.append_to("agent", "middle", &imported(50), all).unwrap();
    log.append_batch_to("agent", "oldest", &[imported(10), imported(90)], all).unwrap();
    let large = vec![1; 20_000];
    log.append_to("agent", "oldest", &NewRecord::new(&large).at(Timestamp(80)), all).unwrap();
    log.end_run("agent", "newest", &Outcome::failed().at(Timestamp(70)), all).unwrap();
    for _ in 0..2 {
        let page = log.list_runs(&RunQuery::new().agent("agent").limit(10)).unwrap();
        let found: Vec<_> =
            page.runs.iter().map(|run| (run.run.as_str(), run.started_at.0)).collect();
        assert_eq!(found, [("newest", 70), ("middle", 50), ("oldest", 10)]);
        assert!(page.runs.iter().all(|run| !run.started));
        assert_eq!(page.runs[2].last_at, Timestamp(90));
        log.close().unwrap();
        log = options().open_storage(storage.clone()).unwrap();
    }
}

/// The runs of a world that a query should list, in order.
fn listed(world: &World, agent: Option<&str>, running: bool) -> Vec<String> {
    let mut runs = world.there();
    runs.retain(|(run, state)| {
        agent.is_none_or(|agent| agent == world.model.runs[*run].agent)
            && (!running || state.status == RunStatus::InProgress)
    });
    runs.sort_by_key(|(_, state)| (state.created_at, state.number));
    if !running {
        runs.reverse();
    }
    runs.iter().map(|(run, _)| world.model.runs[*run].run.clone()).collect()
}

/// Goal: a cursor neither repeats nor skips a run that exists all the time, whatever is started,
/// ended, deleted or checkpointed between two pages.
#[test]
fn cursors_stay_valid_while_runs_come_and_go_between_the_pages() {
    for seed in 0..20 {
        let mut random = SplitMix64::new(seed);
        let mut world = World::create_on(seed, SimDisk::new(), Machine::new(seed), seed % 2 == 0);
        (0..200).for_each(|_| world.step());
        let agent = (seed % 3 == 0).then_some("agent-1");
        let running = seed % 3 == 1;
        let mut query = RunQuery::new().limit(3);
        query = agent.map_or(query.clone(), |agent| query.agent(agent));
        if running {
            query = query.status(RunStatus::InProgress).oldest_first();
        }
        let before = listed(&world, agent, running);
        let mut seen = Vec::new();
        loop {
            let page = world.log().list_runs(&query).unwrap();
            seen.extend(page.runs.iter().map(|run| run.run.to_string()));
            let Some(next) = page.next else { break };
            // The text form of a cursor works like the cursor.
            query = query.after(next.to_string().parse::<Cursor>().unwrap());
            // Even the run of the cursor may end, or be deleted.
            let last = seen.last().expect("a page has runs");
            let last = world.model.runs.iter().position(|run| run.run == *last).unwrap();
            if world.running().contains(&last) && random.coin() {
                world.end(last, false);
            } else if random.coin() {
                world.delete_run();
            }
            (0..8).for_each(|_| world.step());
            match random.below(6) {
                0 => world.checkpoint(),
                1 => world.reclaim(),
                2 => world.reopen(),
                3 => world.kill(),
                _ => {}
            }
        }
        let distinct: BTreeSet<&String> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "a run was repeated, seed {seed}");
        let still = listed(&world, agent, running);
        for run in before.iter().filter(|run| still.contains(run)) {
            assert!(seen.contains(run), "{run} was skipped, seed {seed}");
        }
        let order: Vec<&String> = seen.iter().filter(|run| before.contains(run)).collect();
        let wanted: Vec<&String> = before.iter().filter(|run| seen.contains(run)).collect();
        assert_eq!(order, wanted, "out of order, seed {seed}");
    }
}

#[test]
fn a_run_id_that_agents_share_is_ambiguous_until_only_one_is_left() {
    let log = options().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    for agent in ["c", "a", "b"] {
        let run = log.start_run(agent, "shared", ()).unwrap();
        let _ = run.append(b"x").unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    let ambiguous = |wanted: &[&str]| match log.agent_of("shared") {
        Err(Error::Ambiguous { agents, run }) => {
            assert_eq!(run, "shared");
            assert_eq!(agents.iter().map(AgentId::as_str).collect::<Vec<_>>(), wanted);
            assert!(matches!(log.trace("shared"), Err(Error::Ambiguous { .. })));
            assert!(matches!(log.run("shared"), Err(Error::Ambiguous { .. })));
            assert!(matches!(log.writer("shared"), Err(Error::Ambiguous { .. })));
            assert!(matches!(log.delete_run("shared"), Err(Error::Ambiguous { .. })));
            for agent in wanted {
                assert_eq!(log.run((*agent, "shared")).unwrap().agent, **agent);
                assert_eq!(log.trace((*agent, "shared")).unwrap().count(), 1);
            }
        }
        other => panic!("{other:?}"),
    };
    ambiguous(&["a", "b", "c"]);
    let nobody = log.run(("d", "shared"));
    assert!(matches!(nobody, Err(Error::RunNotFound { agent: Some(_), .. })));
    log.delete_run(("c", "shared")).unwrap();
    ambiguous(&["a", "b"]);
    log.delete_run(("a", "shared")).unwrap();
    assert_eq!(log.agent_of("shared").unwrap(), "b");
    let _ = log.start_run("c", "shared", b"again").unwrap().append(b"x").unwrap();
    ambiguous(&["b", "c"]);
}

/// The ranges of the file that hold pages of the index.
fn index_extents(bytes: &[u8]) -> Vec<core::ops::Range<usize>> {
    let start = usize::try_from(EXTENTS_AT).unwrap();
    let step = usize::try_from(EXTENT).unwrap();
    (start..bytes.len())
        .step_by(step)
        .map(|at| at..(at + step).min(bytes.len()))
        .filter(|range| {
            let extent = &bytes[range.clone()];
            SegmentHeader::decode(extent).is_err() && extent.iter().any(|&byte| byte != 0)
        })
        .collect()
}

/// A closed store with an index, and its model.
fn closed_store() -> (Vec<u8>, Model) {
    let mut world = World::create_on(11, SimDisk::new(), Machine::new(12), true);
    (0..400).for_each(|_| world.step());
    world.checkpoint();
    assert!(world.log().stats().unwrap().index_open);
    let model = world.model.clone();
    (world.close(), model)
}

fn open(bytes: Vec<u8>) -> RunLog {
    options().open_storage(Arc::new(MemoryStorage::from_bytes(bytes))).unwrap()
}

/// Everything is there, and nothing else.
#[track_caller]
fn check(log: &RunLog, model: &Model) {
    let all = model.events.len();
    if let Err(error) = model.check(log, all, all) {
        panic!("{error}");
    }
}

#[test]
fn with_a_destroyed_index_the_answers_are_the_same() {
    let (bytes, model) = closed_store();
    let extents = index_extents(&bytes);
    assert!(!extents.is_empty());
    let zeros = |bytes: &mut [u8]| bytes.fill(0);
    let noise = |bytes: &mut [u8]| SplitMix64::new(5).fill(bytes);
    let ones = |bytes: &mut [u8]| bytes.fill(0xff);
    let front: fn(&mut [u8]) = |bytes| bytes[..4096].fill(0);
    let back: fn(&mut [u8]) = |bytes| bytes[4096..].fill(0x55);
    let kinds: [fn(&mut [u8]); 5] = [zeros, noise, ones, front, back];
    for (kind, destroy) in kinds.into_iter().enumerate() {
        for only in (0..extents.len()).map(Some).chain([None]) {
            let mut damaged = bytes.clone();
            for (number, range) in extents.iter().enumerate() {
                if only.is_none_or(|only| only == number) {
                    destroy(&mut damaged[range.clone()]);
                }
            }
            let log = open(damaged);
            println!("damage {kind} in {only:?}: {:?}", log.recovery_report().index);
            check(&log, &model);
            log.checkpoint().unwrap();
            check(&log, &model);
            assert!(log.verify().unwrap().is_clean());
            log.close().unwrap();
        }
    }
}

/// The library of the index does not verify pages when it reads them: a flipped bit in a key hides
/// entries. Of 2,000 flips 23 did so while the index was not verified at its opening.
#[test]
fn a_flipped_bit_of_the_index_never_makes_a_wrong_answer() {
    let (bytes, model) = closed_store();
    let extents = index_extents(&bytes);
    let mut random = SplitMix64::new(9);
    let used: Vec<usize> = extents.into_iter().flatten().filter(|&at| bytes[at] != 0).collect();
    let flips = scale(150, 150);
    for _ in 0..flips {
        let at = used[random.index(used.len())];
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.below(8);
        println!("byte {at}");
        check(&open(damaged), &model);
    }
}
