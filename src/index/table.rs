//! The tables of the index by name.

use core::fmt;

use redb::TableDefinition;

/// How all tables are typed: keys and values are bytes that this crate reads and writes itself.
pub(super) type Bytes = &'static [u8];

/// A table of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub(crate) enum Table {
    /// Run id, agent id and run number.
    RunIds,
    /// The row of each run, by number.
    Runs,
    /// Agent, creation time and run number.
    ByAgent,
    /// Creation time and run number.
    ByTime,
    /// The numbers of the runs that have not ended.
    InProgress,
    /// The number of runs of each agent.
    Agents,
    /// Which segments hold frames of a run.
    Spans,
    /// Namespace, key and number of each version of a document.
    Documents,
    /// Which log this is the index of, and how far it goes.
    Meta,
}

impl Table {
    /// All tables.
    pub(crate) const ALL: [Self; 9] = [
        Self::RunIds,
        Self::Runs,
        Self::ByAgent,
        Self::ByTime,
        Self::InProgress,
        Self::Agents,
        Self::Spans,
        Self::Documents,
        Self::Meta,
    ];

    /// The name in the index.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RunIds => "run_ids",
            Self::Runs => "runs",
            Self::ByAgent => "by_agent",
            Self::ByTime => "by_time",
            Self::InProgress => "in_progress",
            Self::Agents => "agents",
            Self::Spans => "spans",
            Self::Documents => "documents",
            Self::Meta => "meta",
        }
    }

    /// The byte that the checksums of the table's values start with.
    pub(super) fn tag(self) -> u8 {
        match self {
            Self::RunIds => 1,
            Self::Runs => 2,
            Self::ByAgent => 3,
            Self::ByTime => 4,
            Self::InProgress => 5,
            Self::Agents => 6,
            Self::Spans => 7,
            Self::Meta => 8,
            Self::Documents => 9,
        }
    }

    pub(super) fn definition(self) -> TableDefinition<'static, Bytes, Bytes> {
        TableDefinition::new(self.name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
