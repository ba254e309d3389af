//! Formats of one JSON document a file: which one it is, where its steps are, how its run ended.
//!
//! A document is read as it stands, without a copy: a step is a range of its bytes.

mod atif;
pub mod cline;
pub mod gemini;
mod inspect;
pub mod messages;
pub(crate) mod opencode;
pub mod openhands;
mod otlp;
pub mod series;
pub mod split;
pub(crate) mod vscode;

use runlog::Timestamp;
use serde_json::Value;

use super::Format;
use super::facts::{Course, Facts, Total, time, unix_millis};
use super::json::NotJson;

use self::split::{Place, Shallow};

/// Whether a document is of a format.
type Known = (fn(&Shallow<'_>) -> bool, Format);

/// Looks at a document, or at the lines of a file of traces as one.
///
/// # Errors
/// If it is neither.
pub fn read(text: &str) -> Result<Shallow<'_>, NotJson> {
    Shallow::new(text).or_else(|error| otlp::lines(text).ok_or(error))
}

/// What the document is. `name` is that of its file, which decides where the content does not.
pub fn format(document: &Shallow<'_>, name: &str) -> Format {
    let known: [Known; 7] = [
        (atif::is, Format::Atif),
        (gemini::is, Format::Gemini),
        (inspect::is, Format::Inspect),
        (otlp::is, Format::Otlp),
        (opencode::is, Format::OpenCode),
        (vscode::is, Format::VsCode),
        (cline::is, Format::Cline),
    ];
    let found = known.iter().find(|(is, _)| is(document)).map(|(_, format)| *format);
    found.unwrap_or_else(|| messages::format(document, name))
}

/// Where the steps of documents of this format are.
pub fn places(format: Format) -> &'static [&'static [Place]] {
    match format {
        Format::Atif => &[&[Place::Key("steps")]],
        Format::Inspect | Format::InspectEval => &inspect::PLACES,
        Format::Otlp => &otlp::PLACES,
        Format::Cline => &cline::PLACES,
        Format::Gemini | Format::OpenCode => &[&[Place::Key("messages")]],
        Format::VsCode => &[&[Place::Key("requests")]],
        // Of several files, each is a step.
        Format::OpenHands => &[],
        _ => messages::PLACES,
    }
}

/// What the document says of its run.
pub fn course(format: Format, document: &Shallow<'_>) -> Course {
    match format {
        Format::Inspect | Format::InspectEval => inspect::course(document),
        Format::SweAgent | Format::MiniSweAgent => messages::course(document),
        Format::Otlp => otlp::course(document),
        // A chat can be gone on with at any time, so it never says that it ended.
        Format::Gemini | Format::OpenCode | Format::VsCode => {
            Course { started: started(document), ..Course::default() }
        }
        _ => Course::default(),
    }
}

/// When a chat started.
fn started(document: &Shallow<'_>) -> Option<Timestamp> {
    let keys = ["startTime", "creationDate", "info"].into_iter();
    let said = keys.filter_map(|key| Some((key, document.value(key)?)));
    let said: Value = said.collect();
    let millis = ["creationDate", "info.time.created"];
    time(&said, "startTime").or_else(|| millis.iter().find_map(|path| unix_millis(&said, path)))
}

/// What a part of a document that is no step says that the run used.
pub fn totals(format: Format, part: &str) -> Vec<Total> {
    match format {
        Format::SweAgent | Format::MiniSweAgent => messages::totals(part).into_iter().collect(),
        Format::Atif => atif::totals(part),
        Format::Inspect | Format::InspectEval => inspect::totals(part),
        Format::OpenHands => openhands::totals(part),
        _ => Vec::new(),
    }
}

/// What a step says of itself.
pub fn facts(format: Format, step: &Value) -> Facts {
    match format {
        Format::Atif => atif::facts(step),
        Format::Gemini => gemini::facts(step),
        Format::Inspect | Format::InspectEval => inspect::facts(step),
        Format::Otlp => otlp::facts(step),
        Format::OpenCode => opencode::facts(step),
        Format::OpenHands => openhands::facts(step),
        Format::VsCode => vscode::facts(step),
        Format::Cline => cline::facts(step),
        _ => messages::facts(step),
    }
}

/// What a user asks in a step that does not say who speaks.
pub(crate) fn asked(step: &Value) -> Option<String> {
    vscode::asked(step).or_else(|| opencode::asked(step)).or_else(|| otlp::asked(step))
}

/// What a step calls itself; `None` where it has no word for it, and is called by its array.
pub fn kind(format: Format, step: &Value) -> Option<&str> {
    let key = match format {
        Format::Inspect | Format::InspectEval => "event",
        Format::Atif => "source",
        Format::Gemini | Format::Json => "type",
        Format::Otlp => return otlp::kind(step),
        Format::OpenCode => return opencode::kind(step),
        Format::Cline => return cline::kind(step),
        Format::OpenHands => return openhands::kind(step),
        _ => return None,
    };
    step.get(key)?.as_str()
}
