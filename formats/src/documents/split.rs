//! A JSON document looked at one level at a time, and the ranges of bytes that its steps are.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use crate::facts::Course;
use crate::json::{self, NotJson, Scanner};

/// A part of the way to the arrays that hold steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The value of a key of an object.
    Key(&'static str),
    /// Each element of an array.
    Each,
}

/// A value whose members are known, and not what is in them.
#[derive(Debug)]
pub enum Shallow<'a> {
    /// The keys of an object, without escapes, and the texts of their values.
    Object(Vec<(Cow<'a, str>, &'a str)>),
    /// The texts of the elements of an array.
    Array(Vec<&'a str>),
    /// Any other value.
    Other,
}

impl<'a> Shallow<'a> {
    /// Looks at a text that is one JSON value.
    pub fn new(text: &'a str) -> Result<Self, NotJson> {
        let mut scanner = Scanner::new(text);
        let (mut members, mut elements) = (Vec::new(), Vec::new());
        scanner.each(|key, value| match key {
            Some(key) => members.push((key, value)),
            None => elements.push(value),
        })?;
        scanner.end()?;
        Ok(match json::without_mark(text).trim_ascii_start().as_bytes().first() {
            Some(b'{') => Self::Object(members),
            Some(b'[') => Self::Array(elements),
            _ => Self::Other,
        })
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let Self::Object(members) = self else {
            return None;
        };
        members.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// The value of a key, whole.
    pub fn value(&self, key: &str) -> Option<Value> {
        json::value(self.get(key)?.as_bytes())
    }

    /// The string of a key.
    pub fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        json::string(self.get(key)?)
    }

    /// The first element of the array of a key, or of the array that this is.
    pub fn first_of(&self, key: Option<&str>) -> Option<Value> {
        if let Some(key) = key {
            return Self::new(self.get(key)?).ok()?.first_of(None);
        }
        let Self::Array(elements) = self else {
            return None;
        };
        json::value(elements.first()?.as_bytes())
    }
}

/// A step: its bytes, and the name of the array that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it is in the document.
    pub range: Range<usize>,
    /// The name of the array, which becomes its kind.
    pub array: &'static str,
}

/// What a document says, or all files of a session as one text.
#[derive(Debug, Default)]
pub struct Parsed {
    /// Its steps, in the order of its bytes.
    pub steps: Vec<Step>,
    /// What it says of its run.
    pub course: Course,
    /// Where its last value begins, if that is torn.
    pub torn_at: Option<usize>,
    /// The paths of files that are not JSON, and why.
    pub unread: Vec<(String, String)>,
}

/// The steps of a document, in the order of its bytes.
pub fn steps(text: &str, document: &Shallow<'_>, places: &[&[Place]]) -> Vec<Step> {
    let mut steps = Vec::new();
    for place in places {
        walk(text, document, place, "", &mut steps);
    }
    steps.sort_by_key(|step| step.range.start);
    steps
}

fn walk(
    text: &str,
    value: &Shallow<'_>,
    places: &[Place],
    array: &'static str,
    steps: &mut Vec<Step>,
) {
    let inner = |part: &str, rest: &[Place], array, steps: &mut Vec<Step>| {
        // What holds a part that was read can be read.
        if let Ok(value) = Shallow::new(part) {
            walk(text, &value, rest, array, steps);
        }
    };
    match (places, value) {
        ([], Shallow::Array(elements)) => {
            // Only objects are steps: an array of numbers is data.
            let objects = elements.iter().filter(|element| element.starts_with('{'));
            steps.extend(objects.map(|element| Step { range: range(text, element), array }));
        }
        ([Place::Key(key), rest @ ..], Shallow::Object(members)) => {
            for (_, value) in members.iter().filter(|(name, _)| name == key) {
                inner(value, rest, key, steps);
            }
        }
        ([Place::Each, rest @ ..], Shallow::Array(elements)) => {
            for element in elements {
                inner(element, rest, array, steps);
            }
        }
        _ => {}
    }
}

/// Where a part of a text is in it.
pub(super) fn range(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

/// The value of a key in a part of a document, which by itself is not JSON.
pub fn value_in(part: &str, key: &str) -> Option<Value> {
    let quoted = format!("\"{key}\"");
    let mut found = part.match_indices(&quoted);
    found.find_map(|(at, quoted)| {
        // Within a string the quotes are escaped.
        let is_key = !part.get(..at)?.ends_with('\\');
        let behind = part.get(at + quoted.len()..)?.trim_ascii_start().strip_prefix(':')?;
        json::first_value(behind).filter(|_| is_key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_ranges_of_the_document() {
        let text = r#" { "a" : [ {"x":1} , {"y":[]} , 3 ], "b":[[{"z":2}]],
            "\u0061":[{"w":0}], "c": [{"d":[{"e":1}]},{"d":7},{"f":0}] } "#;
        let document = Shallow::new(text).expect("JSON");
        let at = |places: &[&[Place]]| -> Vec<(&str, &str)> {
            let steps = steps(text, &document, places);
            steps.into_iter().map(|step| (&text[step.range], step.array)).collect()
        };
        let (a, b) = (Place::Key("a"), Place::Key("b"));
        assert_eq!(at(&[&[a]]), [(r#"{"x":1}"#, "a"), (r#"{"y":[]}"#, "a"), (r#"{"w":0}"#, "a")]);
        assert_eq!(at(&[&[b, Place::Each]]), [(r#"{"z":2}"#, "b")]);
        assert_eq!(at(&[&[b]]), []);
        let each = [Place::Key("c"), Place::Each, Place::Key("d")];
        assert_eq!(at(&[&each]), [(r#"{"e":1}"#, "d")]);
        let order: Vec<_> = at(&[&[b, Place::Each], &[a]]).into_iter().map(|step| step.1).collect();
        assert_eq!(order, ["a", "a", "b", "a"]);
    }

    #[test]
    fn what_python_writes_for_a_number_that_is_none_is_a_value() {
        let text = r#"{"score": NaN, "a": [{"x": -Infinity}, {"y": 1}]}"#;
        let document = Shallow::new(text).expect("JSON");
        assert_eq!(document.value("score"), Some(Value::Null));
        assert_eq!(steps(text, &document, &[&[Place::Key("a")]]).len(), 2);
    }

    #[test]
    fn depth_is_no_matter() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let document = Shallow::new(&text).expect("JSON");
        assert_eq!(steps(&text, &document, &[&[Place::Key("a")]]), []);
    }
}
