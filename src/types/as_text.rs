//! Serde support by text: values are written as they print and read as they parse (feature
//! `serde`).

/// Serialises by `Display`, and deserialises by `FromStr`.
macro_rules! serde_as_text {
    ($name:ty) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str($crate::types::as_text::Parse(core::marker::PhantomData))
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Parses the text of a deserialiser without copying it.
#[cfg(feature = "serde")]
pub(crate) struct Parse<T>(pub(crate) core::marker::PhantomData<T>);

#[cfg(feature = "serde")]
impl<T> serde::de::Visitor<'_> for Parse<T>
where
    T: core::str::FromStr,
    T::Err: core::fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
