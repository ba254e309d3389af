//! The words of the public API: identifiers and newtypes for each number that means something.
//!
//! - [`AgentId`], [`RunId`]: raw strings that the caller chose; a run is the pair of both.
//! - [`RunRef`]: how a caller names a run, by id alone or by agent and id.
//! - [`Seq`]: the place of a record in its run. [`Lsn`]: the place of an append in the whole log.
//! - [`Timestamp`]: nanoseconds since the Unix epoch.
//! - [`ContentType`], [`RunStatus`], [`Durability`]: small closed vocabularies.
//!
//! What prints as a word, a number, an id or a time also parses from it.

pub(crate) mod as_text;
mod id;
mod number;
mod owner;
mod run_ref;
mod timestamp;
pub(crate) mod word;

pub use id::{AgentId, IdKind, InvalidId, MAX_ID_LEN, MAX_KIND_LEN, RunId};
pub use number::{Epoch, ExtentNo, LogPosition, Lsn, RunNo, SegmentId, Seq, Version};
pub use owner::Owner;
pub use run_ref::RunRef;
pub use timestamp::{InvalidTimestamp, Timestamp};
pub use word::{ContentType, Durability, RunStatus, UnknownWord};
