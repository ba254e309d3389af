//! The terminal that a command prints to: its width, its colours, and the local time.
//!
//! None of this reaches a pipe or a file: there, lines are as long as they are, and times are UTC.

use std::io::{self, IsTerminal as _};

use jiff::tz::TimeZone;
use runlog::Timestamp;
use rustix::termios::tcgetwinsize;

/// The width of a terminal that does not tell it.
const WIDTH: usize = 80;

/// A terminal that shows what a command prints.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    width: usize,
    has_colours: bool,
    zone: TimeZone,
}

/// How a text looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    /// A heading, or the name of something.
    Strong,
    /// Something ended well.
    Good,
    /// Something ended badly.
    Bad,
    /// Something is going on, or has a name of its own.
    Lively,
}

impl Screen {
    /// The terminal of standard output, if it is one.
    pub(crate) fn of_stdout() -> Option<Self> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        let told = tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
        let width = if told > 0 { told } else { of_variable("COLUMNS").unwrap_or(WIDTH) };
        Some(Self { width, has_colours: wants_colours(), zone: TimeZone::system() })
    }

    /// How many columns it has.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The time on the clock of the user, to the second.
    pub(crate) fn time(&self, at: Timestamp) -> String {
        self.formatted(at, "%Y-%m-%d %H:%M:%S")
    }

    /// The time on the clock of the user, to the minute.
    pub(crate) fn minute(&self, at: Timestamp) -> String {
        self.formatted(at, "%Y-%m-%d %H:%M")
    }

    fn formatted(&self, at: Timestamp, format: &str) -> String {
        // Every timestamp is within the years that the library supports.
        let Ok(at) = jiff::Timestamp::from_nanosecond(at.0.into()) else {
            return at.to_string();
        };
        at.to_zoned(self.zone.clone()).strftime(format).to_string()
    }

    /// What is written in front of a text and behind it.
    pub(crate) fn marks(&self, style: Style) -> (&'static str, &'static str) {
        // Magenta instead of cyan, because both light and dark terminals show it clearly: in the
        // palettes of xterm, VS Code and Solarized its contrast is 3.3 to 5.4, that of cyan 2.0 on
        // white.
        let code = match style {
            _ if !self.has_colours => return ("", ""),
            Style::Plain => return ("", ""),
            Style::Strong => "\x1b[1m",
            Style::Good => "\x1b[32m",
            Style::Bad => "\x1b[31m",
            Style::Lively => "\x1b[35m",
        };
        (code, "\x1b[0m")
    }
}

/// Colours are shown unless `NO_COLOR` is set to something, or the terminal has none.
fn wants_colours() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn of_variable(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok().filter(|width| *width > 0)
}

#[cfg(test)]
impl Screen {
    /// A terminal without colours, in UTC.
    pub(crate) fn plain(width: usize) -> Self {
        Self { width, has_colours: false, zone: TimeZone::UTC }
    }
}
