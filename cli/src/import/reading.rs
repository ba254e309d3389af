//! A file that is being read line by line, and what its lines have said so far.

use std::fs::File;

use runlog::Timestamp;
use runlog_stores::json_lines::{Ending, Lines, LinesError};

use super::file::FileError;
use super::line::{Boundary, End, Line, LineDamage};
use super::place::Place;

/// How many damaged lines of one file are remembered by number; all are counted.
const DAMAGED_KEPT: usize = 1000;

/// A file that is being read, and what was seen of it so far.
#[derive(Debug)]
pub(crate) struct Reading {
    lines: Lines<File>,
    /// When the file was last written: the time of lines that do not give one.
    pub(crate) modified: Timestamp,
    pub(crate) lines_read: u64,
    /// Without their newlines.
    pub(crate) bytes_read: u64,
    /// The last time that a line gave.
    pub(crate) last_time: Option<Timestamp>,
    /// Whether the run says that it started, and how it says that it ended.
    has_start: bool,
    end: Option<End>,
    /// The first damaged lines, by number counted from 1.
    pub(crate) damaged: Vec<(u64, LineDamage)>,
    /// All of them.
    pub(crate) damaged_count: u64,
}

impl Reading {
    /// Opens a file whose lines are records, as far as it goes by now.
    pub(crate) fn open(place: &Place) -> Result<Self, FileError> {
        let file = place.file()?;
        let modified = file.metadata()?.modified()?;
        let mut lines = Lines::of_file(file)?;
        lines.check()?;
        Ok(Self {
            lines,
            modified: Timestamp::from(modified),
            lines_read: 0,
            bytes_read: 0,
            last_time: None,
            has_start: false,
            end: None,
            damaged: Vec::new(),
            damaged_count: 0,
        })
    }

    /// Appends the next line to the buffer and says what it is.
    pub(crate) fn line_onto(
        &mut self,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Line, Ending)>, LinesError> {
        let start = buffer.len();
        let Some(ending) = self.lines.read_onto(buffer)? else {
            return Ok(None);
        };
        let bytes = buffer.get(start..).unwrap_or_default();
        let line = Line::new(bytes);
        self.lines_read += 1;
        self.bytes_read += bytes.len() as u64;
        self.last_time = line.at.or(self.last_time);
        match line.boundary {
            Some(Boundary::Started) => self.has_start = true,
            Some(Boundary::Ended(end)) => self.end = Some(end),
            None => {}
        }
        if let Some(damage) = line.damage {
            self.damaged_count += 1;
            if self.damaged.len() < DAMAGED_KEPT {
                self.damaged.push((self.lines_read, damage));
            }
        }
        Ok(Some((line, ending)))
    }

    /// How the run ended: as its last boundary says. A run that says that it started and not that
    /// it ended was interrupted; of others nothing is known but that their file is complete.
    pub(crate) fn end(&self) -> End {
        let unsaid = if self.has_start { End::Interrupted } else { End::Completed };
        self.end.unwrap_or(unsaid)
    }
}
