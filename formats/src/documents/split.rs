//! A JSON document looked at one level at a time, and the ranges of bytes that its steps are.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{Deserialize, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

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
    /// The keys of an object, without escapes, and their values.
    Object(Vec<(Cow<'a, str>, &'a RawValue)>),
    /// The elements of an array.
    Array(Vec<&'a RawValue>),
    /// Any other value.
    Other,
}

impl<'a> Shallow<'a> {
    /// Looks at a text that is one JSON value.
    pub fn new(text: &'a str) -> serde_json::Result<Self> {
        let raw: &'a RawValue = serde_json::from_str(text)?;
        Self::of(raw)
    }

    fn of(raw: &'a RawValue) -> serde_json::Result<Self> {
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let mut deserializer = serde_json::Deserializer::from_str(text);
                Self::Object(deserializer.deserialize_map(Members)?)
            }
            Some(b'[') => Self::Array(serde_json::from_str(text)?),
            _ => Self::Other,
        })
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        let Self::Object(members) = self else {
            return None;
        };
        members.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// The value of a key, whole.
    pub fn value(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    /// The string of a key.
    pub fn text(&self, key: &str) -> Option<String> {
        self.value(key)?.as_str().map(str::to_owned)
    }

    /// The first element of the array of a key, or of the array that this is.
    pub fn first_of(&self, key: Option<&str>) -> Option<Value> {
        let inner;
        let array = match key {
            Some(key) => {
                inner = Self::of(self.get(key)?).ok()?;
                &inner
            }
            None => self,
        };
        let Self::Array(elements) = array else {
            return None;
        };
        serde_json::from_str(elements.first()?.get()).ok()
    }
}

struct Members;

impl<'a> Visitor<'a> for Members {
    type Value = Vec<(Cow<'a, str>, &'a RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            members.push((key, map.next_value()?));
        }
        Ok(members)
    }
}

/// A key, borrowed where it has no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
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
    let inner = |raw: &RawValue, rest: &[Place], array, steps: &mut Vec<Step>| {
        // What holds a part that was read can be read.
        if let Ok(value) = Shallow::of(raw) {
            walk(text, &value, rest, array, steps);
        }
    };
    match (places, value) {
        ([], Shallow::Array(elements)) => {
            // Only objects are steps: an array of numbers is data.
            let objects = elements.iter().filter(|element| element.get().starts_with('{'));
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
pub(super) fn range(text: &str, part: &RawValue) -> Range<usize> {
    let start = part.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + part.get().len()
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
    fn depth_is_no_matter() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let document = Shallow::new(&text).expect("JSON");
        assert_eq!(steps(&text, &document, &[&[Place::Key("a")]]), []);
    }
}
