//! Puts the records of a run together again: the file that was imported, or a line for each.

use std::io::{self, Write};

use runlog_stores::json_lines::UNTERMINATED;

use super::origin::Origin;
use super::{Layout, PART, envelope};

/// Writes the records of a run, one after the other, as a file.
#[derive(Debug)]
pub struct Whole {
    layout: Layout,
    join: String,
    due: Due,
}

/// What is written only when something follows: the newline that the last line of the imported file
/// did not have, or what stands between two steps of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Newline,
    Join,
}

impl Whole {
    /// The file that a run was imported from; of any other run its payloads, a newline behind each.
    pub fn new(origin: Option<&Origin>) -> Self {
        let layout = origin.map_or(Layout::Lines, |origin| origin.layout);
        let join = origin.map_or_else(String::new, |origin| origin.join.clone());
        Self { layout, join, due: Due::Nothing }
    }

    /// Writes what the next record adds, in its envelope if it `is_enveloped`.
    pub fn write(
        &mut self,
        out: &mut impl Write,
        kind: Option<&str>,
        payload: &[u8],
        is_enveloped: bool,
    ) -> io::Result<()> {
        let is_part = kind == Some(PART);
        if self.layout == Layout::Archive && !is_part {
            // It is in the archive.
            return Ok(());
        }
        match self.due {
            Due::Newline => out.write_all(b"\n")?,
            Due::Join if !is_part => out.write_all(self.join.as_bytes())?,
            _ => {}
        }
        if is_enveloped {
            envelope::write(out, payload)?;
        } else {
            out.write_all(payload)?;
        }
        self.due = match self.layout {
            Layout::Lines if kind == Some(UNTERMINATED) => Due::Newline,
            Layout::Document if !is_part => Due::Join,
            _ => Due::Nothing,
        };
        if self.layout == Layout::Lines && self.due == Due::Nothing {
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}
