//! Documents and batches under crashes: wherever the power is cut, the store is as it was after
//! some write. Each batch is there as a whole or not at all, no old version comes back, and nothing
//! that was acknowledged is lost.
//!
//! The log is a sequence of writes, so what a crash leaves is a prefix of it: at least what was
//! acknowledged, at most what was begun.

use std::collections::BTreeMap;
use std::sync::Arc;

use runlog::{Batch, Durability, Expected, NewRecord, RunLog, TailWriter, Ticket};
use runlog_sim::{CrashImages, Recording, SimDisk, SplitMix64, settings};

use crate::support::background::Background;
use crate::support::cuts::{LOSSES, Loss, check_whole};
use crate::support::gate::Gate;
use crate::support::world::Machine;

/// The seed of all choices, unless `RUNLOG_SEED` says otherwise.
const SEED: u64 = 4242;
/// The cuts of a plain `cargo test`, and those of CI.
const CUTS: [u64; 2] = [500, 1250];
const STEPS: usize = 400;

/// The contents of the store: the documents, and how many records the run has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    documents: BTreeMap<String, Vec<u8>>,
    records: usize,
}

/// One write, and when it happened in terms of operations on the disk.
#[derive(Debug)]
struct Event {
    /// The state after it.
    after: State,
    begin: usize,
    process: usize,
    disk: usize,
}

/// A store on a simulated disk, and what was written to it.
struct Story {
    disk: SimDisk,
    machine: Machine,
    gate: Gate,
    log: Option<RunLog>,
    random: SplitMix64,
    state: State,
    events: Vec<Event>,
    tickets: Vec<(usize, Ticket)>,
    first: usize,
    batches: usize,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut machine = Machine::new(seed, 1);
        machine.background = (seed % 4 > 1).then(Background::default);
        let disk = SimDisk::recording();
        let gate = Gate::new(&disk);
        let log = machine.options().create_storage(Arc::new(gate.clone())).unwrap();
        drop(log.start_run("agent", "run", ()).unwrap());
        let first = disk.op_count();
        Self {
            disk,
            machine,
            gate,
            log: Some(log),
            random: SplitMix64::new(seed),
            state: State::default(),
            events: Vec::new(),
            tickets: Vec::new(),
            first,
            batches: 0,
        }
    }

    fn log(&self) -> RunLog {
        self.log.clone().expect("it is open")
    }

    /// A batch of a few writes, usually of one.
    fn write(&mut self) {
        let log = self.log();
        let mut next = self.state.clone();
        let count = if self.random.below(4) == 0 { 2 + self.random.index(5) } else { 1 };
        let mut writes: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..count {
            let key = format!("key {}", self.random.index(12));
            let len = match self.random.below(30) {
                0 => 20_000 + self.random.index(20_000),
                _ => self.random.index(700),
            };
            let byte = self.random.below(256) as u8;
            let value = (self.random.below(6) != 0).then(|| vec![byte; len]);
            writes.insert(key, value);
        }
        let mut batch = Batch::new();
        for (key, value) in &writes {
            let expected = match (self.random.below(4), log.docs().get("space", key).unwrap()) {
                (0, Some(found)) => Expected::Version(found.version()),
                (0, None) => Expected::Absent,
                _ => Expected::Anything,
            };
            match value {
                Some(value) => batch.put_if("space", key, NewRecord::new(value), expected),
                None => batch.delete_if("space", key, expected),
            };
            match value {
                Some(value) => drop(next.documents.insert(key.clone(), value.clone())),
                None => drop(next.documents.remove(key)),
            }
        }
        let payload = self.state.records.to_le_bytes();
        if self.random.below(3) == 0 {
            batch.append("agent", "run", NewRecord::new(&payload));
            next.records += 1;
        }
        if self.random.below(4) == 0 {
            batch.durability(Durability::Disk);
        }
        self.batches += usize::from(batch.len() > 1);
        self.machine.clock.advance(1_000_000);
        let begin = self.disk.op_count();
        let committed = log.commit(&batch).unwrap();
        self.state = next;
        let after = self.state.clone();
        self.events.push(Event { after, begin, process: self.disk.op_count(), disk: usize::MAX });
        self.tickets.push((self.events.len(), committed.ticket));
        self.acknowledge();
    }

    /// Notes which writes are durable by now.
    fn acknowledge(&mut self) {
        let durable = self.tickets.iter().filter(|(_, ticket)| ticket.is_durable());
        let through = durable.map(|(through, _)| *through).max().unwrap_or(0);
        let done = self.disk.op_count();
        for event in &mut self.events[..through] {
            event.disk = event.disk.min(done);
        }
        self.tickets.retain(|(event, _)| *event > through);
    }

    fn reopen(&mut self, killed: bool) {
        let log = self.log.take().expect("it is open");
        if killed {
            self.gate.shut();
            drop(log);
        } else {
            log.close().unwrap();
            let done = self.disk.op_count();
            self.events.iter_mut().for_each(|event| event.disk = event.disk.min(done));
        }
        self.tickets.clear();
        self.gate = Gate::new(&self.disk);
        let gate = Arc::new(self.gate.clone());
        self.log = Some(self.machine.options().open_storage(gate).unwrap());
        assert_eq!(state_of(&self.log()), self.state, "killed: {killed}");
    }

    fn live(mut self) -> Told {
        for step in 0..STEPS {
            // Sometimes nothing is done for a while.
            if let Some(background) = &self.machine.background
                && step % 80 < 40
            {
                background.run_some(&mut self.random, 1);
            }
            self.write();
            match step % 50 {
                17 => self.log().checkpoint().unwrap(),
                29 => drop(self.log().compact().unwrap()),
                41 => self.log().reclaim().unwrap(),
                47 => self.reopen(step % 100 > 50),
                _ => {}
            }
            self.acknowledge();
        }
        assert!(self.batches > STEPS / 8);
        let stats = self.log().stats().unwrap();
        assert!(stats.end.segment.0 > 8, "too little was written: {:?}", stats.end);
        self.gate.shut();
        drop(self.log.take());
        let recording = self.disk.take_recording();
        Told { recording, machine: self.machine, events: self.events, first: self.first }
    }
}

/// A recorded story, to cut.
struct Told {
    recording: Recording,
    machine: Machine,
    events: Vec<Event>,
    first: usize,
}

impl Told {
    /// The numbers of writes that may be there after a loss.
    fn limits(&self, boundary: usize, power: bool, torn: bool) -> (usize, usize) {
        let done = |event: &Event| if power { event.disk } else { event.process };
        let kept = self.events.iter().rposition(|event| done(event) <= boundary);
        let kept = kept.map_or(0, |last| last + 1);
        let end = boundary + usize::from(torn);
        let begun = self.events.iter().take_while(|event| event.begin < end).count();
        (kept, begun.max(kept))
    }

    fn after(&self, writes: usize) -> State {
        writes.checked_sub(1).map_or(State::default(), |last| self.events[last].after.clone())
    }

    fn check(&self, image: &[u8], machine: &Machine, limits: (usize, usize)) -> Result<(), String> {
        let disk = SimDisk::untracked(image.to_vec());
        let mut found = None;
        for turn in 0..3 {
            let options = machine.options().index(turn != 2);
            let log = options.open_storage(Arc::new(disk.clone())).map_err(|e| format!("{e}"))?;
            if let Some(background) = &machine.background {
                background.run_after_opening(&mut SplitMix64::new(crc32fast::hash(image).into()));
            }
            let state = state_of(&log);
            let (least, most) = limits;
            if !(least..=most).any(|writes| self.after(writes) == state) {
                return Err(format!("turn {turn}: no prefix of {least} to {most} writes fits"));
            }
            if found.get_or_insert_with(|| state.clone()) != &state {
                return Err(format!("turn {turn}: it was something else before"));
            }
            check_whole(&log)?;
            if turn == 0 {
                // It continues: each document gets a new value, and no old one is in its way.
                for (key, value) in &state.documents {
                    log.docs()
                        .put("space", key, &NewRecord::new(value))
                        .map_err(|e| format!("{e}"))?;
                }
                log.checkpoint().map_err(|e| format!("{e}"))?;
                let _ = log.compact().map_err(|e| format!("{e}"))?;
            }
        }
        Ok(())
    }
}

/// All that a store holds.
fn state_of(log: &RunLog) -> State {
    let page = log.docs().list("space", "", None, 1000).unwrap();
    let read = |key: &str| log.docs().get("space", key).unwrap().expect("it is listed");
    let documents = page
        .documents
        .iter()
        .map(|listed| (listed.key.clone(), read(&listed.key).payload().to_vec()));
    let documents = documents.collect();
    let mut records = 0_usize;
    for record in log.trace("run").unwrap() {
        assert_eq!(record.unwrap().payload(), records.to_le_bytes());
        records += 1;
    }
    State { documents, records }
}

#[test]
fn whatever_a_crash_leaves_is_as_it_was_after_some_batch() {
    let seed = settings::seed(SEED);
    let cuts = settings::scale(CUTS[0], CUTS[1]);
    let mut tally = 0;
    for turn in 0..4 {
        let seed = seed.wrapping_add(turn);
        println!("RUNLOG_SEED={seed}");
        let mut story = Story::new(seed);
        story.machine.tail_writer =
            if turn % 2 == 0 { TailWriter::Mapped } else { TailWriter::Pwrite };
        let told = story.live();
        let mut images = CrashImages::new(&told.recording);
        let boundaries = told.recording.ops.len() + 1 - told.first;
        let all = (boundaries * LOSSES.len()) as u64;
        let mut buffer = Vec::new();
        for boundary in told.first..=told.recording.ops.len() {
            images.seek(boundary);
            for (number, loss) in LOSSES.iter().enumerate() {
                let place = (boundary * LOSSES.len() + number) as u64;
                let mut random = SplitMix64::for_case(seed, place);
                if random.below(all) >= cuts / 4 {
                    continue;
                }
                let mut machine = told.machine.clone();
                let limits = match loss {
                    Loss::Power(survivors) => {
                        machine.boot += 1;
                        images.image_into(*survivors, random.next_u64(), &mut buffer);
                        told.limits(boundary, true, false)
                    }
                    Loss::Kill => {
                        let torn = images.killed_within_into(&mut random, &mut buffer);
                        told.limits(boundary, false, torn)
                    }
                };
                if let Err(error) = told.check(&buffer, &machine, limits) {
                    panic!("seed {seed}, boundary {boundary} of {boundaries}, {loss:?}: {error}");
                }
                tally += 1;
            }
        }
    }
    println!("{tally} cuts");
    assert!(tally as u64 > cuts / 2);
}
