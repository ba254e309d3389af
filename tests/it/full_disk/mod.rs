//! A full disk refuses appends, and lets runs end and be deleted.

#[cfg(target_os = "linux")]
pub(crate) mod ext3;
#[cfg(target_os = "linux")]
pub(crate) mod mounts;
pub(crate) mod refused;
pub(crate) mod reopened;
#[cfg(target_os = "linux")]
pub(crate) mod tmpfs;
