//! Checkpoints of graphs, and the events of their sessions.
//!
//! - [`Checkpointer`]: the states of a graph after each step, by tenant and thread: the latest, any
//!   by its id, the history, and branches from any of them. Replaces the checkpointers of entelix.
//! - [`SessionLog`]: the events of a thread, in order. Old ones can be archived.
//! - [`AsyncCheckpointer`], [`AsyncSessionLog`]: the same for async callers, with any runtime.
//! - [`ThreadKey`], [`TenantId`], [`CheckpointId`], [`Checkpoint`]: their arguments and results.
//! - [`CheckpointError`], [`Defect`]: errors, and the places of damage.
//!
//! # The order of a thread
//!
//! The newest checkpoint is the one that was put last. Steps and times do not matter: the caller
//! sets them, several checkpoints may have the same, and clocks go back. So the thread goes on with
//! a branch that [`Checkpointer::update_state`] made from an old checkpoint. A history of at most 0
//! checkpoints is empty.
//!
//! An id names one checkpoint of its thread. Putting the same checkpoint again changes nothing,
//! since a caller may not know whether a put that failed was stored. Putting another one under the
//! same id is refused, since one of the two would be lost silently.
//!
//! # What a state costs
//!
//! A state is stored as JSON in parts, and each part once in a thread.
//! `docs/migrate/checkpoints.md` has the sizes, and the reasons against differences between
//! checkpoints. A part stays as long as a checkpoint names it, and reading a checkpoint reads no
//! other.
//!
//! # What survives what
//!
//! A change survives power loss before its call returns. After any crash each checkpoint is there
//! as a whole or not at all, and so are the events of an append.
//!
//! No retention policy of the engine deletes checkpoints or events. [`Checkpointer::prune`],
//! [`Checkpointer::delete_thread`] and [`SessionLog::archive_before`] delete them, and compaction
//! frees their space.
//!
//! **Invariant:** only the key of a tenant or thread gives access to its data. The places of two
//! tenants, threads or names never overlap, whatever characters they have.

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
