//! How the characters of a file are written, and the same text as UTF-8.
//!
//! Records are UTF-8 without a byte order mark, so that each of them can be read by itself. The
//! metadata of the run name the encoding, and [`Whole`](crate::whole::Whole) writes the file in it
//! again.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// An encoding that begins with a byte order mark, or UTF-8 without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Encoding {
    /// UTF-8 without a mark. The bytes need not be valid.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// UTF-8 with a mark.
    #[serde(rename = "utf-8-bom")]
    Utf8Mark,
    /// UTF-16 in the byte order of Windows, which `PowerShell` writes.
    #[serde(rename = "utf-16le")]
    Utf16Le,
    /// UTF-16 in network byte order.
    #[serde(rename = "utf-16be")]
    Utf16Be,
}

impl Encoding {
    /// The encoding of a file that begins with these bytes.
    pub fn of(head: &[u8]) -> Self {
        let is = |encoding: &Self| head.starts_with(encoding.mark());
        // UTF-32 begins with the mark of UTF-16 and a character that no text has.
        let is_utf32 = head.starts_with(b"\xff\xfe\0\0");
        let marked = [Self::Utf8Mark, Self::Utf16Le, Self::Utf16Be].into_iter().find(is);
        marked.filter(|_| !is_utf32).unwrap_or_default()
    }

    /// Whether it is UTF-8 without a mark.
    pub fn is_plain(&self) -> bool {
        *self == Self::Utf8
    }

    /// The bytes that the file begins with.
    pub fn mark(self) -> &'static [u8] {
        match self {
            Self::Utf8 => b"",
            Self::Utf8Mark => b"\xef\xbb\xbf",
            Self::Utf16Le => b"\xff\xfe",
            Self::Utf16Be => b"\xfe\xff",
        }
    }

    /// The file as UTF-8 without a mark; `None` if it is not valid UTF-16.
    pub fn decode(self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mark = self.mark().len();
        let unit: fn([u8; 2]) -> u16 = match self {
            Self::Utf8 => return Some(bytes),
            Self::Utf8Mark => {
                bytes.drain(..mark);
                return Some(bytes);
            }
            Self::Utf16Le => u16::from_le_bytes,
            Self::Utf16Be => u16::from_be_bytes,
        };
        let (units, rest) = bytes.get(mark..)?.as_chunks::<2>();
        let text = char::decode_utf16(units.iter().map(|bytes| unit(*bytes)));
        let text: String = text.collect::<Result<_, _>>().ok()?;
        rest.is_empty().then(|| text.into_bytes())
    }

    /// Text in this encoding, without the mark. What is not UTF-8 has the replacement character.
    pub(crate) fn encoded(self, text: &[u8]) -> Cow<'_, [u8]> {
        let bytes: fn(u16) -> [u8; 2] = match self {
            Self::Utf8 | Self::Utf8Mark => return Cow::Borrowed(text),
            Self::Utf16Le => u16::to_le_bytes,
            Self::Utf16Be => u16::to_be_bytes,
        };
        let text = String::from_utf8_lossy(text);
        Cow::Owned(text.encode_utf16().flat_map(bytes).collect())
    }

    /// The file that a text was decoded from.
    pub fn encode(self, text: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Utf8 => Cow::Borrowed(text),
            _ => Cow::Owned([self.mark(), &self.encoded(text)].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"a\":\"\u{e9}\u{1f980}\u{feff}\"}\r\n{}\n";

    #[test]
    fn each_encoding_gives_the_text_and_the_file_back() {
        for (encoding, file) in [
            (Encoding::Utf8, TEXT.as_bytes().to_vec()),
            (Encoding::Utf8Mark, [b"\xef\xbb\xbf", TEXT.as_bytes()].concat()),
            (Encoding::Utf16Le, Encoding::Utf16Le.encode(TEXT.as_bytes()).into_owned()),
            (Encoding::Utf16Be, Encoding::Utf16Be.encode(TEXT.as_bytes()).into_owned()),
        ] {
            assert_eq!(Encoding::of(&file), encoding);
            let text = encoding.decode(file.clone()).expect("text");
            assert_eq!(text, TEXT.as_bytes(), "{encoding:?}");
            assert_eq!(encoding.encode(&text), file, "{encoding:?}");
        }
        assert_eq!(Encoding::Utf16Le.encode(b"a\n").as_ref(), b"\xff\xfea\0\n\0");
        assert_eq!(Encoding::Utf16Be.encode(b"a\n").as_ref(), b"\xfe\xff\0a\0\n");
    }

    #[test]
    fn what_is_not_valid_utf16_has_no_text() {
        for bytes in [&b"\xff\xfea"[..], b"\xff\xfe\x00\xd8", b"\xff\xfe\x00\xdca\0"] {
            assert_eq!(Encoding::Utf16Le.decode(bytes.to_vec()), None, "{bytes:?}");
        }
        assert_eq!(Encoding::of(b"\xff\xfe\0\0a\0\0\0"), Encoding::Utf8);
        assert_eq!(Encoding::of(b"\xff"), Encoding::Utf8);
    }
}
