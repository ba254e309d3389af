//! One file into one run, whole or not at all.
//!
//! A run that is there already is compared with the file. If they are equal, it is done. If the run
//! is the beginning of the file, the rest is appended. Anything else is a change: an error, or with
//! `--replace` the file is imported in the place of the run.
//!
//! Everything is appended at Process level; one sync at the end of the import makes all of it
//! survive a power loss.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::{
    Allow, Durability, Error, Metadata, NewRecord, Outcome, Reader, RunLog, RunMetadata, RunQuery,
    RunRef, RunStatus, RunSummary, Timestamp, Trace,
};

use crate::formats::Format;
use crate::formats::origin::Origin;
use crate::formats::probe::Known;

use super::args::ImportArgs;
use super::done::{Done, How, Mark, Notice};
use super::input::{IN_MEMORY, Input};
use super::refusal::FileError;
use super::sidecars::Kind;
use super::tree::Source;

/// Imports files into a store.
#[derive(Debug)]
pub(crate) struct Importer<'a> {
    pub(crate) log: &'a RunLog,
    /// The store that a dry run reads, if there is one: then `log` is an empty one.
    reads: Option<&'a Reader>,
    pub(crate) args: &'a ImportArgs,
    /// The longest file of lines that is held in memory.
    pub(crate) in_memory: u64,
    /// How many bytes have been read.
    bytes: AtomicU64,
}

impl<'a> Importer<'a> {
    pub(crate) fn new(log: &'a RunLog, reads: Option<&'a Reader>, args: &'a ImportArgs) -> Self {
        Self { log, reads, args, in_memory: IN_MEMORY, bytes: AtomicU64::new(0) }
    }
}

impl Importer<'_> {
    /// Imports one file, from a mark on if there is one.
    pub(crate) fn import(&self, source: &Source, mark: Option<&Mark>) -> Result<Done, FileError> {
        if let Some(parts) = &source.parts {
            if !self.is_wanted(Some(parts.format)) {
                return Ok(no_run(Kind::OtherFormats));
            }
            return self.session(source, parts);
        }
        let (file, metadata) = source.location.file()?;
        if let Some(mark) = mark
            && let Some(done) = self.resume(source, (&file, &metadata), mark)?
        {
            return Ok(done);
        }
        let input = match Input::new(&file, &source.file_name(), self.in_memory) {
            Err(FileError::File(refusal)) if refusal.may_pass && self.args.follow => {
                return Ok(waits());
            }
            input => input?,
        };
        if self.has_original(source, &input) {
            return Ok(no_run(Kind::Copies));
        }
        if !self.is_wanted(input.format()) {
            return Ok(no_run(Kind::OtherFormats));
        }
        self.progress(input.len);
        match &input.known {
            Known::Lines(format) => self.lines(source, &input, *format),
            Known::Document(format, text) => self.document(source, &input, *format, text),
            Known::Archive(bytes) => self.archive(source, &input, bytes),
            Known::Store => Ok(Done::NoRun(Notice::Skipped, "a store of runlog".to_owned())),
            Known::Unknown(_) if self.args.follow => Ok(waits()),
            Known::Unknown(why) => Ok(Done::NoRun(Notice::Unknown, why.clone())),
        }
    }

    /// Counts bytes that are read.
    pub(crate) fn progress(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes have been read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a file that was compressed or put away is all in the one beside it.
    fn has_original(&self, source: &Source, input: &Input) -> bool {
        let original = source.original.as_ref().and_then(|original| {
            let (file, _) = original.file().ok()?;
            Input::new(&file, &source.file_name(), self.in_memory).ok()
        });
        original.is_some_and(|original| {
            input.format().and(original.format()).is_some()
                && input.is_beginning_of(&original).unwrap_or_default()
        })
    }

    /// Whether the user wants files of a format.
    fn is_wanted(&self, format: Option<Format>) -> bool {
        let only = &self.args.only;
        only.is_empty() || format.is_some_and(|format| only.contains(&format))
    }

    /// The run of a file, if there is one, and where it came from.
    pub(crate) fn existing(
        &self,
        source: &Source,
    ) -> Result<Option<(RunSummary, Origin)>, FileError> {
        if source.is_new {
            return Ok(None);
        }
        let summary = match self.run(source.ids().into()) {
            Ok(summary) => summary,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = self.metadata(source.ids().into())?;
        let origin = Origin::of(metadata.as_ref())
            .filter(|origin| origin.imported_from == source.file_name());
        let origin = origin.ok_or_else(|| FileError::foreign(source.ids()))?;
        Ok(Some((summary, origin)))
    }

    /// Starts a run and fills it. Where the store refuses a record, the run is taken out again.
    pub(crate) fn start<'i>(
        &self,
        ids: (&'i str, &'i str),
        metadata: &str,
        at: Timestamp,
        fill: impl FnOnce((&'i str, &'i str)) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        if self.args.dry_run {
            return fill(ids);
        }
        let start = Metadata::json(metadata.as_bytes()).at(at).durability(Durability::Process);
        if self.log.start_run(ids.0, ids.1, start)?.was_found() {
            // It has records, which would be there twice.
            return Err(FileError::foreign(ids));
        }
        let filled = fill(ids);
        if let Err(FileError::File(_)) = &filled {
            self.remove(&self.log.run(ids)?)?;
        }
        filled
    }

    /// Appends records to a run.
    pub(crate) fn append(
        &self,
        (agent, run): (&str, &str),
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> runlog::Result<()> {
        if self.args.dry_run {
            return Ok(());
        }
        let append = |record| self.log.append_to(agent, run, record, allow).map(drop);
        match self.log.append_batch_to(agent, run, records, allow) {
            // A batch is bounded by the extents of the store; its records one by one are not.
            Err(Error::TooLarge { .. }) => records.iter().try_for_each(append),
            appended => appended.map(drop),
        }
    }

    /// Deletes a run.
    pub(crate) fn remove(&self, run: &RunSummary) -> Result<(), FileError> {
        self.prepare(run)?;
        self.log.delete_run(run)?;
        Ok(())
    }

    /// Releases and ends a run, so that it can be deleted.
    pub(crate) fn prepare(&self, run: &RunSummary) -> Result<(), FileError> {
        self.log.release(run)?;
        if !self.log.run(run)?.status.is_ended() {
            let ids = (run.agent.as_str(), run.run.as_str());
            self.end_run(ids, &outcome(RunStatus::Interrupted, self.log.now()))?;
        }
        Ok(())
    }

    /// Ends a run.
    pub(crate) fn end_run(
        &self,
        (agent, run): (&str, &str),
        outcome: &Outcome,
    ) -> Result<(), FileError> {
        if !self.args.dry_run {
            let _ = self.log.end_run(agent, run, outcome, Allow::nothing())?;
        }
        Ok(())
    }

    /// How a run ends whose file says this of it.
    pub(crate) fn outcome_of(&self, said: Option<RunStatus>, at: Timestamp) -> Option<Outcome> {
        said.or(self.args.end).map(|status| outcome(status, at))
    }

    /// The status of a run after the import of its file, which says that it ended so.
    pub(crate) fn status(
        &self,
        source: &Source,
        how: How,
        end: Option<&Outcome>,
    ) -> runlog::Result<RunStatus> {
        Ok(match how {
            How::Imported | How::Replaced => end.map_or(RunStatus::InProgress, Outcome::status),
            How::Continued | How::AlreadyThere => self.run(source.ids().into())?.status,
        })
    }

    /// As [`RunLog::run`], of the store that is read.
    pub(crate) fn run(&self, run: RunRef<'_>) -> runlog::Result<RunSummary> {
        self.reads.map_or_else(|| self.log.run(run), |reads| reads.run(run))
    }

    /// As [`RunLog::metadata`].
    pub(crate) fn metadata(&self, run: RunRef<'_>) -> runlog::Result<Option<RunMetadata>> {
        self.reads.map_or_else(|| self.log.metadata(run), |reads| reads.metadata(run))
    }

    /// As [`RunLog::trace`].
    pub(crate) fn trace(&self, run: RunRef<'_>) -> runlog::Result<Trace> {
        self.reads.map_or_else(|| self.log.trace(run), |reads| reads.trace(run))
    }

    /// The ids of all runs of an agent.
    pub(crate) fn runs_of(&self, agent: &str) -> runlog::Result<BTreeSet<String>> {
        let query = RunQuery::new().agent(agent);
        let id = |run: runlog::Result<RunSummary>| run.map(|run| run.run.as_str().to_owned());
        match self.reads {
            Some(reads) => reads.runs(&query).map(id).collect(),
            None => self.log.runs(&query).map(id).collect(),
        }
    }
}

/// A file that is a sidecar.
fn no_run(kind: Kind) -> Done {
    Done::NoRun(Notice::Sidecar(kind), "a sidecar".to_owned())
}

/// A file that is followed and has nothing yet.
pub(crate) fn waits() -> Done {
    Done::NoRun(Notice::Waits, "nothing in it is whole yet".to_owned())
}

/// How a run ended.
pub(crate) fn outcome(status: RunStatus, at: Timestamp) -> Outcome {
    Outcome::new(status).at(at).durability(Durability::Process)
}
