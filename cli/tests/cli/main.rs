//! The command as its users meet it: as a process, with files, pipes and exit codes.
//!
//! - [`import`]: files go in and come back byte for byte.
//! - [`ls`], [`show`]: what is printed, for people and as JSON Lines.
//! - [`gc`], [`deletion`]: what goes, what stays, and what is told of it.
//! - [`damage`]: damaged stores.
//! - [`demo`]: the demonstration.
//! - [`documents`]: documents by namespace and key.
//! - [`terminal`]: what is printed of other people's text.
//! - [`usage`]: exit codes and the choice of the store.

mod damage;
mod deletion;
mod demo;
mod documents;
mod gc;
mod import;
mod ls;
mod show;
mod terminal;
mod usage;
mod world;
