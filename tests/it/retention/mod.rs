//! What is deleted stays deleted; what is erased leaves no byte.

pub(crate) mod erased_after_damage;
pub(crate) mod erasing;
pub(crate) mod policies;
