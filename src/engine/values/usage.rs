//! What the runs and documents of a store take.

use crate::types::AgentId;

/// What some runs, or some documents, take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Taken {
    /// How many they are.
    pub count: u64,
    /// The bytes of all payloads, as they were appended.
    pub bytes: u64,
    /// The bytes of all frames in the file: payloads, compressed or not, and headers.
    pub stored_bytes: u64,
}

impl Taken {
    pub(crate) fn add(&mut self, bytes: u64, stored: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.stored_bytes = self.stored_bytes.saturating_add(stored);
    }
}

/// What the runs of an agent take.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct AgentUsage {
    /// The agent.
    pub agent: AgentId,
    /// Its runs.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub runs: Taken,
}

/// What the living runs and documents of a store take, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Usage {
    /// The runs, agent by agent, by id.
    pub agents: Vec<AgentUsage>,
    /// The documents. A version that a crash left behind counts until its document is written
    /// again.
    pub documents: Taken,
}
