//! Index and directory scan answer the same to every question, however the log was cut into
//! batches.

use core::ops::Bound;
use std::collections::BTreeSet;

use super::log::{AGENTS, CACHE, IDENTITY, Log, RUNS, Random, SharedBytes, Writer};
use crate::format::segments::segment::Purpose;
use crate::index::{
    Applied, Catalog, DirectoryScan, IndexSnapshot, IndexStore, Order, RunKey, RunList, RunRow,
    Statuses, check,
};
use crate::types::{RunNo, RunStatus, SegmentId, Timestamp};

const NOWHERE: [&str; 3] = ["", "b", "zz"];

pub(super) fn assert_same(left: &dyn Catalog, right: &dyn Catalog, context: &str) {
    assert_eq!(left.count_runs(), right.count_runs(), "{context}");
    let all = right.runs_page(&RunList::ALL, usize::MAX).unwrap();
    let last = all.iter().map(|key| key.1.0).max().unwrap_or(0);
    for number in 0..last + 3 {
        let run_no = RunNo(number);
        assert_eq!(row(left, run_no), row(right, run_no), "{context}");
    }
    assert_eq!(summaries(left), summaries(right), "{context}");
    assert_same_pages(left, right, context);
}

/// The row of a run as the index has it.
fn row(catalog: &dyn Catalog, run_no: RunNo) -> Option<RunRow> {
    catalog.row(run_no).unwrap().map(RunRow::without_places)
}

fn summaries(catalog: &dyn Catalog) -> Vec<String> {
    let mut found = Vec::new();
    catalog.each_summary(&mut |summary| found.push(format!("{summary:?}"))).unwrap();
    found
}

fn assert_same_pages(left: &dyn Catalog, right: &dyn Catalog, context: &str) {
    // Some of them each time: there are hundreds.
    let first = context.bytes().map(usize::from).sum::<usize>() % 29;
    for list in lists().skip(first).step_by(29) {
        let all = right.runs_page(&list, usize::MAX).unwrap();
        assert_eq!(left.runs_page(&list, usize::MAX), Ok(all.clone()), "{context} {list:?}");
        for limit in [0, 1, 3] {
            let mut rest = list;
            for expected in all.chunks(limit.max(1)).chain([&[][..]]) {
                let page = left.runs_page(&rest, limit).unwrap();
                if limit == 0 {
                    assert_eq!(page, []);
                    break;
                }
                assert_eq!(page, expected, "{context} {rest:?} {limit}");
                rest = page.last().map_or(rest, |last| rest.behind(*last));
            }
        }
        if let [first, .., last] = all.as_slice() {
            let inner = list.behind(*first).in_front_of(*last);
            assert_eq!(left.runs_page(&inner, usize::MAX).unwrap(), all[1..all.len() - 1]);
        }
        assert_same_rows((left, right), &list, &all, context);
        for at in [i64::MIN, -1, 0, 9, 20, i64::MAX].map(Timestamp) {
            for list in [list.since(at), list.until(at), list.since(Timestamp(3)).until(at)] {
                let page = left.runs_page(&list, 9);
                assert_eq!(page, right.runs_page(&list, 9), "{context} {list:?}");
            }
        }
    }
    for limit in [0, 1, 3, usize::MAX] {
        let mut after = None;
        loop {
            let page = left.agents_page(after.as_deref(), limit).unwrap();
            let expected = right.agents_page(after.as_deref(), limit).unwrap();
            assert_eq!(page, expected, "{context} {after:?} {limit}");
            after = page.last().map(|agent| agent.as_str().to_owned());
            if after.is_none() {
                break;
            }
        }
    }
    for agent in AGENTS.into_iter().chain(NOWHERE) {
        for rest in [0, 1, 7] {
            let is_wanted = |run_no: RunNo| run_no.0 % 8 >= rest;
            let found = left.has_run_of(agent, &is_wanted);
            assert_eq!(found, right.has_run_of(agent, &is_wanted), "{context} {agent:?} {rest}");
        }
    }
    for namespace in AGENTS.into_iter().chain(NOWHERE) {
        for key in RUNS.into_iter().chain(NOWHERE) {
            for (from, limit) in [(Bound::Included(key), 2), (Bound::Excluded(key), usize::MAX)] {
                let page = left.documents_page(namespace, from, limit).unwrap();
                let expected = right.documents_page(namespace, from, limit).unwrap();
                assert_eq!(page, expected, "{context} {namespace:?} {from:?} {limit}");
            }
        }
        for limit in [0, 1, usize::MAX] {
            let page = left.documents_page(namespace, Bound::Unbounded, limit);
            let expected = right.documents_page(namespace, Bound::Unbounded, limit);
            assert_eq!(page, expected, "{context} {namespace:?} {limit}");
        }
    }
}

/// A page with rows is the page without, and the row of each run that is wanted.
fn assert_same_rows(
    (left, right): (&dyn Catalog, &dyn Catalog),
    list: &RunList<'_>,
    all: &[RunKey],
    context: &str,
) {
    for (limit, rest) in [(0, 0), (1, 0), (3, 3), (9, 1), (usize::MAX, 2)] {
        let is_wanted = |run_no: RunNo| run_no.0 % 4 >= rest;
        let row = |key: &RunKey| is_wanted(key.1).then(|| row(right, key.1).unwrap());
        for from in [None, all.get(1), all.get(4)] {
            let skipped = all.iter().position(|key| Some(key) == from).map_or(0, |at| at + 1);
            let expected: Vec<_> =
                all.iter().skip(skipped).take(limit).map(|key| (*key, row(key))).collect();
            let rest = from.map_or(*list, |from| list.behind(*from));
            let page = left.rows_page(&rest, limit, &is_wanted).unwrap().into_iter();
            let page: Vec<_> =
                page.map(|(key, row)| (key, row.map(RunRow::without_places))).collect();
            assert_eq!(page, expected, "{context} {rest:?} {limit}");
        }
    }
}

/// Lists of all kinds.
fn lists() -> impl Iterator<Item = RunList<'static>> {
    let agents = AGENTS.into_iter().chain(NOWHERE).map(RunList::of_agent);
    let statuses = [
        Statuses::ALL,
        Statuses::NONE,
        Statuses::NONE.with(RunStatus::InProgress),
        Statuses::NONE.with(RunStatus::Failed),
        Statuses::NONE.with(RunStatus::Completed).with(RunStatus::Interrupted),
    ];
    let of_status = move |list: RunList<'static>| {
        statuses.into_iter().map(move |statuses| RunList { statuses, ..list })
    };
    let of_hold = |list: RunList<'static>| {
        [None, Some(true), Some(false)].map(|held| RunList { held, ..list })
    };
    let in_order = |list: RunList<'static>| {
        [Order::Ascending, Order::Descending].map(|order| RunList { order, ..list })
    };
    agents.chain([RunList::ALL]).flat_map(of_status).flat_map(of_hold).flat_map(in_order)
}

fn assert_checks(snapshot: &IndexSnapshot, log: &Log, context: &str) {
    assert_eq!(check(snapshot, log, &|_| false), Ok(true), "{context}");
}

/// A log that grows, and an index that follows it.
struct World {
    writer: Writer,
    random: Random,
    bytes: SharedBytes,
    store: IndexStore,
    context: String,
}

impl World {
    fn new(seed: u64) -> Self {
        let bytes = SharedBytes::default();
        let store = IndexStore::create(bytes.clone(), CACHE, IDENTITY).unwrap();
        let context = format!("seed {seed}");
        Self { writer: Writer::new(seed, 14), random: Random(!seed), bytes, store, context }
    }

    /// Applies up to `limit` segments of the log that are missing. What was applied before may be
    /// given again.
    fn apply(&self, limit: usize) {
        let log = &self.writer.log;
        let applied = self.store.applied().unwrap();
        let missing = log.segments.iter().filter(|id| !applied.covers(**id, Purpose::Log));
        let last = missing.take(limit).last().copied().or(applied.log);
        let deleted = log.evicted(Applied { log: last, ..applied });
        let again = SegmentId(applied.log.map_or(0, |id| id.0.saturating_sub(2)));
        let mut batch = log.changes_without(&deleted);
        batch.retain(|change| change.segment > again && Some(change.segment) <= last);
        self.store.apply(&batch).unwrap();
    }

    /// As after a crash: what is in the storage, without what closing writes.
    fn reopen(&mut self) {
        self.bytes = SharedBytes::new(self.bytes.copy());
        self.store = IndexStore::open(self.bytes.clone(), CACHE, IDENTITY).unwrap();
    }

    fn compare(&self) -> IndexSnapshot {
        let (log, context) = (&self.writer.log, &self.context);
        let snapshot = self.store.snapshot().unwrap();
        assert_same(&snapshot, &DirectoryScan::up_to(log, snapshot.applied()), context);
        assert_checks(&snapshot, log, context);
        snapshot
    }
}

/// Grows a log and its index in random steps, compares after each, and with a rebuilt index at the
/// end.
fn grow(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..20 {
        world.context = format!("seed {seed} step {step}");
        match world.random.below(4) {
            0 | 1 => world.writer.seal(),
            2 => {
                let limit = 1 + usize::try_from(world.random.below(4)).unwrap();
                world.apply(limit);
            }
            _ => world.reopen(),
        }
        world.compare();
    }
    world.apply(usize::MAX);
    let grown = world.compare();
    rebuild(&world.writer.log, &grown, &mut world.random, &format!("seed {seed} rebuilt"));
}

/// Rebuilds in one batch, which finds the evictions itself, and in several.
fn rebuild(log: &Log, grown: &IndexSnapshot, random: &mut Random, context: &str) {
    let all = log.evicted(log.applied());
    for (deleted, size) in [(&BTreeSet::new(), usize::MAX), (&all, 3)] {
        let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
        let changes = log.changes_without(deleted);
        let size = size.min(1 + usize::try_from(random.below(4)).unwrap() + changes.len());
        for batch in changes.chunks(size) {
            store.apply(batch).unwrap();
        }
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.applied(), log.applied(), "{context}");
        assert_same(&snapshot, grown, context);
        assert_same(&DirectoryScan::new(log), grown, context);
        assert_checks(&snapshot, log, context);
    }
}

#[test]
fn index_and_scan_agree_on_every_question() {
    (0..150).for_each(grow);
}

#[test]
fn an_empty_log_has_empty_answers() {
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let log = Log::default();
    assert_eq!(snapshot.applied(), Applied::default());
    assert_eq!(snapshot.count_runs(), Ok(0));
    assert_same(&snapshot, &DirectoryScan::new(&log), "empty");
    assert_checks(&snapshot, &log, "empty");
}
