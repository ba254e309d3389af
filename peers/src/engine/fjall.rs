//! fjall with its default compression (LZ4) and a larger cache. If records must survive only a
//! kill, threads write at once, as its documentation recommends. If they must survive power loss,
//! threads share commits, since each commit syncs by itself.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::encoding::{
    RecordBytes, agent_key, agent_of, number_of, record_key, record_of, records_of, run_value,
    seq_of,
};
use super::group::{Group, Store};
use super::{Change, Engine, Level, New, Run, Writer};

/// Bytes of the cache, large enough for everything that is read here.
const CACHE: u64 = 1 << 30;

/// Runs whose keys one batch removes: it is in memory.
const DELETED_AT_ONCE: usize = 10_000;

#[derive(Clone)]
struct Tables {
    database: Database,
    runs: Keyspace,
    by_agent: Keyspace,
    records: Keyspace,
    mode: PersistMode,
}

struct Fjall {
    tables: Tables,
    writing: Group<Writing>,
}

struct Writing {
    tables: Tables,
    bytes: RecordBytes,
}

struct Append<'a> {
    engine: &'a Fjall,
    bytes: RecordBytes,
    run: u64,
    next: u32,
}

pub(super) fn open(folder: &Path, level: Level) -> impl Engine + use<> {
    let mode = match level {
        Level::Process => PersistMode::Buffer,
        Level::Disk => PersistMode::SyncData,
    };
    let database = Database::builder(folder.join("peers.fjall")).cache_size(CACHE).open().unwrap();
    let table = |name| database.keyspace(name, KeyspaceCreateOptions::default).unwrap();
    let (runs, by_agent, records) = (table("runs"), table("by-agent"), table("records"));
    let tables = Tables { database, runs, by_agent, records, mode };
    let writing = Writing { tables: tables.clone(), bytes: RecordBytes::default() };
    Fjall { tables, writing: Group::new(writing) }
}

impl Store for Writing {
    fn commit(&mut self, changes: &[Change<'_>]) {
        self.tables.commit(&mut self.bytes, changes);
    }
}

impl Tables {
    fn commit(&self, bytes: &mut RecordBytes, changes: &[Change<'_>]) {
        let mut batch = self.database.batch().durability(Some(self.mode));
        for change in changes {
            match *change {
                Change::Start(run) => {
                    batch.insert(&self.runs, &run.id[..], run_value(run, false));
                    let key = agent_key(&run.agent, run.number);
                    batch.insert(&self.by_agent, key, &run.id[..]);
                }
                Change::Record { run, seq, new } => {
                    batch.insert(&self.records, record_key(run, seq), bytes.of(new));
                }
                Change::End(run) => batch.insert(&self.runs, &run.id[..], run_value(run, true)),
            }
        }
        batch.commit().unwrap();
    }
}

impl Engine for Fjall {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        self.writing.alone(&[Change::Start(run)]);
        let bytes = RecordBytes::default();
        Box::new(Append { engine: self, bytes, run: run.number, next: 0 })
    }

    fn load(&self, changes: &[Change<'_>]) {
        self.writing.alone(changes);
    }

    fn settle(&self) {
        for keyspace in [&self.tables.runs, &self.tables.by_agent, &self.tables.records] {
            keyspace.rotate_memtable_and_wait().unwrap();
        }
        self.tables.database.persist(PersistMode::SyncAll).unwrap();
    }

    fn compact(&mut self) {
        for keyspace in [&self.tables.runs, &self.tables.by_agent, &self.tables.records] {
            keyspace.major_compact().unwrap();
        }
    }

    fn retain(&mut self, gone: &[Run], _kept: u64) {
        let tables = &self.tables;
        for some in gone.chunks(DELETED_AT_ONCE) {
            let mut batch = tables.database.batch().durability(Some(tables.mode));
            let (Some(first), Some(last)) = (some.first(), some.last()) else { continue };
            let range = record_key(first.number, 0)..=record_key(last.number, u32::MAX);
            for record in tables.records.range(range) {
                batch.remove(&tables.records, record.key().unwrap());
            }
            for run in some {
                batch.remove(&tables.runs, &run.id[..]);
                batch.remove(&tables.by_agent, agent_key(&run.agent, run.number));
            }
            batch.commit().unwrap();
        }
    }

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        let reading = self.tables.database.snapshot();
        let number = number_of(&reading.get(&self.tables.runs, run).unwrap().unwrap());
        let (first, last) = records_of(number);
        for record in reading.range(&self.tables.records, first..=last) {
            let (key, value) = record.into_inner().unwrap();
            let (kind, payload) = record_of(&value);
            each(seq_of(&key), kind, payload);
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        let (first, last) = (agent_key(agent, 0), agent_key(agent, u64::MAX));
        for run in self.tables.by_agent.range(first..=last).rev().take(limit) {
            each(std::str::from_utf8(&run.value().unwrap()).unwrap());
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        tell(agent_of(&self.tables.runs.get(run).unwrap().unwrap()));
    }

    fn close(self: Box<Self>) {}
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        let Self { engine: Fjall { tables, writing }, bytes, run, next } = self;
        match (tables.mode, records) {
            (PersistMode::Buffer, [one]) => {
                tables.records.insert(record_key(*run, *next), bytes.of(*one)).unwrap();
            }
            (PersistMode::Buffer, many) => {
                let changes = (*next..).zip(many);
                let changes =
                    changes.map(|(seq, new)| Change::Record { run: *run, seq, new: *new });
                tables.commit(bytes, &changes.collect::<Vec<_>>());
            }
            _ => writing.append(*run, *next, records),
        }
        *next += u32::try_from(records.len()).unwrap();
    }
}
