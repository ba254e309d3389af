//! `RunStore` with the real records of car-proto, of its first version and of a late one.

#![cfg(feature = "car")]

mod bytes;
mod cases;
mod late;
#[path = "../../../stores/tests/stores/run_store_world.rs"]
#[allow(dead_code, reason = "it is for other tests too")]
mod run_store_world;
