//! Small vocabularies: each value has a word.

use core::fmt;
use core::str::FromStr;

use crate::types::as_text::serde_as_text;

/// One lower-case word for each value of a type: the value prints as the word and parses from it.
macro_rules! words {
    ($name:ident { $($value:ident => $word:literal,)+ } $expected:literal) => {
        impl $name {
            /// The value as one lower-case word, the same as in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::types::UnknownWord;

            /// Reads what `as_str` gives.
            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$value),)+
                    _ => Err($crate::types::UnknownWord { expected: $expected }),
                }
            }
        }

        $crate::types::as_text::serde_as_text!($name);
    };
}
pub(crate) use words;

/// The type of the bytes of a payload. The engine stores it and never looks inside the payload.
///
/// This project assigns the codes 0 to 127; applications may use 128 to 255 as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ContentType(u8);

impl ContentType {
    /// Bytes of an unspecified type.
    pub const BYTES: Self = Self(0);
    /// One JSON value in UTF-8.
    pub const JSON: Self = Self(1);
    /// UTF-8 text.
    pub const TEXT: Self = Self(2);
    /// One unchanged line of a JSON Lines file, valid JSON or not, without its newline.
    pub const JSON_LINE: Self = Self(3);
    /// `MessagePack`.
    pub const MSGPACK: Self = Self(4);
    /// CBOR (RFC 8949).
    pub const CBOR: Self = Self(5);

    /// The content type with this code.
    pub const fn from_code(code: u8) -> Self {
        Self(code)
    }

    /// The code that is stored.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The content types that this project assigned, and their names.
const CONTENT_TYPES: [(ContentType, &str); 6] = [
    (ContentType::BYTES, "bytes"),
    (ContentType::JSON, "json"),
    (ContentType::TEXT, "text"),
    (ContentType::JSON_LINE, "json_line"),
    (ContentType::MSGPACK, "msgpack"),
    (ContentType::CBOR, "cbor"),
];

/// The first code of the application's own content types.
const FIRST_CUSTOM: u8 = 128;

impl fmt::Display for ContentType {
    /// The name of an assigned code, such as `json`; `custom:N` for the application's own, by its
    /// code; `unknown:N` for a code that a later version assigned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CONTENT_TYPES.iter().find(|(assigned, _)| assigned == self) {
            Some((_, name)) => f.pad(name),
            None if self.0 >= FIRST_CUSTOM => write!(f, "custom:{}", self.0),
            None => write!(f, "unknown:{}", self.0),
        }
    }
}

impl FromStr for ContentType {
    type Err = UnknownWord;

    /// Parses what `Display` prints.
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let assigned = CONTENT_TYPES.iter().find(|(_, name)| *name == word);
        let numbered = || {
            let (_, code) = word.split_once(':')?;
            let found = Self(code.parse().ok()?);
            (found.to_string() == word).then_some(found)
        };
        let expected = "bytes, json, text, json_line, msgpack, cbor, custom:N or unknown:N";
        assigned.map(|(found, _)| *found).or_else(numbered).ok_or(UnknownWord { expected })
    }
}

serde_as_text!(ContentType);

/// Whether a run is in progress, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RunStatus {
    /// Not ended. A run whose writer died is also in progress until it is adopted.
    #[default]
    InProgress,
    /// Ended, with success.
    Completed,
    /// Ended, with failure.
    Failed,
    /// Ended because a user or a program asked for it.
    Cancelled,
    /// Ended by `RunLog::adopt_orphans`, since its writer had gone without ending it.
    Interrupted,
}

impl RunStatus {
    /// Whether the run has ended.
    pub fn is_ended(self) -> bool {
        self != Self::InProgress
    }

    /// The code that is stored in END frames and directories.
    pub fn code(self) -> u8 {
        match self {
            Self::InProgress => 0,
            Self::Completed => 1,
            Self::Failed => 2,
            Self::Cancelled => 3,
            Self::Interrupted => 4,
        }
    }

    /// The status with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::InProgress,
            1 => Self::Completed,
            2 => Self::Failed,
            3 => Self::Cancelled,
            4 => Self::Interrupted,
            _ => return None,
        })
    }
}

words! {
    RunStatus {
        InProgress => "in_progress",
        Completed => "completed",
        Failed => "failed",
        Cancelled => "cancelled",
        Interrupted => "interrupted",
    }
    "in_progress, completed, failed, cancelled or interrupted"
}

/// A word does not name a value of the type. The caller should use one of the expected words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownWord {
    /// The words that are accepted.
    pub expected: &'static str,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown word; expected {}", self.expected)
    }
}

impl core::error::Error for UnknownWord {}

/// What an acknowledged append survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Survives the death of the process, SIGKILL included: the bytes are in the kernel when the
    /// append returns. A power loss may lose what no background sync (every 250 ms by default) has
    /// covered yet.
    Process,
    /// Survives power loss too: the append returns after a sync of its bytes succeeded.
    Disk,
}

words! {
    Durability {
        Process => "process",
        Disk => "disk",
    }
    "process or disk"
}
