//! redb. A commit with `Durability::None` stays in the process and does not survive a kill, so
//! commits are `Durability::Immediate` at both levels. If records must survive only a kill, the
//! syncs are left out beneath redb, which has no option for that.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition, WriteTransaction};

use super::encoding::{
    RecordBytes, agent_key, agent_of, number_of, record_key, record_of, records_of, run_value,
    seq_of,
};
use super::group::{Group, Store};
use super::{Change, Engine, Level, New, Run, Writer};

const RUNS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("runs");
const BY_AGENT: TableDefinition<'_, &[u8], &str> = TableDefinition::new("by agent");
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

struct Redb {
    database: Arc<Database>,
    writing: Group<Writing>,
}

struct Writing {
    /// Always there, except while the store is compacted.
    database: Option<Arc<Database>>,
    bytes: RecordBytes,
}

struct Append<'a> {
    writing: &'a Group<Writing>,
    run: u64,
    next: u32,
}

/// A file that is synced only if it must survive power loss.
#[derive(Debug)]
struct Backend {
    file: FileBackend,
    level: Level,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.level {
            Level::Process => Ok(()),
            Level::Disk => self.file.sync_data(),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

pub(super) fn open(folder: &Path, level: Level) -> impl Engine + use<> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(folder.join("peers.redb")).unwrap();
    let backend = Backend { file: FileBackend::new(file).unwrap(), level };
    let database = Arc::new(Database::builder().create_with_backend(backend).unwrap());
    let writing = database.begin_write().unwrap();
    drop(writing.open_table(RUNS).unwrap());
    drop(writing.open_table(BY_AGENT).unwrap());
    drop(writing.open_table(RECORDS).unwrap());
    writing.commit().unwrap();
    let writing = Writing { database: Some(Arc::clone(&database)), bytes: RecordBytes::default() };
    Redb { database, writing: Group::new(writing) }
}

impl Store for Writing {
    fn commit(&mut self, changes: &[Change<'_>]) {
        let writing = self.database.as_ref().unwrap().begin_write().unwrap();
        if changes.iter().all(|change| matches!(change, Change::Record { .. })) {
            self.records(&writing, changes);
        } else {
            self.changes(&writing, changes);
        }
        writing.commit().unwrap();
    }
}

impl Writing {
    fn records(&mut self, writing: &WriteTransaction, changes: &[Change<'_>]) {
        let mut records = writing.open_table(RECORDS).unwrap();
        for change in changes {
            if let Change::Record { run, seq, new } = *change {
                let value = self.bytes.of(new);
                records.insert(&record_key(run, seq)[..], value).unwrap();
            }
        }
    }

    fn changes(&mut self, writing: &WriteTransaction, changes: &[Change<'_>]) {
        let mut runs = writing.open_table(RUNS).unwrap();
        let mut by_agent = writing.open_table(BY_AGENT).unwrap();
        let mut records = writing.open_table(RECORDS).unwrap();
        for change in changes {
            match *change {
                Change::Start(run) => {
                    runs.insert(&run.id[..], &run_value(run, false)[..]).unwrap();
                    let key = agent_key(&run.agent, run.number);
                    by_agent.insert(&key[..], &run.id[..]).unwrap();
                }
                Change::Record { run, seq, new } => {
                    let value = self.bytes.of(new);
                    records.insert(&record_key(run, seq)[..], value).unwrap();
                }
                Change::End(run) => {
                    runs.insert(&run.id[..], &run_value(run, true)[..]).unwrap();
                }
            }
        }
    }
}

impl Engine for Redb {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        self.writing.alone(&[Change::Start(run)]);
        Box::new(Append { writing: &self.writing, run: run.number, next: 0 })
    }

    fn load(&self, changes: &[Change<'_>]) {
        self.writing.alone(changes);
    }

    fn settle(&self) {}

    fn compact(&mut self) {
        self.writing.store_mut().database = None;
        Arc::get_mut(&mut self.database).unwrap().compact().unwrap();
        self.writing.store_mut().database = Some(Arc::clone(&self.database));
    }

    fn retain(&mut self, gone: &[Run], _kept: u64) {
        let Some(last) = gone.last() else { return };
        let writing = self.database.begin_write().unwrap();
        {
            let mut runs = writing.open_table(RUNS).unwrap();
            let mut by_agent = writing.open_table(BY_AGENT).unwrap();
            let mut records = writing.open_table(RECORDS).unwrap();
            let end = record_key(last.number, u32::MAX);
            records.retain_in(..=&end[..], |_, _| false).unwrap();
            for run in gone {
                assert!(runs.remove(&run.id[..]).unwrap().is_some());
                let key = agent_key(&run.agent, run.number);
                assert!(by_agent.remove(&key[..]).unwrap().is_some());
            }
        }
        writing.commit().unwrap();
    }

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        let reading = self.database.begin_read().unwrap();
        let runs = reading.open_table(RUNS).unwrap();
        let number = number_of(runs.get(run).unwrap().unwrap().value());
        let (first, last) = records_of(number);
        let records = reading.open_table(RECORDS).unwrap();
        for record in records.range(&first[..]..=&last[..]).unwrap() {
            let (key, value) = record.unwrap();
            let (kind, payload) = record_of(value.value());
            each(seq_of(key.value()), kind, payload);
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        let reading = self.database.begin_read().unwrap();
        let (first, last) = (agent_key(agent, 0), agent_key(agent, u64::MAX));
        let by_agent = reading.open_table(BY_AGENT).unwrap();
        let runs = by_agent.range(&first[..]..=&last[..]).unwrap();
        for run in runs.rev().take(limit) {
            each(run.unwrap().1.value());
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        let reading = self.database.begin_read().unwrap();
        let runs = reading.open_table(RUNS).unwrap();
        tell(agent_of(runs.get(run).unwrap().unwrap().value()));
    }

    fn close(self: Box<Self>) {}
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        self.writing.append(self.run, self.next, records);
        self.next += u32::try_from(records.len()).unwrap();
    }
}
