//! Goal: whatever bytes are in the index's storage, no call panics, hangs or gives a wrong answer.
//!
//! Method: the storage of a good index is damaged at random and opened; every question is asked.
//! An answer must be an error, or what the model says, or less than that: that an entry is missing
//! cannot be seen from here. Neither can an old page in the place of a newer one, whose entries
//! were true once; nothing else may come back. Then a segment is applied to what is left, and
//! everything is asked again.

use super::log::{AGENTS, CACHE, IDENTITY, Log, Model, RUNS, Random, SharedBytes};
use crate::format::segments::segment::Purpose;
use crate::index::{
    Catalog, IndexError, IndexSnapshot, IndexStore, RunList, RunRow, SegmentChange, Statuses, check,
};
use crate::types::{RunRef, RunStatus};

struct Good {
    log: Log,
    /// What was true after each batch; the last is true now.
    models: Vec<Model>,
    bytes: Vec<u8>,
}

impl Good {
    fn new(seed: u64) -> Self {
        let log = Log::generate(seed, 20, 40);
        let mut models = vec![Model::default()];
        let store_bytes = SharedBytes::default();
        let store = IndexStore::create(store_bytes.clone(), CACHE, IDENTITY).unwrap();
        for batch in log.changes().chunks(3) {
            store.apply(batch).unwrap();
            let mut model = models.last().unwrap().clone();
            for change in batch {
                model.apply(change);
            }
            models.push(model);
        }
        store.close().unwrap();
        Self { log, models, bytes: store_bytes.copy() }
    }

    fn model(&self) -> &Model {
        self.models.last().unwrap()
    }
}

/// What became of the answers.
#[derive(Debug, Default)]
struct Tally {
    opened: u32,
    right: u32,
    less: u32,
    stale: u32,
    refused: u32,
    panicked: u32,
}

impl Tally {
    /// Counts a list: each item must be one that is true now, in the same order, or one that was
    /// true once.
    fn list<T: PartialEq + std::fmt::Debug>(
        &mut self,
        good: &Good,
        found: Result<Vec<T>, IndexError>,
        question: impl Fn(&Model) -> Vec<T>,
    ) {
        let Some(found) = self.answer(found) else {
            return;
        };
        let expected = question(good.model());
        if found == expected {
            self.right += 1;
            return;
        }
        let mut rest = expected.iter();
        if found.iter().all(|item| rest.any(|expected| expected == item)) {
            self.less += 1;
            return;
        }
        for item in &found {
            let was_true = good.models.iter().any(|model| question(model).contains(item));
            assert!(was_true, "{item:?} was never true");
        }
        self.stale += 1;
    }

    fn answer<T>(&mut self, found: Result<T, IndexError>) -> Option<T> {
        match found {
            Ok(found) => return Some(found),
            Err(IndexError::Panicked) => self.panicked += 1,
            Err(_) => self.refused += 1,
        }
        None
    }

    fn ask(&mut self, snapshot: &IndexSnapshot, good: &Good) {
        for run in RUNS {
            for question in [RunRef::from(run), RunRef::from((AGENTS[0], run))] {
                let found = snapshot.run_numbers(question);
                self.list(good, found, |model| model.run_numbers(question).unwrap());
            }
        }
        for (run_no, state) in &good.model().runs {
            let row = |row: Option<RunRow>| row.into_iter().collect();
            let found = snapshot.row(*run_no).map(row);
            self.list(good, found, |model| row(model.row(*run_no).unwrap()));
            let found = snapshot.spans(*run_no);
            if let (Some(row), Ok(spans)) = (&state.row, &found) {
                assert_eq!(row.is_covered_by(spans), *spans == state.spans, "it would be seen");
            }
            self.list(good, found, |model| model.spans(*run_no).unwrap());
        }
        let all = usize::MAX;
        let of_agents = [AGENTS[1], AGENTS[5]].map(RunList::of_agent);
        let of_status = |status| Statuses::NONE.with(status);
        let in_progress = RunList { statuses: of_status(RunStatus::InProgress), ..RunList::ALL };
        let ended = RunList { statuses: of_status(RunStatus::Completed), ..of_agents[0] };
        let held = RunList { held: Some(true), ..RunList::ALL };
        for list in of_agents.into_iter().chain([RunList::ALL, in_progress, ended, held]) {
            let found = snapshot.runs_page(&list, all);
            self.list(good, found, |model| model.runs_page(&list, all).unwrap());
        }
        let found = snapshot.agents_page(None, all);
        self.list(good, found, |model| model.agents_page(None, all).unwrap());
        if let Some(count) = self.answer(snapshot.count_runs()) {
            assert_eq!(Ok(count), good.model().count_runs());
        }
    }
}

/// Opens damaged bytes, asks everything, applies one more segment, asks again.
fn torment(good: &Good, bytes: Vec<u8>, extra: &SegmentChange, tally: &mut Tally) {
    let opened = IndexStore::open(SharedBytes::new(bytes), CACHE, IDENTITY);
    let Some(store) = tally.answer(opened) else {
        return;
    };
    tally.opened += 1;
    let Some(snapshot) = tally.answer(store.snapshot()) else {
        return;
    };
    // A flip in the header may bring back an older commit, which lags but is right.
    if snapshot.applied() != good.log.applied() {
        assert!(snapshot.applied().log < good.log.applied().log);
        return;
    }
    tally.ask(&snapshot, good);
    let _ = tally.answer(check(&snapshot, &good.log, &|_| false));
    let applied = store.apply(std::slice::from_ref(extra));
    if tally.answer(applied).is_some()
        && let Some(snapshot) = tally.answer(store.snapshot())
    {
        tally.ask(&snapshot, good);
    }
}

fn extra_of(good: &Good) -> SegmentChange {
    let last = good.log.segments.last().unwrap();
    SegmentChange {
        segment: crate::types::SegmentId(last.0 + 1),
        purpose: Purpose::Log,
        stamp: 1,
        runs: Vec::new(),
        evicted: vec![crate::types::RunNo(u64::MAX)],
    }
}

#[test]
fn damaged_bits_and_pages_are_never_a_panic_or_a_wrong_answer() {
    let good = Good::new(3);
    let extra = extra_of(&good);
    let mut random = Random(99);
    let mut tally = Tally::default();
    let used = good.bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    for trial in 0..1500 {
        let mut bytes = good.bytes.clone();
        for _ in 0..=random.below(1 + trial % 8) {
            let at = usize::try_from(random.below(used)).unwrap();
            bytes[at] ^= 1 << random.below(8);
        }
        torment(&good, bytes, &extra, &mut tally);
    }
    assert!(tally.opened > 100 && tally.right > 1000, "{tally:?}");
    assert!(tally.refused + tally.panicked > 10, "{tally:?}");
    assert_eq!(tally.stale, 0, "{tally:?}");
    let page = |random: &mut Random| {
        usize::try_from(random.below(good.bytes.len() as u64 / 4096)).unwrap() * 4096
    };
    for _ in 0..400 {
        let mut bytes = good.bytes.clone();
        let to = page(&mut random);
        match random.below(4) {
            0 => bytes[to..to + 4096].fill(0),
            1 => bytes[to..to + 4096].fill_with(|| random.next().to_le_bytes()[0]),
            2 => {
                let from = page(&mut random);
                bytes.copy_within(from..from + 4096, to);
            }
            _ => bytes.truncate(to),
        }
        torment(&good, bytes, &extra, &mut tally);
    }
    assert!(tally.opened > 150 && tally.right > 1500, "{tally:?}");
}
