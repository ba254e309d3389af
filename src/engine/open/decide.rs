//! What recovery does with each place of an unsealed segment: the table of section 20 of FORMAT.md.

/// The bytes at a place where a frame must begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// A frame of which header and payload check.
    Valid,
    /// A header that checks, with a damaged payload that only its own item needs.
    BadItem,
    /// A header that checks, with damage that other frames need: in EVICT, SEAL, or ids.
    BadBasis,
    /// No header that checks: damage, or zeros.
    BadHeader,
}

/// What recovery does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The frame counts.
    Accept,
    /// The frame counts, and its item is an error.
    Report,
    /// The log ends in front of this place.
    End,
    /// The store is damaged: opening for writing returns an error and changes no byte.
    Refuse,
}

/// The table. A place below the floor was durable.
pub(super) fn decide(bytes: Bytes, below_floor: bool) -> Action {
    match (bytes, below_floor) {
        (Bytes::Valid, _) => Action::Accept,
        (_, false) => Action::End,
        (Bytes::BadItem, true) => Action::Report,
        (Bytes::BadBasis | Bytes::BadHeader, true) => Action::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_one_action_and_the_floor_decides_between_a_torn_end_and_damage() {
        let expected = [
            (Bytes::Valid, [Action::Accept, Action::Accept]),
            (Bytes::BadItem, [Action::End, Action::Report]),
            (Bytes::BadBasis, [Action::End, Action::Refuse]),
            (Bytes::BadHeader, [Action::End, Action::Refuse]),
        ];
        for (bytes, actions) in expected {
            assert_eq!([false, true].map(|below| decide(bytes, below)), actions, "{bytes:?}");
        }
    }
}
