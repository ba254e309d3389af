//! Holds: runs that no policy and no call deletes until they are released.

use crate::engine::api::run_log::RunLog;
use crate::engine::read::Reader;
use crate::engine::values::pages::HeldRun;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::types::{Durability, RunRef};

impl RunLog {
    /// Holds a run: no policy and no call deletes it until it is released. Answers
    /// whether that is new; holding it for another reason replaces the reason.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`];
    /// [`Error::InvalidArgument`] for a reason of more than 4,096 bytes.
    pub fn hold<'r>(&self, run: impl Into<RunRef<'r>>, reason: &str) -> Result<bool> {
        let held = self.log().hold(run.into(), Some(reason));
        self.log().told(held, Durability::Disk)
    }

    /// Releases a run. Answers whether it was held.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`].
    pub fn release<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<bool> {
        let released = self.log().hold(run.into(), None);
        self.log().told(released, Durability::Disk)
    }

    /// All runs that are held, by agent and run. Looks at every run.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn held_runs(&self) -> Result<Vec<HeldRun>> {
        self.ask(Reader::held_runs)
    }
}
