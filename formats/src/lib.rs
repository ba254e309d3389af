//! The formats of agent logs that the command knows: how each is recognised, where its steps are,
//! and what a step says of itself.
//!
//! Facts are never stored: a record's payload is the source byte for byte, and [`facts_of`] reads
//! them out of it when they are asked for.

pub mod archive;
pub mod calls;
pub mod count;
pub mod documents;
pub mod encoding;
pub mod envelope;
pub mod facts;
pub mod files;
pub mod foreign;
pub mod json;
pub mod line;
pub mod lines;
pub mod origin;
pub mod probe;
pub mod revision;
pub mod title;
pub mod whole;

use runlog::ContentType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::facts::Facts;
use self::revision::REVISION;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The tree of the CAR daemon: `AGENT/RUN.jsonl`.
    Car,
    /// A session of Claude Code, or the output of its `stream-json`.
    ClaudeCode,
    /// A rollout of the Codex CLI.
    Codex,
    /// The output of `codex exec --json`.
    CodexExec,
    /// A session of the Copilot CLI.
    Copilot,
    /// A session of pi.
    Pi,
    /// A session of `OpenClaw`, which has the lines of pi and some of its own.
    #[serde(rename = "openclaw")]
    OpenClaw,
    /// A chat of the Gemini CLI in lines.
    GeminiLines,
    /// A session of Goose.
    Goose,
    /// A chat of VS Code as a log of changes.
    #[serde(rename = "vscode-lines")]
    VsCodeLines,
    /// Any other JSON Lines.
    JsonLines,
    /// Lines of text.
    Text,
    /// A `.traj` of SWE-agent.
    SweAgent,
    /// A trajectory of mini-swe-agent.
    MiniSweAgent,
    /// A log of Inspect as one JSON document.
    Inspect,
    /// A log of Inspect as a zip archive, `.eval`.
    InspectEval,
    /// The Agent Trajectory Interchange Format.
    Atif,
    /// A chat of the Gemini CLI as one JSON document.
    Gemini,
    /// A task of Cline, Roo Code or Kilo Code.
    Cline,
    /// A session of `OpenCode`.
    #[serde(rename = "opencode")]
    OpenCode,
    /// A conversation of `OpenHands`.
    #[serde(rename = "openhands")]
    OpenHands,
    /// A chat of VS Code as one JSON document.
    #[serde(rename = "vscode")]
    VsCode,
    /// Traces of OpenTelemetry as OTLP/JSON.
    Otlp,
    /// A JSON document with messages that have roles.
    Chat,
    /// Any other JSON document.
    Json,
}

/// How the bytes of a file became records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Each line is a record, without its newline. A last line without one has a kind that says so.
    #[default]
    Lines,
    /// The records are the document from its first byte to its last: its steps, and the parts
    /// between them, of the kind [`PART`]. Between two steps that follow one another belongs what
    /// the metadata call `join`. Behind them is how the document went on: see [`revision`].
    Document,
    /// The records of the kind [`PART`] are the archive from its first byte to its last; the others
    /// are what is compressed in it.
    Archive,
    /// As [`Layout::Document`], where the document is the text of several files: see
    /// [`mod@files`].
    Files,
}

/// The kind of a record that is a part of a document or an archive and no step.
pub const PART: &str = "document";

/// The kind of what is in an archive besides steps.
pub const MEMBER: &str = "member";

impl Format {
    /// How files of this format become records.
    pub fn layout(self) -> Layout {
        match self {
            Self::InspectEval => Layout::Archive,
            Self::SweAgent
            | Self::MiniSweAgent
            | Self::Inspect
            | Self::Atif
            | Self::Gemini
            | Self::Cline
            | Self::OpenCode
            | Self::OpenHands
            | Self::VsCode
            | Self::Otlp
            | Self::Chat
            | Self::Json => Layout::Document,
            _ => Layout::Lines,
        }
    }
}

/// What a record of an imported run says of itself, if it says anything.
///
/// Lines are read by their own shape whatever the format of the run, so that the same line always
/// says the same.
pub fn facts_of(
    format: Format,
    kind: Option<&str>,
    content: ContentType,
    payload: &[u8],
) -> Option<Facts> {
    let facts = facts_in(format, &value_of(kind, content, payload)?);
    Some(facts).filter(|facts| *facts != Facts::default())
}

/// A record as a value, if it is JSON that may say something of itself.
pub fn value_of(kind: Option<&str>, content: ContentType, payload: &[u8]) -> Option<Value> {
    if kind.is_some_and(|kind| [PART, REVISION].contains(&kind))
        || !matches!(content, ContentType::JSON | ContentType::JSON_LINE)
    {
        return None;
    }
    json::value(payload)
}

/// What a record says of itself, as [`facts_of`].
pub fn facts_in(format: Format, value: &Value) -> Facts {
    match (format, format.layout()) {
        // A document may be an array of what is a line elsewhere.
        (Format::Chat | Format::Json, _) | (_, Layout::Lines) => lines::facts(value),
        (_, Layout::Document | Layout::Archive | Layout::Files) => documents::facts(format, value),
    }
}

/// Whether a name, in small letters, has one of these endings.
pub fn ends(name: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| name.ends_with(ending))
}

impl std::fmt::Display for Format {
    /// As in JSON.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}
