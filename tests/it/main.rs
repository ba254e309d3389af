//! Behaviour of the store through its public API. The list of modules is the index.

#![allow(
    clippy::pedantic,
    clippy::manual_is_multiple_of,
    clippy::needless_range_loop,
    reason = "tests count and compare; the strict lints are for what ships"
)]

mod bad_input;
mod basics;
mod bit_flips;
mod compressed;
mod documents;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod durability;
mod format_golden;
mod hostile;
mod io_faults;
mod kill;
mod lists;
mod locking;
mod model;
mod power_cuts;
mod readers;
mod reading;
mod readme;
mod reopening;
mod retention;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod scale;
mod space;
mod support;
mod tail_writers;
mod tidy;
