//! Creating, opening, skipping, closing; and that `check` finds what it should.

use redb::Database;

use super::compaction::Eager;
use super::log::{CACHE, IDENTITY, Log, SharedBytes, Writer};
use crate::error::Damage;
use crate::format::segments::segment::Purpose;
use crate::index::tables::fence::RedbFailure;
use crate::index::tables::key;
use crate::index::tables::key::{State, Table};
use crate::index::value::{self, SCHEMA_VERSION};
use crate::index::{
    Applied, Catalog, Directories, IndexError, IndexIdentity, IndexSnapshot, IndexStore,
    Relocation, RunList, RunRow, SegmentChange, Span, Statuses, check,
};
use crate::types::{RunNo, RunStatus, SegmentId, Timestamp};

fn built(log: &Log) -> SharedBytes {
    let bytes = SharedBytes::default();
    let store = IndexStore::create(bytes.clone(), CACHE, IDENTITY).unwrap();
    store.apply(&log.changes()).unwrap();
    store.close().unwrap();
    bytes
}

fn sample() -> Log {
    Log::generate(7, 12, 30)
}

#[test]
fn an_index_of_another_store_is_foreign() {
    let other = IndexIdentity { uuid: [1; 16] };
    let opened = IndexStore::open(built(&sample()), CACHE, other);
    assert_eq!(opened.unwrap_err(), IndexError::Foreign);
}

#[test]
fn an_index_of_another_version_is_foreign() {
    let bytes = built(&sample());
    for schema in [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1] {
        let (uuid, applied) = (IDENTITY.uuid, Applied::default());
        let meta = value::Meta { uuid, schema, applied, runs: 0 };
        put(&bytes, Table::Meta, b"index", Some(&value::meta_value(b"index", &meta)));
        let opened = IndexStore::open(SharedBytes::new(bytes.copy()), CACHE, IDENTITY);
        assert_eq!(opened.unwrap_err(), IndexError::Foreign);
    }
    // Whatever tables it has.
    let database = Database::builder().create_with_backend(bytes.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    assert!(transaction.delete_table(Table::ByState.definition()).unwrap());
    transaction.commit().unwrap();
    drop(database);
    let opened = IndexStore::open(bytes, CACHE, IDENTITY);
    assert_eq!(opened.unwrap_err(), IndexError::Foreign);
}

#[test]
fn creating_needs_an_empty_storage_and_opening_one_that_is_not() {
    let created = IndexStore::create(SharedBytes::new(vec![0; 4096]), CACHE, IDENTITY);
    assert_eq!(created.unwrap_err(), IndexError::Foreign);
    let opened = IndexStore::open(SharedBytes::default(), CACHE, IDENTITY);
    assert_eq!(opened.unwrap_err(), IndexError::Damaged(Damage::Missing));
    let opened = IndexStore::open(SharedBytes::new(vec![0; 1 << 16]), CACHE, IDENTITY);
    assert!(opened.is_err());
}

#[test]
fn segments_that_were_applied_are_skipped() {
    let changes = sample().changes();
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    store.apply(&changes[..6]).unwrap();
    let count = store.snapshot().unwrap().count_runs();
    store.apply(&changes[..6]).unwrap();
    store.apply(&[]).unwrap();
    assert_eq!(store.snapshot().unwrap().count_runs(), count);
    assert_eq!(store.applied().unwrap().log, Some(changes[5].segment));
}

#[test]
#[should_panic(expected = "in the order of the log")]
fn segments_in_another_order_are_a_bug_of_the_caller() {
    let mut changes = sample().changes();
    changes.reverse();
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    let _ = store.apply(&changes);
}

#[test]
fn a_snapshot_stays_as_it_was_and_outlives_the_store() {
    let changes = sample().changes();
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    store.apply(&changes[..4]).unwrap();
    let old = store.snapshot().unwrap();
    let rows = old.runs_page(&RunList::ALL, usize::MAX).unwrap();
    assert!(!rows.is_empty());
    store.apply(&changes[4..]).unwrap();
    assert_eq!(old.runs_page(&RunList::ALL, usize::MAX).unwrap(), rows);
    assert_eq!(old.applied().log, Some(changes[3].segment));
    drop(store);
    // What it answers now is redb's matter; it must only not panic.
    let _ = old.runs_page(&RunList::ALL, usize::MAX);
}

/// A segment with nothing but the eviction of a run.
fn evicting(segment: SegmentId, purpose: Purpose, run_no: RunNo) -> SegmentChange {
    SegmentChange { segment, purpose, stamp: 1, runs: Vec::new(), evicted: vec![run_no] }
}

#[test]
fn a_failed_write_fails_all_later_applies_and_keeps_what_was_applied() {
    let changes = sample().changes();
    let bytes = SharedBytes::default();
    let store = IndexStore::create(bytes.clone(), CACHE, IDENTITY).unwrap();
    store.apply(&changes[..4]).unwrap();
    let before = store.snapshot().unwrap();
    let all = |snapshot: &IndexSnapshot| snapshot.runs_page(&RunList::ALL, usize::MAX);
    let rows = all(&before).unwrap();
    bytes.fill_up();
    let failure = Err(IndexError::Redb(RedbFailure::Io));
    assert_eq!(store.apply(&changes[4..]), failure);
    assert_eq!(store.apply(&changes[4..]), failure);
    assert_eq!(store.apply(&[]), failure);
    drop((store, before));

    let survivor = SharedBytes::new(bytes.copy());
    let store = IndexStore::open(survivor, CACHE, IDENTITY).unwrap();
    assert_eq!(store.applied().unwrap().log, Some(changes[3].segment));
    assert_eq!(all(&store.snapshot().unwrap()).unwrap(), rows);
}

/// Writes or removes an entry behind the back of the index.
fn put(bytes: &SharedBytes, table: Table, key: &[u8], value: Option<&[u8]>) {
    let database = Database::builder().create_with_backend(bytes.clone()).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut open = transaction.open_table(table.definition()).unwrap();
    match value {
        Some(value) => drop(open.insert(key, value).unwrap()),
        None => assert!(open.remove(key).unwrap().is_some(), "{table} {key:?}"),
    }
    drop(open);
    transaction.commit().unwrap();
}

/// Whether `check` finds no difference.
fn agrees(bytes: SharedBytes, log: &Log) -> bool {
    let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
    check(&store.snapshot().unwrap(), log, &|_| false) == Ok(true)
}

/// For each table: an entry is removed, changed, or added.
#[test]
fn check_finds_each_kind_of_difference_in_each_table() {
    let log = sample();
    assert!(agrees(built(&log), &log));
    let store = IndexStore::open(built(&log), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let run_no = snapshot.runs_page(&RunList::ALL, 1).unwrap()[0].1;
    let row = snapshot.row(run_no).unwrap().unwrap();
    let (agent, other) = (row.agent.as_str(), RunNo(1 << 40));
    let mut span = snapshot.spans(run_no).unwrap()[0];
    let keys_of = |run_no| {
        let key = (row.created_at, run_no);
        [
            (Table::Runs, key::run_key(run_no).to_vec()),
            (Table::RunIds, key::id_key(row.run.as_str(), agent, run_no)),
            (Table::ByAgent, key::state_key(Some(agent), row.state(), key)),
            (Table::ByState, key::state_key(None, row.state(), key)),
            (Table::Spans, key::span_key(run_no, span.segment).to_vec()),
        ]
    };
    let finds = |table, key: &[u8], value: Option<&[u8]>| {
        let bytes = built(&log);
        put(&bytes, table, key, value);
        assert!(!agrees(bytes, &log), "{table} {key:?} {value:?}");
    };
    for ((table, key), (_, stranger)) in keys_of(run_no).into_iter().zip(keys_of(other)) {
        finds(table, &key, None);
        finds(table, &key, Some(&[0; 4]));
        finds(table, &stranger, Some(&[0; 4]));
    }
    let changed = RunRow { records: row.records + 1, ..row.clone() };
    finds(Table::Runs, &key::run_key(run_no), Some(&value::row_value(&changed)));
    let span_key = key::span_key(run_no, span.segment);
    span.slot += 1;
    finds(Table::Spans, &span_key, Some(&value::span_value(run_no, &span)));
    for row in snapshot.agents(None).unwrap() {
        let (agent, count) = row.unwrap();
        let (agent, key) = (agent.as_str(), agent.as_str().as_bytes());
        finds(Table::Agents, key, None);
        finds(Table::Agents, key, Some(&value::agent_value(agent, count + 1)));
    }
    for stranger in ["\u{1}", "b", "zz", "\u{10FFFF}\u{10FFFF}"] {
        finds(Table::Agents, stranger.as_bytes(), Some(&value::agent_value(stranger, 1)));
    }
}

/// A run that came into another state, and stayed in the lists of its old one; or came into none.
#[test]
fn check_finds_runs_in_lists_of_other_states() {
    let log = sample();
    let store = IndexStore::open(built(&log), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let (at, run_no) = snapshot.runs_page(&RunList::ALL, 1).unwrap()[0];
    let row = snapshot.row(run_no).unwrap().unwrap();
    let statuses = Statuses::ALL.each();
    let states = statuses.flat_map(|status| [false, true].map(|held| State { status, held }));
    let states: Vec<_> = states.filter(|state| *state != row.state()).collect();
    assert_eq!(states.len(), 9);
    let mut found_twice = 0;
    for (table, agent) in [(Table::ByAgent, Some(row.agent.as_str())), (Table::ByState, None)] {
        for old in &states {
            let key = key::state_key(agent, *old, (at, run_no));
            let bytes = built(&log);
            put(&bytes, table, &key, Some(&value::mark(table, &key)));
            assert!(!agrees(bytes.clone(), &log), "{table} {old:?}");
            // It is in two states, which a list of both finds, if any other run is in that state.
            let list = RunList { agent, ..RunList::ALL };
            let right = snapshot.runs_page(&list, usize::MAX).unwrap();
            let store = IndexStore::open(bytes.clone(), CACHE, IDENTITY).unwrap();
            let page = store.snapshot().unwrap().runs_page(&list, usize::MAX);
            let is_found = page == Err(IndexError::Damaged(Damage::Misplaced));
            assert!(is_found || agent.is_some() && page == Ok(right), "{table} {old:?}: {page:?}");
            found_twice += u32::from(is_found);
            drop(store);
            put(&bytes, table, &key::state_key(agent, row.state(), (at, run_no)), None);
            assert!(!agrees(bytes, &log), "{table} {old:?}");
        }
    }
    assert!(found_twice > 9, "{found_twice}");
}

/// An index of a log that is about to be compacted, and what to tell the index of it.
fn compacted() -> (Log, SharedBytes, Relocation) {
    let mut writer = Writer::new(11, 30);
    for _ in 0..12 {
        writer.seal();
    }
    let bytes = built(&writer.log);
    let relocation = writer.compact(writer.log.applied(), Eager::No).unwrap();
    (writer.log, bytes, relocation)
}

fn relocated(bytes: SharedBytes, relocation: &Relocation) {
    let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
    store.relocate(relocation).unwrap();
    store.close().unwrap();
}

#[test]
fn check_finds_an_index_that_was_not_told_of_a_compaction() {
    let (log, bytes, relocation) = compacted();
    assert!(!agrees(SharedBytes::new(bytes.copy()), &log));
    relocated(bytes.clone(), &relocation);
    assert!(agrees(bytes.clone(), &log));
    // A span is left at a victim.
    let (row, spans) = &relocation.runs[0];
    let victim = (1..100).map(SegmentId).find(|id| !log.segments.contains(id)).unwrap();
    let stale = Span { segment: victim, ..spans[0] };
    let (key, value) = (key::span_key(row.run_no, victim), value::span_value(row.run_no, &stale));
    put(&bytes, Table::Spans, &key, Some(&value));
    assert!(!agrees(bytes, &log));
}

#[test]
fn a_run_that_was_evicted_meanwhile_is_not_brought_back_by_a_relocation() {
    let (_, bytes, relocation) = compacted();
    let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
    let run_no = relocation.runs[0].0.run_no;
    let count = store.snapshot().unwrap().count_runs().unwrap();
    let (segment, purpose) = (SegmentId(1 << 20), Purpose::Log);
    store.apply(&[evicting(segment, purpose, run_no)]).unwrap();
    store.relocate(&relocation).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.row(run_no), Ok(None));
    assert_eq!(snapshot.spans(run_no), Ok(Vec::new()));
    assert_eq!(snapshot.count_runs(), Ok(count - 1));
    let last = relocation.outputs.iter().map(|(segment, _)| *segment).max();
    let expected = Applied { log: Some(segment), outputs: last };
    assert_eq!(snapshot.applied(), expected);
}

/// The segments of a log and their stamps.
fn stamps(log: &Log) -> Vec<(SegmentId, u64)> {
    log.segments.iter().enumerate().map(|(index, id)| (*id, log.stamp(index))).collect()
}

#[test]
fn an_index_knows_which_segments_it_was_built_from() {
    let (log, bytes, relocation) = compacted();
    let has = |bytes: &SharedBytes, stamps: Vec<(SegmentId, u64)>| {
        let store = IndexStore::open(SharedBytes::new(bytes.copy()), CACHE, IDENTITY).unwrap();
        store.snapshot().unwrap().has_applied(stamps.into_iter()).unwrap()
    };
    assert!(!has(&bytes, stamps(&log)), "the outputs were not applied");
    relocated(bytes.clone(), &relocation);
    assert!(has(&bytes, stamps(&log)));
    assert!(has(&bytes, Vec::new()));
    for other in 0..log.segments.len() {
        let mut stamps = stamps(&log);
        stamps[other].1 ^= 1;
        assert!(!has(&bytes, stamps), "segment {other} with another directory");
    }
    let mut more = stamps(&log);
    more.push((SegmentId(1 << 20), 7));
    assert!(!has(&bytes, more));
}

#[test]
fn an_index_forgets_segments_that_are_gone_once_they_are_most_of_all() {
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    let known = || store.snapshot().unwrap().stamps().unwrap();
    let mut most = 0;
    for number in 0..400 {
        let segment = SegmentId(number);
        let change = evicting(segment, Purpose::Log, RunNo(9));
        store.apply_among(&[segment], &[change]).unwrap();
        most = most.max(known());
    }
    assert!((20..100).contains(&most), "{most}");
    assert!(store.snapshot().unwrap().has_applied([(SegmentId(399), 1)].into_iter()).unwrap());
}

#[test]
#[should_panic(expected = "a run that has a row has a span")]
fn a_run_without_spans_is_a_bug_of_the_caller() {
    let (_, bytes, mut relocation) = compacted();
    relocation.runs[0].1.clear();
    let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
    let _ = store.relocate(&relocation);
}

/// An old page in the place of a newer one holds entries whose checksums fit.
#[test]
fn a_run_that_is_listed_in_a_state_that_it_left_or_is_gone_is_damage() {
    let log = sample();
    let store = IndexStore::open(built(&log), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let in_progress = Statuses::NONE.with(RunStatus::InProgress);
    let list = RunList { statuses: in_progress, ..RunList::ALL };
    let (at, run_no) = snapshot.runs_page(&list, 1).unwrap()[0];
    let row = snapshot.row(run_no).unwrap().unwrap();
    let agent = row.agent.as_str();
    drop((snapshot, store));
    let left = State { status: RunStatus::Failed, held: row.is_held() };
    let (early, gone) = (Timestamp(i64::MIN), RunNo(1 << 40));
    let places = [(left, (at, run_no)), (row.state(), (early, run_no)), (left, (at, gone))];
    for (state, key) in places {
        for (table, of) in [(Table::ByState, None), (Table::ByAgent, Some(agent))] {
            let bytes = built(&log);
            let mark = key::state_key(of, state, key);
            put(&bytes, table, &mark, Some(&value::mark(table, &mark)));
            let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
            let snapshot = store.snapshot().unwrap();
            let list =
                RunList { agent: of, statuses: Statuses::NONE.with(state.status), ..RunList::ALL };
            let rows = snapshot.rows_page(&list, usize::MAX, &|_| true);
            assert_eq!(rows, Err(Damage::IndexPages.into()), "{table} {state:?} {key:?}");
            // A run that is deleted is not asked for.
            let others = snapshot.rows_page(&list, usize::MAX, &|number| number != key.1).unwrap();
            assert!(others.iter().all(|(other, row)| row.is_some() == (other.1 != key.1)));
            if let (Some(agent), true) = (of, key.1 == gone) {
                let has_it = snapshot.has_run_of(agent, &|number| number == gone);
                assert_eq!(has_it, Err(Damage::IndexPages.into()));
            }
        }
    }
}
