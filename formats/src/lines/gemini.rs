//! Chats of the Gemini CLI in lines. Their messages are those of the chats that are one document.

use serde_json::Value;

use super::{Format, Known};
use crate::documents::gemini;
use crate::facts::{Facts, time};

pub(super) fn line(line: &Value) -> Option<Known> {
    let has = |key: &str| line.get(key).is_some();
    if has("projectHash") && has("sessionId") {
        let facts = Facts { time: time(line, "startTime"), ..Facts::default() };
        return Some((Format::GeminiLines, facts));
    }
    let types = ["user", "gemini", "info", "error", "warning"];
    let kind = line.get("type")?.as_str()?;
    let is_message = types.contains(&kind) && has("id") && has("timestamp") && has("content");
    (is_message && !has("message")).then(|| (Format::GeminiLines, gemini::facts(line)))
}
