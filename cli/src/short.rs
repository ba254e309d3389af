//! Ids as they are shown on a terminal: the shortest beginning that no other run has, as git shows
//! its commits. Every command takes it back.

use std::collections::HashMap;

use runlog::{ReadLog, RunQuery};

use crate::failure::Failure;

/// The least that is shown of an id.
const LEAST: usize = 8;

/// Ids of at most so many bytes are shown whole.
const SHORT: usize = 12;

/// Of more runs than this, ids are shown whole: to compare them all takes longer than the list.
const MANY: u64 = 50_000;

/// How much is shown of each id.
#[derive(Debug, Default)]
pub(crate) struct ShortIds(HashMap<String, usize>);

impl ShortIds {
    /// Those of all runs of a store.
    pub(crate) fn of(log: &impl ReadLog) -> Result<Self, Failure> {
        if log.stats()?.runs > MANY {
            return Ok(Self::default());
        }
        let ids = log.runs(&RunQuery::new()).map(|run| Ok(run?.run.as_str().to_owned()));
        Ok(Self::among(ids.collect::<Result<_, runlog::Error>>()?))
    }

    fn among(mut ids: Vec<String>) -> Self {
        ids.sort_unstable();
        let shared = |one: Option<&String>, other: &str| {
            let one = one.map_or("", String::as_str);
            one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
        };
        let mut lengths = HashMap::new();
        for (at, id) in ids.iter().enumerate().filter(|(_, id)| id.len() > SHORT) {
            let before = at.checked_sub(1).and_then(|before| ids.get(before));
            let most = shared(before, id).max(shared(ids.get(at + 1), id));
            let len = id.ceil_char_boundary((most + 1).max(LEAST));
            lengths.insert(id.clone(), len);
        }
        Self(lengths)
    }

    /// An id as it is shown.
    pub(crate) fn shown<'i>(&self, id: &'i str) -> &'i str {
        self.0.get(id).and_then(|len| id.get(..*len)).unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_as_long_as_it_must_be() {
        let ids = [
            "0198a1b2-0000-7000-8000-000000000001",
            "0198a1b2-0000-7000-8000-00000000000a",
            "5c2e8f1a-1b7b-4000-8000-000000000001",
            "build",
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
            "the-same-id-of-two-agents",
            "the-same-id-of-two-agents",
            "the-same-id-of-two-agents-and-more",
        ];
        let short = ShortIds::among(ids.map(str::to_owned).into());
        let shown: Vec<&str> = ids.iter().map(|id| short.shown(id)).collect();
        assert_eq!(
            shown,
            [
                "0198a1b2-0000-7000-8000-000000000001",
                "0198a1b2-0000-7000-8000-00000000000a",
                "5c2e8f1a",
                "build",
                "\u{e9}\u{e9}\u{e9}\u{e9}",
                "the-same-id-of-two-agents",
                "the-same-id-of-two-agents",
                "the-same-id-of-two-agents-",
            ]
        );
    }
}
