//! Sectors that the disk cannot read, in stores that were closed, killed, or lost power: whatever
//! answers at all answers rightly, or with an error that names the read; and nothing is lost that
//! the disk can read again later.
//!
//! - `RUNLOG_UNREAD`: how many stores.
//! - `RUNLOG_UNREAD_SEED`: the first of their seeds; a failure names its own.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::segments::segment::SegmentHeader;
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Error, Follow, Follower, LogCursor, LogEvent, LogEventKind, ReadLog, Reader, ReaderOptions,
};
use runlog_sim::{SimDisk, SplitMix64};

use self::answers::{Answers, Faults};
use self::story::{Caller, Event, KEYS, Known, SPACE, Settings, Story, key_name};
use crate::support::campaign::variable;
use crate::support::frames::EXTENT;

mod answers;
mod story;
mod watched;
mod written;

const SECTOR: u64 = 512;

/// A store, and what is wrong with its disk.
struct Case {
    seed: u64,
    /// With the damage.
    image: Vec<u8>,
    settings: Settings,
    /// What the store must answer, and to a process that only reads it. The two differ if the
    /// damage has made an index and the log different.
    known: Known,
    known_by_reader: Known,
    faults: Faults,
    /// The sectors with damage.
    damaged: Vec<Range<u64>>,
    /// None of the faults is where an opening, or an answer, must read.
    is_harmless: bool,
    caller: Caller,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RUNLOG_UNREAD_SEED={} ", self.seed)?;
        write!(f, "unread {:x?}, damaged {:x?}", self.faults.unread, self.damaged)
    }
}

/// What happened in all cases.
#[derive(Debug, Default)]
struct Tally {
    opened: u64,
    refused: u64,
    read: u64,
    unread: u64,
    copied: u64,
    uncopied: u64,
    damaged: u64,
    failed_calls: u64,
    calls: u64,
    looks: u64,
    failed_looks: u64,
    harmless: u64,
}

/// Where the extents are that are free, or of the index.
fn idle(image: &[u8]) -> impl Iterator<Item = Range<u64>> {
    let starts = (EXTENTS_AT as usize..image.len()).step_by(EXTENT);
    let starts = starts.filter(|at| {
        SegmentHeader::decode(&image[*at..]).is_err() && !image[*at..].starts_with(b"RLOGMAN1")
    });
    starts.map(|at| at as u64..(at + EXTENT) as u64)
}

/// Whether a range has nothing but extents that are free, or of the index.
fn is_idle(image: &[u8], range: &Range<u64>) -> bool {
    let mut at = range.start;
    for extent in idle(image) {
        if extent.contains(&at) {
            at = extent.end;
        }
    }
    range.end.min(image.len() as u64) <= at
}

/// What the answers say that the calls have done, and how many of them.
fn acknowledged(story: &Story, answers: &Answers) -> Result<(Known, usize), String> {
    let (mut known, mut wrong) = (Known::default(), Vec::new());
    for number in 0..=story.events.len() {
        if story.counted.contains(&number) {
            match answers.check(&known, &Faults::default()) {
                Ok(()) => return Ok((known, number)),
                Err(error) => wrong.push(error),
            }
        }
        story.events.get(number).into_iter().for_each(|event| known.apply(event));
    }
    Err(format!("of {:?} none fits: {wrong:?}", story.counted))
}

fn ranges(random: &mut SplitMix64, image: &[u8]) -> Vec<Range<u64>> {
    let sectors = image.len() as u64 / SECTOR;
    let extents = (image.len() as u64 - EXTENTS_AT).div_ceil(EXTENT as u64);
    let extent = |random: &mut SplitMix64| EXTENTS_AT + random.below(extents) * EXTENT as u64;
    let idle: Vec<_> = idle(image).map(|extent| extent.start).collect();
    let only_idle = random.below(5) == 0 && !idle.is_empty();
    let one = |random: &mut SplitMix64| {
        let sector = |at: u64, count: u64| at * SECTOR..(at + count) * SECTOR;
        if only_idle {
            let at = idle[random.index(idle.len())];
            let len = if random.coin() { SECTOR } else { EXTENT as u64 };
            return at..at + len;
        }
        match random.below(12) {
            0..5 => {
                let used = (0..40).map(|_| random.below(sectors)).find(|at| {
                    let at = (at * SECTOR) as usize;
                    image[at..at + SECTOR as usize].iter().any(|byte| *byte != 0)
                });
                sector(used.unwrap_or(0), 1)
            }
            5..7 => sector(random.below(sectors), 1 + random.below(24)),
            7 => sector(random.below(EXTENTS_AT / SECTOR), 1 + random.below(9)),
            8 => {
                let at = extent(random);
                at..at + SECTOR
            }
            9 => {
                let at = extent(random);
                at..at + EXTENT as u64 * (1 + random.below(3))
            }
            10 => {
                let at = extent(random) + SECTOR * random.below(128);
                at..at + SECTOR * (1 + random.below(256))
            }
            // The place where the log ends, as a rule.
            _ => sector(sectors - 1 - random.below(sectors.min(256)), 1 + random.below(4)),
        }
    };
    (0..1 + random.below(3)).map(|_| one(random)).collect()
}

/// Zeros, other bytes, or a flipped bit in a sector that has something.
fn damage(random: &mut SplitMix64, image: &mut [u8]) -> Range<u64> {
    loop {
        let sector = random.index(image.len() / SECTOR as usize) * SECTOR as usize;
        let bytes = &mut image[sector..sector + SECTOR as usize];
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        match random.below(3) {
            0 => bytes.fill(0),
            1 => random.fill(bytes),
            _ => bytes[random.index(bytes.len())] ^= 1 << random.below(8),
        }
        return sector as u64..sector as u64 + SECTOR;
    }
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::for_case(seed, 17);
        let story = Story::new(&mut random);
        let disk = SimDisk::untracked(story.image.clone());
        let log = story.settings.options().open_storage(Arc::new(disk));
        let log = log.unwrap_or_else(|error| panic!("RUNLOG_UNREAD_SEED={seed}: {error}"));
        let answers = Answers::of(&log, story.caller.runs);
        let (known, _) = acknowledged(&story, &answers)
            .unwrap_or_else(|error| panic!("RUNLOG_UNREAD_SEED={seed}: the whole store: {error}"));
        drop(log);
        let Story { mut image, settings, is_tidy, caller, .. } = story;
        let unread = ranges(&mut random, &image);
        let is_idle = |bad: &Range<u64>| is_idle(&image, bad);
        let is_harmless = is_tidy && unread.iter().all(is_idle);
        let has_damage = random.below(4) == 0;
        let damaged = has_damage.then(|| damage(&mut random, &mut image));
        Self {
            seed,
            image,
            settings,
            known_by_reader: known.clone(),
            known,
            faults: Faults { unread, has_damage },
            damaged: damaged.into_iter().collect(),
            is_harmless: is_harmless && !has_damage,
            caller,
        }
    }

    /// Learns what the damage alone leaves; false if that does not open.
    fn know_anew(&mut self) -> bool {
        if !self.faults.has_damage {
            return true;
        }
        let disk = SimDisk::untracked(self.image.clone());
        let Ok(log) = self.settings.options().open_storage(Arc::new(disk)) else { return false };
        self.known = Answers::of(&log, self.caller.runs).known();
        drop(log);
        let disk = SimDisk::untracked(self.image.clone());
        let options = ReaderOptions::new().environment(self.settings.environment());
        let reader = options.open_storage(Arc::new(disk)).unwrap();
        self.known_by_reader = Answers::of(&reader, self.caller.runs).known();
        true
    }

    fn fail(&self, disk: &SimDisk) {
        for bad in &self.faults.unread {
            disk.fail_reads_in(bad.clone(), ErrorKind::Other);
        }
    }

    /// What is wrong once the disk reads all again.
    fn healed(&self) -> Faults {
        Faults { unread: Vec::new(), has_damage: self.faults.has_damage }
    }

    fn check(&self, what: &str, log: &impl ReadLog, known: &Known, faults: &Faults) -> usize {
        let runs = known.runs.keys().next_back().map_or(0, |run| run + 1);
        let answers = Answers::of(log, runs.max(self.caller.runs));
        if let Err(error) = answers.check(known, faults) {
            panic!("{self}: {what}: {error}");
        }
        answers.errors().count()
    }

    fn allow(&self, what: &str, error: &Error) {
        assert!(self.faults.explain(error), "{self}: {what}: {error:?}");
    }

    fn reads(&self, tally: &mut Tally, random: &mut SplitMix64) {
        let options = ReaderOptions::new().environment(self.settings.environment());
        let disk = SimDisk::untracked(self.image.clone());
        let is_late = random.below(4) == 0;
        if !is_late {
            self.fail(&disk);
        }
        let opened = options.open_storage(Arc::new(disk.clone()));
        self.fail(&disk);
        match opened {
            Err(error) => {
                assert!(!is_late && !self.is_harmless, "{self}: a reader: {error:?}");
                self.allow("a reader is refused", &error);
                tally.unread += 1;
            }
            Ok(reader) => {
                tally.read += 1;
                let errors = self.check("a reader", &reader, &self.known_by_reader, &self.faults);
                assert!(!self.is_harmless || errors == 0, "{self}: {errors} errors of a reader");
                self.copy(&reader, tally, random);
                self.follow(&reader, &disk);
                disk.clear_faults();
                let _ = reader.refresh().unwrap_or_else(|error| panic!("{self}: {error:?}"));
                self.check("a reader later", &reader, &self.known_by_reader, &self.healed());
            }
        }
    }

    /// A copy of all that was acknowledged, or an error, or what is damaged in it.
    fn copy(&self, reader: &Reader, tally: &mut Tally, random: &mut SplitMix64) {
        let storage = Arc::new(MemoryStorage::new());
        let healed = || {
            let disk = Arc::new(SimDisk::untracked(self.image.clone()));
            let options = ReaderOptions::new().environment(self.settings.environment());
            options.open_storage(disk).unwrap()
        };
        let is_second = random.below(3) == 0;
        if is_second {
            let first = healed().backup_to_storage(storage.clone());
            let first = first.unwrap_or_else(|error| panic!("{self}: a first copy: {error:?}"));
            assert!(first.damaged.is_empty() || self.faults.has_damage, "{self}: {first:?}");
        }
        let open = |what| {
            let bytes = Arc::new(SimDisk::untracked(storage.to_bytes()));
            let options = ReaderOptions::new().environment(self.settings.environment());
            let opened = options.open_storage(bytes);
            opened.unwrap_or_else(|error| panic!("{self}: {what}: {error:?}"))
        };
        match reader.backup_to_storage(storage.clone()) {
            Ok(done) => {
                tally.copied += 1;
                let faults = Faults { unread: Vec::new(), has_damage: !done.damaged.is_empty() };
                let has_more = faults.has_damage && !self.faults.has_damage;
                assert!(!has_more, "{self}: a copy: {done:?}");
                self.check("a copy", &open("a copy"), &self.known_by_reader, &faults);
            }
            Err(error) => {
                tally.uncopied += 1;
                assert!(!self.is_harmless, "{self}: a copy: {error:?}");
                self.allow("a copy", &error);
                if is_second {
                    self.check(
                        "a kept copy",
                        &open("a kept copy"),
                        &self.known_by_reader,
                        &self.healed(),
                    );
                }
            }
        }
        if storage.is_empty().unwrap() {
            return;
        }
        match healed().backup_to_storage(storage.clone()) {
            Ok(done) => {
                assert!(done.damaged.is_empty() || self.faults.has_damage, "{self}: {done:?}");
                self.check(
                    "a copy again",
                    &open("a copy again"),
                    &self.known_by_reader,
                    &self.healed(),
                );
            }
            // One that broke off is no store yet.
            Err(error) => assert!(
                matches!(error, Error::InvalidArgument { .. }) && !is_second,
                "{self}: a copy again: {error:?}"
            ),
        }
    }

    fn events_of(&self, follower: &mut Follower, most_errors: usize) -> (Vec<String>, Vec<Error>) {
        let (mut events, mut errors, mut idle) = (Vec::new(), Vec::new(), 0);
        while idle < 4 && errors.len() < most_errors {
            self.settings.clock.advance(3_000_000_000);
            match follower.try_next() {
                Ok(Some(event)) => {
                    events.push(told(&event));
                    idle = 0;
                }
                Ok(None) => idle += 1,
                Err(error) => errors.push(error),
            }
        }
        (events, errors)
    }

    fn follow(&self, reader: &Reader, disk: &SimDisk) {
        let from = (Follow::Everything, LogCursor::START);
        let sound = SimDisk::untracked(self.image.clone());
        let options = ReaderOptions::new().environment(self.settings.environment());
        let sound = options.open_storage(Arc::new(sound)).unwrap();
        let mut all = sound.follow(from.0, from.1).unwrap();
        let (all, _) = self.events_of(&mut all, usize::MAX);
        let mut follower = match reader.follow(from.0, from.1) {
            Ok(follower) => follower,
            Err(error) => return self.allow("a follower", &error),
        };
        let (mut told, errors) = self.events_of(&mut follower, 6);
        errors.iter().for_each(|error| self.allow("a follower", error));
        if errors.is_empty() {
            assert!(told == all, "{self}: a follower is told {told:?} in place of {all:?}");
            return;
        }
        disk.clear_faults();
        let (rest, errors) = self.events_of(&mut follower, usize::MAX);
        let healed = self.healed();
        let unexplained = errors.iter().find(|error| !healed.explain(error));
        assert!(unexplained.is_none(), "{self}: a follower later: {unexplained:?}");
        let before = told.len();
        told.extend(rest);
        assert!(
            told == all,
            "{self}: a follower is told {told:?}, {before} of them before, in place of {all:?}"
        );
        self.fail(disk);
    }
}

fn told(event: &LogEvent) -> String {
    let what = match &event.kind {
        LogEventKind::Record(record) => record.kind().unwrap_or_default().to_owned(),
        LogEventKind::Started(_) => "started".to_owned(),
        LogEventKind::Ended(_) => "ended".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{}: {what}", event.run)
}

fn check(seed: u64, tally: &mut Tally) {
    let mut case = Case::new(seed);
    tally.harmless += u64::from(case.is_harmless);
    if !case.know_anew() {
        tally.damaged += 1;
        return;
    }
    let mut random = SplitMix64::for_case(seed, 18);
    case.reads(tally, &mut random);
    case.writes(tally, random.next_u64());
}

#[test]
fn a_store_on_a_disk_with_places_that_cannot_be_read_answers_rightly_or_with_an_error() {
    let (stores, first) = (variable("RUNLOG_UNREAD", 300), variable("RUNLOG_UNREAD_SEED", 0));
    let mut tally = Tally::default();
    for seed in first..first + stores {
        check(seed, &mut tally);
    }
    println!("{stores} stores, {tally:?}");
    let Tally { opened, refused, read, unread, copied, uncopied, .. } = tally;
    let is_much = opened > stores / 2
        && refused > stores / 10
        && read > stores / 3
        && unread > stores / 5
        && copied > stores / 4
        && uncopied > stores / 20
        && tally.harmless > stores / 20
        && tally.failed_calls > stores / 10
        && tally.calls > 10 * stores;
    assert!(stores < 100 || is_much, "{stores} stores, {tally:?}");
}
