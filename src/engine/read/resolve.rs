//! Looking runs up and listing them, without a scan of the log or of the whole index.
//!
//! The catalog answers for everything up to its position, memory for what changed since. A row that
//! both know comes from memory, which has the later part of the story.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::engine::state::active_runs::HotRun;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::Core;
use crate::engine::state::payload::Payload;
use crate::engine::state::segment::Segment;
use crate::engine::values::RunSummary;
use crate::engine::values::pages::RunPage;
use crate::engine::write::Engine;
use crate::error::{Error, Place, Result};
use crate::format::FrameHeader;
use crate::format::frame::decode_ids;
use crate::index::{self, IndexError, RunFilter, RunRow};
use crate::types::{AgentId, LogPosition, RunId, RunNo, RunRef, SegmentId, Timestamp};

/// Rows fetched from the catalog at once.
const PAGE: usize = 64;

/// The longest list of the newest runs of an agent that is kept: a page of 20, and more. Those of
/// one run are asked for when agents are listed, once for each, so they are not worth keeping.
const NEWEST: usize = 32;

impl Engine {
    /// The core of a store that is open.
    pub(crate) fn open_core(&self) -> Result<MutexGuard<'_, Core>> {
        let core = self.core.lock();
        self.check_open(&core)?;
        Ok(core)
    }

    /// The numbers of all living runs with this id.
    fn numbers(&self, core: &Core, run: &str) -> Result<Vec<RunNo>> {
        let (hot, complete) = core.hot.by_id(run);
        if complete {
            return Ok(hot.to_vec());
        }
        let mut numbers = self.find(&core.catalog, run, false)?.numbers.clone();
        numbers.extend_from_slice(hot);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !core.deleted.contains(number));
        Ok(numbers)
    }

    /// The one run that is meant.
    pub(crate) fn resolve(&self, core: &Core, run: RunRef<'_>) -> Result<RunNo> {
        RunId::check(run.run())?;
        let agent = run.agent().map(AgentId::new).transpose()?;
        let numbers = self.numbers(core, run.run())?;
        if let Some(number) = run.number() {
            let is_there = numbers.contains(&number)
                && match &agent {
                    Some(agent) => *agent == self.agent_of_number(core, number, run.run())?,
                    None => true,
                };
            let id = RunId::new(run.run())?;
            return is_there.then_some(number).ok_or(Error::RunNotFound { run: id, agent });
        }
        if agent.is_none()
            && let [only] = numbers.as_slice()
        {
            return Ok(*only);
        }
        let mut agents = Vec::with_capacity(numbers.len());
        for number in numbers {
            let found = self.agent_of_number(core, number, run.run())?;
            if agent.as_ref() == Some(&found) {
                return Ok(number);
            }
            agents.push(found);
        }
        let id = RunId::new(run.run())?;
        if agent.is_some() || agents.is_empty() {
            return Err(Error::RunNotFound { run: id, agent });
        }
        agents.sort_unstable();
        Err(Error::Ambiguous { run: id, agents })
    }

    pub(crate) fn agent_of_number(&self, core: &Core, run_no: RunNo, run: &str) -> Result<AgentId> {
        match core.hot.get(run_no) {
            Some(run) => Ok(run.agent.clone()),
            None => Ok(self.named_row(core, run_no, run)?.agent.clone()),
        }
    }

    /// What is known as of now of a run of which the id is known too.
    pub(crate) fn named_row(&self, core: &Core, run_no: RunNo, run: &str) -> Result<Arc<RunRow>> {
        match core.hot.get(run_no) {
            Some(_) => self.row(core, run_no).map(Arc::new),
            None => self.find(&core.catalog, run, false)?.row(&core.catalog, run_no),
        }
    }

    /// Brings all living runs with this id into memory. Others that have ended may go from it.
    pub(crate) fn load_id(&self, core: &mut Core, run: &str) -> Result<()> {
        if core.hot.by_id(run).1 {
            return Ok(());
        }
        if core.hot.is_full()
            && let Some(through) = core.catalog.through()
        {
            core.hot.settle(through, &core.tail.builder);
        }
        for number in self.numbers(core, run)? {
            if core.hot.get(number).is_none() {
                core.hot.insert(HotRun::from_row(core.catalog.row(number)?));
            }
        }
        core.hot.complete(run);
        Ok(())
    }

    /// Brings a run into memory.
    pub(crate) fn load(&self, core: &mut Core, run_no: RunNo) -> Result<()> {
        if core.hot.get(run_no).is_some() {
            return Ok(());
        }
        let row = self.row(core, run_no)?;
        self.load_id(core, row.run.as_str())
    }

    /// What is known of a run as of now.
    pub(crate) fn row(&self, core: &Core, run_no: RunNo) -> Result<RunRow> {
        if let Some(run) = core.hot.get(run_no)
            && let Some(row) = run.row(core.tail.segment.id(), &core.tail.builder)
        {
            return Ok(row);
        }
        // A number that was given out once and is not known any more was evicted.
        match core.catalog.ask(|catalog| catalog.row(run_no))? {
            Some(row) if !core.deleted.contains(&run_no) => Ok(row),
            row => Err(Error::Evicted { run: row.map(|row| row.run) }),
        }
    }

    /// What the START of a run says, if it has one: its header, and the metadata.
    pub(crate) fn start_frame(
        &self,
        core: &Core,
        run_no: RunNo,
    ) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let start = self.frame_at(core, self.row(core, run_no)?.start)?;
        let metadata = |(header, payload): (FrameHeader, Payload)| {
            let (_, _, metadata) = decode_ids(&payload)
                .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))?;
            Ok((header, metadata.to_vec()))
        };
        start.map(metadata).transpose()
    }

    /// The END frame of a run, if it has one.
    pub(crate) fn end_frame(
        &self,
        core: &Core,
        run_no: RunNo,
    ) -> Result<Option<(FrameHeader, Payload)>> {
        self.frame_at(core, self.row(core, run_no)?.end)
    }

    pub(crate) fn frame_at(
        &self,
        core: &Core,
        at: Option<LogPosition>,
    ) -> Result<Option<(FrameHeader, Payload)>> {
        let Some(at) = at else { return Ok(None) };
        let Some(segment) = segment(core, at.segment) else { return Ok(None) };
        let frame = segment.check_frame(at.offset, |_, error| error)?;
        let (header, payload) = (frame.header, segment.keep(frame));
        segment.count_mapped(u64::from(payload.is_view()));
        Ok(Some((header, payload)))
    }

    /// A page of runs, newest first, strictly older than `before`.
    pub(crate) fn page(
        &self,
        agent: Option<&str>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<RunPage> {
        let wanted = limit.saturating_add(1);
        let (moment, mut found) = {
            let core = self.open_core()?;
            let numbers = core.hot.newest(agent, before, wanted);
            (Moment::of(&core), self.summaries(&core, numbers)?)
        };
        let filter = agent.map_or(RunFilter::All, RunFilter::Agent);
        let mut runs = moment.runs(filter, before, wanted)?;
        if !found.is_empty() {
            // Of those that memory has and did not list, none is among the first.
            let in_memory: HashSet<RunNo> = found.iter().map(RunSummary::number).collect();
            runs.retain(|run| !in_memory.contains(&run.number()));
            runs.append(&mut found);
            runs.sort_unstable_by_key(|run| core::cmp::Reverse(run.key));
        }
        Ok(RunPage::new(runs, limit))
    }

    /// What lists show of runs that are in memory.
    fn summaries(&self, core: &Core, numbers: Vec<RunNo>) -> Result<Vec<RunSummary>> {
        let summary = |run_no| match core.tail.builder.run(run_no) {
            // A run that begins here has nothing in older segments.
            Some(built) if built.entry.created_at.is_some() => {
                Ok(RunSummary::from_entry(&built.entry))
            }
            _ => Ok(RunSummary::from_row(self.row(core, run_no)?)),
        };
        numbers.into_iter().map(summary).collect()
    }

    /// Summaries of runs in progress above `after`, by number.
    pub(crate) fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunSummary>> {
        let (moment, mut found, mut in_memory) = {
            let core = self.open_core()?;
            let summaries = self.summaries(&core, core.hot.in_progress(after, limit))?;
            (Moment::of(&core), summaries, core.hot.run_numbers())
        };
        in_memory.sort_unstable();
        found.extend(moment.listed(
            (after, limit),
            |index, from, wanted| index.in_progress_page(from.copied(), wanted),
            // Memory knows of those that it has whether they have ended since.
            |&number| match in_memory.binary_search(&number) {
                Ok(_) => Ok(None),
                Err(_) => moment.summary(number),
            },
        )?);
        found.sort_unstable_by_key(RunSummary::number);
        found.truncate(limit);
        Ok(found)
    }

    /// Agents above `after`, ascending.
    pub(crate) fn agents_page(
        &self,
        after: Option<&AgentId>,
        limit: usize,
    ) -> Result<Vec<AgentId>> {
        let (moment, mut found) = {
            let core = self.open_core()?;
            (Moment::of(&core), core.hot.agents(after, limit))
        };
        found.extend(moment.listed(
            (after.cloned(), limit),
            |index, from, wanted| index.agents_page(from.map(AgentId::as_str), wanted),
            // An agent whose runs were all deleted since has none left to show.
            |agent| {
                let runs = moment.runs(RunFilter::Agent(agent.as_str()), None, 1)?;
                Ok((!runs.is_empty()).then(|| agent.clone()))
            },
        )?);
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }
}

/// What lists are made of, besides runs in memory: taken in one hold of the lock together with
/// those, since all of it changes when the lock is let go.
pub(crate) struct Moment {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) deleted: Arc<HashSet<RunNo>>,
}

impl Moment {
    pub(crate) fn of(core: &Core) -> Self {
        Self { catalog: Arc::clone(&core.catalog), deleted: Arc::clone(&core.deleted) }
    }

    /// So many of what the catalog lists behind `from`: `ask` asks for so many keys behind one, and
    /// `show` says what is shown of a key, if anything is.
    pub(crate) fn listed<K: Clone, T>(
        &self,
        (mut from, limit): (Option<K>, usize),
        ask: impl Fn(&dyn index::Catalog, Option<&K>, usize) -> Result<Vec<K>, IndexError>,
        show: impl Fn(&K) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let (mut found, mut wanted) = (Vec::new(), limit.min(PAGE));
        while found.len() < limit {
            let page = self.catalog.ask(|index| ask(index, from.as_ref(), wanted))?;
            for key in &page {
                found.extend(show(key)?);
                if found.len() == limit {
                    return Ok(found);
                }
            }
            if page.len() < wanted {
                break;
            }
            // Some are not shown, and perhaps very many.
            (from, wanted) = (page.last().cloned(), PAGE);
        }
        Ok(found)
    }

    /// What lists show of a run that the catalog lists, if the run lives.
    fn summary(&self, run_no: RunNo) -> Result<Option<RunSummary>> {
        if self.deleted.contains(&run_no) {
            return Ok(None);
        }
        Ok(Some(RunSummary::from_row(self.catalog.row(run_no)?)))
    }

    /// So many living runs that the catalog lists, newest first, strictly older than `before`.
    fn runs(
        &self,
        filter: RunFilter<'_>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Vec<RunSummary>> {
        if let (RunFilter::Agent(agent), None, 2..=NEWEST) = (filter, before, limit) {
            let newest = self.catalog.newest(agent, limit)?;
            let lives = |run: &&RunSummary| !self.deleted.contains(&run.number());
            let mut living = Vec::with_capacity(limit);
            living.extend(newest.runs.iter().filter(lives).take(limit).cloned());
            if newest.all || living.len() == limit {
                return Ok(living);
            }
        }
        self.listed(
            (before, limit),
            |index, from, wanted| index.runs_page(filter, from.copied(), wanted),
            |key| self.summary(key.1),
        )
    }
}

/// The segment with this number, if it still counts.
pub(crate) fn segment(core: &Core, id: SegmentId) -> Option<Arc<Segment>> {
    if core.tail.segment.id() == id {
        return Some(Arc::clone(&core.tail.segment));
    }
    if let Some(segment) = core.catalog.segment(id) {
        return Some(Arc::clone(segment));
    }
    core.unapplied.iter().find(|segment| segment.id() == id).cloned()
}
