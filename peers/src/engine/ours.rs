//! runlog with its default options: checksums, index and background sync are on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use runlog::storage::MemoryStorage;
use runlog::{
    Compression, Durability, Metadata, NewRecord, Options, Outcome, Retention, RunLog, RunQuery,
    RunWriter,
};

use super::{Change, Engine, Level, New, Run, Writer};

pub(super) struct Ours {
    log: RunLog,
    path: PathBuf,
    level: Durability,
    /// The runs that are being loaded.
    loading: Mutex<HashMap<u64, RunWriter>>,
}

struct Append {
    run: RunWriter,
    level: Durability,
}

impl Ours {
    pub(super) fn open(folder: &Path, level: Level) -> Self {
        let level = match level {
            Level::Process => Durability::Process,
            Level::Disk => Durability::Disk,
        };
        let path = folder.join("peers.runlog");
        let log = Options::new().open(&path).unwrap();
        Self { log, path, level, loading: Mutex::default() }
    }

    fn begin(&self, run: &Run, level: Durability) -> RunWriter {
        self.log.start_run(&run.agent, &run.id, Metadata::new(b"{}").durability(level)).unwrap()
    }
}

impl Engine for Ours {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        Box::new(Append { run: self.begin(run, self.level), level: self.level })
    }

    fn load(&self, changes: &[Change<'_>]) {
        let level = Durability::Process;
        let mut loading = self.loading.lock().unwrap();
        for change in changes {
            match change {
                Change::Start(run) => {
                    loading.insert(run.number, self.begin(run, level));
                }
                Change::Record { run, new, .. } => {
                    let _ = loading[run].append_record(&record(*new, level)).unwrap();
                }
                Change::End(run) => {
                    let writer = loading.remove(&run.number).unwrap();
                    let _ = writer.end(&Outcome::completed().durability(level)).unwrap();
                }
            }
        }
    }

    fn settle(&self) {
        self.log.checkpoint().unwrap();
    }

    fn compact(&mut self) {
        let _ = self.log.compact().unwrap();
    }

    fn retain(&mut self, gone: &[Run], kept: u64) {
        let collected = self.log.gc(&Retention::new().keep_newest(kept)).unwrap();
        assert_eq!(collected.plan.evict.len(), gone.len());
    }

    fn compress(&mut self) -> bool {
        // The file can be open only once at a time, so another store stands in while it is closed.
        let elsewhere = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
        std::mem::replace(&mut self.log, elsewhere).close().unwrap();
        let options = Options::new().compression(Compression::Zstd { level: 3 });
        self.log = options.open(&self.path).unwrap();
        self.compact();
        true
    }

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        let mut trace = self.log.trace(run).unwrap();
        while let Some(record) = trace.next_view() {
            let record = record.unwrap();
            each(record.seq().0, record.kind().unwrap_or_default(), record.payload());
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        for run in &self.log.list_runs(&RunQuery::new().agent(agent).limit(limit)).unwrap().runs {
            each(run.run.as_str());
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        tell(self.log.agent_of(run).unwrap().as_str());
    }

    fn parts(&self) -> Vec<(&'static str, u64)> {
        let stats = self.log.stats().unwrap();
        let used = stats.live_bytes + stats.dead_bytes;
        let log = stats.log_extents * stats.extent_len;
        vec![
            ("frames and directories", stats.live_bytes),
            ("of segments, not living", stats.dead_bytes),
            ("of extents of the log, none of these", log.saturating_sub(used)),
            ("index", stats.index_extents * stats.extent_len),
            ("manifest", stats.meta_extents * stats.extent_len),
            ("dead segments", stats.retired_extents * stats.extent_len),
            ("free", stats.free_extents * stats.extent_len),
        ]
    }

    fn close(self: Box<Self>) {
        self.loading.lock().unwrap().clear();
        self.log.close().unwrap();
    }
}

impl Writer for Append {
    fn append(&mut self, records: &[New<'_>]) {
        let _ = match records {
            [one] => self.run.append_record(&record(*one, self.level)),
            many => {
                let many: Vec<_> = many.iter().map(|new| record(*new, self.level)).collect();
                self.run.append_batch(&many)
            }
        }
        .unwrap();
    }
}

fn record(new: New<'_>, level: Durability) -> NewRecord<'_> {
    NewRecord::json(new.payload).kind(new.kind).durability(level)
}
