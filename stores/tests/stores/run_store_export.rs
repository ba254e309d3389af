//! An export that is broken off: by a kill, by a full disk, by a run that cannot be read. A file
//! has its name only once it is whole, and the next export makes those that are missing.
//!
//! A separate process is killed, or is in a namespace with a small tmpfs, where that is allowed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use runlog::Timestamp;
use runlog_sim::{SimClock, SimDisk, settings};
use runlog_stores::run_store::{Refusal, RetentionConfig, RunStore};

use super::run_store_world::{NOW, options, turn};

/// What the runs and their files are called.
const RUNS: [&str; 4] = ["r0", "r1", "r2", "r3"];

/// A store with some runs of about 100 KB.
fn store() -> (Arc<SimDisk>, RunStore) {
    let disk = Arc::new(SimDisk::new());
    let log = options(&SimClock::new(Timestamp(NOW))).create_storage(disk.clone()).unwrap();
    let store = RunStore::on(log, RetentionConfig::default());
    for run in RUNS {
        // The newest one, which is exported first, is smaller.
        let turns = if run == "r3" { 0..20 } else { 0..100 };
        let turns: Vec<_> = turns.map(|index| turn(index, &"x".repeat(1000))).collect();
        store.append_turns("a", run, &turns).unwrap();
    }
    (disk, store)
}

/// All files below a folder, by their paths.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for agent in fs::read_dir(root).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(agent.path()).unwrap().map(Result::unwrap) {
            let name = file.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(file.path()).unwrap());
        }
    }
    files
}

/// What an export that comes to its end makes.
fn whole() -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let exported = store().1.export_tree(folder.path()).unwrap();
    assert_eq!((exported.files, exported.problems.len()), (4, 0));
    let files = files(folder.path());
    assert!(files.keys().map(String::as_str).eq(RUNS.map(|run| format!("a/{run}.jsonl"))));
    files
}

/// Exports into a folder within a shell script, which calls `"$@"` for that.
fn in_shell(shell: &[&str], script: &str, case: &str, folder: &Path) -> Output {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["run_store_export::within", "--exact", "--nocapture"]);
    settings::with_arguments(&mut command, &[case, folder.to_str().unwrap()]).output().unwrap()
}

/// Not a test of its own: what runs in a process of its own.
#[test]
fn within() {
    let Some(arguments) = settings::child_arguments() else { return };
    let [case, folder] = &arguments[..] else { panic!("a case and a folder") };
    let (folder, store) = (Path::new(folder), store().1);
    match case.as_str() {
        "killed" => {
            let _ = store.export_tree(folder);
            unreachable!("it is killed");
        }
        "full" => full(&store, folder),
        case => panic!("{case}"),
    }
    println!("the case is over");
}

/// The files that are there, each of which is whole.
fn whole_files(folder: &Path) -> usize {
    let (found, whole) = (files(folder), whole());
    for (name, bytes) in &found {
        assert!(whole.get(name) == Some(bytes), "{name}: {} bytes", bytes.len());
    }
    found.len()
}

/// Into a tmpfs that has no space for the last of them.
fn full(store: &RunStore, folder: &Path) {
    for _ in 0..2 {
        let full = store.export_tree(folder).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        assert_eq!(whole_files(folder), 3);
    }
    let mut larger = Command::new("mount");
    larger.args(["-o", "remount,size=1m"]).arg(folder);
    assert!(larger.status().unwrap().success());
    let exported = store.export_tree(folder).unwrap();
    assert_eq!((exported.files, exported.problems.len()), (1, 3), "{exported:?}");
    assert_eq!(whole_files(folder), 4);
}

#[test]
fn an_export_that_was_killed_within_a_file_goes_on_when_it_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    // What writes beyond the limit of a file is killed.
    let output = in_shell(&["sh"], "ulimit -f 60 && exec \"$@\"", "killed", folder.path());
    assert!(output.status.code().is_none(), "{output:?}");
    let mut left = files(folder.path());
    left.retain(|name, _| name.ends_with(".jsonl"));
    assert!(left.keys().eq(["a/r3.jsonl"]), "{:?}", left.keys());
    assert_eq!(files(folder.path()).len(), 2, "the unfinished file has another name");
    let exported = store().1.export_tree(folder.path()).unwrap();
    assert_eq!((exported.files, exported.problems.len()), (3, 1), "{exported:?}");
    assert_eq!(whole_files(folder.path()), 4);
}

#[test]
fn on_a_full_disk_an_export_ends_with_whole_files_and_goes_on_once_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let namespace = ["unshare", "--map-root-user", "--mount", "sh"];
    let mount = format!("mount -t tmpfs -o size=260k none '{}'", folder.path().display());
    if !in_shell(&namespace, &mount, "full", folder.path()).status.success() {
        println!("passed over: no tmpfs can be mounted in a namespace of its own");
        return;
    }
    let script = format!("{mount} && exec \"$@\"");
    let output = in_shell(&namespace, &script, "full", folder.path());
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("case is over"), "{output:?}");
}

#[test]
fn a_run_that_cannot_be_read_to_its_end_leaves_no_file() {
    let image = store().0.image();
    let needle = b"\"index\":70,";
    let at = image.windows(needle.len()).position(|bytes| bytes == needle).unwrap() as u64;
    // So that it has nothing of the runs in memory.
    let disk = Arc::new(SimDisk::from_image(image));
    let log = options(&SimClock::new(Timestamp(NOW))).open_storage(disk.clone()).unwrap();
    let store = RunStore::on(log, RetentionConfig::default());
    let folder = tempfile::tempdir().unwrap();
    // From here on it knows their states, but not their records.
    assert_eq!(store.get_run_turn_page_for("a", "r0", runlog::Seq(0), 1).unwrap().total, 100);
    disk.fail_reads_in(at..at + 1000, ErrorKind::Other);
    let exported = store.export_tree(folder.path()).unwrap();
    assert!(!exported.problems.is_empty(), "{exported:?}");
    assert!(exported.problems.iter().all(|it| matches!(it.why, Refusal::Store(_))));
    assert_eq!(whole_files(folder.path()), exported.files as usize);
    disk.clear_faults();
    let again = store.export_tree(folder.path()).unwrap();
    assert_eq!(again.files as usize, exported.problems.len());
    assert_eq!(whole_files(folder.path()), 4);
}

#[test]
fn of_exports_into_one_folder_at_once_each_file_is_made_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let made: u64 = std::thread::scope(|scope| {
        let export = || {
            let exported = store().1.export_tree(folder.path()).unwrap();
            assert!(exported.problems.iter().all(|it| matches!(it.why, Refusal::AlreadyThere)));
            exported.files
        };
        let exports: Vec<_> = (0..4).map(|_| scope.spawn(export)).collect();
        exports.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!((made, whole_files(folder.path())), (4, 4));
}
