//! The page that names this process as the owner of a store.

use crate::error::Owner;
use crate::format::map::owner;
use crate::types::Timestamp;

/// The page of the owner, for this process and machine.
pub(crate) fn owner_page(since: Timestamp) -> Vec<u8> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    owner::encode(&Owner { pid: std::process::id(), host, since })
}
