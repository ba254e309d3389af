//! The layout for comparison: one JSONL file per run, `runs/<agent>/<run>.jsonl`, opened for each
//! append, and found by searching each agent's folder. Nothing is synced.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::fs::{File, OpenOptions, Permissions, create_dir_all, read_dir, set_permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A tree of JSONL files.
pub(crate) struct Jsonl {
    root: PathBuf,
}

impl Jsonl {
    pub(crate) fn new(folder: &Path) -> Self {
        let root = folder.join("runs");
        create_dir_all(&root).unwrap();
        Self { root }
    }

    /// A tree with these runs: agent, run, lines.
    pub(crate) fn with_runs(
        folder: &Path,
        runs: impl Iterator<Item = (String, String, Vec<u8>)>,
    ) -> Self {
        let jsonl = Self::new(folder);
        for (agent, run, lines) in runs {
            let dir = jsonl.root.join(agent);
            create_dir_all(&dir).unwrap();
            let mut file = File::create(dir.join(format!("{run}.jsonl"))).unwrap();
            file.write_all(&lines).unwrap();
        }
        jsonl
    }

    /// Appends a line as this layout does: ensures that both folders exist with their modes, opens
    /// the file, checks whether its last line is whole, writes, closes.
    pub(crate) fn append(&self, agent: &str, run: &str, line: &[u8]) {
        drop(self.write(agent, run, line));
    }

    /// The same with a sync of the file, which the layout itself does not do.
    pub(crate) fn append_synced(&self, agent: &str, run: &str, line: &[u8]) {
        self.write(agent, run, line).sync_data().unwrap();
    }

    fn write(&self, agent: &str, run: &str, line: &[u8]) -> File {
        let dir = self.root.join(agent);
        create_dir_all(&dir).unwrap();
        for dir in [&self.root, &dir] {
            set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
        }
        let path = dir.join(format!("{run}.jsonl"));
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        let mut buffer = Vec::with_capacity(line.len() + 2);
        if len == 0 {
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        } else {
            let mut last = [0];
            file.read_exact_at(&mut last, len - 1).unwrap();
            if last != *b"\n" {
                buffer.push(b'\n');
            }
        }
        buffer.extend_from_slice(line);
        buffer.push(b'\n');
        file.write_all(&buffer).unwrap();
        file
    }

    /// The system calls that no such layout can avoid: open, write, close.
    pub(crate) fn append_bare(path: &Path, line: &[u8]) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(line).unwrap();
    }

    fn find(&self, run: &str) -> Option<PathBuf> {
        let name = format!("{run}.jsonl");
        let dirs = read_dir(&self.root).unwrap();
        dirs.map(|dir| dir.unwrap().path().join(&name)).find(|path| path.is_file())
    }

    /// The bytes of a run's file.
    pub(crate) fn bytes_of(&self, run: &str) -> Vec<u8> {
        std::fs::read(self.find(run).unwrap()).unwrap()
    }

    /// The bytes of the files of all runs of an agent.
    pub(crate) fn bytes_of_agent(&self, agent: &str) -> impl Iterator<Item = Vec<u8>> {
        let files = read_dir(self.root.join(agent)).unwrap();
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap())
    }

    /// The lines of a run, unparsed.
    pub(crate) fn trace(&self, run: &str) -> Vec<Vec<u8>> {
        self.bytes_of(run)
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// The lines of a run, parsed as the users of this layout read them.
    pub(crate) fn trace_parsed(&self, run: &str) -> Vec<serde_json::Value> {
        self.trace(run).iter().filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// The agent of a run.
    pub(crate) fn agent_of(&self, run: &str) -> Option<String> {
        let path = self.find(run)?;
        Some(path.parent()?.file_name()?.to_str()?.to_owned())
    }
}
