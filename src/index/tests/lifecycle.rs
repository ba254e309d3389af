//! Creating, opening, skipping, closing; and that `check` finds what it should.

use redb::Database;

use super::log::{CACHE, IDENTITY, Log, SharedBytes};
use crate::error::Damage;
use crate::format::segments::segment::Purpose;
use crate::index::tables::fence::RedbFailure;
use crate::index::tables::key;
use crate::index::tables::key::{State, Table};
use crate::index::value::{self, SCHEMA_VERSION};
use crate::index::{
    Applied, Catalog, IndexError, IndexIdentity, IndexSnapshot, IndexStore, Relocated, Relocation,
    RunList, RunRow, SegmentChange, Statuses, check,
};
use crate::types::{RunNo, RunStatus, SegmentId};

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
fn evicting(segment: SegmentId, run_no: RunNo) -> SegmentChange {
    let (purpose, runs) = (Purpose::Log, Vec::new());
    SegmentChange { segment, purpose, stamp: 1, runs, evicted: vec![run_no] }
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

/// For each table: an entry is removed or changed, or one of another run is added.
#[test]
fn check_finds_each_kind_of_difference_in_each_table() {
    let log = sample();
    assert!(agrees(built(&log), &log));
    let store = IndexStore::open(built(&log), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let run_no = snapshot.runs_page(&RunList::ALL, 1).unwrap()[0].1;
    let row = snapshot.row(run_no).unwrap().unwrap();
    let agent = row.agent.as_str();
    let keys_of = |run_no| {
        let key = (row.created_at, run_no);
        [
            (Table::Runs, key::run_key(run_no).to_vec()),
            (Table::ByAgent, key::state_key(Some(agent), row.state(), key)),
            (Table::ByState, key::state_key(None, row.state(), key)),
        ]
    };
    let finds = |table, key: &[u8], value: Option<&[u8]>| {
        let bytes = built(&log);
        put(&bytes, table, key, value);
        assert!(!agrees(bytes, &log), "{table} {key:?} {value:?}");
    };
    for ((table, key), (_, other)) in keys_of(run_no).into_iter().zip(keys_of(RunNo(1 << 40))) {
        finds(table, &key, None);
        finds(table, &key, Some(&[0; 4]));
        finds(table, &other, Some(&[0; 4]));
    }
    let changed = RunRow { records: row.records + 1, ..row.clone() };
    finds(Table::Runs, &key::run_key(run_no), Some(&value::row_value(&changed)));
    finds(Table::Agents, agent.as_bytes(), None);
    finds(Table::Agents, agent.as_bytes(), Some(&value::agent_value(agent, 1 << 20)));
}

#[test]
fn a_run_that_was_evicted_meanwhile_is_not_brought_back_by_a_relocation() {
    let store = IndexStore::open(built(&sample()), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let (run_no, count) =
        (snapshot.runs_page(&RunList::ALL, 1).unwrap()[0].1, snapshot.count_runs().unwrap());
    let row = snapshot.row(run_no).unwrap().unwrap();
    let (evicting_it, output) = (SegmentId(1 << 20), SegmentId(1 << 21));
    store.apply(&[evicting(evicting_it, run_no)]).unwrap();
    let moved = Relocated { run_no, segments: vec![output], stored: [row.stored; 2] };
    let (outputs, runs) = (vec![(output, 1)], vec![moved]);
    store.relocate(&Relocation { outputs, victims: row.segments, runs }).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.row(run_no), Ok(None));
    assert_eq!(snapshot.count_runs(), Ok(count - 1));
    let expected = Applied { log: Some(evicting_it), outputs: Some(output) };
    assert_eq!(snapshot.applied(), expected);
}

#[test]
fn an_index_knows_which_segments_it_was_built_from() {
    let log = sample();
    let store = IndexStore::open(built(&log), CACHE, IDENTITY).unwrap();
    let has = |stamps: &[(SegmentId, u64)]| {
        store.snapshot().unwrap().has_applied(stamps.iter().copied()).unwrap()
    };
    let ids = log.segments.iter().enumerate();
    let stamps: Vec<_> = ids.map(|(index, id)| (*id, log.stamp(index))).collect();
    assert!(has(&stamps) && has(&[]));
    for other in 0..stamps.len() {
        let mut stamps = stamps.clone();
        stamps[other].1 ^= 1;
        assert!(!has(&stamps), "segment {other} with another directory");
    }
    assert!(!has(&[stamps, vec![(SegmentId(1 << 20), 7)]].concat()));
}

#[test]
fn an_index_forgets_segments_that_are_gone_once_they_are_most_of_all() {
    let store = IndexStore::create(SharedBytes::default(), CACHE, IDENTITY).unwrap();
    let known = || store.snapshot().unwrap().stamps().unwrap();
    let mut most = 0;
    for number in 0..400 {
        let segment = SegmentId(number);
        let change = evicting(segment, RunNo(9));
        store.apply_among(&[segment], &[change]).unwrap();
        most = most.max(known());
    }
    assert!((20..100).contains(&most), "{most}");
    assert!(store.snapshot().unwrap().has_applied([(SegmentId(399), 1)].into_iter()).unwrap());
}

#[test]
fn a_run_that_is_listed_in_a_state_that_it_left_is_damage() {
    let log = sample();
    let bytes = built(&log);
    let store = IndexStore::open(bytes.clone(), CACHE, IDENTITY).unwrap();
    let snapshot = store.snapshot().unwrap();
    let statuses = Statuses::NONE.with(RunStatus::InProgress);
    let key = snapshot.runs_page(&RunList { statuses, ..RunList::ALL }, 1).unwrap()[0];
    let row = snapshot.row(key.1).unwrap().unwrap();
    drop((snapshot, store));
    let mark = key::state_key(None, State { status: RunStatus::Failed, held: row.is_held() }, key);
    put(&bytes, Table::ByState, &mark, Some(&value::mark(Table::ByState, &mark)));
    let store = IndexStore::open(bytes, CACHE, IDENTITY).unwrap();
    let failed = RunList { statuses: Statuses::NONE.with(RunStatus::Failed), ..RunList::ALL };
    let rows = store.snapshot().unwrap().rows_page(&failed, usize::MAX, &|_| true);
    assert_eq!(rows, Err(Damage::IndexPages.into()));
}
