//! The key-value interface.

pub(crate) mod key_value;
pub(crate) mod lost_documents;
