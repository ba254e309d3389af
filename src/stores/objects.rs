//! Structs that are read from JSON objects, and from nothing else.
//!
//! serde takes the fields of a struct from an array as well, one after the other, and so it does
//! with an enum whose tag is a field. A line `["ended"]` would be a record then. What is read here
//! has the names of its fields. A field that is a struct itself says so by `deserialize_with`.

use core::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The whole text is an object.
pub(super) fn from_str<'a, T: Deserialize<'a>>(json: &'a str) -> serde_json::Result<T> {
    serde_json::from_str(json).map(|Object(value)| value)
}

/// As [`from_str`], of bytes.
pub(super) fn from_slice<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    serde_json::from_slice(json).map(|Object(value)| value)
}

/// A field that is an object.
pub(super) fn one<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::deserialize(ObjectOnly(from))
}

/// A field that is an object or `null`.
pub(super) fn optional<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(from)?.map(|Object(value)| value))
}

/// A field that is an array of objects.
pub(super) fn list<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let objects = Vec::deserialize(from)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        one(from).map(Self)
    }
}

/// Whatever is asked for, it has to be an object.
struct ObjectOnly<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectOnly<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

/// JSON that can be read back: `serde_json` reads no value that is nested deeper than 127 levels,
/// and writes it all the same.
pub(super) fn check_depth(json: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<Nested>(json).map(|_| ())
}

/// Any value, of which nothing is kept.
struct Nested;

impl<'de> Deserialize<'de> for Nested {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Nested {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<IgnoredAny, Self>()?.is_some() {}
        Ok(self)
    }
}
