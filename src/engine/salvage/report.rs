//! What a salvage brought out, what is missing, and what it cannot know.

use core::fmt;

use crate::error::Corruption;
use crate::types::{AgentId, RunId, RunNo, Seq};

/// What [`salvage`](crate::salvage) brought out, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "what is missing is in the report"]
pub struct SalvageReport {
    /// Whether the manifest was whole and up to date, so that it is known which segments count.
    /// Without it all segments that are found count.
    pub has_manifest: bool,
    /// Segments that were found, those that no longer count included.
    pub segments: u64,
    /// Segments whose headers are lost.
    pub lost_headers: u64,
    /// Runs in the new store.
    pub runs: u64,
    /// Records of these runs.
    pub records: u64,
    /// The bytes of these records and of the documents, without kinds.
    pub bytes: u64,
    /// Documents in the new store.
    pub documents: u64,
    /// Receipts of deleted runs in the new store.
    pub receipts: u64,
    /// Deleted runs and versions of documents of which the file still has frames. They were left
    /// out.
    pub deleted: u64,
    /// What could not be read.
    pub missing: Vec<Missing>,
    /// What cannot be known.
    pub doubts: Vec<Doubt>,
    /// Damage of what is in front of the segments.
    pub damaged: Vec<Corruption>,
}

impl SalvageReport {
    /// Whether nothing is known to be missing. Deletions may be in doubt nevertheless.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Something that could not be read out of a damaged store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Missing {
    /// Records of a run. The records behind them have smaller sequences in the new store.
    Records {
        /// The agent, as in the new store.
        agent: AgentId,
        /// The run, as in the new store.
        run: RunId,
        /// The sequence of the first of them, as in the damaged store.
        first: Seq,
        /// How many.
        count: u64,
    },
    /// The metadata of a run.
    Metadata {
        /// The agent, as in the new store.
        agent: AgentId,
        /// The run, as in the new store.
        run: RunId,
    },
    /// The bytes of an outcome. The status is there.
    Outcome {
        /// The agent, as in the new store.
        agent: AgentId,
        /// The run, as in the new store.
        run: RunId,
    },
    /// The reason of a hold. The run is held.
    HoldReason {
        /// The agent, as in the new store.
        agent: AgentId,
        /// The run, as in the new store.
        run: RunId,
    },
    /// The ids of a run or document. It has others in the new store.
    Name {
        /// The agent or namespace in the new store.
        agent: AgentId,
        /// The run or key in the new store.
        run: RunId,
        /// The number of the run, or the version of the document.
        number: RunNo,
    },
    /// A document: its current version. Older versions are not brought back in its place.
    Document {
        /// The namespace.
        namespace: AgentId,
        /// The key.
        key: RunId,
    },
    /// Records of a batch whose end is missing, or documents of one that lacks a frame. Either the
    /// batch was never written whole, and did not count, or a part of it is lost.
    Unfinished {
        /// The agent, or the namespace of a document, as in the damaged store, unless it is lost.
        agent: Option<AgentId>,
        /// The run, or the key of a document.
        run: Option<RunId>,
        /// The number of the run, or the version of the document.
        number: RunNo,
        /// Whether it is a version of a document.
        is_document: bool,
        /// The sequence of the first of them, as in the damaged store.
        first: Seq,
        /// How many.
        count: u64,
    },
    /// Bytes of a segment that are no frames, that the disk cannot read, or that the file does not
    /// have any more: whatever was there is lost, also what nothing else in the file tells of.
    /// Without the manifest, also what the disk cannot read of an extent that may have been a
    /// segment.
    Bytes {
        /// Where they are in the damaged file.
        offset: u64,
        /// How many.
        len: u64,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>, what: &str, agent: &AgentId, run: &RunId| {
            write!(f, "{what} of the run {run} of the agent {agent}")
        };
        match self {
            Self::Records { agent, run, first, count } => {
                of(f, &records(*first, *count), agent, run)
            }
            Self::Metadata { agent, run } => of(f, "the metadata", agent, run),
            Self::Outcome { agent, run } => of(f, "the bytes of the outcome", agent, run),
            Self::HoldReason { agent, run } => of(f, "the reason of the hold", agent, run),
            Self::Name { agent, run, number } => {
                write!(f, "the ids of number {number}, which is now {agent}/{run}")
            }
            Self::Document { namespace, key } => {
                write!(f, "the document {key} of the namespace {namespace}")
            }
            Self::Unfinished { agent, run, number, is_document, first, count } => {
                let batch = "of a batch whose end is missing";
                match (agent, run) {
                    (Some(namespace), Some(key)) if *is_document => write!(
                        f,
                        "version {number} of the document {key} of the namespace {namespace}, \
                         {batch}"
                    ),
                    (Some(agent), Some(run)) => {
                        of(f, &records(*first, *count), agent, run)?;
                        write!(f, ", {batch}")
                    }
                    _ => write!(f, "{} of number {number}, {batch}", records(*first, *count)),
                }
            }
            Self::Bytes { offset, len } => write!(f, "{len} bytes of a segment at {offset:#x}"),
        }
    }
}

/// `record 3`, `records 3 to 5`.
fn records(first: Seq, count: u64) -> String {
    match count {
        0 | 1 => format!("record {first}"),
        _ => format!("records {first} to {}", first.0.saturating_add(count - 1)),
    }
}

/// Something that a salvage cannot know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Doubt {
    /// Without the manifest it is unknown which segments count. A run comes back if it was deleted,
    /// the record of its deletion is lost, and its segment was not erased yet.
    NoManifest,
    /// So many records of deletions cannot be read, or were left out, since it is unknown whether
    /// they ever counted. The runs and documents that they delete have come back, unless another
    /// place tells of their deletion.
    Deletions {
        /// How many.
        count: u64,
    },
    /// Several runs have the same ids: all but the last were deleted once, and the records of these
    /// deletions are lost. This one got another id.
    Renamed {
        /// The agent.
        agent: AgentId,
        /// The id that the run had.
        run: RunId,
        /// The id that it has in the new store.
        to: RunId,
    },
    /// So many frames are of batches whose end is missing, or delete in a batch that lacks a frame,
    /// or are of a document that such a batch wrote. They were left out, since it is unknown
    /// whether they ever counted; [`Missing::Unfinished`] names their records.
    Unfinished {
        /// How many frames.
        frames: u64,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoManifest => f.write_str(
                "the manifest is lost: runs that were deleted may have come back, if the records \
                 of their deletions are lost too",
            ),
            Self::Deletions { count } => {
                write!(f, "{count} records of deletions are lost: their runs may have come back")
            }
            Self::Renamed { agent, run, to } => write!(
                f,
                "a later run of the agent {agent} has the id {run}: the earlier one, which was \
                 deleted once, is now {to}"
            ),
            Self::Unfinished { frames } => {
                write!(f, "{frames} frames of batches that are not whole are left out")
            }
        }
    }
}
