//! A store on a simulated disk, and the trace of both.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use runlog::{Appended, Lsn, Payload, RunLog, RunStatus, RunWriter, Ticket, Version};
use runlog_sim::{SimDisk, SplitMix64};

use super::gate::Gate;
pub(crate) use super::machine::{EXTENT, Machine};
use super::model::{Change, Event, Model, NO_RUN, Run};
use super::queries::Reading;

/// The agents of all runs.
pub(super) const AGENTS: [&str; 3] = ["agent-0", "agent-1", "agent-2"];
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
    pub(super) seed: u64,
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
    /// The ids of deleted runs, and of other agents' runs, are used again.
    pub(crate) reuses_ids: bool,
    /// Nothing fails, and there is space.
    pub(crate) is_calm: bool,
    /// What is read meanwhile, and keeps its segments.
    pub(super) reading: Option<Reading>,
    /// Payloads that were read, and what they are.
    pub(super) payloads: Vec<(Payload, Arc<[u8]>)>,
    /// Deletions of which the receipt was one too many at some time.
    pub(super) spare_receipts: BTreeSet<usize>,
    /// The times of deletions that were begun, and what they deleted.
    pub(super) begun_deletions: BTreeSet<(i64, (String, String))>,
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
        machine.activities.building.lock().unwrap().clear();
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
            reuses_ids: false,
            is_calm: false,
            reading: None,
            payloads: Vec::new(),
            spare_receipts: BTreeSet::new(),
            begun_deletions: BTreeSet::new(),
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
                Change::Delete { .. } => {
                    (now.explicit, now.deleted, now.held, ended) = (false, true, false, false);
                }
                Change::Hold { reason } => now.held = reason.is_some(),
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
        self.stop_reading();
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
        let mut orphans: Vec<usize> = (0..self.now.len())
            .filter(|run| self.now[*run].running && !self.now[*run].touched)
            .collect();
        // They end in the order of lists, and are returned by their numbers.
        orphans.sort_by_key(|run| {
            let state = self.model.state(*run);
            (state.created_at, state.number)
        });
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
        orphans.sort_by_key(|run| self.model.state(*run).number);
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
