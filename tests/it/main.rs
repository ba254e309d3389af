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
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod durability;
mod format_golden;
mod kill;
mod lists;
mod locking;
mod reading;
mod readme;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
mod scale;
mod tidy;
