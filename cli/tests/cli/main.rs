//! The command as its users meet it: as a process, with files, pipes and exit codes.
//!
//! - [`adopt`]: runs whose program died.
//! - [`hyphens`]: ids that begin with a hyphen.
//! - [`import`]: files go in and come back byte for byte.
//! - [`import_bytes`], [`import_grow`]: encodings and compression; documents that go on.
//! - [`import_options`], [`sidecars`]: what is imported, and what is no run.
//! - [`guide`]: the guide, block by block.
//! - [`inspect`]: the structures of a file as they are.
//! - [`live`]: reading beside a writer, and without leaving a trace.
//! - [`ls`], [`show`]: what is printed, for people and as JSON Lines.
//! - [`names`]: how runs are named.
//! - [`schema`]: what is printed with `--json`, and the schemas of it.
//! - [`screen`]: what a real terminal shows, of 80 and of 200 columns.
//! - [`gc`], [`deletion`]: what goes, what stays, and what is told of it.
//! - [`counted`], [`tokens`]: what the messages of runs used, each counted once.
//! - [`damage`]: damaged stores.
//! - [`salvage`]: what comes out of damaged stores.
//! - [`demo`]: the demonstration.
//! - [`doctor`]: what is wrong, and what to do.
//! - [`du`]: what takes how much.
//! - [`documents`]: documents by namespace and key.
//! - [`formats`], [`export`]: each format goes in, says what it is, and comes out again.
//! - [`filters`]: options that several commands share.
//! - [`readings`]: what records say, compared with a script in another language.
//! - [`sessions`]: folders that are sessions, and lines and documents of more programs.
//! - [`silent`]: what reading commands ask the system for.
//! - [`search`], [`tail`]: finding records, and following them.
//! - [`terminal`]: what is printed of other people's text.
//! - [`usage`]: exit codes and the choice of the store.
//! - [`run_identity`]: which run is a file's.

mod adopt;
mod counted;
mod damage;
mod deletion;
mod demo;
mod doctor;
mod documents;
mod du;
mod export;
mod filters;
mod formats;
mod gc;
mod guide;
mod hostile;
mod hyphens;
mod import;
mod import_bytes;
mod import_grow;
mod import_options;
mod inspect;
mod live;
mod ls;
mod names;
mod readings;
mod run_identity;
mod salvage;
mod schema;
mod screen;
mod search;
mod sessions;
mod show;
mod sidecars;
mod silent;
mod tail;
mod terminal;
mod tokens;
mod usage;
mod world;
