//! The calls of a [`World`]: a random workload, and what the model knows of each call.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use runlog::format::frames::eviction::Eviction;
use runlog::format::{FrameHeader, FrameKind};
use runlog::{
    Allow, Batch, Compression, ContentType, Durability, LogPosition, Lsn, Metadata, NewRecord,
    Outcome, Rule, RunNo, RunStatus, Timestamp, Trace,
};

use super::machine::EXTENT;
use super::model::{Change, NO_RUN, Rec, Run, SPACE};
use super::world::{AGENTS, Now, World};

/// The keys that documents have.
const KEYS: usize = 6;
/// During a quarter of the time at most this many runs live.
const MANY_RUNS: usize = 24;

/// As many ids of runs are there where they are used again, also by other agents.
const IDS: u64 = 30;

impl World {
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
        let now = Now { running: true, deleted: false, explicit, touched: true, held: false };
        let agent = AGENTS[self.random.index(AGENTS.len())].to_owned();
        let mut name = format!("run-{}{}", self.model.runs.len(), "-".repeat(self.padding));
        if self.reuses_ids && self.random.coin() {
            let again = format!("again-{}", self.random.below(IDS));
            let same = |run: &Run| (&run.agent, &run.run) == (&agent, &again);
            match self.model.runs.iter().position(same) {
                Some(run) if self.now[run].deleted => {
                    self.now[run] = now;
                    return run;
                }
                Some(_) => {}
                None => name = again,
            }
        }
        let (records, events) = (Vec::new(), Vec::new());
        self.model.runs.push(Run { agent, run: name, records, events });
        self.now.push(now);
        self.now.len() - 1
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
        let mut begin = self.begin();
        let said = self.said(&mut begin);
        self.note(run, Change::Start { metadata: metadata.clone(), implicit: false }, begin);
        let metadata = Metadata::new(&metadata).durability(level);
        let metadata = said.map_or(metadata, |at| metadata.at(at));
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
        let content = ContentType::from_code(self.random.below(8) as u8);
        let rec = Rec { payload: self.payload(run, len), kind, content, at };
        self.model.runs[run].records.push(rec.clone());
        rec
    }

    /// Appends one record to a run, by its writer or by its ids.
    pub(crate) fn append(&mut self, run: usize, len: usize, durable: bool) {
        let mut begin = self.begin();
        let said = self.said(&mut begin);
        let rec = self.push_record(run, len, begin.1);
        self.append_rec(run, &rec, begin, said, durable);
    }

    pub(super) fn append_rec(
        &mut self,
        run: usize,
        rec: &Rec,
        begin: (usize, i64),
        said: Option<Timestamp>,
        durable: bool,
    ) {
        let level = if durable { Durability::Disk } else { Durability::Process };
        let record = rec.to_append().durability(level);
        let record = said.map_or(record, |at| record.at(at));
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
        self.append_rec(run, &rec, begin, None, false);
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
        let records: Vec<NewRecord<'_>> =
            recs.iter().map(|rec| rec.to_append().durability(level)).collect();
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
        let content = ContentType::default();
        let rec = Rec { payload: payload.into(), kind: "", content, at: begin.1 };
        self.model.runs[run].records.push(rec.clone());
        self.append_rec(run, &rec, begin, None, false);
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
        let mut begin = self.begin();
        let outcome = match self.said(&mut begin) {
            Some(at) => outcome.at(at),
            None => outcome,
        };
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
        self.note(run, Change::Delete { rule: Rule::Deleted }, begin);
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

    /// Holds a run, releases it, or changes the reason.
    pub(crate) fn hold(&mut self) {
        let alive: Vec<usize> = (0..self.now.len()).filter(|run| !self.now[*run].deleted).collect();
        let Some(run) = self.pick(&alive) else { return };
        let (agent, name) = self.name(run);
        let before = self.model.state(run).hold.map(|hold| hold.1);
        let reasons = [None, Some("why"), Some("")];
        let reason = match before {
            None => reasons[1 + self.random.index(2)],
            Some(_) => reasons[self.random.index(3)],
        };
        let begin = self.begin();
        if reason != before {
            self.note(run, Change::Hold { reason }, begin);
        }
        let name = (agent.as_str(), name.as_str());
        let changed = match reason {
            Some(reason) => self.log().hold(name, reason),
            None => self.log().release(name),
        };
        let Some(changed) = self.succeeded(changed) else { return };
        assert_eq!(changed, reason != before, "{name:?}: {before:?}, now {reason:?}");
        self.now[run].held = reason.is_some();
        self.acknowledge(true);
    }

    /// Evicts the runs that some policy does not keep.
    pub(crate) fn collect(&mut self) {
        let policy = self.some_policy();
        let begin = self.begin();
        let plan = self.plan(&policy);
        let Some((plan, going)) = self.succeeded(plan) else { return };
        for (run, rule) in &going {
            let (now, rule) = (self.now[*run], *rule);
            assert!(!now.running && !now.held && !now.deleted, "{run} is to go: {now:?}");
            self.note(*run, Change::Delete { rule }, begin);
        }
        let collected = self.log().gc(&policy);
        let Some(collected) = self.succeeded(collected) else { return };
        assert_eq!(collected.plan, plan, "a collection does what its plan says");
        assert_eq!(collected.freed_bytes, collected.freed_extents * EXTENT);
        for (run, _) in going {
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
        // It may drop the index, and build it anew.
        self.close_stretch();
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

    /// The time of something, where the caller says it.
    fn said(&mut self, begin: &mut (usize, i64)) -> Option<Timestamp> {
        if self.random.below(20) != 0 {
            return None;
        }
        begin.1 += self.random.below(20_000_000_000) as i64 - 10_000_000_000;
        Some(Timestamp(begin.1))
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
    let header_len = runlog::format::frames::frame::FRAME_HEADER_LEN;
    let at = |payload: &[u8]| {
        let offset = end.offset + u32::try_from(header_len + payload.len()).expect("short");
        LogPosition { segment: end.segment, offset }
    };
    let durable = LogPosition { segment: end.segment, offset: end.offset + 50_000 };
    let mut mark = FrameHeader::watermark(durable, Timestamp(0));
    (mark.position, mark.lsn) = (at(&[]), Lsn(1_000_000));
    let mut payload = mark.encode(0);
    while payload.len() < len {
        let mut header = FrameHeader::new(FrameKind::Evict, RunNo(0), Timestamp(0));
        header.position = at(&payload);
        header.lsn = Lsn(1_000_000);
        header.extra = 39;
        header.payload_len = u32::try_from(body.len()).expect("short");
        header.payload_crc = crc32fast::hash(&body);
        payload.extend_from_slice(&header.encode(0));
        payload.extend_from_slice(&body);
    }
    payload
}
