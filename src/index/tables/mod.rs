//! The tables in redb: their keys, and the errors and panics of the library.

pub(crate) mod fence;
pub(crate) mod key;
