//! Many lives in a row on one disk: operations of the whole public API, then a failure, a kill or a
//! power cut, then the next life on the remaining disk, with a model of what must be there.
//!
//! Goal: what a life acknowledged is there in each later one, whatever failed in between: at Disk
//! level after anything, at Process level after a kill. What a life found at its opening counts as
//! acknowledged at Disk level. No order, version or sequence is given out twice.
//!
//! Method: the disk stays the same over all lives of a round, including its memory of a failed
//! sync: pages that reads see and that no later sync stores. Faults hit the k-th call of a kind,
//! some in a row, or all calls from one on, also during an opening. The disk fills, and has space
//! again some lives later. In half of the lives the background work runs step by step in any order,
//! and in the others the calls do it. Between two lives a superblock or the manifest may be
//! damaged, which must lose nothing, and the boot id may stay the same although the page cache is
//! gone. At the end of a round a part of a sealed segment is lost: everything that this affects is
//! reported, even after all dead segments were freed.
//!
//! `RUNLOG_REPLAY=round` repeats only this round, to investigate a failure.

mod churn;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::{Compression, Corruption, Error, SpaceReturn, TailWriter};
use runlog_sim::settings::{replayed, scale, seed};
use runlog_sim::{Fault, OpKind, SimDisk, SimEntropy, SplitMix64, Survivors};

use crate::support::background::Background;
use crate::support::cuts::check_whole;
use crate::support::harm::{Harm, assert_nothing_behind_areas, lose_something};
use crate::support::world::{EXTENT, Machine, World};

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
/// What the header of a segment begins with.
const HEADER: &[u8] = b"RLOGSEG1";
/// A disk that refused this many calls in one life has space again.
const REFUSALS: usize = 6;

/// How often each event happened.
#[derive(Debug, Default)]
struct Tally {
    lives: u64,
    operations: u64,
    endings: BTreeMap<&'static str, u64>,
    poisoned: u64,
    /// Calls that failed, after which the store went on.
    survived: u64,
    /// Calls that a full disk refused.
    refused: u64,
    /// Lives in which only space was missing, so that refused calls must leave nothing.
    filled: u64,
    failed_opens: u64,
    lost_events: u64,
    /// Openings after a superblock or the manifest was damaged.
    harmed: u64,
    emptied: u64,
    /// Rounds at the end of which something of a segment was lost, and was told.
    told: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.operations += other.operations;
        for (ending, count) in other.endings {
            *self.endings.entry(ending).or_default() += count;
        }
        self.poisoned += other.poisoned;
        self.survived += other.survived;
        self.refused += other.refused;
        self.filled += other.filled;
        self.failed_opens += other.failed_opens;
        self.lost_events += other.lost_events;
        self.harmed += other.harmed;
        self.emptied += other.emptied;
        self.told += other.told;
    }
}

/// Prints where a failure was, and how to repeat it.
struct Place {
    seed: u64,
    round: u64,
    life: u64,
    what: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, round, life, what } = self;
            println!("round {round}, life {life}: {what}");
            println!(
                "again: RUNLOG_SEED={seed} RUNLOG_REPLAY={round} \
                 cargo test -p runlog --test it lives::"
            );
        }
    }
}

/// One disk, and its current life.
struct Story {
    world: World,
    random: SplitMix64,
    place: Place,
    /// How many events must be there at the next opening.
    least: usize,
    /// The disk fills in this life, and nothing else fails.
    fills: bool,
    /// Calls of this life that a full disk refused.
    refusals: usize,
    /// In all lives but the first, freed extents stay in the file unchanged, and the manifest is
    /// lost more often: so a salvage meets old contents.
    keeps: bool,
}

#[test]
fn what_a_life_acknowledged_is_there_in_each_later_one() {
    let (seed, lives, only) = (seed(SEED), scale(LIVES[0], LIVES[1]), replayed());
    println!("RUNLOG_SEED={seed}, {lives} lives");
    let rounds = only.map_or(0..lives.div_ceil(ROUND), |round| round..round + 1);
    let (next, total) = (AtomicU64::new(rounds.start), Mutex::new(Tally::default()));
    let live_some = || {
        let mut tally = Tally::default();
        loop {
            let round = next.fetch_add(1, Ordering::Relaxed);
            if round >= rounds.end {
                break;
            }
            let lived = catch_unwind(AssertUnwindSafe(|| Story::tell(seed, round, &mut tally)));
            if let Err(panic) = lived {
                // No other round begins.
                next.store(rounds.end, Ordering::Relaxed);
                resume_unwind(panic);
            }
        }
        total.lock().unwrap().add(tally);
    };
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(8));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(live_some);
        }
    });
    let total = total.into_inner().unwrap();
    println!("{total:#?}");
    if only.is_none() && lives >= LIVES[0] {
        let Tally { filled, harmed, refused, .. } = total;
        assert!(filled > 0 && harmed > 0 && refused > 0, "each kind of trouble was met");
    }
}

impl Story {
    /// All lives of a round.
    fn tell(seed: u64, round: u64, tally: &mut Tally) {
        let mut story = Self::begin(seed, round);
        for life in 0..ROUND {
            story.place.life = life;
            story.live(tally);
        }
        story.lose_something(tally);
    }

    fn begin(seed: u64, round: u64) -> Self {
        let mut random = SplitMix64::for_case(seed, round);
        let machine = Machine::new(random.next_u64(), 1);
        let index = random.below(4) != 0;
        let mut world = World::create_on(random.next_u64(), SimDisk::new(), machine, index);
        if random.below(LARGE) == 0 {
            world.fill_manifest();
        }
        world.may_fail = true;
        let keeps = random.below(KEEPING) == 0;
        let place = Place { seed, round, life: 0, what: String::new() };
        Self { world, random, place, least: 0, fills: false, refusals: 0, keeps }
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
    fn live(&mut self, tally: &mut Tally) {
        tally.lives += 1;
        self.place.what += "\n  a life";
        if self.random.below(4) == 0 {
            self.jump();
        }
        self.world.is_moving = self.keeps && self.random.coin();
        if self.world.is_moving && self.random.coin() {
            // Extents in front of what a life before this one left over become free.
            self.empty(tally);
        }
        (self.fills, self.refusals) = (false, 0);
        self.world.only_fills = false;
        let faulty = self.random.below(4) != 0;
        if faulty && self.world.failure.is_none() {
            self.plan_faults();
        }
        tally.filled += u64::from(self.fills || self.world.only_fills);
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
            tally.operations += 1;
            if self.world.failure.is_some() && !self.go_on(tally) {
                goes_on = false;
                break;
            }
            if !faulty && self.random.below(60) == 0 {
                self.world.look();
            }
        }
        if goes_on && self.random.below(6) == 0 {
            self.empty(tally);
        }
        self.end(tally);
        self.next(faulty, tally);
    }

    /// Deletes everything, which works and frees space whatever failed before.
    fn empty(&mut self, tally: &mut Tally) {
        self.world.disk.clear_faults();
        self.give_space();
        self.world.empty();
        let failure = &self.world.failure;
        // A failed sync or write may not have been noticed yet.
        let poisoned = matches!(failure, Some(Error::Poisoned));
        let fits = failure.is_none() || poisoned || self.world.is_gone();
        assert!(fits, "emptying: {failure:?}");
        tally.emptied += u64::from(failure.is_none());
    }

    /// The disk has space again.
    fn give_space(&mut self) {
        self.world.disk.fill_from(usize::MAX);
        self.world.disk.set_capacity(u64::MAX);
    }

    /// Handles a failed call: continues if possible.
    fn go_on(&mut self, tally: &mut Tally) -> bool {
        if self.world.is_gone() {
            return false;
        }
        self.world.disk.clear_faults();
        if let Some(Error::DiskFull { .. }) = self.world.failure {
            (self.refusals, tally.refused) = (self.refusals + 1, tally.refused + 1);
            // If a disk fills within a call, the call may not be refused as a whole.
            self.world.only_fills |= self.fills;
            if self.refusals == REFUSALS {
                self.give_space();
            }
        }
        self.place.what += &format!(", {}", self.world.failure.as_ref().expect("it failed"));
        let goes_on = self.world.settle();
        *if goes_on { &mut tally.survived } else { &mut tally.poisoned } += 1;
        goes_on
    }

    fn some_fault(&mut self) -> Fault {
        let errors = [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::Interrupted];
        let error = errors[self.random.index(errors.len())];
        match self.random.coin() {
            true => Fault::error(error),
            false => Fault::short(error, self.random.index(9000)),
        }
    }

    /// Decides what will fail, and when.
    fn plan_faults(&mut self) {
        let disk = self.world.disk.clone();
        let fault = self.some_fault();
        let soon = disk.op_count() + self.random.index(400);
        let way = match self.keeps && self.random.coin() {
            true => 7,
            false => self.random.below(12),
        };
        self.world.only_fills = way == 6;
        self.place.what += &format!(", faults {way} {fault:?} at {soon}");
        match way {
            0..=1 => disk.fail_nth(OpKind::Sync, self.random.below(30), fault),
            2 => disk.fail_op(soon, fault),
            3 => disk.fail_from(soon, fault),
            4 => self.world.gate_shuts_at(soon),
            5 => {
                self.fills = true;
                disk.fill_from(soon);
            }
            7..=8 => disk.fail_behind(HEADER, self.random.below(16), fault),
            6 => disk.set_capacity(disk.allocated() + self.random.below(8) * EXTENT / 2),
            _ => {
                for _ in 0..1 + self.random.index(2) {
                    let kinds = [
                        (OpKind::Read, 200),
                        (OpKind::Write, 200),
                        (OpKind::Store, 100),
                        (OpKind::SetLen, 2),
                        (OpKind::Allocate, 8),
                        (OpKind::Punch, 8),
                    ];
                    let (kind, often) = kinds[self.random.index(kinds.len())];
                    let (fault, number) = (self.some_fault(), self.random.below(often));
                    self.place.what += &format!(", {kind:?} {number} with {fault:?}");
                    let times = if self.random.below(3) == 0 { 20 } else { 1 };
                    (number..number + times).for_each(|number| disk.fail_nth(kind, number, fault));
                }
            }
        }
    }

    /// Drops the store, in one of several ways.
    fn end(&mut self, tally: &mut Tally) {
        let ending = match self.random.below(6) {
            0 if !self.world.is_gone() => "closed",
            0..=2 => "killed",
            _ => "cut",
        };
        *tally.endings.entry(ending).or_default() += 1;
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
        let survivors = Survivors::ALL[self.random.index(Survivors::ALL.len())];
        self.world.disk.lose_power(survivors, self.random.next_u64());
        self.place.what += &format!(", cut with {survivors:?}");
    }

    /// Opens the store for the next life, which may take several attempts.
    fn next(&mut self, mut may_have_failed: bool, tally: &mut Tally) {
        self.choose_machine();
        let harmed = self.harm();
        tally.harmed += u64::from(harmed);
        loop {
            let disk = self.world.disk.clone();
            let faulty = self.random.below(4) == 0;
            let soon = disk.op_count() + self.random.index(24);
            let mut limit = usize::MAX;
            may_have_failed |= faulty;
            if faulty {
                let fault = self.some_fault();
                let way = self.random.below(6);
                self.place.what += &format!(", opened with {way} {fault:?} at {soon}");
                match way {
                    0 => disk.fail_nth(OpKind::Sync, self.random.below(4), fault),
                    1 => disk.fail_from(soon, fault),
                    2 => disk.fail_op(soon, fault),
                    3 => disk.fail_nth(OpKind::Read, self.random.below(60), fault),
                    _ => limit = soon,
                }
            }
            let opened = self.world.try_open(limit);
            if let Err(error) = opened {
                assert!(faulty && !error.is_damaged(), "the store does not open: {error}");
                tally.failed_opens += 1;
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
        if self.random.coin() {
            self.give_space();
        }
        if let Some(background) = self.world.machine.background.clone() {
            background.run_after_opening(&mut self.random);
        }
        let events = self.world.model.events.len();
        match self.world.adopt_what_is_there(self.least) {
            Ok(found) => tally.lost_events += (events - found.prefix) as u64,
            Err(error) => panic!("{error}; {}", self.world.log().recovery_report()),
        }
        assert_nothing_behind_areas(&self.world.disk);
        if harmed || self.random.below(3) == 0 {
            check_whole(self.world.log()).unwrap_or_else(|error| panic!("{error}"));
        }
        if self.random.below(4) == 0 {
            self.world.adopt();
            if self.world.failure.is_some() {
                self.go_on(tally);
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
    fn lose_something(&mut self, tally: &mut Tally) {
        if !self.world.try_close() {
            return;
        }
        self.give_space();
        let Some(what) = lose_something(&self.world.disk, &mut self.random) else { return };
        self.place.what += &format!("\n  {what}");
        for again in [false, true] {
            if let Err(error) = self.world.try_open(usize::MAX) {
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
            tally.told += u64::from(told && !again);
            self.world.die();
        }
    }

    /// The next process is another one on the same machine, or on one that was started again.
    fn choose_machine(&mut self) {
        let seed = self.random.next_u64();
        let machine = &mut self.world.machine;
        // The same randomness twice must not lose anything.
        let repeated = seed % 4 == 0;
        machine.entropy = SimEntropy::new(if repeated { self.place.round } else { seed });
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
        machine.index = seed >> 8 & 7 != 0;
        machine.background = (seed & 64 == 0).then(Background::default);
    }
}
