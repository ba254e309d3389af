//! What a store is opened with.

pub(crate) mod environment;
pub(crate) mod host;
pub(crate) mod observer;
pub(crate) mod options;
