//! A store on a full tmpfs: looking at a hole of a file through a map takes a page there, and kills
//! the process (`SIGBUS`) if there is none. If the tmpfs is not full, looking only takes back the
//! released space.
//!
//! Each case runs in a separate process, in a namespace with a small tmpfs, where that is allowed;
//! elsewhere it reports that it was skipped.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use runlog::{NewRecord, Options, Outcome, Retention, RunLog, RunQuery};

use runlog_sim::settings::{child_arguments, with_arguments};

const EXTENT: u64 = 64 << 10;
const PAGE: usize = 4096;

/// The calls on a store that give space back, look at what is left, or both.
type Case = fn(&RunLog);

const CASES: [(&str, Case); 6] = [
    ("read", |log| drop(log.stats().unwrap())),
    ("verify", |log| assert!(log.verify().unwrap().is_clean())),
    ("compact", |log| drop(log.compact())),
    ("reclaim", |log| drop(log.reclaim())),
    ("gc", |log| {
        assert_eq!(log.gc(&Retention::new().keep_newest(3)).unwrap().plan.evict.len(), 5);
    }),
    ("delete", |log| {
        for run in ["run-1", "run-3", "run-5"] {
            let _ = log.delete_run(run).unwrap();
        }
    }),
];

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// Runs a case in a namespace with a tmpfs of its own.
fn within_a_tmpfs(case: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=4m none \"$0\"";
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(dir.path());
        command.arg(std::env::current_exe().unwrap());
        with_arguments(&mut command, &[case, dir.path().to_str().unwrap()]).output()
    };
    if !run(mount).is_ok_and(|output| output.status.success()) {
        println!("passed over: no tmpfs can be mounted in a namespace of its own");
        return;
    }
    let output =
        run(&format!("{mount} && exec \"$1\" full_disk::tmpfs::within --exact --nocapture"))
            .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed") && told.contains("case is over"),
        "{case}: {}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Not a test of its own: what runs in the namespace.
#[test]
fn within() {
    let Some(arguments) = child_arguments() else { return };
    let [case, dir] = &arguments[..] else { panic!("a case and a folder") };
    let dir = Path::new(dir);
    match case.as_str() {
        "open" => full_and_open(dir),
        "reopen" => full_and_reopened(dir),
        "sparse" => copied_without_zeros(dir),
        "room" => with_room(dir),
        threads => full_with_threads(dir, threads == "threads"),
    }
    println!("case is over");
}

/// Some runs in some segments each.
fn fill(log: &RunLog) {
    for run in 0..8 {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for record in 0..6 {
            let _ = writer.append(&[record; 9_000]).unwrap();
        }
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
}

/// Takes all of the space that is left.
fn take_space(dir: &Path) {
    let mut file = File::create(dir.join("fill")).unwrap();
    while file.write_all(&[1; PAGE]).is_ok() {}
}

fn read(log: &RunLog) -> usize {
    let runs = log.list_runs(&RunQuery::new().limit(100)).unwrap().runs;
    let traces = runs.iter().map(|run| log.trace((run.agent.as_str(), run.run.as_str())).unwrap());
    traces.flatten().map(Result::unwrap).fold(0, |count, _| count + 1)
}

fn full_and_open(dir: &Path) {
    for (name, case) in CASES {
        println!("{name}");
        let log = options().create(dir.join(name)).unwrap();
        fill(&log);
        take_space(dir);
        case(&log);
        assert!(read(&log) >= 18);
        assert!(log.verify().unwrap().is_clean());
        let _ = log.close();
        let log = options().open(dir.join(name)).unwrap();
        assert!(read(&log) >= 18);
        drop(log);
        fs::remove_file(dir.join(name)).unwrap();
        fs::remove_file(dir.join("fill")).unwrap();
    }
}

fn full_with_threads(dir: &Path, automatic: bool) {
    let compaction = runlog::Compaction::new().automatic(automatic);
    let log = options().background(true).compaction(compaction).create(dir.join("store")).unwrap();
    fill(&log);
    take_space(dir);
    for (_, case) in CASES.into_iter().take(5) {
        case(&log);
        assert!(read(&log) >= 18);
    }
    let _ = log.close();
}

/// The log ends at any place of a page, and before a hole when it is reopened.
fn full_and_reopened(dir: &Path) {
    let path = dir.join("store");
    let log = options().create(&path).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"0").unwrap();
    drop(run);
    log.close().unwrap();
    take_space(dir);
    let bytes = fs::read(&path).unwrap();
    let mut records = 1;
    for _ in 0..200 {
        // Room for the appends, but not for looking.
        let space = File::options().write(true).open(dir.join("fill")).unwrap();
        let len = space.metadata().unwrap().len();
        space.set_len(len - 8 * EXTENT).unwrap();
        let log = options().open(&path).unwrap();
        let _ = log.writer("run").unwrap().append(&[b'x'; 24]).unwrap();
        records += 1;
        log.close().unwrap();
        take_space(dir);
        let log = options().open(&path).unwrap();
        assert_eq!(read(&log), records);
        drop(log);
    }
    assert!(fs::read(&path).unwrap().len() >= bytes.len());
}

/// A copy has holes where the store has zeros: within payloads too.
fn copied_without_zeros(dir: &Path) {
    let log = options().create(dir.join("store")).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..8 {
        let _ = run.append_record(&NewRecord::new(&[0; 12_000])).unwrap();
    }
    drop(run);
    log.close().unwrap();
    let bytes = fs::read(dir.join("store")).unwrap();
    let path = dir.join("copy");
    let copy = File::create(&path).unwrap();
    copy.set_len(bytes.len() as u64).unwrap();
    for (at, page) in (0..).step_by(PAGE).zip(bytes.chunks(PAGE)) {
        if page.iter().any(|&byte| byte != 0) {
            copy.write_all_at(page, at).unwrap();
        }
    }
    // Opening has the space to write and allocate; looking would have none.
    drop(options().open(&path).unwrap());
    take_space(dir);
    let space = File::options().write(true).open(dir.join("fill")).unwrap();
    space.set_len(space.metadata().unwrap().len() - 3 * EXTENT).unwrap();
    let log = options().open(&path).unwrap();
    take_space(dir);
    assert_eq!(read(&log), 8);
    assert!(log.verify().unwrap().is_clean());
    assert_eq!(read(&log), 8);
    let _ = log.close();
}

/// If there is room, looking takes none of it.
fn with_room(dir: &Path) {
    let path = dir.join("store");
    let log = options().create(&path).unwrap();
    fill(&log);
    let blocks = || path.metadata().unwrap().blocks();
    let before = blocks();
    assert_eq!(read(&log), 48);
    assert!(log.verify().unwrap().is_clean());
    assert_eq!(blocks(), before, "of an open store");
    log.close().unwrap();
    let before = blocks();
    let log = options().open(&path).unwrap();
    assert_eq!(read(&log), 48);
    assert!(log.verify().unwrap().is_clean());
    log.close().unwrap();
    assert_eq!(blocks(), before, "of a store that was opened again");
}

#[test]
fn a_store_on_a_full_tmpfs_can_be_read_checked_and_cleaned_up() {
    within_a_tmpfs("open");
}

#[test]
fn background_threads_survive_a_full_tmpfs() {
    within_a_tmpfs("threads");
}

#[test]
fn a_store_on_a_full_tmpfs_opens_wherever_its_log_ends() {
    within_a_tmpfs("reopen");
}

#[test]
fn a_copy_with_holes_in_payloads_is_read_on_a_full_tmpfs() {
    within_a_tmpfs("sparse");
}

#[test]
fn looking_at_a_store_on_a_tmpfs_takes_no_space() {
    within_a_tmpfs("room");
}
