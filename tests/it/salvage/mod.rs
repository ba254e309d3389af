//! What salvage brings out of a damaged store.

pub(crate) mod crowded_blocks;
pub(crate) mod cut_reclaims;
pub(crate) mod in_place;
pub(crate) mod salvaged_batches;
pub(crate) mod salvaged_losses;
pub(crate) mod whole_records;
