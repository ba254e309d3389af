//! Behaviour of the typed stores through their public API. The list of modules is the index.

#![allow(clippy::pedantic, reason = "tests count and compare; the strict lints are for what ships")]

mod checkpoints;
mod consume_once;
mod evict;
mod forks;
mod full_disk;
mod models;
mod pages;
mod refusals;
mod run_store;
mod run_store_crash;
mod run_store_export;
mod run_store_folder;
mod run_store_input;
mod run_store_later;
mod run_store_lines;
mod run_store_rare;
mod run_store_tree;
mod run_store_world;
mod sessions;
mod support;
mod together;
mod trajectory;
