//! What is said of a command line that clap refuses, and the texts that it gives on request.

use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::ContextValue;

use crate::escape::escaped;
use crate::output::note;

/// Prints the help or the version that was asked for, or says what is wrong.
///
/// clap repeats arguments as they came. So that none of them gets at the terminal or makes a line
/// of its own, they are escaped within the error, and each line of it once more.
pub(crate) fn answer(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // The reader may be gone, which is fine.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let parts: Vec<_> = error.context().map(|(kind, value)| (kind, plain(value))).collect();
    for (kind, value) in parts {
        error.insert(kind, value);
    }
    for line in error.render().to_string().lines() {
        note(line);
    }
    ExitCode::from(2)
}

fn plain(value: &ContextValue) -> ContextValue {
    let text = |text: &String| escaped(text.as_bytes());
    match value {
        ContextValue::String(value) => ContextValue::String(text(value)),
        ContextValue::Strings(values) => ContextValue::Strings(values.iter().map(text).collect()),
        ContextValue::StyledStrs(values) => {
            let values = values.iter().map(|value| StyledStr::from(text(&value.to_string())));
            ContextValue::StyledStrs(values.collect())
        }
        // The usage has lines, and no argument.
        other => other.clone(),
    }
}
