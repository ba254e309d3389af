//! What errors say. Messages never hold payload bytes.

use core::fmt;

use crate::error::{Error, IoAction, Sized};
use crate::types::{InvalidId, Timestamp};

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, .. } => write!(f, "cannot {action}"),
            Self::DiskFull { action } => {
                write!(f, "cannot {action}: no space left; free space and try again")
            }
            Self::Busy { path, owner } => {
                write!(f, "the store {} is open for writing", path.display())?;
                match owner {
                    Some(owner) if owner.since == Timestamp(0) => write!(f, " by {owner}"),
                    Some(owner) => write!(f, " by {owner} since {:.0}", owner.since),
                    None => f.write_str(" elsewhere"),
                }
            }
            Self::Corrupt(corruption) => corruption.fmt(f),
            Self::Poisoned => f.write_str(
                "an earlier write or sync failed; close and reopen the store to go on writing",
            ),
            Self::Closed => f.write_str("the store is closed; open it again"),
            Self::RunNotFound { run, agent: Some(agent) } => {
                write!(f, "agent {agent:?} has no run {run:?}")
            }
            Self::RunNotFound { run, agent: None } => write!(f, "there is no run {run:?}"),
            Self::Ambiguous { run, agents } => {
                write!(f, "several agents have a run {run:?}: {agents:?}; name the agent too")
            }
            Self::RunExists { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} has other metadata; use another run id")
            }
            Self::RunEnded { agent, run, status } => {
                write!(f, "run {run:?} of agent {agent:?} has ended ({status})")
            }
            Self::RunInProgress { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} is in progress; end it first")
            }
            Self::Conflict { namespace, key, found } => {
                write!(f, "version mismatch of document {key:?} in {namespace:?}: ")?;
                match found {
                    Some(version) => write!(f, "it has version {version}; re-read it and retry"),
                    None => write!(f, "it does not exist; re-read it and retry"),
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
                write!(f, "{what} has {len} bytes; at most {max} are accepted")
            }
            Self::InvalidArgument { what } => write!(f, "invalid argument: {what}"),
            Self::Json { .. } => f.write_str("the JSON does not match the expected shape"),
            Self::Index { .. } => f.write_str("the index failed; it will be rebuilt"),
            Self::Panicked => {
                f.write_str("work of the engine panicked; report it, and reopen the store")
            }
            other => other.fmt_refusal(f),
        }
    }
}

impl Error {
    /// The messages of variants that refuse to open or create a file.
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked { path, live_views } => {
                let (path, few) = (path.display(), if *live_views == 1 { "" } else { "s" });
                write!(f, "{live_views} view{few} of this process still hold the closed store ")?;
                write!(f, "{path}; drop its records, payloads and traces")
            }
            Self::NotFound { path } => write!(f, "there is no store at {}", path.display()),
            Self::AlreadyExists { path } => write!(f, "there is already a file {}", path.display()),
            Self::NotRegularFile { path } => {
                write!(f, "{} is not a regular file; links are not followed", path.display())
            }
            Self::NotAStore { len, .. } => {
                write!(f, "this file of {len} bytes is not a run log; check the path")
            }
            Self::Damaged(corruption) => {
                write!(f, "{corruption}; the file was not changed, run salvage")
            }
            Self::UnsupportedVersion { found, supported } => write!(
                f,
                "the file has format version {found}, this program reads version {supported}; use \
                 a program of that version"
            ),
            Self::UnsupportedFeatures { unknown } => {
                write!(f, "the file needs unknown features {unknown:#x}; update the program")
            }
            Self::NetworkFileSystem { name } => write!(
                f,
                "the file is on a network file system ({name}), where a writer lock may not hold; \
                 use a local disk, or allow it if its locks work"
            ),
            Self::CopyDamaged { damage } => {
                write!(f, "the earlier copy is damaged ({damage}): back up into a new file")
            }
            Self::Overtaken { attempts } => {
                write!(f, "the store changed each of {attempts} times that it was read; try again")
            }
            Self::Replaced { path } => write!(
                f,
                "{} names another file than the one that was opened, or none; open it again",
                path.display()
            ),
            Self::Exhausted { what } => {
                write!(f, "there are no more numbers for {what}; continue in a new run or store")
            }
            Self::NeedsFeature { feature } => write!(
                f,
                "this level of compression needs the feature `{feature}` of runlog, which this \
                 program was built without; choose a lower level, or rebuild it with the feature"
            ),
            _ => f.write_str("the store cannot be opened"),
        }
    }
}

impl fmt::Display for IoAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("create the store"),
            Self::Open => f.write_str("open the store"),
            Self::Lock => f.write_str("lock the store"),
            Self::Read { offset } => write!(f, "read the store at {offset:#x}"),
            Self::Write { offset } => write!(f, "write the store at {offset:#x}"),
            Self::Allocate { offset } => write!(f, "allocate space up to {offset:#x}"),
            Self::Release { offset } => write!(f, "release space at {offset:#x}"),
            Self::Sync => f.write_str("sync the store"),
            Self::Randomness => f.write_str("get random bytes"),
            Self::Thread => f.write_str("start the background thread"),
        }
    }
}
