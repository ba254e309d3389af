//! The ids that callers choose, and how long they may be.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use crate::types::as_text::serde_as_text;

/// The longest agent or run id, in bytes.
pub const MAX_ID_LEN: usize = 512;

/// The longest record kind, in bytes.
pub const MAX_KIND_LEN: usize = 64;

/// Which id was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum IdKind {
    /// An agent id.
    Agent,
    /// A run id.
    Run,
    /// A record kind.
    RecordKind,
    /// The namespace of a document.
    Namespace,
    /// The key of a document.
    Key,
}

/// An id is empty or too long. Calls of the store return it as
/// [`Error::InvalidId`](crate::Error::InvalidId). The caller should use another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct InvalidId {
    /// Which id.
    pub kind: IdKind,
    /// Its length in bytes.
    pub len: usize,
    /// The longest accepted length in bytes; the shortest is 1.
    pub max: usize,
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            IdKind::Agent => "an agent id",
            IdKind::Run => "a run id",
            IdKind::RecordKind => "a record kind",
            IdKind::Namespace => "a namespace",
            IdKind::Key => "a key",
        };
        write!(f, "{what} of {} bytes; 1 to {} are accepted", self.len, self.max)
    }
}

impl core::error::Error for InvalidId {}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Accepts any string of 1 to [`MAX_ID_LEN`] bytes unchanged, with slashes, NULs and
            /// control characters: an id never becomes a file name.
            ///
            /// # Errors
            /// [`InvalidId`] when the string is empty or too long.
            pub fn new(id: &str) -> Result<Self, InvalidId> {
                Self::check(id)?;
                Ok(Self(Arc::from(id)))
            }

            /// Checks whether [`Self::new`] accepts this string.
            pub(crate) fn check(id: &str) -> Result<(), InvalidId> {
                if id.is_empty() || id.len() > MAX_ID_LEN {
                    return Err(InvalidId { kind: $kind, len: id.len(), max: MAX_ID_LEN });
                }
                Ok(())
            }

            /// The id as the caller gave it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// As `new`.
            fn from_str(id: &str) -> Result<Self, InvalidId> {
                Self::new(id)
            }
        }

        serde_as_text!($name);

        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    };
}

id!(
    /// The id of an agent: any string of 1 to 512 bytes.
    AgentId,
    IdKind::Agent
);
id!(
    /// The id of a run: any string of 1 to 512 bytes, unique within its agent.
    RunId,
    IdKind::Run
);
