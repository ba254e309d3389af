//! Finding runs, and reading their records.

pub(crate) mod block;
pub(crate) mod cursor;
pub(crate) mod open_trace;
pub(crate) mod receipts;
pub(crate) mod resolve;
pub(crate) mod trace;
