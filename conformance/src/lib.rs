//! The stores of runlog behind the real types and traits of the crates that they replace.
//!
//! - [`car`]: `RunStore` with the records of car-proto.
//! - [`clark`]: a `TrajectorySink` for the recorder of clark-agent.
//! - [`entelix`]: a `Checkpointer` and a `SessionLog` of entelix.
//!
//! Each is an adapter as a program that migrates has it, a page long, and each is tested with the
//! crate itself. Nothing here is part of runlog: the crates are many, and their types are their
//! own. Each is a feature by itself too. entelix needs Rust 1.95.
//!
//! `cargo test -p runlog-conformance --profile conformance`
//!
//! The adapters for a3s-code-core are packages of their own in the folders `a3s` (9.1) and `a3s3`
//! (3.3), with hundreds of crates more. They are built on demand only: `cargo test` there.

#[cfg(feature = "car")]
pub mod car;
#[cfg(feature = "clark")]
pub mod clark;
#[cfg(feature = "entelix")]
pub mod entelix;
