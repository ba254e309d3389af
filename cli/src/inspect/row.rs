//! A structure of the file, as an object or as a line.

use std::io;

use runlog::Damage;
use serde::Serialize;
use serde_json::{Value, json};

use crate::json::Payload;
use crate::output::Output;
use crate::pretty;
use crate::screen::Style;
use crate::wrap::Fold;

/// A structure of the file.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    pub(super) event: &'static str,
    /// Where it is in the file.
    pub(super) offset: u64,
    /// Its fields, as docs/FORMAT.md calls them.
    pub(super) fields: Value,
    pub(super) damage: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<Payload<'a>>,
}

impl Row<'_> {
    /// A structure that was decoded, or could not be.
    pub(super) fn of<T: Serialize>(
        event: &'static str,
        offset: u64,
        part: &Result<T, Damage>,
    ) -> Self {
        let damage = part.as_ref().err().map(ToString::to_string);
        Self { event, offset, fields: fields(&part.as_ref().ok()), damage, payload: None }
    }
}

/// The fields of a structure; the identity of the store as one number.
pub(super) fn fields(part: &impl Serialize) -> Value {
    let mut fields = json!(part);
    if let Some(Value::Array(bytes)) = fields.get("uuid") {
        let bytes = bytes.iter().filter_map(Value::as_u64);
        fields["uuid"] =
            bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}")).into();
    }
    fields
}

/// A value of a field as people read it; fields that say nothing are left out.
fn text(name: &str, value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let says = |(_, value): &(&String, &Value)| {
                !value.is_null() && *value != 0 && *value != false && *value != ""
            };
            let said = fields.iter().filter(says);
            let said = said.map(|(name, value)| format!("{name} {}", text(name, value)));
            format!("{{{}}}", said.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            let said = values.iter().map(|value| text(name, value));
            said.collect::<Vec<_>>().join(", ")
        }
        Value::Number(place) if name == "offset" => {
            format!("{:#x}", place.as_u64().unwrap_or_default())
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The rows of one attempt.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) out: Output<Vec<u8>>,
    pub(super) damaged: u64,
}

impl Rows {
    pub(super) fn new(out: &Output) -> Self {
        Self { out: Output::memory(out.is_json(), out.screen().cloned()), damaged: 0 }
    }

    pub(super) fn push(&mut self, row: &Row<'_>) -> io::Result<()> {
        self.damaged += u64::from(row.damage.is_some());
        let out = &mut self.out;
        if out.is_json() {
            return out.object(row);
        }
        out.styled(Style::Strong, format!("{:#010x}  {:<10}", row.offset, row.event))?;
        out.text(format!("  {}", text(row.event, &row.fields)))?;
        if let Some(damage) = &row.damage {
            out.styled(Style::Bad, format!("  damaged: {damage}"))?;
        }
        out.line("")?;
        let payload = row.payload.as_ref().map(Payload::bytes);
        payload.map_or(Ok(()), |payload| pretty::write(out, payload, Fold::NONE))
    }
}
