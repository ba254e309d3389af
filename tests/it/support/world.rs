//! A store on a simulated disk, a random workload for it, and the trace of both.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use runlog::format::frames::eviction::Eviction;
use runlog::format::{FrameHeader, FrameKind};
use runlog::{
    Allow, Appended, Batch, Compression, Durability, LogPosition, Lsn, Metadata, NewRecord,
    Outcome, Retention, RunLog, RunNo, RunStatus, RunWriter, Ticket, Timestamp, Trace, Version,
};
use runlog_sim::{SimDisk, SplitMix64};

use super::gate::Gate;
pub(crate) use super::machine::{EXTENT, Machine};
use super::model::{Change, Event, Model, NO_RUN, Rec, Run, SPACE};

/// The keys that documents have.
const KEYS: usize = 6;
/// During a quarter of the time at most this many runs live.
const MANY_RUNS: usize = 24;

/// What a run may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) running: bool,
    pub(super) deleted: bool,
    pub(super) explicit: bool,
    pub(super) touched: bool,
    pub(super) held: bool,
}

/// What is left of a world.
#[derive(Debug)]
pub(crate) struct Abandoned {
    pub(crate) disk: SimDisk,
    pub(crate) model: Model,
    pub(crate) machine: Machine,
    pub(crate) ready: Vec<Range<usize>>,
}

/// An open store, and all that was done to it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) machine: Machine,
    pub(crate) model: Model,
    pub(super) gate: Gate,
    log: Option<RunLog>,
    pub(super) random: SplitMix64,
    seed: u64,
    pub(super) now: Vec<Now>,
    pub(super) writers: BTreeMap<usize, RunWriter>,
    /// Events that are not known to be durable yet, with their tickets.
    pub(super) tickets: Vec<(usize, Ticket)>,
    index: bool,
    /// The index is open and was committed after this operation.
    ready_since: Option<usize>,
    /// The ranges of operations in which the index was intact, so that no crash may drop it.
    pub(crate) ready: Vec<Range<usize>>,
    /// What makes the ids of runs longer.
    pub(crate) padding: usize,
    /// Whether there are documents beside the runs.
    pub(crate) documents: bool,
    /// Whether calls may fail, and the last failure.
    pub(crate) may_fail: bool,
    pub(crate) failure: Option<runlog::Error>,
    /// The numbers that were given out.
    pub(crate) given: Given,
    /// Calls fail only if the disk is full.
    pub(crate) only_fills: bool,
    /// No background work is done for now, if the calls do not do it.
    pub(crate) is_lazy: bool,
    /// Most operations write or delete documents.
    pub(crate) is_queue: bool,
    /// Most operations fill segments, and erase runs in them one by one.
    pub(crate) is_moving: bool,
    /// What is read meanwhile, and keeps its segments.
    pub(super) reading: Option<Trace>,
    /// Bytes of records that were erased while their segments were read.
    pub(crate) left: Vec<Vec<u8>>,
}

/// Numbers that a store gave out. It may give none of them out again, whatever was lost.
#[derive(Debug, Default)]
pub(crate) struct Given {
    orders: BTreeSet<Lsn>,
    versions: BTreeSet<Version>,
}

impl Given {
    pub(crate) fn order(&mut self, order: Lsn) {
        assert!(self.orders.insert(order), "order {order} is given out twice");
    }

    pub(crate) fn version(&mut self, version: Version) {
        assert!(self.versions.insert(version), "version {version:?} is given out twice");
    }
}

impl World {
    /// A new store on a disk that records.
    pub(crate) fn create(seed: u64, machine: Machine, index: bool) -> Self {
        Self::create_on(seed, SimDisk::recording(), machine, index)
    }

    /// A new store on a disk of the caller's, which sees all lives of it.
    pub(crate) fn create_on(seed: u64, disk: SimDisk, machine: Machine, index: bool) -> Self {
        let gate = Gate::new(&disk);
        let options = machine.options().index(index);
        let log = options.create_storage(gate.storage()).expect("the disk is fine");
        Self::around(seed, machine, Model::default(), disk, gate, log, index)
    }

    /// Continues with a recovered store, whose contents are in the model.
    pub(crate) fn resume(seed: u64, machine: Machine, model: Model, image: Vec<u8>) -> Self {
        let disk = SimDisk::recording_from(image);
        let gate = Gate::new(&disk);
        let log = machine.options().open_storage(gate.storage()).expect("it was checked");
        let mut world = Self::around(seed, machine, model, disk, gate, log, true);
        world.now = world.model.runs.iter().map(|run| world.state_of(run)).collect();
        world
    }

    pub(super) fn around(
        seed: u64,
        machine: Machine,
        model: Model,
        disk: SimDisk,
        gate: Gate,
        log: RunLog,
        index: bool,
    ) -> Self {
        *machine.activities.disk.lock().unwrap() = Some((disk.clone(), 0));
        Self {
            disk,
            machine,
            model,
            gate,
            log: Some(log),
            random: SplitMix64::new(seed),
            seed,
            now: Vec::new(),
            writers: BTreeMap::new(),
            tickets: Vec::new(),
            index,
            ready_since: None,
            ready: Vec::new(),
            padding: 0,
            documents: true,
            may_fail: false,
            failure: None,
            given: Given::default(),
            only_fills: false,
            is_lazy: false,
            is_queue: false,
            is_moving: false,
            reading: None,
            left: Vec::new(),
        }
    }

    pub(crate) fn log(&self) -> &RunLog {
        self.log.as_ref().expect("the store is open")
    }

    pub(super) fn state_of(&self, run: &Run) -> Now {
        // A run without anything left was never started, or was deleted: it is not used again.
        let mut now =
            Now { running: false, deleted: true, explicit: false, touched: false, held: false };
        let mut ended = false;
        for at in &run.events {
            match &self.model.events[*at].change {
                Change::Start { implicit, .. } => {
                    now.explicit |= !implicit;
                    now.deleted = false;
                }
                Change::End { .. } => ended = true,
                Change::Delete => now.deleted = true,
                Change::Hold { held } => now.held = *held,
                Change::Records { .. } | Change::Documents { .. } => {}
            }
        }
        now.running = !now.deleted && !ended;
        now
    }

    /// Begins a call: time passes. Returns the number of operations so far.
    pub(super) fn begin(&self) -> (usize, i64) {
        self.machine.clock.advance(1_000_000);
        (self.disk.op_count(), runlog::env::Clock::now(&self.machine.clock).0)
    }

    pub(super) fn note(&mut self, run: usize, change: Change, begin: (usize, i64)) -> usize {
        let event = Event {
            run,
            change,
            at: begin.1,
            begin: begin.0,
            process: usize::MAX,
            disk: usize::MAX,
        };
        let place = self.model.events.len();
        self.model.events.push(event);
        if run != NO_RUN {
            self.model.runs[run].events.push(place);
        }
        place
    }

    /// Ends a successful call: everything so far is acknowledged, at Disk level if the call or a
    /// ticket says so.
    pub(super) fn acknowledge(&mut self, durable: bool) {
        // Failed calls stay unacknowledged, even if a later call has nothing to do.
        if self.failure.is_some() {
            return;
        }
        let done = self.disk.op_count();
        let mut through = if durable { self.model.events.len() } else { 0 };
        for (event, ticket) in &self.tickets {
            if ticket.is_durable() {
                through = through.max(event + 1);
            }
        }
        for event in &mut self.model.events {
            event.process = event.process.min(done);
        }
        for event in &mut self.model.events[..through] {
            event.disk = event.disk.min(done);
        }
        self.tickets.retain(|(event, _)| *event >= through);
        if self.ready_since.is_none() && self.log().stats().is_ok_and(|stats| stats.index_open) {
            self.ready_since = Some(done);
        }
    }

    /// The store is about to be opened, which may drop the index if it is interrupted.
    pub(super) fn close_stretch(&mut self) {
        let done = self.disk.op_count();
        self.ready.extend(self.ready_since.take().map(|since| since..done + 1));
    }

    /// The answer of a call, or `None` if it failed and may fail. Its event is already noted and
    /// stays: the call began, and was never acknowledged.
    pub(super) fn succeeded<T>(&mut self, result: runlog::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if self.may_fail => {
                self.failure = Some(error);
                None
            }
            Err(error) => panic!("on a disk without faults: {error}"),
        }
    }

    /// Removes the last event, which failed without a trace.
    pub(crate) fn take_back(&mut self) {
        let event = self.model.events.pop().expect("there is one");
        if event.run == NO_RUN {
            return;
        }
        let run = &mut self.model.runs[event.run];
        run.events.pop();
        if let Change::Records { count } = event.change {
            run.records.truncate(run.records.len() - count);
        }
    }

    pub(super) fn appended(&mut self, appended: Appended, durable: bool) {
        self.given.order(appended.lsn);
        let last = self.model.events.len() - 1;
        self.model.given.push((self.disk.op_count(), appended.lsn, None));
        self.tickets.push((last, appended.ticket));
        self.acknowledge(durable);
    }

    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.now.len()).filter(|run| self.now[*run].running).collect()
    }

    pub(super) fn pick(&mut self, runs: &[usize]) -> Option<usize> {
        (!runs.is_empty()).then(|| runs[self.random.index(runs.len())])
    }

    /// One random step of the workload.
    pub(crate) fn step(&mut self) {
        let alive = self.now.iter().filter(|now| !now.deleted).count();
        match self.random.below(if self.documents { 112 } else { 106 }) {
            0..=8 if alive < MANY_RUNS => self.start_run(),
            9..=10 if alive < MANY_RUNS => self.append_unstarted(),
            11..=54 => self.append_small(),
            55..=59 => self.append_large(),
            60..=69 => self.append_batch(),
            70..=71 => self.append_late(),
            72..=74 => self.append_forgery(),
            75..=83 => self.end_run(),
            84..=92 => self.delete_run(),
            93..=95 => self.sync(),
            96..=97 => self.checkpoint(),
            98 => self.start_again(),
            99..=100 => self.reclaim(),
            101..=103 => self.hold(),
            104 => self.compact(),
            105 => self.collect(),
            _ => self.write_documents(),
        }
    }

    pub(super) fn new_run(&mut self, explicit: bool) -> usize {
        let run = self.model.runs.len();
        let agent = format!("agent-{}", self.random.below(3));
        let name = format!("run-{run}{}", "-".repeat(self.padding));
        let (records, events) = (Vec::new(), Vec::new());
        self.model.runs.push(Run { agent, run: name, records, events });
        self.now.push(Now { running: true, deleted: false, explicit, touched: true, held: false });
        run
    }

    pub(super) fn name(&self, run: usize) -> (String, String) {
        let run = &self.model.runs[run];
        (run.agent.clone(), run.run.clone())
    }

    pub(crate) fn start_run(&mut self) {
        let run = self.new_run(true);
        let (agent, name) = self.name(run);
        let mut metadata = vec![0; self.random.index(200)];
        self.random.fill(&mut metadata);
        let durable = self.random.below(3) == 0;
        let level = if durable { Durability::Disk } else { Durability::Process };
        let begin = self.begin();
        self.note(run, Change::Start { metadata: metadata.clone(), implicit: false }, begin);
        let metadata = Metadata::new(&metadata).durability(level);
        let started = self.log().start_run(&agent, &name, metadata);
        let Some(writer) = self.succeeded(started) else { return };
        self.acknowledge(durable);
        self.writers.insert(run, writer);
    }

    /// Starts a run that has records but no start.
    fn start_again(&mut self) {
        let runs = self.running().into_iter().filter(|run| !self.now[*run].explicit);
        let Some(run) = self.pick(&runs.collect::<Vec<_>>()) else { return };
        let (agent, name) = self.name(run);
        let begin = self.begin();
        self.note(run, Change::Start { metadata: b"late".to_vec(), implicit: false }, begin);
        let started = self.log().start_run(&agent, &name, b"late");
        let Some(writer) = self.succeeded(started) else { return };
        self.acknowledge(true);
        (self.now[run].explicit, self.now[run].touched) = (true, true);
        self.writers.insert(run, writer);
    }

    /// A payload that identifies its record.
    fn payload(&mut self, run: usize, len: usize) -> Arc<[u8]> {
        let mut payload = vec![0; len];
        self.random.fill(&mut payload);
        let mut head = Vec::new();
        let seq = self.model.runs[run].records.len();
        let _ = write!(head, "<{run}/{seq}/{:016x};", self.seed);
        let keep = head.len().min(len);
        payload[..keep].copy_from_slice(&head[..keep]);
        // Compressible payloads repeat themselves sometimes.
        if keep > 0 && self.machine.compression != Compression::None && self.random.coin() {
            for at in keep..len {
                payload[at] = payload[at - keep];
            }
        }
        payload.into()
    }

    pub(super) fn push_record(&mut self, run: usize, len: usize, at: i64) -> Rec {
        let kind = ["", "turn", "tool_call"][self.random.index(3)];
        let rec = Rec { payload: self.payload(run, len), kind, at };
        self.model.runs[run].records.push(rec.clone());
        rec
    }

    /// Appends one record to a run, by its writer or by its ids.
    pub(crate) fn append(&mut self, run: usize, len: usize, durable: bool) {
        let begin = self.begin();
        let rec = self.push_record(run, len, begin.1);
        self.append_rec(run, &rec, begin, durable);
    }

    pub(super) fn append_rec(&mut self, run: usize, rec: &Rec, begin: (usize, i64), durable: bool) {
        let level = if durable { Durability::Disk } else { Durability::Process };
        let record = NewRecord::new(&rec.payload).kind(rec.kind).durability(level);
        self.note(run, Change::Records { count: 1 }, begin);
        let (agent, name) = self.name(run);
        let appended = match self.writers.get(&run) {
            Some(writer) if self.now[run].running => writer.append_record(&record),
            _ => self.log().append_to(&agent, &name, &record, Allow::everything()),
        };
        self.now[run].touched = true;
        let Some(appended) = self.succeeded(appended) else { return };
        self.appended(appended, durable);
    }

    pub(super) fn append_small(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return self.start_run() };
        let len = match self.random.below(10) {
            0 => self.random.index(24),
            1..=5 => 40 + self.random.index(400),
            _ => 400 + self.random.index(5000),
        };
        let durable = self.random.below(8) == 0;
        self.append(run, len, durable);
    }

    pub(crate) fn append_large(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        let len = 8200 + self.random.index(24_000);
        let durable = self.random.below(4) == 0;
        self.append_whole(run, len, durable);
    }

    pub(super) fn append_unstarted(&mut self) {
        let run = self.new_run(false);
        let begin = self.begin();
        self.note(run, Change::Start { metadata: Vec::new(), implicit: true }, begin);
        let rec = self.push_record(run, 300, begin.1);
        self.append_rec(run, &rec, begin, false);
    }

    fn append_late(&mut self) {
        let ended: Vec<usize> = (0..self.now.len())
            .filter(|run| !self.now[*run].running && !self.now[*run].deleted)
            .collect();
        let Some(run) = self.pick(&ended) else { return };
        self.append(run, 100, false);
    }

    pub(super) fn append_batch(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        let begin = self.begin();
        let count = 2 + self.random.index(4);
        let recs: Vec<Rec> = (0..count)
            .map(|_| {
                let long = self.random.below(6) == 0;
                let len = self.random.index(if long { 12_000 } else { 900 });
                self.push_record(run, len, begin.1)
            })
            .collect();
        self.note(run, Change::Records { count }, begin);
        let (agent, name) = self.name(run);
        let durable = self.random.below(6) == 0;
        let level = if durable { Durability::Disk } else { Durability::Process };
        let records: Vec<NewRecord<'_>> = recs
            .iter()
            .map(|rec| NewRecord::new(&rec.payload).kind(rec.kind).durability(level))
            .collect();
        let appended = match self.writers.get(&run) {
            Some(writer) => writer.append_batch(&records),
            None => self.log().append_batch_to(&agent, &name, &records, Allow::everything()),
        };
        self.now[run].touched = true;
        let Some(appended) = self.succeeded(appended) else { return };
        self.appended(appended, durable);
    }

    /// Appends a record that contains frames: made for the exact place where they will be, but
    /// without the salt of the segment. They must never be taken for the store's own, whatever a
    /// power loss leaves of the record around them.
    fn append_forgery(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        // The run then has its entry in the segment, so that the next frame is the record's.
        self.append(run, 30, false);
        if self.failure.is_some() {
            return;
        }
        let stats = self.log().stats();
        let Some(end) = self.succeeded(stats).map(|stats| stats.end) else { return };
        let begin = self.begin();
        let payload = forgery(end, 1500 + self.random.index(2000));
        let rec = Rec { payload: payload.into(), kind: "", at: begin.1 };
        self.model.runs[run].records.push(rec.clone());
        self.append_rec(run, &rec, begin, false);
    }

    /// Writes and deletes documents, one or several together; sometimes a long one.
    pub(super) fn write_documents(&mut self) {
        let first = self.random.index(KEYS);
        let count = if self.random.coin() { 1 } else { 1 + self.random.index(3) };
        let mut writes = Vec::new();
        for place in first..first + count {
            let len = if self.random.below(8) == 0 { 24_000 } else { 900 };
            let mut value = vec![0; self.random.index(len)];
            self.random.fill(&mut value);
            let value = (self.random.below(5) != 0).then(|| value.into());
            writes.push((format!("key {}", place % KEYS), value));
        }
        let durable = self.random.below(3) == 0;
        let begin = self.begin();
        self.note(NO_RUN, Change::Documents { writes: writes.clone() }, begin);
        let mut batch = Batch::new();
        for (key, value) in &writes {
            match value {
                Some(value) => batch.put(SPACE, key, NewRecord::new(value)),
                None => batch.delete(SPACE, key),
            };
        }
        if durable {
            batch.durability(Durability::Disk);
        }
        let committed = self.log().commit(&batch);
        let Some(committed) = self.succeeded(committed) else { return };
        let version = committed.versions.iter().flatten().max().copied();
        self.model.given.push((self.disk.op_count(), Lsn(0), version));
        // A batch that deletes only missing documents has no place in the log.
        if committed.versions.iter().any(Option::is_some) {
            self.given.order(committed.lsn);
        }
        for ((_, value), version) in writes.iter().zip(&committed.versions) {
            if let (Some(_), Some(version)) = (value, version) {
                self.given.version(*version);
            }
        }
        self.tickets.push((self.model.events.len() - 1, committed.ticket));
        self.acknowledge(durable);
    }

    pub(crate) fn end_run(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        let durable = self.random.below(3) != 0;
        self.end(run, durable);
    }

    pub(crate) fn end(&mut self, run: usize, durable: bool) {
        let level = if durable { Durability::Disk } else { Durability::Process };
        let statuses = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];
        let status = statuses[self.random.index(3)];
        let mut payload = vec![0; self.random.index(100)];
        self.random.fill(&mut payload);
        let outcome = Outcome::new(status).bytes(&payload).durability(level);
        let (agent, name) = self.name(run);
        let begin = self.begin();
        self.note(run, Change::End { status, payload }, begin);
        let appended = match self.writers.remove(&run) {
            Some(writer) => writer.end(&outcome),
            None => self.log().end_run(&agent, &name, &outcome, Allow::nothing()),
        };
        let Some(appended) = self.succeeded(appended) else { return };
        self.now[run].running = false;
        self.appended(appended, durable);
    }

    pub(crate) fn delete_run(&mut self) {
        let ended: Vec<usize> = (0..self.now.len())
            .filter(|run| {
                let now = self.now[*run];
                !now.running && !now.deleted && !now.held
            })
            .collect();
        // Usually the oldest, so that whole segments die.
        let oldest = ended.first().copied().filter(|_| self.random.below(4) != 0);
        if let Some(run) = oldest.or_else(|| self.pick(&ended)) {
            self.delete(run);
        }
    }

    /// Deletes a run.
    pub(crate) fn delete(&mut self, run: usize) {
        let (agent, name) = self.name(run);
        let begin = self.begin();
        self.note(run, Change::Delete, begin);
        let deleted = self.log().delete_run((agent.as_str(), name.as_str()));
        let Some(_) = self.succeeded(deleted) else { return };
        self.now[run].deleted = true;
        self.acknowledge(true);
    }

    /// Ends the runs that have been going on for longest.
    pub(crate) fn end_oldest(&mut self, keep: usize) {
        let running = self.running();
        for run in &running[..running.len().saturating_sub(keep)] {
            self.end(*run, false);
        }
    }

    pub(crate) fn sync(&mut self) {
        let done = self.log().sync();
        let Some(()) = self.succeeded(done) else { return };
        self.acknowledge(true);
    }

    pub(crate) fn checkpoint(&mut self) {
        let done = self.log().checkpoint();
        let Some(()) = self.succeeded(done) else { return };
        self.acknowledge(true);
    }

    /// Holds a run, or releases it.
    pub(crate) fn hold(&mut self) {
        let alive: Vec<usize> = (0..self.now.len()).filter(|run| !self.now[*run].deleted).collect();
        let Some(run) = self.pick(&alive) else { return };
        let (agent, name) = self.name(run);
        let held = !self.now[run].held;
        let begin = self.begin();
        self.note(run, Change::Hold { held }, begin);
        let name = (agent.as_str(), name.as_str());
        let changed = if held { self.log().hold(name, "why") } else { self.log().release(name) };
        let Some(changed) = self.succeeded(changed) else { return };
        assert!(changed, "{name:?} was {held} before");
        self.now[run].held = held;
        self.acknowledge(true);
    }

    /// Evicts the runs that some policy does not keep.
    pub(crate) fn collect(&mut self) {
        let mut policy = Retention::new();
        match self.random.below(3) {
            0 => policy = policy.keep_newest(2 + self.random.below(4)),
            1 => policy = policy.max_bytes(40_000 + self.random.below(200_000)),
            _ => policy = policy.max_age(std::time::Duration::from_millis(100)),
        }
        let begin = self.begin();
        let plan = self.log().gc_plan(&policy);
        let Some(plan) = self.succeeded(plan) else { return };
        let first = self.model.events.len();
        for evicted in &plan.evict {
            let run = self.model.runs.iter().position(|run| {
                (run.agent.as_str(), run.run.as_str())
                    == (evicted.agent.as_str(), evicted.run.as_str())
            });
            let run = run.expect("it was started");
            let now = self.now[run];
            assert!(!now.running && !now.held && !now.deleted, "{evicted:?} is to go: {now:?}");
            self.note(run, Change::Delete, begin);
        }
        let collected = self.log().gc(&policy);
        let Some(collected) = self.succeeded(collected) else { return };
        assert_eq!(collected.plan, plan);
        for event in first..self.model.events.len() {
            let run = self.model.events[event].run;
            self.now[run].deleted = true;
        }
        self.acknowledge(!plan.evict.is_empty());
    }

    /// Begins to read some ended run, which pins its segments.
    pub(crate) fn pin(&mut self) -> Option<Trace> {
        let ended = (0..self.now.len()).filter(|run| !self.now[*run].running);
        let ended = ended.filter(|run| !self.now[*run].deleted).collect::<Vec<_>>();
        let run = self.pick(&ended)?;
        let (agent, name) = self.name(run);
        Some(self.log().trace((agent.as_str(), name.as_str())).expect("it was not deleted"))
    }

    pub(crate) fn compact(&mut self) {
        self.machine.activities.asked.store(true, Ordering::Relaxed);
        let done = self.log().compact();
        self.machine.activities.asked.store(false, Ordering::Relaxed);
        let Some(_) = self.succeeded(done) else { return };
        self.acknowledge(false);
    }

    pub(crate) fn reclaim(&mut self) {
        let done = self.log().reclaim();
        let Some(()) = self.succeeded(done) else { return };
        self.acknowledge(false);
        self.look_for_erased();
    }

    /// Closes the store and opens it again.
    pub(crate) fn reopen(&mut self) {
        self.let_go();
        self.log.take().expect("open").close().expect("close");
        self.closed_through(self.disk.op_count());
        self.open();
        assert!(self.log().recovery_report().clean);
    }

    /// Dies without closing, and opens the store again.
    pub(crate) fn kill(&mut self) {
        self.let_go();
        self.gate.shut();
        self.log = None;
        self.gate = Gate::new(&self.disk);
        self.open();
    }

    pub(super) fn let_go(&mut self) {
        self.reading = None;
        self.writers.clear();
        self.tickets.clear();
    }

    pub(super) fn take_log(&mut self) -> RunLog {
        self.log.take().expect("open")
    }

    pub(super) fn put_log(&mut self, log: RunLog) {
        self.log = Some(log);
    }

    /// The store was closed or dropped.
    pub(super) fn acknowledge_closed(&mut self, in_order: bool) {
        if in_order {
            self.closed_through(self.disk.op_count());
        }
    }

    /// Everything is durable, because the store was closed cleanly.
    fn closed_through(&mut self, done: usize) {
        for event in &mut self.model.events {
            (event.process, event.disk) = (event.process.min(done), event.disk.min(done));
        }
    }

    fn open(&mut self) {
        self.close_stretch();
        let options = self.machine.options().index(self.index);
        let log = options.open_storage(self.gate.storage()).expect("reopen");
        self.log = Some(log);
        // Opening syncs what it found before it returns.
        self.acknowledge(true);
        for now in &mut self.now {
            now.touched = false;
        }
    }

    /// Ends the runs that no call has touched since the store was opened.
    pub(crate) fn adopt(&mut self) {
        let orphans: Vec<usize> = (0..self.now.len())
            .filter(|run| self.now[*run].running && !self.now[*run].touched)
            .collect();
        let begin = self.begin();
        for run in &orphans {
            let change = Change::End { status: RunStatus::Interrupted, payload: Vec::new() };
            self.note(*run, change, begin);
        }
        let adopted = self.log().adopt_orphans();
        let Some(adopted) = self.succeeded(adopted) else { return };
        let names = adopted.runs.iter();
        let names: Vec<_> =
            names.map(|(agent, run)| (agent.to_string(), run.to_string())).collect();
        let expected: Vec<_> = orphans.iter().map(|run| self.name(*run)).collect();
        assert_eq!(names, expected);
        for run in orphans {
            self.now[run].running = false;
        }
        self.acknowledge(true);
    }

    /// Closes the store; returns the file.
    pub(crate) fn close(mut self) -> Vec<u8> {
        self.let_go();
        self.log.take().expect("open").close().expect("close");
        self.disk.image()
    }

    /// Drops the store without closing it; the recording stays.
    pub(crate) fn abandon(mut self) -> Abandoned {
        self.let_go();
        self.close_stretch();
        self.gate.shut();
        self.log = None;
        let Self { disk, model, machine, ready, .. } = self;
        Abandoned { disk, model, machine, ready }
    }
}

/// Bytes for a payload behind the header of a record at `end`, full of frames for their places,
/// with the checks that a segment without a salt would have: each raises the floor beyond them
/// all, and deletes every run.
fn forgery(end: LogPosition, len: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for run in 1..40 {
        Eviction { run_no: RunNo(run), receipt: None }.encode(&mut body);
    }
    let mut payload = Vec::new();
    while payload.len() < len {
        let header_len = runlog::format::frames::frame::FRAME_HEADER_LEN;
        let at = end.offset + u32::try_from(header_len + payload.len()).expect("short");
        let mut header = FrameHeader::new(FrameKind::Evict, RunNo(0), Timestamp(0));
        header.position = LogPosition { segment: end.segment, offset: at };
        header.durable = LogPosition { segment: end.segment, offset: end.offset + 50_000 };
        header.lsn = Lsn(1_000_000);
        header.extra = 39;
        header.payload_len = u32::try_from(body.len()).expect("short");
        header.payload_crc = crc32fast::hash(&body);
        payload.extend_from_slice(&header.encode(0));
        payload.extend_from_slice(&body);
    }
    payload
}
