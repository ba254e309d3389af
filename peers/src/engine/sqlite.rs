//! `SQLite` as an expert would configure it: a write-ahead log, prepared statements, records in a
//! table whose integer key clusters them by run, covering indexes, a map of the file for reads, a
//! cache of 256 MiB, and separate connections for reading and writing.

use std::path::Path;
use std::sync::Mutex;

use rusqlite::{Connection, params};

use super::group::{Group, Store};
use super::{Change, Engine, Level, New, Run, Writer};

/// How many bits of a record's key contain the sequence.
const SEQ_BITS: u32 = 24;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS runs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL, agent TEXT NOT NULL, ended INTEGER NOT NULL);
    CREATE UNIQUE INDEX IF NOT EXISTS runs_by_id ON runs (id, agent);
    CREATE INDEX IF NOT EXISTS runs_by_agent ON runs (agent, number, id);
    CREATE TABLE IF NOT EXISTS records (
        place INTEGER PRIMARY KEY, kind TEXT NOT NULL, payload BLOB NOT NULL);";

const TRACE: &str = "
    SELECT place & 0xffffff, kind, payload FROM runs CROSS JOIN records
    WHERE runs.id = ?1 AND place >= runs.number << 24 AND place <= (runs.number << 24) + 0xffffff
    ORDER BY place";
const NEWEST: &str = "SELECT id FROM runs WHERE agent = ?1 ORDER BY number DESC LIMIT ?2";
const AGENT_OF: &str = "SELECT agent FROM runs WHERE id = ?1";

struct Sqlite {
    writing: Group<Writing>,
    reading: Mutex<Connection>,
}

struct Writing(Connection);

struct Append<'a> {
    writing: &'a Group<Writing>,
    run: u64,
    next: u32,
}

pub(super) fn open(folder: &Path, level: Level) -> impl Engine + use<> {
    let path = folder.join("peers.sqlite");
    let connect = || {
        let connection = Connection::open(&path).unwrap();
        let synchronous = match level {
            Level::Process => "NORMAL",
            Level::Disk => "FULL",
        };
        let set_up = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous};
             PRAGMA cache_size = -262144; PRAGMA mmap_size = 2147418112;
             PRAGMA temp_store = MEMORY;"
        );
        connection.execute_batch(&set_up).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        connection
    };
    let writing = connect();
    writing.execute_batch(TABLES).unwrap();
    Sqlite { writing: Group::new(Writing(writing)), reading: Mutex::new(connect()) }
}

impl Store for Writing {
    fn commit(&mut self, changes: &[Change<'_>]) {
        if let [change] = changes {
            return self.change(change);
        }
        self.execute("BEGIN IMMEDIATE");
        for change in changes {
            self.change(change);
        }
        self.execute("COMMIT");
    }
}

impl Writing {
    fn execute(&self, text: &str) {
        self.0.prepare_cached(text).unwrap().execute([]).unwrap();
    }

    fn change(&self, change: &Change<'_>) {
        let prepare = |text| self.0.prepare_cached(text).unwrap();
        let changed = match *change {
            Change::Start(run) => prepare("INSERT INTO runs VALUES (?1, ?2, ?3, 0)")
                .execute(params![run.number.cast_signed(), run.id, run.agent]),
            Change::Record { run, seq, new } => prepare("INSERT INTO records VALUES (?1, ?2, ?3)")
                .execute(params![place(run, seq), new.kind, new.payload]),
            Change::End(run) => prepare("UPDATE runs SET ended = 1 WHERE number = ?1")
                .execute([run.number.cast_signed()]),
        };
        assert_eq!(changed.unwrap(), 1);
    }

    fn checkpoint(&self) {
        let busy: i64 =
            self.0.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
        assert_eq!(busy, 0);
    }
}

/// The key of a record.
fn place(run: u64, seq: u32) -> i64 {
    (run << SEQ_BITS | u64::from(seq)).cast_signed()
}

impl Engine for Sqlite {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        self.writing.alone(&[Change::Start(run)]);
        Box::new(Append { writing: &self.writing, run: run.number, next: 0 })
    }

    fn load(&self, changes: &[Change<'_>]) {
        self.writing.alone(changes);
    }

    fn settle(&self) {
        self.writing.store().checkpoint();
    }

    fn compact(&mut self) {
        let writing = self.writing.store_mut();
        writing.0.execute_batch("VACUUM").unwrap();
        writing.checkpoint();
    }

    fn retain(&mut self, gone: &[Run], _kept: u64) {
        let Some(last) = gone.last() else { return };
        let writing = self.writing.store_mut();
        writing.execute("BEGIN IMMEDIATE");
        let place = [place(last.number + 1, 0)];
        writing.0.execute("DELETE FROM records WHERE place < ?1", place).unwrap();
        let number = [last.number.cast_signed()];
        let deleted = writing.0.execute("DELETE FROM runs WHERE number <= ?1", number);
        assert_eq!(deleted.unwrap(), gone.len());
        writing.execute("COMMIT");
    }

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        let reading = self.reading.lock().unwrap();
        let mut trace = reading.prepare_cached(TRACE).unwrap();
        let mut rows = trace.query([run]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let text = |column| row.get_ref(column).unwrap();
            let seq: i64 = row.get(0).unwrap();
            each(seq.cast_unsigned(), text(1).as_str().unwrap(), text(2).as_blob().unwrap());
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        let reading = self.reading.lock().unwrap();
        let mut newest = reading.prepare_cached(NEWEST).unwrap();
        let mut rows = newest.query(params![agent, i64::try_from(limit).unwrap()]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            each(row.get_ref(0).unwrap().as_str().unwrap());
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        let reading = self.reading.lock().unwrap();
        let mut agent_of = reading.prepare_cached(AGENT_OF).unwrap();
        let mut rows = agent_of.query([run]).unwrap();
        tell(rows.next().unwrap().unwrap().get_ref(0).unwrap().as_str().unwrap());
    }

    fn close(self: Box<Self>) {
        let Self { writing, reading } = *self;
        reading.into_inner().unwrap().close().unwrap();
        writing.into_store().0.close().unwrap();
    }
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        self.writing.append(self.run, self.next, records);
        self.next += u32::try_from(records.len()).unwrap();
    }
}
