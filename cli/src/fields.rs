//! Fields of objects as people read them: the name of a field says how its value is shown.
//!
//! So each structure has one description, and JSON Lines and text are made from it.

use std::io::Write;

use runlog::Timestamp;
use serde_json::Value;

use crate::output::{Output, grouped, size};

/// A value as people read it, by the name of its field.
pub(crate) fn shown<W: Write>(out: &Output<W>, name: &str, value: &Value) -> String {
    let is_time = || name.ends_with("_at") || name == "timestamp";
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if is_time() => {
            text.parse::<Timestamp>().map_or_else(|_| text.clone(), |at| out.time(at))
        }
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if name.ends_with("bytes") || name.ends_with("_len") => size(bytes),
            Some(number) => grouped(number),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}
