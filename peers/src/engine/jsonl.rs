//! The layout that daemons use today: a folder per agent and a file of lines per run, opened and
//! closed for each append, and found by searching each agent's folder. There is no index: to find
//! the newest runs of an agent, all lines of all its runs are parsed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::tree::Jsonl;
use super::{Change, Engine, Level, New, Run, Writer};

#[path = "../../../benches/jsonl/mod.rs"]
mod tree;

pub(super) struct Files {
    tree: Jsonl,
    level: Level,
    /// The runs that are being loaded.
    loading: Mutex<HashMap<u64, Run>>,
}

struct Append<'a> {
    files: &'a Files,
    run: Run,
    next: u32,
    lines: Vec<u8>,
}

/// A line to write.
#[derive(Debug, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Started { run_id: &'a str, agent_id: &'a str, intent: &'a str, started_at: u64 },
    Turn(Turn<'a>),
    Ended { run_id: &'a str, agent_id: &'a str, ended_at: u64 },
}

/// What a turn's line contains besides its tag.
#[derive(Debug, Serialize)]
struct Turn<'a> {
    index: u64,
    tool: &'a str,
    output: &'a RawValue,
}

/// A line to read, of any kind. Nothing is copied.
#[derive(Debug, Deserialize)]
struct Found<'a> {
    record: &'a str,
    #[serde(default)]
    run_id: &'a str,
    #[serde(default)]
    started_at: u64,
    #[serde(default)]
    index: u64,
    #[serde(default)]
    tool: &'a str,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

impl Files {
    pub(super) fn open(folder: &Path, level: Level) -> Self {
        Self { tree: Jsonl::new(folder), level, loading: Mutex::default() }
    }

    /// Appends lines, without the final newline.
    fn append(&self, run: &Run, lines: &[u8]) {
        match self.level {
            Level::Process => self.tree.append(&run.agent, &run.id, lines),
            Level::Disk => self.tree.append_synced(&run.agent, &run.id, lines),
        }
    }
}

fn start_line(run: &Run) -> Line<'_> {
    let (run_id, agent_id) = (&run.id, &run.agent);
    Line::Started { run_id, agent_id, intent: "{}", started_at: run.number }
}

/// Adds a line to others.
fn push(lines: &mut Vec<u8>, line: &Line<'_>) {
    if !lines.is_empty() {
        lines.push(b'\n');
    }
    serde_json::to_writer(lines, line).unwrap();
}

fn turn(seq: u32, new: New<'_>) -> Line<'_> {
    let output = serde_json::from_slice(new.payload).unwrap();
    Line::Turn(Turn { index: u64::from(seq), tool: new.kind, output })
}

fn lines_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

impl Engine for Files {
    fn start(&self, run: &Run) -> Box<dyn Writer + Send + '_> {
        let mut lines = Vec::new();
        push(&mut lines, &start_line(run));
        self.append(run, &lines);
        lines.clear();
        Box::new(Append { files: self, run: run.clone(), next: 0, lines })
    }

    fn load(&self, changes: &[Change<'_>]) {
        let mut loading = self.loading.lock().unwrap();
        let mut files: HashMap<u64, (Run, Vec<u8>)> = HashMap::new();
        for change in changes {
            let number = match change {
                Change::Start(run) => {
                    loading.insert(run.number, Run::clone(run));
                    run.number
                }
                Change::Record { run, .. } => *run,
                Change::End(run) => run.number,
            };
            let begin = || (loading[&number].clone(), Vec::new());
            let lines = &mut files.entry(number).or_insert_with(begin).1;
            match *change {
                Change::Start(run) => push(lines, &start_line(run)),
                Change::Record { seq, new, .. } => push(lines, &turn(seq, new)),
                Change::End(run) => {
                    let (run_id, agent_id) = (&run.id, &run.agent);
                    push(lines, &Line::Ended { run_id, agent_id, ended_at: run.number });
                    loading.remove(&number);
                }
            }
        }
        for (run, lines) in files.values() {
            self.tree.append(&run.agent, &run.id, lines);
        }
    }

    fn settle(&self) {}

    fn compact(&mut self) {}

    fn trace(&self, run: &str, each: &mut dyn FnMut(u64, &str, &[u8])) {
        for line in lines_of(&self.tree.bytes_of(run)) {
            let found: Found<'_> = serde_json::from_slice(line).unwrap();
            if found.record == "turn" {
                each(found.index, found.tool, found.output.unwrap().get().as_bytes());
            }
        }
    }

    fn newest(&self, agent: &str, limit: usize, each: &mut dyn FnMut(&str)) {
        let mut runs: Vec<(u64, String)> = Vec::new();
        for bytes in self.tree.bytes_of_agent(agent) {
            for line in lines_of(&bytes) {
                let found: Found<'_> = serde_json::from_slice(line).unwrap();
                if found.record == "started" {
                    runs.push((found.started_at, found.run_id.to_owned()));
                }
            }
        }
        runs.sort_unstable_by(|left, right| right.cmp(left));
        for (_, run) in runs.iter().take(limit) {
            each(run);
        }
    }

    fn agent_of(&self, run: &str, tell: &mut dyn FnMut(&str)) {
        tell(&self.tree.agent_of(run).unwrap());
    }

    fn close(self: Box<Self>) {}
}

impl Writer for Append<'_> {
    fn append(&mut self, records: &[New<'_>]) {
        self.lines.clear();
        for new in records {
            push(&mut self.lines, &turn(self.next, *new));
            self.next += 1;
        }
        self.files.append(&self.run, &self.lines);
    }
}
