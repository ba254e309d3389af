//! Names of folders and files for ids, as the trees of the original have them.
//!
//! An id is any string, but a name is not. So several ids may have the same name, and the id cannot
//! be derived from it. The original kept only the name. This store keeps the id, and also the name
//! if it differs from the one that the id gives.

/// The longest name in bytes; a suffix still fits the limit of file systems.
const MAX_NAME: usize = 200;

/// The name of an id: characters that file systems refuse become `_`, and dots and spaces at the
/// ends are removed.
pub(super) fn name_of(id: &str) -> String {
    let special = |letter: char| {
        letter.is_control()
            || matches!(letter, '/' | '\\' | '<' | '>' | ':' | '"' | '|' | '?' | '*')
    };
    made(id, special, &['.', ' '])
}

/// The name that the first version of the original made.
fn first_name_of(id: &str) -> String {
    made(id, |letter| matches!(letter, '/' | '\\' | '\0'), &['.'])
}

fn made(id: &str, is_special: impl Fn(char) -> bool, ends: &[char]) -> String {
    let plain: String =
        id.chars().map(|letter| if is_special(letter) { '_' } else { letter }).collect();
    let name = plain.trim_matches(ends);
    let ends = (0..=name.len().min(MAX_NAME)).rev();
    let end = ends.into_iter().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    match &name[..end] {
        "" => "_".to_owned(),
        name => name.to_owned(),
    }
}

/// Whether a name may have been made of an id, by the original or by an export.
pub(super) fn may_be_of(name: &str, id: &str) -> bool {
    [name_of(id), first_name_of(id)].iter().any(|made| {
        let Some(rest) = name.strip_prefix(made.as_str()) else { return false };
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        rest.is_empty() || rest.strip_prefix('~').is_some_and(is_number)
    })
}

/// Whether this is the name of an entry of a folder, and not a path.
pub(super) fn is_name(name: &str) -> bool {
    !name.contains(['/', '\0']) && !matches!(name, "" | "." | "..")
}

/// The name that is used if the wanted one is taken.
pub(super) fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}~{number}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_original() {
        for (id, first, now) in [
            ("plain-1.2", "plain-1.2", "plain-1.2"),
            ("../../x", "_.._x", "_.._x"),
            ("a/../b", "a_.._b", "a_.._b"),
            ("..", "_", "_"),
            ("", "_", "_"),
            (".x. ", "x. ", "x"),
            ("a:b\n", "a:b\n", "a_b_"),
            ("a\0\\b", "a__b", "a__b"),
        ] {
            assert_eq!(first_name_of(id), first, "{id:?}");
            assert_eq!(name_of(id), now, "{id:?}");
            for name in [first, now] {
                assert!(may_be_of(name, id), "{id:?}");
                assert!(may_be_of(&numbered(name, 7), id), "{id:?}");
            }
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        for path in ["", ".", "..", "/", "../x", "x/..", "/x", "x/y", "x\0"] {
            assert!(!is_name(path), "{path:?}");
        }
        assert!(is_name("x.y") && is_name("...") && is_name("_"));
    }

    #[test]
    fn long_ids_have_names_that_fit() {
        let id = "\u{e9}".repeat(256);
        assert_eq!(name_of(&id).len(), MAX_NAME);
        assert!(may_be_of(&name_of(&id), &id));
        assert!(!may_be_of("other", &id) && !may_be_of("x~y", "x"));
    }
}
