//! Behaviour of the store through its public API. The list of modules is the index.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::large_stack_arrays,
    clippy::redundant_closure_for_method_calls,
    clippy::similar_names,
    clippy::struct_field_names,
    reason = "numbers in tests are small, and names say what the scene needs"
)]

mod bad_input;
mod basics;
#[allow(
    clippy::pedantic,
    clippy::style,
    clippy::complexity,
    reason = "a simulation counts and compares, for tests only"
)]
mod bit_flips;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod durability;
mod format_golden;
mod hostile;
#[allow(
    clippy::pedantic,
    clippy::style,
    clippy::complexity,
    reason = "a simulation counts and compares, for tests only"
)]
mod io_faults;
mod kill;
mod lists;
mod locking;
#[allow(
    clippy::pedantic,
    clippy::style,
    clippy::complexity,
    reason = "a simulation counts and compares, for tests only"
)]
mod power_cuts;
mod reading;
mod readme;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod scale;
#[allow(
    clippy::pedantic,
    clippy::style,
    clippy::complexity,
    reason = "a simulation counts and compares, for tests only"
)]
mod support;
mod tidy;
