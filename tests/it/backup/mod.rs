//! Copies of one moment, and stores that were restored from them.

pub(crate) mod backups;
pub(crate) mod broken_copies;
pub(crate) mod damaged_copies;
pub(crate) mod failing_copies;
pub(crate) mod lost_after_a_copy;
pub(crate) mod owed_copies;
pub(crate) mod plain_copies;
pub(crate) mod restored_copies;
