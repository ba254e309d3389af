//! Why a run goes by a policy, and why it stays.

use core::fmt;
use core::str::FromStr;

use crate::types::UnknownWord;

/// Why a run went, or was due to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// Its agent has enough newer ones.
    NewestN,
    /// It ended too long ago.
    Age,
    /// There were too many bytes, and it had ended first.
    Bytes,
    /// A call deleted this run.
    Deleted,
    /// A call erased this run: no byte of it is left in the file.
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

    /// The rule as one lower-case word, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NewestN => "newest_n",
            Self::Age => "age",
            Self::Bytes => "bytes",
            Self::Deleted => "deleted",
            Self::Erased => "erased",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Rule {
    type Err = UnknownWord;

    /// Reads what [`Rule::as_str`] gives.
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let all = [Self::NewestN, Self::Age, Self::Bytes, Self::Deleted, Self::Erased];
        let expected = "newest_n, age, bytes, deleted or erased";
        all.into_iter().find(|rule| rule.as_str() == word).ok_or(UnknownWord { expected })
    }
}

/// Why a run stays although a limit says otherwise. Of several reasons the first here is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Protection {
    /// It has not ended.
    InProgress,
    /// It is held.
    Held,
    /// It is the newest completed run of its agent, and the policy protects those.
    Newest,
}

impl Protection {
    /// The reason as one lower-case word, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Held => "held",
            Self::Newest => "newest",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
