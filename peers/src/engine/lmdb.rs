//! LMDB. If records must survive a kill, commits go through a writable map without syncs: the map's
//! contents outlive the process. If they must survive power loss, LMDB has its default flags: pages
//! are written and synced, then the page that makes them count.

#![allow(unsafe_code, reason = "opening a map of a file that others could cut off is unsafe")]

use std::ops::Bound;
use std::path::Path;

use heed::types::{Bytes, Str};
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RwTxn};

use super::encoding::{
    RecordBytes, agent_key, agent_of, number_of, record_key, record_of, records_of, run_value,
    seq_of,
};
use super::group::{Group, Store};
use super::{Change, Engine, Level, New, Run, Writer};

/// The largest size of the store.
const MAP: usize = 64 << 30;

#[derive(Clone, Copy)]
struct Tables {
    runs: Database<'static, Str, Bytes>,
    by_agent: Database<'static, Bytes, Str>,
    records: Database<'static, Bytes, Bytes>,
}

struct Lmdb {
    writing: Group<Writing>,
    env: Env,
    tables: Tables,
}

struct Writing {
    env: Env,
    tables: Tables,
    bytes: RecordBytes,
}

struct Append<'a> {
    writing: &'a Group<Writing>,
    run: u64,
    next: u32,
}

pub(super) fn open(folder: &Path, level: Level) -> impl Engine + use<> {
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP).max_dbs(3);
    if level == Level::Process {
        // SAFETY: with these flags a loss of power can destroy the store, which is told.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
    }
    // SAFETY: the folder is ours: no other process changes the file, or cuts it off.
    let env = unsafe { options.open(folder) }.unwrap();
    let creating = env.write_txn().unwrap();
    let tables = env.create_databases_and_commit(creating, |env, creating| {
        let runs = env.create_database(creating, Some("runs"))?;
        let by_agent = env.create_database(creating, Some("by agent"))?;
        let records = env.create_database(creating, Some("records"))?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((runs, by_agent, records)))
    });
    let (runs, by_agent, records) = tables.unwrap().unwrap_commit();
    let tables = Tables { runs, by_agent, records };
    let writing = Writing { env: env.clone(), tables, bytes: RecordBytes::default() };
    Lmdb { writing: Group::new(writing), env, tables }
}

impl Store for Writing {
    fn commit(&mut self, changes: &[Change<'_>]) {
        let env = self.env.clone();
        let mut writing = env.write_txn().unwrap();
        for change in changes {
            self.change(&mut writing, change);
        }
        writing.commit().unwrap();
    }
}

impl Writing {
    fn change(&mut self, writing: &mut RwTxn<'_>, change: &Change<'_>) {
        let tables = self.tables;
        match *change {
            Change::Start(run) => {
                tables.runs.put(writing, &run.id, &run_value(run, false)).unwrap();
                let key = agent_key(&run.agent, run.number);
                tables.by_agent.put(writing, &key, &run.id).unwrap();
            }
            Change::Record { run, seq, new } => {
                let (key, value) = (record_key(run, seq), self.bytes.of(new));
                tables
                    .records
                    .put_with_flags(writing, PutFlags::NO_OVERWRITE, &key, value)
                    .unwrap();
            }
            Change::End(run) => tables.runs.put(writing, &run.id, &run_value(run, true)).unwrap(),
        }
    }
}

impl Engine for Lmdb {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        self.writing.alone(&[Change::Start(run)]);
        Box::new(Append { writing: &self.writing, run: run.number, next: 0 })
    }

    fn load(&self, changes: &[Change<'_>]) {
        self.writing.alone(changes);
    }

    fn settle(&self) {
        self.env.force_sync().unwrap();
    }

    fn compact(&mut self) {}

    fn retain(&mut self, gone: &[Run], _kept: u64) {
        let Some(last) = gone.last() else { return };
        let Self { env, tables, .. } = self;
        let mut writing = env.write_txn().unwrap();
        let end = record_key(last.number, u32::MAX);
        tables
            .records
            .delete_range(&mut writing, &(Bound::Unbounded, Bound::Included(&end[..])))
            .unwrap();
        for run in gone {
            assert!(tables.runs.delete(&mut writing, &run.id).unwrap());
            assert!(
                tables.by_agent.delete(&mut writing, &agent_key(&run.agent, run.number)).unwrap()
            );
        }
        writing.commit().unwrap();
    }

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        let reading = self.env.read_txn().unwrap();
        let number = number_of(self.tables.runs.get(&reading, run).unwrap().unwrap());
        let (first, last) = records_of(number);
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        for record in self.tables.records.range(&reading, &range).unwrap() {
            let (key, value) = record.unwrap();
            let (kind, payload) = record_of(value);
            each(seq_of(key), kind, payload);
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        let reading = self.env.read_txn().unwrap();
        let (first, last) = (agent_key(agent, 0), agent_key(agent, u64::MAX));
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        let runs = self.tables.by_agent.rev_range(&reading, &range).unwrap();
        for run in runs.take(limit) {
            each(run.unwrap().1);
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        let reading = self.env.read_txn().unwrap();
        tell(agent_of(self.tables.runs.get(&reading, run).unwrap().unwrap()));
    }

    fn close(self: Box<Self>) {
        let Self { writing, env, .. } = *self;
        drop(writing);
        env.prepare_for_closing().wait();
    }
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        self.writing.append(self.run, self.next, records);
        self.next += u32::try_from(records.len()).unwrap();
    }
}
