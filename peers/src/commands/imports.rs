//! Files into a store: `import` beside a loop of `SQLite` with one transaction for each file.
//!
//! Both are whole processes and read the same files. The loop stores each line as a row and does no
//! more: it does not recognise formats, reads no JSON, takes no digest and keeps no metadata.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::{Asked, Table, stores, timed};

/// The word that makes this program the loop.
pub(crate) const LOOP: &str = "sqlite-import";

/// How often the loops are measured that sync for each file: they take a minute each.
const ROUNDS_OF_SYNCS: usize = 3;

/// How `SQLite` commits.
#[derive(Debug, Clone, Copy)]
struct Mode {
    name: &'static str,
    what: &'static str,
    set_up: &'static str,
    /// Whether each file waits for the disk.
    syncs: bool,
}

const MODES: [Mode; 3] = [
    Mode {
        name: "wal-normal",
        what: "SQLite, WAL, synchronous NORMAL: a file survives the death of the process",
        set_up: "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
                 PRAGMA cache_size = -262144;",
        syncs: false,
    },
    Mode {
        name: "default",
        what: "SQLite as it comes (DELETE, synchronous FULL): each file survives power loss",
        set_up: "",
        syncs: true,
    },
    Mode {
        name: "wal-full",
        what: "SQLite, WAL, synchronous FULL: each file survives power loss",
        set_up: "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                 PRAGMA cache_size = -262144;",
        syncs: true,
    },
];

/// Measures all of them.
pub(super) fn imports(asked: &Asked<'_>, command: &Path, folder: &Path) {
    let count = if asked.small { 300 } else { 10_000 };
    let files = stores::files(folder, count);
    println!("{count} files, {} lines, {} MB\n", files.lines, files.bytes / 1_000_000);
    let ours = "import: a file survives the death of the process, at the end all power loss";
    let mut table = Table::default();
    for round in 0..asked.rounds {
        let store = folder.join("imported.runlog");
        let tree = files.tree.to_str().unwrap();
        let (time, _) = timed(command, &["import", "--create", tree], &store);
        table.note(ours, time);
        if round == 0 {
            let (_, printed) = timed(command, &["ls", "--all", "--json"], &store);
            assert!(printed > 0, "there are runs");
        }
        std::fs::remove_file(&store).unwrap();
        for mode in MODES.iter().filter(|mode| !mode.syncs || round < ROUNDS_OF_SYNCS) {
            table.note(mode.what, run_loop(mode, &files, folder));
        }
    }
    table.print(Some(ours));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Runs the loop as a process of its own.
fn run_loop(mode: &Mode, files: &stores::Files, folder: &Path) -> Duration {
    let file = folder.join("imported.sqlite");
    let began = std::time::Instant::now();
    let done = Command::new(std::env::current_exe().unwrap())
        .args([LOOP, mode.name])
        .args([&files.tree, &file])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let time = began.elapsed();
    assert!(done.success(), "{}: {done}", mode.name);
    let count = "SELECT count(*), sum(length(payload)) FROM records";
    let connection = Connection::open(&file).unwrap();
    let found: (i64, i64) =
        connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let all = (files.lines.cast_signed(), (files.bytes - files.lines).cast_signed());
    assert_eq!(found, all, "all lines without their newlines");
    drop(connection);
    std::fs::remove_file(&file).unwrap();
    time
}

/// The loop: each file in one transaction.
pub(crate) fn import_into_sqlite(mode: &str, tree: &Path, file: &Path) {
    let mode = MODES.iter().find(|known| known.name == mode).expect("a mode");
    let mut connection = Connection::open(file).unwrap();
    connection.execute_batch(mode.set_up).unwrap();
    let tables = "
        CREATE TABLE runs (number INTEGER PRIMARY KEY, agent TEXT NOT NULL, id TEXT NOT NULL,
            UNIQUE (agent, id));
        CREATE TABLE records (place INTEGER PRIMARY KEY, payload BLOB NOT NULL);";
    connection.execute_batch(tables).unwrap();
    let (mut number, mut bytes) = (0_i64, Vec::new());
    for agent in sorted(tree) {
        for path in sorted(&agent) {
            bytes.clear();
            std::fs::File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            number += 1;
            let agent = agent.file_name().unwrap().to_str().unwrap();
            let id = path.file_stem().unwrap().to_str().unwrap();
            let transaction = connection.transaction().unwrap();
            transaction
                .prepare_cached("INSERT INTO runs VALUES (?1, ?2, ?3)")
                .and_then(|mut insert| insert.execute(params![number, agent, id]))
                .unwrap();
            let mut insert =
                transaction.prepare_cached("INSERT INTO records VALUES (?1, ?2)").unwrap();
            for (line, payload) in (0_i64..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
                let payload = payload.strip_suffix(b"\n").unwrap_or(payload);
                insert.execute(params![number << 24 | line, payload]).unwrap();
            }
            drop(insert);
            transaction.commit().unwrap();
        }
    }
    connection.close().unwrap();
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    paths
}
