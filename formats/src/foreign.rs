//! Files of known formats that are not read: what each is, and what its user can do.

/// How files begin, and what they are.
const FORMATS: [(&[u8], &str); 14] = [
    (b"BZh", "compressed by bzip2; unpack it by `bunzip2`, and import the result"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it by `unxz`, and import the result"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it, and import the files"),
    (b"PAR1", "a Parquet file, which holds tables and not logs"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"GIF8", "a picture (GIF)"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"\x80\x04\x95", "a Python pickle, which is not read because it can run programs"),
    (b"\x80\x05\x95", "a Python pickle, which is not read because it can run programs"),
];

const SQLITE: &[u8] = b"SQLite format 3\0";

/// Databases by a word in their names or paths, and how to get their sessions out.
const DATABASES: [(&str, &str); 5] = [
    (
        "opencode",
        " of OpenCode; write each session by `opencode export SESSION > SESSION.json`, and \
      import these",
    ),
    (
        "sessions.db",
        ", as of Goose; write each session by `goose session export`, and import these",
    ),
    (
        "checkpoint",
        ", as of checkpoints of LangGraph; write the messages of each thread as JSON, and \
      import these",
    ),
    ("session.db", ", as of a session of Copilot; its `events.jsonl` is the log"),
    ("state.vscdb", " of VS Code; its chats are files in `chatSessions`"),
];

/// What a file is that begins so, with what to do, if it is of a known format that is not read.
/// `name` is its name in small letters.
pub fn named(head: &[u8], name: &str) -> Option<String> {
    if head.starts_with(SQLITE) {
        let known = DATABASES.iter().find(|(word, _)| name.contains(word));
        let todo =
            known.map_or("; export its sessions as JSON, and import these", |(_, todo)| *todo);
        return Some(format!("a SQLite database{todo}"));
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some("a tar archive; unpack it, and import the files".to_owned());
    }
    let found = FORMATS.iter().find(|(begin, _)| head.starts_with(begin));
    // Text may begin with some of these letters.
    let is_binary =
        |begin: &[u8]| !begin.is_ascii() || std::str::from_utf8(head).is_err() || head.contains(&0);
    found.filter(|(begin, _)| is_binary(begin)).map(|(_, what)| (*what).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_and_archives_are_called_by_their_names() {
        let database = |name| named(b"SQLite format 3\0\x10\0", name).expect("a name");
        assert!(database("opencode.db").contains("opencode export"));
        assert!(database("sessions.db").contains("Goose"));
        assert!(database("checkpoints.sqlite").contains("LangGraph"));
        assert!(database("x.db").starts_with("a SQLite database; export"));
        for (head, word) in [
            (&b"\x89PNG\r\n"[..], "picture"),
            (b"PAR1\0", "Parquet"),
            (&[&[0; 257][..], b"ustar"].concat(), "tar"),
        ] {
            assert!(named(head, "x").expect("a name").contains(word), "{word}");
        }
    }

    #[test]
    fn text_that_begins_with_the_same_letters_is_text() {
        for text in [&b"MZ is a name"[..], b"BZh", b"PAR1 was the first", b"%PDF", b""] {
            assert_eq!(named(text, "x.txt"), None);
        }
    }
}
