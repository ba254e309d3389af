//! Processes that read and follow a store beside its writer.

pub(crate) mod following;
pub(crate) mod following_on;
#[cfg(target_os = "linux")]
pub(crate) mod killed_readers;
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
pub(crate) mod load;
pub(crate) mod looks;
#[cfg(target_os = "linux")]
pub(crate) mod only_read;
pub(crate) mod overtaken;
pub(crate) mod read_ahead;
pub(crate) mod refreshes;
pub(crate) mod replicas;
