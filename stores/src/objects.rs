//! Structs that are read from JSON objects, and from nothing else.
//!
//! serde also reads the fields of a struct, and of an enum whose tag is a field, from an array.
//! Then a line `["ended"]` would be a record. The readers here require the names of the fields. A
//! field that is itself a struct needs `deserialize_with`.

use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Visitor};

use runlog::{Error, Result};

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

/// Requires an object, whatever the type asks for.
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

/// A value as JSON, if it can be read back as a `D`: it is not nested too deeply and has no number
/// that JSON cannot write.
pub(super) fn readable<D: DeserializeOwned>(value: &(impl Serialize + ?Sized)) -> Result<Vec<u8>> {
    let json = serde_json::to_vec(value);
    let json = json.and_then(|json| serde_json::from_slice::<D>(&json).map(|_| json));
    json.map_err(|source| Error::Json { source: std::sync::Arc::new(source) })
}
