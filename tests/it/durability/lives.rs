//! Many lives in a row on one disk: operations of the whole public API, then a failure, a kill or a
//! power cut, then the next life on the remaining disk, with a model of what must be there.
//!
//! Goal: what a life acknowledged is there in each later one, whatever failed in between: at Disk
//! level after anything, at Process level after a kill. What a life found at its opening counts as
//! acknowledged at Disk level. No order, version or sequence is given out twice. Meanwhile each
//! answer is that of the model: lookups, pages of lists, ranges of traces in both directions, plans
//! of policies, and receipts. A trace has all records that were there when it began, whatever moves
//! and goes; where nothing fails, what is dead goes at once.
//!
//! Method: the disk stays the same over all lives of a round, including its memory of a failed
//! sync: pages that reads see and that no later sync stores. Faults hit the k-th call of a kind,
//! some in a row, or all calls from one on, also during an opening. The disk fills, and has space
//! again some lives later. In half of the lives the background work runs step by step in any order,
//! and in the others the calls do it. Between two lives a superblock or the manifest may be
//! damaged, which must lose nothing. At the end of a round a part of a sealed segment is lost:
//! everything that this affects is reported, even after all dead segments were freed.
//!
//! `RUNLOG_REPLAY=round` repeats only this round, to investigate a failure.

mod churn;

use std::time::Duration;

use runlog::{Compression, Corruption, Error, SpaceReturn, TailWriter};
use runlog_sim::settings::scale;
use runlog_sim::{SimDisk, SimEntropy, SplitMix64};

use crate::support::background::Background;
use crate::support::campaign::{Campaign, Counts};
use crate::support::cuts::check_whole;
use crate::support::fault::damage::{Harm, lose_something};
use crate::support::fault::{FaultPlan, give_space, some_survivors};
use crate::support::manifest::assert_nothing_behind_areas;
use crate::support::world::{Machine, World};

/// Few enough for a plain `cargo test`, and those of CI.
const LIVES: [u64; 2] = [300, 3000];
const SEED: u64 = 2026;
/// The lives of one disk.
const ROUND: u64 = 10;
/// The operations of a life, at most.
const STEPS: usize = 120;
/// One round of this many begins with so many segments that the manifest outgrows its first place.
const LARGE: u64 = 16;
/// One round of this many keeps freed extents.
const KEEPING: u64 = 4;
/// How long a trace keeps its segments, in half of the lives: some operations.
const PIN_AGE: Duration = Duration::from_millis(30);
/// A disk that refused this many calls in one life has space again.
const REFUSALS: usize = 6;

/// Prints what happened in a round that fails.
struct Place {
    life: u64,
    what: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("life {}: {}", self.life, self.what);
        }
    }
}

/// One disk, and its current life.
struct Story {
    world: World,
    random: SplitMix64,
    round: u64,
    place: Place,
    /// How many events must be there at the next opening.
    least: usize,
    /// The disk fills in this life, and nothing else fails.
    fills: bool,
    /// The disk has space.
    has_space: bool,
    /// Calls of this life that a full disk refused.
    refusals: usize,
    /// In all lives but the first, freed extents stay in the file unchanged, and the manifest is
    /// lost more often: so a salvage meets old contents.
    keeps: bool,
}

#[test]
fn what_a_life_acknowledged_is_there_in_each_later_one() {
    let campaign = Campaign::new("lives::what", SEED);
    let rounds = scale(LIVES[0], LIVES[1]).div_ceil(ROUND);
    let must_meet = ["filled", "harmed", "refused", "failed opens", "emptied"];
    campaign.run(
        |round, _| round >= rounds,
        &must_meet,
        |round, counts| {
            Story::tell(campaign.seed, round, counts);
            Ok(())
        },
    );
}

impl Story {
    /// All lives of a round.
    fn tell(seed: u64, round: u64, counts: &mut Counts) {
        let mut story = Self::begin(seed, round);
        for life in 0..ROUND {
            story.place.life = life;
            story.live(counts);
        }
        story.lose_something(counts);
    }

    fn begin(seed: u64, round: u64) -> Self {
        let mut random = SplitMix64::for_case(seed, round);
        let machine = Machine::new(random.next_u64());
        let index = random.below(4) != 0;
        let mut world = World::create_on(random.next_u64(), SimDisk::new(), machine, index);
        if random.below(LARGE) == 0 {
            world.fill_manifest();
        }
        (world.may_fail, world.reuses_ids) = (true, true);
        let keeps = random.below(KEEPING) == 0;
        let place = Place { life: 0, what: String::new() };
        Self {
            world,
            random,
            round,
            place,
            least: 0,
            fills: false,
            has_space: true,
            refusals: 0,
            keeps,
        }
    }

    /// The clock jumps, forwards or back.
    fn jump(&mut self) {
        let hour = 3_600_000_000_000;
        let nanos = self.random.below(2 * hour);
        let nanos = i64::try_from(nanos).unwrap() - i64::try_from(hour).unwrap();
        self.world.machine.clock.advance(nanos);
    }

    /// A life: operations until something fails or chance ends it; then another process opens the
    /// store.
    fn live(&mut self, counts: &mut Counts) {
        counts.one("lives");
        self.place.what += "\n  a life";
        if self.random.below(4) == 0 {
            self.jump();
        }
        self.world.is_moving = self.keeps && self.random.coin();
        if self.world.is_moving && self.random.coin() {
            // Extents in front of what a life before this one left over become free.
            self.empty(counts);
        }
        (self.fills, self.refusals) = (false, 0);
        self.world.only_fills = false;
        let faulty = self.random.below(4) != 0;
        if faulty && self.world.failure.is_none() {
            self.plan_faults();
        }
        self.world.is_calm = !faulty && self.world.failure.is_none() && self.has_space;
        counts.add("filled", u64::from(self.fills || self.world.only_fills));
        self.world.is_lazy = self.random.coin();
        self.world.is_queue = self.random.below(3) == 0;
        let mut goes_on = true;
        let steps = self.random.index(match () {
            () if self.world.is_queue => 2 * STEPS,
            () if self.world.is_moving => STEPS / 4,
            () => STEPS,
        });
        for _ in 0..steps {
            self.world.wide_step();
            counts.one("operations");
            if self.world.failure.is_some() && !self.go_on(counts) {
                goes_on = false;
                break;
            }
            if !faulty && self.random.below(60) == 0 {
                self.world.look();
            }
        }
        if goes_on && self.random.below(6) == 0 {
            self.empty(counts);
        }
        self.end(counts);
        self.next(faulty, counts);
    }

    /// Deletes everything, which works and frees space whatever failed before.
    fn empty(&mut self, counts: &mut Counts) {
        self.world.disk.clear_faults();
        self.give_space();
        self.world.empty();
        let failure = &self.world.failure;
        // A failed sync or write may not have been noticed yet.
        let poisoned = matches!(failure, Some(Error::Poisoned));
        let fits = failure.is_none() || poisoned || self.world.is_gone();
        assert!(fits, "emptying: {failure:?}");
        counts.add("emptied", u64::from(failure.is_none()));
    }

    fn give_space(&mut self) {
        self.has_space = true;
        give_space(&self.world.disk);
    }

    /// Handles a failed call: continues if possible.
    fn go_on(&mut self, counts: &mut Counts) -> bool {
        if self.world.is_gone() {
            return false;
        }
        self.world.disk.clear_faults();
        if let Some(Error::DiskFull { .. }) = self.world.failure {
            self.refusals += 1;
            counts.one("refused");
            // If a disk fills within a call, the call may not be refused as a whole.
            self.world.only_fills |= self.fills;
            if self.refusals == REFUSALS {
                self.give_space();
            }
        }
        self.place.what += &format!(", {}", self.world.failure.as_ref().expect("it failed"));
        let goes_on = self.world.settle();
        counts.one(if goes_on { "survived" } else { "poisoned" });
        goes_on
    }

    /// Decides what will fail, and when.
    fn plan_faults(&mut self) {
        let plan = match self.keeps && self.random.coin() {
            true => FaultPlan::behind_header(&mut self.random),
            false => FaultPlan::choose(&mut self.random, &self.world.disk, 400),
        };
        self.fills = matches!(plan, FaultPlan::FullFrom(_));
        self.world.only_fills = matches!(plan, FaultPlan::Capacity(_));
        self.has_space &= !self.fills && !self.world.only_fills;
        self.place.what += &format!(", {plan:?}");
        self.world.apply(&plan);
    }

    /// Drops the store, in one of several ways.
    fn end(&mut self, counts: &mut Counts) {
        let ending = match self.random.below(6) {
            0 if !self.world.is_gone() => "closed",
            0..=2 => "killed",
            _ => "cut",
        };
        counts.one(ending);
        self.place.what += &format!(", {ending} at {}", self.world.disk.op_count());
        let done = self.world.disk.op_count();
        if ending == "closed" {
            self.world.try_close();
        } else {
            self.world.die();
        }
        self.world.disk.clear_faults();
        if self.random.coin() {
            self.give_space();
        }
        self.least = self.world.model.after_kill(done, false).0;
        if ending == "cut" {
            self.lose_power();
        }
    }

    fn lose_power(&mut self) {
        let done = self.world.disk.op_count();
        self.least = self.world.model.after_power_loss(done).0;
        let survivors = some_survivors(&mut self.random);
        self.world.disk.lose_power(survivors, self.random.next_u64());
        self.place.what += &format!(", cut with {survivors:?}");
    }

    /// Opens the store for the next life, which may take several attempts.
    fn next(&mut self, mut may_have_failed: bool, counts: &mut Counts) {
        self.choose_machine();
        let harmed = self.harm();
        counts.add("harmed", u64::from(harmed));
        loop {
            let disk = self.world.disk.clone();
            let faulty = self.random.below(4) == 0;
            let plan = FaultPlan::failure(&mut self.random, &disk, 24);
            let plan = faulty.then_some(plan);
            may_have_failed |= faulty;
            self.place.what += &format!(", opened with {plan:?}");
            let opened = self.world.try_open(plan.as_ref());
            if let Err(error) = opened {
                assert!(faulty && !error.is_damaged(), "the store does not open: {error}");
                counts.one("failed opens");
                self.place.what += ": it failed";
            } else if !faulty {
                break;
            } else {
                self.world.die();
            }
            disk.clear_faults();
            if self.random.below(3) == 0 {
                self.lose_power();
            }
        }
        let report = self.world.log().recovery_report();
        // A write that fails halfway may leave a superblock that does not check.
        let may_be = |damage: &Corruption| {
            may_have_failed && matches!(damage.place, runlog::Place::Superblock { .. })
        };
        let is_expected = harmed || report.damaged.iter().all(may_be);
        assert!(is_expected, "a crash is reported as damage: {report}");
        assert_eq!(self.world.log().health().quarantined, [], "{report}");
        if self.random.coin() {
            self.give_space();
        }
        if let Some(background) = self.world.machine.background.clone() {
            background.run_after_opening(&mut self.random);
        }
        let events = self.world.model.events.len();
        match self.world.adopt_what_is_there(self.least) {
            Ok(found) => counts.add("lost events", (events - found.prefix) as u64),
            Err(error) => panic!("{error}; {}", self.world.log().recovery_report()),
        }
        assert_nothing_behind_areas(&self.world.disk);
        if harmed || self.random.below(3) == 0 {
            check_whole(self.world.log()).unwrap_or_else(|error| panic!("{error}"));
        }
        if self.random.below(4) == 0 {
            self.world.adopt();
            if self.world.failure.is_some() {
                self.go_on(counts);
            }
        }
    }

    /// Sometimes damages a superblock or the end of the manifest.
    fn harm(&mut self) -> bool {
        if self.random.below(6) != 0 {
            return false;
        }
        let harm = Harm::ALL[self.random.index(Harm::ALL.len())];
        self.place.what += &format!(", damaged {harm:?}");
        harm.on_disk(&self.world.disk, &mut self.random);
        true
    }

    /// A part of a sealed segment is lost while the store is closed. Everything that this affects
    /// is reported, also when all dead segments have been freed, and after another opening.
    fn lose_something(&mut self, counts: &mut Counts) {
        if !self.world.try_close() {
            return;
        }
        self.give_space();
        let Some(what) = lose_something(&self.world.disk, &mut self.random) else { return };
        self.place.what += &format!("\n  {what}");
        for again in [false, true] {
            if let Err(error) = self.world.try_open(None) {
                assert!(error.is_corruption(), "{error}");
                return;
            }
            self.world.use_space();
            let told = match self.world.log().verify() {
                Ok(verified) => !verified.problems.is_empty(),
                Err(error) => error.is_corruption(),
            };
            let all = self.world.model.events.len();
            if let Err(error) = self.world.model.check(self.world.log(), all, all) {
                assert!(told, "opened again {again}, it is not told: {error}");
            }
            counts.add("told", u64::from(told && !again));
            self.world.die();
        }
    }

    /// The next process is another one on the same machine, or on one that was started again.
    fn choose_machine(&mut self) {
        let seed = self.random.next_u64();
        let machine = &mut self.world.machine;
        // The same randomness twice must not lose anything.
        let repeated = seed % 4 == 0;
        machine.entropy = SimEntropy::new(if repeated { self.round } else { seed });
        machine.tail_writer = if seed & 16 == 0 { TailWriter::Pwrite } else { TailWriter::Mapped };
        machine.compression = match seed & 32 {
            0 => Compression::None,
            _ => Compression::Zstd { level: 1 },
        };
        let spaces = [SpaceReturn::Shrink, SpaceReturn::Punch, SpaceReturn::Keep];
        machine.space = spaces[(seed >> 16) as usize % 3];
        if self.keeps {
            machine.space = SpaceReturn::Keep;
        }
        machine.pin_age = (seed & 128 == 0).then_some(PIN_AGE);
        machine.index = seed >> 8 & 7 != 0;
        machine.background = (seed & 64 == 0).then(Background::default);
    }
}
