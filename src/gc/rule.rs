//! Why a policy deletes a run, and why it keeps one.

use crate::types::word::words;

/// Why a run was deleted, or is due to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Its agent has enough newer ones.
    NewestN,
    /// It ended too long ago.
    Age,
    /// There were too many bytes, and it ended before the runs that are kept.
    Bytes,
    /// A call deleted this run.
    Deleted,
    /// A call erased this run: no byte of its payloads is left in the file.
    Erased,
}

impl Rule {
    /// The code that is stored.
    pub fn code(self) -> u8 {
        match self {
            Self::NewestN => 1,
            Self::Age => 2,
            Self::Bytes => 3,
            Self::Deleted => 4,
            Self::Erased => 5,
        }
    }

    /// The rule with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::NewestN,
            2 => Self::Age,
            3 => Self::Bytes,
            4 => Self::Deleted,
            5 => Self::Erased,
            _ => return None,
        })
    }
}

words! {
    Rule {
        NewestN => "newest_n",
        Age => "age",
        Bytes => "bytes",
        Deleted => "deleted",
        Erased => "erased",
    }
    "newest_n, age, bytes, deleted or erased"
}

/// Why a run is kept although a limit says otherwise. If several reasons apply, the first one in
/// this order is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protection {
    /// It has not ended.
    InProgress,
    /// It is held.
    Held,
    /// It is the newest completed run of its agent, and the policy protects those.
    Newest,
}

words! {
    Protection {
        InProgress => "in_progress",
        Held => "held",
        Newest => "newest",
    }
    "in_progress, held or newest"
}
