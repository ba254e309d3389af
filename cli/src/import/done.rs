//! The result of the import of a file.

use runlog::{RunStatus, Timestamp};
use serde::Serialize;

use crate::formats::Format;
use crate::formats::line::LineDamage;

use super::sidecars::Kind;

/// The result of the import of a file.
#[derive(Debug)]
pub(crate) enum Done {
    /// It is a run.
    Run(Box<Imported>),
    /// It is none, and why.
    NoRun(Notice, String),
}

/// Why a file is no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It is passed over on purpose.
    Skipped,
    /// It is nothing that can be imported.
    Unknown,
    /// It has nothing whole yet, and may get more.
    Waits,
    /// A path of the user's leads nowhere.
    Missing,
    /// It cannot be imported.
    Refused,
    /// It is a sidecar, which is counted only.
    Sidecar(Kind),
}

/// A file that is a run in the store.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) how: How,
    pub(crate) format: Format,
    pub(crate) status: RunStatus,
    /// Its records, bytes and damage.
    pub(crate) seen: Seen,
    /// Members of an archive and files of a session that cannot be read, and why.
    pub(crate) unread: Vec<(String, String)>,
    /// Where to continue when the file has grown.
    pub(crate) mark: Option<Mark>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// The run is new.
    Imported,
    /// A part was there, and the rest was added.
    Continued,
    /// The file replaced the run that was there.
    Replaced,
    /// All of it was there.
    AlreadyThere,
}

/// Where to continue in a file that grows.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) format: Format,
    pub(crate) seen: Seen,
    /// The digest of the last bytes before it.
    pub(crate) before: String,
}

impl Mark {
    /// Where the next line begins. All lines before it end in a newline.
    pub(crate) fn offset(&self) -> u64 {
        self.seen.bytes + self.seen.records
    }
}

/// The records of a file that were read so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) records: u64,
    /// Without the ends of lines.
    pub(crate) bytes: u64,
    /// The first and the last time that a line gave.
    pub(crate) first_time: Option<Timestamp>,
    pub(crate) last_time: Option<Timestamp>,
    /// How the run says that it ended.
    pub(crate) end: Option<RunStatus>,
    /// The first damaged lines, by number counted from 1.
    pub(crate) damaged: Vec<(u64, LineDamage)>,
    /// All of them.
    pub(crate) damaged_count: u64,
}
