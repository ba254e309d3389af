//! The runs of the golden stores.

use runlog::RunStatus;

/// A record of the story: kind, content type, payload, whether it comes after the end.
pub(super) type Told = (&'static str, u8, Vec<u8>, bool);

/// A run of the story.
pub(super) struct Tale {
    pub(super) agent: &'static str,
    pub(super) run: &'static str,
    /// `None`: records are appended without a start.
    pub(super) metadata: Option<(&'static [u8], u8)>,
    pub(super) records: Vec<Told>,
    pub(super) in_one_batch: bool,
    pub(super) outcome: Option<(RunStatus, &'static [u8], u8)>,
}

/// An id with everything that is awkward: a NUL, a slash, dots, a newline, non-ASCII.
pub(super) const ODD: &str = "\0/../\n\u{e9}\u{1f600}";

pub(super) fn filler(len: usize, seed: u32) -> Vec<u8> {
    (0..)
        .map(|at: u32| (at.wrapping_mul(31).wrapping_add(seed) >> 3).to_le_bytes()[0])
        .take(len)
        .collect()
}

/// Everything that the golden store holds, and one run that was deleted from it.
pub(super) fn story() -> Vec<Tale> {
    let plain = |len, seed| -> Told { ("", 0, filler(len, seed), false) };
    vec![
        Tale {
            agent: "planner",
            run: "run-1",
            metadata: Some((br#"{"goal":"tea"}"#, 1)),
            records: vec![
                ("turn", 1, br#"{"say":"boil water"}"#.to_vec(), false),
                ("tool_call", 3, br#"{"tool":"kettle"} "#.to_vec(), false),
                ("", 2, "gr\u{fc}n\n".as_bytes().to_vec(), false),
                ("blob", 0, vec![0, 255, 10, 13], false),
                ("", 4, vec![0x81, 0xa1, b'a', 1], false),
                ("", 5, vec![0xa1, 0x61, b'a', 1], false),
                ("own", 200, Vec::new(), false),
            ],
            in_one_batch: false,
            outcome: Some((RunStatus::Completed, br#"{"cups":1}"#, 1)),
        },
        Tale {
            agent: "planner",
            run: "batched",
            metadata: Some((b"", 0)),
            records: vec![
                ("one", 1, b"1".to_vec(), false),
                ("two", 1, b"2".to_vec(), false),
                ("three", 1, filler(9_000, 3), false),
                ("late", 2, b"after the end".to_vec(), true),
            ],
            in_one_batch: true,
            outcome: Some((RunStatus::Failed, b"", 0)),
        },
        Tale {
            agent: "coder",
            run: "run-1",
            metadata: Some((b"same id, other agent", 2)),
            records: vec![plain(20_000, 1), plain(7, 2), plain(8_192, 3), plain(8_193, 4)],
            in_one_batch: false,
            outcome: None,
        },
        Tale {
            agent: ODD,
            run: ODD,
            metadata: Some((b"\0", 0)),
            records: vec![("\u{1f600}", 0, b"\r\n".to_vec(), false)],
            in_one_batch: false,
            outcome: Some((RunStatus::Cancelled, b"stop", 2)),
        },
        Tale {
            agent: "coder",
            run: "imported",
            metadata: None,
            records: vec![plain(1, 5), plain(2, 6)],
            in_one_batch: false,
            outcome: Some((RunStatus::Interrupted, b"", 0)),
        },
        Tale {
            agent: "planner",
            run: "doomed",
            metadata: Some((b"", 0)),
            records: (0..10).map(|seed| plain(300, seed)).collect(),
            in_one_batch: false,
            outcome: Some((RunStatus::Completed, b"", 0)),
        },
        Tale {
            agent: "coder",
            run: "long",
            metadata: Some((b"", 0)),
            records: (0..120).map(|seed| plain(700, seed)).collect(),
            in_one_batch: false,
            outcome: Some((RunStatus::Completed, b"", 0)),
        },
    ]
}
