//! Rows in columns. On a terminal they fit its width; elsewhere nothing is cut.
//!
//! A table that is too wide becomes narrower in this order: the last text is cut to what most
//! titles need, long ids are elided in the middle, the last text becomes shorter, optional columns
//! are left out, ids become as short as they may, and the last text is left out. What is then left
//! of the width goes to the last text.
//!
//! Widths are those of terminals, which give each character columns of its own: two to wide ones,
//! none to marks above or below others. They know no ligatures and no sequences of emoji.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::Value;
use unicode_width::UnicodeWidthChar as _;

use crate::escape::{escaped, is_plain_ascii};
use crate::fields::shown;
use crate::output::Output;
use crate::screen::Style;

/// Stands for text that was cut.
const ELLIPSIS: char = '\u{2026}';

/// The space between two columns.
const GAP: usize = 2;

/// To how many columns an id is elided before anything is left out.
const ROOMY_ID: usize = 24;

/// The shortest that an id becomes.
const SHORT_ID: usize = 10;

/// The room for the last text before ids are elided, and before columns are left out.
const ROOMY_TEXT: usize = 64;
const SOME_TEXT: usize = 32;

/// How a column changes if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Nothing.
    Whole,
    /// It is left out, the one with the lowest number first.
    Optional(u8),
    /// It is elided in the middle, since both ends tell ids apart.
    Id,
    /// It is cut at its end. The last column only.
    Text,
}

/// A column: the field that it shows, its side, and what happens to it if the table is too wide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    field: &'static str,
    name: Option<&'static str>,
    is_right: bool,
    fit: Fit,
    /// Whether a terminal shows it only if its cells differ.
    unless_same: bool,
    style: Style,
    /// How a cell is made of a row, if not of the field.
    made: Option<fn(&Value) -> String>,
}

impl Column {
    /// A column of words.
    pub(crate) const fn left(field: &'static str) -> Self {
        let (name, is_right, fit, unless_same) = (None, false, Fit::Whole, false);
        Self { field, name, is_right, fit, unless_same, style: Style::Plain, made: None }
    }

    /// A column of numbers.
    pub(crate) const fn right(field: &'static str) -> Self {
        Self { is_right: true, ..Self::left(field) }
    }

    /// A column of ids.
    pub(crate) const fn id(field: &'static str) -> Self {
        Self { fit: Fit::Id, ..Self::left(field) }
    }

    /// The last column, of text of any length.
    pub(crate) const fn text(field: &'static str) -> Self {
        Self { fit: Fit::Text, ..Self::left(field) }
    }

    /// Left out on a terminal if all cells say the same.
    pub(crate) const fn unless_same(self) -> Self {
        Self { unless_same: true, ..self }
    }

    /// May be left out on a narrow terminal; the lowest number goes first.
    pub(crate) const fn optional(self, rank: u8) -> Self {
        Self { fit: Fit::Optional(rank), ..self }
    }

    /// Has another name than its field.
    pub(crate) const fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Looks like this on a terminal.
    pub(crate) const fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    /// Made of the whole row.
    pub(crate) const fn made(self, made: fn(&Value) -> String) -> Self {
        Self { made: Some(made), ..self }
    }

    /// `ENDED` of the field `ended_at`.
    fn heading(&self) -> String {
        let name = self.field.strip_suffix("_at").unwrap_or(self.field);
        self.name.map_or_else(|| name.to_uppercase().replace('_', " "), str::to_owned)
    }

    fn cell<W: io::Write>(&self, row: &Value, out: &Output<W>) -> Cell {
        let text = match self.made {
            Some(made) => made(row),
            None => shown(out, self.field, &row[self.field]),
        };
        let style = if text == "-" { Style::Plain } else { self.style };
        Cell { text, style }
    }
}

/// A cell of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::Plain }
    }
}

impl Cell {
    /// A cell that looks like this on a terminal.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

/// Writes rows as objects, or for people as a table of some of their fields, if there are any rows.
pub(crate) fn list<W: io::Write>(
    out: &mut Output<W>,
    columns: &[Column],
    rows: &[impl Serialize],
) -> io::Result<()> {
    if out.is_json() {
        return rows.iter().try_for_each(|row| out.object(row));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let cells = |row| {
        let row = serde_json::to_value(row).unwrap_or_default();
        columns.iter().map(|column| column.cell(&row, out)).collect::<Vec<_>>()
    };
    let cells: Vec<_> = rows.iter().map(cells).collect();
    write(out, columns, &cells)
}

/// Writes rows as columns, two spaces apart, under a heading. A row may have more cells than there
/// are columns.
pub(crate) fn write<W: io::Write, R: AsRef<[Cell]>>(
    out: &mut Output<W>,
    columns: &[Column],
    rows: &[R],
) -> io::Result<()> {
    let names: Vec<Cell> =
        columns.iter().map(|column| Cell::styled(column.heading(), Style::Strong)).collect();
    // The widths are those of the shown text.
    let all = std::iter::once(names.as_slice()).chain(rows.iter().map(AsRef::as_ref));
    let texts: Vec<Vec<Shown<'_>>> =
        all.map(|row| row.iter().zip(columns).map(|(cell, _)| Shown::of(cell)).collect()).collect();
    let natural = |at: usize| texts.iter().map(|row| row[at].width).max().unwrap_or(0);
    let says_the_same = |at: usize| {
        let mut cells = texts.iter().skip(1).map(|row| &row[at].text);
        let first = cells.next();
        texts.len() > 2 && cells.all(|text| Some(text) == first)
    };
    let is_left_out = |at: usize| columns[at].unless_same && says_the_same(at);
    let widths = match out.screen() {
        Some(screen) => {
            let natural = (0..columns.len()).map(|at| (!is_left_out(at)).then(|| natural(at)));
            fitted(columns, &natural.collect::<Vec<_>>(), screen.width())
        }
        None => (0..columns.len()).map(|at| Some(natural(at))).collect(),
    };
    if out.screen().is_some() {
        let same = (0..columns.len()).filter(|at| is_left_out(*at) && texts[1][*at].text != "-");
        let same: Vec<_> =
            same.map(|at| format!("{} {}", texts[0][at].text, texts[1][at].text)).collect();
        if !same.is_empty() {
            out.styled(Style::Dim, same.join(", "))?;
            out.line("")?;
        }
    }
    let last = widths.iter().rposition(Option::is_some);
    for row in &texts {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let Some(width) = *width else { continue };
            let (mut text, mut wide) = (Cow::Borrowed(&*cell.text), cell.width);
            if wide > width {
                text = shortened(&cell.text, width, columns[at].fit == Fit::Id);
                wide = width_of(&text);
            }
            let pad = width.saturating_sub(wide);
            let is_right = columns[at].is_right;
            if is_right {
                spaces(out, pad)?;
            }
            out.styled(cell.style, &*text)?;
            // No spaces at the end of a line.
            let goes_on = row[at + 1..].iter().zip(&widths[at + 1..]);
            let is_last = Some(at) == last
                || goes_on.into_iter().all(|(cell, width)| width.is_none() || cell.text.is_empty());
            if is_last {
                break;
            }
            spaces(out, if is_right { GAP } else { pad + GAP })?;
        }
        out.line("")?;
    }
    Ok(())
}

/// A cell as it is shown, and how wide that is.
struct Shown<'c> {
    text: Cow<'c, str>,
    width: usize,
    style: Style,
}

impl<'c> Shown<'c> {
    fn of(cell: &'c Cell) -> Self {
        let text = if is_plain_ascii(cell.text.as_bytes()) {
            Cow::Borrowed(&*cell.text)
        } else {
            Cow::Owned(escaped(cell.text.as_bytes()))
        };
        let width = width_of(&text);
        Self { text, width, style: cell.style }
    }
}

fn spaces<W: io::Write>(out: &mut Output<W>, count: usize) -> io::Result<()> {
    write!(out.unescaped(), "{:count$}", "")
}

/// The width of each column so that a row takes `width` columns, if that is possible; `None` for a
/// column that is left out.
fn fitted(columns: &[Column], natural: &[Option<usize>], width: usize) -> Vec<Option<usize>> {
    let mut widths = natural.to_vec();
    if sum(&widths) <= width {
        return widths;
    }
    let text = columns.iter().position(|column| column.fit == Fit::Text);
    for room in [ROOMY_TEXT, SOME_TEXT] {
        if let Some(text) = text {
            widths[text] = natural[text].map(|natural| natural.min(room));
        }
        elide(columns, &mut widths, width, ROOMY_ID);
    }
    while sum(&widths) > width {
        let optional = |at: usize| match columns[at].fit {
            Fit::Optional(rank) if widths[at].is_some() => Some((rank, at)),
            _ => None,
        };
        let Some((_, first)) = (0..columns.len()).filter_map(optional).min() else { break };
        widths[first] = None;
    }
    elide(columns, &mut widths, width, SHORT_ID);
    if let Some(text) = text {
        if sum(&widths) > width {
            widths[text] = None;
        }
        let free = width.saturating_sub(sum(&widths));
        widths[text] = widths[text].zip(natural[text]).map(|(kept, all)| all.min(kept + free));
    }
    widths
}

/// Makes the widest id narrower, again and again, down to `least`.
fn elide(columns: &[Column], widths: &mut [Option<usize>], width: usize, least: usize) {
    while sum(widths) > width {
        let ids = (0..columns.len()).filter(|at| columns[*at].fit == Fit::Id);
        let Some(widest) = ids.max_by_key(|at| widths[*at]) else { return };
        match &mut widths[widest] {
            Some(now) if *now > least => *now -= 1,
            _ => return,
        }
    }
}

/// How wide a row is.
fn sum(widths: &[Option<usize>]) -> usize {
    let shown: Vec<usize> = widths.iter().flatten().copied().collect();
    shown.iter().sum::<usize>() + GAP * shown.len().saturating_sub(1)
}

/// How many columns a terminal gives a text.
fn width_of(text: &str) -> usize {
    if is_plain_ascii(text.as_bytes()) { text.len() } else { text.chars().map(width_of_one).sum() }
}

fn width_of_one(character: char) -> usize {
    character.width().unwrap_or(0)
}

/// The text in at most `width` columns: elided in the middle, or cut at the end.
fn shortened(text: &str, width: usize, in_the_middle: bool) -> Cow<'_, str> {
    if width_of(text) <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    let kept = if in_the_middle { room / 2 } else { 0 };
    let mut short: String = front(text.chars(), room - kept).into_iter().collect();
    short.push(ELLIPSIS);
    let mut end = front(text.chars().rev(), kept);
    // A mark would sit on the ellipsis instead of its letter.
    while end.last().is_some_and(|first| width_of_one(*first) == 0) {
        end.pop();
    }
    short.extend(end.into_iter().rev());
    Cow::Owned(short)
}

/// The first characters that take at most `width` columns.
fn front(characters: impl Iterator<Item = char>, width: usize) -> Vec<char> {
    let mut left = width;
    let fits = |character: &char| {
        let wide = width_of_one(*character);
        let fits = wide <= left;
        left = left.saturating_sub(wide);
        fits
    };
    characters.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;

    const COLUMNS: [Column; 5] = [
        Column::id("RUN"),
        Column::left("STATUS"),
        Column::left("ENDED").optional(0),
        Column::right("BYTES").optional(1),
        Column::text("TITLE"),
    ];

    fn printed(width: Option<usize>, rows: &[[&str; 5]]) -> Vec<String> {
        let mut out = Output::memory(false, width.map(Screen::plain));
        let rows: Vec<[Cell; 5]> = rows.iter().map(|row| row.map(Cell::from)).collect();
        write(&mut out, &COLUMNS, &rows).expect("memory");
        let text = String::from_utf8(out.take()).expect("UTF-8");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        let (id, title) = ("i".repeat(146), "t ".repeat(100) + "end");
        let lines = printed(None, &[[&id, "failed", "-", "1 B", &title]]);
        assert!(lines[1].starts_with(&id) && lines[1].ends_with("t end"), "{}", lines[1]);
    }

    #[test]
    fn columns_are_in_line_whatever_the_script() {
        let rows = [
            ["plain", "failed", "-", "1 B", "x"],
            ["\u{65e5}\u{672c}\u{8a9e}", "failed", "-", "10 B", "\u{ac00}"],
            ["cafe\u{301}", "ok", "-", "100 B", "\u{5d0}"],
        ];
        for line in &printed(Some(200), &rows)[1..] {
            let before: String = line.chars().take_while(|at| *at != 'B').collect();
            assert_eq!(width_of(&before), "plain   STATUS  ENDED  100 ".len(), "{line}");
        }
    }

    #[test]
    fn every_line_fits_every_width() {
        let (long, cjk) = ("0123456789abcdef".repeat(9), "\u{4e16}\u{754c}".repeat(30));
        let rows = [
            [&long, "in_progress", "2026-01-31 12:00", "1000.5 KiB", &cjk],
            [&cjk, "failed", "-", "1 B", "a title of some words"],
        ];
        for width in 24..260 {
            for line in printed(Some(width), &rows) {
                assert!(width_of(&line) <= width, "{width}: {line}");
            }
        }
    }

    /// Where the cursor of tmux 3.3a stands after each text.
    #[test]
    fn widths_are_those_that_terminals_give() {
        for (text, columns) in [
            ("\u{65e5}\u{672c}\u{8a9e}", 6),
            ("\u{d55c}\u{ad6d}\u{c5b4}", 6),
            ("\u{1112}\u{1161}\u{11ab}", 2),
            ("\u{ff21}\u{ff22}\u{ff71}", 5),
            ("\u{644}\u{627} \u{625}\u{644}\u{647}", 6),
            ("\u{645}\u{64e}\u{631}\u{652}\u{62d}\u{64e}\u{628}\u{64b}\u{627}", 5),
            ("\u{5e9}\u{5b8}\u{5c1}\u{5dc}\u{5d5}\u{5b9}\u{5dd}", 4),
            ("cafe\u{301} a\u{300}\u{301}\u{302}", 6),
            ("\u{92f}\u{94b}\u{91c}\u{928}\u{93e}", 5),
            ("\u{915}\u{94d}\u{937}\u{924}\u{94d}\u{930}\u{93f}\u{92f}", 6),
            ("\u{ba4}\u{bae}\u{bbf}\u{bb4}\u{bcd}", 4),
            ("\u{e20}\u{e32}\u{e29}\u{e32} \u{e17}\u{e35}\u{e48}", 6),
            ("\u{1797}\u{17b6}\u{179f}\u{17b6}\u{1781}\u{17d2}\u{1798}\u{17c2}\u{179a}", 8),
            ("\u{1f680}x", 3),
            ("\u{1f44d}\u{1f3fd}x", 5),
            ("\u{1f1e9}\u{1f1ea}x", 3),
            ("\u{b0}\u{b1}\u{d7}\u{2026}\u{3b1}", 5),
        ] {
            assert_eq!(width_of(text), columns, "{text}");
        }
    }

    #[test]
    fn a_mark_stays_with_its_letter_or_goes_with_it() {
        let accents = "e\u{301}".repeat(10);
        for width in 1..10 {
            let short = shortened(&accents, width, true);
            assert_eq!(width_of(&short), width);
            assert!(!short.contains("\u{2026}\u{301}"), "{width}: {short}");
        }
        // A wide letter with a mark that does not fit leaves no mark.
        let wide = "\u{304b}\u{3099}".repeat(10);
        for width in 1..20 {
            let short = shortened(&wide, width, true);
            assert!(width_of(&short) <= width, "{short}");
            assert!(!short.contains("\u{2026}\u{3099}"), "{width}: {short}");
        }
    }

    #[test]
    fn both_ends_of_an_id_are_kept() {
        assert_eq!(shortened("0123456789", 7, true), "012\u{2026}789");
        assert_eq!(shortened("0123456789", 7, false), "012345\u{2026}");
        assert_eq!(shortened("0123456789", 10, true), "0123456789");
        assert_eq!(shortened("\u{4e16}\u{754c}\u{4e16}", 4, true), "\u{4e16}\u{2026}");
        assert_eq!(shortened("abc", 0, true), "\u{2026}");
    }

    #[test]
    fn optional_columns_go_in_their_order() {
        let row = ["run", "completed", "2026-01-31 12:00", "10.0 MiB", "some title or other"];
        assert_eq!(
            printed(Some(80), &[row])[0],
            "RUN  STATUS     ENDED                BYTES  TITLE"
        );
        assert_eq!(printed(Some(50), &[row])[0], "RUN  STATUS        BYTES  TITLE");
        assert_eq!(printed(Some(36), &[row])[0], "RUN  STATUS     TITLE");
        assert_eq!(printed(Some(20), &[row])[0], "RUN  STATUS");
    }
}
