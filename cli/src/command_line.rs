//! The messages for a command line that clap refuses, and the help texts.

use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::ContextValue;

use crate::escape::escaped;
use crate::message;

/// Prints the requested help or version, or the error.
///
/// clap repeats arguments unchanged. To keep them from controlling the terminal or starting a line,
/// they are escaped within the error, and each line of it again.
pub(crate) fn answer(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A reader that closed the pipe is ignored.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let parts: Vec<_> = error.context().map(|(kind, value)| (kind, plain(value))).collect();
    for (kind, value) in parts {
        error.insert(kind, value);
    }
    if std::env::args_os().any(|arg| arg == "--json") {
        message::speak_json();
    }
    message::refuse(&error.render().to_string());
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
        // The usage has several lines, and no argument.
        other => other.clone(),
    }
}
