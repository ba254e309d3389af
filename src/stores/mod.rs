//! The typed stores of the systems that runlog replaces, on one engine and in one file.
//!
//! Each store is thin: it says what its records and calls mean, and leaves everything else to the
//! public face of the engine. So all of them live in the same file at the same time, beside raw
//! runs. What changes for who comes from one of those systems is in `docs/migrate/`.
//!
//! **Invariant:** a store knows the public API of this crate, and nothing of its layers.

pub mod checkpoints;
pub mod consume_once;
mod objects;
mod of_log;
mod room;
pub mod run_store;
pub mod sessions;
pub mod trajectory;
mod worker;

/// The examples of the pages for those who migrate.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/migrate/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../../docs/migrate/consume-once.md")]
    struct ConsumeOnce;
    #[doc = include_str!("../../docs/migrate/run-store.md")]
    struct RunStore;
    #[doc = include_str!("../../docs/migrate/sessions.md")]
    struct Sessions;
    #[doc = include_str!("../../docs/migrate/trajectory.md")]
    struct Trajectory;
}
