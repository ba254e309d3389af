//! What the simulations share.
//!
//! - [`model`]: what was appended, and how much of it must be there after a crash.
//! - [`machine`]: the machine that a store runs on.
//! - [`world`]: a store on a simulated disk, a workload for it, and the trace of both.
//! - [`cuts`]: crashes of a recorded workload, and what must hold after each.
//! - [`wide`]: the operations of a world that may fail, and its lives in a row.
//! - [`refused`]: operations that a store refuses, and what that says.
//! - [`harm`]: damage to superblocks and manifests, which costs nothing.
//! - [`background`]: the steps of the background work, run when a test says so.
//! - [`callout`]: two operations beside each other, at the points where one calls out.
//! - [`campaign`]: very many of them, shared out over threads.
//! - `mounted`: small file systems of the real kernel.

pub(crate) mod background;
pub(crate) mod callout;
pub(crate) mod campaign;
pub(crate) mod cuts;
pub(crate) mod gate;
pub(crate) mod harm;
pub(crate) mod machine;
pub(crate) mod model;
#[cfg(target_os = "linux")]
pub(crate) mod mounted;
pub(crate) mod refused;
pub(crate) mod wide;
pub(crate) mod world;
