//! A file that is imported anew, in the place of its run.
//!
//! The old run is deleted only once the new one is whole in the store. So nothing is lost if the
//! file cannot be read to its end a second time, if the store is full, or if the process dies, also
//! where the file is gone by then. A run cannot get the ids of another, so the new one is written
//! twice: first as a stand-in, a run of the agent [`STAND_IN`].
//!
//! 1. The stand-in is written and synced, and it has all records of the old run unless the user
//!    wants them replaced. Then it is held: that says that it is whole, and no limit evicts it.
//! 2. The reason of the hold is changed to [`GOES`], and the old run is deleted. So a run that is
//!    not there before it says so was deleted by a user or a limit, and does not come back.
//! 3. The stand-in is copied to the ids of the old run, and synced.
//! 4. The stand-in is released and deleted.
//!
//! `settle` does 2 to 4. Each import begins with the stand-ins that it finds:
//!
//! | the stand-in | the run that has the ids | then |
//! |---|---|---|
//! | is not held | | it is not whole, or no longer needed: it goes |
//! | is held | is the old one, as it was | 2, 3 and 4 |
//! | is held | is not there, and was deleted in step 2 | 3 and 4 |
//! | is held | is not there, and was deleted otherwise | it is erased, and that is told |
//! | is held | is a part of its copy | the part goes; 3 and 4 |
//! | is held | begins with it | 4 |
//! | is held | is another one, has changed, or is held | both stay, and that is told |

use std::path::PathBuf;

use runlog::{HeldRun, Outcome, Receipt, Rule, RunQuery, RunRef, RunStatus, RunSummary, Timestamp};
use runlog_stores::json_lines::UNTERMINATED;
use serde::{Deserialize, Serialize};

use crate::formats::envelope::{self, ENVELOPE};
use crate::formats::origin::Origin;

use super::batch::Target;
use super::file::{Importer, outcome};
use super::pieces::{Feed, Item};
use super::refusal::{FileError, Problem, Refusal};

/// The agent of stand-ins.
pub(crate) const STAND_IN: &str = "runlog-import";

/// Why a stand-in is held that is whole.
const WAITS: &str = "a run that is imported anew and whole: the next import puts it in its place";

/// Why it is held once the import deletes the old run.
pub(crate) const GOES: &str =
    "a run that is imported anew, whose old run the import deletes: the next import copies it";

/// What the metadata of a stand-in say.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StandIn {
    stands_for: Old,
    /// As in the metadata of the run that it becomes.
    #[serde(flatten)]
    origin: Origin,
}

/// A run that is to be replaced, as it was when its stand-in was begun.
#[derive(Debug, Serialize, Deserialize)]
struct Old {
    agent: String,
    run: String,
    number: u64,
    records: u64,
    #[serde(default)]
    status: String,
}

/// A run that is imported anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replacement<'s> {
    pub(crate) old: &'s RunSummary,
    /// Whether it may go although the new one does not have all of its records.
    pub(crate) may_lose: bool,
}

impl StandIn {
    /// Of a run that is to be replaced, and what is to be said of the one in its place.
    pub(crate) fn new(old: &RunSummary, origin: &Origin) -> Self {
        let stands_for = Old {
            agent: old.agent.as_str().to_owned(),
            run: old.run.as_str().to_owned(),
            number: old.number().0,
            records: old.records,
            status: old.status.to_string(),
        };
        Self { stands_for, origin: origin.clone() }
    }
}

impl Importer<'_> {
    /// Imports a file in the place of its run. If that fails, the old run stays.
    pub(crate) fn replace(
        &self,
        replacement: Replacement<'_>,
        origin: &Origin,
        at: Timestamp,
        fill: impl FnOnce(Target<'_>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let old = replacement.old;
        if old.held {
            return Err(Problem::Held.of((old.agent.as_str(), old.run.as_str())));
        }
        if self.args.dry_run {
            return fill(Target::Nowhere);
        }
        let said = StandIn::new(old, origin);
        let stand_in = self.stand_in(replacement, &said, at, fill)?;
        self.settle(&stand_in, &said)
    }

    /// Writes a stand-in, whole or not at all.
    pub(crate) fn stand_in(
        &self,
        replacement: Replacement<'_>,
        said: &StandIn,
        at: Timestamp,
        fill: impl FnOnce(Target<'_>) -> Result<(), FileError>,
    ) -> Result<RunSummary, FileError> {
        let old = replacement.old;
        let metadata = serde_json::to_string(said);
        let run = self.free_id(old)?;
        let ids = (STAND_IN, run.as_str());
        self.start(ids, &metadata.unwrap_or_default(), at, |to| {
            fill(to)?;
            let is_whole = replacement.may_lose || self.begins(ids.into(), old.into())?;
            if is_whole { Ok(()) } else { Err(changed().into()) }
        })?;
        self.log.sync()?;
        self.log.hold(ids, WAITS)?;
        Ok(self.log.run(ids)?)
    }

    /// A run id for a stand-in. A file may be imported under the same ids.
    fn free_id(&self, old: &RunSummary) -> Result<String, FileError> {
        let mut run = old.number().to_string();
        for number in 2_u64.. {
            match self.log.run((STAND_IN, run.as_str())) {
                Err(error) if error.is_not_found() => break,
                found => drop(found?),
            }
            run = format!("{}~{number}", old.number());
        }
        Ok(run)
    }

    /// Puts all stand-ins of earlier imports in their places. Answers which ones stay: the file of
    /// each, and why.
    pub(crate) fn settle_all(&self) -> runlog::Result<Vec<(PathBuf, Refusal)>> {
        let mut left = Vec::new();
        let query = RunQuery::new().agent(STAND_IN);
        for run in self.log.runs(&query).collect::<Result<Vec<_>, _>>()? {
            let mut file = format!("{}/{}", run.agent, run.run);
            let settled = self.said(&run).and_then(|said| {
                let Some(said) = said else { return Ok(()) };
                file.clone_from(said.origin.path.as_ref().unwrap_or(&said.origin.imported_from));
                self.settle(&run, &said)
            });
            match settled {
                Ok(()) => {}
                Err(FileError::File(refusal)) => left.push((file.into(), refusal)),
                Err(FileError::Store(error)) => return Err(error),
            }
        }
        Ok(left)
    }

    /// What a stand-in says; `None` of another run.
    fn said(&self, run: &RunSummary) -> Result<Option<StandIn>, FileError> {
        let metadata = self.log.metadata(run)?;
        Ok(metadata.and_then(|said| serde_json::from_slice(said.payload()).ok()))
    }

    /// Puts a stand-in in its place.
    fn settle(&self, stand_in: &RunSummary, said: &StandIn) -> Result<(), FileError> {
        if !stand_in.held {
            return self.remove(stand_in);
        }
        let old = &said.stands_for;
        let ids = (old.agent.as_str(), old.run.as_str());
        let there = match self.log.run(ids) {
            Ok(there) => Some(there),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        match &there {
            Some(there) if self.is_copy(stand_in, said, there)? => {
                if there.records == stand_in.records && !there.status.is_ended() {
                    let end = self.end_of_run(stand_in)?;
                    end.map_or(Ok(()), |end| self.end_run(ids, &end))?;
                }
            }
            Some(there) if there.held || !self.may_go(stand_in, said, there)? => {
                let stand_in = format!("{}/{}", stand_in.agent, stand_in.run);
                return Err(Problem::Stays(stand_in).of(ids));
            }
            None if !self.has_deleted(stand_in, old)? => {
                self.log.release(stand_in)?;
                self.end_if_not(stand_in)?;
                let _ = self.log.erase_run(stand_in)?;
                return Err(Problem::Deleted.of(ids));
            }
            there => {
                if let Some(there) = there {
                    self.log.hold(stand_in, GOES)?;
                    self.remove(there)?;
                }
                let (metadata, at) = (said.origin.to_json(), stand_in.started_at);
                self.start(ids, &metadata, at, |to| self.copy(stand_in, to))?;
            }
        }
        self.log.sync()?;
        self.log.release(stand_in)?;
        self.remove(stand_in)
    }

    /// Whether the import has deleted the old run, and not a user or a limit.
    fn has_deleted(&self, stand_in: &RunSummary, old: &Old) -> Result<bool, FileError> {
        let held = self.log.held_runs()?;
        let waits = |held: &HeldRun| held.number() == stand_in.number() && held.reason == WAITS;
        if held.iter().any(waits) {
            return Ok(false);
        }
        let is_of_old = |receipt: &Receipt| {
            (receipt.agent.as_str(), receipt.run.as_str()) == (&*old.agent, &*old.run)
        };
        let receipts = self.log.receipts(usize::MAX)?;
        Ok(receipts
            .iter()
            .find(|receipt| is_of_old(receipt))
            .is_none_or(|receipt| receipt.rule == Rule::Deleted))
    }

    /// Whether a run with the ids that a stand-in stands for was begun as its copy.
    fn is_begun(&self, said: &StandIn, there: &RunSummary) -> Result<bool, FileError> {
        let origin = Origin::of(self.log.metadata(there)?.as_ref());
        Ok(there.number().0 != said.stands_for.number && origin.as_ref() == Some(&said.origin))
    }

    /// Whether such a run has all that the stand-in has.
    fn is_copy(
        &self,
        stand_in: &RunSummary,
        said: &StandIn,
        there: &RunSummary,
    ) -> Result<bool, FileError> {
        Ok(self.is_begun(said, there)? && self.begins(there.into(), stand_in.into())?)
    }

    /// Whether such a run may be deleted: it is the old one, as it was or as the import ends it, or
    /// a part of the copy.
    fn may_go(
        &self,
        stand_in: &RunSummary,
        said: &StandIn,
        there: &RunSummary,
    ) -> Result<bool, FileError> {
        let old = &said.stands_for;
        if there.number().0 == old.number {
            let is_end = there.status == RunStatus::Interrupted;
            let is_same = is_end || there.status.to_string() == old.status;
            return Ok(there.records == old.records && is_same);
        }
        Ok(self.is_begun(said, there)? && self.begins(stand_in.into(), there.into())?)
    }

    /// How a run has ended, if it has.
    fn end_of_run(&self, run: &RunSummary) -> Result<Option<Outcome>, FileError> {
        Ok(self.log.outcome(run)?.map(|end| outcome(end.status(), end.at())))
    }

    /// Copies all records of a run into one that was just started, and its end.
    pub(crate) fn copy(&self, from: &RunSummary, to: Target<'_>) -> Result<(), FileError> {
        let mut feed = Feed::new(to, from.started_at, &|_| {});
        for record in self.log.trace(from)? {
            let record = record?;
            let kind = record.kind().map(str::to_owned);
            let (content, at) = (record.content_type(), Some(record.timestamp()));
            feed.take(record.payload(), Item { kind, content, at })?;
        }
        feed.flush()?;
        self.end_of_run(from)?.map_or(Ok(()), |end| Ok(to.end(&end)?))
    }

    /// Whether all records of a run are the first ones of another. The last one may go on in it, if
    /// it is a line without an end.
    fn begins(&self, whole: RunRef<'_>, beginning: RunRef<'_>) -> Result<bool, FileError> {
        let (mut whole, mut beginning) = (self.log.trace(whole)?, self.log.trace(beginning)?);
        while let Some(record) = beginning.next() {
            let record = record?;
            let Some(same) = whole.next() else {
                return Ok(false);
            };
            let same = same?;
            let is_envelope = same.kind() == Some(ENVELOPE);
            let is_same = record.payload() == same.payload()
                || is_envelope && envelope::is_of(record.payload(), same.payload());
            if !is_same {
                let has_end = record.kind() != Some(UNTERMINATED);
                let goes_on = same.payload().starts_with(record.payload());
                return Ok(!has_end && goes_on && beginning.next().is_none());
            }
        }
        Ok(true)
    }
}

fn changed() -> std::io::Error {
    std::io::Error::other("the file changed while it was read")
}
