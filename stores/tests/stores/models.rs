//! Each store against plain collections: random calls from several threads, on a disk that loses
//! power, becomes full, fails, or whose process is killed, at any operation; and each call may be
//! made again after any answer, or none.
//!
//! The same on real files, where only the process dies.
//!
//! What a model knows is a set of candidates. A call that is answered leaves those that would have
//! given this answer; one that fails may have happened or not, so both stay. What a store shows
//! must be one of the candidates at any time, and is the only one from then on. After a power cut
//! the same holds: what was acknowledged is durable.
//!
//! In about half of the rounds the actors are threads, so that the same seed need not fail twice.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use runlog::env::Environment;
use runlog::{Error, Place, RunLog};
use runlog_sim::{Fault, SimDisk, SimEntropy, SplitMix64, Survivors, settings};
use tempfile::TempDir;

use super::support::options;

mod checkpoints;
mod consume_once;
mod sessions;
mod trajectory;

/// A store that has a model.
pub(crate) trait Subject: Sync {
    type Model: Clone + PartialEq + Debug + Default + Send;
    type Call: Clone + Debug + Send;
    type Store: Sync;
    /// What a caller keeps of the answers to earlier calls, beside what the model says.
    type Memory: Default + Send;

    fn open(&self, log: &RunLog) -> Self::Store;

    /// A random call of an actor, whose keys no other actor writes.
    fn call(&self, random: &mut SplitMix64, model: &Self::Model, number: u32) -> Self::Call;

    /// Makes a call, and answers what a model can answer too.
    fn make(
        &self,
        store: &Self::Store,
        actor: usize,
        call: &Self::Call,
        memory: &mut Self::Memory,
    ) -> Result<String, Box<dyn StdError>>;

    /// Makes it with the model.
    fn apply(&self, model: &mut Self::Model, call: &Self::Call) -> String;

    /// Whether the outcome of a call that is made twice is that of one.
    fn is_repeatable(&self, _: &Self::Call) -> bool {
        true
    }

    /// Whether a call can follow what is known: a crash may have taken what was not durable.
    fn follows(&self, _: &Self::Call, _: &Self::Model) -> bool {
        true
    }

    /// What was learned from the answer to a call, with the model after it.
    fn learn(&self, _: &mut Self::Memory, _: &Self::Call, _: &Self::Model) {}

    /// All that the store shows of an actor.
    fn shown(&self, store: &Self::Store, actor: usize) -> Result<Self::Model, Box<dyn StdError>>;

    /// Whether a store may show this after a call that failed, which goes by steps.
    fn partly(&self, _shown: &Self::Model, _before: &Self::Model, _call: &Self::Call) -> bool {
        false
    }

    /// What is known once the store has shown this: with what it does not show of the candidate.
    fn with_hidden(&self, shown: Self::Model, _candidates: &[Self::Model]) -> Self::Model {
        shown
    }

    /// Whether a store may show this for a candidate, after a power cut or without one.
    fn fits(&self, shown: &Self::Model, candidate: &Self::Model, _is_cut: bool) -> bool {
        shown == candidate
    }
}

/// What goes wrong in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// The store is closed and opened.
    Nothing,
    /// The process dies between two calls.
    Kill,
    /// Power is lost between two calls.
    Cut(Survivors),
    /// The disk is full from an operation on, until the round is over.
    Full,
    /// All operations fail from one on, and then the process dies.
    Broken,
    /// Likewise, and power is lost.
    BrokenAndCut(Survivors),
}

impl Trouble {
    fn random(random: &mut SplitMix64) -> Self {
        let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
        match random.index(8) {
            0 => Self::Nothing,
            1 => Self::Kill,
            2 => Self::Cut(survivors),
            3 | 4 => Self::Full,
            5 => Self::Broken,
            _ => Self::BrokenAndCut(survivors),
        }
    }

    fn is_cut(self) -> bool {
        matches!(self, Self::Cut(_) | Self::BrokenAndCut(_))
    }

    /// Whether a call may fail so.
    fn explains(self, error: &(dyn StdError + 'static)) -> bool {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<Error>() {
                return match self {
                    Self::Full => error.is_disk_full(),
                    Self::Broken | Self::BrokenAndCut(_) => {
                        matches!(error, Error::Io { .. } | Error::Poisoned)
                    }
                    _ => false,
                };
            }
            next = error.source();
        }
        false
    }
}

/// One who calls.
struct Actor<S: Subject> {
    number: usize,
    random: SplitMix64,
    candidates: Vec<S::Model>,
    memory: S::Memory,
    /// The last call that was not answered.
    open: Option<S::Call>,
    /// How many calls were made.
    calls: u32,
    /// Those of this round, for messages.
    trail: Vec<String>,
}

impl<S: Subject> Actor<S> {
    fn new(number: usize, seed: u64) -> Self {
        Self {
            number,
            random: SplitMix64::for_case(seed, number as u64),
            candidates: vec![S::Model::default()],
            memory: S::Memory::default(),
            open: None,
            calls: 0,
            trail: Vec::new(),
        }
    }

    fn step(&mut self, subject: &S, store: &S::Store, trouble: Trouble) {
        self.calls += 1;
        let again = self.open.clone().filter(|call| subject.is_repeatable(call));
        let call = match again {
            Some(call) => call,
            // What is not known is looked at.
            None if self.open.is_some() => return self.look(subject, store, trouble),
            None => subject.call(&mut self.random, &self.candidates[0], self.calls),
        };
        self.make(subject, store, &call, trouble);
        if self.open.is_none() && subject.is_repeatable(&call) && self.random.index(4) == 0 {
            let before = self.candidates.clone();
            self.make(subject, store, &call, trouble);
            if self.open.is_none() {
                assert_eq!(before, self.candidates, "{call:?} twice is as once");
            }
        }
        if self.random.index(16) == 0 {
            self.look(subject, store, trouble);
        }
    }

    fn make(&mut self, subject: &S, store: &S::Store, call: &S::Call, trouble: Trouble) {
        let made = subject.make(store, self.number, call, &mut self.memory);
        self.trail.push(format!("{call:?}: {made:?}"));
        let mut after = Vec::new();
        match &made {
            Ok(answer) => {
                for candidate in &self.candidates {
                    let mut candidate = candidate.clone();
                    let expected = subject.apply(&mut candidate, call);
                    if expected == *answer && !after.contains(&candidate) {
                        after.push(candidate);
                    }
                }
                let known = &self.candidates;
                assert!(!after.is_empty(), "{known:#?}: not {answer:?}\n{}", self.trail());
                subject.learn(&mut self.memory, call, &after[0]);
                self.open = None;
            }
            Err(error) => {
                assert!(trouble.explains(&**error), "{trouble:?}: {error:?}\n{}", self.trail());
                after.clone_from(&self.candidates);
                for candidate in &self.candidates {
                    let mut candidate = candidate.clone();
                    subject.apply(&mut candidate, call);
                    if !after.contains(&candidate) {
                        after.push(candidate);
                    }
                }
                self.open = Some(call.clone());
            }
        }
        self.candidates = after;
    }

    /// What is there must be one of the candidates. It is the only one from then on, unless the
    /// next crash may take it away.
    fn look(&mut self, subject: &S, store: &S::Store, trouble: Trouble) {
        let shown = match subject.shown(store, self.number) {
            Ok(shown) => shown,
            Err(error) => {
                assert!(trouble.explains(&*error), "{trouble:?}: {error:?}\n{}", self.trail());
                return;
            }
        };
        self.assert_fits(subject, &shown, false);
        if !matches!(trouble, Trouble::Broken | Trouble::BrokenAndCut(_)) {
            self.settle(subject, shown);
        }
    }

    /// As [`Self::look`], after a crash.
    fn look_again(&mut self, subject: &S, store: &S::Store, is_cut: bool) {
        let shown = subject.shown(store, self.number).unwrap();
        self.assert_fits(subject, &shown, is_cut);
        self.settle(subject, shown);
    }

    fn assert_fits(&self, subject: &S, shown: &S::Model, is_cut: bool) {
        let fits = self.candidates.iter().any(|known| {
            subject.fits(shown, known, is_cut)
                || self.open.as_ref().is_some_and(|call| subject.partly(shown, known, call))
        });
        assert!(fits, "{shown:#?}\nis none of {:#?}\n{}", self.candidates, self.trail());
    }

    fn settle(&mut self, subject: &S, shown: S::Model) {
        self.candidates = vec![subject.with_hidden(shown, &self.candidates)];
        if self.open.as_ref().is_some_and(|call| !subject.is_repeatable(call)) {
            self.open = None;
        }
    }

    fn trail(&self) -> String {
        let first = self.trail.len().saturating_sub(40);
        format!("actor {}:\n{}", self.number, self.trail[first..].join("\n"))
    }
}

/// The number in an environment variable.
fn with_options(seed: u64) -> runlog::Options {
    let entropy = Arc::new(SimEntropy::new(seed));
    // Without a boot id each crash counts as a power cut.
    let environment = Environment::system().entropy(entropy);
    options().sync_interval(None).environment(environment)
}

/// What the store lies on.
enum Ground {
    Disk(SimDisk),
    /// Files of the real file system, of which the last one counts. Only the process can die there:
    /// the next one opens a copy, which has what the page cache had.
    Files(TempDir, u64),
}

impl Ground {
    fn path(folder: &TempDir, number: u64) -> PathBuf {
        folder.path().join(format!("{number}.runlog"))
    }

    fn open(&self, options: &runlog::Options) -> RunLog {
        match self {
            Self::Disk(disk) if disk.image().is_empty() => {
                options.create_storage(Arc::new(disk.clone())).unwrap()
            }
            Self::Disk(disk) => options.open_storage(Arc::new(disk.clone())).unwrap(),
            Self::Files(folder, number) => options.open(Self::path(folder, *number)).unwrap(),
        }
    }

    /// What goes wrong in a round.
    fn trouble(&self, random: &mut SplitMix64) -> Trouble {
        match self {
            Self::Disk(_) => Trouble::random(random),
            Self::Files(..) if random.coin() => Trouble::Nothing,
            Self::Files(..) => Trouble::Kill,
        }
    }

    /// Plans the trouble; answers from which operation on.
    fn plan(&self, trouble: Trouble, calls: usize, random: &mut SplitMix64) -> usize {
        let Self::Disk(disk) = self else { return 0 };
        let from = disk.op_count() + random.index(calls * 3);
        match trouble {
            Trouble::Full => disk.fill_from(from),
            Trouble::Broken | Trouble::BrokenAndCut(_) => {
                disk.fail_from(from, Fault::short(std::io::ErrorKind::Other, random.index(300)));
            }
            _ => {}
        }
        from
    }

    /// The disk has space again.
    fn give_space(&self) {
        if let Self::Disk(disk) = self {
            disk.set_capacity(u64::MAX);
        }
    }

    /// What the next process finds.
    fn next(self, trouble: Trouble, seed: u64) -> Self {
        match (self, trouble) {
            (Self::Disk(disk), Trouble::Cut(survivors) | Trouble::BrokenAndCut(survivors)) => {
                Self::Disk(SimDisk::from_image(disk.crash(survivors, seed)))
            }
            (Self::Disk(disk), _) => Self::Disk(SimDisk::from_image(disk.image())),
            (Self::Files(folder, number), _) => {
                let (from, to) = (Self::path(&folder, number), Self::path(&folder, number + 1));
                std::fs::copy(&from, to).unwrap();
                std::fs::remove_file(from).unwrap();
                Self::Files(folder, number + 1)
            }
        }
    }
}

/// Runs a model on the simulated disk.
pub(crate) fn run<S: Subject>(subject: &S, calls: u64) {
    run_on(Ground::Disk(SimDisk::new()), subject, calls);
}

/// Runs a model on real files.
pub(crate) fn run_on_files<S: Subject>(subject: &S, calls: u64) {
    run_on(Ground::Files(tempfile::tempdir().unwrap(), 0), subject, calls);
}

fn run_on<S: Subject>(mut ground: Ground, subject: &S, calls: u64) {
    const ACTORS: usize = 3;
    let (seed, wanted) = (settings::seed(11), settings::scale(calls, 10_000));
    let (mut made, mut failed) = (0, 0_u64);
    println!("RUNLOG_SEED={seed}, {wanted} calls");
    let mut actors: Vec<Actor<S>> = (0..ACTORS).map(|number| Actor::new(number, !seed)).collect();
    let mut log = ground.open(&with_options(1));
    for round in 0.. {
        if made >= wanted {
            println!("{made} calls in {round} rounds; {failed} rounds with a call that failed");
            break;
        }
        let mut random = SplitMix64::for_case(seed, round);
        let trouble = ground.trouble(&mut random);
        let steps = 10 + random.index(50);
        let from = ground.plan(trouble, steps * ACTORS, &mut random);
        println!("round {round}: {trouble:?}, {steps} steps of each, from operation {from}");
        let store = subject.open(&log);
        if random.coin() {
            thread::scope(|scope| {
                for actor in &mut actors {
                    let store = &store;
                    let steps =
                        move || (0..steps).for_each(|_| actor.step(subject, store, trouble));
                    scope.spawn(steps);
                }
            });
        } else {
            for _ in 0..steps * ACTORS {
                actors[random.index(ACTORS)].step(subject, &store, trouble);
            }
        }
        made += (steps * ACTORS) as u64;
        failed += u64::from(actors.iter().any(|actor| actor.open.is_some()));
        if random.index(3) == 0 && matches!(trouble, Trouble::Nothing | Trouble::Kill) {
            let _ = log.compact().unwrap();
            log.reclaim().unwrap();
        }
        let seed = random.next_u64();
        match trouble {
            Trouble::Nothing => {
                drop(store);
                log.close().unwrap();
            }
            Trouble::Full => {
                ground.give_space();
                for actor in &mut actors {
                    actor.look(subject, &store, Trouble::Nothing);
                    if let Some(call) = actor.open.clone() {
                        actor.make(subject, &store, &call, Trouble::Nothing);
                    }
                }
            }
            _ => {}
        }
        ground = ground.next(trouble, seed);
        log = ground.open(&with_options(round + 2));
        let report = log.recovery_report();
        // A superblock that was torn costs nothing: there is another.
        let is_torn = |one: &runlog::Corruption| matches!(one.place, Place::Superblock { .. });
        assert!(report.damaged.iter().all(is_torn), "{report:#?}");
        let store = subject.open(&log);
        for actor in &mut actors {
            actor.look_again(subject, &store, trouble.is_cut());
            actor.open =
                actor.open.take().filter(|call| subject.follows(call, &actor.candidates[0]));
            // What was not answered is asked again.
            if let Some(call) = actor.open.clone() {
                actor.make(subject, &store, &call, Trouble::Nothing);
                actor.look(subject, &store, Trouble::Nothing);
            }
            actor.trail.clear();
        }
    }
    assert!(log.verify().unwrap().is_clean());
}
