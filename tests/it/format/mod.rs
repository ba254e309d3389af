//! The bytes of the format.

pub(crate) mod format_golden;
mod ids;
mod watermarks;
