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
    /// Whether the manifest was whole, so that it is known which segments count. Without it all
    /// segments that are found count.
    pub has_manifest: bool,
    /// Segments that were read.
    pub segments: u64,
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
    pub caveats: Vec<Caveat>,
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
    /// The latest version of a document. The new store has the latest one that can be read, if its
    /// deletion is not recorded.
    Document {
        /// The namespace.
        namespace: AgentId,
        /// The key.
        key: RunId,
    },
    /// Bytes of a segment that are not frames, that the device cannot read, or that are behind the
    /// end of the file. Frames that no other structure lists may have been there.
    ///
    /// Without the manifest, an extent counts as a segment if the device cannot read its header.
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
pub enum Caveat {
    /// The manifest is lost, so segments are found by their headers. One without a header is
    /// missing. Those that were retired count like all others: a deleted run comes back if the
    /// record of its deletion was in a segment that is gone.
    NoManifest,
    /// The salvage missed bytes, and records of deletions may have been among them. The runs and
    /// documents that they deleted come back, unless another place records the deletion too.
    Deletions,
    /// Some batches are not whole. The salvage left their frames out, and the deletions among them.
    Unfinished {
        /// How many frames.
        frames: u64,
    },
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoManifest => f.write_str(
                "the manifest is lost: segments whose headers are lost too are missing, and runs \
                 that were deleted may have come back",
            ),
            Self::Deletions => f.write_str(
                "bytes are missing, and records of deletions may have been among them: their runs \
                 may have come back",
            ),
            Self::Unfinished { frames } => {
                write!(f, "{frames} frames of batches that are not whole are left out")
            }
        }
    }
}
