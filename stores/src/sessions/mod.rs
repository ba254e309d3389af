//! Sessions of agents, with what belongs to them: artifacts, traces, runs, reports, tasks; and the
//! places from which loops can go on.
//!
//! - [`SessionStore`]: what a store does, as an async trait that needs no runtime and can be used
//!   as `dyn SessionStore`. Replaces the trait of the same name of a3s-code-core.
//! - [`EngineSessionStore`]: the store on a [`RunLog`](runlog::RunLog).
//! - [`SessionTypes`]: the types of what is stored; [`JsonSessions`] for those who have none.
//! - [`SessionSnapshot`], [`WriterLease`], [`CommitWatch`]: all parts at one moment, the right to
//!   write, and seeing what others write.
//!
//! # Calls
//! A thread of the store does what calls ask for, one after the other, so that polling never waits
//! for a disk. It is started by the first call, and ends when the last handle is dropped, which
//! waits for it. What a call is to save is turned into JSON when the call is polled first; what it
//! loads is read by the thread.
//!
//! A call that is dropped before it was polled does nothing. Later, it is done as a whole, or
//! skipped as a whole if the thread had not come to it.
//!
//! # Durability
//! What a call saved or deleted survives power loss before the call is over. A session and its
//! parts are stored until they are deleted: no policy of retention touches them.
//!
//! # Writers
//! While somebody has the lease of a session, only its holder can write that session, through
//! [`EngineSessionStore::through`]. Sessions without a lease are written by any writer; the last
//! write wins as a whole. Checkpoints are of runs: a lease guards them in the hands of its holder
//! only.
//!
//! # Errors
//! Besides [`SessionError`]s that are named: [`Error::InvalidId`](runlog::Error::InvalidId) for an
//! id that is empty or longer than 512 bytes, [`Error::TooLarge`](runlog::Error::TooLarge), and
//! failures of the store.

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
