//! What the user is told of an export to files: a line for each run, and the sums.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use runlog::{Error, RunSummary};
use rustix::io::Errno;
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure, with_sources};
use crate::message::complain;
use crate::output::{Output, count, size};

use super::is_gone;
use super::lines::{Form, Written};

/// Why a run is not exported.
#[derive(Debug)]
pub(crate) enum Why {
    /// Something has the name of its file.
    Exists,
    /// Something that is no folder has the name of one.
    InTheWay {
        name: String,
    },
    /// So many records are damaged, and the file is of no use without them.
    Damaged {
        records: u64,
    },
    /// Its import was cut short, or is not at its end yet.
    Unfinished {
        records: u64,
        found: u64,
    },
    /// The records are not those of the file that was imported.
    Differs,
    /// It was deleted meanwhile.
    Deleted,
    Store(Error),
    Io(io::Error),
}

impl Why {
    /// The reason, if other runs can be exported all the same; else the failure.
    pub(crate) fn of_a_run(self) -> Result<Self, Failure> {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::Store(error) if is_gone(&error) => Ok(Self::Deleted),
            Self::Store(error) if !error.is_corruption() => Err(error.into()),
            Self::Io(error)
                if matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) =>
            {
                Err(Failure::said(format!("the export stops: {error}")))
            }
            why => Ok(why),
        }
    }

    /// As a word.
    fn word(&self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::InTheWay { .. } => "in_the_way",
            Self::Damaged { .. } | Self::Store(_) => "damaged",
            Self::Unfinished { .. } => "unfinished",
            Self::Differs => "differs",
            Self::Deleted => "deleted",
            Self::Io(_) => "io",
        }
    }

    fn exit(&self) -> Exit {
        if self.word() == "damaged" { Exit::Damage } else { Exit::Error }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("is there already, and is not replaced"),
            Self::InTheWay { name } => write!(f, "{name} is there and is no folder"),
            Self::Damaged { records } => write!(
                f,
                "{} damaged, so the file is not whole; --format jsonl exports the others",
                count(*records, "record")
            ),
            Self::Unfinished { records, found } => write!(
                f,
                "the import of it has not ended: {found} of {}; import it again, or export it by \
                 --format jsonl",
                count(*records, "record")
            ),
            Self::Differs => f.write_str(
                "the records are not those of the file that was imported; --format jsonl exports \
                 them",
            ),
            Self::Deleted => f.write_str("was deleted meanwhile"),
            Self::Store(error) => f.write_str(&with_sources(error)),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<io::ErrorKind> for Why {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io(kind.into())
    }
}

impl From<Errno> for Why {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Run {
        run: &'a str,
        agent: &'a str,
        file: String,
        format: String,
        status: &'static str,
        records: u64,
        bytes: u64,
        damaged_records: u64,
    },
    Skipped {
        run: &'a str,
        agent: &'a str,
        why: &'static str,
    },
    Error {
        run: &'a str,
        agent: &'a str,
        file: Option<String>,
        why: &'static str,
        error: String,
    },
    Summary(&'a Sums),
}

/// The sums over all runs.
#[derive(Debug, Default, Serialize)]
struct Sums {
    exported: u64,
    skipped: u64,
    errors: u64,
    records: u64,
    bytes: u64,
    damaged_records: u64,
}

/// Tells of runs as they are done.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    out: &'a mut Output,
    target: &'a Path,
    sums: Sums,
    exit: Exit,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut Output, target: &'a Path) -> Self {
        Self { out, target, sums: Sums::default(), exit: Exit::Fine }
    }

    fn path(&self, names: &[String]) -> PathBuf {
        let mut path = self.target.to_path_buf();
        path.extend(names);
        path
    }

    /// A run is a file now.
    pub(crate) fn exported(
        &mut self,
        run: &RunSummary,
        names: &[String],
        form: &Form,
        written: &Written,
    ) -> Result<(), Failure> {
        self.sums.exported += 1;
        self.sums.records += written.records;
        self.sums.bytes += written.bytes;
        self.sums.damaged_records += written.damaged;
        let (path, format) = (self.path(names), form.name());
        if self.out.is_json() {
            self.out.object(&Event::Run {
                run: run.run.as_str(),
                agent: run.agent.as_str(),
                file: path.to_string_lossy().into_owned(),
                format,
                status: run.status.as_str(),
                records: written.records,
                bytes: written.bytes,
                damaged_records: written.damaged,
            })?;
        } else {
            let (records, bytes) = (count(written.records, "record"), size(written.bytes));
            let file = shown(&path);
            self.out.line(format!("exported {file} ({format}): {records}, {bytes}"))?;
        }
        if complain_of_damage(run, written.damaged) {
            self.exit = self.exit.max(Exit::Damage);
        }
        Ok(())
    }

    /// A run is not exported.
    pub(crate) fn refused(
        &mut self,
        run: &RunSummary,
        names: Option<&[String]>,
        why: &Why,
    ) -> Result<(), Failure> {
        let (id, agent, word) = (run.run.as_str(), run.agent.as_str(), why.word());
        if matches!(why, Why::Deleted) {
            self.sums.skipped += 1;
            if self.out.is_json() {
                self.out.object(&Event::Skipped { run: id, agent, why: word })?;
            } else {
                self.out.line(format!("skipped {agent}/{id}: {why}"))?;
            }
            return Ok(());
        }
        self.sums.errors += 1;
        self.exit = self.exit.max(why.exit());
        let path = names.map(|names| self.path(names));
        if self.out.is_json() {
            let file = path.as_ref().map(|path| path.to_string_lossy().into_owned());
            let error = why.to_string();
            self.out.object(&Event::Error { run: id, agent, file, why: word, error })?;
        }
        match path {
            Some(path) => complain(&format!("{}: {why}", shown(&path))),
            None => complain(&format!("{agent}/{id}: {why}")),
        }
        Ok(())
    }

    /// The sums, and how the command ends.
    pub(crate) fn finish(self) -> Result<Exit, Failure> {
        let sums = &self.sums;
        if self.out.is_json() {
            self.out.object(&Event::Summary(sums))?;
        } else {
            let (runs, file) = (count(sums.exported, "run"), shown(self.target));
            let (records, bytes) = (count(sums.records, "record"), size(sums.bytes));
            let mut line = format!("{runs} exported to {file}: {records}, {bytes}");
            for (number, what) in [(sums.skipped, "skipped"), (sums.errors, "refused")] {
                if number > 0 {
                    line = format!("{line}; {number} {what}");
                }
            }
            self.out.line(line)?;
        }
        self.out.flush()?;
        Ok(self.exit)
    }
}

/// Tells of records that were left out; answers whether there were any.
pub(crate) fn complain_of_damage(run: &RunSummary, damaged: u64) -> bool {
    if damaged > 0 {
        let records = count(damaged, "damaged record");
        complain(&format!("{}/{}: {records} left out", run.agent, run.run));
    }
    damaged > 0
}
