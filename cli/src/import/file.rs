//! One file into one run, whole or not at all.
//!
//! A run that is there already is compared with the file: equal means done, a beginning means that
//! an earlier import was cut short or that the file has grown since, and is gone on with. Anything
//! else is a change, which is told, and with `--replace` replaces the run.
//!
//! Everything is appended at Process level; one sync at the end of the import makes all of it
//! survive a power loss.

use runlog::{
    Allow, Durability, Metadata, Outcome, Reader, RunId, RunLog, RunMetadata, RunQuery, RunRef,
    RunStatus, RunSummary, Timestamp, Trace,
};

use crate::formats::Format;
use crate::formats::origin::Origin;
use crate::formats::probe::Known;

use super::args::ImportArgs;
use super::batch::Target;
use super::done::{Done, Mark, Notice};
use super::input::Input;
use super::refusal::{FileError, Problem, Refusal};
use super::safe_open::Opened;
use super::sidecars::Kind;
use super::tree::Source;

/// Imports files into a store.
#[derive(Debug)]
pub(crate) struct Importer<'a> {
    pub(crate) log: &'a RunLog,
    /// The store that a dry run reads, if there is one: then `log` is an empty one.
    pub(crate) reads: Option<&'a Reader>,
    pub(crate) args: &'a ImportArgs,
}

impl Importer<'_> {
    /// Imports one file, from a mark on if there is one. `progress` is told of bytes as they are
    /// read.
    pub(crate) fn import(
        &self,
        source: &Source,
        mark: Option<&Mark>,
        opened: &mut Opened,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        if let Some(parts) = &source.parts {
            if !self.is_wanted(Some(parts.format)) {
                return Ok(no_run(Kind::OtherFormats));
            }
            return self.session(source, parts, opened, progress);
        }
        let (file, metadata) = source.location.file(opened)?;
        if let Some(mark) = mark
            && let Some(done) = self.resume(source, file.try_clone()?, mark, progress)?
        {
            return Ok(done);
        }
        let input = match Input::new(file, &metadata) {
            // A file that is being written may be without it soon.
            Err(FileError::File(Refusal::Packed { .. } | Refusal::NotUtf16))
                if self.args.follow =>
            {
                return Ok(waits());
            }
            input => input?,
        };
        if self.has_original(source, &input)? {
            return Ok(no_run(Kind::Copies));
        }
        let known = input.probe(&source.file_name())?;
        let format = match &known {
            Known::Lines(format) | Known::Document(format, _) => Some(*format),
            Known::Archive(_) => Some(Format::InspectEval),
            Known::Store | Known::Unknown(_) => None,
        };
        if !self.is_wanted(format) {
            return Ok(no_run(Kind::OtherFormats));
        }
        match known {
            Known::Lines(format) => self.lines(source, input, format, progress),
            Known::Document(format, text) => self.document(source, &input, format, &text, progress),
            Known::Archive(bytes) => self.archive(source, &input, &bytes, progress),
            Known::Store => Ok(Done::NoRun(Notice::Skipped, "a store of runlog".to_owned())),
            Known::Unknown(_) if self.args.follow => Ok(waits()),
            Known::Unknown(why) => Ok(Done::NoRun(Notice::Unknown, why)),
        }
    }

    /// Whether the user wants files of a format.
    fn is_wanted(&self, format: Option<Format>) -> bool {
        let only = &self.args.only;
        only.is_empty() || format.is_some_and(|format| only.contains(&format))
    }

    /// Whether a file that was compressed or put away is all in the one beside it.
    fn has_original(&self, source: &Source, input: &Input) -> Result<bool, FileError> {
        let Some(original) = &source.original else { return Ok(false) };
        let Ok((file, metadata)) = original.file(&mut Opened::default()) else {
            return Ok(false);
        };
        Input::new(file, &metadata).map_or(Ok(false), |original| input.is_beginning_of(&original))
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
        let origin = origin.ok_or_else(|| Problem::Foreign.of(source.ids()))?;
        Ok(Some((summary, origin)))
    }

    /// Starts a run and fills it. Where the store refuses a record, the run is taken out again.
    pub(crate) fn start(
        &self,
        (agent, run): (&str, &str),
        metadata: &str,
        at: Timestamp,
        fill: impl FnOnce(Target<'_>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        if self.args.dry_run {
            return fill(Target::Nowhere);
        }
        let start = Metadata::json(metadata.as_bytes()).at(at).durability(Durability::Process);
        let writer = self.log.start_run(agent, run, start)?;
        if writer.was_found() {
            // It has records, which would be there twice.
            return Err(Problem::Foreign.of((agent, run)));
        }
        let filled = fill(Target::Started(&writer));
        if let Err(FileError::File(_)) = &filled {
            self.remove(&self.log.run(&writer)?)?;
        }
        filled
    }

    /// Takes a run out.
    pub(crate) fn remove(&self, run: &RunSummary) -> Result<(), FileError> {
        self.end_if_not(run)?;
        self.log.delete_run(run)?;
        Ok(())
    }

    /// Ends a run that has not ended: only ended runs can be deleted.
    pub(crate) fn end_if_not(&self, run: &RunSummary) -> Result<(), FileError> {
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

    /// Where the records of a file go.
    pub(crate) fn target<'s>(&'s self, source: &'s Source, allow: Allow) -> Target<'s> {
        let (agent, run) = source.ids();
        if self.args.dry_run {
            return Target::Nowhere;
        }
        Target::Named { log: self.log, agent, run, allow }
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
    pub(crate) fn runs_of(&self, agent: &str) -> runlog::Result<Vec<RunId>> {
        let query = RunQuery::new().agent(agent);
        let id = |run: runlog::Result<RunSummary>| run.map(|run| run.run);
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
