//! Formats of one JSON document a file: which one it is, where its steps are, how its run ended.
//!
//! A document is read as it stands, without a copy: a step is a range of its bytes.

mod atif;
pub mod gemini;
mod inspect;
mod messages;
pub mod series;
pub mod split;

use runlog::Timestamp;
use serde_json::Value;

use super::Format;
use super::facts::{Facts, Usage};
use super::line::End;

use self::split::{Place, Shallow};

/// What a document says of its run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Course {
    /// When it started.
    pub started: Option<Timestamp>,
    /// How it ended.
    pub end: Option<End>,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// What a document says that its run used as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct WholeUsage {
    /// How often a model was called.
    pub calls: u64,
    /// The model.
    pub model: Option<String>,
    /// What all calls used.
    pub usage: Usage,
}

/// What the document is. `name` is that of its file, which decides where the content does not.
pub fn format(document: &Shallow<'_>, name: &str) -> Format {
    let formats = [atif::is, gemini::is, inspect::is];
    let known = [Format::Atif, Format::Gemini, Format::Inspect];
    if let Some((_, format)) = formats.iter().zip(known).find(|(is, _)| is(document)) {
        return format;
    }
    messages::format(document, name)
}

/// Where the steps of documents of this format are.
pub fn places(format: Format) -> &'static [&'static [Place]] {
    match format {
        Format::Atif => &[&[Place::Key("steps")]],
        Format::Gemini => &[&[Place::Key("messages")]],
        Format::Inspect | Format::InspectEval => &inspect::PLACES,
        _ => messages::PLACES,
    }
}

/// What the document says of its run.
pub fn course(format: Format, document: &Shallow<'_>) -> Course {
    match format {
        Format::Gemini => gemini::course(document),
        Format::Inspect | Format::InspectEval => inspect::course(document),
        Format::SweAgent | Format::MiniSweAgent => messages::course(document),
        _ => Course::default(),
    }
}

/// What a part of a document that is no step says that the run used as a whole.
pub fn whole(format: Format, part: &[u8]) -> Option<WholeUsage> {
    match format {
        Format::SweAgent | Format::MiniSweAgent => messages::whole(part),
        _ => None,
    }
}

/// What a step says of itself.
pub fn facts(format: Format, step: &Value) -> Facts {
    match format {
        Format::Atif => atif::facts(step),
        Format::Gemini => gemini::facts(step),
        Format::Inspect | Format::InspectEval => inspect::facts(step),
        _ => messages::facts(step),
    }
}

/// What a step calls itself; `None` where it has no word for it, and is called by its array.
pub fn kind(format: Format, step: &Value) -> Option<&str> {
    let key = match format {
        Format::Inspect | Format::InspectEval => "event",
        Format::Atif => "source",
        Format::Gemini | Format::Json => "type",
        _ => return None,
    };
    step.get(key)?.as_str()
}
