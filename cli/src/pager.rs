//! The program that shows long output page by page: `$PAGER`, else `less`.

use std::process::{Child, Command, Stdio};

/// What `less` is told unless the user tells it something: to end at once if all fits, to show
/// colours, to leave the text on the terminal, and to end with Ctrl-C as the command does.
const LESS: &str = "FRXK";

/// Starts the pager. `None` if the user wants none, or there is none.
pub(crate) fn start() -> Option<Child> {
    let mut command = match std::env::var("PAGER") {
        Ok(line) if line.trim().is_empty() => return None,
        Ok(line) => {
            let mut command = Command::new("sh");
            command.args(["-c", &line]);
            command
        }
        Err(_) => Command::new("less"),
    };
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", LESS);
    }
    command.stdin(Stdio::piped()).spawn().ok()
}
