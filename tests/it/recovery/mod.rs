//! What an opening does with what a crash, or one fault of the medium, left.

pub(crate) mod agreeing;
pub(crate) mod bit_flips;
pub(crate) mod broken_off;
pub(crate) mod damaged_blocks;
pub(crate) mod damaged_ranges;
pub(crate) mod every_byte;
pub(crate) mod full_segments;
pub(crate) mod harmed;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
pub(crate) mod hostile;
pub(crate) mod index_and_log;
pub(crate) mod interrupted;
pub(crate) mod lost_commits;
pub(crate) mod lost_ends;
pub(crate) mod lost_tails;
pub(crate) mod quarantine;
pub(crate) mod reopening;
pub(crate) mod stated_floors;
pub(crate) mod trust;
pub(crate) mod unread_sectors;
