//! The names of the files of runs: `AGENT/RUN` and an ending, with folders where ids have slashes.
//!
//! Any id has a name, and the name gives the id back:
//!
//! | in an id | in its names |
//! |---|---|
//! | a slash of a run id | the next folder; after [`MAX_FOLDERS`] of them `%2F` |
//! | a slash of an agent id, and every control character | its bytes as `%2F`, in capital letters |
//! | a dot at the beginning of a part | `%2E`, since hidden files are not imported |
//! | a part that is a folder, and that an import would leave out | its first character as `%73` |
//! | a part without characters | `%` |
//! | more than [`MAX_NAME`] bytes | a folder whose name ends in `%-`, and goes on in the next |
//! | a `%` that could be taken for one of these | `%25` |
//!
//! Names that are not written exactly so, such as those of other programs, mean what they are.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

use percent_encoding::{percent_decode_str, percent_encode_byte};

use crate::formats::ends;

/// The longest name, without ending; file systems accept 255 bytes.
const MAX_NAME: usize = 200;

/// The most folders of a run.
const MAX_FOLDERS: usize = 24;

/// The end of a name that is continued in the next one.
const GOES_ON: &str = "%-";

/// The names that lead to the file of a run: folders, and the name of the file without an ending.
pub(crate) fn names_of(agent: &str, run: &str) -> Vec<String> {
    let mut names = Vec::new();
    pieces(&encoded(agent, only_sorts(agent) || agent == "runs"), &mut names);
    let mut parts: Vec<&str> = run.splitn(MAX_FOLDERS + 1, '/').collect();
    let file = parts.pop().unwrap_or_default();
    for folder in parts {
        pieces(&encoded(folder, only_sorts(folder)), &mut names);
    }
    pieces(&encoded(file, false), &mut names);
    names
}

/// Agent and run of the names that lead to a file, the last one without its ending; `None` if
/// [`names_of`] does not give them.
pub(crate) fn ids_of(names: &[&str]) -> Option<(String, String)> {
    let mut parts = Vec::new();
    let mut whole = String::new();
    for name in names {
        if let Some(begin) = name.strip_suffix(GOES_ON) {
            whole.push_str(begin);
        } else {
            whole.push_str(name);
            parts.push(decoded(&std::mem::take(&mut whole))?);
        }
    }
    if parts.len() < 2 || !whole.is_empty() {
        return None;
    }
    let agent = parts.remove(0);
    let run = parts.join("/");
    let is_same = names_of(&agent, &run).iter().map(String::as_str).eq(names.iter().copied());
    is_same.then_some((agent, run))
}

/// The endings of compressed files.
const COMPRESSED: [&str; 3] = [".gz", ".zst", ".zstd"];

/// Suffixes that programs append to the name of a session that they archive or delete.
const ARCHIVED: [&str; 4] = [".deleted.", ".reset.", ".archived.", ".bak"];

/// The name that a file had before it was compressed or put away: that of the same session.
pub(crate) fn plain_name(name: &str) -> &str {
    let is_session = |name: &str| ends(&name.to_ascii_lowercase(), &[".jsonl", ".json", ".ndjson"]);
    let unpacked = COMPRESSED.iter().find_map(|ending| name.strip_suffix(ending));
    let name = unpacked.filter(|name| !name.is_empty()).unwrap_or(name);
    let archived = ARCHIVED.iter().find_map(|mark| {
        let (before, after) = name.rsplit_once(mark)?;
        let is_time = |byte: u8| byte.is_ascii_digit() || b"-T:.Z_".contains(&byte);
        let is_last = mark.ends_with('.') != after.is_empty() && after.bytes().all(is_time);
        (is_last && is_session(before)).then_some(before)
    });
    archived.unwrap_or(name)
}

/// The name without its ending.
pub(crate) fn stem(name: &str) -> &str {
    let name = plain_name(name);
    let lower = name.to_ascii_lowercase();
    let ending = if lower.ends_with(".traj.json") { ".traj.json".len() } else { 0 };
    let stem = match ending {
        0 => Path::new(name).file_stem().and_then(OsStr::to_str),
        ending => name.get(..name.len() - ending),
    };
    stem.filter(|stem| !stem.is_empty()).unwrap_or(name)
}

/// Whether a folder sorts runs, and says nothing of them.
pub(crate) fn only_sorts(folder: &str) -> bool {
    is_number(folder) || matches!(folder, "sessions" | "archived_sessions" | "chats")
}

/// Digits only, as of a year or a day.
pub(crate) fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// A part of an id as characters of a name: each is a character or an escape. An import would leave
/// out a part that is special.
fn encoded(part: &str, is_special: bool) -> Vec<String> {
    if part.is_empty() {
        return vec!["%".to_owned()];
    }
    let escaped = |(at, character): (usize, char)| {
        let rest = &part[at..];
        let is_first = at == 0 && (is_special || character == '.');
        if is_first || character == '/' || character.is_control() || is_ambiguous(part, rest) {
            let mut bytes = [0; 4];
            character.encode_utf8(&mut bytes).bytes().map(percent_encode_byte).collect()
        } else {
            character.to_string()
        }
    };
    part.char_indices().map(escaped).collect()
}

/// Whether what is left of a part begins with a percent sign that would mean something else.
fn is_ambiguous(part: &str, rest: &str) -> bool {
    let Some(after) = rest.strip_prefix('%') else { return false };
    let is_byte = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    part == "%" || after == "-" || after.as_bytes().get(..2).is_some_and(is_byte)
}

/// Adds the names that a part gets.
fn pieces(characters: &[String], names: &mut Vec<String>) {
    let mut name = String::new();
    for character in characters {
        if name.len() + character.len() > MAX_NAME {
            name.push_str(GOES_ON);
            names.push(std::mem::take(&mut name));
        }
        // A name that goes on is not hidden either.
        name.push_str(if name.is_empty() && character == "." { "%2E" } else { character });
    }
    names.push(name);
}

/// The part of an id; `None` if the escapes are not text.
fn decoded(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    percent_decode_str(name).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_session_that_was_put_away_has_the_name_that_it_had() {
        for (name, plain) in [
            ("s.jsonl", "s.jsonl"),
            ("s.jsonl.zst", "s.jsonl"),
            ("s.jsonl.gz", "s.jsonl"),
            ("notes.gz", "notes"),
            (".gz", ".gz"),
            ("s.jsonl.deleted.2026-03-05T00-00-00.000Z", "s.jsonl"),
            ("s.jsonl.reset.2026-03-05T00-00-00.000Z.gz", "s.jsonl"),
            ("s.json.bak", "s.json"),
            ("s.jsonl.bak.2", "s.jsonl.bak.2"),
            ("s.jsonl.deleted.x.jsonl", "s.jsonl.deleted.x.jsonl"),
            ("s.deleted.txt", "s.deleted.txt"),
            ("s.jsonl.deleted.", "s.jsonl.deleted."),
        ] {
            assert_eq!(plain_name(name), plain);
        }
        assert_eq!(stem("s.traj.json.gz"), "s");
    }

    fn names(agent: &str, run: &str) -> String {
        names_of(agent, run).join("/")
    }

    #[test]
    fn ordinary_ids_are_their_own_names() {
        for (agent, run) in [
            ("planner", "run-1"),
            ("-home-me-p", "session/subagents/agent-1"),
            ("100%", "50% of a+b (c) ~2"),
            ("a", "2026"),
            ("a", "sessions"),
            ("caf\u{e9}", "x.y:z"),
        ] {
            assert_eq!(names(agent, run), format!("{agent}/{run}"));
        }
    }

    #[test]
    fn what_a_file_cannot_be_called_is_escaped() {
        for (agent, run, name) in [
            ("a/b", "c", "a%2Fb/c"),
            (".", "..", "%2E/%2E."),
            ("..", ".hidden", "%2E./%2Ehidden"),
            ("runs", "x", "%72uns/x"),
            ("2026", "01/31/x", "%32026/%301/%331/x"),
            ("a", "sessions/chats/x", "a/%73essions/%63hats/x"),
            ("a", "/", "a/%/%"),
            ("a", "x//y", "a/x/%/y"),
            ("a\0", "x\n\u{85}", "a%00/x%0A%C2%85"),
            ("%", "%2F", "%25/%252F"),
            ("%-", "a%-", "%25-/a%25-"),
        ] {
            assert_eq!(names(agent, run), name);
        }
    }

    #[test]
    fn names_of_other_programs_mean_what_they_are() {
        for names in [
            &["a", "x%20y"][..],
            &["a", "2026", "x"],
            &["a", "%FF"],
            &["a", "x%2fy"],
            &["a%-"],
            &["a%-", "b"],
            &["a", "x%-"],
            &["a"],
            &[],
        ] {
            assert_eq!(ids_of(names), None, "{names:?}");
        }
        // Nothing in it is special.
        for run in ["100%", "x%2", "%fg"] {
            assert_eq!(ids_of(&["a", run]), Some(("a".to_owned(), run.to_owned())));
        }
    }

    #[test]
    fn every_pair_of_ids_has_names_of_its_own_which_give_it_back() {
        let parts = ["%", "-", "/", ".", "2", "F", "a", "\0", "\u{e9}", "runs", "chats", "\u{85}"];
        let (mut state, mut seen) = (7_u64, HashSet::new());
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap_or_default() % below
        };
        let mut id = |max: usize| {
            let len = next(max) + 1;
            let mut id: String = (0..len).map(|_| parts[next(parts.len())]).collect();
            id.truncate(id.floor_char_boundary(512));
            id
        };
        let mut pairs: HashSet<(String, String)> = (0..20_000).map(|_| (id(4), id(6))).collect();
        pairs.extend((0..500).map(|_| (id(400), id(400))));
        for byte in ["/", "\0", "%", "a", "7"] {
            pairs.insert((byte.repeat(512), byte.repeat(512)));
        }
        for (agent, run) in &pairs {
            let names = names_of(agent, run);
            assert!(names.len() < 60, "an import goes no deeper");
            let fits = |name: &String| (1..=255 - 40).contains(&name.len()) && !name.contains('/');
            assert!(names.iter().all(fits) && !names.iter().any(|name| name.starts_with('.')));
            assert!(!is_number(&names[0]) && names[0] != "runs", "{names:?}");
            let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(ids_of(&borrowed), Some((agent.clone(), run.clone())), "{names:?}");
            assert!(seen.insert(names), "two pairs have them");
        }
    }
}
