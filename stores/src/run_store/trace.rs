//! Reading the records of a run: all, page by page, or one after the other.

use core::fmt;
use std::io;
use std::sync::Arc;

use super::RunStore;
use super::error::{Result, RunStoreError};
use super::fold::Found;
use super::line::{LineFault, RunLine};
use super::list::RunStatus;
use super::open::Opened;
use super::records::{RunRecord, RunStarted};
use runlog::{Error, Seq, Trace};

/// A part of a run that is not a readable record, with its place and fault. [`RunStore::lines`]
/// returns the bytes of a line.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The place in the run, where it is known.
    pub seq: Option<Seq>,
    /// What is wrong.
    pub what: DamageKind,
}

/// What is wrong with a record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum DamageKind {
    /// The bytes are intact, and are not a record.
    Line(LineFault),
    /// The bytes are damaged.
    Bytes(Error),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seq {
            Some(seq) => write!(f, "record {seq}: ")?,
            None => f.write_str("a record: ")?,
        }
        match &self.what {
            DamageKind::Line(fault) => fault.fmt(f),
            DamageKind::Bytes(error) => error.fmt(f),
        }
    }
}

/// The records of a run, and the damage. Blank lines are neither.
#[derive(Debug, Clone)]
pub struct RunTrace {
    /// The agent.
    pub agent_id: String,
    /// The run.
    pub run_id: String,
    /// The records that can be read, in order.
    pub records: Vec<RunRecord>,
    /// The damage, in order.
    pub damage: Vec<Damage>,
}

/// A part of the records of a run.
#[derive(Debug, Clone)]
pub struct RunTracePage {
    /// The records that can be read, in order.
    pub records: Vec<RunRecord>,
    /// The damage, in order.
    pub damage: Vec<Damage>,
    /// Where the next page begins; `None` behind the last. It stays valid while the run grows.
    pub next: Option<Seq>,
}

/// A part of the turns of a run.
#[derive(Debug, Clone)]
pub struct RunTurnPage {
    /// Turns of models and actions, in order.
    pub turns: Vec<RunRecord>,
    /// The damage, in order.
    pub damage: Vec<Damage>,
    /// Where the next page begins; `None` behind the last. It stays valid while the run grows.
    pub next: Option<Seq>,
    /// How many turns of both kinds the run has.
    pub total: u64,
    /// The status of the run.
    pub status: RunStatus,
}

/// An iterator over the lines of a run, as of when it was created. It keeps the store open.
///
/// An error item stands for one damaged record; the following records come after it.
pub struct RunLines {
    trace: Trace,
    _opened: Arc<Opened>,
}

impl Iterator for RunLines {
    type Item = io::Result<RunLine>;

    fn next(&mut self) -> Option<io::Result<RunLine>> {
        self.next_line().map(|line| line.map_err(|error| RunStoreError::from(error).into()))
    }
}

impl RunLines {
    fn next_line(&mut self) -> Option<runlog::Result<RunLine>> {
        let record = self.trace.next_view()?;
        Some(record.map(|record| RunLine { seq: record.seq(), bytes: record.payload().to_vec() }))
    }
}

impl fmt::Debug for RunLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLines").field("run", self.trace.run()).finish_non_exhaustive()
    }
}

/// The record of a line, if it is not blank; or its fault.
fn read(line: runlog::Result<RunLine>) -> Result<Result<Option<RunRecord>, Damage>> {
    let line = match line {
        Ok(line) => line,
        Err(Error::Corrupt(corruption)) => {
            let seq = corruption.seq;
            let what = DamageKind::Bytes(Error::Corrupt(corruption));
            return Ok(Err(Damage { seq, what }));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(match line.record() {
        Ok(record) => Ok(Some(record)),
        Err(_) if line.is_blank() => Ok(None),
        Err(fault) => Err(Damage { seq: Some(line.seq), what: DamageKind::Line(fault) }),
    })
}

impl RunStore {
    /// The records of a run, of the first agent, by id, that has a run of this id. `None` if there
    /// is no such run.
    ///
    /// It leaves out lines that are not records, and returns `None` after an error;
    /// [`try_get_run_trace`](Self::try_get_run_trace) returns both.
    pub fn get_run_trace(&self, run_id: &str) -> Option<Vec<RunRecord>> {
        Some(self.try_get_run_trace(run_id).ok()??.records)
    }

    /// The records of a run of an agent; as [`RunStore::get_run_trace`].
    pub fn get_run_trace_for(&self, agent_id: &str, run_id: &str) -> Option<Vec<RunRecord>> {
        Some(self.try_get_run_trace_for(agent_id, run_id).ok()??.records)
    }

    /// The records and the damage of a run, of the first agent, by id, that has a run of this id.
    /// `None` if there is no such run.
    ///
    /// # Errors
    /// Why the run could not be read. Damage is not an error.
    pub fn try_get_run_trace(&self, run_id: &str) -> io::Result<Option<RunTrace>> {
        let Some(opened) = self.look()? else { return Ok(None) };
        match opened.find_by_run(run_id)? {
            Some(found) => Ok(Some(opened.whole_trace(&found)?)),
            None => Ok(None),
        }
    }

    /// The records and the damage of a run of an agent; as [`RunStore::try_get_run_trace`].
    ///
    /// # Errors
    /// Why the run could not be read. Damage is not an error.
    pub fn try_get_run_trace_for(
        &self,
        agent_id: &str,
        run_id: &str,
    ) -> io::Result<Option<RunTrace>> {
        let Some(opened) = self.look()? else { return Ok(None) };
        match opened.find_visible(agent_id, run_id)? {
            Some(found) => Ok(Some(opened.whole_trace(&found)?)),
            None => Ok(None),
        }
    }

    /// The lines of a run, one after the other, with memory for one.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let name = format!("runlog-doc-lines-{}", std::process::id());
    /// # let folder = std::env::temp_dir().join(name);
    /// use runlog_stores::run_store::{RetentionConfig, RunStarted, RunStore};
    /// let store = RunStore::new(folder, RetentionConfig::default());
    /// let (agent_id, run_id) = ("planner".to_owned(), "r1".to_owned());
    /// store.write_started(&RunStarted { agent_id, run_id, ..RunStarted::default() })?;
    /// for line in store.lines("planner", "r1")? {
    ///     assert!(line?.record().is_ok());
    /// }
    /// # let root = store.root().to_owned(); drop(store);
    /// # let _ = std::fs::remove_dir_all(root);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`RunStoreError::NoSuchRun`]; why the run could not be read.
    pub fn lines(&self, agent_id: &str, run_id: &str) -> io::Result<RunLines> {
        let (opened, found) = self.visible(agent_id, run_id)?;
        Ok(opened.lines_from(&found, Seq(0))?)
    }

    /// At most `limit` records of a run, from the one with the sequence `from` on. The cost does
    /// not depend on how many are in front of them.
    ///
    /// # Errors
    /// [`RunStoreError::NoSuchRun`]; why the run could not be read. Damage is not an error.
    pub fn get_run_trace_page_for(
        &self,
        agent_id: &str,
        run_id: &str,
        from: Seq,
        limit: usize,
    ) -> io::Result<RunTracePage> {
        let (opened, found) = self.visible(agent_id, run_id)?;
        let (records, damage, next) = opened.trace_page(&found, from, limit, |_| true)?;
        Ok(RunTracePage { records, damage, next })
    }

    /// At most `limit` turns, of models and actions, of a run, from the record with the sequence
    /// `from` on.
    ///
    /// # Errors
    /// [`RunStoreError::NoSuchRun`]; why the run could not be read. Damage is not an error.
    pub fn get_run_turn_page_for(
        &self,
        agent_id: &str,
        run_id: &str,
        from: Seq,
        limit: usize,
    ) -> io::Result<RunTurnPage> {
        let (opened, found) = self.visible(agent_id, run_id)?;
        let is_turn =
            |record: &RunRecord| matches!(record, RunRecord::Turn(_) | RunRecord::ModelTurn(_));
        let (turns, damage, next) = opened.trace_page(&found, from, limit, is_turn)?;
        let total = found.fold.turns + found.fold.model_turns;
        Ok(RunTurnPage { turns, damage, next, total, status: found.status() })
    }

    /// The start of a run; `None` if there is no such run, or it has no start.
    ///
    /// # Errors
    /// Why the run could not be read.
    pub fn run_started(&self, agent_id: &str, run_id: &str) -> io::Result<Option<RunStarted>> {
        let Some(opened) = self.look()? else { return Ok(None) };
        match opened.find_visible(agent_id, run_id)? {
            Some(found) => Ok(opened.started(&found)?),
            None => Ok(None),
        }
    }

    fn visible(&self, agent: &str, run: &str) -> io::Result<(Arc<Opened>, Found)> {
        if let Some(opened) = self.look()?
            && let Some(found) = opened.find_visible(agent, run)?
        {
            return Ok((opened, found));
        }
        Err(RunStoreError::NoSuchRun { run: run.to_owned() }.into())
    }
}

/// Records, damage, and the next place.
type Part = (Vec<RunRecord>, Vec<Damage>, Option<Seq>);

impl Opened {
    fn lines_from(self: &Arc<Self>, found: &Found, from: Seq) -> Result<RunLines> {
        let trace = self.log().trace(&found.run)?.range(from..)?;
        Ok(RunLines { trace, _opened: Arc::clone(self) })
    }

    fn whole_trace(self: &Arc<Self>, found: &Found) -> Result<RunTrace> {
        let (records, damage, _) = self.trace_page(found, Seq(0), usize::MAX, |_| true)?;
        let (agent, run) = found.key();
        Ok(RunTrace { agent_id: agent.to_owned(), run_id: run.to_owned(), records, damage })
    }

    fn trace_page(
        self: &Arc<Self>,
        found: &Found,
        from: Seq,
        limit: usize,
        is_wanted: impl Fn(&RunRecord) -> bool,
    ) -> Result<Part> {
        let (mut records, mut damage) = (Vec::new(), Vec::new());
        let mut lines = self.lines_from(found, from)?;
        while let Some(line) = lines.next_line() {
            let seq = line.as_ref().ok().map(|line| line.seq);
            match read(line)? {
                Ok(Some(record)) if is_wanted(&record) => {
                    // One more item shows that there is a next page, and where it begins.
                    if records.len() >= limit {
                        return Ok((records, damage, seq));
                    }
                    records.push(record);
                }
                Ok(_) => {}
                Err(found) => damage.push(found),
            }
        }
        Ok((records, damage, None))
    }
}
