//! The engines behind a common interface.
//!
//! All store the same: runs that belong to agents, and their records, each with a sequence, a kind
//! and a payload. All answer the same: the records of a run by its id alone, the newest runs of an
//! agent, and the agent of a run. Stores that do not know runs are used as an expert would: runs
//! have numbers, records are clustered by run number and sequence ([`encoding`]), and threads share
//! transactions ([`group`]).

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

/// Which failure a finished append survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// A kill of the process.
    Process,
    /// Power loss.
    Disk,
}

/// An engine. Files store its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Kind {
    Ours,
    Jsonl,
    Sqlite,
    Lmdb,
    Redb,
    Fjall,
    /// No engine, but the least that each must do: one write and, for power loss, one sync.
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

    /// The package whose version is reported.
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

    /// Whether it stores the records and can be queried.
    pub(crate) fn answers(self) -> bool {
        self != Self::Bare
    }

    /// Whether each run has its own file: then the order in which runs were written does not
    /// matter, opening the store does nothing, and removing it takes long.
    pub(crate) fn has_file_for_each_run(self) -> bool {
        self == Self::Jsonl
    }

    /// What is guaranteed when an append returns, and how.
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

    /// Opens the store in this folder, or creates it.
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

/// The owners of records.
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

/// One change of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Start(&'a Run),
    Record { run: u64, seq: u32, new: New<'a> },
    End(&'a Run),
}

/// An open store.
pub(crate) trait Engine: Send + Sync {
    /// Starts a run, to which one thread appends.
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_>;

    /// Makes many changes in this order, in the fastest way. They are durable when
    /// [`Engine::settle`] returns.
    fn load(&self, changes: &[Change<'_>]);

    /// Does the work now that would otherwise be done in the background or by a later append.
    fn settle(&self);

    /// Does what the engine offers for reorganizing its data, if anything.
    fn compact(&mut self);

    /// Deletes these runs, which are all but the newest `kept` of each agent, with their records,
    /// in the fastest way. They have the smallest numbers. An engine without such a row does not
    /// implement this.
    fn retain(&mut self, _gone: &[Run], _kept: u64) {}

    /// Compresses ended runs if that is an option that is off by default; returns whether it is.
    fn compress(&mut self) -> bool {
        false
    }

    /// Sequence, kind and payload of each record of a run.
    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8]));

    /// The ids of an agent's runs, newest first.
    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str));

    /// The agent of a run.
    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str));

    /// What the bytes of the store contain, as far as the engine can tell.
    fn parts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Closes cleanly.
    fn close(self: Box<Self>);
}

/// A run in progress.
pub(crate) trait Writer {
    /// Appends records, all or none; returns when they have reached the level of the store.
    fn append(&mut self, records: &[New<'_>]);
}
