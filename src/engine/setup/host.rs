//! The name of this machine, for error messages.

/// The name of this machine, or an empty string.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
