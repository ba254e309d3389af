//! What recovery does with each item of an unsealed segment: the table of R4. Section 20 of
//! FORMAT.md has the reasons.

/// The bytes at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// A frame with a valid header and payload.
    Valid,
    /// A valid header with an invalid payload.
    BadPayload,
    /// No valid header.
    BadHeader,
}

/// The circumstances of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) bytes: Bytes,
    /// The position is below the floor.
    pub(crate) durable: bool,
    /// The machine was not restarted since the bytes were written.
    pub(crate) same_boot: bool,
    /// The log ended in front of this position.
    pub(crate) ended: bool,
    /// A valid frame follows in the same segment, or one below the floor with a damaged payload.
    pub(crate) more: bool,
}

/// What to do with an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The frame counts.
    Accept,
    /// The record is damaged: it is reported and keeps its place; nothing else is affected.
    Damaged,
    /// Bytes without a header are reported and skipped.
    Skip,
    /// The log of this segment ends here, torn or not; later segments may continue.
    EndSegment,
    /// The whole log ends here.
    EndLog,
    /// A valid frame behind the end of the log: reported, not replayed.
    Orphan,
    /// Nothing to report.
    Ignore,
}

/// The table.
pub(crate) fn decide(case: Case) -> Action {
    let Case { bytes, durable, same_boot, ended, more } = case;
    match (bytes, ended, durable, same_boot, more) {
        // Behind the end.
        (Bytes::Valid, true, ..) => Action::Orphan,
        (_, true, ..) => Action::Ignore,
        // Valid frames count wherever the log has not ended.
        (Bytes::Valid, false, ..) => Action::Accept,
        // Below the floor, damage is confined to its record.
        (Bytes::BadPayload, false, true, ..) => Action::Damaged,
        (Bytes::BadHeader, false, true, _, true) => Action::Skip,
        (Bytes::BadHeader, false, true, _, false) => Action::EndSegment,
        // After a kill only the last frame can be torn, and it was not acknowledged.
        (Bytes::BadPayload, false, false, true, true) => Action::Damaged,
        (Bytes::BadHeader, false, false, true, true) => Action::Skip,
        (_, false, false, true, false) => Action::EndSegment,
        // After a power cut the log ends at the first invalid frame.
        (_, false, false, false, _) => Action::EndLog,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Case> {
        let kinds = [Bytes::Valid, Bytes::BadPayload, Bytes::BadHeader];
        kinds.into_iter().flat_map(|bytes| {
            (0..16u8).map(move |bits| Case {
                bytes,
                durable: bits & 1 != 0,
                same_boot: bits & 2 != 0,
                ended: bits & 4 != 0,
                more: bits & 8 != 0,
            })
        })
    }

    #[test]
    fn each_case_has_an_action_that_keeps_the_promises() {
        for case in all() {
            let (action, is_valid) = (decide(case), case.bytes == Bytes::Valid);
            if case.ended {
                assert!(matches!(action, Action::Orphan | Action::Ignore), "{case:?} counts");
                continue;
            }
            assert_eq!(action == Action::Accept, is_valid, "{case:?}");
            let ends_the_log = !is_valid && !case.durable && !case.same_boot;
            assert_eq!(action == Action::EndLog, ends_the_log, "{case:?}");
            if case.bytes == Bytes::BadPayload && case.durable {
                assert_eq!(action, Action::Damaged, "{case:?} keeps its place");
            }
        }
    }
}
