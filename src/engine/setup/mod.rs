//! What a store is opened with, and what all of its components share.

pub(crate) mod due;
pub(crate) mod environment;
pub(crate) mod host;
pub(crate) mod locks;
pub(crate) mod observer;
pub(crate) mod options;

use crate::engine::setup::observer::{Activity, Watch};
use crate::engine::setup::options::Options;
use crate::format::ExtentSize;
use crate::types::Timestamp;

/// What stays as it is while a store is open.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: Options,
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
}

impl Setup {
    pub(crate) fn watch(&self, activity: Activity) -> Watch {
        Watch::begin(self.options.observer.as_ref(), activity)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.options.environment.clock.now()
    }
}
