//! Lists of runs and agents: newest first, with cursors that stay valid, the same from each source.
//!
//! Method: a model of plain collections gives the right answer for each list. A store is queried in
//! each state that answers come from: the tail, sealed segments in memory, the index, directories
//! without an index, a reopened store, and one whose index is damaged.

use std::collections::BTreeSet;
use std::sync::Arc;

use runlog::env::Environment;
use runlog::format::EXTENTS_AT;
use runlog::format::segments::segment::SegmentHeader;
use runlog::storage::MemoryStorage;
use runlog::{
    AgentId, Allow, Cursor, Durability, Error, Metadata, NewRecord, Options, Outcome,
    ReaderOptions, RunLog, RunPage, RunQuery, RunStatus, Timestamp,
};
use runlog_sim::{SimClock, SplitMix64};

use runlog_sim::settings::scale;

const EXTENT: u64 = 64 << 10;

/// A run as the lists must report it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Expected {
    agent: String,
    run: String,
    at: i64,
    status: RunStatus,
    records: u64,
}

/// What was done to a store, in the order of the starts; deleted runs are `None`.
#[derive(Debug, Clone, Default)]
struct Model {
    runs: Vec<Option<Expected>>,
}

impl Model {
    fn living(&self) -> impl DoubleEndedIterator<Item = &Expected> {
        self.runs.iter().flatten()
    }

    /// Newest first; of two with the same time the one that was started later.
    fn newest(&self, agent: Option<&str>) -> Vec<Expected> {
        let mut runs: Vec<(usize, &Expected)> = self
            .runs
            .iter()
            .enumerate()
            .filter_map(|(number, run)| Some((number, run.as_ref()?)))
            .filter(|(_, run)| agent.is_none_or(|agent| run.agent == agent))
            .collect();
        runs.sort_by_key(|(number, run)| core::cmp::Reverse((run.at, *number)));
        runs.into_iter().map(|(_, run)| run.clone()).collect()
    }

    fn agents(&self) -> BTreeSet<&str> {
        self.living().map(|run| run.agent.as_str()).collect()
    }
}

/// A store with a clock that the test sets, and its model.
struct World {
    storage: Arc<MemoryStorage>,
    clock: SimClock,
    index: bool,
    log: Option<RunLog>,
    model: Model,
    random: SplitMix64,
}

impl World {
    fn new(index: bool) -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let clock = SimClock::new(Timestamp(1_000));
        let log = options(&clock, index).create_storage(storage.clone()).unwrap();
        let random = SplitMix64::new(11);
        Self { storage, clock, index, log: Some(log), model: Model::default(), random }
    }

    fn log(&self) -> &RunLog {
        self.log.as_ref().unwrap()
    }

    /// Starts a run; the time stays, advances, or jumps back.
    fn start(&mut self) -> usize {
        match self.random.below(6) {
            0 | 1 => {}
            2 => self.clock.advance(-i64::try_from(self.random.below(300)).unwrap()),
            _ => self.clock.advance(i64::try_from(self.random.below(100)).unwrap()),
        }
        let number = self.model.runs.len();
        let agent = format!("agent-{}", self.random.below(5));
        self.start_as(&agent, &format!("run-{number}"))
    }

    fn start_as(&mut self, agent: &str, run: &str) -> usize {
        let metadata = Metadata::new(b"m").durability(Durability::Process);
        self.log().start_run(agent, run, metadata).unwrap();
        let at = self.clock_now();
        let (agent, run, status) = (agent.to_owned(), run.to_owned(), RunStatus::InProgress);
        self.model.runs.push(Some(Expected { agent, run, at, status, records: 0 }));
        self.model.runs.len() - 1
    }

    fn append(&mut self, number: usize, len: usize) {
        let run = self.model.runs[number].as_mut().unwrap();
        let log = self.log.as_ref().unwrap();
        let payload = vec![1; len];
        let record = NewRecord::new(&payload);
        log.append_to(&run.agent, &run.run, &record, Allow::nothing()).unwrap();
        run.records += 1;
    }

    fn end(&mut self, number: usize) {
        let run = self.model.runs[number].as_mut().unwrap();
        let log = self.log.as_ref().unwrap();
        let outcome = Outcome::completed().durability(Durability::Process);
        log.end_run(&run.agent, &run.run, &outcome, Allow::nothing()).unwrap();
        run.status = RunStatus::Completed;
    }

    fn delete(&mut self, number: usize) {
        let run = self.model.runs[number].take().unwrap();
        let log = self.log.as_ref().unwrap();
        log.delete_run((run.agent.as_str(), run.run.as_str())).unwrap();
    }

    /// A random living run of this status.
    fn pick(&mut self, status: RunStatus) -> Option<usize> {
        let found: Vec<usize> = (0..self.model.runs.len())
            .filter(|&number| {
                self.model.runs[number].as_ref().is_some_and(|run| run.status == status)
            })
            .collect();
        (!found.is_empty()).then(|| found[self.random.index(found.len())])
    }

    /// Some starts, appends, ends and deletions.
    fn act(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.random.below(10) {
                0..=2 => {
                    self.start();
                }
                3..=6 => {
                    if let Some(number) = self.pick(RunStatus::InProgress) {
                        let len = self.random.index(1500);
                        self.append(number, len);
                    }
                }
                7 | 8 => {
                    if let Some(number) = self.pick(RunStatus::InProgress) {
                        self.end(number);
                    }
                }
                _ => {
                    if let Some(number) = self.pick(RunStatus::Completed) {
                        self.delete(number);
                    }
                }
            }
        }
    }

    fn reopen(&mut self, close: bool) {
        let log = self.log.take().unwrap();
        if close {
            log.close().unwrap();
        } else {
            // What a killed process leaves: the current bytes.
            self.storage = Arc::new(MemoryStorage::from_bytes(self.storage.to_bytes()));
            drop(log);
        }
        self.log =
            Some(options(&self.clock, self.index).open_storage(self.storage.clone()).unwrap());
    }

    fn clock_now(&self) -> i64 {
        runlog::env::Clock::now(&self.clock).0
    }

    #[track_caller]
    fn check(&self) {
        check_lists(self.log(), &self.model);
    }
}

fn options(clock: &SimClock, index: bool) -> Options {
    let mut environment = Environment::system();
    environment.clock = Arc::new(clock.clone());
    Options::new().extent_size(EXTENT).background(false).index(index).environment(environment)
}

/// All pages of a list, put together.
#[track_caller]
fn gather(limit: usize, mut page: impl FnMut(Option<&Cursor>) -> RunPage) -> Vec<Expected> {
    let mut all: Vec<Expected> = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let found = page(cursor.as_ref());
        assert!(found.runs.len() <= limit);
        assert!(found.next.is_none() || found.runs.len() == limit, "a short page in the middle");
        all.extend(found.runs.iter().map(|run| Expected {
            agent: run.agent.to_string(),
            run: run.run.to_string(),
            at: run.started_at.0,
            status: run.status,
            records: run.records,
        }));
        match found.next {
            // The text form of a cursor works like the cursor.
            Some(next) => cursor = Some(next.to_string().parse().unwrap()),
            None => return all,
        }
    }
}

#[track_caller]
fn check_lists(log: &RunLog, model: &Model) {
    for limit in [1, 3, 20, 64, 1000] {
        let all = gather(limit, |after| {
            log.list_runs(&RunQuery::new().limit(limit).after(after.copied())).unwrap()
        });
        assert_eq!(all, model.newest(None), "all runs, {limit} a page");
        let running = gather(limit, |after| {
            log.list_runs(
                &RunQuery::new()
                    .status(RunStatus::InProgress)
                    .oldest_first()
                    .limit(limit)
                    .after(after.copied()),
            )
            .unwrap()
        });
        let status = RunStatus::InProgress;
        let mut wanted = model.newest(None);
        wanted.retain(|run| run.status == status);
        wanted.reverse();
        assert_eq!(running, wanted, "in progress, {limit} a page");
        let mut agents: Vec<AgentId> = Vec::new();
        loop {
            let page = log.agents(agents.last(), limit).unwrap();
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            agents.extend(page);
        }
        let wanted: Vec<&str> = model.agents().into_iter().collect();
        assert_eq!(agents.iter().map(AgentId::as_str).collect::<Vec<_>>(), wanted);
        for agent in wanted {
            let runs = gather(limit, |after| {
                log.list_runs(&RunQuery::new().agent(agent).limit(limit).after(after.copied()))
                    .unwrap()
            });
            assert_eq!(runs, model.newest(Some(agent)), "runs of {agent}, {limit} a page");
        }
    }
    assert!(log.list_runs(&RunQuery::new().agent("nobody").limit(10)).unwrap().runs.is_empty());
    for run in model.living() {
        assert_eq!(log.agent_of(&run.run).unwrap(), run.agent.as_str());
        let summary = log.run(&run.run).unwrap();
        assert_eq!((summary.status, summary.records), (run.status, run.records), "{}", run.run);
        assert_eq!(log.trace(&run.run).unwrap().count() as u64, run.records);
    }
    for (number, run) in model.runs.iter().enumerate() {
        if run.is_none() {
            let gone = log.run(format!("run-{number}").as_str());
            assert!(gone.unwrap_err().is_not_found());
        }
    }
}

/// The same workload, asked in each state a store can be in.
fn lists_follow_the_model(index: bool) {
    let mut world = World::new(index);
    world.check();
    for round in 0..8 {
        world.act(60);
        world.check();
        match round % 4 {
            0 => {
                world.log().checkpoint().unwrap();
                world.log().reclaim().unwrap();
            }
            1 => world.reopen(true),
            2 => world.reopen(false),
            _ => {}
        }
        world.check();
    }
    assert!(world.log().stats().unwrap().sealed_segments > 0);
    assert!(world.log().verify().unwrap().is_clean());
    // And the reverse: with the index that was missing, or without the one that existed.
    world.index = !index;
    world.reopen(true);
    world.check();
    world.act(30);
    world.check();
    assert_eq!(world.log().stats().unwrap().index_open, !index);
}

#[test]
fn with_an_index_the_lists_are_what_was_done() {
    lists_follow_the_model(true);
}

#[test]
fn without_an_index_the_lists_are_the_same() {
    lists_follow_the_model(false);
}

#[test]
fn what_a_reader_lists_first_is_the_beginning_of_the_whole_list() {
    let mut world = World::new(false);
    for round in 0..6 {
        world.act(300);
        if round % 3 == 2 {
            world.log().reclaim().unwrap();
            world.log().compact().unwrap();
        }
        let held: Vec<_> = (0..3).filter_map(|_| world.pick(RunStatus::Completed)).collect();
        let held = held.into_iter().filter_map(|number| world.model.runs[number].as_ref());
        let held: Vec<_> = held.map(|run| (run.agent.as_str(), run.run.as_str())).collect();
        for run in &held {
            world.log().hold(*run, "it is listed").unwrap();
        }
        let open = || ReaderOptions::new().open_storage(world.storage.clone()).unwrap();
        let asked_before = open();
        let since = Timestamp(world.clock_now() - 900);
        let query = RunQuery::new;
        for query in [
            query(),
            query().agent("agent-2"),
            query().status(RunStatus::InProgress),
            query().status(RunStatus::Completed).agent("agent-1"),
            query().held(true),
            query().held(false).status(RunStatus::Completed),
            query().since(since),
            query().until(since),
        ] {
            for query in [query.clone(), query.oldest_first()] {
                let all = asked_before.list_runs(&query.clone().limit(10_000)).unwrap().runs;
                for limit in [1, 7, 20, 40, 63] {
                    let page = open().list_runs(&query.clone().limit(limit)).unwrap();
                    assert_eq!(page.runs, all[..limit.min(all.len())], "{query:?} {limit}");
                    assert_eq!(page.next.is_some(), all.len() > limit, "{query:?} {limit}");
                    let next = query.clone().after(page.next).limit(20);
                    let rest = all.iter().skip(limit).take(20).cloned().collect::<Vec<_>>();
                    if page.next.is_some() {
                        assert_eq!(open().list_runs(&next).unwrap().runs, rest, "{next:?}");
                    }
                }
            }
        }
        for run in &held {
            world.log().release(*run).unwrap();
        }
    }
    assert!(world.log().stats().unwrap().sealed_segments > 3);
}

#[test]
fn runs_of_the_same_time_are_listed_the_later_started_first() {
    let mut world = World::new(true);
    for number in 0..10 {
        world.start_as("agent", &format!("run-{number}"));
    }
    let names = |world: &World| {
        let page = world.log().list_runs(&RunQuery::new().agent("agent").limit(100)).unwrap();
        page.runs.iter().map(|run| run.run.to_string()).collect::<Vec<_>>()
    };
    let wanted: Vec<_> = (0..10).rev().map(|number| format!("run-{number}")).collect();
    assert_eq!(names(&world), wanted);
    world.check();
    world.reopen(true);
    assert_eq!(names(&world), wanted);
    world.check();
}

#[test]
fn a_clock_that_jumps_back_does_not_lose_a_run_from_the_lists() {
    let mut world = World::new(true);
    for (number, at) in [50, 40, 60, 10, 60, -5, 60, i64::MIN, i64::MAX, 0].iter().enumerate() {
        world.clock.set(Timestamp(*at));
        let run = world.start_as("agent", &format!("run-{number}"));
        for _ in 0..10 {
            world.append(run, 2000);
        }
    }
    world.check();
    world.log().checkpoint().unwrap();
    world.check();
    world.clock.set(Timestamp(5));
    for number in 0..5 {
        world.end(number);
    }
    world.reopen(true);
    world.check();
}

#[test]
fn a_run_without_a_start_is_listed_at_the_time_of_its_first_record() {
    let mut world = World::new(true);
    world.clock.set(Timestamp(1_000));
    let all = Allow::everything();
    let imported = |at: i64| NewRecord::new(b"imported").at(Timestamp(at));
    let log = world.log();
    log.append_to("agent", "middle", &imported(50), all).unwrap();
    log.append_batch_to("agent", "oldest", &[imported(10), imported(90)], all).unwrap();
    let large = vec![1; 20_000];
    log.append_to("agent", "oldest", &NewRecord::new(&large).at(Timestamp(80)), all).unwrap();
    log.end_run("agent", "newest", &Outcome::failed().at(Timestamp(70)), all).unwrap();
    log.append_to("agent", "now", &NewRecord::new(b"x"), all).unwrap();
    for reopened in [false, true] {
        if reopened {
            world.reopen(true);
        }
        let page = world.log().list_runs(&RunQuery::new().agent("agent").limit(10)).unwrap();
        let found: Vec<_> =
            page.runs.iter().map(|run| (run.run.as_str(), run.started_at.0)).collect();
        assert_eq!(found, [("now", 1_000), ("newest", 70), ("middle", 50), ("oldest", 10)]);
        assert!(page.runs.iter().all(|run| !run.started));
        assert_eq!(page.runs[3].last_at, Timestamp(90));
    }
}

/// Goal: a cursor neither repeats nor skips a run that exists all the time, whatever is started,
/// ended, deleted or checkpointed between two pages.
#[test]
fn cursors_stay_valid_while_runs_come_and_go_between_the_pages() {
    for seed in 0..20 {
        let mut world = World::new(seed % 2 == 0);
        world.random = SplitMix64::new(seed);
        world.act(200);
        let agent = seed % 3 == 0;
        let before = world.model.clone();
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = if agent {
                world
                    .log()
                    .list_runs(&RunQuery::new().agent("agent-1").limit(3).after(cursor))
                    .unwrap()
            } else {
                world.log().list_runs(&RunQuery::new().limit(3).after(cursor)).unwrap()
            };
            seen.extend(page.runs.iter().map(|run| run.run.to_string()));
            let Some(next) = page.next else { break };
            cursor = Some(next);
            // Even the run of the cursor may be deleted.
            let last = page.runs.last().map(|run| run.run.to_string());
            let at =
                world.model.runs.iter().position(|run| {
                    run.as_ref().is_some_and(|run| Some(&run.run) == last.as_ref())
                });
            if let Some(at) = at.filter(|_| world.random.below(2) == 0) {
                if world.model.runs[at].as_ref().unwrap().status == RunStatus::InProgress {
                    world.end(at);
                }
                world.delete(at);
            }
            world.act(8);
            match world.random.below(6) {
                0 => world.log().checkpoint().unwrap(),
                1 => world.log().reclaim().unwrap(),
                2 => {
                    let close = world.random.below(2) == 0;
                    world.reopen(close);
                }
                _ => {}
            }
        }
        let distinct: BTreeSet<&String> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "a run was repeated, seed {seed}");
        let only = agent.then_some("agent-1");
        let still: BTreeSet<String> =
            world.model.newest(only).into_iter().map(|run| run.run).collect();
        let there: Vec<String> = before.newest(only).into_iter().map(|run| run.run).collect();
        for run in there.iter().filter(|run| still.contains(*run)) {
            assert!(seen.contains(run), "{run} was skipped, seed {seed}");
        }
        let order: Vec<&String> = seen.iter().filter(|run| there.contains(run)).collect();
        let wanted: Vec<&String> = there.iter().filter(|run| seen.contains(run)).collect();
        assert_eq!(order, wanted, "out of order, seed {seed}");
    }
}

#[test]
fn the_runs_in_progress_are_paged_in_the_order_of_their_starts() {
    let mut world = World::new(true);
    for number in 0..200 {
        world.start_as("agent", &format!("run-{number}"));
    }
    world.reopen(true);
    let first = world
        .log()
        .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(50))
        .unwrap();
    assert_eq!(first.runs.len(), 50);
    assert_eq!(first.runs[49].run, "run-49");
    // Ends before and behind the cursor, and a new run.
    for number in [10, 49, 50, 120] {
        world.end(number);
    }
    world.start_as("agent", "run-200");
    let rest = world
        .log()
        .list_runs(
            &RunQuery::new()
                .status(RunStatus::InProgress)
                .oldest_first()
                .limit(1000)
                .after(first.next),
        )
        .unwrap();
    let names: Vec<_> = rest.runs.iter().map(|run| run.run.to_string()).collect();
    let wanted: Vec<_> = (50..=200)
        .filter(|number| ![50, 120].contains(number))
        .map(|number| format!("run-{number}"))
        .collect();
    assert_eq!(names, wanted);
    assert!(rest.next.is_none());
    world.check();
}

#[test]
fn a_run_id_that_agents_share_is_ambiguous_in_each_state_until_only_one_is_left() {
    let mut world = World::new(true);
    let filler = world.start_as("z", "run-filler");
    let agents = ["c", "a", "b"];
    for agent in agents {
        let run = world.start_as(agent, "shared");
        world.append(run, 10);
        for _ in 0..50 {
            world.append(filler, 2000);
        }
    }
    let ambiguous = |log: &RunLog, wanted: &[&str]| match log.agent_of("shared") {
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
    ambiguous(world.log(), &["a", "b", "c"]);
    world.log().checkpoint().unwrap();
    ambiguous(world.log(), &["a", "b", "c"]);
    world.reopen(true);
    ambiguous(world.log(), &["a", "b", "c"]);
    let nobody = world.log().run(("d", "shared"));
    assert!(matches!(nobody, Err(Error::RunNotFound { agent: Some(_), .. })));
    world.end(1);
    world.log().delete_run(("c", "shared")).unwrap();
    ambiguous(world.log(), &["a", "b"]);
    world.reopen(false);
    ambiguous(world.log(), &["a", "b"]);
    world.end(2);
    world.log().delete_run(("a", "shared")).unwrap();
    assert_eq!(world.log().agent_of("shared").unwrap(), "b");
    world.reopen(true);
    assert_eq!(world.log().agent_of("shared").unwrap(), "b");
    world.log().start_run("c", "shared", b"again").unwrap().append(b"x").unwrap();
    ambiguous(world.log(), &["b", "c"]);
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
fn closed_store() -> (World, Vec<u8>) {
    let mut world = World::new(true);
    world.act(400);
    world.log().checkpoint().unwrap();
    assert!(world.log().stats().unwrap().index_open);
    world.log.take().unwrap().close().unwrap();
    let bytes = world.storage.to_bytes();
    (world, bytes)
}

#[test]
fn with_a_destroyed_index_the_answers_are_the_same() {
    let (world, bytes) = closed_store();
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
            let storage = Arc::new(MemoryStorage::from_bytes(damaged));
            let log = options(&world.clock, true).open_storage(storage).unwrap();
            println!("damage {kind} in {only:?}: {:?}", log.recovery_report().index);
            check_lists(&log, &world.model);
            log.checkpoint().unwrap();
            check_lists(&log, &world.model);
            assert!(log.verify().unwrap().is_clean());
            log.close().unwrap();
        }
    }
}

/// The library of the index does not verify pages when it reads them: a flipped bit in a key hides
/// entries. Of 2,000 flips 23 did so while the index was not verified at its opening.
#[test]
fn a_flipped_bit_of_the_index_never_makes_a_wrong_answer() {
    let (world, bytes) = closed_store();
    let extents = index_extents(&bytes);
    let mut random = SplitMix64::new(9);
    let used: Vec<usize> = extents.into_iter().flatten().filter(|&at| bytes[at] != 0).collect();
    let flips = scale(150, 150);
    for _ in 0..flips {
        let at = used[random.index(used.len())];
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.below(8);
        println!("byte {at}");
        let storage = Arc::new(MemoryStorage::from_bytes(damaged));
        let log = options(&world.clock, true).open_storage(storage).unwrap();
        check_lists(&log, &world.model);
    }
}
