//! Retention by `SQLite`.

use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, params};

use super::Measured;
use super::data::{AGENTS, Data, KEEP, RECORDS, Step, agent_name, agent_of, payload};
use super::sizes::Sizes;
use crate::measure::processor;

/// Steps of one transaction while the store is filled.
const BATCH: u32 = 10_000;

const TABLES: &str = "
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY, agent TEXT NOT NULL, created INTEGER NOT NULL, ended INTEGER,
        status INTEGER NOT NULL);
    CREATE INDEX runs_by_agent ON runs (agent, status, ended);
    CREATE TABLE records (
        run INTEGER NOT NULL, seq INTEGER NOT NULL, payload BLOB NOT NULL,
        PRIMARY KEY (run, seq)) WITHOUT ROWID;";

const POLICY: &str = "
    CREATE TEMP TABLE going AS SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY agent ORDER BY ended DESC) AS place
        FROM runs WHERE status = 1)
    WHERE place > ?1";

/// How space is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vacuum {
    Full,
    Incremental,
}

/// Fills a database, deletes, releases the space, and checks what is left.
pub(crate) fn measure(data: Data, folder: &Path, vacuum: Vacuum) -> Measured {
    let path = folder.join("peers.sqlite");
    let log = folder.join("peers.sqlite-wal");
    let mut database = open(&path, vacuum);
    fill(data, &database);
    let (began, worked) = (Instant::now(), processor());
    let deleting = database.transaction().unwrap();
    deleting.execute(POLICY, [KEEP]).unwrap();
    deleting.execute("DELETE FROM records WHERE run IN (SELECT id FROM going)", []).unwrap();
    deleting.execute("DELETE FROM runs WHERE id IN (SELECT id FROM going)", []).unwrap();
    deleting.commit().unwrap();
    let delete = began.elapsed();
    match vacuum {
        Vacuum::Full => database.execute_batch("VACUUM").unwrap(),
        Vacuum::Incremental => {
            let mut freeing = database.prepare("PRAGMA incremental_vacuum").unwrap();
            let mut rows = freeing.query([]).unwrap();
            while rows.next().unwrap().is_some() {}
        }
    }
    checkpoint(&database);
    let space = began.elapsed();
    let processor = processor().saturating_sub(worked);
    let sizes = Sizes::of(&[&path, &log]);
    let kept: i64 = database
        .query_row("SELECT sum(length(payload)) FROM records", [], |row| row.get(0))
        .unwrap();
    let live = kept.cast_unsigned();
    check(data, &database);
    let (right_after, later, bound) = (sizes, sizes, live * 115 / 100);
    Measured { delete, space, processor, right_after, later, bound, live }
}

fn open(path: &Path, vacuum: Vacuum) -> Connection {
    let database = Connection::open(path).unwrap();
    if vacuum == Vacuum::Incremental {
        database.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").unwrap();
    }
    database
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             PRAGMA cache_size = -262144; PRAGMA temp_store = MEMORY;",
        )
        .unwrap();
    database.execute_batch(TABLES).unwrap();
    database
}

fn checkpoint(database: &Connection) {
    let busy: i64 =
        database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0);
}

fn fill(data: Data, database: &Connection) {
    let mut start = database.prepare("INSERT INTO runs VALUES (?1, ?2, ?3, NULL, 0)").unwrap();
    let mut append = database.prepare("INSERT INTO records VALUES (?1, ?2, ?3)").unwrap();
    let mut end = database.prepare("UPDATE runs SET ended = ?2, status = 1 WHERE id = ?1").unwrap();
    database.execute_batch("BEGIN").unwrap();
    let mut now = 0;
    data.each_step(|step| {
        now += 1;
        let done = match step {
            Step::Start { run } => start.execute(params![run, agent_name(agent_of(run)), now]),
            Step::Append { run, seq } => append.execute(params![run, seq, payload(run, seq)]),
            Step::End { run } => end.execute(params![run, now]),
        };
        assert_eq!(done.unwrap(), 1);
        if now % BATCH == 0 {
            database.execute_batch("COMMIT; BEGIN").unwrap();
        }
    });
    database.execute_batch("COMMIT").unwrap();
    checkpoint(database);
}

/// Checks that exactly the kept runs of the policy are left.
fn check(data: Data, database: &Connection) {
    let ids = |condition: &str| {
        let mut asked = database
            .prepare(&format!("SELECT id FROM runs WHERE {condition} ORDER BY id DESC"))
            .unwrap();
        let found = asked.query_map([], |row| row.get(0)).unwrap();
        found.map(Result::unwrap).collect::<Vec<u32>>()
    };
    for agent in 0..AGENTS {
        let name = agent_name(agent);
        assert_eq!(ids(&format!("agent = '{name}' AND status = 1")), data.kept_of(agent));
    }
    let mut begun = data.in_progress();
    begun.reverse();
    assert_eq!(ids("status = 0"), begun);
    let records: u32 =
        database.query_row("SELECT count(*) FROM records", [], |row| row.get(0)).unwrap();
    let runs: u32 = database.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap();
    assert_eq!(records, runs * RECORDS);
}
