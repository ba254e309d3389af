//! Text that is safe to show on a terminal.
//!
//! Ids, payloads, paths and arguments are untrusted bytes: they may have sequences that move the
//! cursor, hide text, reorder it or change the title of the window. [`is_plain`] decides which
//! characters are printed unchanged; [`crate::output`] applies it to everything that a command
//! prints.
//!
//! | | a character that is not plain | a byte that is not UTF-8 |
//! |---|---|---|
//! | text | `\u{9b}`, `\n` | `\xff` |
//! | JSON | `\u009b`, which every reader of JSON takes for the character | does not occur |

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde_json::ser::Formatter;

/// Whether a character prints itself and does nothing else.
///
/// Others are: controls, marks of the writing direction, separators, blanks that are not a space,
/// characters that print nothing, those for private use, and those that Unicode has not assigned.
pub(crate) fn is_plain(character: char) -> bool {
    match character {
        ' '..='~' => true,
        _ => !is_invisible(character) && is_printable(character),
    }
}

/// Whether they are plain characters of ASCII, as most texts are: that is seen without looking at
/// each character.
pub(crate) fn is_plain_ascii(bytes: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~');
    // Without a decision for each byte, many of them are looked at together.
    let are_plain = |bytes: &[u8; 16]| bytes.iter().fold(true, |all, byte| all & is_plain(byte));
    let (chunks, rest) = bytes.as_chunks();
    chunks.iter().all(are_plain) && rest.iter().all(is_plain)
}

/// Whether the standard library prints it unchanged in `{:?}`: it knows the categories of Unicode.
fn is_printable(character: char) -> bool {
    // Behind a letter, since the library escapes a combining mark without one.
    let mut text = [b'a'; 5];
    let len = character.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=len]).is_ok_and(|text| text.escape_debug().nth(2).is_none())
}

/// Letters, marks and symbols that print nothing: those with the property
/// `Default_Ignorable_Code_Point` that are not formats, and two blank ones.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{1d159}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Writes bytes as text.
pub(crate) fn write_text(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    if is_plain_ascii(bytes) {
        return out.write_all(bytes);
    }
    for chunk in bytes.utf8_chunks() {
        write_with(out, chunk.valid(), |out, character| {
            let mut escape = character.escape_default();
            escape.try_for_each(|part| out.write_all(part.encode_utf8(&mut [0; 4]).as_bytes()))
        })?;
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// Writes a part of a JSON text that is whole, or the inside of one of its strings.
pub(crate) fn write_json(out: &mut (impl Write + ?Sized), text: &str) -> io::Result<()> {
    write_with(out, text, |out, character| {
        // In JSON these are between tokens only, where a space means the same; all others are in
        // strings only.
        if character < ' ' {
            return out.write_all(b" ");
        }
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            write!(out, "\\u{unit:04x}")?;
        }
        Ok(())
    })
}

/// Writes one JSON object as a line.
pub(crate) fn write_object(out: &mut impl Write, object: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, PlainJson);
    object.serialize(&mut serializer).map_err(io::Error::from)?;
    out.write_all(b"\n")
}

/// JSON in one line.
struct PlainJson;

impl Formatter for PlainJson {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        write_json(writer, fragment)
    }

    fn write_raw_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        write_json(writer, fragment)
    }
}

/// Writes plain characters unchanged, and the rest with `escape`.
fn write_with<W: Write + ?Sized>(
    out: &mut W,
    text: &str,
    escape: impl Fn(&mut W, char) -> io::Result<()>,
) -> io::Result<()> {
    if is_plain_ascii(text.as_bytes()) {
        return out.write_all(text.as_bytes());
    }
    let mut rest = text;
    while let Some((at, character)) = rest.char_indices().find(|(_, found)| !is_plain(*found)) {
        let (plain, others) = rest.split_at(at);
        out.write_all(plain.as_bytes())?;
        escape(out, character)?;
        rest = &others[character.len_utf8()..];
    }
    out.write_all(rest.as_bytes())
}

/// The bytes as text.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    // Writing to a vector cannot fail, and what was written is UTF-8.
    let _ = write_text(&mut text, bytes);
    String::from_utf8(text).unwrap_or_default()
}

/// A path as text.
pub(crate) fn shown(path: &Path) -> String {
    escaped(path.as_os_str().as_encoded_bytes())
}

/// The first `max` characters, where a byte that is not UTF-8 counts as one.
pub(crate) fn cut(bytes: &[u8], max: usize) -> &[u8] {
    let lens = bytes.utf8_chunks().flat_map(|chunk| {
        chunk.valid().chars().map(char::len_utf8).chain(chunk.invalid().iter().map(|_| 1))
    });
    &bytes[..lens.take(max).sum::<usize>()]
}

#[cfg(test)]
mod tests {
    use regex_syntax::hir::{Class, HirKind};

    use super::*;

    /// The characters of a class such as `\p{Cf}`.
    fn class(pattern: &str) -> Vec<char> {
        let hir = regex_syntax::parse(pattern).expect("a class");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
            panic!("{pattern} is no class of characters")
        };
        class.ranges().iter().flat_map(|range| range.start()..=range.end()).collect()
    }

    #[test]
    fn controls_and_what_cannot_be_seen_are_escaped() {
        for pattern in [
            r"\p{Cc}",
            r"\p{Cf}",
            r"\p{Co}",
            r"[\p{Zl}\p{Zp}]",
            r"[\p{Zs}--\x20]",
            r"\p{Default_Ignorable_Code_Point}",
            r"\p{Variation_Selector}",
            r"\p{Bidi_Control}",
            r"\p{Noncharacter_Code_Point}",
        ] {
            let found = class(pattern);
            assert_ne!(found.len(), 0, "{pattern}");
            for character in found {
                assert!(!is_plain(character), "{pattern}: {character:?}");
            }
        }
    }

    #[test]
    fn letters_marks_numbers_punctuation_and_symbols_are_kept() {
        let seen = r"[\p{L}\p{M}\p{N}\p{P}\p{S}\x20--\p{Default_Ignorable_Code_Point}]";
        let escaped: Vec<char> =
            class(seen).into_iter().filter(|character| !is_plain(*character)).collect();
        assert_eq!(escaped, ['\u{2800}', '\u{1d159}'], "blank by what they look like");
    }

    #[test]
    fn every_character_is_the_same_in_json_and_is_plain_there() {
        for character in '\0'..=char::MAX {
            let text = escaped(character.encode_utf8(&mut [0; 4]).as_bytes());
            assert!(text.chars().all(is_plain), "{character:?}");
            assert_eq!(text.chars().eq([character]), is_plain(character), "{character:?}");
            assert_eq!(escaped(text.as_bytes()), text, "{character:?}");
            // Of the others serde_json takes care.
            if character < ' ' || matches!(character, '"' | '\\') {
                continue;
            }
            let mut json = b"\"".to_vec();
            write_json(&mut json, character.encode_utf8(&mut [0; 4])).expect("a vector");
            json.push(b'"');
            let read: String = serde_json::from_slice(&json).expect("JSON");
            assert!(read.chars().eq([character]), "{character:?}");
            let json = String::from_utf8(json).expect("UTF-8");
            assert!(json.chars().all(is_plain), "{character:?}");
        }
    }

    #[test]
    fn plain_text_is_kept() {
        assert_eq!(escaped("caf\u{e9} {\"a\":1} \\ ok".as_bytes()), "caf\u{e9} {\"a\":1} \\ ok");
        // Decomposed, and a script that writes vowels as marks.
        for text in ["cafe\u{301}", "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}"] {
            assert_eq!(escaped(text.as_bytes()), text);
        }
    }

    #[test]
    fn control_characters_and_bad_bytes_are_escaped() {
        assert_eq!(escaped(b"a\x1b[2J\r\n\t\x00\x7f"), "a\\u{1b}[2J\\r\\n\\t\\u{0}\\u{7f}");
        assert_eq!(escaped("\u{9b}31m\u{202e}x".as_bytes()), "\\u{9b}31m\\u{202e}x");
        assert_eq!(escaped(b"ok\xff\xfe."), "ok\\xff\\xfe.");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("\u{e9}\u{e9}\u{e9}".as_bytes(), 2), "\u{e9}\u{e9}".as_bytes());
        assert_eq!(cut(b"abc", 3), b"abc");
        assert_eq!(cut(b"abc", usize::MAX), b"abc");
        assert_eq!(cut(b"\xff\xff", 1), b"\xff");
    }
}
