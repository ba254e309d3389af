//! Backups of a store that changes, again and again into one file, on a disk that fails.
//!
//! Goal: whatever happens to the file within a backup, it has the earlier copy, the new one, or
//! what lies between, without damage. What a backup reported survives a loss of power. No backup
//! replaces what a process has written that opened the copy, and none is refused.
//!
//! Method: the life of a writer is recorded, and played into a page cache as far as each backup
//! finds it, or further while it reads. The file of the copy is on a simulated disk: syncs and
//! other calls fail, it is full, the backup is killed, and the disk loses power, each once or
//! again.
//!
//! `RUNLOG_REPLAY=story` repeats only this story, to investigate a failure.

use std::sync::Arc;

use runlog::storage::Storage;
use runlog::{Corruption, Durability, Error, Metadata, Place, Reader, ReaderOptions};
use runlog_sim::settings::scale;
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use crate::support::background::Background;
use crate::support::campaign::{Campaign, Counts};
use crate::support::cuts::{Epoch, check_whole};
use crate::support::fault::damage::Harm;
use crate::support::fault::{FaultPlan, give_space, some_survivors};
use crate::support::gate::Gate;
use crate::support::machine::Machine;
use crate::support::manifest::slots;
use crate::support::model::{Found, Model};
use crate::support::scene::Scene;
use crate::support::stories::{Kind, tell_any};

/// Few enough for a plain `cargo test`, and those of CI.
const STORIES: [u64; 2] = [12, 60];
const SEED: u64 = 2026;
/// Backups of one epoch, about.
const BACKUPS: usize = 24;
/// A fault comes within so many calls of the disk.
const SOON: [usize; 4] = [4, 12, 30, 80];

#[test]
fn whatever_fails_within_a_backup_leaves_the_earlier_copy_or_the_new_one() {
    let campaign = Campaign::new("failing_copies::", SEED);
    let (seed, stories) = (campaign.seed, scale(STORIES[0], STORIES[1]));
    campaign.run(
        |story, _| story >= stories,
        &["failed", "cuts", "restored", "watched", "broken openings"],
        |story, counts| tell(seed, story, counts),
    );
}

fn tell(seed: u64, story: u64, counts: &mut Counts) -> Result<(), String> {
    let mut random = SplitMix64::for_case(seed ^ 0x636f_7079, story);
    let (kind, epochs) = tell_any(seed, story);
    // The epochs of a round are of one store, which lost power in between.
    let is_one_store = kind == Kind::Round;
    let mut copy = Copy::new(random.next_u64());
    for (number, epoch) in epochs.iter().enumerate() {
        if number > 0 && !is_one_store {
            copy = Copy::new(random.next_u64());
        }
        let fail = |at, error| format!("epoch {number}, operation {at}: {error}");
        let (recording, mut last) = (Arc::new(epoch.recording.clone()), epoch.recording.ops.len());
        if is_one_store && number + 1 < epochs.len() {
            // The power may be lost from here on.
            last -= last / 4;
        }
        let scene = Scene::new(recording, epoch.first, random.next_u64());
        let source = Source { epoch, scene, last };
        while source.scene.at().0 < last {
            let at = source.scene.at().0;
            source.scene.play_to((at + 1 + random.index(2 * last / BACKUPS + 1)).min(last));
            let done = copy.go_on(&source, counts);
            done.map_err(|error| fail(source.scene.at().0, error))?;
        }
    }
    Ok(())
}

/// The store, as another process sees it.
struct Source<'a> {
    epoch: &'a Epoch,
    scene: Arc<Scene>,
    /// No backup sees later operations.
    last: usize,
}

impl Source<'_> {
    /// How much is acknowledged by now, and how much was begun.
    fn bounds(&self) -> (usize, usize) {
        let (at, is_torn) = self.scene.at();
        self.epoch.model.after_kill(at, is_torn)
    }

    fn reader(&self, durable_only: bool) -> Result<Reader, String> {
        let options = ReaderOptions::new().durable_only(durable_only);
        let options = options.environment(self.epoch.machine.environment());
        let scene: Arc<Scene> = Arc::clone(&self.scene);
        options.open_storage(scene).map_err(|error| format!("the store: {error}"))
    }
}

/// Of which moment a copy may be: it has so many events of a model.
struct Had {
    model: Model,
    least: usize,
    most: usize,
}

/// A file that backups write to.
struct Copy {
    random: SplitMix64,
    disk: SimDisk,
    /// Since a backup succeeded. One of an earlier epoch is here until a backup of the next one.
    had: Vec<Had>,
    /// A slot of a superblock was damaged since.
    is_harmed: bool,
    /// It was made of a damaged store, or while a part of an operation stood still.
    is_odd: bool,
}

impl Copy {
    fn new(seed: u64) -> Self {
        let (random, disk) = (SplitMix64::new(seed), SimDisk::new());
        Self { random, disk, had: Vec::new(), is_harmed: false, is_odd: false }
    }

    /// One more backup, and something else.
    fn go_on(&mut self, source: &Source<'_>, counts: &mut Counts) -> Result<(), String> {
        self.back_up(source, counts)?;
        if self.random.below(3) == 0 && !self.had.is_empty() {
            self.lose_power(source, counts).map_err(|error| format!("a loss of power: {error}"))?;
        }
        if self.had.is_empty() || self.is_odd {
            return Ok(());
        }
        match self.random.below(16) {
            0 if slots(&self.disk.image()).iter().all(Result::is_ok) => {
                let harm = [Harm::Slot, Harm::NewerSlot][self.random.index(2)];
                self.disk.set_faults_aside(true);
                harm.on_disk(&self.disk, &mut self.random);
                self.disk.set_faults_aside(false);
                self.disk.sync().unwrap();
                self.is_harmed = true;
                self.check(source, self.disk.image(), "with a damaged superblock").map(drop)
            }
            1..=3 => self.restore(source, counts).map_err(|error| format!("restored: {error}")),
            4..=5 => self.watch(source, counts).map_err(|error| format!("watched: {error}")),
            _ => Ok(()),
        }
    }

    /// Plans something that goes wrong, or nothing.
    fn plan(&mut self) -> Gate {
        let (gate, soon) = (Gate::new(&self.disk), SOON[self.random.index(SOON.len())]);
        if self.random.below(5) != 0 {
            FaultPlan::choose(&mut self.random, &self.disk, soon).apply(&self.disk, &gate);
        }
        gate
    }

    fn end_plan(&self) {
        self.disk.clear_faults();
        give_space(&self.disk);
    }

    /// Backs the store up, and looks at what is left.
    fn back_up(&mut self, source: &Source<'_>, counts: &mut Counts) -> Result<(), String> {
        let durable_only = self.random.below(6) == 0;
        source.scene.set_pace(0, 0);
        let (reader, at) = (source.reader(durable_only)?, source.scene.at().0);
        let (model, kept) = (&source.epoch.model, source.bounds().0);
        let low = match durable_only {
            true => model.check(&reader, 0, source.bounds().1)?.prefix,
            false => kept,
        };
        let pace = [0, 0, 1, 5][self.random.index(4)];
        source.scene.set_pace(pace, (at + self.random.index(60)).min(source.last));
        let gate = self.plan();
        let done = reader.backup_to_storage(gate.storage());
        let is_torn = source.scene.at().1;
        source.scene.set_pace(0, 0);
        self.end_plan();
        counts.one("backups");
        let most = source.bounds().1;
        match done {
            Ok(report) => {
                if !report.damaged.is_empty() && !is_torn {
                    return Err(format!("damage: {report:?}"));
                }
                self.is_odd = !report.damaged.is_empty();
                self.is_harmed = false;
                self.had = vec![Had { model: model.clone(), least: low, most }];
                let found = self.check(source, self.disk.image(), "after a backup")?;
                let Some(found) = found else { return Ok(()) };
                self.had = vec![Had { least: found.prefix, ..self.had.remove(0) }];
                // The copy survives a loss of power when the call returns.
                let durable = self.disk.crash(Survivors::Nothing, 0);
                let left = self.check(source, durable, "what a backup has stored")?;
                if left.is_some_and(|left| left.seen != found.seen) {
                    return Err("a loss of power took what a backup reported".to_owned());
                }
                Ok(())
            }
            Err(Error::Overtaken { .. }) => {
                counts.one("overtaken");
                self.broke_off(source, low, most)
            }
            Err(Error::Io { .. } | Error::DiskFull { .. } | Error::Poisoned) => {
                counts.one("failed");
                self.broke_off(source, low, most)
            }
            // What a first backup left is no copy yet.
            Err(_) if self.had.is_empty() => {
                self.disk = SimDisk::new();
                Ok(())
            }
            Err(error) => Err(format!("refused: {error:?}")),
        }
    }

    /// A backup of so many events broke off.
    fn broke_off(&mut self, source: &Source<'_>, low: usize, most: usize) -> Result<(), String> {
        if self.had.is_empty() {
            return Ok(());
        }
        let is_same = |had: &Had| {
            let last = |model: &Model| model.events.last().map(|event| event.begin);
            last(&had.model) == last(&source.epoch.model)
        };
        match self.had.iter_mut().find(|had| is_same(had)) {
            Some(had) => (had.least, had.most) = (had.least.min(low), had.most.max(most)),
            None => self.had.push(Had { model: source.epoch.model.clone(), least: low, most }),
        }
        self.check(source, self.disk.image(), "after a backup that broke off").map(drop)
    }

    fn lose_power(&mut self, source: &Source<'_>, counts: &mut Counts) -> Result<(), String> {
        counts.one("cuts");
        let survivors = some_survivors(&mut self.random);
        self.disk.lose_power(survivors, self.random.next_u64());
        self.check(source, self.disk.image(), "what is left").map(drop)
    }

    /// The machine that has the copy.
    fn machine(source: &Source<'_>) -> Machine {
        let mut machine = source.epoch.machine.clone();
        machine.background = machine.background.map(|_| Background::default());
        machine
    }

    /// What does not check of a copy that is whole, by a report.
    fn first_of<'c>(&self, mut damaged: impl Iterator<Item = &'c Corruption>) -> Option<String> {
        // A superblock can be torn by a call that fails or is killed.
        let is_told = |damage: &&Corruption| !matches!(damage.place, Place::Superblock { .. });
        damaged.find(is_told).map(ToString::to_string)
    }

    /// A process that only reads, and one that writes, find a copy of one moment, the same one.
    fn check(
        &self,
        source: &Source<'_>,
        image: Vec<u8>,
        what: &str,
    ) -> Result<Option<Found>, String> {
        if self.is_odd {
            return Ok(None);
        }
        let fail = |error: String| format!("{what}: {error}");
        let machine = Self::machine(source);
        let options = ReaderOptions::new().environment(machine.environment());
        let copy = options.open_storage(Arc::new(SimDisk::untracked(image.clone())));
        let copy = copy.map_err(|error| fail(format!("reading: {error}")))?;
        let report = copy.recovery_report();
        if let Some(damage) = self.first_of(report.damaged.iter()) {
            return Err(fail(format!("{damage}, by {report}")));
        }
        let found = self.moment(&copy).map_err(fail)?;
        let verified = copy.verify().map_err(|error| fail(format!("verify: {error}")))?;
        if let Some(problem) = self.first_of(verified.problems.iter()) {
            return Err(fail(format!("verify: {problem}")));
        }
        let gate = Gate::new(&SimDisk::untracked(image));
        let log = machine.options().open_storage(gate.storage());
        let log = log.map_err(|error| fail(format!("opening: {error}")))?;
        let report = log.recovery_report();
        if let Some(damage) = self.first_of(report.damaged.iter()) {
            return Err(fail(format!("{damage}, by the report of an opening, {report}")));
        }
        let again = self.moment(&log).map_err(fail)?;
        if again.seen != found.seen || again.documents != found.documents {
            return Err(fail("a writer finds something else than a reader".to_owned()));
        }
        check_whole(&log).map_err(fail)?;
        gate.shut();
        Ok(Some(found))
    }

    /// The moment of which a copy is.
    fn moment(&self, log: &impl runlog::ReadLog) -> Result<Found, String> {
        let mut failed = "nothing was copied".to_owned();
        for had in &self.had {
            match had.model.check(log, had.least, had.most) {
                Ok(found) => return Ok(found),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// A process opens the copy for writing, or dies within that.
    fn restore(&mut self, source: &Source<'_>, counts: &mut Counts) -> Result<(), String> {
        let machine = Self::machine(source);
        let disk = SimDisk::from_image(self.disk.image());
        let (gate, reader) = (Gate::new(&disk), source.reader(false)?);
        if self.random.coin() {
            gate.shut_at(self.random.index(30));
        }
        let opened = machine.options().open_storage(gate.storage());
        let Ok(log) = opened else {
            if !gate.is_shut() {
                return Err(format!("{:?}", opened.map(drop)));
            }
            counts.one("broken openings");
            self.check(source, disk.image(), "an opening that was killed")?;
            let before = disk.image();
            let low = source.bounds().0;
            return match reader.backup_to_storage(Arc::new(disk.clone())) {
                Err(_) => self.check(source, disk.image(), "refused behind an opening").map(drop),
                Ok(report) if report.damaged.is_empty() => {
                    let most = source.bounds().1;
                    let had = Had { model: source.epoch.model.clone(), least: low, most };
                    let had = core::mem::replace(&mut self.had, vec![had]);
                    let found = self.check(source, disk.image(), "behind a killed opening");
                    self.had = had;
                    found.map(drop)
                }
                Ok(report) => Err(format!("{report:?} of {} bytes", before.len())),
            };
        };
        counts.one("restored");
        let about = Metadata::default().durability(Durability::Disk);
        let own = log.start_run("own", "own", about).and_then(|run| run.append(b"own").map(drop));
        let own = own.and_then(|()| log.sync());
        gate.shut();
        drop(log);
        if own.is_err() {
            return Ok(());
        }
        if self.random.coin() {
            let survivors = some_survivors(&mut self.random);
            disk.lose_power(survivors, self.random.next_u64());
        }
        if self.random.coin() {
            let harm = [Harm::Slot, Harm::NewerSlot][self.random.index(2)];
            harm.on_disk(&disk, &mut self.random);
        }
        let before = disk.image();
        let done = reader.backup_to_storage(Arc::new(disk.clone()));
        match done {
            Err(_) if disk.image() == before => Ok(()),
            done => Err(format!("a copy that a writer opened was written to: {done:?}")),
        }
    }

    /// Readers of the copy while it is brought up to date.
    fn watch(&mut self, source: &Source<'_>, counts: &mut Counts) -> Result<(), String> {
        if self.is_harmed {
            return Ok(());
        }
        let at = source.scene.at().0;
        source.scene.play_to((at + self.random.index(40)).min(source.last));
        let (low, reader) = (source.bounds().0, source.reader(false)?);
        let disk = SimDisk::recording_from(self.disk.image());
        let report = reader.backup_to_storage(Arc::new(disk.clone()));
        let report = report.map_err(|error| error.to_string())?;
        if !report.damaged.is_empty() {
            return Err(format!("{report:?}"));
        }
        let most = source.bounds().1;
        self.broke_off(source, low, most)?;
        let played = Scene::new(Arc::new(disk.take_recording()), 0, self.random.next_u64());
        let options = ReaderOptions::new().environment(Self::machine(source).environment());
        let storage: Arc<Scene> = Arc::clone(&played);
        let mut watcher = options.clone().open_storage(storage.clone());
        while played.at().0 < disk.op_count() {
            counts.one("watched");
            let at = played.at().0;
            played.set_pace([0, 1, 3][self.random.index(3)], at + self.random.index(6));
            if self.random.below(3) == 0 {
                watcher = options.clone().open_storage(storage.clone());
            }
            let reader = watcher.as_ref().map_err(|error| format!("opening: {error}"))?;
            let _ = reader.refresh().map_err(|error| format!("refresh: {error}"))?;
            played.set_pace(0, 0);
            let report = reader.recovery_report();
            let is_torn = played.at().1;
            if let Some(damage) = self.first_of(report.damaged.iter()).filter(|_| !is_torn) {
                return Err(format!("at {:?}: {damage}", played.at()));
            }
            if !is_torn {
                let _ = reader.refresh().map_err(|error| format!("refresh: {error}"))?;
                self.moment(reader).map_err(|error| format!("at {:?}: {error}", played.at()))?;
            }
            played.play_to((at + 1).max(played.at().0).min(disk.op_count()));
        }
        Ok(())
    }
}
