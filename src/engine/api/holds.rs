//! Holds: a held run cannot be deleted until it is released.

use crate::engine::api::run_log::RunLog;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::types::{Durability, RunRef};

impl RunLog {
    /// Holds a run: no policy and no call deletes it until it is released. Returns whether the run
    /// was not held before. Holding a held run again with another reason replaces the reason.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`];
    /// [`Error::InvalidArgument`] for a reason of more than 4,096 bytes.
    pub fn hold<'r>(&self, run: impl Into<RunRef<'r>>, reason: &str) -> Result<bool> {
        let held = self.engine().retainer.hold(run.into(), Some(reason));
        self.log().told(held, Durability::Disk)
    }

    /// Releases a run. Returns whether it was held.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`].
    pub fn release<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<bool> {
        let released = self.engine().retainer.hold(run.into(), None);
        self.log().told(released, Durability::Disk)
    }
}
