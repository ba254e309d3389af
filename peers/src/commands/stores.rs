//! The stores for the commands.

use std::fs::{File, copy, create_dir_all};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use runlog::{Durability, Metadata, NewRecord, Options, Outcome};
use runlog_sim::SplitMix64;

use crate::engine::{Kind, Level};
use crate::workload::runs::{Records, Runs, kind};
use crate::workload::sizes::Sizes;
use crate::workload::text::{Words, Writing};

/// The file that the engine makes in a folder.
const FILE: &str = "peers.runlog";
/// Records of a short run.
const SHORT: usize = 8;
/// Lines of a file to import.
const LINES: usize = 30;
/// About as many bytes of payload as a run has that is as long as real ones.
const TYPICAL: u64 = 1_300_000;
/// The bytes of a record of a store for lookups, and how many of them a run has.
const LOOKED_UP: (usize, usize) = (1_024, 30);

/// Stores with the same records.
pub(super) struct Long {
    pub(super) plain: PathBuf,
    pub(super) compressed: PathBuf,
    /// A file for each run, with a line for each record.
    pub(super) tree: PathBuf,
    /// What one record has, and an expression that few records match.
    pub(super) needle: String,
    pub(super) expression: String,
    pub(super) payload: u64,
}

/// Files to import, in a folder for each agent.
pub(super) struct Files {
    pub(super) tree: PathBuf,
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

/// A store to look runs up in.
pub(super) struct Many {
    pub(super) plain: PathBuf,
    pub(super) runs: u64,
}

/// A store with so many ended runs, each with a first message of a user; and the file's length.
pub(super) fn short_runs(folder: &Path, runs: u64) -> (PathBuf, u64) {
    create_dir_all(folder).unwrap();
    let path = folder.join(FILE);
    let log = Options::new().create(&path).unwrap();
    let (words, mut random) = (Words::new(), SplitMix64::new(8));
    let process = Durability::Process;
    for number in 0..runs {
        let mut writing = Writing::new(&words, random.next_u64());
        let agent = format!("agent-{:02}", number % 20);
        let metadata = Metadata::new(b"{}").durability(process);
        let run = log.start_run(&agent, &Runs::id(number), metadata).unwrap();
        let asked = format!(
            "{{\"type\":\"message\",\"role\":\"user\",\"content\":\"Look into case {number} of the \
             list, and say what it needs.\"}}"
        );
        let record = NewRecord::json(asked.as_bytes()).kind("user").durability(process);
        let _ = run.append_record(&record).unwrap();
        for seq in 1..SHORT {
            let payload = writing.record(number, seq, Sizes::LogNormal.next(&mut random));
            let record = NewRecord::json(&payload).kind(kind(number, seq)).durability(process);
            let _ = run.append_record(&record).unwrap();
        }
        let _ = run.end(&Outcome::completed().durability(process)).unwrap();
    }
    log.close().unwrap();
    let len = path.metadata().unwrap().len();
    (path, len)
}

fn runs(count: u64, at_once: usize, records: Records, sizes: Sizes) -> Runs {
    Runs { count, agents: 50, favourite: false, at_once, records, sizes, words: Words::new() }
}

/// Runs as long as real ones, eight at a time, in a store, a compressed store and a tree of files.
pub(super) fn long_runs(folder: &Path, megabytes: u64) -> Long {
    let runs =
        runs((megabytes * 1_000_000).div_ceil(TYPICAL).max(16), 8, Records::Real, Sizes::Real);
    let (plain, compressed) = (folder.join("plain"), folder.join("compressed"));
    let tree = folder.join("tree");
    for folder in [&plain, &compressed, &tree] {
        create_dir_all(folder).unwrap();
    }
    let engine = Kind::Ours.open(&plain, Level::Process);
    let payload = runs.load(&[&*engine]);
    engine.close();
    copy(plain.join(FILE), compressed.join(FILE)).unwrap();
    let mut engine = Kind::Ours.open(&compressed, Level::Process);
    assert!(engine.compress());
    engine.close();
    for number in 0..runs.count {
        let mut file = BufWriter::new(File::create(tree.join(Runs::id(number))).unwrap());
        for record in runs.records(number) {
            file.write_all(&record).unwrap();
            file.write_all(b"\n").unwrap();
        }
        file.flush().unwrap();
    }
    let middle = runs.count / 2;
    Long {
        plain: plain.join(FILE),
        compressed: compressed.join(FILE),
        tree,
        needle: format!("\"id\":\"{middle:08}000003\""),
        expression: format!("0{middle:07}00000[0-9]\",\"te[x-z]t"),
        payload,
    }
}

/// Runs of 30 records of 1 KB, 64 at a time.
pub(super) fn many_lookups(folder: &Path, megabytes: u64) -> Many {
    create_dir_all(folder).unwrap();
    let (len, records) = LOOKED_UP;
    let count = (megabytes * 1_000_000).div_ceil((len * records) as u64).max(64);
    let runs = runs(count, 64, Records::Fixed(records), Sizes::Fixed(len));
    let engine = Kind::Ours.open(folder, Level::Process);
    runs.load(&[&*engine]);
    engine.close();
    Many { plain: folder.join(FILE), runs: count }
}

/// So many files of [`LINES`] lines, by 20 agents.
pub(super) fn files(folder: &Path, count: u64) -> Files {
    let tree = folder.join("files");
    let (words, mut random) = (Words::new(), SplitMix64::new(9));
    let mut bytes = 0;
    for number in 0..count {
        let folder = tree.join(format!("agent-{:02}", number % 20));
        create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}.jsonl", Runs::id(number)));
        let mut file = BufWriter::new(File::create(path).unwrap());
        let mut writing = Writing::new(&words, random.next_u64());
        for line in 0..LINES {
            let record = writing.record(number, line, Sizes::LogNormal.next(&mut random));
            file.write_all(&record).unwrap();
            file.write_all(b"\n").unwrap();
            bytes += record.len() as u64 + 1;
        }
        file.flush().unwrap();
    }
    rustix::fs::syncfs(File::open(&tree).unwrap()).unwrap();
    Files { tree, lines: count * LINES as u64, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_have_the_same_records() {
        let folder = tempfile::tempdir().unwrap();
        let made = long_runs(folder.path(), 1);
        let lines = std::fs::read(made.tree.join(Runs::id(3))).unwrap();
        for path in [&made.plain, &made.compressed] {
            let reader = runlog::Reader::open(path).unwrap();
            let records = reader.trace(Runs::id(3).as_str()).unwrap().map(Result::unwrap);
            let all: Vec<u8> =
                records.flat_map(|record| [record.payload(), b"\n"].concat()).collect();
            assert!(all == lines);
        }
        let (plain, compressed) = (made.plain.metadata(), made.compressed.metadata());
        assert!(compressed.unwrap().len() < plain.unwrap().len());
        assert!(made.payload > 0);
    }
}
