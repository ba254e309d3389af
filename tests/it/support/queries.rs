//! Questions to the store of a [`World`], and the answers that it should have.
//!
//! A disk that fails may fail each of them; an answer is always right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use runlog::retention::{self, Candidate, Inventory};
use runlog::{
    AgentId, Error, GcPlan, Limits, Payload, Result, Retention, Rule, RunNo, RunQuery, RunStatus,
    RunSummary, Seq, Timestamp, Trace,
};
use runlog_sim::SplitMix64;

use super::machine::EXTENT;
use super::model::{Change, Model, Rec, State};
use super::world::{AGENTS, World};

/// Payloads that are kept after they were read, at most.
const KEPT: usize = 8;

/// A trace that is being read from both ends, and what it must show.
#[derive(Debug)]
pub(super) struct Reading {
    trace: Trace,
    records: Vec<Rec>,
    front: usize,
    back: usize,
    since: i64,
}

/// A run that was deleted.
struct Deletion {
    at: i64,
    /// The event that created it, and the one that deleted it.
    number: usize,
    place: usize,
    run: usize,
    rule: Rule,
}

impl Model {
    /// The runs that were deleted, the latest first.
    fn deletions(&self) -> Vec<Deletion> {
        let mut deletions = Vec::new();
        for (run, known) in self.runs.iter().enumerate() {
            let mut number = None;
            for &place in &known.events {
                let event = &self.events[place];
                match event.change {
                    Change::Delete { rule } => {
                        let number = number.take().expect("it was there");
                        deletions.push(Deletion { at: event.at, number, place, run, rule });
                    }
                    _ => drop(number.get_or_insert(place)),
                }
            }
        }
        deletions.sort_by_key(|deletion| core::cmp::Reverse((deletion.at, deletion.number)));
        deletions
    }
}

impl World {
    /// Asks one question.
    pub(super) fn ask(&mut self) {
        let asked = match self.random.below(12) {
            0..=2 => self.look_up(),
            3..=4 => self.read_range(),
            5..=7 => self.read_on(),
            8..=9 => self.list(),
            10 => self.check_receipts(),
            _ => {
                let policy = self.some_policy();
                self.plan(&policy).map(drop)
            }
        };
        self.succeeded(asked);
    }

    /// The runs that are there.
    pub(crate) fn there(&self) -> Vec<(usize, State)> {
        let runs = (0..self.now.len()).filter(|run| !self.now[*run].deleted);
        runs.map(|run| (run, self.model.state(run))).collect()
    }

    fn pick_there(&mut self) -> Option<usize> {
        let there = (0..self.now.len()).filter(|run| !self.now[*run].deleted);
        self.pick(&there.collect::<Vec<_>>())
    }

    /// One run, which may be deleted, and the agents that have a run with its id.
    fn look_up(&mut self) -> Result<()> {
        if self.now.is_empty() {
            return Ok(());
        }
        let run = self.random.index(self.now.len());
        let (agent, name) = self.name(run);
        let there = self.there();
        let same = there.iter().map(|(run, _)| &self.model.runs[*run]);
        let mut agents: Vec<&str> =
            same.filter(|run| run.run == name).map(|run| run.agent.as_str()).collect();
        agents.sort_unstable();
        match (self.log().agent_of(&name), agents.as_slice()) {
            (Ok(agent), [only]) => assert_eq!(agent, *only),
            (Err(Error::RunNotFound { .. }), []) => {}
            (Err(Error::Ambiguous { agents: found, .. }), [_, _, ..]) => assert_eq!(found, agents),
            (Err(error @ Error::Io { .. }), _) => return Err(error),
            (found, agents) => panic!("{found:?}, {agents:?}"),
        }
        match self.log().run((agent.as_str(), name.as_str())) {
            Err(Error::RunNotFound { .. }) => assert!(self.now[run].deleted, "{agent}/{name}"),
            found => {
                let (found, state) = (found?, self.model.state(run));
                assert!(state.is(&found), "{found:?}, and not {state:?}");
            }
        }
        Ok(())
    }

    /// Some runs, page by page.
    fn list(&mut self) -> Result<()> {
        let statuses = [RunStatus::InProgress, RunStatus::Completed, RunStatus::Interrupted];
        let agent = self.random.coin().then(|| AGENTS[self.random.index(AGENTS.len())]);
        let status = self.random.coin().then(|| statuses[self.random.index(statuses.len())]);
        let held = (self.random.below(4) == 0).then(|| self.random.coin());
        let mut query = RunQuery::new().limit([1, 3, 20, 64][self.random.index(4)]);
        query = agent.map_or(query.clone(), |agent| query.agent(agent));
        query = status.map_or(query.clone(), |status| query.status(status));
        query = held.map_or(query.clone(), |held| query.held(held));
        let mut expected = self.there();
        expected.retain(|(run, state)| {
            agent.is_none_or(|agent| agent == self.model.runs[*run].agent)
                && status.is_none_or(|status| status == state.status)
                && held.is_none_or(|held| held == state.hold.is_some())
        });
        expected.sort_by_key(|(_, state)| (state.created_at, state.number));
        match self.random.coin() {
            true => query = query.oldest_first(),
            false => expected.reverse(),
        }
        let mut found: Vec<RunSummary> = Vec::new();
        loop {
            let page = self.log().list_runs(&query)?;
            found.extend(page.runs);
            let Some(next) = page.next else { break };
            query = query.after(next);
        }
        assert_eq!(found.len(), expected.len(), "{query:?}");
        for (found, (run, state)) in found.iter().zip(&expected) {
            let name = (found.agent.to_string(), found.run.to_string());
            assert!(name == self.name(*run) && state.is(found), "{found:?} and not {state:?}");
        }
        let agents: BTreeSet<String> =
            self.there().iter().map(|(run, _)| self.name(*run).0).collect();
        let (mut listed, limit) = (Vec::new(), 1 + self.random.index(AGENTS.len() + 1));
        loop {
            let page = self.log().agents(listed.last(), limit)?;
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert!(listed.iter().map(AgentId::as_str).eq(agents.iter().map(String::as_str)));
        Ok(())
    }

    /// Any compaction may drop receipts that the options do not keep.
    pub(super) fn note_spare_receipts(&mut self) {
        let most = self.machine.receipts as usize;
        let deletions = self.model.deletions();
        let begun = deletions.iter().map(|deletion| (deletion.at, self.name(deletion.run)));
        self.begun_deletions.extend(begun.collect::<Vec<_>>());
        let spare = deletions.into_iter().skip(most);
        self.spare_receipts.extend(spare.map(|deletion| deletion.place));
    }

    /// Receipts belong to deleted runs, the latest first; none is missing that must be kept.
    fn check_receipts(&mut self) -> Result<()> {
        let most = self.machine.receipts;
        self.note_spare_receipts();
        let listed = self.log().receipts(1000)?;
        // A compaction that cannot read a receipt keeps more.
        assert!(listed.len() as u64 <= most || !self.is_calm);
        let deletions = self.model.deletions();
        let known = deletions.iter().map(|deletion| (deletion.at, self.name(deletion.run)));
        let known: BTreeSet<_> = known.collect();
        let mut deletions = deletions.into_iter();
        for receipt in &listed {
            // The model has no run of which a crash may have taken the start or kept the deletion.
            let name = (receipt.agent.to_string(), receipt.run.to_string());
            let own = (receipt.deleted_at.0, name);
            if !known.contains(&own) && self.begun_deletions.contains(&own) {
                continue;
            }
            let found = deletions.find(|deletion| {
                let name = (receipt.agent.to_string(), receipt.run.to_string());
                let same = (deletion.at, deletion.rule) == (receipt.deleted_at.0, receipt.rule)
                    && name == self.name(deletion.run);
                let is_spare = self.spare_receipts.contains(&deletion.place);
                assert!(same || is_spare, "a receipt is missing at {receipt:?}");
                same
            });
            assert!(found.is_some(), "{receipt:?} is of no run, or has no place here");
        }
        if (listed.len() as u64) < most {
            let missing = deletions.find(|deletion| !self.spare_receipts.contains(&deletion.place));
            assert!(missing.is_none(), "a receipt is missing at the end");
        }
        Ok(())
    }

    /// What a policy deletes now, after checking that the plan of the store is that of the planner
    /// for the runs that are there.
    pub(super) fn plan(&mut self, policy: &Retention) -> Result<(GcPlan, Vec<(usize, Rule)>)> {
        // Every run is larger than a byte, so this plan has the bytes of each.
        let all = self.log().gc_plan(&Retention::new().max_bytes(1))?;
        let going = all.evict.iter().map(|run| (run.agent, run.run, run.bytes));
        let staying = all.protected.iter().cloned().map(|run| (run.agent, run.run, run.bytes));
        let bytes: BTreeMap<(String, String), u64> = going
            .chain(staying)
            .map(|(agent, run, bytes)| ((agent.to_string(), run.to_string()), bytes))
            .collect();
        let there = self.there();
        assert_eq!(bytes.len(), there.len(), "a plan knows all runs");
        let mut inventory = Inventory::new();
        for (run, state) in &there {
            let name = self.name(*run);
            let mut candidate = Candidate::new(RunNo(state.number as u64), state.status);
            candidate.created_at = Timestamp(state.created_at);
            candidate.ended_at = Timestamp(state.ended_at.unwrap_or(state.last_at));
            candidate.held = state.hold.is_some();
            candidate.bytes = bytes[&name];
            assert!(candidate.bytes > 0, "{name:?}");
            inventory.push(&AgentId::new(&name.0).expect("it is one"), candidate);
        }
        let now = Timestamp(runlog::env::Clock::now(&self.machine.clock).0);
        let expected = retention::plan(policy, now, &inventory)?;
        let plan = self.log().gc_plan(policy)?;
        let name = |place: usize| self.name(there[place].0);
        let going = expected.going.iter().map(|run| (name(run.place), run.rule, run.bytes));
        let evict = plan
            .evict
            .iter()
            .map(|run| ((run.agent.to_string(), run.run.to_string()), run.rule, run.bytes));
        assert_eq!(evict.collect::<Vec<_>>(), going.collect::<Vec<_>>(), "{policy:?}");
        let staying = expected.protected.iter();
        let staying = staying.map(|run| (name(run.place), run.rule, run.protection));
        let protected = plan
            .protected
            .iter()
            .map(|run| ((run.agent.to_string(), run.run.to_string()), run.rule, run.protection));
        assert_eq!(protected.collect::<Vec<_>>(), staying.collect::<Vec<_>>(), "{policy:?}");
        assert_eq!(plan.totals, expected.totals, "{policy:?}");
        let going = expected.going.iter().map(|run| (there[run.place].0, run.rule));
        Ok((plan, going.collect()))
    }

    /// Some limits, for all runs or some of them.
    pub(super) fn some_policy(&mut self) -> Retention {
        let random = &mut self.random;
        let mut policy = Retention::new().protect_newest(random.coin());
        for _ in 0..1 + random.index(3) {
            let (count, bytes) = (1 + random.below(6), 1000 + random.below(200_000));
            let most = 1 << (20 + random.below(23));
            let age = Duration::from_nanos(1 + random.below(most));
            let limits = match random.below(3) {
                0 => Limits::new().keep_newest(count),
                1 => Limits::new().max_age(age),
                _ => Limits::new().max_bytes(bytes),
            };
            let agent = AgentId::new(AGENTS[random.index(AGENTS.len())]).expect("it is one");
            policy = match random.below(6) {
                0 => policy.for_agent(agent, limits),
                1 => policy.for_status(RunStatus::Failed, limits),
                2 => policy.for_agent_status(agent, RunStatus::Completed, limits),
                3 => policy.keep_newest(count),
                4 => policy.max_age(age),
                _ => policy.max_bytes(bytes),
            };
        }
        policy
    }

    /// Begins to read some run, which keeps the segments of its neighbours too.
    pub(super) fn begin_reading(&mut self) {
        let Some(run) = self.pick_there() else { return };
        let reading = self.reading_of(run);
        self.reading = self.succeeded(reading);
    }

    fn reading_of(&self, run: usize) -> Result<Reading> {
        let (agent, name) = self.name(run);
        let state = self.model.state(run);
        let records = self.model.runs[run].records[state.first..].to_vec();
        let trace = self.log().trace((agent.as_str(), name.as_str()))?;
        let since = runlog::env::Clock::now(&self.machine.clock).0;
        Ok(Reading { trace, back: records.len(), records, front: 0, since })
    }

    /// Reads a range of a run from both ends.
    fn read_range(&mut self) -> Result<()> {
        let Some(run) = self.pick_there() else { return Ok(()) };
        let mut reading = self.reading_of(run)?;
        let count = reading.records.len();
        let low = self.random.index(count + 1);
        let high = low + self.random.index(count + 2 - low);
        reading.trace = reading.trace.range(Seq(low as u64)..Seq(high as u64))?;
        (reading.front, reading.back) = (low, high.min(count).max(low));
        while reading.front < reading.back {
            reading.step(&mut self.random, &mut self.payloads)?;
        }
        assert!(reading.trace.next().is_none());
        let kept = self.payloads.len();
        check_payloads(self.payloads.drain(..kept.saturating_sub(KEPT)));
        Ok(())
    }

    /// Goes on with what is being read: whatever was moved and deleted meanwhile, it is all there,
    /// unless it was read for too long.
    fn read_on(&mut self) -> Result<()> {
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        for _ in 0..1 + self.random.index(6) {
            if reading.front == reading.back {
                assert!(reading.trace.next().is_none() && reading.trace.next_back().is_none());
                return Ok(());
            }
            match reading.step(&mut self.random, &mut self.payloads) {
                Err(Error::Evicted { .. }) => {
                    let age = runlog::env::Clock::now(&self.machine.clock).0 - reading.since;
                    let most = self.machine.pin_age.map(|age| age.as_nanos() as i64);
                    assert!(most.is_some_and(|most| age > most), "let go after {age} ns");
                    assert!(reading.trace.next().is_none());
                    return Ok(());
                }
                read => read?,
            }
        }
        self.reading = Some(reading);
        Ok(())
    }

    /// Ends all reading, so that nothing is kept for it.
    pub(super) fn stop_reading(&mut self) {
        self.reading = None;
        check_payloads(self.payloads.drain(..));
    }

    /// As soon as something is deleted, the store gives back what is dead and what no trace holds,
    /// except where moving the rest would write more than three times what it gains. A pass ends by
    /// shortening the file: its copies may be smaller, which only the next pass gives back.
    pub(super) fn dead_space_is_bounded(&mut self) {
        self.stop_reading();
        let there = self.there().len();
        self.delete_run();
        let is_due = self.is_calm && self.machine.automatic && self.machine.background.is_none();
        if !is_due || self.there().len() == there {
            return;
        }
        self.append_small();
        let stats = self.log().stats().expect("the disk is fine");
        let most = stats.live_bytes / 3 + 3 * EXTENT;
        assert!(stats.dead_bytes <= most, "{stats:?}");
    }
}

fn check_payloads(payloads: impl Iterator<Item = (Payload, Arc<[u8]>)>) {
    for (payload, expected) in payloads {
        assert!(*payload == *expected, "a payload changed after it was handed out");
    }
}

impl Reading {
    /// Reads one more record from one end.
    fn step(
        &mut self,
        random: &mut SplitMix64,
        payloads: &mut Vec<(Payload, Arc<[u8]>)>,
    ) -> Result<()> {
        let backwards = random.below(3) == 0;
        let seq = if backwards { self.back - 1 } else { self.front };
        let expected = &self.records[seq];
        if !backwards && random.coin() {
            let record = self.trace.next_view().expect("a record is left")?;
            assert!(expected.is(&record, seq), "{record:?}");
        } else {
            let next = if backwards { self.trace.next_back() } else { self.trace.next() };
            let record = next.expect("a record is left")?;
            assert!(expected.is(&record, seq), "{record:?}");
            if random.below(16) == 0 {
                payloads.push((record.into_payload(), Arc::clone(&expected.payload)));
            }
        }
        match backwards {
            true => self.back -= 1,
            false => self.front += 1,
        }
        Ok(())
    }
}
