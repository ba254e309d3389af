//! Each call of the disk fails once, in a life that does everything: writes, syncs, stores,
//! allocations, punches, changes of length and reads, in operations and during the opening.
//!
//! Goal: after any of these failures the store continues, or refuses all writing with a typed
//! error; it opens again with everything that was acknowledged; no extent leaks; and deletions free
//! their space, even on a disk that is full from any moment on.
//!
//! Method: a script of operations runs once without faults, to count the calls of each kind, and
//! then once for each call, which fails.
//!
//! `RUNLOG_REPLAY` repeats only one failure, as the message of the test names it.

use std::io::ErrorKind;

use runlog::env::Clock as _;
use runlog::{Compression, Rule, RunQuery, RunRef, TailWriter};
use runlog_sim::{Fault, OpKind, SimClock, SimDisk, SimEntropy, Survivors};

use crate::support::background::Background;
use crate::support::campaign::{Counts, caught, in_parallel};
use crate::support::cuts::check_whole;
use crate::support::fault::FaultPlan;
use crate::support::model::Model;
use crate::support::world::{Machine, World};
use runlog_sim::settings::{self, replay};

const KINDS: [OpKind; 7] = [
    OpKind::Read,
    OpKind::Write,
    OpKind::Store,
    OpKind::SetLen,
    OpKind::Allocate,
    OpKind::Punch,
    OpKind::Sync,
];

/// The operations of the script; in between the store is killed once and closed once.
const SCRIPT: usize = 90;

struct Script {
    world: World,
    step: usize,
    full: bool,
}

impl Script {
    fn begin(variant: u64) -> Self {
        let mut machine = Machine::new(variant);
        machine.tail_writer = match variant % 2 {
            0 => TailWriter::Pwrite,
            _ => TailWriter::Mapped,
        };
        machine.compression = match variant / 2 % 2 {
            0 => Compression::None,
            _ => Compression::Zstd { level: 1 },
        };
        machine.receipts = 4;
        machine.background = (variant / 2 % 2 == 1).then(Background::default);
        let mut world = World::create_on(variant, SimDisk::new(), machine, true);
        world.may_fail = true;
        Self { world, step: 0, full: false }
    }

    fn arm(&mut self, plan: &FaultPlan) {
        self.full = matches!(plan, FaultPlan::FullFrom(_));
        self.world.apply(plan);
    }

    /// Runs the script; returns whether the store still accepts writes.
    fn live(&mut self) -> bool {
        while self.step < SCRIPT {
            self.step += 1;
            match self.step {
                30 | 60 => {
                    if self.step == 30 {
                        self.world.die();
                    } else {
                        self.world.try_close();
                    }
                    self.reopen();
                }
                _ => self.world.scripted_step(self.step),
            }
            if self.world.failure.is_some() {
                self.world.only_fills = self.full;
                self.world.disk.set_faults_aside(true);
                let goes_on = self.world.settle();
                self.world.disk.set_faults_aside(false);
                if !goes_on {
                    return false;
                }
            }
        }
        true
    }

    /// Opens the store, which may fail once per pending fault: once.
    fn reopen(&mut self) {
        let done = self.world.disk.op_count();
        let least = self.world.model.after_kill(done, false).0;
        if let Err(error) = self.world.try_open(None) {
            assert!(!self.full, "it does not open on a full disk: {error}");
            let again = self.world.try_open(None);
            again.unwrap_or_else(|again| panic!("after {error}, it does not open: {again}"));
        }
        self.world.disk.set_faults_aside(true);
        let found = self.world.adopt_what_is_there(least);
        self.world.disk.set_faults_aside(false);
        found.unwrap_or_else(|error| panic!("at step {}: {error}", self.step));
    }

    /// Drops the store, opens it again, and checks that nothing leaked and everything can be
    /// deleted.
    fn end(mut self, goes_on: bool, cut: bool) {
        // The next opening frees extents that this process forgot.
        let mut least = 0;
        if goes_on {
            let covered = self.world.log().checkpoint();
            self.assert_nothing_leaked("before the end");
            let is_all_free = covered.is_ok() && !self.full;
            least = if is_all_free { self.sealed_segments() } else { 0 };
        }
        self.world.die();
        self.world.disk.clear_faults();
        if cut {
            let done = self.world.disk.op_count();
            let least = self.world.model.after_power_loss(done).0;
            self.world.disk.lose_power(Survivors::Half, 1);
            let opened = self.world.try_open(None);
            opened.unwrap_or_else(|error| panic!("after a power cut: {error}"));
            self.world.adopt_what_is_there(least).unwrap_or_else(|error| panic!("{error}"));
        } else {
            // What is dead goes at the opening; what is not dead is not merged meanwhile, which
            // the process before may have tried in vain.
            self.world.machine.automatic = false;
            self.reopen();
            self.assert_nothing_leaked("after opening");
            let now = self.sealed_segments();
            assert!(now >= least, "{least} segments, of which {now} were not dead");
            self.world.machine.automatic = true;
            self.world.die();
            self.reopen();
        }
        check_whole(self.world.log()).unwrap_or_else(|error| panic!("{error}"));
        self.assert_nothing_leaked("at the end");
        self.empty();
    }

    fn sealed_segments(&self) -> u64 {
        self.world.log().stats().unwrap().sealed_segments
    }

    /// Each extent of the log belongs to a segment: sealed, the tail, or set aside.
    fn assert_nothing_leaked(&self, when: &str) {
        self.world.log().reclaim().unwrap_or_else(|error| assert!(self.full, "{when}: {error}"));
        let stats = self.world.log().stats().unwrap();
        let known = stats.sealed_segments + 1 + stats.reserved_extents;
        assert_eq!(stats.log_extents, known, "{when}, extents of nobody: {stats:?}");
        assert_eq!(stats.retired_extents, 0, "{when}: {stats:?}");
    }

    /// Deletes everything, and gets the space back.
    fn empty(mut self) {
        self.world.release_all();
        assert!(self.world.failure.is_none(), "releasing: {:?}", self.world.failure);
        for run in self.world.running() {
            self.world.end(run, false);
            assert!(self.world.failure.is_none(), "ending: {:?}", self.world.failure);
        }
        let log = self.world.log().clone();
        // A small store has no compaction reserve.
        let gains = log.stats().unwrap().sealed_segments > 12;
        let all = log.list_runs(&RunQuery::new().limit(1000)).unwrap().runs;
        let all: Vec<(RunRef<'_>, Rule)> = all
            .iter()
            .map(|run| (RunRef::from((run.agent.as_str(), run.run.as_str())), Rule::Deleted))
            .collect();
        let gone = log.evict(&all).unwrap_or_else(|error| panic!("deleting all: {error}"));
        assert_eq!(gone.plan.evict.len(), all.len(), "all of them can go");
        log.reclaim().unwrap_or_else(|error| assert!(self.full, "giving back: {error}"));
        let stats = log.stats().unwrap();
        assert!(stats.log_extents <= 10, "little is left, and takes {stats:?}");
        drop(log);
        for _ in 0..8 {
            self.world.start_run();
            self.world.append_large();
            let failure = self.world.failure.take();
            assert!(failure.is_none() || !gains, "and goes on: {failure:?}");
        }
    }
}

/// How many calls of each kind the script makes.
fn count(variant: u64) -> [u64; 7] {
    let mut script = Script::begin(variant);
    let disk = script.world.disk.clone();
    let _ = disk.take_counts();
    assert!(script.live(), "nothing fails");
    let counts = disk.counts();
    let counts = KINDS.map(|kind| counts.of(kind));
    script.end(true, false);
    counts
}

/// Tries so many failures. Panics at the first after which something is wrong.
fn try_all(count: usize, name: impl Fn(usize) -> String + Sync, live: impl Fn(usize) + Sync) {
    let is_over = |number: u64, _: &Counts| number >= count as u64;
    let done = in_parallel(0, is_over, |number, counts| {
        let (number, what) = (number as usize, name(number as usize));
        if replay().is_some_and(|only| only != what) {
            return Ok(());
        }
        counts.one("failures");
        let lived = caught(|| {
            live(number);
            Ok(())
        });
        lived.map_err(|error| format!("again: RUNLOG_SCALE=1300 RUNLOG_REPLAY='{what}'\n{error}"))
    });
    println!("{:?}", done.unwrap_or_else(|error| panic!("{error}")));
}

/// Lives with each of these failures: the variant of the script, what fails, and whether the power
/// is cut then.
fn live_with(cases: &[(u64, FaultPlan, bool)]) {
    let name = |number: usize| {
        let (variant, plan, cut) = &cases[number];
        format!("variant {variant}, {plan:?}, cut {cut}")
    };
    try_all(cases.len(), name, |number| {
        let (variant, plan, cut) = &cases[number];
        let mut script = Script::begin(*variant);
        script.arm(plan);
        let goes_on = script.live();
        script.end(goes_on, *cut);
    });
}

/// One call of how many must fail.
fn stride() -> usize {
    settings::stride(97, 13) as usize
}

#[test]
fn after_any_call_that_fails_the_store_goes_on_or_says_that_it_cannot() {
    let mut cases = Vec::new();
    for variant in 0..4 {
        let counts = count(variant);
        println!("variant {variant}: {counts:?}");
        for (kind, count) in KINDS.into_iter().zip(counts) {
            for number in (variant..count).step_by(stride()) {
                for error in [ErrorKind::Other, ErrorKind::StorageFull] {
                    let stored = if number % 3 == 0 { 700 } else { 0 };
                    let call = (kind, number, Fault::short(error, stored));
                    cases.push((variant, FaultPlan::Calls(vec![call]), number % 2 == 1));
                }
            }
        }
    }
    live_with(&cases);
}

#[test]
fn on_a_disk_that_is_full_from_any_moment_on_all_can_be_deleted_and_gives_space_back() {
    let mut cases = Vec::new();
    for variant in 0..4 {
        let mut script = Script::begin(variant);
        let first = script.world.disk.op_count() + variant as usize;
        script.live();
        let operations = first..script.world.disk.op_count();
        let full = |number| (variant, FaultPlan::FullFrom(number), false);
        cases.extend(operations.step_by(stride()).map(full));
    }
    live_with(&cases);
}

/// A store of which the manifest is about to outgrow its place in front of the segments.
struct Grown {
    machine: Machine,
    model: Model,
    image: Vec<u8>,
}

impl Grown {
    fn new(variant: u64) -> Self {
        let machine = Machine::new(variant);
        let mut world = World::create_on(variant, SimDisk::new(), machine.clone(), false);
        world.fill_manifest();
        let model = world.model.clone();
        Self { machine, model: model.recovered(model.events.len()), image: world.close() }
    }

    /// Continues until the manifest has outgrown it, with a failure; returns how many calls of that
    /// kind there were. Then everything can be deleted, unless the store was poisoned.
    fn outgrow(&self, failure: Option<(OpKind, u64, Fault)>) -> [u64; 2] {
        // Cases run at once, so each has a clock and random numbers of its own.
        let (clock, entropy) = (SimClock::new(self.machine.clock.now()), SimEntropy::new(99));
        let machine = Machine { clock, entropy, ..self.machine.clone() };
        let mut world = World::resume(1, machine, self.model.clone(), self.image.clone());
        world.may_fail = true;
        let disk = world.disk.clone();
        let _ = disk.take_counts();
        if let Some((kind, number, fault)) = failure {
            disk.fail_nth(kind, number, fault);
        }
        for _ in 0..24 {
            let calls =
                [World::start_run, World::append_large, World::append_large, World::end_run];
            for call in calls.into_iter().chain([World::sync as fn(&mut World)]) {
                if world.failure.is_none() {
                    call(&mut world);
                }
            }
            if world.failure.is_some() {
                disk.clear_faults();
                if !world.settle() {
                    return [0; 2];
                }
            }
        }
        let counts = disk.counts();
        disk.clear_faults();
        assert!(world.log().stats().unwrap().meta_extents > 0, "the manifest has grown");
        world.empty();
        assert!(world.failure.is_none(), "deleting all: {:?}", world.failure);
        [OpKind::Allocate, OpKind::Punch].map(|kind| counts.of(kind))
    }
}

#[test]
fn after_any_call_for_space_that_fails_while_the_manifest_grows_all_can_be_deleted() {
    let (grown, mut cases) = ([0, 1].map(Grown::new), Vec::new());
    for (variant, grown) in grown.iter().enumerate() {
        let counts = grown.outgrow(None);
        println!("variant {variant}: {counts:?}");
        for (kind, count) in [OpKind::Allocate, OpKind::Punch].into_iter().zip(counts) {
            // There are few such calls, and each takes another path.
            for number in (variant as u64..count).step_by(stride().div_ceil(16)) {
                for error in [ErrorKind::Other, ErrorKind::StorageFull] {
                    cases.push((variant, (kind, number, Fault::error(error))));
                }
            }
        }
    }
    let name = |number: usize| format!("grown {:?}", cases[number]);
    try_all(cases.len(), name, |number| {
        let (variant, failure) = cases[number];
        grown[variant].outgrow(Some(failure));
    });
}
