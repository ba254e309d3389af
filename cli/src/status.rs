//! How runs stand, as words of the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use runlog::RunStatus;

/// Reads any status of a run.
pub(crate) fn any() -> impl TypedValueParser<Value = RunStatus> {
    words(&["in_progress", "completed", "failed", "cancelled", "interrupted"])
}

/// Reads a status that a run ends with.
pub(crate) fn ended() -> impl TypedValueParser<Value = RunStatus> {
    words(&["completed", "failed", "cancelled", "interrupted"])
}

fn words(words: &'static [&'static str]) -> impl TypedValueParser<Value = RunStatus> {
    PossibleValuesParser::new(words).try_map(|word| word.parse::<RunStatus>())
}
