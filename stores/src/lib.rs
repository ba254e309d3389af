//! The typed stores of the systems that runlog replaces, on one engine and in one file.
//!
//! Each store defines what its records and calls mean, and leaves everything else to the engine, of
//! which it uses only the public API. So all stores can be in the same file at the same time,
//! beside plain runs. `docs/migrate/` explains what changes for users of each replaced system.
//!
//! | module | replaces |
//! |---|---|
//! | [`run_store`] | the JSON Lines `RunStore` of car-server-core |
//! | [`sessions`] | the session store of a3s-code-core |
//! | [`checkpoints`] | the checkpointers and the session log of entelix |
//! | [`trajectory`] | a sink for the trajectories of clark-agent |
//! | [`consume_once`] | phronomy's checkpoint store |
//!
//! [`json_lines`] reads the files that such systems leave.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("runlog-stores-doc-{}", std::process::id()));
//! # let _ = std::fs::remove_file(&path);
//! use runlog_stores::consume_once::ConsumeOnce;
//!
//! let log = runlog::Options::new().open(&path)?;
//! let approvals = ConsumeOnce::new(&log);
//! approvals.consume("deploy-42", "worker-1")?;
//! assert!(approvals.consume("deploy-42", "worker-2").is_err());
//! let run = log.start_run("deployer", "run-1", ())?; // in the same file
//! # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod consume_once;
mod digest;
pub mod json_lines;
mod objects;
mod of_log;
mod room;
pub mod run_store;
// For the command `runlog`, which imports folders in the same way.
#[doc(hidden)]
pub mod safe_open;
pub mod sessions;
pub mod trajectory;
mod worker;

/// The examples of the pages in `docs/migrate/`.
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
