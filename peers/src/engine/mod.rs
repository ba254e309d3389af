//! The engines behind one face.
//!
//! All keep the same: runs that belong to agents, and their records, each with a sequence, a kind
//! and a payload. All answer the same: the records of a run by the run's id alone, the newest runs
//! of an agent, and the agent of a run. What the stores without an idea of runs need for that is
//! laid out as one would who knows them: runs have numbers, records are clustered by the number of
//! their run and their sequence ([`encoding`]), and threads share transactions ([`group`]).

use std::path::Path;

use serde::{Deserialize, Serialize};

mod bare;
mod encoding;
mod fjall;
mod group;
mod jsonl;
mod lmdb;
mod ours;
mod redb;
mod sqlite;

/// What an append has survived when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// A kill of the process.
    Process,
    /// Power loss.
    Disk,
}

/// An engine. In files it is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Kind {
    Ours,
    Jsonl,
    Sqlite,
    Lmdb,
    Redb,
    Fjall,
    /// No engine, but what each must do at least: one write, and for power loss one sync.
    Bare,
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.name().to_owned()
    }
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::named(&name).ok_or(format!("{name} is no engine"))
    }
}

impl Kind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Ours, Self::Jsonl, Self::Sqlite, Self::Lmdb, Self::Redb, Self::Fjall, Self::Bare];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "runlog",
            Self::Jsonl => "JSONL",
            Self::Sqlite => "SQLite",
            Self::Lmdb => "LMDB",
            Self::Redb => "redb",
            Self::Fjall => "fjall",
            Self::Bare => "bare",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// The package whose version counts.
    pub(crate) fn package(self) -> Option<&'static str> {
        match self {
            Self::Ours => Some("runlog"),
            Self::Jsonl | Self::Bare => None,
            Self::Sqlite => Some("rusqlite"),
            Self::Lmdb => Some("heed"),
            Self::Redb => Some("redb"),
            Self::Fjall => Some("fjall"),
        }
    }

    /// Whether it keeps what it is given, and can be asked for it.
    pub(crate) fn answers(self) -> bool {
        self != Self::Bare
    }

    /// Whether each run has a file of its own: then it does not matter in which order runs were
    /// written, opening the store does nothing, and to remove it takes long.
    pub(crate) fn has_file_for_each_run(self) -> bool {
        self == Self::Jsonl
    }

    /// What is guaranteed when an append returns, and by what.
    pub(crate) fn guarantee(self, level: Level) -> &'static str {
        match (self, level) {
            (Self::Ours, Level::Process) => {
                "survives a kill; power loss within 250 ms (default options)"
            }
            (Self::Ours, Level::Disk) => "survives power loss (a shared fdatasync)",
            (Self::Jsonl, Level::Process) => "survives a kill; never synced",
            (Self::Jsonl, Level::Disk) => {
                "survives power loss (fdatasync of the run's file; its folder is not synced)"
            }
            (Self::Sqlite, Level::Process) => {
                "survives a kill; power loss up to the last checkpoint (WAL, NORMAL)"
            }
            (Self::Sqlite, Level::Disk) => "survives power loss (WAL, FULL; shared commits)",
            (Self::Lmdb, Level::Process) => {
                "survives a kill; power loss can destroy all (NOSYNC, WRITEMAP)"
            }
            (Self::Lmdb, Level::Disk) => "survives power loss (synced; shared commits)",
            (Self::Redb, Level::Process) => {
                "survives a kill; power loss can destroy all (Immediate, syncs left out)"
            }
            (Self::Redb, Level::Disk) => "survives power loss (Immediate; shared commits)",
            (Self::Fjall, Level::Process) => "survives a kill; never synced (PersistMode::Buffer)",
            (Self::Fjall, Level::Disk) => "survives power loss (SyncData; shared commits)",
            (Self::Bare, Level::Process) => "no engine: one write of the record's bytes",
            (Self::Bare, Level::Disk) => {
                "no engine: the same and fdatasync, into blocks written before"
            }
        }
    }

    /// Opens the store in this folder, or makes one.
    pub(crate) fn open(self, folder: &Path, level: Level) -> Box<dyn Engine> {
        match self {
            Self::Ours => Box::new(ours::Ours::open(folder, level)),
            Self::Jsonl => Box::new(jsonl::Files::open(folder, level)),
            Self::Sqlite => Box::new(sqlite::open(folder, level)),
            Self::Lmdb => Box::new(lmdb::open(folder, level)),
            Self::Redb => Box::new(redb::open(folder, level)),
            Self::Fjall => Box::new(fjall::open(folder, level)),
            Self::Bare => Box::new(bare::Bare::open(folder, level)),
        }
    }
}

/// Whose records they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// In the order in which runs start.
    pub(crate) number: u64,
    pub(crate) agent: String,
    pub(crate) id: String,
}

/// A record to be appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) kind: &'static str,
    pub(crate) payload: &'a [u8],
}

/// One thing that happens to a store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Start(&'a Run),
    Record { run: u64, seq: u32, new: New<'a> },
    End(&'a Run),
}

/// An open store.
pub(crate) trait Engine: Send + Sync {
    /// Starts a run, to be appended to by one thread.
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_>;

    /// Many changes at once, in this order, in whatever way is fastest. What they promise is
    /// promised when [`Engine::settle`] returns.
    fn load(&self, changes: &[Change<'_>]);

    /// Does now what is otherwise done in the background or at a later append.
    fn settle(&self);

    /// Does what the engine has for putting things together. Not all have something.
    fn compact(&mut self);

    /// Compresses what has ended, where that is an option that is off by default; answers whether
    /// it is.
    fn compress(&mut self) -> bool {
        false
    }

    /// Sequence, kind and payload of each record of a run.
    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8]));

    /// The ids of an agent's runs, the newest first.
    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str));

    /// The agent of a run.
    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str));

    /// What the bytes of the store are, as far as the engine can tell.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Ends properly.
    fn close(self: Box<Self>);
}

/// A run in progress.
pub(crate) trait Writer {
    /// Appends records, all or none; returns when they have the level of the store.
    fn append(&mut self, records: &[New<'_>]);
}
