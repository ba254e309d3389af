//! Random stores, and what they acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use runlog::env::{BootId, Environment};
use runlog::{
    Allow, Compaction, Compression, Durability, Error, Metadata, NewRecord, Options, Outcome,
    RunLog, TailWriter, Timestamp,
};
use runlog_sim::{CrashImages, SimClock, SimDisk, SimEntropy, SplitMix64, Survivors};

use crate::support::background::Background;
use crate::support::frames::EXTENT;

pub(super) const AGENT: &str = "agent";
pub(super) const SPACE: &str = "space";
pub(super) const KEYS: u64 = 6;

pub(super) fn run_name(run: u64) -> String {
    format!("run {run}")
}

pub(super) fn key_name(key: u64) -> String {
    format!("key {key}")
}

/// The metadata and the outcome of a run.
pub(super) fn note(what: &str, run: u64) -> Vec<u8> {
    format!("<{what} {run}> ").repeat(1 + run as usize % 40).into_bytes()
}

/// The kind of a record says which one it is, also if it has no bytes.
pub(super) fn kind(id: u64, len: usize) -> String {
    format!("{id}:{len}")
}

fn payload(id: u64, len: usize) -> Vec<u8> {
    if id.is_multiple_of(2) {
        return format!("record {id:06} ").into_bytes().into_iter().cycle().take(len).collect();
    }
    let mut bytes = vec![0; len];
    SplitMix64::new(id).fill(&mut bytes);
    bytes
}

/// Which record it is; its bytes must be those that were appended.
pub(super) fn identify(kind: Option<&str>, bytes: &[u8]) -> u64 {
    let (id, len) = kind.and_then(|kind| kind.split_once(':')).expect("each record has a kind");
    let (id, len) = (id.parse().unwrap(), len.parse().unwrap());
    assert!(payload(id, len) == bytes, "the bytes of record {id} are not those that it had");
    id
}

/// What one call did.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Nothing,
    Start(u64),
    Append(u64, Vec<u64>),
    End(u64),
    Delete(u64),
    Put(u64, u64),
    Remove(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Run {
    pub(super) ids: Vec<u64>,
    pub(super) has_ended: bool,
}

/// What a store must answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) runs: BTreeMap<u64, Run>,
    pub(super) docs: BTreeMap<u64, u64>,
    /// Runs and documents of which a call that erases them failed: they may be gone.
    pub(super) half_gone: BTreeSet<u64>,
    pub(super) half_gone_docs: BTreeSet<u64>,
    /// Runs and documents that damage has hit.
    pub(super) dim: BTreeSet<u64>,
    pub(super) dim_docs: BTreeSet<u64>,
    /// Lists may be refused for damage.
    pub(super) dim_lists: bool,
}

impl Known {
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Nothing => {}
            Event::Start(run) => drop(self.runs.insert(*run, Run::default())),
            Event::Append(run, ids) => self.runs.entry(*run).or_default().ids.extend(ids),
            Event::End(run) => self.runs.entry(*run).or_default().has_ended = true,
            Event::Delete(run) => drop(self.runs.remove(run)),
            Event::Put(key, id) => drop(self.docs.insert(*key, *id)),
            Event::Remove(key) => drop(self.docs.remove(key)),
        }
    }
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    index: bool,
    compresses: bool,
    compacts: bool,
    tail: TailWriter,
    pub(super) clock: SimClock,
    entropy: SimEntropy,
    pub(super) boot: u8,
    /// Does the background work, in place of the calls.
    background: Option<Background>,
}

impl Settings {
    fn new(random: &mut SplitMix64) -> Self {
        Self {
            index: random.below(3) != 0,
            compresses: random.coin(),
            compacts: random.coin(),
            tail: [TailWriter::Mapped, TailWriter::Pwrite][random.index(2)],
            clock: SimClock::new(Timestamp(1_000_000_000)),
            entropy: SimEntropy::new(random.next_u64()),
            boot: 1,
            background: (random.below(3) == 0).then(Background::default),
        }
    }

    /// Some background work, in any order.
    pub(super) fn some_background(&self, random: &mut SplitMix64) {
        if let Some(background) = &self.background {
            background.run_some(random, 3);
        }
    }

    pub(super) fn environment(&self) -> Environment {
        Environment::system()
            .boot_id(Some(BootId([self.boot; 16])))
            .clock(Arc::new(self.clock.clone()))
            .entropy(Arc::new(self.entropy.clone()))
    }

    pub(super) fn options(&self) -> Options {
        let codec = Compression::Zstd { level: 1 };
        let options = Options::new()
            .extent_size(EXTENT as u64)
            .background(false)
            .index(self.index)
            .tail_writer(self.tail)
            .compression(if self.compresses { codec } else { Compression::None })
            .compaction(Compaction::new().automatic(self.compacts))
            .environment(self.environment());
        match &self.background {
            Some(background) => options.scheduler(Arc::new(background.clone())),
            None => options,
        }
    }
}

/// The calls of a caller, one after the other.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) random: SplitMix64,
    pub(super) known: Known,
    /// How many records and runs there were.
    ids: u64,
    pub(super) runs: u64,
}

/// A call, what it did if it succeeded, and whether all is durable then.
pub(super) struct Call {
    pub(super) event: Event,
    pub(super) is_durable: bool,
    pub(super) result: Result<(), Error>,
}

impl Caller {
    /// One that goes on with a store that answers this.
    pub(super) fn clone_with(&self, random: SplitMix64, known: Known) -> Self {
        Self { random, known, ids: self.ids, runs: self.runs }
    }

    fn len(&mut self) -> usize {
        let (least, most) = match self.random.below(40) {
            0..3 => (0, 0),
            3..14 => (1, 80),
            14..26 => (80, 900),
            26..34 => (900, 5_000),
            34..37 => (7_900, 8_400),
            37..39 => (9_000, 40_000),
            _ => (64 << 10, 150_000),
        };
        least + self.random.index(most - least + 1)
    }

    fn level(&mut self) -> Durability {
        if self.random.below(4) == 0 { Durability::Disk } else { Durability::Process }
    }

    fn pick(&mut self, has_ended: bool) -> Option<u64> {
        let is_there = |number: &u64| {
            !self.known.half_gone.contains(number) && !self.known.dim.contains(number)
        };
        let all = self.known.runs.iter().filter(|(number, _)| is_there(number));
        let all = all.filter(|(_, run)| run.has_ended == has_ended);
        let all: Vec<u64> = all.map(|(run, _)| *run).collect();
        (!all.is_empty()).then(|| all[self.random.index(all.len())])
    }

    /// One call. It changes `known` if it succeeds.
    pub(super) fn step(&mut self, log: &RunLog, settings: &Settings) -> Call {
        settings.clock.advance(1 + self.random.below(1_000_000) as i64);
        let level = self.level();
        let call = self.call(log, level);
        if call.result.is_ok() {
            self.known.apply(&call.event);
        }
        settings.some_background(&mut self.random);
        call
    }

    fn call(&mut self, log: &RunLog, level: Durability) -> Call {
        let at_level = level == Durability::Disk;
        let done = |event, is_durable, result| Call { event, is_durable, result };
        let (running, ended) = (self.pick(false), self.pick(true));
        match (self.random.below(40), running, ended) {
            (0..18, Some(run), _) => self.append(log, run, level),
            (18..22, Some(run), _) => {
                let bytes = note("outcome", run);
                let outcome = Outcome::completed().bytes(&bytes).durability(level);
                let ended = log.end_run(AGENT, &run_name(run), &outcome, Allow::nothing());
                done(Event::End(run), at_level, ended.map(drop))
            }
            (22..25, _, Some(run)) => {
                let deleted = log.delete_run((AGENT, run_name(run).as_str()));
                done(Event::Delete(run), true, deleted.map(drop))
            }
            (25, _, Some(run)) => {
                let erased = log.erase_run((AGENT, run_name(run).as_str()));
                if erased.is_err() {
                    let _ = self.known.half_gone.insert(run);
                }
                done(Event::Delete(run), true, erased.map(drop))
            }
            (26..30, ..) => {
                let (key, id, len) = (self.random.below(KEYS), self.ids, self.len());
                self.ids += 1;
                let (kind, bytes) = (kind(id, len), payload(id, len));
                let value = NewRecord::new(&bytes).kind(&kind).durability(level);
                let put = log.docs().put(SPACE, &key_name(key), &value);
                done(Event::Put(key, id), at_level, put.map(drop))
            }
            (30, ..) => {
                let key = self.random.below(KEYS);
                let erases = self.random.coin();
                let gone = if !erases {
                    log.docs().delete(SPACE, &key_name(key)).map(drop)
                } else {
                    let erased = log.docs().erase(SPACE, &key_name(key));
                    if erased.is_err() {
                        let _ = self.known.half_gone_docs.insert(key);
                    }
                    erased.map(drop)
                };
                done(Event::Remove(key), true, gone)
            }
            (31, ..) => done(Event::Nothing, true, log.sync()),
            (32..34, ..) => done(Event::Nothing, true, log.checkpoint()),
            (34, ..) => done(Event::Nothing, false, log.reclaim()),
            (35, ..) => done(Event::Nothing, false, log.compact().map(drop)),
            _ => {
                let run = self.runs;
                self.runs += 1;
                let bytes = note("metadata", run);
                let metadata = Metadata::new(&bytes).durability(level);
                let started = log.start_run(AGENT, &run_name(run), metadata);
                done(Event::Start(run), at_level, started.map(drop))
            }
        }
    }

    fn append(&mut self, log: &RunLog, run: u64, level: Durability) -> Call {
        let count = if self.random.below(6) == 0 { 2 + self.random.below(3) } else { 1 };
        let ids: Vec<u64> = (self.ids..self.ids + count).collect();
        self.ids += count;
        let records: Vec<_> = ids
            .iter()
            .map(|&id| {
                let len = if count == 1 { self.len() } else { self.len().min(5_000) };
                (kind(id, len), payload(id, len))
            })
            .collect();
        let new = |(kind, bytes)| NewRecord::new(bytes).kind(kind).durability(level);
        let records: Vec<_> = records.iter().map(|(kind, bytes)| new((kind, bytes))).collect();
        let (name, allow) = (run_name(run), Allow::nothing());
        let result = match records.as_slice() {
            [record] => log.append_to(AGENT, &name, record, allow).map(drop),
            records => log.append_batch_to(AGENT, &name, records, allow).map(drop),
        };
        let (event, is_durable) = (Event::Append(run, ids), level == Durability::Disk);
        Call { event, is_durable, result }
    }
}

/// A store that was closed or killed.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) image: Vec<u8>,
    pub(super) settings: Settings,
    /// The calls, and how many of them must count.
    pub(super) events: Vec<Event>,
    pub(super) counted: RangeInclusive<usize>,
    /// It was not stopped within a call of the disk, and no power was lost.
    pub(super) is_tidy: bool,
    /// What was written and is not counted may be there nevertheless.
    pub(super) lost_power: bool,
    pub(super) caller: Caller,
}

impl Story {
    pub(super) fn new(random: &mut SplitMix64) -> Self {
        let mut settings = Settings::new(random);
        let disk = SimDisk::recording();
        let log = settings.options().create_storage(Arc::new(disk.clone())).unwrap();
        let seed = SplitMix64::new(random.next_u64());
        let mut caller = Caller { random: seed, known: Known::default(), ids: 0, runs: 0 };
        let (mut events, mut marks) = (Vec::new(), vec![(disk.op_count(), 0)]);
        let mut durable = 0;
        for number in 0..20 + random.index(130) {
            let call = caller.step(&log, &settings);
            call.result.unwrap_or_else(|error| panic!("{:?}: {error}", call.event));
            events.push(call.event);
            durable = if call.is_durable { number + 1 } else { durable };
            marks.push((disk.op_count(), durable));
        }
        let end = random.below(4);
        if end == 0 {
            log.close().unwrap();
            let counted = events.len()..=events.len();
            settings.boot += random.below(2) as u8;
            let image = disk.take_image();
            return Self {
                image,
                settings,
                events,
                counted,
                is_tidy: true,
                lost_power: false,
                caller,
            };
        }
        let recording = disk.take_recording();
        drop(log);
        let (first, last) = (marks[0].0, marks[marks.len() - 1].0);
        let boundary = if random.coin() { last } else { last - random.index((last - first) / 2) };
        let mut crashes = CrashImages::new(&recording);
        crashes.seek(boundary);
        let &(_, durable) = marks.iter().rfind(|(ops, _)| *ops <= boundary).unwrap();
        let done = marks.iter().filter(|(ops, _)| *ops <= boundary).count() - 1;
        let (mut image, mut is_tidy, mut least) = (Vec::new(), false, done);
        match end {
            1 => {
                crashes.killed_into(0, &mut image);
                is_tidy = true;
            }
            2 => drop(crashes.killed_within_into(random, &mut image)),
            _ => {
                let ways = Survivors::ALL;
                let way = ways[random.index(ways.len())];
                crashes.image_into(way, random.next_u64(), &mut image);
                settings.boot += 1;
                least = durable;
            }
        }
        let counted = least..=events.len().min(done + 1);
        Self { image, settings, events, counted, is_tidy, lost_power: end == 3, caller }
    }
}
