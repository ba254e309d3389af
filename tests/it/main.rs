//! Behaviour of the store through its public API. The list of modules is the index.

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
