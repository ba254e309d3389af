//! Long text on a terminal and elsewhere: lines that fit, and folds in place of what is much.

use std::borrow::Cow;
use std::io::{self, Write};

use textwrap::core::display_width;
use textwrap::{Options, WordSplitter, wrap};

use crate::escape::{cut, escaped};
use crate::output::{Output, count};
use crate::screen::{Screen, Style};

/// Text is not wrapped narrower than this.
const LEAST_WIDTH: usize = 20;

/// How much of a text is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fold {
    /// The most lines.
    pub(crate) lines: u64,
    /// The most characters of a line.
    pub(crate) characters: usize,
}

impl Fold {
    /// Everything.
    pub(crate) const NONE: Self = Self { lines: u64::MAX, characters: usize::MAX };
}

/// A line in lines of at most so many columns; as it is without a limit.
pub(crate) fn wrapped(line: &str, width: Option<usize>) -> Vec<String> {
    match width.map(|width| width.max(LEAST_WIDTH)) {
        Some(width) if display_width(line) > width => {
            let options = Options::new(width).word_splitter(WordSplitter::NoHyphenation);
            wrap(line, options).into_iter().map(Cow::into_owned).collect()
        }
        _ => vec![line.to_owned()],
    }
}

/// Writes lines below a margin, as many as the fold lets, and counts the others.
pub(crate) struct Folded<'o, W> {
    out: &'o mut Output<W>,
    margin: usize,
    fold: Fold,
    lines: u64,
}

impl<'o, W: Write> Folded<'o, W> {
    pub(crate) fn new(out: &'o mut Output<W>, margin: usize, fold: Fold) -> Self {
        Self { out, margin, fold, lines: 0 }
    }

    /// Writes a line that is so far in, the first `key` bytes of it like the name of something.
    /// What does not fit the terminal goes on below, as far in as the line began.
    pub(crate) fn line(
        &mut self,
        indent: usize,
        key: usize,
        style: Style,
        line: &[u8],
    ) -> io::Result<()> {
        self.lines += 1;
        if self.lines > self.fold.lines {
            return Ok(());
        }
        if line.is_empty() {
            // No margin, which would be blanks at the end of a line.
            return self.out.line("");
        }
        let shown = cut(line, self.fold.characters);
        let key = escaped(shown.get(..key).unwrap_or_default()).len();
        let text = escaped(shown) + if shown.len() < line.len() { " ..." } else { "" };
        let screen = self.out.screen().map(Screen::width);
        // On a terminal, what is far in stays in sight.
        let margin = self.margin + screen.map_or(indent, |width| indent.min(width / 2));
        let width = screen.map(|width| width.saturating_sub(margin));
        for (at, text) in wrapped(&text, width).iter().enumerate() {
            let (key, rest) =
                if at == 0 { text.split_at_checked(key) } else { None }.unwrap_or(("", text));
            self.out.text(" ".repeat(margin))?;
            if !key.is_empty() {
                self.out.styled(Style::Lively, key)?;
            }
            self.out.styled(style, rest)?;
            self.out.line("")?;
        }
        Ok(())
    }

    /// Says how many lines are not shown.
    pub(crate) fn end(self) -> io::Result<()> {
        let left = self.lines.saturating_sub(self.fold.lines);
        if left == 0 {
            return Ok(());
        }
        let (margin, lines) = (" ".repeat(self.margin), count(left, "more line"));
        self.out.styled(Style::Dim, format!("{margin}... {lines} (--full)"))?;
        self.out.line("")
    }
}
