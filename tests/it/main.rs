//! Behaviour of the store through its public API. The list of modules is the index.

mod basics;
mod format_golden;
mod readme;
mod kill;
mod bad_input;
mod durability;
mod lists;
mod reading;
mod scale;
