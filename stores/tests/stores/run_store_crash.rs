//! Random calls on a simulated disk that is killed, or loses power, at any operation; what is there
//! afterwards is compared with a model, and the call that was under way is made again.

use std::collections::BTreeMap;
use std::sync::Arc;

use runlog::Timestamp;
use runlog_sim::{CrashImages, SimClock, SimDisk, SplitMix64, Survivors, settings};
use runlog_stores::run_store::{
    RetentionConfig, RunRecord, RunStarted, RunStatus, RunStore, RunTermination,
};

use super::run_store_world::{
    Life, NOW, World, ended, in_all_lives, options, started, success, turn,
};

const RETENTION: RetentionConfig = RetentionConfig { max_per_agent: 3, max_age_days: 0 };
const AGENTS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum Call {
    Start(RunStarted),
    Turns(String, String, Vec<RunRecord>),
    End(runlog_stores::run_store::RunEnded),
    RollBack(RunStarted),
    Adopt,
    Collect,
}

impl Call {
    fn make(&self, store: &RunStore) -> std::io::Result<()> {
        match self {
            Self::Start(start) => store.write_started(start),
            Self::Turns(agent, run, turns) => store.append_turns(agent, run, turns),
            Self::End(end) => store.write_ended(end),
            Self::RollBack(start) => store.rollback_empty_run_start(start).map(drop),
            Self::Adopt => store.try_adopt_orphans().map(drop),
            Self::Collect => store.try_gc().map(drop),
        }
    }
}

/// The runs as plain collections, by the rules of the original.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    runs: BTreeMap<(String, String), Vec<RunRecord>>,
}

impl Model {
    fn apply(&mut self, call: &Call, now: i64) {
        let key = |agent: &str, run: &str| (agent.to_owned(), run.to_owned());
        match call {
            Call::Start(start) => {
                let run = self.runs.entry(key(&start.agent_id, &start.run_id)).or_default();
                if !run.iter().any(|record| record.kind() == "started") {
                    run.push(RunRecord::Started(start.clone()));
                }
            }
            Call::Turns(agent, run, turns) => {
                self.runs.entry(key(agent, run)).or_default().extend(turns.iter().cloned());
            }
            Call::End(end) => {
                let run = self.runs.entry(key(&end.agent_id, &end.run_id)).or_default();
                if !run.iter().any(|record| record.kind() == "ended") {
                    run.push(RunRecord::Ended(end.clone()));
                }
            }
            Call::RollBack(start) => {
                let key = key(&start.agent_id, &start.run_id);
                if self.runs.get(&key).is_some_and(|run| run.len() == 1 && is_started(run)) {
                    self.runs.remove(&key);
                }
            }
            Call::Adopt => {
                for ((agent, id), run) in &mut self.runs {
                    if is_started(run) && !is_ended(run) {
                        let end = ended(agent, id, now, RunTermination::Incomplete);
                        run.push(RunRecord::Ended(end));
                    }
                }
            }
            Call::Collect => self.collect(),
        }
    }

    fn collect(&mut self) {
        for agent in AGENTS {
            let mut ended: Vec<_> = self
                .runs
                .iter()
                .filter(|((of, _), run)| of == agent && is_started(run) && is_ended(run))
                .map(|(key, run)| (started_at(run), key.clone()))
                .collect();
            ended.sort();
            let gone = ended.len().saturating_sub(RETENTION.max_per_agent);
            for (_, key) in ended.into_iter().take(gone) {
                self.runs.remove(&key);
            }
        }
    }

    /// The runs in short, for messages.
    fn brief(&self) -> String {
        let mut brief = String::new();
        for ((agent, id), run) in &self.runs {
            brief.push_str(&format!("{agent}/{id}:"));
            for record in run {
                match record {
                    RunRecord::Turn(turn) => brief.push_str(&format!(" {}", turn.index)),
                    other => brief.push_str(&format!(" {}", other.kind())),
                }
            }
            brief.push('\n');
        }
        brief
    }

    /// The runs that a list has.
    fn listed(&self) -> Vec<(String, String, RunStatus, usize)> {
        let listed = self.runs.iter().filter(|(_, run)| is_started(run));
        listed
            .map(|((agent, id), run)| {
                let turns = run.iter().filter(|record| record.kind() == "turn").count();
                let status = run.iter().find_map(|record| match record {
                    RunRecord::Ended(end) => Some(match end.termination {
                        RunTermination::Outcome { .. } => RunStatus::Completed,
                        _ => RunStatus::Incomplete,
                    }),
                    _ => None,
                });
                (agent.clone(), id.clone(), status.unwrap_or(RunStatus::InProgress), turns)
            })
            .collect()
    }
}

fn is_started(run: &[RunRecord]) -> bool {
    run.iter().any(|record| record.kind() == "started")
}

fn is_ended(run: &[RunRecord]) -> bool {
    run.iter().any(|record| record.kind() == "ended")
}

fn started_at(run: &[RunRecord]) -> i64 {
    run.iter()
        .find_map(|record| match record {
            RunRecord::Started(start) => start.started_at.timestamp_nanos_opt(),
            _ => None,
        })
        .unwrap()
}

/// The model of what a store shows; its list must say the same as its traces.
fn shown(store: &RunStore, known: &Model) -> Model {
    let mut shown = Model::default();
    for (agent, run) in known.runs.keys() {
        if let Some(trace) = store.try_get_run_trace_for(agent, run).unwrap() {
            assert!(trace.damage.is_empty());
            shown.runs.insert((agent.clone(), run.clone()), trace.records);
        }
    }
    let mut listed: Vec<_> = AGENTS
        .iter()
        .flat_map(|agent| store.try_list_runs(agent).unwrap())
        .map(|run| (run.agent_id, run.run_id, run.status, run.turn_count))
        .collect();
    listed.sort_by(|left, right| (&left.0, &left.1).cmp(&(&right.0, &right.1)));
    assert_eq!(listed, shown.listed(), "lists and traces say the same");
    shown
}

/// How many scripts are tried: more where there is time.
fn scripts() -> u64 {
    settings::scale(4, 4)
}

/// The calls of a script, what each has done to the disk, and the model after each.
struct Script {
    calls: Vec<(Call, i64)>,
    /// The operations that were done when a call returned.
    boundaries: Vec<usize>,
    models: Vec<Model>,
    /// Whether everything was on disk when a call returned.
    durable: Vec<bool>,
    /// All runs that ever were.
    everything: Model,
    recording: runlog_sim::Recording,
}

fn random_call(random: &mut SplitMix64, number: usize) -> Call {
    let agent = AGENTS[random.index(2)];
    let run = format!("r{}", random.index(6));
    // The same ids start in the same way again, unless they have gone in the meantime.
    let start = started(agent, &run, NOW + i64::from(run.as_bytes()[1]));
    match random.index(16) {
        0..4 => Call::Start(start),
        4..9 => {
            let count = 1 + random.index(3);
            let turns = (0..count).map(|index| turn(number * 10 + index, "p")).collect();
            Call::Turns(agent.to_owned(), run, turns)
        }
        9..13 => Call::End(ended(agent, &run, NOW, success())),
        13 => Call::RollBack(start),
        14 => Call::Adopt,
        _ => Call::Collect,
    }
}

fn script(seed: u64, count: usize) -> Script {
    let mut random = SplitMix64::new(seed);
    let clock = SimClock::new(Timestamp(NOW));
    let disk = Arc::new(SimDisk::recording());
    let log = options(&clock).create_storage(disk.clone()).unwrap();
    let store = RunStore::on(log, RETENTION);
    let mut model = Model::default();
    let (mut calls, mut models) = (Vec::new(), vec![model.clone()]);
    let (mut boundaries, mut everything) = (vec![disk.op_count()], Model::default());
    let mut durable = Vec::new();
    for number in 0..count {
        clock.advance(1000);
        let (call, now) = (random_call(&mut random, number), NOW + 1000 * (number as i64 + 1));
        let before = model.clone();
        model.apply(&call, now);
        match call.make(&store) {
            Ok(()) => durable.push(match call {
                Call::Turns(..) => false,
                Call::Start(_) | Call::End(_) | Call::Adopt => true,
                Call::RollBack(_) | Call::Collect => model != before,
            }),
            // The run was adopted, so that this end is another one.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                assert_eq!(model, before, "{call:?}");
                durable.push(false);
            }
            Err(error) => panic!("{call:?}: {error}"),
        }
        everything.runs.extend(model.runs.clone());
        assert_eq!(shown(&store, &everything), model, "after {call:?}");
        calls.push((call, now));
        models.push(model.clone());
        boundaries.push(disk.op_count());
    }
    drop(store);
    let recording = disk.take_recording();
    Script { calls, boundaries, models, durable, everything, recording }
}

/// Each run is as before the call or as after it.
fn is_between(found: &Model, before: &Model, after: &Model) -> bool {
    let keys = before.runs.keys().chain(after.runs.keys()).chain(found.runs.keys());
    keys.into_iter().all(|key| {
        let run = found.runs.get(key);
        run == before.runs.get(key) || run == after.runs.get(key)
    })
}

fn opened(image: Vec<u8>, now: i64) -> (SimClock, RunStore) {
    let clock = SimClock::new(Timestamp(now));
    let log = options(&clock).open_storage(Arc::new(SimDisk::from_image(image))).unwrap();
    assert!(log.recovery_report().damaged.is_empty());
    (clock, RunStore::on(log, RETENTION))
}

#[test]
fn after_a_kill_at_any_moment_each_call_was_made_or_not_and_can_be_made_again() {
    for seed in 0..scripts() {
        println!("seed {seed}");
        let script = script(seed, 60);
        let mut crashes = CrashImages::new(&script.recording);
        let mut random = SplitMix64::new(seed ^ 0xdead);
        for (number, (call, now)) in script.calls.iter().enumerate() {
            let (from, to) = (script.boundaries[number], script.boundaries[number + 1]);
            let (before, after) = (&script.models[number], &script.models[number + 1]);
            for boundary in from..=to {
                crashes.seek(boundary);
                // The operation behind the last is of the next call.
                let stored = if boundary < to { random.index(200) } else { 0 };
                let image = crashes.killed(stored);
                let (_, store) = opened(image, *now);
                let found = shown(&store, &script.everything);
                assert!(is_between(&found, before, after), "{call:?}\n{}", found.brief());
                if boundary == to {
                    assert_eq!(found.brief(), after.brief(), "{call:?} has returned");
                }
                // A call that adds turns is not the same once more.
                if !matches!(call, Call::Turns(..)) {
                    let made = call.make(&store);
                    let now = shown(&store, &script.everything);
                    assert_eq!(now.brief(), after.brief(), "{call:?} again: {made:?}");
                }
            }
        }
    }
}

#[test]
fn after_a_power_loss_what_was_durable_is_there_and_the_rest_is_a_beginning() {
    for seed in 1000..1000 + scripts() {
        println!("seed {seed}");
        let script = script(seed, 50);
        let mut crashes = CrashImages::new(&script.recording);
        for (number, (call, now)) in script.calls.iter().enumerate() {
            let (from, to) = (script.boundaries[number], script.boundaries[number + 1]);
            // The last call in front of this one after which everything was on disk.
            let durable = (0..number).rev().find(|&call| script.durable[call]);
            let floor = &script.models[durable.map_or(0, |call| call + 1)];
            let after = &script.models[number + 1];
            for boundary in from..=to {
                crashes.seek(boundary);
                let image = crashes.image(Survivors::Half, seed + boundary as u64);
                let (_, store) = opened(image, *now);
                let found = shown(&store, &script.everything);
                for (key, run) in &found.runs {
                    // What a collection or a rollback takes may be there still.
                    let whole = after.runs.get(key).or(script.models[number].runs.get(key));
                    let whole = whole.or(floor.runs.get(key));
                    assert!(whole.is_some_and(|whole| whole.starts_with(run)), "{key:?} {call:?}");
                }
                for (key, run) in &floor.runs {
                    if after.runs.contains_key(key) {
                        let found = found.runs.get(key).map_or(0, Vec::len);
                        assert!(found >= run.len(), "{key:?}: {found} of {}, {call:?}", run.len());
                    }
                }
                // And from here on it is a store like any other.
                store.try_adopt_orphans().unwrap();
                store.try_gc().unwrap();
                shown(&store, &script.everything);
            }
        }
    }
}

#[test]
fn a_start_or_an_end_that_met_an_error_is_not_acknowledged_and_can_be_made_again() {
    let start = Call::Start(started("a", "r", NOW));
    let end = Call::End(ended("a", "r", NOW, success()));
    for (name, before, call) in [("start", None, &start), ("end", Some(&start), &end)] {
        let mut met = 0;
        for failing in 0..20 {
            let clock = SimClock::new(Timestamp(NOW));
            let disk = Arc::new(SimDisk::new());
            let log = options(&clock).create_storage(disk.clone()).unwrap();
            let store = RunStore::on(log, RETENTION);
            if let Some(before) = before {
                before.make(&store).unwrap();
            }
            disk.fail_op(disk.op_count() + failing, std::io::ErrorKind::PermissionDenied);
            let Err(error) = call.make(&store) else { continue };
            met += 1;
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{name}: {error}");
            // A store that has met an error writes nothing more until it is opened again.
            for survivors in [Survivors::Nothing, Survivors::Half, Survivors::Everything] {
                let (_, store) = opened(disk.crash(survivors, failing as u64), NOW);
                call.make(&store).unwrap();
                call.make(&store).unwrap();
                let trace = store.get_run_trace("r").unwrap();
                let kinds: Vec<_> = trace.iter().map(RunRecord::kind).collect();
                let expected: &[&str] =
                    if before.is_some() { &["started", "ended"] } else { &["started"] };
                assert_eq!(kinds, expected, "{name}, operation {failing}");
            }
        }
        assert!(met >= 3, "{name}: START or END, record, sync; {met}");
    }
}

/// What the store puts in front of the first record of a run.
const MARK: &[u8] = br#"{"store":"run_store"}"#;

#[test]
fn a_start_of_which_a_kill_left_no_record_is_nothing_and_can_be_made_again_or_taken_out() {
    in_all_lives(RETENTION, |world| {
        for run in ["again", "turns", "gone"] {
            world.log().start_run("a", run, runlog::Metadata::json(MARK)).unwrap();
        }
        assert!(world.store().get_run_trace("gone").is_none());
        assert!(world.store().agent_for_run("gone").is_none());
        assert!(world.store().list_runs("a").is_empty());
        world.store().write_started(&started("a", "again", NOW)).unwrap();
        world.store().append_turns("a", "turns", &[turn(0, "p")]).unwrap();
        let adoption = world.store().try_adopt_orphans().unwrap();
        assert_eq!((adoption.adopted, adoption.taken_out), (1, 1));
        assert!(world.log().run("gone").unwrap_err().is_not_found());
        assert_eq!(world.store().get_run_trace("turns").unwrap(), [turn(0, "p")]);
        assert_eq!(world.store().get_run_trace("again").unwrap().len(), 2);
    });
}

#[test]
fn an_end_of_which_a_kill_left_the_record_only_counts_and_is_completed() {
    in_all_lives(RetentionConfig { max_per_agent: 1, max_age_days: 0 }, |world| {
        let end = |run: &str| ended("a", run, NOW + 5, success());
        for (number, run) in (0..).zip(["adopted", "again", "collected"]) {
            world.store().write_started(&started("a", run, NOW + number)).unwrap();
            let line = RunRecord::Ended(end(run)).to_line();
            let record = runlog::NewRecord::json(&line).kind("ended");
            world.log().append_to("a", run, &record, runlog::Allow::nothing()).unwrap();
        }
        let statuses = || -> Vec<RunStatus> {
            world.store().list_runs("a").iter().map(|run| run.status).collect()
        };
        let by_engine = |run: &str| world.log().run(run).unwrap().status;
        assert_eq!(statuses(), [RunStatus::Completed; 3]);
        assert_eq!(by_engine("again"), runlog::RunStatus::InProgress);
        world.store().write_ended(&end("again")).unwrap();
        assert_eq!(by_engine("again"), runlog::RunStatus::Completed);
        // A collection completes what is left, and takes all but the newest.
        assert_eq!(world.store().gc(), 2);
        assert_eq!(by_engine("collected"), runlog::RunStatus::Completed);

        let line = RunRecord::Ended(end("next")).to_line();
        world.store().write_started(&started("a", "next", NOW + 9)).unwrap();
        let record = runlog::NewRecord::json(&line).kind("ended");
        world.log().append_to("a", "next", &record, runlog::Allow::nothing()).unwrap();
        let adoption = world.store().try_adopt_orphans().unwrap();
        assert_eq!((adoption.adopted, adoption.completed), (0, 1));
        assert_eq!(by_engine("next"), runlog::RunStatus::Completed);
        assert_eq!(world.store().get_run_trace("next").unwrap().len(), 2);
    });
}

#[test]
fn a_rollback_of_which_a_kill_left_the_first_half_is_one_and_the_run_can_start_again() {
    // The end that says so, as `rollback_empty_run_start` writes it.
    let half = |world: &World, run: &str| {
        world.store().write_started(&started("a", run, NOW)).unwrap();
        let fold = concat!(
            r#"{"store":"run_store","fold":{"records":1,"turns":0,"model_turns":0,"started":"#,
            r#"{"seq":0,"at":"2026-01-01T00:00:00Z"},"ended":null,"pending":false,"damaged":0,"#,
            r#""rolled_back":true}}"#
        );
        let json = runlog::ContentType::JSON;
        let outcome = runlog::Outcome::interrupted().bytes(fold.as_bytes()).content_type(json);
        world.log().end_run("a", run, &outcome, runlog::Allow::nothing()).unwrap();
    };
    for life in [Life::ClosedAndOpened, Life::Killed] {
        let world = World::new(life, RETENTION);
        for run in ["again", "twice", "collected"] {
            half(&world, run);
        }
        assert!(world.store().list_runs("a").is_empty());
        assert!(world.store().get_run_trace("again").is_none());
        let other = RunStarted { intent: "other".to_owned(), ..started("a", "again", NOW) };
        world.store().write_started(&other).unwrap();
        assert_eq!(world.store().run_started("a", "again").unwrap(), Some(other));
        assert!(world.store().rollback_empty_run_start(&started("a", "twice", NOW)).unwrap());
        assert_eq!(world.store().gc(), 0, "what never was does not count");
        assert!(world.log().run("collected").unwrap_err().is_not_found());
        assert_eq!(world.store().list_runs("a").len(), 1);
    }
}
