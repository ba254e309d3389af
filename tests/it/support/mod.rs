//! What the simulations share.
//!
//! - [`model`]: what was appended, and how much of it must be there after a crash.
//! - [`world`]: a store on a simulated disk, a workload for it, and the trace of both.
//! - [`cuts`]: crashes of a recorded workload, and what must hold after each.
//! - [`campaign`]: very many of them, shared out over threads.

pub(crate) mod campaign;
pub(crate) mod cuts;
pub(crate) mod gate;
pub(crate) mod model;
pub(crate) mod world;
