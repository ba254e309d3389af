//! What an opening does with what a crash, or one fault of the medium, left.

pub(crate) mod damaged_blocks;
pub(crate) mod damaged_ranges;
pub(crate) mod every_byte;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
pub(crate) mod hostile;
pub(crate) mod index_and_log;
pub(crate) mod lost_tails;
pub(crate) mod quarantine;
pub(crate) mod reopening;
pub(crate) mod torn_tails;
pub(crate) mod trust;
pub(crate) mod unread_sectors;
