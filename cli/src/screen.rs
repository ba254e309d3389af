//! The terminal that a command prints to: its width, its colours, and the local time.
//!
//! None of this reaches a pipe or a file: there, lines are as long as they are, and times are UTC.

use std::io::{self, IsTerminal as _};

use anstyle::AnsiColor::{Green, Magenta, Red};
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
    /// What was searched for.
    Match,
    /// Something that is beside the point.
    Dim,
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

    /// The time of the day on the clock of the user.
    pub(crate) fn clock(&self, at: Timestamp) -> String {
        self.formatted(at, "%H:%M:%S")
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

    /// How a text looks on this terminal.
    pub(crate) fn look(&self, style: Style) -> anstyle::Style {
        let plain = anstyle::Style::new();
        // Magenta instead of cyan, because both light and dark terminals show it clearly: in the
        // palettes of xterm, VS Code and Solarized its contrast is 3.3 to 5.4, that of cyan 2.0 on
        // white.
        match style {
            _ if !self.has_colours => plain,
            Style::Plain => plain,
            Style::Strong => plain.bold(),
            Style::Good => Green.on_default(),
            Style::Bad => Red.on_default(),
            Style::Lively => Magenta.on_default(),
            Style::Match => Red.on_default().bold(),
            Style::Dim => plain.dimmed(),
        }
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
