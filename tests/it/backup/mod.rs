//! Copies of one moment, and stores that were restored from them.

pub(crate) mod backups;
pub(crate) mod failing_copies;
pub(crate) mod interrupted_copies;
pub(crate) mod plain_copies;
pub(crate) mod restored_copies;
