//! Checkpoints of graphs, and the events of their sessions.
//!
//! - [`Checkpointer`]: the states of a graph after each step, by tenant and thread: the latest, any
//!   by its id, the history, and branches from any of them. Replaces the checkpointers of entelix.
//! - [`SessionLog`]: the events of a thread, in order, of which old ones are archived.
//! - [`AsyncCheckpointer`], [`AsyncSessionLog`]: the same for async callers, with any runtime.
//! - [`ThreadKey`], [`TenantId`], [`CheckpointId`], [`Checkpoint`]: what they are about.
//! - [`CheckpointError`], [`Defect`]: what can go wrong, and where.
//!
//! # The order of a thread
//!
//! The newest checkpoint is the one that was put last. Steps and times decide nothing: they are the
//! caller's, several checkpoints may have the same, and clocks go back. So a branch that
//! [`Checkpointer::update_state`] made of an old checkpoint is what the thread goes on with, which
//! is what branches are for. A history of at most 0 checkpoints is empty.
//!
//! An id names one checkpoint of its thread for ever. Putting the same checkpoint again is fine,
//! since a caller may not know whether a put that failed was stored; another one under the same id
//! is refused, since one of the two would be lost silently.
//!
//! # What a state costs
//!
//! A state is stored as JSON in parts, and each part once in a thread: see the figures in
//! `docs/migrate/checkpoints.md`. Parts rather than differences between one checkpoint and the
//! next: a difference needs what it is a difference to, so that chains of them must be cut off by
//! whole states (which cost O(n^2) again, for a state that grows), and no checkpoint of a chain can
//! be deleted alone. A part is there as long as a checkpoint names it, and reading a checkpoint
//! reads no other.
//!
//! # What survives what
//!
//! A call that changes something survives power loss before it returns. After any crash each
//! checkpoint is there as a whole or not at all, and so are the events of an append.
//!
//! No policy of retention of the engine touches checkpoints or events:
//! [`Checkpointer::prune`], [`Checkpointer::delete_thread`] and [`SessionLog::archive_before`]
//! delete what is to go, and compaction gives its space back.
//!
//! **Invariant:** what is of one tenant, or of one thread, can be had with its key only. Tenants,
//! threads and names never become a part of one another's places, whatever characters they have.

mod asynchronous;
mod checkpoint;
mod cut;
mod error;
mod id;
mod json;
mod key;
mod parts;
mod prune;
mod retention;
mod session_log;
mod space;
mod store;
mod stored;
mod sweep;

pub use asynchronous::{AsyncCheckpointer, AsyncSessionLog};
pub use checkpoint::Checkpoint;
pub use error::{CheckpointError, Defect};
pub use id::CheckpointId;
pub use key::{TenantId, ThreadKey};
pub use retention::Pruned;
pub use session_log::SessionLog;
pub use store::Checkpointer;
