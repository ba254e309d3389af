//! Lines of a format that are not written as lines: JSON values one after the other over several
//! lines, as `jq` prints them, and all of them in one array.

use runlog::Timestamp;

use super::split::{Parsed, Shallow, Step, range, steps};
use super::{course, facts, kind, places, read};
use crate::facts::Course;
use crate::json::{NotJson, Scanner, value, without_mark};
use crate::line::{self, Line};
use crate::{Format, Layout, lines};

/// The name of the steps of a series.
const VALUE: &str = "value";

/// How many values are looked at to tell their format.
const LOOK: usize = 64;

/// Reads a document of a format that was recognised.
///
/// # Errors
/// If it is not JSON, nor values one after the other.
pub fn parse(format: Format, text: &str) -> Result<Parsed, NotJson> {
    let document = match read(without_mark(text)) {
        Ok(document) => document,
        Err(error) => {
            let (values, torn_at) = values(text).ok_or(error)?;
            let step = |value: &&str| Step { range: range(text, value), array: VALUE };
            let steps: Vec<Step> = values.iter().map(step).collect();
            let course = course_of_lines(text, &steps);
            return Ok(Parsed { steps, course, torn_at, unread: Vec::new() });
        }
    };
    let steps = steps(text, &document, places(format));
    let course = match format.layout() {
        Layout::Lines => course_of_lines(text, &steps),
        Layout::Document | Layout::Archive | Layout::Files => course(format, &document),
    };
    Ok(Parsed { steps, course, ..Parsed::default() })
}

/// The kind of a step, and its time.
pub fn step(format: Format, json: &[u8]) -> (Option<String>, Option<Timestamp>) {
    if format.layout() == Layout::Lines {
        let line = Line::new(json);
        return (line.kind, line.at);
    }
    let step = value(json).unwrap_or_default();
    (kind(format, &step).and_then(line::kind), facts(format, &step).time)
}

/// How the run with these steps ended.
fn course_of_lines(text: &str, steps: &[Step]) -> Course {
    let line = |step: &Step| Line::new(text.get(step.range.clone()).unwrap_or_default().as_bytes());
    Course { end: steps.iter().rev().find_map(|step| line(step).end), ..Course::default() }
}

/// The values of a text that has several, the first of them over more than one line, and where the
/// last one begins if it is torn.
fn values(text: &str) -> Option<(Vec<&str>, Option<usize>)> {
    let first = text.trim_start().lines().next()?;
    if !Scanner::new(first).skip().is_err_and(|error| error.is_eof()) {
        return None;
    }
    let (mut scanner, mut values) = (Scanner::new(text), Vec::new());
    let mut end = 0;
    while !scanner.is_at_end() {
        match scanner.skip() {
            Ok(value) => {
                values.push(value);
                end = range(text, value).end;
            }
            Err(error) if error.is_eof() && !values.is_empty() => {
                let rest = text.get(end..)?;
                return Some((values, Some(end + rest.len() - rest.trim_start().len())));
            }
            Err(_) => return None,
        }
    }
    (values.len() > 1).then_some((values, None))
}

/// The format of a text that is values one after the other, if it is.
pub(crate) fn format(text: &str) -> Option<Format> {
    values(text).map(|(values, _)| format_of(&values))
}

/// The format of an array whose elements are lines of a format that is known.
pub(crate) fn array_format(document: &Shallow<'_>) -> Option<Format> {
    let Shallow::Array(values) = document else { return None };
    Some(format_of(values)).filter(|format| *format != Format::JsonLines)
}

/// Whether a text is one array of objects.
pub(crate) fn is_array_of_objects(text: &str) -> bool {
    let Ok(Shallow::Array(values)) = Shallow::new(text) else { return false };
    !values.is_empty() && values.iter().all(|value| value.starts_with('{'))
}

fn format_of(values: &[&str]) -> Format {
    let line = |text: &&str| value(text.as_bytes()).unwrap_or_default().to_string();
    let lines: Vec<String> = values.iter().take(LOOK).map(line).collect();
    lines::format(lines.join("\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use runlog::RunStatus;

    use super::*;

    const LINE: &str =
        "{\n \"type\": \"user\",\n \"uuid\": \"u\",\n \"sessionId\": \"s\", \"message\": {}\n}";

    fn pieces(text: &str) -> Vec<&str> {
        let parsed = parse(format(text).expect("a series"), text).expect("it is read");
        parsed.steps.into_iter().map(|step| &text[step.range]).collect()
    }

    #[test]
    fn values_over_several_lines_are_steps() {
        let text = format!("{LINE}\n{{}}\n{LINE}\n");
        assert_eq!(pieces(&text), [LINE, "{}", LINE]);
        assert_eq!(format(&text), Some(Format::ClaudeCode));
        assert_eq!(format("[\n1\n]\n{}"), Some(Format::JsonLines));
    }

    #[test]
    fn a_last_value_that_is_torn_is_found() {
        let text = format!("{LINE}\n  {{\"a\":");
        let parsed = parse(Format::ClaudeCode, &text).expect("it is read");
        assert_eq!(parsed.steps.len(), 1);
        assert_eq!(parsed.torn_at, Some(LINE.len() + 3));
    }

    #[test]
    fn lines_and_what_is_not_json_are_no_series() {
        for text in ["{}\n{}\n", "{}{}\n", LINE, "{\n", "{\n}\nx", "{\n}}\n{}", "", "x\n{}"] {
            assert_eq!(format(text), None, "{text}");
        }
    }

    #[test]
    fn an_array_of_lines_has_their_format_and_ends_as_they_say() {
        let stream = r#"[{"type":"system","subtype":"init","session_id":"s"},
            {"type":"result","is_error":true,"session_id":"s"}]"#;
        let document = Shallow::new(stream).expect("JSON");
        let format = array_format(&document).expect("a format");
        assert_eq!(format, Format::ClaudeCode);
        let parsed = parse(format, stream).expect("it is read");
        assert_eq!(parsed.course.end, Some(RunStatus::Failed));
        assert_eq!(parsed.steps.len(), 2);
        assert!(is_array_of_objects(stream));
        assert!(!is_array_of_objects("[1]") && !is_array_of_objects("[]"));
    }
}
