//! Fields of objects as people read them: the name of a field says how its value is shown.
//!
//! So each structure has one description, and JSON Lines and text are made from it.

use std::io::Write;

use runlog::Timestamp;
use serde_json::Value;

use crate::output::{Output, grouped, size};

/// Places in a file or a segment.
const PLACES: [&str; 5] = ["offset", "file_offset", "end", "seal", "ends_at"];

/// Numbers that name something, which a user types again.
const NAMES: [&str; 15] = [
    "epoch",
    "extent",
    "first_lsn",
    "first_seq",
    "last_lsn",
    "lsn",
    "next_lsn",
    "next_run_no",
    "next_segment",
    "number",
    "pid",
    "run_no",
    "salt",
    "segment",
    "seq",
];

/// A value as people read it, by the name of its field.
pub(crate) fn shown<W: Write>(out: &Output<W>, name: &str, value: &Value) -> String {
    let is_time =
        || name.ends_with("_at") || matches!(name, "timestamp" | "since" | "at" | "created");
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
        Value::String(text) if is_time() => {
            text.parse::<Timestamp>().map_or_else(|_| text.clone(), |at| out.time(at))
        }
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(place) if PLACES.contains(&name) => format!("{place:#x}"),
            Some(bytes) if name.ends_with("bytes") || name.ends_with("_len") => size(bytes),
            Some(number) if !NAMES.contains(&name) => grouped(number),
            _ => number.to_string(),
        },
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| shown(out, name, value)).collect();
            values.join(", ")
        }
        Value::Object(fields) => {
            let says = |(_, value): &(&String, &Value)| {
                !matches!(value, Value::Null) && *value != false && *value != 0
            };
            let fields = fields.iter().filter(says);
            let fields: Vec<_> =
                fields.map(|(name, value)| format!("{name} {}", shown(out, name, value))).collect();
            fields.join(", ")
        }
    }
}
