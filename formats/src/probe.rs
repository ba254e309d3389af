//! What a file is, by its content first and its name second.
//!
//! | the file begins with | and | it is |
//! |---|---|---|
//! | a zip header | has the members of an Inspect log | `inspect-eval` |
//! | the header of a known format | is not read, as of a database | not recognised, with its name |
//! | `{` or `[` | its first line is one JSON value (*) | JSON Lines |
//! | `{` or `[` | all of it is one JSON value, or several over several lines | a JSON document |
//! | anything | its name ends in `.jsonl` or `.ndjson` | JSON Lines, some damaged |
//! | UTF-8 without NUL | its name is not that of a document | text |
//! | anything else | | not recognised, with the reason |
//!
//! (*) and, if the name is that of a document, another line follows; and it is not one array of
//! objects without another line. Lines of OTLP are a document.
//!
//! Which JSON Lines they are is told by the first lines, which document by its members.

use std::convert::Infallible;
use std::io;

use super::documents::series;
use super::json::{Scanner, without_mark};
use super::{Format, archive, documents, ends, foreign, lines};

/// How much of a file is looked at to see whether it has lines, and which.
pub const HEAD: u64 = 256 << 10;

/// The longest JSON document, and the longest archive: they are held in memory.
pub const MAX_DOCUMENT: u64 = 256 << 20;

/// What a store of this program begins with.
const STORE: &[u8] = b"\x93RUNLOG";

/// What a file is.
#[derive(Debug)]
pub enum Known {
    /// Lines.
    Lines(Format),
    /// A JSON document, whole.
    Document(Format, String),
    /// A zip archive, whole.
    Archive(Vec<u8>),
    /// A store of this program.
    Store,
    /// Nothing that can be imported, and why.
    Unknown(String),
}

/// Reads all of a file.
type Whole<'w> = &'w dyn Fn() -> io::Result<Vec<u8>>;

/// Looks at a file of this length, which begins so, for [`HEAD`] bytes at most. `whole` reads all
/// of it.
///
/// # Errors
/// Those of `whole`.
pub fn probe(head: &[u8], len: u64, name: &str, whole: Whole<'_>) -> io::Result<Known> {
    if head.starts_with(STORE) {
        return Ok(Known::Store);
    }
    let name = name.to_ascii_lowercase();
    let (is_of_document, is_of_lines) = (is_of_document(&name), is_of_lines(&name));
    if head.starts_with(b"PK\x03\x04") && !is_of_lines {
        return archive(len, whole);
    }
    if let Some(why) = foreign::named(head, &name) {
        return Ok(Known::Unknown(why));
    }
    let begins = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let is_json = matches!(begins.first(), Some(b'{' | b'['));
    // A line of such a file may be longer than the look.
    let is_long_line = is_of_lines && !head.contains(&b'\n');
    let is_whole = head.len() as u64 == len;
    let has_lines = || is_long_line || has_lines(begins, is_whole, is_of_document);
    if is_json && has_lines() && !is_of_traces(begins) {
        let is_one_line = !begins.trim_ascii_end().contains(&b'\n');
        if is_one_line
            && begins.starts_with(b"[")
            && let Ok(Known::Document(format, text)) = document(len, &name, whole)?
            && series::is_array_of_objects(without_mark(&text))
        {
            return Ok(Known::Document(format, text));
        }
        return Ok(Known::Lines(lines::format(first_lines(head))));
    }
    // A document may be a single number or word as well.
    if is_json || is_of_document {
        match document(len, &name, whole)? {
            Ok(known) => return Ok(known),
            Err(why) if is_of_document => return Ok(Known::Unknown(why)),
            Err(_) => {}
        }
    }
    Ok(if is_of_lines {
        Known::Lines(lines::format(first_lines(head)))
    } else if is_text(head) {
        Known::Lines(Format::Text)
    } else {
        Known::Unknown("neither JSON, nor text, nor an archive that is known".to_owned())
    })
}

/// Whether files of this name are JSON Lines.
fn is_of_lines(name: &str) -> bool {
    ends(name, &[".jsonl", ".ndjson"])
}

/// Whether files of this name are one document each.
fn is_of_document(name: &str) -> bool {
    ends(name, &[".json", ".traj", ".eval"])
}

/// Whether the first line is one object or array, and, if the name is that of a document, another
/// one follows. A line without an end may still become one.
fn has_lines(head: &[u8], is_whole: bool, is_of_document: bool) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let (first, second) = (lines.next().unwrap_or_default(), lines.next());
    let is_ended = is_whole || head.len() > first.len();
    let is_value = |line: &[u8]| {
        let mut scanner = Scanner::new(std::str::from_utf8(line).unwrap_or_default());
        scanner.skip().is_ok() && scanner.is_at_end()
    };
    let begins = |line: &[u8]| matches!(line.trim_ascii_start().first(), Some(b'{' | b'['));
    is_ended && is_value(first) && (!is_of_document || second.is_some_and(begins))
}

/// Whether the first line begins as a request of OTLP, whose spans are the records.
fn is_of_traces(head: &[u8]) -> bool {
    let begins = head.trim_ascii_start().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    begins.is_some_and(|begins| begins.starts_with(b"\"resourceSpans\""))
}

/// The first lines.
fn first_lines(head: &[u8]) -> &[u8] {
    let end = memchr::memchr_iter(b'\n', head).nth(63);
    end.and_then(|end| head.get(..end)).unwrap_or(head)
}

/// UTF-8, but for a letter that the end of the look cuts, and without NUL.
fn is_text(head: &[u8]) -> bool {
    let is_utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && head.len() as u64 == HEAD,
    };
    is_utf8 && !head.contains(&0)
}

fn too_long(len: u64) -> Option<String> {
    let max = MAX_DOCUMENT >> 20;
    (len > MAX_DOCUMENT).then(|| format!("one document of more than {max} MiB"))
}

/// The whole file as one JSON document, or why it is none.
fn document(len: u64, name: &str, whole: Whole<'_>) -> io::Result<Result<Known, String>> {
    if let Some(why) = too_long(len) {
        return Ok(Err(why));
    }
    let Ok(text) = String::from_utf8(whole()?) else {
        return Ok(Err("not JSON: it is not UTF-8".to_owned()));
    };
    let read = documents::read(without_mark(&text)).map(|document| {
        series::array_format(&document).unwrap_or_else(|| documents::format(&document, name))
    });
    let format = read.or_else(|error| series::format(&text).ok_or(error));
    Ok(format.map(|format| Known::Document(format, text)).map_err(|error| error.to_string()))
}

/// A zip archive that is a log of Inspect.
fn archive(len: u64, whole: Whole<'_>) -> io::Result<Known> {
    if let Some(why) = too_long(len) {
        return Ok(Known::Unknown(why));
    }
    let bytes = whole()?;
    let (mut is_empty, mut is_log) = (true, false);
    let Ok(why) = archive::members(&bytes, &mut |name, _| {
        is_empty = false;
        is_log |= name == "header.json" || name.starts_with("_journal/");
        Ok::<_, Infallible>(())
    });
    Ok(match why {
        Some(why) if is_empty => {
            Known::Unknown(format!("a zip archive that cannot be read: {why}"))
        }
        _ if is_log => Known::Archive(bytes),
        _ => Known::Unknown("a zip archive that is no log of Inspect".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, bytes: &[u8]) -> Known {
        let head = &bytes[..bytes.len().min(usize::try_from(HEAD).expect("a length"))];
        probe(head, bytes.len() as u64, name, &|| Ok(bytes.to_vec())).expect("a look")
    }

    fn of(name: &str, bytes: &[u8]) -> String {
        match known(name, bytes) {
            Known::Lines(format) | Known::Document(format, _) => format!("{format:?}"),
            Known::Archive(_) => "archive".to_owned(),
            Known::Store => "store".to_owned(),
            Known::Unknown(why) => why,
        }
    }

    #[test]
    fn the_content_decides_before_the_name() {
        let (lines, document) = (b"{\"a\":1}\n{\"b\":2}\n", b"{\n  \"a\": 1\n}\n");
        for name in ["x.jsonl", "x.json", "x.log", "x"] {
            assert_eq!(of(name, lines), "JsonLines", "{name}");
            assert_eq!(of(name, document), "Json", "{name}");
        }
        assert_eq!(of("x.jsonl", b"{\"a\":1}"), "JsonLines");
        assert_eq!(of("x.json", b"{\"a\":1}"), "Json");
        assert_eq!(of("x.log", b"{\"a\":1}\n"), "JsonLines");
        assert_eq!(of("x.json", b"12"), "Json");
        assert_eq!(of("x.jsonl", b"12"), "JsonLines");
        assert_eq!(of("x.txt", b"12"), "Text");
        assert_eq!(of("x.jsonl", b"[{\"role\":\"user\",\"content\":\"\"}]\n"), "Chat");
        assert_eq!(of("x.jsonl", b"[1]\n"), "JsonLines");
        assert_eq!(of("x.jsonl", b"[{}]\n[{}]\n"), "JsonLines");
        assert_eq!(of("x.jsonl", b"{\n}\n{\n\"type\":\"reasoning\",\"summary\":[]}"), "Codex");
        assert_eq!(of("x.md", b"[a link](x)\n"), "Text");
    }

    #[test]
    fn a_torn_first_line_is_a_line_where_the_name_says_so() {
        for bytes in [&b"{\"a\":"[..], b"{", b"", b"\0\0", b"\xff\n{}\n"] {
            assert_eq!(of("x.jsonl", bytes), "JsonLines");
        }
        assert_eq!(of("x.json", b""), "not JSON: it ends early in line 1, column 0");
        assert_eq!(of("x.json", b"{\"a\":"), "not JSON: it ends early in line 1, column 5");
        assert_eq!(of("x.traj", b"{]"), "not JSON: it is not valid in line 1, column 2");
        assert_eq!(of("x.json", b"{\"a\":\"\xff\"}"), "not JSON: it is not UTF-8");
    }

    #[test]
    fn what_is_neither_is_named() {
        assert!(of("x.bin", b"\x89\r\n\x1a\n\0\0").starts_with("neither JSON"));
        assert_eq!(of("x.png", b"\x89PNG\r\n\x1a\n\0\0"), "a picture (PNG)");
        assert_eq!(of("x.zip", b"PK\x03\x04"), of("x.eval", b"PK\x03\x04"));
        assert!(of("x.zip", b"PK\x03\x04").starts_with("a zip archive that cannot be read"));
        assert_eq!(of("x.log", "a letter: \u{e9}\n".as_bytes()), "Text");
        assert!(of("x.log", b"half a letter: \xc3").starts_with("neither"));
        assert!(of("opencode.db", b"SQLite format 3\0\x10\0").starts_with("a SQLite database"));
    }

    #[test]
    fn lines_of_traces_are_one_document() {
        let line = r#"{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"1"}]}]}]}"#;
        for name in ["x.jsonl", "x.json", "x"] {
            assert_eq!(of(name, format!("{line}\n{line}\n").as_bytes()), "Otlp", "{name}");
            assert_eq!(of(name, line.as_bytes()), "Otlp", "{name}");
        }
    }

    #[test]
    fn a_first_line_that_is_longer_than_the_look_is_a_line_all_the_same() {
        let long =
            format!("{{\"a\":\"{}\"}}\n{{}}\n", "x".repeat(usize::try_from(HEAD).expect("fits")));
        assert_eq!(of("x.jsonl", long.as_bytes()), "JsonLines");
        assert_eq!(of("x.jsonl", long.trim_end().as_bytes()), "JsonLines");
        assert_eq!(of("x.jsonl", long.lines().next().expect("a line").as_bytes()), "JsonLines");
        assert_eq!(of("x.log", long.as_bytes()), "Text");
    }
}
