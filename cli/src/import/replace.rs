//! Replacing a run by what its file is now.
//!
//! The old run is deleted only once the new one is whole in the store. So nothing is lost if the
//! store is full or the process dies, also where the file is gone by then. A run cannot get the ids
//! of another, so the new one is written twice: first as a stand-in, a run of the agent
//! [`STAND_IN`].
//!
//! 1. The stand-in is written and synced. Then it is held, which says that it is whole.
//! 2. The old run is deleted.
//! 3. The stand-in is copied to the ids of the old run, and synced.
//! 4. The stand-in is released and deleted.
//!
//! Each import begins with the stand-ins that it finds:
//!
//! | the stand-in | the run that has the ids | then |
//! |---|---|---|
//! | is not held | | 4: it is not whole, or no longer needed |
//! | is held | is the old one, or the whole copy | 4 |
//! | is held | is a part of the copy | the part is deleted; 3 and 4 |
//! | is held | is not there | 3 and 4 |
//! | is held | is not there, and was erased | the stand-in is erased |
//! | is held | is another one, or is held | both stay, which is an error |

use std::path::PathBuf;

use runlog::{Allow, Rule, RunQuery, RunSummary, Timestamp};
use serde::{Deserialize, Serialize};

use crate::formats::origin::Origin;

use super::feed::{Feed, Item};
use super::file::{Importer, outcome};
use super::refusal::{FileError, Refusal};

/// The agent of stand-ins.
pub(crate) const STAND_IN: &str = "runlog-import";

/// Why a stand-in is held.
const REASON: &str = "it replaces a run: the next import puts it in the place of that run";

/// The metadata of a stand-in.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StandIn {
    /// Agent, run and number of the run that is to be replaced.
    pub(crate) stands_for: (String, String, u64),
    /// As in the metadata of the run that it becomes.
    #[serde(flatten)]
    pub(crate) origin: Origin,
}

impl Importer<'_> {
    /// Imports a file in the place of its run. If that fails, the old run stays.
    pub(crate) fn replace(
        &self,
        old: &RunSummary,
        origin: &Origin,
        at: Timestamp,
        fill: impl FnOnce((&str, &str)) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let ids = (old.agent.as_str(), old.run.as_str());
        if old.held {
            return Err(FileError::of_run(
                ids,
                "is held; release it to import the file in its place",
            ));
        }
        if self.args.dry_run {
            return fill(ids);
        }
        let stands_for = (ids.0.to_owned(), ids.1.to_owned(), old.number().0);
        let said = StandIn { stands_for, origin: origin.clone() };
        let stand_in = self.stand_in(&said, at, fill)?;
        self.remove(old)?;
        self.finish(&stand_in, &said)
    }

    /// Writes a stand-in, whole or not at all.
    pub(crate) fn stand_in(
        &self,
        said: &StandIn,
        at: Timestamp,
        fill: impl FnOnce((&str, &str)) -> Result<(), FileError>,
    ) -> Result<RunSummary, FileError> {
        // A file may be imported as a run of this agent too.
        let run = format!("{}~{}", said.stands_for.2, self.log.now().0);
        let ids = (STAND_IN, run.as_str());
        let metadata = serde_json::to_string(said).unwrap_or_default();
        self.start(ids, &metadata, at, fill)?;
        self.log.sync()?;
        self.log.hold(ids, REASON)?;
        Ok(self.log.run(ids)?)
    }

    /// Copies a stand-in to its place, and deletes it.
    fn finish(&self, stand_in: &RunSummary, said: &StandIn) -> Result<(), FileError> {
        let (metadata, at) = (said.origin.to_json(), stand_in.started_at);
        self.start(said.ids(), &metadata, at, |ids| self.copy(stand_in, ids))?;
        self.log.sync()?;
        self.remove(stand_in)
    }

    /// Puts all stand-ins of earlier imports in their places. Returns the files of those that
    /// stay, and why.
    pub(crate) fn settle_all(&self) -> runlog::Result<Vec<(PathBuf, Refusal)>> {
        let mut left = Vec::new();
        let query = RunQuery::new().agent(STAND_IN);
        for run in self.log.runs(&query).collect::<Result<Vec<_>, _>>()? {
            let metadata = self.log.metadata(&run)?;
            let said = metadata.and_then(|said| serde_json::from_slice(said.payload()).ok());
            let Some(said): Option<StandIn> = said else { continue };
            match self.settle(&run, &said) {
                Ok(()) => {}
                Err(FileError::File(refusal)) => {
                    let file = said.origin.path.unwrap_or(said.origin.imported_from);
                    left.push((file.into(), refusal));
                }
                Err(FileError::Store(error)) => return Err(error),
            }
        }
        Ok(left)
    }

    /// Puts a stand-in in its place, if it is needed.
    fn settle(&self, stand_in: &RunSummary, said: &StandIn) -> Result<(), FileError> {
        let there = match self.log.run(said.ids()) {
            Ok(there) => Some(there),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let is_old = |run: &RunSummary| run.number().0 == said.stands_for.2;
        if !stand_in.held || there.as_ref().is_some_and(is_old) {
            return self.remove(stand_in);
        }
        let Some(there) = there else {
            if !self.was_erased(said)? {
                return self.finish(stand_in, said);
            }
            self.prepare(stand_in)?;
            let _ = self.log.erase_run(stand_in)?;
            return Ok(());
        };
        let is_copy =
            Origin::of(self.log.metadata(&there)?.as_ref()).as_ref() == Some(&said.origin);
        if there.held || !is_copy {
            let why = format!(
                "is held or another one; the run {}/{}, which is held, was to take its place",
                stand_in.agent, stand_in.run
            );
            return Err(FileError::of_run(said.ids(), &why));
        }
        let is_whole = there.records >= stand_in.records;
        if is_whole && (there.status.is_ended() || !stand_in.status.is_ended()) {
            return self.remove(stand_in);
        }
        self.remove(&there)?;
        self.finish(stand_in, said)
    }

    /// Whether the run that a stand-in stands for was erased last.
    fn was_erased(&self, said: &StandIn) -> Result<bool, FileError> {
        let receipts = self.log.receipts(usize::MAX)?;
        let mut of_old = receipts
            .iter()
            .filter(|receipt| (receipt.agent.as_str(), receipt.run.as_str()) == said.ids());
        Ok(of_old.next().is_some_and(|receipt| receipt.rule == Rule::Erased))
    }

    /// Copies all records of a run into one that was just started, and its end.
    pub(crate) fn copy(&self, from: &RunSummary, to: (&str, &str)) -> Result<(), FileError> {
        let mut feed = Feed::new(self, to, Allow::nothing(), from.started_at);
        for record in self.log.trace(from)? {
            let record = record?;
            let (kind, at) = (record.kind().map(str::to_owned), Some(record.timestamp()));
            let payload = record.payload().to_vec().into();
            feed.take(Item { payload, kind, content: record.content_type(), at })?;
        }
        feed.flush()?;
        let end = self.log.outcome(from)?.map(|end| outcome(end.status(), end.at()));
        end.map_or(Ok(()), |end| self.end_run(to, &end))
    }
}

impl StandIn {
    fn ids(&self) -> (&str, &str) {
        (&self.stands_for.0, &self.stands_for.1)
    }
}
