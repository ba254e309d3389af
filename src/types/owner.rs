//! The process that has a store open: [`Owner`].

use core::fmt;

use crate::types::timestamp::Timestamp;

/// The process that holds the writer lock, as the owner page of the file says. For people only: the
/// lock itself decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Owner {
    /// The process id.
    pub pid: u32,
    /// The name of the machine.
    pub host: String,
    /// When it opened the store.
    pub since: Timestamp,
}

impl Owner {
    /// A process, its machine, and when it opened the store.
    pub fn new(pid: u32, host: &str, since: Timestamp) -> Self {
        Self { pid, host: host.to_owned(), since }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {:?}", self.pid, self.host)
    }
}
