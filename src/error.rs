//! The error type of the crate. Each variant says what the caller should do; `kinds` answers what
//! an error is, `messages` is its text.

mod kinds;
mod messages;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::damage::{Corruption, Damage, Place};
pub use crate::types::Owner;
use crate::types::{AgentId, IdKind, InvalidId, RunId, RunStatus, Seq, Version};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What went wrong. Messages never hold payload bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused. The store is as it was, unless [`Error::Poisoned`] follows.
    /// The caller should look at the source and try again when its cause is gone.
    Io {
        /// What the engine was doing.
        action: IoAction,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// There is no space for this append. Nothing of it was stored; everything acknowledged before
    /// is safe. The caller should free space and append again. Runs can still be ended.
    DiskFull {
        /// What the engine was doing.
        action: IoAction,
    },
    /// There is no file at this path. The caller should create the store or correct the path.
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The call was to create a file, and it already exists. The caller should open it.
    AlreadyExists {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The path is a directory, a symbolic link, a device or another special file. The caller
    /// should name a regular file. Links are not followed, so that they cannot redirect the store.
    NotRegularFile {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is not a run log, or too damaged to recognize. It was not changed. The caller
    /// should check the path.
    NotAStore {
        /// The first bytes of the file, at most 16.
        found: Vec<u8>,
        /// The length of the file.
        len: u64,
    },
    /// The file has another version of the format. It was not changed. The caller should use a
    /// program of that version.
    UnsupportedVersion {
        /// The version that the file requires of a reader; of an older file, its own.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// The file needs features that this program does not know. It was not changed. The caller
    /// should update the program.
    UnsupportedFeatures {
        /// The unknown feature bits.
        unknown: u64,
    },
    /// Another process, or another handle of this one, has the store open for writing. The caller
    /// should use that one, or wait until it is closed.
    Busy {
        /// The path of the store.
        path: PathBuf,
        /// Who holds it, as far as the file tells.
        owner: Option<Owner>,
    },
    /// This process has closed the store, and still holds views of the file, which keep its lock.
    /// The caller should drop the records, payloads and traces of that store, and try again.
    Locked {
        /// The path of the store.
        path: PathBuf,
        /// How many views live; see [`RunLog::close`](crate::RunLog::close).
        live_views: usize,
    },
    /// Bytes of the store are damaged. Only the named place is affected. The caller should
    /// run `verify`, and restore from a copy what it needs. Other runs stay readable.
    Corrupt(Corruption),
    /// The store cannot be opened for writing, because bytes that everything else depends on are
    /// damaged: the static header, both superblocks, the manifest, or the log below what was
    /// durable, where the file may also end. The file was not changed. The caller should run
    /// `salvage`, which writes what can be read into a new store. If the manifest is whole, a
    /// [`Reader`](crate::Reader) still opens it.
    Damaged(Corruption),
    /// An earlier write or sync failed, so the store accepts nothing more: after a failed sync it
    /// is unknown what reached the disk. Reads still work. The caller should close and reopen the
    /// store, which recovers everything that was acknowledged.
    Poisoned,
    /// The store was closed, or this process was forked while the store was open, which then
    /// belongs to the parent. The caller should open it again, after the parent has closed it.
    Closed,
    /// The store has used up all numbers that its format has for this. Nothing was stored, and
    /// everything stored before stays readable. The caller should continue in a new store, or, if
    /// one run has used up its numbers, in a new run.
    Exhausted {
        /// What the numbers are for.
        what: &'static str,
    },
    /// The file is on a network file system, where locks may not hold, and a map may be another
    /// machine's past. Nothing was opened. The caller should use a local disk, or
    /// [`Options::network_file_systems`](crate::Options::network_file_systems) if it knows that the
    /// locks of this one work.
    NetworkFileSystem {
        /// Its usual name, such as `NFS`.
        name: &'static str,
    },
    /// The earlier copy, into which a backup was to go, is damaged. The backup has changed no byte
    /// of it. The caller should back up into a new file.
    CopyDamaged {
        /// What is damaged.
        damage: Corruption,
    },
    /// A [`Reader`](crate::Reader) found the store changed each time it had read it. The caller
    /// should try again.
    Overtaken {
        /// How often it read the store.
        attempts: u64,
    },
    /// The path of a [`Reader`](crate::Reader) names another file by now, or none. What the reader
    /// knows stays readable. The caller should open the path again.
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// There is no such run. The caller should check the id.
    RunNotFound {
        /// The run that was asked for.
        run: RunId,
        /// The agent, if the caller named it.
        agent: Option<AgentId>,
    },
    /// Several agents have a run with this id. The caller should name the agent too.
    Ambiguous {
        /// The run that was asked for.
        run: RunId,
        /// The agents that have it, sorted, each once.
        agents: Vec<AgentId>,
    },
    /// The run was started before, with other metadata. The caller should choose another run id,
    /// or start it with the same metadata to continue it.
    RunExists {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// The run has ended: it accepts no more records and no other outcome. The caller should start
    /// a new run, or append by ids with [`Allow`](crate::Allow) set to records after the end.
    RunEnded {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
        /// How it ended.
        status: RunStatus,
    },
    /// The run has not ended, and the call needs an ended run. The caller should end it
    /// first.
    RunInProgress {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// The document does not have the expected version: another call wrote it in between. Nothing
    /// was written. The caller should re-read it and retry.
    Conflict {
        /// The namespace of the document.
        namespace: String,
        /// Its key.
        key: String,
        /// Its current version; `None` if the document does not exist.
        found: Option<Version>,
    },
    /// The run is held, and cannot be deleted. The caller should release it first.
    RunHeld {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// The run was deleted or evicted while the caller used it. The caller should stop using it.
    Evicted {
        /// The run, if it is known.
        run: Option<RunId>,
    },
    /// An id is empty or too long. The caller should shorten it.
    InvalidId {
        /// Which id.
        kind: IdKind,
        /// Its length in bytes.
        len: usize,
        /// The longest accepted length.
        max: usize,
    },
    /// A record, an outcome, metadata or a batch is larger than the store accepts. Nothing was
    /// stored. The caller should split it.
    TooLarge {
        /// What is too large.
        what: Sized,
        /// Its size in bytes.
        len: u64,
        /// The largest size that this store accepts.
        max: u64,
    },
    /// The call does not accept this value. The caller should correct it.
    InvalidArgument {
        /// Which argument, and what is accepted.
        what: &'static str,
    },
    /// An option asks for a level of compression that this program was built without. The caller
    /// should choose another level, or build the program with this Cargo feature of runlog.
    NeedsFeature {
        /// The name of the feature.
        feature: &'static str,
    },
    /// A value could not be turned into JSON, or JSON into the value. The stored bytes stay
    /// readable as they are.
    Json {
        /// The error of serde.
        source: Arc<serde_json::Error>,
    },
    /// The index failed. Only observers and [`Health`](crate::Health) tell of it, no call does: the
    /// directories answer in its place, and it is built anew. The caller need do nothing unless it
    /// goes on.
    Index {
        /// What was wrong with it.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A step of the background work, a roll or a sync panicked, which is a bug of the engine or of
    /// the storage. Only observers and
    /// [`Health`](crate::Health) tell of it; calls that write answer [`Error::Poisoned`] from then
    /// on, since what is in memory may be wrong. The caller should report it, with what the panic
    /// printed, and reopen the store.
    Panicked,
}

/// What the engine was doing when the operating system refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoAction {
    /// Creating the file.
    Create,
    /// Opening the file.
    Open,
    /// Taking the lock.
    Lock,
    /// Reading bytes at an offset of the file.
    Read {
        /// The offset in the file.
        offset: u64,
    },
    /// Writing bytes at an offset of the file.
    Write {
        /// The offset in the file.
        offset: u64,
    },
    /// Allocating space up to an offset of the file.
    Allocate {
        /// The offset in the file.
        offset: u64,
    },
    /// Returning space to the file system.
    Release {
        /// The offset in the file.
        offset: u64,
    },
    /// Syncing.
    Sync,
    /// Asking for random bytes.
    Randomness,
    /// Starting a thread.
    Thread,
}

/// What was too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sized {
    /// The payload of a record.
    Record,
    /// The metadata of a start.
    Metadata,
    /// The payload of an outcome.
    Outcome,
    /// A batch.
    Batch,
}

impl Error {
    pub(crate) fn io(action: IoAction, source: io::Error) -> Self {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        if full { Self::DiskFull { action } } else { Self::Io { action, source: Arc::new(source) } }
    }

    pub(crate) fn corrupt(place: Place, damage: Damage) -> Self {
        Self::Corrupt(Corruption::new(place, damage))
    }

    pub(crate) fn damaged(place: Place, damage: Damage) -> Self {
        Self::Damaged(Corruption::new(place, damage))
    }

    /// Damage with the run and the record that are affected, where it does not say them itself.
    #[cold]
    pub(crate) fn naming(self, agent: &AgentId, run: &RunId, seq: Option<Seq>) -> Self {
        match self {
            Self::Corrupt(corruption) => Self::Corrupt(corruption.of(agent, run).at(seq)),
            other => other,
        }
    }
}

impl From<InvalidId> for Error {
    fn from(InvalidId { kind, len, max }: InvalidId) -> Self {
        Self::InvalidId { kind, len, max }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source.as_ref()),
            Self::Json { source } => Some(source.as_ref()),
            Self::Index { source } => Some(source.as_ref()),
            _ => None,
        }
    }
}
