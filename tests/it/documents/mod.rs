//! The key-value interface.

pub(crate) mod key_value;
