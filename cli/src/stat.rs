//! `runlog stat`: shows what the store has and where its space goes.

use std::path::Path;

use serde_json::{Value, json};

use crate::du::Parts;
use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::fields;
use crate::output::Output;
use crate::store;

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let (stats, usage) = (log.stats()?, log.usage()?);
    let mut object = json!(stats);
    object["file"] = json!(path.to_string_lossy());
    object["allocated_bytes"] = json!(Parts::of(path, &stats, &usage)?.allocated_bytes);
    object["documents"] = json!(usage.documents.count);
    object["document_bytes"] = json!(usage.documents.bytes);
    out.tell(&object, shown(path))?;
    let is_shown = |number: u64| number > 0 && !out.is_json();
    let numbers = object.as_object().into_iter().flatten();
    let shown = |(name, value): (&String, &Value)| {
        let said = format!("{:>12} {}", fields::shown(out, name, value), name.replace('_', " "));
        value.as_u64().is_some_and(is_shown).then_some(said)
    };
    // People see the numbers that are not zero.
    let lines: Vec<_> = numbers.filter_map(shown).collect();
    lines.into_iter().try_for_each(|line| out.line(line))?;
    out.flush()?;
    Ok(Exit::Fine)
}
