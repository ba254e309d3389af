//! Text that is safe to show on a terminal.
//!
//! Ids and payloads are other people's bytes: they may hold sequences that move the cursor, hide
//! text or retitle the window. [`escaped`] writes every character that does more than print itself
//! as an escape, and bytes that are not UTF-8 as `\xNN`.

use std::fmt::Write as _;

/// The bytes as text without control characters.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    escaped_up_to(bytes, usize::MAX).0
}

/// Like [`escaped`], but stops after `max` characters of the input. Also tells how many bytes of
/// the input are left.
pub(crate) fn escaped_up_to(bytes: &[u8], max: usize) -> (String, usize) {
    let mut text = String::new();
    let mut taken = 0;
    let mut left = max;
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if left == 0 {
                return (text, bytes.len() - taken);
            }
            push(&mut text, character);
            taken += character.len_utf8();
            left -= 1;
        }
        for byte in chunk.invalid() {
            if left == 0 {
                return (text, bytes.len() - taken);
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
            taken += 1;
            left -= 1;
        }
    }
    (text, 0)
}

fn push(text: &mut String, character: char) {
    if character.is_control() || is_invisible(character) {
        text.extend(character.escape_default());
    } else {
        text.push(character);
    }
}

/// Characters that print nothing and change how their neighbours look: marks and overrides of the
/// writing direction, separators, zero-width characters.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{061c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_kept() {
        assert_eq!(escaped("caf\u{e9} {\"a\":1} \\ ok".as_bytes()), "caf\u{e9} {\"a\":1} \\ ok");
    }

    #[test]
    fn control_characters_and_bad_bytes_are_escaped() {
        assert_eq!(escaped(b"a\x1b[2J\r\n\t\x00\x7f"), "a\\u{1b}[2J\\r\\n\\t\\u{0}\\u{7f}");
        assert_eq!(escaped("\u{9b}31m\u{202e}x".as_bytes()), "\\u{9b}31m\\u{202e}x");
        assert_eq!(escaped(b"ok\xff\xfe."), "ok\\xff\\xfe.");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(escaped_up_to("\u{e9}\u{e9}\u{e9}".as_bytes(), 2), ("\u{e9}\u{e9}".into(), 2));
        assert_eq!(escaped_up_to(b"abc", 3), ("abc".into(), 0));
        assert_eq!(escaped_up_to(b"\xff\xff", 1), ("\\xff".into(), 1));
    }
}
