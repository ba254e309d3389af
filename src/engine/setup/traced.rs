//! Spans and events of the feature `tracing`; the table is in the crate's documentation.

use tracing::span::Span;

use crate::engine::setup::observer::{Activity, Finished};
use crate::error::Error;

/// The span of each activity: a name is fixed where the span is made.
macro_rules! spans {
    ($($activity:ident: $name:literal,)*) => {
        /// The span of an activity.
        pub(super) fn span(activity: Activity) -> Span {
            match activity {
                $(Activity::$activity => tracing::debug_span!(target: "runlog", $name),)*
            }
        }
    };
}

spans! {
    Recovery: "runlog.recovery",
    Roll: "runlog.roll",
    Seal: "runlog.seal",
    Reserve: "runlog.reserve",
    Sync: "runlog.sync",
    IndexCheckpoint: "runlog.index_checkpoint",
    IndexRebuild: "runlog.index_rebuild",
    Reclaim: "runlog.reclaim",
    GiveBack: "runlog.give_back",
    Compaction: "runlog.compaction",
    Close: "runlog.close",
}

/// Reports an activity that failed.
pub(super) fn ended(activity: Activity, finished: &Finished<'_>) {
    let Err(error) = finished.result else { return };
    let (activity, error, took_us) = (activity.name(), error.in_full(), finished.took.as_micros());
    let took_us = u64::try_from(took_us).unwrap_or(u64::MAX);
    match finished.result {
        Err(Error::Closed) => {
            tracing::debug!(target: "runlog", activity, took_us, error, "broken off");
        }
        Err(Error::Panicked) => {
            tracing::error!(target: "runlog", activity, took_us, error, "panicked");
        }
        _ => tracing::warn!(target: "runlog", activity, took_us, error, "failed"),
    }
}

/// Reports that the store accepts no more writes.
pub(super) fn poisoned(why: &Error) {
    tracing::error!(target: "runlog", error = why.in_full(), "poisoned");
}

/// Reports that the file system refused `len` bytes, or grants that much again.
pub(super) fn disk_full(is_full: bool, len: u64) {
    if is_full {
        tracing::warn!(target: "runlog", len, "disk full");
    } else {
        tracing::info!(target: "runlog", len, "space again");
    }
}
