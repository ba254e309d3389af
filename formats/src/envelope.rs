//! Payloads that are not one line of JSON, inside of a line of JSON.
//!
//! | payload | line |
//! |---|---|
//! | UTF-8 | `{"runlog_text":"a\nb"}` |
//! | other bytes | `{"runlog_base64":"/wA="}` |
//!
//! Each payload has exactly one such line, so that lines and payloads give one another back byte
//! for byte: [`open`] takes a line only if [`write()`] writes it.

use std::io::{self, Write};

use base64::Engine as _;
use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use memchr::memchr;
use serde::de::IgnoredAny;

/// The kind of a record of an imported file whose payload stood in an envelope.
pub const ENVELOPE: &str = "runlog-envelope";

/// What the lines begin with that this program adds to files.
const OWN: &[u8] = b"{\"runlog_";

const TEXT: &[u8] = b"{\"runlog_text\":";
const BASE64: &[u8] = b"{\"runlog_base64\":\"";

/// Whether a payload can be a line as it is: one JSON value without a newline, and none of the
/// lines that this program adds.
pub fn is_line(payload: &[u8]) -> bool {
    memchr(b'\n', payload).is_none() && !payload.starts_with(OWN) && is_json(payload)
}

/// Whether the bytes are exactly one value of strict JSON.
fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok() && std::str::from_utf8(bytes).is_ok()
}

/// Writes a payload in its envelope, without a newline.
pub fn write(out: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    if let Ok(text) = std::str::from_utf8(payload) {
        out.write_all(TEXT)?;
        serde_json::to_writer(&mut *out, text).map_err(io::Error::from)?;
        return out.write_all(b"}");
    }
    out.write_all(BASE64)?;
    write!(out, "{}", Base64Display::new(payload, &BASE64_STANDARD))?;
    out.write_all(b"\"}")
}

/// The payload in a line, if the line is its envelope.
pub fn open(line: &[u8]) -> Option<Vec<u8>> {
    let payload = if let Some(rest) = line.strip_prefix(BASE64) {
        BASE64_STANDARD.decode(rest.strip_suffix(b"\"}")?).ok()?
    } else {
        let text = line.strip_prefix(TEXT)?.strip_suffix(b"}")?;
        serde_json::from_slice::<String>(text).ok()?.into_bytes()
    };
    is_of(line, &payload).then_some(payload)
}

/// Whether a line is the envelope of a payload.
pub fn is_of(line: &[u8], payload: &[u8]) -> bool {
    let mut written = Vec::with_capacity(line.len());
    write(&mut written, payload).is_ok() && written == line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(payload: &[u8]) -> Vec<u8> {
        let mut line = Vec::new();
        write(&mut line, payload).expect("a vector");
        line
    }

    #[test]
    fn each_payload_comes_back_out_of_its_line() {
        let text = "a\n\r\u{0}\u{7f}\u{85}\u{2028}\u{202e}\"\\ \u{e9}";
        for payload in [&b""[..], b"\n", b"{}", b"\xff", b"\xff\x00\xfe", text.as_bytes()] {
            let line = written(payload);
            assert!(memchr(b'\n', &line).is_none() && is_json(&line));
            assert!(!is_line(&line), "it would be opened");
            assert_eq!(open(&line).as_deref(), Some(payload));
        }
        assert_eq!(written(b"a\nb"), b"{\"runlog_text\":\"a\\nb\"}");
        assert_eq!(written(b"\xff\x00"), b"{\"runlog_base64\":\"/wA=\"}");
    }

    #[test]
    fn a_line_that_is_not_written_like_that_stays_as_it_is() {
        for line in [
            &b"{\"runlog_base64\":\"aGk=\"}"[..],
            b"{\"runlog_base64\":\"/wA\"}",
            b"{\"runlog_base64\":\"/wB=\"}",
            b"{\"runlog_base64\": \"/wA=\"}",
            b"{\"runlog_base64\":\"/wA=\",\"a\":1}",
            b"{\"runlog_text\":\"\\u0061\"}",
            b"{\"runlog_text\": \"a\"}",
            b"{\"runlog_text\":\"a\" }",
            b"{\"runlog_text\":1}",
            b"{\"runlog_text\":\"a\"}\r",
            b"{\"runlog_run\":{}}",
        ] {
            assert_eq!(open(line), None, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn only_one_json_value_in_one_line_is_a_line() {
        for line in [&b"{}"[..], b" [1] ", b"\"x\"", b"null\r"] {
            assert!(is_line(line));
        }
        for other in [&b""[..], b" ", b"{", b"{}{}", b"{\n}", b"text", b"\xff", b"{\"runlog_x\":1}"]
        {
            assert!(!is_line(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
