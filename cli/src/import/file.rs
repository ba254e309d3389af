//! One file into one run, whole or not at all.
//!
//! A run that is there already is compared with the file, record by record: equal means done, a
//! beginning means that an earlier import was cut short (or that the file has grown since, with
//! `--keep-open`) and is gone on with, anything else is an error.
//!
//! Everything is appended at Process level; one sync at the end of the import makes all of it
//! survive a power loss.

use std::fmt;
use std::io;

use runlog::{Durability, Metadata, Outcome, RunLog, RunStatus, RunSummary, RunWriter, Trace};
use runlog_stores::json_lines::{Ending, LinesError, MAX_HOLES, MAX_LINE, UNTERMINATED};

use crate::failure::with_sources;
use crate::output::{grouped, size};

use super::batch::Batch;
use super::line::LineDamage;
use super::reading::Reading;
use super::tree::Source;

/// What became of a file.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) how: How,
    /// Records and payload bytes of the file.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) status: RunStatus,
    /// The first damaged lines, by number counted from 1.
    pub(crate) damaged: Vec<(u64, LineDamage)>,
    /// All of them.
    pub(crate) damaged_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// The run is new.
    Imported,
    /// A part was there, and the rest was added.
    Continued,
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
        line: u64,
    },
    /// A run of this name did not come from this file.
    Foreign {
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
            Self::Differs { agent, run, line } => write!(
                f,
                "run {run:?} of agent {agent:?} is there already and differs from line {line} on"
            ),
            Self::Foreign { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} is there already, from elsewhere")
            }
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
    log: &'a RunLog,
    keep_open: bool,
}

impl<'a> Importer<'a> {
    pub(crate) fn new(log: &'a RunLog, keep_open: bool) -> Self {
        Self { log, keep_open }
    }

    /// Imports one file. `progress` is told of bytes as they are read.
    pub(crate) fn import(
        &self,
        source: &Source,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported, FileError> {
        let mut reading = Reading::open(&source.place)?;
        let existing = match self.log.run((source.agent.as_str(), source.run.as_str())) {
            Ok(summary) => Some(summary),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let how = match existing {
            None => self.add(source, &mut reading, progress)?,
            Some(summary) => self.go_on(source, &summary, &mut reading, progress)?,
        };
        let status = self.log.run((source.agent.as_str(), source.run.as_str()))?.status;
        Ok(Imported {
            how,
            status,
            records: reading.lines_read,
            bytes: reading.bytes_read,
            damaged: reading.damaged,
            damaged_count: reading.damaged_count,
        })
    }

    /// Imports a file as a new run. Where the store refuses a line, the run is taken out again.
    fn add(
        &self,
        source: &Source,
        reading: &mut Reading,
        progress: &mut dyn FnMut(u64),
    ) -> Result<How, FileError> {
        let mut batch = Batch::default();
        batch.fill(reading)?;
        let started_at = batch.first_time().unwrap_or(reading.modified);
        let metadata = metadata(source);
        let start =
            Metadata::json(metadata.as_bytes()).at(started_at).durability(Durability::Process);
        let writer = self.log.start_run(&source.agent, &source.run, start)?;
        let finished = self.finish(&writer, batch, reading, progress);
        if let Err(FileError::File(_)) = &finished {
            // Only ended runs can be deleted.
            let _ = writer.end(&Outcome::interrupted().durability(Durability::Process))?;
            self.log.delete_run((source.agent.as_str(), source.run.as_str()))?;
        }
        finished.map(|()| How::Imported)
    }

    /// Compares a run with its file and appends what is missing.
    fn go_on(
        &self,
        source: &Source,
        summary: &RunSummary,
        reading: &mut Reading,
        progress: &mut dyn FnMut(u64),
    ) -> Result<How, FileError> {
        let run = (source.agent.as_str(), source.run.as_str());
        let stored = self.log.metadata(run)?;
        if stored.is_none_or(|(_, stored)| stored != metadata(source).as_bytes()) {
            let (agent, run) = (source.agent.clone(), source.run.clone());
            return Err(FileError::File(Refusal::Foreign { agent, run }));
        }
        let differs = |line| {
            let (agent, run) = (source.agent.clone(), source.run.clone());
            FileError::File(Refusal::Differs { agent, run, line })
        };
        compare(self.log.trace(run)?, reading, progress)?.map_err(differs)?;
        let mut rest = Batch::default();
        rest.fill(reading)?;
        let has_more = !rest.is_empty();
        if summary.status.is_ended() {
            return if has_more { Err(differs(rest.first_line)) } else { Ok(How::AlreadyThere) };
        }
        let ends = !self.keep_open;
        self.finish(&self.log.writer(run)?, rest, reading, progress)?;
        Ok(if has_more || ends { How::Continued } else { How::AlreadyThere })
    }

    /// Appends the batch and the rest of the file, and ends the run.
    fn finish(
        &self,
        writer: &RunWriter,
        mut batch: Batch,
        reading: &mut Reading,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), FileError> {
        while !batch.is_empty() {
            batch.append(writer, reading.modified)?;
            progress(batch.bytes.len() as u64);
            batch.fill(reading)?;
        }
        if !self.keep_open {
            let at = reading.last_time.unwrap_or(reading.modified);
            let end = reading.end().outcome().at(at).durability(Durability::Process);
            let _ = writer.end(&end)?;
        }
        Ok(())
    }
}

/// The metadata of an imported run: the file's name and nothing that changes when it is copied, so
/// that the same file is the same run again.
fn metadata(source: &Source) -> String {
    let path = source.place.path();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    serde_json::json!({ "imported_from": name }).to_string()
}

/// Whether the stored records are the first lines of the file; the number of the first line that
/// differs if not.
fn compare(
    trace: Trace,
    reading: &mut Reading,
    progress: &mut dyn FnMut(u64),
) -> Result<Result<(), u64>, FileError> {
    let mut line = Vec::new();
    for record in trace {
        let record = record?;
        line.clear();
        let number = reading.lines_read + 1;
        let Some((_, ending)) = reading.line_onto(&mut line)? else {
            return Ok(Err(number));
        };
        let was_unterminated = record.kind() == Some(UNTERMINATED);
        if record.payload() != line || was_unterminated != (ending == Ending::EndOfFile) {
            return Ok(Err(number));
        }
        progress(line.len() as u64 + 1);
    }
    Ok(Ok(()))
}
