//! The one error type of the crate. Each variant says what the caller should do about it.

use core::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use crate::damage::{Corruption, Damage, Place};
use crate::types::{AgentId, IdKind, InvalidId, RunId, RunStatus, Version};

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
    /// No space is left for this append; nothing of it was stored, and all that was acknowledged
    /// before is safe. The caller should free space and append again; runs can still be ended.
    DiskFull {
        /// What the engine was doing.
        action: IoAction,
    },
    /// No file at this path. The caller should create the store or correct the path.
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// A file is already there, and the call was to create one. The caller should open it.
    AlreadyExists {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The path is a directory, a symbolic link, a device or another special file. The caller
    /// should name a regular file; links are not followed, so that no one can redirect the store.
    NotRegularFile {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is not a run log, or too damaged to tell. It was not touched. The caller should
    /// check the path.
    NotAStore {
        /// The first bytes of the file, at most 16.
        found: Vec<u8>,
        /// The length of the file.
        len: u64,
    },
    /// The file ends before what it says it holds. It was not touched. The caller should restore it
    /// from a copy; the part that is there can be read after extending the file with zeros.
    Truncated {
        /// The length of the file.
        len: u64,
        /// The length that it must have at least.
        expected: u64,
    },
    /// The file was written by a newer version of this program. It was not touched. The caller
    /// should update the program.
    UnsupportedVersion {
        /// The version that the file asks a reader to know.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// The file needs features that this program does not know. It was not touched. The caller
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
    /// Bytes of the store are damaged. Only what the position names is affected. The caller should
    /// run `verify` and restore what it needs from a copy; other runs stay readable.
    Corrupt(Corruption),
    /// An earlier write or sync failed, so nothing more is accepted: after a failed sync it is
    /// unknown what reached the disk. Reads go on. The caller should close and reopen the store,
    /// which recovers everything that was acknowledged.
    Poisoned,
    /// The store was closed, or this process is a child that was forked while the store was open:
    /// it is its parent's. The caller should open it again, once the parent has closed it.
    Closed,
    /// The store has given out all of the numbers that its format has for this. Nothing was stored;
    /// everything that was stays readable. The caller should go on in a new store.
    Exhausted {
        /// What there are no more numbers for.
        what: &'static str,
    },
    /// No such run. The caller should check the id.
    RunNotFound {
        /// The run that was asked for.
        run: RunId,
        /// The agent, where it was named.
        agent: Option<AgentId>,
    },
    /// Several agents have a run of this id. The caller should name the agent too.
    Ambiguous {
        /// The run that was asked for.
        run: RunId,
        /// The agents that have it, sorted.
        agents: Vec<AgentId>,
    },
    /// The run was started before with other metadata. The caller should choose another run id,
    /// or start it with the same metadata to go on with it.
    RunExists {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// The run has ended; it takes no more records and no other outcome. The caller should start a
    /// new run, or append by ids and ask for records after the end.
    RunEnded {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
        /// How it ended.
        status: RunStatus,
    },
    /// The run has not ended, and what was asked for needs an ended one. The caller should end it
    /// first.
    RunInProgress {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// A document is not as the caller expected it: another call wrote it in between. Nothing was
    /// written. The caller should read it and decide anew.
    Conflict {
        /// The namespace of the document.
        namespace: String,
        /// Its key.
        key: String,
        /// The version that it has; none if it is not there.
        found: Option<Version>,
    },
    /// The run is held, and cannot be deleted. The caller should release it first.
    RunHeld {
        /// The agent of the run.
        agent: AgentId,
        /// The run.
        run: RunId,
    },
    /// The run was deleted or evicted while it was used. The caller should stop using it.
    Evicted {
        /// The run, where it is known.
        run: Option<RunId>,
    },
    /// An id is empty or too long. The caller should shorten it.
    InvalidId {
        /// Which id.
        kind: IdKind,
        /// Its length in bytes.
        len: usize,
        /// The longest that is accepted.
        max: usize,
    },
    /// A record, an outcome, metadata or a batch is larger than the store accepts. Nothing was
    /// stored. The caller should split it.
    TooLarge {
        /// What is too large.
        what: Sized,
        /// Its size in bytes.
        len: u64,
        /// The largest that is accepted by this store.
        max: u64,
    },
    /// A value is outside of what the call accepts. The caller should correct it.
    InvalidArgument {
        /// Which argument, and what is accepted.
        what: &'static str,
    },
    /// A record is compressed, or was to be, and this program was built without the codec. All
    /// bytes are safe, and everything but the payloads of such records can be read. The caller
    /// should build the program with this Cargo feature of runlog.
    NeedsFeature {
        /// The name of the feature.
        feature: &'static str,
    },
    /// A value could not be turned into JSON, or JSON into the value. The stored bytes stay
    /// readable as they are.
    Json {
        /// What serde said.
        source: Arc<serde_json::Error>,
    },
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
    /// Reserving space up to an offset of the file.
    Allocate {
        /// The offset in the file.
        offset: u64,
    },
    /// Giving space back.
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
    /// Releasing the file.
    Close,
}

impl fmt::Display for IoAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("create the store"),
            Self::Open => f.write_str("open the store"),
            Self::Lock => f.write_str("lock the store"),
            Self::Read { offset } => write!(f, "read the store at {offset:#x}"),
            Self::Write { offset } => write!(f, "write the store at {offset:#x}"),
            Self::Allocate { offset } => write!(f, "reserve space up to {offset:#x}"),
            Self::Release { offset } => write!(f, "release space at {offset:#x}"),
            Self::Sync => f.write_str("sync the store"),
            Self::Randomness => f.write_str("get random bytes"),
            Self::Thread => f.write_str("start the background thread"),
            Self::Close => f.write_str("release the store"),
        }
    }
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

/// Who holds the writer lock, as the owner page of the file says. For people only: the lock
/// itself decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process id.
    pub pid: u32,
    /// The name of the machine.
    pub host: String,
    /// When it opened the store, nanoseconds since the Unix epoch.
    pub since: crate::types::Timestamp,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {:?}", self.pid, self.host)
    }
}

/// What was read, or nothing if that is damaged. A failed read says nothing, and stays an error.
pub(crate) fn unless_damaged<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if error.is_corruption() => Ok(None),
        read => read.map(Some),
    }
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

    /// Whether stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Truncated { .. })
    }

    /// Whether another process or handle has the store open for writing.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Whether space ran out.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }

    /// Whether the file was written by a newer version of this program.
    pub fn is_newer_format(&self) -> bool {
        matches!(self, Self::UnsupportedVersion { .. } | Self::UnsupportedFeatures { .. })
    }

    /// Whether an earlier write or sync failed, so that the store must be opened again.
    pub fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned)
    }

    /// Whether the store was closed, or belongs to the parent of this process.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// Whether another call changed a document in between, so that it should be read again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the run has ended, and takes nothing more.
    pub fn is_run_ended(&self) -> bool {
        matches!(self, Self::RunEnded { .. })
    }

    /// Whether the arguments are at fault: the same call will never succeed.
    pub fn is_invalid_input(&self) -> bool {
        matches!(
            self,
            Self::InvalidId { .. } | Self::TooLarge { .. } | Self::InvalidArgument { .. }
        )
    }

    /// Whether the run that was asked for is not there (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::RunNotFound { .. } | Self::NotFound { .. } | Self::Evicted { .. })
    }
}

impl Error {
    /// What is said of a file that cannot be opened or created, or not with this program.
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { path } => write!(f, "there is no store at {}", path.display()),
            Self::AlreadyExists { path } => write!(f, "there is already a file {}", path.display()),
            Self::NotRegularFile { path } => {
                write!(f, "{} is not a regular file; links are not followed", path.display())
            }
            Self::NotAStore { len, .. } => {
                write!(f, "this file of {len} bytes is not a run log; check the path")
            }
            Self::Truncated { len, expected } => {
                write!(f, "the file has {len} bytes of at least {expected}; restore it from a copy")
            }
            Self::UnsupportedVersion { found, supported } => write!(
                f,
                "the file needs format version {found}, this program knows up to {supported}; \
                 update the program"
            ),
            Self::UnsupportedFeatures { unknown } => {
                write!(f, "the file needs unknown features {unknown:#x}; update the program")
            }
            Self::Exhausted { what } => {
                write!(f, "this store has no more numbers for {what}; go on in a new store")
            }
            Self::NeedsFeature { feature } => write!(
                f,
                "compressed records need the feature `{feature}` of runlog, which this program was \
                 built without; build it with the feature"
            ),
            _ => f.write_str("the store cannot be opened"),
        }
    }
}

impl From<InvalidId> for Error {
    fn from(InvalidId { kind, len, max }: InvalidId) -> Self {
        Self::InvalidId { kind, len, max }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, .. } => write!(f, "cannot {action}"),
            Self::DiskFull { action } => {
                write!(f, "cannot {action}: no space is left; free some and try again")
            }
            Self::Busy { path, owner } => {
                write!(f, "the store {} is open for writing", path.display())?;
                match owner {
                    Some(owner) => write!(f, " by {owner}"),
                    None => f.write_str(" elsewhere"),
                }
            }
            Self::Corrupt(corruption) => corruption.fmt(f),
            Self::Poisoned => f.write_str(
                "an earlier write or sync failed; close and reopen the store to go on writing",
            ),
            Self::Closed => f.write_str("the store is closed"),
            Self::RunNotFound { run, agent: Some(agent) } => {
                write!(f, "agent {agent:?} has no run {run:?}")
            }
            Self::RunNotFound { run, agent: None } => write!(f, "there is no run {run:?}"),
            Self::Ambiguous { run, agents } => {
                write!(f, "several agents have a run {run:?}: {agents:?}; name the agent too")
            }
            Self::RunExists { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} was started with other metadata")
            }
            Self::RunEnded { agent, run, status } => {
                write!(f, "run {run:?} of agent {agent:?} has ended ({status})")
            }
            Self::RunInProgress { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} is in progress; end it first")
            }
            Self::Conflict { namespace, key, found } => {
                write!(f, "document {key:?} of {namespace:?} is not as expected: it ")?;
                match found {
                    Some(version) => write!(f, "has version {version}; read it and decide anew"),
                    None => write!(f, "is not there; decide anew"),
                }
            }
            Self::RunHeld { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} is held; release it first")
            }
            Self::Evicted { run: Some(run) } => write!(f, "run {run:?} was deleted"),
            Self::Evicted { run: None } => f.write_str("the run was deleted"),
            Self::InvalidId { kind, len, max } => {
                InvalidId { kind: *kind, len: *len, max: *max }.fmt(f)
            }
            Self::TooLarge { what, len, max } => {
                let what = match what {
                    Sized::Record => "a record",
                    Sized::Metadata => "metadata",
                    Sized::Outcome => "an outcome",
                    Sized::Batch => "a batch",
                };
                write!(f, "{what} of {len} bytes; at most {max} are accepted")
            }
            Self::InvalidArgument { what } => write!(f, "invalid argument: {what}"),
            Self::Json { .. } => f.write_str("the value is not JSON of the expected shape"),
            other => other.fmt_refusal(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source.as_ref()),
            Self::Json { source } => Some(source.as_ref()),
            _ => None,
        }
    }
}
