//! Sessions of agents with their artifacts, traces, runs, reports and tasks, and loop checkpoints.
//!
//! - [`SessionStore`]: the calls of a store, as an async trait that needs no runtime and can be
//!   used as `dyn SessionStore`. It replaces the trait of the same name of a3s-code-core.
//! - [`EngineSessionStore`]: the store on a [`RunLog`](runlog::RunLog).
//! - [`SessionTypes`]: the types of the stored parts; [`JsonSessions`] uses JSON values.
//! - [`SessionSnapshot`], [`WriterLease`], [`CommitWatch`]: all parts at one moment, the right to
//!   write, and the commits of other callers.
//!
//! # Calls
//! A thread of the store does the work of the calls, one after the other, so polling never waits
//! for a disk. The first call starts it. Dropping the last handle ends it and waits for it. The
//! first poll of a call converts what it saves to JSON; the thread reads what it loads.
//!
//! A call that is dropped before it was polled does nothing. If it is dropped later, it is done as
//! a whole, or skipped as a whole if the thread had not begun it.
//!
//! # Durability
//! What a call saves or deletes survives power loss when the call returns. A session and its parts
//! are stored until a caller deletes them: no retention policy does.
//!
//! # Writers
//! While a session has a lease, only its holder can write that session, through
//! [`EngineSessionStore::through`]. Any caller can write a session without a lease; the last write
//! wins as a whole. Loop checkpoints belong to runs: a lease protects them only if they name its
//! session.
//!
//! # Errors
//! Besides the [`SessionError`]s that a call names: [`Error::InvalidId`](runlog::Error::InvalidId)
//! for an id that is empty or longer than 512 bytes, [`Error::TooLarge`](runlog::Error::TooLarge),
//! and failures of the store.

mod engine_store;
mod error;
mod lease;
mod place;
mod snapshot;
mod store_trait;
mod types;
mod watch;

pub use self::engine_store::EngineSessionStore;
pub use self::error::{Part, SessionError};
pub use self::lease::WriterLease;
pub use self::snapshot::{LoadedSnapshot, SessionSnapshot};
pub use self::store_trait::{Call, SessionStore, SessionStoreCapabilities};
pub use self::types::{JsonSessions, SessionTypes, Stored};
pub use self::watch::{CommitWatch, NextCommit, SessionCommit};
