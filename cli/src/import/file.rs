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
    Allow, Durability, Metadata, Outcome, Reader, RunId, RunLog, RunMetadata, RunQuery, RunRef,
    RunStatus, RunSummary, Timestamp, Trace,
};
use runlog_stores::json_lines::{LinesError, MAX_HOLES, MAX_LINE};

use crate::failure::with_sources;
use crate::formats::Format;
use crate::formats::line::LineDamage;
use crate::formats::origin::Origin;
use crate::formats::probe::{Known, MAX_DOCUMENT};
use crate::output::{grouped, size};

use super::batch::Target;
use super::input::Input;
use super::reading::Mark;
use super::safe_open::Opened;
use super::sidecars::Kind;
use super::thread_pool::Job;
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
    /// The file is a sidecar of this kind, and no run.
    Sidecar(Kind),
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
    /// Members of an archive that cannot be read, and why.
    pub(crate) unread: Vec<(String, String)>,
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
        /// The first line or step that differs, where it is known.
        from: Option<(&'static str, u64)>,
    },
    /// It is compressed and cannot be unpacked.
    Packed {
        what: &'static str,
        why: String,
    },
    /// It begins like UTF-16, and is not.
    NotUtf16,
    /// It is longer than what is held in memory.
    TooLong {
        what: &'static str,
        advice: &'static str,
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
            Self::Differs { agent, run, from } => {
                write!(f, "run {run:?} of agent {agent:?} is there already and differs")?;
                if let Some((what, number)) = from {
                    write!(f, " from {what} {number} on")?;
                }
                f.write_str("; --replace imports the file anew in its place")
            }
            Self::Packed { what, why } => {
                write!(f, "{what} data that cannot be unpacked: {why}; nothing of it was imported")
            }
            Self::NotUtf16 => f.write_str(
                "it begins with the mark of UTF-16, and is not valid UTF-16; nothing of it was \
                 imported",
            ),
            Self::TooLong { what, advice } => {
                write!(f, "{what} of more than {}; {advice}", size(MAX_DOCUMENT))
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

impl Refusal {
    pub(crate) fn too_long(what: &'static str, advice: &'static str) -> Self {
        Self::TooLong { what, advice }
    }

    /// Whether a file that is being written may be without it soon.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Packed { .. } | Self::NotUtf16)
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
    /// The store that a dry run reads, if there is one: then `log` is an empty one.
    pub(crate) reads: Option<&'a Reader>,
    /// Nothing is written.
    pub(crate) is_dry_run: bool,
    /// The only formats that are imported, if there are any.
    pub(crate) only: &'a [Format],
    /// How runs end of whose end their files say nothing; without it they stay in progress.
    pub(crate) end: Option<RunStatus>,
    /// Files that changed take the place of their runs.
    pub(crate) replace: bool,
    /// The files are being written: what has no end yet is left until it has one.
    pub(crate) follows: bool,
}

impl<'a> Importer<'a> {
    /// Imports files as they are by now, all formats, without a word of how runs ended.
    pub(crate) fn new(log: &'a RunLog) -> Self {
        let (reads, end, only): (_, _, &[Format]) = (None, None, &[]);
        Self { log, reads, is_dry_run: false, only, end, replace: false, follows: false }
    }
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
        if let Some(parts) = &source.parts {
            return self.session(source, parts, opened, progress);
        }
        let (file, metadata) = source.location.file(opened)?;
        if let Some(mark) = job.mark
            && let Some(done) = self.resume(source, file.try_clone()?, mark, progress)?
        {
            return Ok(done);
        }
        let mut input = match Input::new(file, &metadata) {
            Err(FileError::File(refusal)) if self.follows && refusal.may_pass() => {
                return Ok(Done::Waits);
            }
            input => input?,
        };
        if self.has_original(source, &input)? {
            return Ok(Done::Sidecar(Kind::Copies));
        }
        let known = input.probe(&source.file_name())?;
        let format = match &known {
            Known::Lines(format) | Known::Document(format, _) => Some(*format),
            Known::Archive(_) => Some(Format::InspectEval),
            Known::Store | Known::Unknown(_) => None,
        };
        if !self.only.is_empty() && !format.is_some_and(|format| self.only.contains(&format)) {
            return Ok(Done::Sidecar(Kind::OtherFormats));
        }
        match known {
            Known::Lines(format) => self.lines(source, input, format, progress),
            Known::Document(format, text) => self.document(source, &input, format, &text, progress),
            Known::Archive(bytes) => self.archive(source, &input, &bytes, progress),
            Known::Store => Ok(Done::Skipped("a store of runlog")),
            Known::Unknown(_) if self.follows => Ok(Done::Waits),
            Known::Unknown(why) => Ok(Done::Unknown(why)),
        }
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
        let run = RunRef::from(source.ids());
        let summary = match self.run(run) {
            Ok(summary) => summary,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = self.metadata(run)?;
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
        fill: impl FnOnce(Target<'_>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        if self.is_dry_run {
            return fill(Target::Nowhere);
        }
        let start = Metadata::json(metadata.as_bytes()).at(at).durability(Durability::Process);
        let writer = self.log.start_run(agent, run, start)?;
        if writer.was_found() {
            // It has records, which would be there twice.
            let (agent, run) = (agent.to_owned(), run.to_owned());
            return Err(Refusal::Foreign { agent, run }.into());
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
        if !self.is_dry_run {
            let _ = self.log.end_run(agent, run, outcome, Allow::nothing())?;
        }
        Ok(())
    }

    /// Where the records of a file go.
    pub(crate) fn target<'s>(&'s self, source: &'s Source, allow: Allow) -> Target<'s> {
        let (agent, run) = source.ids();
        if self.is_dry_run {
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

    pub(crate) fn status(&self, source: &Source) -> Result<RunStatus, FileError> {
        Ok(self.run(source.ids().into())?.status)
    }

    pub(crate) fn differs(source: &Source, from: Option<(&'static str, u64)>) -> FileError {
        let (agent, run) = (source.agent.clone(), source.run.clone());
        Refusal::Differs { agent, run, from }.into()
    }
}

/// How a run ended.
pub(crate) fn outcome(status: RunStatus, at: Timestamp) -> Outcome {
    Outcome::new(status).at(at).durability(Durability::Process)
}
