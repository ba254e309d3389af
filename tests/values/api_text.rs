//! What the text of the public API in `docs/api` must not say, and must. CI compares that text with
//! the code (`.ci/public-api`).

use std::collections::BTreeSet;

const TEXT: &str = include_str!("../../docs/api/runlog.txt");

/// What can get no further field or variant.
const CLOSED: [&str; 2] = ["runlog::LogPosition", "runlog::Phase<'a>"];

#[test]
fn what_may_grow_is_non_exhaustive() {
    let mut exhaustive = BTreeSet::new();
    for line in TEXT.lines() {
        let declared = |kind| line.strip_prefix(kind).filter(|name: &&str| !name.contains('('));
        if let Some(name) = declared("pub enum ") {
            exhaustive.insert(name);
        } else if let Some(name) = declared("pub struct ") {
            let name = name.split('<').next().unwrap();
            let field = |line: &str| {
                let field = line.strip_prefix("pub ")?.strip_prefix(name)?.strip_prefix("::")?;
                field.split_once(": ").map(|(field, _)| !field.contains(['(', ' ']))
            };
            if TEXT.lines().any(|line| field(line) == Some(true)) {
                exhaustive.insert(name);
            }
        }
    }
    assert_eq!(exhaustive.into_iter().collect::<Vec<_>>(), CLOSED);
}

#[test]
fn no_library_shows_that_a_later_version_may_replace() {
    for library in ["redb::", "bincode::", "memmap2::", "jiff::", "rustix::", "parking_lot::"] {
        let shown: Vec<_> = TEXT.lines().filter(|line| line.contains(library)).collect();
        assert!(shown.is_empty(), "{shown:?}");
    }
}

#[test]
fn what_promises_nothing_is_not_in_the_text() {
    for module in ["runlog::format", "runlog::storage"] {
        assert!(!TEXT.contains(module), "{module}");
    }
    assert!(TEXT.contains("pub struct runlog::RunLog\n"));
}
