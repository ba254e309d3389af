//! What is deleted stays deleted; what is erased leaves no byte.

pub(crate) mod erasing;
pub(crate) mod policies;
