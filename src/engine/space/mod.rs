//! Who owns which extent of the file, and what becomes of those that are free.

pub(crate) mod manifest_log;
pub(crate) mod release;
pub(crate) mod reserve;
