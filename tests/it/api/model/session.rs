//! A store on a simulated disk, the state that it should be in, and random operations on both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use runlog::{
    Allow, Appended, Compaction, Compression, ContentType, Durability, Error, Metadata, NewRecord,
    Options, Outcome, Payload, Place, Rule, RunLog, RunQuery, RunStatus, RunWriter, Seq,
    SpaceReturn, TailWriter, Trace,
};
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use super::policy::{ENDED, Judged, Policy, Verdict};
use super::state::{AGENTS, Change, End, Kept, Name, Rec, Run, Seen, Start, State};
use crate::support::gate::Gate;
use crate::support::machine::EXTENT;
use crate::support::world::Machine;

/// At most this many runs are alive, and about this many bytes.
const MANY_RUNS: usize = 40;
const MANY_BYTES: u64 = 600_000;
/// Fewer than the runs that are started, so that ids are reused, also by other agents.
const IDS: u64 = 60;
const BEGINNING: i64 = 1_700_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const RECEIPT_AGE: i64 = 3600 * SECOND;

/// The totals of all rounds.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: BTreeMap<&'static str, u64>,
    /// Segments that gave their extents to others.
    pub(super) recycled: u64,
    pub(super) compactions: u64,
    /// By calls of `compact`.
    pub(super) moved_bytes: u64,
    pub(super) evicted: u64,
    pub(super) compared: u64,
    /// Changes that a power loss undid.
    pub(super) lost: u64,
    /// Records of traces that began before something was moved or deleted.
    pub(super) read_on: u64,
    pub(super) let_go: u64,
}

/// A trace that is being read, and what it must show.
struct Reading {
    trace: Trace,
    records: Vec<Rec>,
    front: usize,
    back: usize,
    since: i64,
}

/// How the store of a round is opened.
#[derive(Debug, Clone, Copy)]
struct Settings {
    receipts: u64,
    pin_age: Option<i64>,
    automatic: bool,
    space: SpaceReturn,
    index: bool,
    /// Ended runs are compressed, or were when the store was open before.
    compressed: bool,
}

pub(super) struct Session {
    random: SplitMix64,
    machine: Machine,
    settings: Settings,
    disk: SimDisk,
    gate: Gate,
    log: Option<RunLog>,
    /// The state that the store should have.
    now: State,
    /// An older state and the changes since; the first `durable` of them cannot be lost.
    base: State,
    changes: VecDeque<Change>,
    durable: usize,
    next_number: u64,
    writers: BTreeMap<Name, RunWriter>,
    /// Writers of runs that are gone.
    stale: Vec<RunWriter>,
    readings: Vec<Reading>,
    payloads: Vec<(Payload, Arc<[u8]>)>,
    /// Runs that were used since the store was opened.
    touched: BTreeSet<Name>,
    pub(super) recent: VecDeque<&'static str>,
    pub(super) tally: Tally,
}

impl Session {
    pub(super) fn new(seed: u64, tally: Tally) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut machine = Machine::new(random.next_u64());
        machine.clock.set(runlog::Timestamp(BEGINNING));
        machine.tail_writer = if random.coin() { TailWriter::Mapped } else { TailWriter::Pwrite };
        let spaces = [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink];
        let settings = Settings {
            receipts: 3 + random.below(40),
            pin_age: random.coin().then_some(60 * SECOND),
            automatic: random.below(4) != 0,
            space: spaces[random.index(3)],
            index: random.below(4) != 0,
            compressed: random.coin(),
        };
        let disk = SimDisk::new();
        let gate = Gate::new(&disk);
        machine.compression = compression(settings.compressed);
        let options = options(&machine, settings);
        let log = options.create_storage(gate.storage()).unwrap();
        Self {
            random,
            machine,
            settings,
            disk,
            gate,
            log: Some(log),
            now: State::default(),
            base: State::default(),
            changes: VecDeque::new(),
            durable: 0,
            next_number: 1,
            writers: BTreeMap::new(),
            stale: Vec::new(),
            readings: Vec::new(),
            payloads: Vec::new(),
            touched: BTreeSet::new(),
            recent: VecDeque::new(),
            tally,
        }
    }

    fn log(&self) -> &RunLog {
        self.log.as_ref().expect("the store is open")
    }

    fn time(&self) -> i64 {
        runlog::env::Clock::now(&self.machine.clock).0
    }

    /// Notes a change of the store; `durable` tells whether it was acknowledged as durable.
    fn change(&mut self, change: Change, durable: bool) {
        self.now.apply(&change);
        self.changes.push_back(change);
        if durable {
            self.all_is_durable();
        }
    }

    fn all_is_durable(&mut self) {
        self.durable = self.changes.len();
        if self.durable > 64 {
            for change in self.changes.drain(..) {
                self.base.apply(&change);
            }
            self.durable = 0;
        }
    }

    /// One random operation.
    pub(super) fn step(&mut self) {
        let bytes: u64 = self.now.runs.values().map(|run| run.stored(false).1).sum();
        let (kind, operation): (_, fn(&mut Self)) = match self.random.below(1000) {
            _ if bytes > MANY_BYTES => ("make room", Self::make_room),
            0..=64 if self.now.runs.len() < MANY_RUNS => ("start", Self::start),
            0..=74 => ("end", Self::end),
            75..=434 => ("append", Self::append),
            435..=444 => ("append large", Self::append_large),
            445..=509 => ("append batch", Self::append_batch),
            510..=579 => ("append by ids", Self::append_by_ids),
            580..=589 => ("end by ids", Self::end_by_ids),
            590..=609 => ("start or end again", Self::repeat),
            610..=614 => ("use a stale writer", Self::use_stale_writer),
            615..=634 => ("hold or release", Self::hold),
            635..=674 => ("delete", Self::delete),
            675..=689 => ("gc", Self::collect),
            690..=699 => ("plan", Self::plan),
            700..=704 => ("compact", Self::compact),
            705..=709 => ("reclaim", Self::reclaim),
            710..=714 => ("checkpoint", Self::checkpoint),
            715..=734 => ("sync", Self::sync),
            735..=759 => ("clock", Self::move_clock),
            760..=859 => ("look a run up", Self::look_up),
            860..=889 => ("trace", Self::trace),
            890..=919 => ("begin a trace", Self::begin_trace),
            920..=959 => ("go on with a trace", Self::read_on),
            960..=969 => ("list", Self::list),
            970..=979 => ("receipts", Self::check_receipts),
            980..=984 => ("adopt", Self::adopt),
            996..=997 => ("look at dead space", Self::dead_space_is_bounded),
            985..=986 => ("erase", Self::erase),
            987..=988 => ("reopen", Self::reopen),
            989..=990 => ("kill", Self::kill),
            991..=993 => ("power cut", Self::cut_power),
            994..=995 => ("crash within", Self::crash_within),
            _ => ("compare all", Self::compare_all),
        };
        *self.tally.operations.entry(kind).or_default() += 1;
        if self.recent.len() == 16 {
            self.recent.pop_front();
        }
        self.recent.push_back(kind);
        operation(self);
        let millisecond = 1_000_000;
        self.machine.clock.advance((self.random.below(3) * self.random.below(millisecond)) as i64);
        self.doom_receipts();
    }

    // --- Choosing ---

    fn coin_of(&mut self, sides: u64) -> bool {
        self.random.below(sides) == 0
    }

    fn level(&mut self, disk_of: u64) -> Durability {
        if self.coin_of(disk_of) { Durability::Disk } else { Durability::Process }
    }

    fn some_name(&mut self) -> Name {
        let agent = AGENTS[self.random.index(AGENTS.len())];
        (agent, format!("run-{}", self.random.below(IDS)))
    }

    fn pick(&mut self, which: impl Fn(&Run) -> bool) -> Option<Name> {
        let names: Vec<&Name> =
            self.now.runs.iter().filter(|(_, run)| which(run)).map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| names[self.random.index(names.len())].clone())
    }

    fn running(&mut self) -> Option<Name> {
        self.pick(|run| run.end.is_none())
    }

    /// The time of something: now, or what the caller says.
    fn some_time(&mut self) -> (i64, Option<i64>) {
        let now = self.time();
        if self.coin_of(20) {
            let said = now + self.random.below(20) as i64 * SECOND - 10 * SECOND;
            return (said, Some(said));
        }
        (now, None)
    }

    fn bytes(&mut self, len: usize) -> Arc<[u8]> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        // Some of what may be compressed repeats itself.
        if self.settings.compressed && self.random.coin() {
            (40..len).for_each(|at| bytes[at] = bytes[at - 40]);
        }
        bytes.into()
    }

    fn rec(&mut self, len: usize, late: bool) -> (Rec, Option<i64>) {
        let (at, said) = self.some_time();
        let rec = Rec {
            payload: self.bytes(len),
            kind: Rec::kind(self.random.index(3)),
            content: self.random.below(8) as u8,
            at,
            late,
            lsn: None,
        };
        (rec, said)
    }

    fn some_len(&mut self) -> usize {
        match self.random.below(20) {
            0 => self.random.index(20),
            1..=14 => 40 + self.random.index(400),
            15..=18 => 400 + self.random.index(3000),
            _ => 3000 + self.random.index(6000),
        }
    }

    // --- Runs ---

    fn start(&mut self) {
        let name = self.some_name();
        let (at, said) = self.some_time();
        let len = self.random.index(200);
        let start = Start { at, content: self.random.below(8) as u8, metadata: self.bytes(len) };
        let level = self.level(3);
        let mut metadata = Metadata::new(&start.metadata)
            .content_type(ContentType::from_code(start.content))
            .durability(level);
        if let Some(said) = said {
            metadata = metadata.at(runlog::Timestamp(said));
        }
        let started = self.log().start_run(name.0, &name.1, metadata);
        let durable = level == Durability::Disk;
        match self.now.runs.get(&name) {
            None => {
                let (number, start) = (self.next_number, Some(start.clone()));
                self.next_number += 1;
                self.change(Change::Create { name: name.clone(), number, at, start }, durable);
            }
            Some(run) if run.start.as_ref().is_some_and(|found| found.is_same(&start)) => {
                // Once in some million operations both are empty: then it is the same run.
                drop(started.unwrap());
                self.touched.insert(name);
                return;
            }
            Some(run) if run.start.is_some() => {
                return assert!(matches!(started, Err(Error::RunExists { .. })), "{started:?}");
            }
            Some(run) if run.end.is_some() => {
                return assert!(matches!(started, Err(Error::RunEnded { .. })), "{started:?}");
            }
            Some(_) => {
                self.change(Change::Start { name: name.clone(), start: start.clone() }, durable);
            }
        }
        self.touched.insert(name.clone());
        self.writers.insert(name, started.unwrap());
    }

    /// Appends to a run in progress, by its writer if there is one.
    fn append_rec(&mut self, len: usize) {
        let Some(name) = self.running() else { return self.start() };
        let (mut rec, said) = self.rec(len, false);
        let level = self.level(12);
        let record = new_record(&rec, said, level);
        let appended = match self.writers.get(&name) {
            Some(writer) => writer.append_record(&record),
            None => self.log().append_to(name.0, &name.1, &record, Allow::nothing()),
        };
        let appended = appended.unwrap();
        rec.lsn = Some(appended.lsn.0);
        self.appended(name, vec![rec], &appended, level);
    }

    fn appended(&mut self, name: Name, records: Vec<Rec>, appended: &Appended, level: Durability) {
        let last = self.now.runs[&name].records.len() + records.len() - 1;
        assert_eq!(appended.seq, Seq(last as u64));
        let durable = level == Durability::Disk || appended.ticket.is_durable();
        self.touched.insert(name.clone());
        self.change(Change::Append { name, records }, durable);
    }

    fn append(&mut self) {
        let len = self.some_len();
        self.append_rec(len);
    }

    fn append_large(&mut self) {
        let len = 8100 + self.random.index(30_000);
        self.append_rec(len);
    }

    fn batch(&mut self, late: bool) -> Vec<(Rec, Option<i64>)> {
        let count = 2 + self.random.index(5);
        let lens: Vec<usize> = (0..count).map(|_| self.some_len()).collect();
        lens.into_iter().map(|len| self.rec(len, late)).collect()
    }

    fn append_batch(&mut self) {
        let Some(name) = self.running() else { return };
        let batch = self.batch(false);
        let level = self.level(8);
        let records: Vec<NewRecord<'_>> =
            batch.iter().map(|(rec, said)| new_record(rec, *said, level)).collect();
        let appended = match self.writers.get(&name) {
            Some(writer) => writer.append_batch(&records),
            None => self.log().append_batch_to(name.0, &name.1, &records, Allow::nothing()),
        };
        let recs = batch.iter().map(|(rec, _)| rec.clone()).collect();
        self.appended(name, recs, &appended.unwrap(), level);
    }

    /// Appends to any run, including new and ended ones, as far as that is allowed.
    fn append_by_ids(&mut self) {
        let name = match self.coin_of(2) {
            true => self.some_name(),
            false => self.pick(|_| true).unwrap_or(("alpha", "run-0".to_owned())),
        };
        let few = self.now.runs.len() < MANY_RUNS;
        let allow =
            Allow::nothing().unstarted(few && self.random.coin()).after_end(self.random.coin());
        let late = self.now.runs.get(&name).is_some_and(|run| run.end.is_some());
        let len = if self.coin_of(30) { 9000 } else { self.some_len() };
        let batch = if self.coin_of(4) { self.batch(late) } else { vec![self.rec(len, late)] };
        let level = self.level(10);
        let records: Vec<NewRecord<'_>> =
            batch.iter().map(|(rec, said)| new_record(rec, *said, level)).collect();
        let appended = match records.as_slice() {
            [record] => self.log().append_to(name.0, &name.1, record, allow),
            records => self.log().append_batch_to(name.0, &name.1, records, allow),
        };
        if !self.now.runs.contains_key(&name) {
            if !allow.unstarted {
                return assert!(matches!(appended, Err(Error::RunNotFound { .. })), "{appended:?}");
            }
            self.create_by_ids(&name, batch[0].1.unwrap_or(self.time()));
        }
        if late && !allow.after_end {
            return assert!(matches!(appended, Err(Error::RunEnded { .. })), "{appended:?}");
        }
        let recs = batch.into_iter().map(|(rec, _)| rec).collect();
        self.appended(name, recs, &appended.unwrap(), level);
    }

    fn create_by_ids(&mut self, name: &Name, at: i64) {
        let (name, number) = (name.clone(), self.next_number);
        self.next_number += 1;
        self.change(Change::Create { name, number, at, start: None }, false);
    }

    fn some_end(&mut self) -> (End, Outcome, Durability) {
        let (at, said) = self.some_time();
        let level = self.level(2);
        let len = self.random.index(100);
        let end = End {
            at,
            status: ENDED[self.random.index(ENDED.len())],
            content: self.random.below(8) as u8,
            payload: self.bytes(len),
        };
        let outcome = outcome_of(&end).durability(level);
        let outcome = match said {
            Some(said) => outcome.at(runlog::Timestamp(said)),
            None => outcome,
        };
        (end, outcome, level)
    }

    fn end(&mut self) {
        let Some(name) = self.running() else { return self.start() };
        let (end, outcome, level) = self.some_end();
        let ended = match self.writers.get(&name) {
            Some(writer) => writer.end(&outcome),
            None => self.log().end_run(name.0, &name.1, &outcome, Allow::nothing()),
        };
        ended.unwrap();
        if self.random.coin() {
            self.writers.remove(&name);
        }
        self.change(Change::End { name, end }, level == Durability::Disk);
    }

    fn end_by_ids(&mut self) {
        let name = self.some_name();
        let few = self.now.runs.len() < MANY_RUNS;
        let allow =
            Allow::nothing().unstarted(few && self.random.coin()).after_end(self.random.coin());
        let (end, outcome, level) = self.some_end();
        let ended = self.log().end_run(name.0, &name.1, &outcome, allow);
        if !self.now.runs.contains_key(&name) {
            if !allow.unstarted {
                return assert!(matches!(ended, Err(Error::RunNotFound { .. })), "{ended:?}");
            }
            self.create_by_ids(&name, end.at);
        }
        if let Some(known) = &self.now.runs[&name].end {
            let says = |end: &End| (end.status, end.content, Arc::clone(&end.payload));
            if says(known) == says(&end) {
                // A rare case: the same end once more.
                return drop(ended.unwrap());
            }
            return assert!(matches!(ended, Err(Error::RunEnded { .. })), "{ended:?}");
        }
        ended.unwrap();
        self.change(Change::End { name, end }, level == Durability::Disk);
    }

    /// Repeats an earlier operation.
    fn repeat(&mut self) {
        let Some(name) = self.pick(|_| true) else { return };
        let run = self.now.runs[&name].clone();
        if let Some(start) = run.start.filter(|_| self.random.coin()) {
            let metadata = Metadata::new(&start.metadata)
                .content_type(ContentType::from_code(start.content))
                .durability(Durability::Process);
            let writer = self.log().start_run(name.0, &name.1, metadata).unwrap();
            self.touched.insert(name.clone());
            self.writers.insert(name, writer);
        } else if let Some(end) = run.end {
            let outcome = outcome_of(&end).durability(Durability::Process);
            self.log().end_run(name.0, &name.1, &outcome, Allow::nothing()).unwrap();
            let other = Outcome::completed().bytes(b"another").content_type(ContentType::TEXT);
            let ended = self.log().end_run(name.0, &name.1, &other, Allow::nothing());
            assert!(matches!(ended, Err(Error::RunEnded { .. })), "{ended:?}");
            let writer = self.log().writer((name.0, name.1.as_str()));
            assert!(matches!(writer, Err(Error::RunEnded { .. })), "{writer:?}");
        } else {
            let writer = self.log().writer((name.0, name.1.as_str())).unwrap();
            self.touched.insert(name.clone());
            self.writers.insert(name, writer);
        }
    }

    fn use_stale_writer(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let writer = self.stale.swap_remove(self.random.index(self.stale.len()));
        let appended = writer.append(b"too late");
        assert!(matches!(&appended, Err(Error::Evicted { run: Some(run) }) if run == writer.run()));
        let ended = writer.end(&Outcome::completed());
        assert!(matches!(ended, Err(Error::Evicted { .. })), "{ended:?}");
    }

    fn hold(&mut self) {
        let Some(name) = self.pick(|_| true) else { return };
        let named = (name.0, name.1.as_str());
        let run = &self.now.runs[&name];
        let held = run.hold.clone();
        // With more holds, a policy would have nothing left to evict.
        let many = self.now.runs.values().filter(|run| run.hold.is_some()).count() > 8;
        if many || (held.is_some() && self.random.coin()) {
            let released = self.log().release(named).unwrap();
            assert_eq!(released, held.is_some());
            if released {
                let change = Change::Hold { name, at: self.time(), reason: None };
                self.change(change, true);
            }
            return self.all_is_durable();
        }
        let reason = ["", "evidence", "the case of the other run"][self.random.index(3)];
        let changed = self.log().hold(named, reason).unwrap();
        assert_eq!(changed, held.is_none_or(|held| held.reason != reason));
        if changed {
            let reason = Some(reason.to_owned());
            self.change(Change::Hold { name, at: self.time(), reason }, true);
        }
        self.all_is_durable();
    }

    fn adopt(&mut self) {
        let mut orphans: Vec<(u64, Name)> = Vec::new();
        for (name, run) in &self.now.runs {
            if run.end.is_none() && !self.touched.contains(name) {
                orphans.push((run.number, name.clone()));
            }
        }
        orphans.sort();
        let adopted = self.log().adopt_orphans().unwrap().runs;
        let adopted: Vec<_> =
            adopted.iter().map(|(agent, run)| (agent.as_str(), run.as_str())).collect();
        let expected: Vec<_> = orphans.iter().map(|(_, name)| (name.0, name.1.as_str())).collect();
        assert_eq!(adopted, expected);
        for (_, name) in orphans {
            let (at, status, payload) = (self.time(), RunStatus::Interrupted, Arc::default());
            let end = End { at, status, content: 0, payload };
            self.change(Change::End { name, end }, false);
        }
        self.all_is_durable();
    }

    // --- What goes ---

    /// A run was deleted: its writers are told so.
    fn deleted(&mut self, at: i64, kept: Kept, durable: bool) {
        let name = kept.name.clone();
        self.change(Change::Delete { at, kept }, durable);
        self.stale.extend(self.writers.remove(&name));
        if self.stale.len() > 8 {
            self.stale.remove(0);
        }
        self.touched.remove(&name);
    }

    /// Whether a run may be deleted; otherwise the refusal was the right one.
    fn may_go<T: core::fmt::Debug>(&self, name: &Name, deleted: &runlog::Result<T>) -> bool {
        let run = &self.now.runs[name];
        if run.end.is_none() {
            assert!(matches!(deleted, Err(Error::RunInProgress { .. })), "{deleted:?}");
        } else if run.hold.is_some() {
            assert!(matches!(deleted, Err(Error::RunHeld { .. })), "{deleted:?}");
        }
        run.end.is_some() && run.hold.is_none()
    }

    fn delete(&mut self) {
        let any = self.coin_of(5);
        let Some(name) = self.pick(|run| any || run.end.is_some()) else { return };
        let deleted = self.log().delete_run((name.0, name.1.as_str()));
        if self.may_go(&name, &deleted) {
            let run = &self.now.runs[&name];
            assert_eq!(deleted.unwrap().bytes, run.bytes());
            let kept = Kept::new(name, Rule::Deleted, run.stored(self.settings.compressed));
            self.deleted(self.time(), kept, true);
        }
    }

    fn erase(&mut self) {
        let Some(name) = self.pick(|_| true) else { return };
        let erased = self.log().erase_run((name.0, name.1.as_str()));
        if !self.may_go(&name, &erased) {
            return;
        }
        let run = &self.now.runs[&name];
        let longest =
            run.records.iter().map(|rec| Arc::clone(&rec.payload)).max_by_key(|p| p.len());
        let erased = erased.unwrap();
        assert_eq!(erased.bytes, run.bytes());
        let kept = Kept::new(name, Rule::Erased, run.stored(self.settings.compressed));
        self.deleted(self.time(), kept, true);
        if let Some(payload) = longest.filter(|payload| payload.len() > 40)
            && erased.pinned_extents == 0
        {
            let image = self.disk.image();
            let there = image.windows(24).any(|window| *window == payload[..24]);
            assert!(!there, "bytes of the run are left");
        }
    }

    /// All runs as a policy sees them.
    fn judged(&mut self) -> Vec<Judged> {
        // Every run is larger than a byte, so the plan contains the bytes of each.
        let census = Policy::bytes(1);
        let plan = self.log().gc_plan(&census.retention()).unwrap();
        let going = plan.evict.iter().map(|run| (&run.agent, &run.run, run.bytes));
        let staying = plan.protected.iter().map(|run| (&run.agent, &run.run, run.bytes));
        let bytes = going
            .chain(staying)
            .map(|(agent, run, bytes)| ((agent.to_string(), run.to_string()), bytes))
            .collect();
        let judged = Judged::all(&self.now, &bytes, self.settings.compressed);
        census.check(&plan, &judged, &census.verdicts(&judged, self.time()));
        judged
    }

    /// What a policy should do now, after checking that its plan agrees.
    fn planned(&mut self, policy: &Policy) -> Vec<Verdict> {
        let judged = self.judged();
        let verdicts = policy.verdicts(&judged, self.time());
        let plan = self.log().gc_plan(&policy.retention()).unwrap();
        policy.check(&plan, &judged, &verdicts);
        verdicts
    }

    fn plan(&mut self) {
        let policy = Policy::random(&mut self.random);
        self.planned(&policy);
    }

    fn collect_by(&mut self, policy: &Policy) {
        let verdicts = self.planned(policy);
        let plan = self.log().gc_plan(&policy.retention()).unwrap();
        let collected = self.log().gc(&policy.retention()).unwrap();
        assert_eq!(collected.plan, plan, "a collection does what its plan says");
        assert_eq!(collected.freed_bytes, collected.freed_extents * (64 << 10));
        self.evicted(&verdicts);
        if !collected.plan.evict.is_empty() {
            self.all_is_durable();
        }
    }

    fn evicted(&mut self, verdicts: &[Verdict]) {
        let at = self.time();
        for Verdict { run, rule, protection } in verdicts {
            if protection.is_none() {
                let (name, stored) = (run.name.clone(), (run.bytes, run.bytes));
                self.deleted(at, Kept::new(name, *rule, stored), false);
                self.tally.evicted += 1;
            }
        }
    }

    fn collect(&mut self) {
        let policy = Policy::random(&mut self.random);
        self.collect_by(&policy);
    }

    /// Ends runs and evicts others until the store is small again.
    fn make_room(&mut self) {
        while self.now.runs.values().filter(|run| run.end.is_none()).count() > MANY_RUNS / 4 {
            self.end();
        }
        let held: Vec<Name> = self
            .now
            .runs
            .iter()
            .filter(|(_, run)| run.hold.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for name in held {
            assert!(self.log().release((name.0, name.1.as_str())).unwrap());
            self.change(Change::Hold { name, at: self.time(), reason: None }, true);
        }
        let most = MANY_BYTES / 4 + self.random.below(MANY_BYTES / 4);
        self.collect_by(&Policy::bytes(most));
        let bytes: u64 = self.now.runs.values().map(|run| run.stored(false).1).sum();
        if bytes > MANY_BYTES {
            // All bytes belong to runs in progress.
            while let Some(name) = self.running() {
                let (end, outcome, _) = self.some_end();
                self.log().end_run(name.0, &name.1, &outcome, Allow::nothing()).unwrap();
                self.change(Change::End { name, end }, false);
            }
        }
    }

    // --- Space, time, and the index ---

    fn compact(&mut self) {
        let compacted = self.log().compact().unwrap();
        self.tally.moved_bytes += compacted.bytes;
        self.all_is_durable();
    }

    fn reclaim(&mut self) {
        self.log().reclaim().unwrap();
    }

    /// As soon as something is deleted, the store gives back what is dead and what no trace holds,
    /// except where moving the rest would write more than three times what it gains.
    fn dead_space_is_bounded(&mut self) {
        self.let_go();
        let before = self.now.runs.len();
        self.delete();
        if !self.settings.automatic || self.now.runs.len() == before {
            return;
        }
        self.append_rec(10);
        let stats = self.log().stats().unwrap();
        let most = stats.live_bytes / 3 + 2 * EXTENT;
        assert!(stats.dead_bytes <= most, "{stats:?}");
    }

    fn checkpoint(&mut self) {
        self.log().checkpoint().unwrap();
        self.all_is_durable();
    }

    fn sync(&mut self) {
        self.log().sync().unwrap();
        self.all_is_durable();
    }

    fn move_clock(&mut self) {
        let by = [SECOND, 60 * SECOND, 3600 * SECOND][self.random.index(3)];
        let by = self.random.below(2 * by as u64) as i64;
        self.machine.clock.advance(if self.random.coin() { by } else { -by });
    }

    // --- Reading ---

    fn look_up(&mut self) {
        let name = match self.coin_of(3) {
            true => self.some_name(),
            false => self.pick(|_| true).unwrap_or(("alpha", "run-0".to_owned())),
        };
        let agents: Vec<&str> = AGENTS
            .into_iter()
            .filter(|agent| self.now.runs.contains_key(&(*agent, name.1.clone())))
            .collect();
        let mut agents = agents;
        agents.sort_unstable();
        match (self.log().agent_of(&name.1), agents.as_slice()) {
            (Ok(agent), [only]) => assert_eq!(agent, *only),
            (Err(Error::RunNotFound { .. }), []) => {}
            (Err(Error::Ambiguous { agents: found, .. }), agents) if agents.len() > 1 => {
                assert_eq!(found, agents);
            }
            (found, agents) => panic!("{found:?}, {agents:?}"),
        }
        let summary = self.log().run((name.0, name.1.as_str()));
        let Some(run) = self.now.runs.get(&name) else {
            return assert!(matches!(summary, Err(Error::RunNotFound { .. })), "{summary:?}");
        };
        let summary = summary.unwrap();
        let found = (summary.status, summary.records, summary.bytes, summary.held);
        let expected = (run.status(), run.records.len() as u64, run.bytes(), run.hold.is_some());
        assert_eq!(found, expected, "{name:?}");
        let found = (summary.ended_at.map(|at| at.0), summary.last_at.0);
        assert_eq!(found, (run.end.as_ref().map(|end| end.at), run.last_at), "{name:?}");
    }

    /// Reads a range of a run, in one direction or from both ends.
    fn trace(&mut self) {
        let Some(name) = self.pick(|_| true) else { return };
        let records = self.now.runs[&name].records.clone();
        let low = self.random.index(records.len() + 1);
        let high = low + self.random.index(records.len() + 2 - low);
        let trace = self.log().trace((name.0, name.1.as_str())).unwrap();
        let trace = trace.range(Seq(low as u64)..Seq(high as u64)).unwrap();
        let back = high.min(records.len()).max(low);
        let mut reading = Reading { trace, records, front: low, back, since: self.time() };
        while reading.front < reading.back {
            assert!(reading.step(&mut self.random, None, 0, &mut self.payloads));
        }
        assert!(reading.trace.next().is_none());
        let kept = self.payloads.len();
        for (payload, expected) in self.payloads.drain(..kept.saturating_sub(8)) {
            assert!(*payload == *expected, "a payload changed after it was handed out");
        }
    }

    fn begin_trace(&mut self) {
        let Some(name) = self.pick(|_| true) else { return };
        let records = self.now.runs[&name].records.clone();
        let trace = self.log().trace((name.0, name.1.as_str())).unwrap();
        let back = records.len();
        self.readings.push(Reading { trace, records, front: 0, back, since: self.time() });
        if self.readings.len() > 4 {
            self.readings.remove(0);
        }
    }

    fn read_on(&mut self) {
        if self.readings.is_empty() {
            return;
        }
        let place = self.random.index(self.readings.len());
        let (now, pin_age) = (self.time(), self.settings.pin_age);
        let reading = &mut self.readings[place];
        for _ in 0..1 + self.random.index(6) {
            if reading.front == reading.back {
                assert!(reading.trace.next().is_none() && reading.trace.next_back().is_none());
                self.readings.swap_remove(place);
                return;
            }
            if !reading.step(&mut self.random, pin_age, now, &mut self.payloads) {
                assert!(reading.trace.next().is_none());
                self.tally.let_go += 1;
                self.readings.swap_remove(place);
                return;
            }
            self.tally.read_on += 1;
        }
    }

    /// The lists of an agent, of what is in progress, and of the agents.
    fn list(&mut self) {
        let agent = AGENTS[self.random.index(AGENTS.len())];
        let limit = 1 + self.random.index(12);
        let expected: Vec<&str> = self
            .now
            .newest_first()
            .into_iter()
            .filter(|(name, _)| name.0 == agent)
            .map(|(name, _)| name.1.as_str())
            .collect();
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self
                .log()
                .list_runs(&RunQuery::new().agent(agent).limit(limit).after(cursor))
                .unwrap();
            assert!(page.runs.iter().all(|run| run.agent == agent));
            found.extend(page.runs.into_iter().map(|run| run.run));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, expected);
        let mut expected: Vec<(&str, &str)> = Vec::new();
        for (name, run) in self.now.newest_first() {
            if run.end.is_none() {
                expected.insert(0, (name.0, name.1.as_str()));
            }
        }
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = self
                .log()
                .list_runs(
                    &RunQuery::new()
                        .status(RunStatus::InProgress)
                        .oldest_first()
                        .limit(limit)
                        .after(cursor),
                )
                .unwrap();
            found.extend(page.runs.into_iter().map(|run| (run.agent, run.run)));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let found: Vec<_> = found.iter().map(|run| (run.0.as_str(), run.1.as_str())).collect();
        assert_eq!(found, expected);
        let agents: BTreeSet<&str> = self.now.runs.keys().map(|name| name.0).collect();
        let found = self.log().agents(None, 10).unwrap();
        assert_eq!(found, agents.into_iter().collect::<Vec<_>>());
    }

    /// Any compaction may drop receipts that the options do not keep.
    fn doom_receipts(&mut self) {
        let oldest = self.time() - RECEIPT_AGE;
        let most = self.settings.receipts as usize;
        let few = self.now.receipts.len().saturating_sub(most);
        for (place, (key, kept)) in self.now.receipts.iter_mut().enumerate() {
            if place >= few && key.0 >= oldest {
                break;
            }
            kept.doomed = true;
        }
    }

    /// Receipts belong to deleted runs, the latest first; none is missing that must be kept.
    fn check_receipts(&mut self) {
        let oldest = self.time() - RECEIPT_AGE;
        let listed = self.log().receipts(1000).unwrap();
        assert!(listed.len() as u64 <= self.settings.receipts);
        let mut known = self.now.receipts.iter().rev().filter(|(key, _)| key.0 >= oldest);
        for receipt in &listed {
            let (agent, run) = (receipt.agent.as_str(), receipt.run.as_str());
            let kept = known.find(|(key, kept)| {
                let same = key.0 == receipt.deleted_at.0
                    && (kept.name.0, kept.name.1.as_str()) == (agent, run)
                    && kept.rule == receipt.rule
                    && (kept.bytes.0..=kept.bytes.1).contains(&receipt.bytes);
                assert!(same || kept.doomed, "{kept:?} is missing at {receipt:?}");
                same
            });
            assert!(kept.is_some(), "{receipt:?} is of no run, or has no place here");
        }
        if (listed.len() as u64) < self.settings.receipts {
            let missing = known.find(|(_, kept)| !kept.doomed);
            assert!(missing.is_none(), "there is no receipt of {missing:?}");
        }
    }

    /// Everything that can be seen of the store.
    pub(super) fn compare_all(&mut self) {
        let page = 1 + self.random.index(30);
        let seen = Seen::of_store(self.log(), page);
        let expected = Seen::of_state(&self.now);
        for (found, expected) in seen.iter().zip(&expected) {
            assert_eq!(found, expected);
        }
        assert_eq!(seen.len(), expected.len());
        self.list();
        self.check_receipts();
        for (payload, expected) in &self.payloads {
            assert!(**payload == **expected, "a payload changed after it was handed out");
        }
        let stats = self.log().stats().unwrap();
        assert_eq!(stats.runs, self.now.runs.len() as u64);
        if self.coin_of(4) {
            self.verify();
        }
        self.tally.compared += 1;
    }

    fn verify(&self) {
        let report = self.log().verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }

    // --- Closing and crashing ---

    fn let_go(&mut self) {
        self.writers.clear();
        self.stale.clear();
        self.readings.clear();
        self.payloads.clear();
    }

    fn open(&mut self) {
        // An index that was there may be dropped, or be built where none was.
        self.settings.index = self.random.below(4) != 0;
        let compressed = self.settings.compressed && self.random.below(4) != 0;
        self.machine.compression = compression(compressed);
        let options = options(&self.machine, self.settings);
        self.gate = Gate::new(&self.disk);
        self.log = Some(options.open_storage(self.gate.storage()).unwrap());
        self.touched.clear();
    }

    fn reopen(&mut self) {
        self.let_go();
        self.log.take().expect("open").close().unwrap();
        self.open();
        assert!(self.log().recovery_report().clean && self.log().recovery_report().is_clean());
        self.all_is_durable();
    }

    /// Dies without closing.
    fn die(&mut self) {
        self.let_go();
        self.gate.shut();
        self.log = None;
    }

    /// A killed process loses nothing that was acknowledged.
    fn kill(&mut self) {
        self.die();
        self.open();
        let report = self.log().recovery_report();
        assert!(report.is_clean(), "{report}");
        self.all_is_durable();
        self.compare_all();
    }

    /// A power cut leaves what was acknowledged as durable, and a prefix of what came after it.
    fn cut_power(&mut self) {
        self.die();
        let survivors = Survivors::ALL[self.random.index(Survivors::ALL.len())];
        let image = self.disk.crash(survivors, self.random.next_u64());
        self.disk = SimDisk::from_image(image);
        self.open();
        self.check_damage();
        self.adopt_prefix();
    }

    fn check_damage(&self) {
        let mut damaged = self.log().recovery_report().damaged.iter();
        // A superblock or the owner page may be torn, since another copy replaces it.
        let found = damaged
            .find(|found| !matches!(found.place, Place::Superblock { .. } | Place::OwnerPage));
        assert!(found.is_none(), "a crash was taken for damage: {found:?}");
    }

    /// Finds out how many of the changes are there.
    fn adopt_prefix(&mut self) {
        let seen = Seen::of_store(self.log(), 16);
        let digest = Seen::digest(&seen);
        let mut state = core::mem::take(&mut self.base);
        let mut there = 0;
        loop {
            if there >= self.durable && state.is(&seen, digest) {
                break;
            }
            let Some(change) = self.changes.get(there) else {
                self.report_mismatch(&seen);
            };
            state.apply(change);
            there += 1;
        }
        self.tally.lost += (self.changes.len() - there) as u64;
        if let Some(change) = self.changes.get(there) {
            state.apply_in_part(change);
        }
        self.changes.clear();
        self.durable = 0;
        self.base = state.clone();
        for (key, kept) in &mut state.receipts {
            kept.doomed = self.now.receipts.get(key).is_some_and(|kept| kept.doomed);
        }
        self.now = state;
        self.compare_all();
    }

    fn report_mismatch(&self, seen: &[Seen]) -> ! {
        let expected = Seen::of_state(&self.now);
        let name = |run: &Seen| format!("{}/{}: {} {:?}", run.agent, run.run, run.records, run.end);
        panic!(
            "no prefix fits: {} changes, {} of them durable\nfound {:#?}\nlast {:#?}",
            self.changes.len(),
            self.durable,
            seen.iter().map(name).collect::<Vec<_>>(),
            expected.iter().map(name).collect::<Vec<_>>(),
        );
    }

    /// The disk fails in the middle of something that moves or frees much; afterwards the process
    /// is killed, or the power fails.
    fn crash_within(&mut self) {
        let policy = Policy::random(&mut self.random);
        let verdicts = self.planned(&policy);
        let soon = self.disk.op_count() + self.random.index(80);
        self.disk.fail_from(soon, std::io::ErrorKind::Other);
        let failed = match self.random.below(4) {
            0 => self.log().compact().err(),
            1 => self.log().checkpoint().err(),
            2 => self.log().reclaim().err(),
            _ => {
                let failed = self.log().gc(&policy.retention()).err();
                self.evicted(&verdicts);
                failed
            }
        };
        let expected = matches!(failed, None | Some(Error::Io { .. } | Error::Poisoned));
        assert!(expected, "{failed:?}");
        self.die();
        self.disk.clear_faults();
        let image = if self.random.coin() {
            self.disk.image()
        } else {
            let survivors = Survivors::ALL[self.random.index(Survivors::ALL.len())];
            self.disk.crash(survivors, self.random.next_u64())
        };
        self.disk = SimDisk::from_image(image);
        self.open();
        self.check_damage();
        self.adopt_prefix();
        self.verify();
    }

    /// The end of a round: everything is compared, and again after reopening the store.
    pub(super) fn finish(mut self) -> Tally {
        self.compare_all();
        self.let_go();
        self.log().reclaim().unwrap();
        let stats = self.log().stats().unwrap();
        assert_eq!(stats.retired_extents, 0, "nobody reads");
        self.reopen();
        self.compare_all();
        self.verify();
        let stats = self.log().stats().unwrap();
        self.tally.recycled += u64::from(stats.end.segment.0).saturating_sub(stats.sealed_segments);
        self.tally.compactions +=
            self.machine.activities.compactions.load(Ordering::Relaxed) as u64;
        self.die();
        core::mem::take(&mut self.tally)
    }
}

impl Reading {
    /// Reads one more record from one end. Returns whether there was one: a trace that holds
    /// extents for too long may be told that its run is gone.
    fn step(
        &mut self,
        random: &mut SplitMix64,
        pin_age: Option<i64>,
        now: i64,
        payloads: &mut Vec<(Payload, Arc<[u8]>)>,
    ) -> bool {
        let backwards = random.below(3) == 0;
        let seq = if backwards { self.back - 1 } else { self.front };
        let expected = &self.records[seq];
        let error = if !backwards && random.coin() {
            match self.trace.next_view().expect("a record is left") {
                Ok(record) => {
                    expected.check(&record, seq);
                    None
                }
                Err(error) => Some(error),
            }
        } else {
            let next = if backwards { self.trace.next_back() } else { self.trace.next() };
            match next.expect("a record is left") {
                Ok(record) => {
                    expected.check(&record, seq);
                    if random.below(16) == 0 {
                        payloads.push((record.into_payload(), Arc::clone(&expected.payload)));
                    }
                    None
                }
                Err(error) => Some(error),
            }
        };
        if let Some(error) = error {
            assert!(matches!(error, Error::Evicted { .. }), "record {seq}: {error}");
            let age = now - self.since;
            assert!(pin_age.is_some_and(|most| age > most), "let go after {age} ns");
            return false;
        }
        if backwards {
            self.back -= 1;
        } else {
            self.front += 1;
        }
        true
    }
}

fn compression(compressed: bool) -> Compression {
    if compressed { Compression::Zstd { level: 1 } } else { Compression::None }
}

fn options(machine: &Machine, settings: Settings) -> Options {
    let pin_age = settings.pin_age.map(|nanos| Duration::from_nanos(nanos as u64));
    let compaction = Compaction::new()
        .automatic(settings.automatic)
        .space_return(settings.space)
        .max_pin_age(pin_age);
    machine
        .options()
        .index(settings.index)
        .compaction(compaction)
        .receipts(settings.receipts, Duration::from_nanos(RECEIPT_AGE as u64))
}

fn new_record(rec: &Rec, said: Option<i64>, level: Durability) -> NewRecord<'_> {
    let record = NewRecord::new(&rec.payload)
        .kind(rec.kind)
        .content_type(ContentType::from_code(rec.content))
        .durability(level);
    match said {
        Some(said) => record.at(runlog::Timestamp(said)),
        None => record,
    }
}

fn outcome_of(end: &End) -> Outcome {
    Outcome::new(end.status).bytes(&end.payload).content_type(ContentType::from_code(end.content))
}
