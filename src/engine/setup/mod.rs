//! The options of a store, and what all of its components share.

pub(crate) mod due;
pub(crate) mod environment;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod locks;
pub(crate) mod memory;
pub(crate) mod observer;
pub(crate) mod options;
pub(crate) mod signal;
#[cfg(feature = "tracing")]
mod traced;
mod watch;

use std::sync::Arc;

use crate::engine::setup::health::Monitor;
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Options;
use crate::error::Result;
use crate::format::ExtentSize;
use crate::types::Timestamp;

/// What does not change while a store is open.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: Options,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
}

impl Setup {
    /// Does an activity, and reports its begin and end; see [`Monitor::watch`].
    pub(crate) fn watch<T>(
        &self,
        activity: Activity,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.monitor.watch(activity, work)
    }

    /// Does small work that belongs to an activity, and reports it only if it fails.
    pub(crate) fn watch_failure<T>(
        &self,
        activity: Activity,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.monitor.watch_failure(activity, work)
    }

    /// The time of the clock in the options.
    pub(crate) fn now(&self) -> Timestamp {
        self.options.environment.clock.now()
    }
}
