//! Code that the fuzz targets share: a deterministic environment, a store to damage, correcting
//! checksums after damage, everything that a caller can do to a store, and everything that one can
//! read of it.

pub mod agreement;
pub mod checks;
pub mod exercise;
pub mod mutation;
pub mod sample;
pub mod surroundings;

use std::backtrace::Backtrace;

/// Lets panics of the index library pass to the place where the engine catches them. It may panic
/// on damaged pages; otherwise the fuzzer aborts on any panic.
pub fn allow_panics_of_the_index_library() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let file = panic.location().map_or("", |location| location.file());
        if !file.contains("redb-") && !comes_from_the_index_library(file) {
            abort(panic);
        }
    }));
}

/// Whether a panic comes from the index library. If the standard library raised it, the first
/// function on the stack that is not its own decides.
fn comes_from_the_index_library(file: &str) -> bool {
    if !file.contains("/library/") {
        return false;
    }
    let trace = Backtrace::force_capture().to_string();
    let callers = trace.lines().filter_map(|line| line.split_once(": ").map(|(_, name)| name));
    let mut ours = callers.skip_while(|name| !name.contains("panic"));
    ours.find(|name| name.contains("redb::") || name.contains("runlog::"))
        .is_some_and(|name| name.contains("redb::") && !name.contains("runlog::"))
}
