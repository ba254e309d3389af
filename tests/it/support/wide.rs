//! More operations of a [`World`], all of which may fail, and what happens to a world then.
//!
//! - A failed call leaves the last events of the model undecided. [`World::settle`] asks the store
//!   which of them happened, so that the world can continue.
//! - [`World::end_life`] drops the store, and [`World::begin_life`] opens it again on the same
//!   disk, which knows what a failed sync dropped.

use std::sync::Arc;

use memchr::memmem;
use runlog::env::Step;
use runlog::{Allow, Batch, Durability, Error, Expected, NewRecord, Rule, Version};

use super::fault::FaultPlan;
use super::gate::Gate;
use super::model::{Change, Found, NO_RUN, SPACE};
use super::world::World;

/// How many bytes of an erased record are searched for.
const LOOKED_FOR: usize = 20;
/// Of so many records that were erased beside a reader.
const MOST_LEFT: usize = 8;

impl World {
    /// One random operation of the whole public API.
    pub(crate) fn wide_step(&mut self) {
        self.background_steps();
        match self.random.below(30) {
            0 => self.begin_reading(),
            1..=4 if !self.left.is_empty() => {
                self.stop_reading();
                return self.reclaim();
            }
            5..=9 => return self.ask(),
            10 => return self.dead_space_is_bounded(),
            _ => {}
        }
        if self.failure.is_some() {
            return;
        }
        if self.is_queue && self.random.below(16) != 0 {
            return self.write_documents_if();
        }
        if self.is_moving && self.random.below(8) != 0 {
            return self.moving_step();
        }
        match self.random.below(100) {
            0..=69 => self.step(),
            70..=81 => self.write_documents_if(),
            82..=85 => self.mixed_batch(),
            86..=87 => self.append_huge(),
            88..=91 => self.retire_oldest(),
            92..=93 => self.evict(),
            94 => self.erase(),
            95 => self.append_nothing(),
            96..=97 => self.be_refused(),
            _ => self.wait_for_ticket(),
        }
    }

    /// One of those that fill segments, and move what is in them one by one.
    fn moving_step(&mut self) {
        match self.random.below(8) {
            0 => self.start_run(),
            1..=3 => self.append_large(),
            4 => self.end_run(),
            5..=6 => self.erase(),
            _ => self.checkpoint(),
        }
    }

    /// Some background work, if it is not done by the calls.
    pub(crate) fn background_steps(&mut self) {
        if let Some(background) = self.machine.background.clone()
            && !self.is_lazy
            && self.random.below(3) == 0
        {
            background.run_some(&mut self.random, 2);
        }
    }

    /// One of a sequence that contains all operations, and fills and frees some segments.
    pub(crate) fn scripted_step(&mut self, step: usize) {
        match step % 30 {
            0 | 1 | 11 => self.start_run(),
            2 | 12 => self.append_large(),
            3 | 13 => self.append_batch(),
            4 => self.append_small(),
            5 | 22 => self.append_huge(),
            6 | 26 => self.write_documents(),
            7 | 19 => self.write_documents_if(),
            8 => self.mixed_batch(),
            9 | 14 | 23 => self.end_run(),
            10 => self.checkpoint(),
            15 => self.hold(),
            16 => self.delete_run(),
            17 => self.evict(),
            18 => self.append_unstarted(),
            20 => self.sync(),
            21 => self.collect(),
            24 => self.erase(),
            25 => self.compact(),
            27 => self.reclaim(),
            28 => {
                if let Some(background) = &self.machine.background {
                    for step in Step::ALL {
                        background.run(step);
                    }
                }
            }
            _ => self.wait_for_ticket(),
        }
    }

    /// Appends until a few more segments make the manifest outgrow its place in front of them.
    pub(crate) fn fill_manifest(&mut self) {
        loop {
            let stats = self.log().stats().expect("it is open");
            if 2 * stats.log_extents + stats.index_extents >= 270 + self.random.below(30) {
                return;
            }
            self.start_run();
            let run = self.now.len() - 1;
            self.append(run, 250_000, false);
            self.end(run, false);
        }
    }

    /// Does all background work, frees everything that can be freed, and compacts. Quarantined
    /// segments stay, and these calls may report them.
    pub(crate) fn use_space(&self) {
        if let Some(background) = &self.machine.background {
            for step in Step::ALL {
                background.run(step);
            }
        }
        let _ = self.log().checkpoint();
        let freed = [self.log().reclaim(), self.log().compact().map(drop), self.log().reclaim()];
        for error in freed.into_iter().filter_map(Result::err) {
            assert!(error.is_corruption(), "freeing what is dead: {error}");
        }
    }

    /// Releases all held runs.
    pub(crate) fn release_all(&mut self) {
        for run in 0..self.now.len() {
            if self.now[run].held && !self.now[run].deleted {
                let (agent, name) = self.name(run);
                let begin = self.begin();
                self.note(run, Change::Hold { reason: None }, begin);
                let released = self.log().release((agent.as_str(), name.as_str()));
                let Some(released) = self.succeeded(released) else { return };
                assert!(released, "{name} was held");
                self.now[run].held = false;
                self.acknowledge(true);
            }
        }
    }

    /// Appends a record that reaches over several extents.
    fn append_huge(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        let len = 60_000 + self.random.index(240_000);
        let durable = self.random.coin();
        self.append_whole(run, len, durable);
    }

    fn append_nothing(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        self.append(run, 0, false);
    }

    /// Ends the runs that have been going on for longest, and deletes some of those that ended.
    fn retire_oldest(&mut self) {
        for run in self.running().into_iter().rev().skip(4) {
            self.end(run, false);
            if self.failure.is_some() {
                return;
            }
        }
        for _ in 0..6 {
            self.delete_run();
            if self.failure.is_some() {
                return;
            }
        }
    }

    /// Waits for the last event whose durability is unknown.
    fn wait_for_ticket(&mut self) {
        let Some((event, ticket)) = self.tickets.last().cloned() else { return };
        let waited = ticket.wait();
        let Some(()) = self.succeeded(waited) else { return };
        assert!(ticket.is_durable(), "event {event} was waited for");
        self.acknowledge(false);
    }

    fn deletable(&self) -> Vec<usize> {
        let can_go = |run: &usize| {
            let now = self.now[*run];
            !now.running && !now.deleted && !now.held
        };
        (0..self.now.len()).filter(can_go).collect()
    }

    /// Deletes several runs at once, some of which cannot be deleted.
    fn evict(&mut self) {
        let going: Vec<usize> =
            self.deletable().into_iter().take(1 + self.random.index(4)).collect();
        let Some(staying) = self.pick(&self.running()) else { return };
        if going.is_empty() {
            return;
        }
        self.delete_together(&going, &[staying]);
    }

    /// What was erased beside a reader is gone once the reader is.
    pub(super) fn look_for_erased(&self) {
        let is_done = self.log().stats().is_ok_and(|stats| stats.retired_extents == 0);
        // Freed extents keep their bytes while a step that fails is to give them back.
        if self.left.is_empty() || !is_done || !self.log().health().failures.is_empty() {
            return;
        }
        let image = self.disk.image();
        for head in &self.left {
            let found = memmem::find(&image, head);
            assert_eq!(found, None, "bytes are left that a reader had of an erased record");
        }
    }

    pub(crate) fn erase(&mut self) {
        let Some(run) = self.deletable().first().copied() else { return };
        let (agent, name) = self.name(run);
        let begin = self.begin();
        self.note(run, Change::Delete { rule: Rule::Erased }, begin);
        let heads = self.heads((agent.as_str(), name.as_str()));
        let erased = self.log().erase_run((agent.as_str(), name.as_str()));
        let Some(erased) = self.succeeded(erased) else { return };
        if erased.pinned_extents == 0 {
            let image = self.disk.image();
            for head in heads {
                let found = memmem::find(&image, &head);
                assert_eq!(found, None, "bytes of an erased record are left");
            }
        } else {
            self.left.extend(heads);
            self.left.drain(..self.left.len().saturating_sub(MOST_LEFT));
        }
        self.now[run].deleted = true;
        self.acknowledge(true);
    }

    /// The first bytes of some of a run's records, as far as they can be read.
    fn heads(&self, run: (&str, &str)) -> Vec<Vec<u8>> {
        let Ok(trace) = self.log().trace(run) else { return Vec::new() };
        let records: Vec<_> = trace.filter_map(Result::ok).collect();
        let payloads = records.iter().map(|record| record.payload());
        let long = payloads.filter(|payload| payload.len() >= 4 * LOOKED_FOR);
        long.rev().take(3).map(|payload| payload[..LOOKED_FOR].to_vec()).collect()
    }

    /// Writes or deletes a document under a condition, and checks whether the condition holds.
    pub(super) fn write_documents_if(&mut self) {
        let key = format!("key {}", self.random.index(6));
        let there = self.model.documents_after(self.model.events.len()).remove(&key);
        let found = self.log().docs().get(SPACE, &key);
        let Some(found) = self.succeeded(found) else { return };
        let bytes = found.as_ref().map(|found| found.payload());
        assert!(bytes == there.as_deref(), "{key} has another value");
        let version = found.as_ref().map(|found| found.version());
        let known = self.log().docs().version_of(SPACE, &key);
        let Some(known) = self.succeeded(known) else { return };
        assert_eq!(known, version, "{key}");
        let (expected, fits) = match (self.random.below(8), version) {
            (0, Some(_)) => (Expected::Absent, false),
            (0, None) => (Expected::Version(Version(7)), false),
            (1, Some(version)) => (Expected::Version(Version(version.0 + 1_000_000)), false),
            (2..=3, _) => (Expected::Anything, true),
            (_, Some(version)) => (Expected::Version(version), true),
            (_, None) => (Expected::Absent, true),
        };
        let len = if self.random.below(10) == 0 { 30_000 } else { 2000 };
        let mut value = vec![0; self.random.index(len)];
        self.random.fill(&mut value);
        let value: Option<Arc<[u8]>> = (self.random.below(3) != 0).then(|| value.into());
        let begin = self.begin();
        if fits {
            self.note(
                NO_RUN,
                Change::Documents { writes: vec![(key.clone(), value.clone())] },
                begin,
            );
        }
        let mut batch = Batch::new();
        match &value {
            Some(value) => batch.put_if(SPACE, &key, NewRecord::new(value), expected),
            None => batch.delete_if(SPACE, &key, expected),
        };
        match self.log().commit(&batch) {
            Err(Error::Conflict { found, .. }) if !fits => {
                assert_eq!(found, version);
                self.acknowledge(true);
            }
            committed => {
                let Some(committed) = self.succeeded(committed) else { return };
                assert!(fits, "{key} is at {version:?}, and {expected:?} was expected");
                if value.is_some() {
                    let written = committed.versions[0].expect("it was written");
                    assert!(version < Some(written), "versions grow");
                    self.given.version(written);
                }
                self.tickets.push((self.model.events.len() - 1, committed.ticket));
                self.acknowledge(expected != Expected::Anything);
            }
        }
    }

    /// A document and a record of a run in one batch.
    pub(super) fn mixed_batch(&mut self) {
        let Some(run) = self.pick(&self.running()) else { return };
        let (agent, name) = self.name(run);
        let key = format!("key {}", self.random.index(6));
        let mut value = vec![0; self.random.index(3000)];
        self.random.fill(&mut value);
        let value: Arc<[u8]> = value.into();
        let begin = self.begin();
        let len = self.random.index(12_000);
        let rec = self.push_record(run, len, begin.1);
        self.note(run, Change::Records { count: 1 }, begin);
        let writes = vec![(key.clone(), Some(value.clone()))];
        self.note(NO_RUN, Change::Documents { writes }, begin);
        let mut batch = Batch::new();
        batch.append(&agent, &name, rec.to_append());
        batch.put(SPACE, &key, NewRecord::new(&value));
        let durable = self.random.coin();
        if durable {
            batch.durability(Durability::Disk);
        }
        let committed = self.log().commit(&batch);
        self.now[run].touched = true;
        let Some(committed) = self.succeeded(committed) else { return };
        self.given.version(committed.versions[1].expect("it was written"));
        self.tickets.push((self.model.events.len() - 1, committed.ticket));
        self.acknowledge(durable);
    }

    /// Reads everything, while the store is at work.
    pub(crate) fn look(&mut self) {
        let all = self.model.events.len();
        if let Err(error) = self.model.check(self.log(), all, all) {
            panic!("while the store is open: {error}");
        }
        let there = self.now.iter().filter(|now| !now.deleted).count() as u64;
        assert_eq!(self.log().stats().expect("the disk is fine").runs, there);
    }

    /// After a failure: finds out which of the last events happened, and forgets the others.
    /// Returns whether the store still works; if not, it is poisoned, reports that, and the next
    /// opening decides.
    pub(crate) fn settle(&mut self) -> bool {
        let failure = self.failure.take();
        let done = self.disk.op_count();
        let (least, _) = self.model.after_kill(done, false);
        let found = match self.model.check(self.log(), least, self.model.events.len()) {
            Ok(found) => found,
            Err(error) => panic!("after {failure:?}: {error}"),
        };
        let undecided = self.model.clone();
        self.forget_behind(found.prefix);
        // The next write is refused, or the store works as before.
        let allow = Allow::everything();
        let begin = self.begin();
        let running = self.pick(&self.running());
        let run = running.unwrap_or_else(|| self.new_run(false));
        let (agent, name) = self.name(run);
        if running.is_none() {
            self.note(run, Change::Start { metadata: Vec::new(), implicit: true }, begin);
        }
        let rec = self.push_record(run, 40, begin.1);
        self.note(run, Change::Records { count: 1 }, begin);
        let record = rec.to_append();
        self.now[run].touched = true;
        match self.log().append_to(&agent, &name, &record, allow) {
            Ok(appended) => {
                self.appended(appended, false);
                true
            }
            Err(error) if matches!(error, Error::Poisoned) || self.is_gone() => {
                if !self.is_gone() {
                    self.assert_poisoned();
                }
                (self.failure, self.model) = (failure, undecided);
                false
            }
            // On a full disk nothing of it is stored.
            Err(Error::DiskFull { .. }) => {
                self.model = undecided;
                self.forget_behind(found.prefix);
                true
            }
            Err(error) => panic!("after {failure:?} the next append fails: {error}"),
        }
    }

    fn forget_behind(&mut self, prefix: usize) {
        self.note_spare_receipts();
        self.spare_receipts.retain(|place| *place < prefix);
        self.model.truncate(prefix);
        self.now.truncate(self.model.runs.len());
        self.tickets.retain(|(event, _)| *event < prefix);
        for run in 0..self.now.len() {
            let touched = self.now[run].touched;
            self.now[run] = self.state_of(&self.model.runs[run]);
            self.now[run].touched = touched;
        }
        let now = &self.now;
        self.writers.retain(|run, _| now[*run].running);
    }

    /// Closes the store; returns whether that worked.
    pub(crate) fn try_close(&mut self) -> bool {
        self.let_go();
        let closed = self.take_log().close();
        self.acknowledge_closed(closed.is_ok());
        closed.is_ok()
    }

    /// Dies without closing.
    pub(crate) fn die(&mut self) {
        self.let_go();
        self.gate.shut();
        drop(self.take_log());
    }

    /// Plans that this goes wrong.
    pub(crate) fn apply(&self, plan: &FaultPlan) {
        plan.apply(&self.disk, &self.gate);
    }

    /// Whether the process is dead, or its disk is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_shut()
    }

    /// Tries to open the store again, while this goes wrong.
    pub(crate) fn try_open(&mut self, plan: Option<&FaultPlan>) -> Result<(), Error> {
        self.gate = Gate::new(&self.disk);
        if let Some(plan) = plan {
            self.apply(plan);
        }
        let log = self.machine.options().open_storage(self.gate.storage())?;
        self.put_log(log);
        Ok(())
    }

    /// Finds out what is there after the opening, within these limits, and continues from there.
    /// All of it is durable, as the opening guarantees.
    pub(crate) fn adopt_what_is_there(&mut self, least: usize) -> Result<Found, String> {
        let found = self.model.check(self.log(), least, self.model.events.len())?;
        self.note_spare_receipts();
        self.spare_receipts.retain(|place| *place < found.prefix);
        self.model = self.model.recovered(found.prefix);
        self.tickets.clear();
        self.failure = None;
        self.now = self.model.runs.iter().map(|run| self.state_of(run)).collect();
        Ok(found)
    }
}
