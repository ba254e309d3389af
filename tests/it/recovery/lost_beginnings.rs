//! A run whose first frame is lost began, for all views, when what is left of it says so.
//!
//! Lists and policies order runs by this time. It changes while the run goes on, since the times of
//! what is left replace that of the lost frame. So the writer, a process that reads beside it, one
//! that begins to read, and each later opening, with an index and without one, have to agree after
//! each change.

use std::sync::Arc;
use std::time::Duration;

use runlog::env::Environment;
use runlog::format::FrameKind;
use runlog::{
    Allow, NewRecord, Options, Outcome, ReadLog, Reader, ReaderOptions, Retention, RunLog,
    RunQuery, Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;
use crate::support::frames::frames;

const EXTENT: u64 = 64 << 10;
const SECOND: i64 = 1_000_000_000;
const AGENT: &str = "agent";

/// Where the hold is, which is all that is left of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Left {
    /// In the segment in which the run began.
    Beside,
    /// In the tail's segment; the one before it is lost.
    InTail,
    /// In a sealed segment; the one before it is lost.
    Sealed,
}

/// What is listed, newest first, with the times of creation; and what two policies delete.
#[derive(Debug, PartialEq)]
struct Said {
    listed: Vec<(String, Timestamp)>,
    planned: [Vec<String>; 2],
}

impl Said {
    fn created_at(&self, run: &str) -> Timestamp {
        self.listed.iter().find(|(name, _)| name == run).expect("it is listed").1
    }
}

fn said(log: &impl ReadLog) -> Said {
    let query = RunQuery::new().agent(AGENT);
    let listed = |query: &RunQuery| -> Vec<_> {
        let runs = log.list_runs(query).unwrap().runs;
        runs.iter().map(|run| (run.run.to_string(), run.created_at())).collect()
    };
    let newest = listed(&query);
    let mut oldest = listed(&query.clone().oldest_first());
    oldest.reverse();
    assert_eq!(newest, oldest);
    assert!(newest.is_sorted_by(|one, next| one.1 >= next.1), "{newest:?}");
    for (run, at) in &newest {
        assert_eq!(log.run((AGENT, run.as_str())).unwrap().created_at(), *at, "{run}");
    }
    let policies = [Retention::new().keep_newest(1), Retention::new().max_age(AGE)];
    let planned = policies.map(|policy| {
        let plan = log.gc_plan(&policy).unwrap();
        plan.evict.iter().map(|run| run.run.to_string()).collect()
    });
    Said { listed: newest, planned }
}

const AGE: Duration = Duration::from_secs(15);

struct Scene {
    disk: SimDisk,
    clock: SimClock,
    background: Background,
}

impl Scene {
    fn new() -> Self {
        let clock = SimClock::new(Timestamp(1000 * SECOND));
        Self { disk: SimDisk::untracked(Vec::new()), clock, background: Background::default() }
    }

    fn environment(&self) -> Environment {
        Environment::system()
            .clock(Arc::new(self.clock.clone()))
            .entropy(Arc::new(SimEntropy::new(7)))
    }

    fn options(&self, index: bool) -> Options {
        let options = Options::new().extent_size(EXTENT).index(index);
        options.environment(self.environment()).scheduler(Arc::new(self.background.clone()))
    }

    fn open(&self, index: bool) -> RunLog {
        self.options(index).open_storage(Arc::new(self.disk.clone())).unwrap()
    }

    fn reader_of(&self, disk: &SimDisk) -> Reader {
        let options = ReaderOptions::new().environment(self.environment());
        options.open_storage(Arc::new(disk.clone())).unwrap()
    }

    /// The store with a run `ended`, and a run `lost` of which a HOLD is all that is left.
    fn damaged(left: Left) -> Self {
        let scene = Self::new();
        // An index would know what the lost segment said.
        let log = scene.options(false).create_storage(Arc::new(scene.disk.clone())).unwrap();
        let start = |run: &str| drop(log.start_run(AGENT, run, ()).unwrap());
        if left != Left::Beside {
            start("lost");
            fill(&log);
        }
        scene.clock.advance(SECOND);
        start("ended");
        append(&log, "ended");
        end(&log, "ended");
        scene.clock.advance(SECOND);
        if left == Left::Beside {
            start("lost");
        }
        assert!(log.hold((AGENT, "lost"), "why").unwrap());
        assert!(log.release((AGENT, "lost")).unwrap());
        if left == Left::Beside {
            let mut image = scene.disk.image();
            drop(log);
            let mut all = frames(&image).into_iter();
            let (lost, _) = all.rfind(|(_, kind)| *kind == FrameKind::Start).unwrap();
            image[lost].fill(0xff);
            return Self { disk: SimDisk::untracked(image), ..scene };
        }
        if left == Left::Sealed {
            fill(&log);
        }
        log.checkpoint().unwrap();
        log.close().unwrap();
        let first = usize::try_from(EXTENT).unwrap();
        let mut image = scene.disk.image();
        image[first..2 * first].fill(0);
        Self { disk: SimDisk::untracked(image), ..scene }
    }

    /// What all views say, which is the same.
    fn said_by_all(&self, log: &RunLog, beside: &Reader, when: &str) -> Said {
        let said_here = said(log);
        beside.refresh().unwrap();
        assert_eq!(said(beside), said_here, "{when}, a process beside the writer");
        let copy = SimDisk::untracked(self.disk.image());
        assert_eq!(said(&self.reader_of(&copy)), said_here, "{when}, a process that begins");
        for index in [false, true] {
            let disk = SimDisk::untracked(self.disk.image());
            let other = Self { disk, background: Background::default(), clock: self.clock.clone() };
            let log = other.open(index);
            assert_eq!(said(&log), said_here, "{when}, opened with index {index}");
            log.checkpoint().unwrap();
            assert_eq!(said(&log), said_here, "{when}, after a checkpoint with index {index}");
        }
        said_here
    }
}

/// Fills a segment.
fn fill(log: &RunLog) {
    let segment = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == segment {
        let record = NewRecord::new(&[7; 5000]);
        let _ = log.append_to("another", "filler", &record, Allow::everything()).unwrap();
    }
}

fn append(log: &RunLog, run: &str) {
    let _ = log.writer((AGENT, run)).unwrap().append(b"record").unwrap();
}

fn end(log: &RunLog, run: &str) {
    let _ = log.end_run(AGENT, run, &Outcome::completed(), Allow::nothing()).unwrap();
}

#[test]
fn all_views_agree_when_a_run_began_of_which_a_hold_is_left_and_that_goes_on() {
    for left in [Left::Beside, Left::InTail, Left::Sealed] {
        for index in [false, true] {
            let scene = Scene::damaged(left);
            let beside = scene.reader_of(&scene.disk);
            let log = scene.open(index);
            let check = |when: &str| {
                let when = format!("{left:?} with index {index}, {when}");
                scene.said_by_all(&log, &beside, &when)
            };
            assert_eq!(check("opened").created_at("lost"), Timestamp(i64::MIN));

            scene.clock.advance(SECOND);
            append(&log, "lost");
            let now = check("with a record");
            assert_eq!(now.created_at("lost"), Timestamp(1003 * SECOND));
            assert_eq!(now.listed[0].0, "lost");
            assert!(now.planned[0].is_empty(), "only one has ended: {now:?}");

            scene.clock.advance(SECOND);
            drop(log.start_run(AGENT, "later", ()).unwrap());
            append(&log, "later");
            end(&log, "later");
            check("with a later run");
            scene.clock.advance(SECOND);
            append(&log, "lost");
            check("with another record");
            end(&log, "lost");
            let now = check("ended");
            assert_eq!(now.planned[0], ["ended", "later"]);

            fill(&log);
            check("in a full segment");
            scene.clock.advance(12 * SECOND);
            let _ = log.append_to(AGENT, "lost", &NewRecord::new(b"late"), Allow::everything());
            let now = check("with a late record");
            assert_eq!(now.created_at("lost"), Timestamp(1005 * SECOND));
            assert_eq!(now.planned[1], ["ended"]);
            log.checkpoint().unwrap();
            check("after a checkpoint");
        }
    }
}

/// What a compaction puts together says one time.
#[test]
fn all_views_agree_when_a_run_began_of_which_a_compaction_moves_what_is_left() {
    for index in [false, true] {
        let scene = Scene::damaged(Left::Sealed);
        let beside = scene.reader_of(&scene.disk);
        let log = scene.open(index);
        for _ in 0..3 {
            scene.clock.advance(SECOND);
            append(&log, "lost");
            fill(&log);
        }
        log.checkpoint().unwrap();
        scene.clock.advance(SECOND);
        append(&log, "lost");
        let before = scene.said_by_all(&log, &beside, "before");
        assert_eq!(before.created_at("lost"), Timestamp(1003 * SECOND));
        // All but the last segment is dead: what is left of both runs fits one.
        let _ = log.end_run("another", "filler", &Outcome::completed(), Allow::nothing()).unwrap();
        let _ = log.delete_run(("another", "filler")).unwrap();
        let _ = log.compact().unwrap();
        let after = scene.said_by_all(&log, &beside, "after");
        assert!(after.created_at("lost") > before.created_at("lost"), "{after:?}");
    }
}

/// What happens to the run, or to the store.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Append,
    End,
    Late,
    Hold,
    Release,
    Start,
    Fill,
    Checkpoint,
    Compact,
    Close,
    Kill,
    Delete,
    Later,
    Back,
}

const STEPS: [Step; 14] = [
    Step::Append,
    Step::End,
    Step::Late,
    Step::Hold,
    Step::Release,
    Step::Start,
    Step::Fill,
    Step::Checkpoint,
    Step::Compact,
    Step::Close,
    Step::Kill,
    Step::Delete,
    Step::Later,
    Step::Back,
];

/// A store that is open, and its next life.
struct Life {
    scene: Scene,
    log: Option<RunLog>,
    index: bool,
}

impl Life {
    fn log(&self) -> &RunLog {
        self.log.as_ref().expect("it is open")
    }

    /// Does a step. Calls that have nothing to do fail, and change nothing.
    fn step(&mut self, step: Step, number: usize) {
        if step != Step::Back {
            self.scene.clock.advance(SECOND);
        }
        let log = self.log();
        match step {
            Step::Append => drop(log.writer((AGENT, "lost")).and_then(|run| run.append(b"more"))),
            Step::End => {
                drop(log.end_run(AGENT, "lost", &Outcome::completed(), Allow::nothing()));
            }
            Step::Late => {
                let late = NewRecord::new(b"late");
                if log.run((AGENT, "lost")).is_ok() {
                    drop(log.append_to(AGENT, "lost", &late, Allow::everything()));
                }
            }
            Step::Hold => drop(log.hold((AGENT, "lost"), "why")),
            Step::Release => drop(log.release((AGENT, "lost"))),
            Step::Start => {
                if log.run((AGENT, "lost")).is_ok() {
                    drop(log.start_run(AGENT, "lost", b"again"));
                }
            }
            Step::Fill => fill(log),
            Step::Checkpoint => log.checkpoint().unwrap(),
            Step::Compact => {
                drop(log.end_run("another", "filler", &Outcome::failed(), Allow::nothing()));
                drop(log.delete_run(("another", "filler")));
                let _ = log.compact().unwrap();
            }
            Step::Delete => drop(log.delete_run((AGENT, "lost"))),
            Step::Later => {
                let name = format!("later {number}");
                drop(log.start_run(AGENT, &name, ()).unwrap());
                append(log, &name);
                end(log, &name);
            }
            Step::Back => self.scene.clock.advance(-2 * SECOND),
            Step::Close | Step::Kill => {
                let log = self.log.take().expect("it is open");
                if step == Step::Close {
                    log.close().unwrap();
                } else {
                    // What the drop writes does not count.
                    let image = self.scene.disk.image();
                    drop(log);
                    self.scene.disk = SimDisk::untracked(image);
                }
                self.index = !self.index;
                self.log = Some(self.scene.open(self.index));
            }
        }
    }
}

fn check_steps(steps: &[Step], left: Left, index: bool) -> Result<(), String> {
    let scene = Scene::damaged(left);
    let log = Some(scene.open(index));
    let mut life = Life { scene, log, index };
    for (number, step) in steps.iter().enumerate() {
        let beside = life.scene.reader_of(&life.scene.disk);
        life.step(*step, number);
        let of = |what: &str| format!("{left:?}, index {index}, {:?}: {what}", &steps[..=number]);
        let here = said(life.log());
        // A process that began to read earlier reads the disk of its own time.
        if *step != Step::Kill {
            beside.refresh().map_err(|error| of(&error.to_string()))?;
            let there = said(&beside);
            if there != here {
                return Err(of(&format!("beside {there:?}, the writer {here:?}")));
            }
        }
        if number + 1 < steps.len() && number % 3 != 2 {
            continue;
        }
        let copy = || SimDisk::untracked(life.scene.disk.image());
        let there = said(&life.scene.reader_of(&copy()));
        if there != here {
            return Err(of(&format!("a reader {there:?}, the writer {here:?}")));
        }
        for index in [false, true] {
            let clock = life.scene.clock.clone();
            let other = Scene { disk: copy(), clock, background: Background::default() };
            let log = other.open(index);
            for when in ["opened", "after a checkpoint"] {
                let there = said(&log);
                if there != here {
                    return Err(of(&format!("{when}, index {index}: {there:?}, {here:?}")));
                }
                log.checkpoint().unwrap();
            }
        }
    }
    Ok(())
}

fn check_all(cases: impl Iterator<Item = (Vec<Step>, Left, bool)>) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (steps, left, index) in cases {
        count += 1;
        let check = || check_steps(&steps, left, index);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        let checked =
            checked.unwrap_or_else(|_| Err(format!("a panic: {left:?}, index {index}, {steps:?}")));
        if let Err(error) = checked {
            println!("{error:.900}");
            wrong.push(steps);
        }
    }
    assert!(wrong.is_empty(), "{} of {count}", wrong.len());
}

#[test]
fn all_views_agree_whatever_happens_to_a_run_whose_beginning_is_lost() {
    let lefts = [Left::Beside, Left::InTail, Left::Sealed];
    let stride = crate::support::campaign::variable("RUNLOG_BEGINNINGS_STRIDE", 97) as usize;
    let count = STEPS.len() * STEPS.len() * STEPS.len();
    check_all((0..count * 6).step_by(stride).map(|case| {
        let (way, mut code) = (case % 6, case / 6);
        let steps = (0..3).map(|_| {
            let step = STEPS[code % STEPS.len()];
            code /= STEPS.len();
            step
        });
        (steps.collect(), lefts[way % 3], way / 3 == 0)
    }));
}

#[test]
fn all_views_agree_after_many_steps_with_a_run_whose_beginning_is_lost() {
    let lefts = [Left::Beside, Left::InTail, Left::Sealed];
    let count = crate::support::campaign::variable("RUNLOG_BEGINNINGS", 60);
    let first = crate::support::campaign::variable("RUNLOG_BEGINNINGS_FIRST", 0);
    check_all((first..first + count).map(|seed| {
        let mut random = runlog_sim::SplitMix64::for_case(seed, 1);
        let steps = (0..4 + random.index(12)).map(|_| STEPS[random.index(STEPS.len())]).collect();
        (steps, lefts[random.index(3)], random.coin())
    }));
}
