//! What became of a file.

use runlog::{RunStatus, Timestamp};

use crate::formats::Format;
use crate::formats::line::LineDamage;

use super::sidecars::Kind;

/// What became of a file.
#[derive(Debug)]
pub(crate) enum Done {
    /// It is a run.
    Run(Imported),
    /// It is none, and why.
    NoRun(Notice, String),
}

/// What is told of a file that is no run.
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
    /// Records and payload bytes of the file.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) status: RunStatus,
    /// The first damaged lines, by number counted from 1.
    pub(crate) damaged: Vec<(u64, LineDamage)>,
    /// All of them.
    pub(crate) damaged_count: u64,
    /// Members of an archive and files of a session that cannot be read, and why.
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

/// Where to go on in a file that grows.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) format: Format,
    pub(crate) seen: Seen,
    /// The digest of the last bytes in front of it.
    pub(crate) before: String,
}

/// What the lines of a file have said so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) lines: u64,
    /// Without their newlines.
    pub(crate) bytes: u64,
    /// Where the next line begins in the file.
    pub(crate) offset: u64,
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
