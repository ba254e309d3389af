//! Code that the simulations share.
//!
//! - [`model`]: what was appended, and how much of it must be there after a crash.
//! - [`manifest`]: what the superblocks and the manifest of a file say.
//! - [`machine`]: the machine that a store runs on.
//! - [`world`]: a store on a simulated disk, and the trace of both.
//! - [`calls`]: the calls of a world, and a random workload.
//! - [`queries`]: questions to the store of a world, and the answers that it should have.
//! - [`stories`]: recorded lives of stores.
//! - [`crowd`]: threads that write to a real file, and what must be there of their work.
//! - [`cuts`]: crashes of a recorded life, and what must hold after each.
//! - [`fault`]: what goes wrong, chosen from a seed.
//! - [`wide`]: the operations of a world that may fail, and its lives in a row.
//! - [`refused`]: operations that a store refuses, and the consequences.
//! - [`held`]: a disk that holds the background thread where a test says.
//! - [`frames`]: stores without an index, and where the frames of a file are.
//! - [`background`]: the steps of the background work, run when a test says so.
//! - [`scene`]: a recorded file as another process sees it while its writer is at work.
//! - [`tap`]: a storage that calls out in front of each call.
//! - [`gate`]: a kill.
//! - [`tasks`]: a minimal runtime.
//! - [`told`]: an observer that keeps its calls.
//! - [`callout`]: two operations next to each other, at the points where one calls out.
//! - [`campaign`]: very many cases, distributed over threads.
//! - [`answers`]: all that a store answers, as text.
//! - [`allocations`]: the memory that a thread takes.
//! - `mounted`: small file systems of the real kernel.

pub(crate) mod allocations;
pub(crate) mod answers;
pub(crate) mod background;
pub(crate) mod callout;
pub(crate) mod calls;
pub(crate) mod campaign;
pub(crate) mod crowd;
pub(crate) mod cuts;
pub(crate) mod fault;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod held;
pub(crate) mod machine;
pub(crate) mod manifest;
pub(crate) mod model;
#[cfg(target_os = "linux")]
pub(crate) mod mounted;
pub(crate) mod queries;
pub(crate) mod refused;
pub(crate) mod scene;
pub(crate) mod stories;
pub(crate) mod tap;
pub(crate) mod tasks;
pub(crate) mod told;
pub(crate) mod wide;
pub(crate) mod world;
