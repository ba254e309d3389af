//! No engine: a preallocated file into which the bytes of each record, and as many as a frame
//! header has, are written, and synced if they must survive power loss.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use super::{Change, Engine, Level, New, Run, Writer};

/// Bytes before each payload.
const HEADER: usize = 48;
/// The file. When it is full, it is written again from its start.
const LEN: usize = 8 << 20;

pub(super) struct Bare {
    file: File,
    level: Level,
    end: Mutex<usize>,
}

struct Append<'a> {
    bare: &'a Bare,
    buffer: Vec<u8>,
}

impl Bare {
    pub(super) fn open(folder: &Path, level: Level) -> Self {
        let file = File::create_new(folder.join("bare")).unwrap();
        file.write_all_at(&vec![1; LEN], 0).unwrap();
        file.sync_all().unwrap();
        Self { file, level, end: Mutex::default() }
    }
}

impl Engine for Bare {
    fn start(&self, _run: &Run) -> Box<dyn Writer + Send + '_> {
        Box::new(Append { bare: self, buffer: Vec::new() })
    }

    fn load(&self, _changes: &[Change<'_>]) {}

    fn settle(&self) {}

    fn compact(&mut self) {}

    fn trace(&self, _run: &str, _each: &mut dyn FnMut(u64, &str, &[u8])) {}

    fn newest(&self, _agent: &str, _limit: usize, _each: &mut dyn FnMut(&str)) {}

    fn agent_of(&self, _run: &str, _tell: &mut dyn FnMut(&str)) {}

    fn close(self: Box<Self>) {}
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        self.buffer.clear();
        for new in records {
            self.buffer.resize(self.buffer.len() + HEADER, 2);
            self.buffer.extend_from_slice(new.payload);
        }
        let mut end = self.bare.end.lock().unwrap();
        if *end + self.buffer.len() > LEN {
            *end = 0;
        }
        self.bare.file.write_all_at(&self.buffer, *end as u64).unwrap();
        *end += self.buffer.len();
        drop(end);
        if self.bare.level == Level::Disk {
            self.bare.file.sync_data().unwrap();
        }
    }
}
