//! The behaviour of a store through its public API. The list of modules is the index.

#![allow(
    clippy::pedantic,
    clippy::manual_is_multiple_of,
    clippy::needless_range_loop,
    reason = "tests count and compare; the strict lints are for what ships"
)]

mod agreeing;
mod backups;
mod bad_input;
mod basics;
mod bit_flips;
mod broken_copies;
mod broken_off;
mod closing;
mod compressed;
mod crowded_blocks;
mod damaged_blocks;
mod damaged_copies;
mod damaged_once;
mod damaged_ranges;
mod deferred;
mod documents;
mod doubled_names;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod durability;
mod erased_after_damage;
mod erasing;
mod every_call;
#[cfg(target_os = "linux")]
mod ext3;
mod failing_copies;
mod following;
mod following_damage;
mod following_on;
#[cfg(target_os = "linux")]
mod forks;
mod format_golden;
mod four_answers;
mod full_disk;
mod full_segments;
mod growth;
mod growth_stalled;
mod harmed;
mod harmed_readers;
mod health;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod hostile;
mod hostile_structures;
mod index_and_log;
mod interrupted;
mod io_faults;
mod kill;
#[cfg(target_os = "linux")]
mod killed_readers;
mod large_records;
mod lists;
mod lives;
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod load;
mod locking;
mod looks;
mod lookups;
mod lost_after_a_copy;
mod lost_beginnings;
mod lost_commits;
mod lost_documents;
mod lost_ends;
mod lost_segments;
mod lost_tails;
mod making;
mod memory_storage;
mod model;
mod moments;
#[cfg(target_os = "linux")]
mod mounts;
mod observed;
#[cfg(target_os = "linux")]
mod only_read;
mod overtaken;
mod owed_copies;
mod pairs;
mod panics;
mod plain_copies;
mod poison;
mod power_cuts;
mod queries;
mod read_ahead;
mod readers;
mod reading;
mod readme;
mod refreshes;
mod refused;
mod renamed;
mod reopening;
mod replicas;
mod restored_copies;
mod retention;
mod salvage;
mod salvaged_batches;
mod salvaged_losses;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod scale;
mod shorten;
mod space;
mod stated_floors;
mod steps;
mod structures;
mod support;
mod tail_writers;
#[cfg(target_os = "linux")]
mod tmpfs;
mod trust;
mod unread_after_kills;
mod unread_sectors;
mod unstated;
mod waiting_reads;
mod wakers;
