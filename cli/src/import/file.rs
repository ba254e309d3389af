//! One file into one run, whole or not at all.
//!
//! A run that is there already is compared with the file: equal means done, a beginning means that
//! an earlier import was cut short or that the file has grown since, and is gone on with. Anything
//! else is a change, which is told, and with `--replace` replaces the run.
//!
//! Everything is appended at Process level; one sync at the end of the import makes all of it
//! survive a power loss.

use std::fmt;
use std::io;

use runlog::{
    Allow, Durability, Metadata, Outcome, RunLog, RunStatus, RunSummary, RunWriter, Timestamp,
};
use runlog_stores::json_lines::{LinesError, MAX_HOLES, MAX_LINE};

use crate::failure::with_sources;
use crate::formats::Format;
use crate::formats::line::LineDamage;
use crate::formats::origin::Origin;
use crate::formats::probe::Known;
use crate::output::{grouped, size};

use super::batch::Target;
use super::crew::Job;
use super::input::Input;
use super::place::Opened;
use super::reading::Mark;
use super::tree::Source;

/// What became of a file.
#[derive(Debug)]
pub(crate) enum Done {
    /// It is a run.
    Run(Imported),
    /// It is nothing that can be imported, and why.
    Unknown(String),
    /// It is passed over on purpose, and why.
    Skipped(&'static str),
    /// It has nothing whole yet, and may get more.
    Waits,
}

/// A file that is a run in the store.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) how: How,
    pub(crate) format: Format,
    /// Records and payload bytes of the file.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) status: RunStatus,
    /// The first damaged lines, by number counted from 1.
    pub(crate) damaged: Vec<(u64, LineDamage)>,
    /// All of them.
    pub(crate) damaged_count: u64,
    /// Where to go on when the file has grown.
    pub(crate) mark: Option<Mark>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// The run is new.
    Imported,
    /// A part was there, and the rest was added.
    Continued,
    /// The run was there and could not be gone on with: it was imported anew.
    Replaced,
    /// All of it was there.
    AlreadyThere,
}

/// Whose problem it is.
#[derive(Debug)]
pub(crate) enum FileError {
    /// The store's: nothing more can be imported.
    Store(runlog::Error),
    /// The file's: the others can be.
    File(Refusal),
}

/// Why a file is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Lines(LinesError),
    /// A run of this name has other records.
    Differs {
        agent: String,
        run: String,
        /// The number of the first line that differs, where the file has lines.
        line: Option<u64>,
    },
    /// A run of this name did not come from this file.
    Foreign {
        agent: String,
        run: String,
    },
    /// What was to take the place of a run waits for it.
    Stays {
        agent: String,
        run: String,
        stand_in: String,
    },
    /// What was to take the place of a run went, since somebody deleted the run.
    Deleted {
        agent: String,
        run: String,
    },
    /// The run would have to be imported anew, and is held.
    Held {
        agent: String,
        run: String,
    },
    Store(runlog::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines(LinesError::TooLong { line }) => write!(
                f,
                "line {line} has more than {} bytes, which no record has; nothing of the file was \
                 imported",
                grouped(MAX_LINE)
            ),
            Self::Lines(LinesError::Sparse) => write!(
                f,
                "more than {} of it are holes, which no program wrote; nothing of it was imported",
                size(MAX_HOLES)
            ),
            Self::Lines(error) => error.fmt(f),
            Self::Differs { agent, run, line } => {
                write!(f, "run {run:?} of agent {agent:?} is there already and differs")?;
                if let Some(line) = line {
                    write!(f, " from line {line} on")?;
                }
                f.write_str("; --replace imports the file anew in its place")
            }
            Self::Foreign { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} is there already, from elsewhere")
            }
            Self::Held { agent, run } => write!(
                f,
                "run {run:?} of agent {agent:?} is held; release it, so that the file can be \
                 imported anew in its place"
            ),
            Self::Stays { agent, run, stand_in } => write!(
                f,
                "run {run:?} of agent {agent:?} is held, or changed since it was to be imported \
                 anew; what was to take its place waits for it as the run {stand_in}, which is held"
            ),
            Self::Deleted { agent, run } => write!(
                f,
                "run {run:?} of agent {agent:?} was deleted before an import that was cut short \
                 could import it anew; what was to take its place is erased"
            ),
            Self::Store(error) => f.write_str(&with_sources(error)),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        LinesError::from(error).into()
    }
}

impl From<LinesError> for FileError {
    fn from(error: LinesError) -> Self {
        Self::File(Refusal::Lines(error))
    }
}

impl From<Refusal> for FileError {
    fn from(refusal: Refusal) -> Self {
        Self::File(refusal)
    }
}

impl From<runlog::Error> for FileError {
    fn from(error: runlog::Error) -> Self {
        use runlog::Error;
        match error {
            Error::TooLarge { .. }
            | Error::InvalidId { .. }
            | Error::RunExists { .. }
            | Error::RunEnded { .. }
            | Error::Evicted { .. }
            | Error::Corrupt(_) => Self::File(Refusal::Store(error)),
            other => Self::Store(other),
        }
    }
}

/// Imports files into a store.
#[derive(Debug)]
pub(crate) struct Importer<'a> {
    pub(crate) log: &'a RunLog,
    /// How runs end of whose end their files say nothing; without it they stay in progress.
    pub(crate) end: Option<RunStatus>,
    /// Files that changed take the place of their runs.
    pub(crate) replace: bool,
    /// The files are being written: what has no end yet is left until it has one.
    pub(crate) follows: bool,
}

impl Importer<'_> {
    /// Imports one file. `progress` is told of bytes as they are read.
    pub(crate) fn import(
        &self,
        job: &Job<'_>,
        opened: &mut Opened,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let source = job.source;
        let (file, metadata) = source.place.file(opened)?;
        if let Some(mark) = job.mark
            && let Some(done) = self.resume(source, file.try_clone()?, mark, progress)?
        {
            return Ok(done);
        }
        let mut input = Input::new(file, &metadata)?;
        let modified = input.modified;
        match input.probe(&source.file_name())? {
            Known::Lines(format) => self.lines(source, input, format, progress),
            Known::Document(format, text) => {
                self.document(source, modified, format, &text, progress)
            }
            Known::Archive(bytes) => self.archive(source, modified, &bytes, progress),
            Known::Store => Ok(Done::Skipped("a store of runlog")),
            Known::Unknown(_) if self.follows => Ok(Done::Waits),
            Known::Unknown(why) => Ok(Done::Unknown(why)),
        }
    }

    /// The run of a file, if there is one, and where it came from.
    pub(crate) fn existing(
        &self,
        source: &Source,
    ) -> Result<Option<(RunSummary, Origin)>, FileError> {
        if source.is_new {
            return Ok(None);
        }
        let run = source.ids();
        let summary = match self.log.run(run) {
            Ok(summary) => summary,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = self.log.metadata(run)?;
        let origin = Origin::of(metadata.as_ref())
            .filter(|origin| origin.imported_from == source.file_name());
        let (agent, run) = (source.agent.clone(), source.run.clone());
        let origin = origin.ok_or(Refusal::Foreign { agent, run })?;
        Ok(Some((summary, origin)))
    }

    /// Starts a run and fills it. Where the store refuses a record, the run is taken out again.
    pub(crate) fn start(
        &self,
        (agent, run): (&str, &str),
        metadata: &str,
        at: Timestamp,
        fill: impl FnOnce(&RunWriter) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let start = Metadata::json(metadata.as_bytes()).at(at).durability(Durability::Process);
        let writer = self.log.start_run(agent, run, start)?;
        if writer.was_found() {
            // It has records, which would be there twice.
            let (agent, run) = (agent.to_owned(), run.to_owned());
            return Err(Refusal::Foreign { agent, run }.into());
        }
        let filled = fill(&writer);
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
        let _ = self.log.end_run(agent, run, outcome, Allow::nothing())?;
        Ok(())
    }

    /// Where the records of a file go.
    pub(crate) fn target<'s>(&'s self, source: &'s Source, allow: Allow) -> Target<'s> {
        let (agent, run) = source.ids();
        Target::Named { log: self.log, agent, run, allow }
    }

    pub(crate) fn status(&self, source: &Source) -> Result<RunStatus, FileError> {
        Ok(self.log.run(source.ids())?.status)
    }

    pub(crate) fn differs(source: &Source, line: Option<u64>) -> FileError {
        let (agent, run) = (source.agent.clone(), source.run.clone());
        Refusal::Differs { agent, run, line }.into()
    }
}

/// How a run ended.
pub(crate) fn outcome(status: RunStatus, at: Timestamp) -> Outcome {
    Outcome::new(status).at(at).durability(Durability::Process)
}
