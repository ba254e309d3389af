//! `RunStore` in a real folder: when it is made and for whom, several stores of one folder, and
//! what is configured beside it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;

use runlog::{AgentId, Limits, Options, Outcome, Retention, RunQuery};
use runlog_stores::run_store::{RetentionConfig, RunStatus, RunStore, RunStoreError};

use super::run_store_world::{NOW, ended, ids, started, success, turn};

fn store(root: &Path) -> RunStore {
    let options = Options::new().extent_size(64 << 10);
    RunStore::with_options(root.to_owned(), RetentionConfig::default(), options)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("car").join("runs");
    (folder, root)
}

#[test]
fn nothing_is_made_before_something_is_written() {
    let (_folder, root) = folder();
    let store = store(&root);
    assert!(store.list_runs("a").is_empty() && store.get_run_trace("r").is_none());
    assert_eq!((store.gc(), store.adopt_orphans()), (0, 0));
    store.append_records("a", "r", &[]).unwrap();
    assert!(!root.exists());
    store.write_started(&started("a", "r", NOW)).unwrap();
    assert!(root.join("runs.runlog").exists());
}

#[test]
fn folder_and_file_are_for_their_owner_alone_and_not_for_backups() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, root) = folder();
    store(&root).write_started(&started("a", "r", NOW)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&root.join("runs.runlog")), 0o600);
    assert!(root.join(".nobackup").exists());
    // A folder that others could read is closed to them, and gets no mark.
    let other = root.with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    store(&other).write_started(&started("a", "r", NOW)).unwrap();
    assert_eq!(mode(&other), 0o700);
    assert!(!other.join(".nobackup").exists());
}

#[test]
fn a_new_store_of_the_same_folder_reads_what_the_one_before_wrote() {
    let (_folder, root) = folder();
    store(&root).write_started(&started("a", "r", NOW)).unwrap();
    store(&root).append_turns("a", "r", &[turn(0, "p")]).unwrap();
    store(&root).write_ended(&ended("a", "r", NOW, success())).unwrap();
    assert_eq!(store(&root).get_run_trace("r").unwrap().len(), 3);
    assert_eq!(store(&root).list_runs("a")[0].status, RunStatus::Completed);
}

#[test]
fn several_stores_of_one_folder_are_one_store_however_the_folder_is_named() {
    let (_folder, root) = folder();
    let first = store(&root);
    first.write_started(&started("a", "r", NOW)).unwrap();
    let roundabout = root.join("..").join("runs");
    let second = RunStore::new(roundabout, RetentionConfig::default());
    second.append_turns("a", "r", &[turn(0, "p")]).unwrap();
    first.write_ended(&ended("a", "r", NOW, success())).unwrap();
    assert_eq!(first.get_run_trace("r"), second.get_run_trace("r"));
    drop(first);
    assert_eq!(second.list_runs("a")[0].turn_count, 1);
    // The first store, here or in another process, has the file.
    let error = Options::new().open(root.join("runs.runlog")).unwrap_err();
    assert!(matches!(error, runlog::Error::Busy { .. }), "{error}");
    drop(second);
    Options::new().open(root.join("runs.runlog")).unwrap().close().unwrap();
}

#[test]
fn a_store_that_another_has_open_is_busy_and_says_so() {
    let (_folder, root) = folder();
    store(&root).write_started(&started("a", "r", NOW)).unwrap();
    let log = Options::new().open(root.join("runs.runlog")).unwrap();
    let store = store(&root);
    let error = store.write_started(&started("a", "r2", NOW)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    assert_eq!(store.try_list_runs("a").unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(store.list_runs("a").is_empty(), "the call of the original cannot say it");
    log.close().unwrap();
    assert_eq!(ids(&store, "a"), ["r"], "it is opened when that is possible");
}

#[test]
fn many_threads_open_write_and_close_the_same_folders_and_nothing_is_lost() {
    let ((_first, one), (_second, other)) = (folder(), folder());
    thread::scope(|scope| {
        for writer in 0..4 {
            let (one, other) = (&one, &other);
            scope.spawn(move || {
                for number in 0..40 {
                    // The last of those that are there closes the file each time, and so does the
                    // last that kept its log. What is closed of one folder leaves the other alone.
                    let root = if (writer + number) % 3 == 0 { other } else { one };
                    let run = format!("{writer}-{number}");
                    let kept = (number % 2 == 1).then(|| store(root).log().unwrap());
                    store(root).append_turns("a", &run, &[turn(number, "p")]).unwrap();
                    drop(kept);
                }
            });
        }
    });
    let (one, other) = (store(&one), store(&other));
    for writer in 0..4 {
        for number in 0..40 {
            let store = if (writer + number) % 3 == 0 { &other } else { &one };
            assert_eq!(store.get_run_trace(&format!("{writer}-{number}")).unwrap().len(), 1);
        }
    }
}

#[test]
fn lines_that_are_being_read_keep_the_store_open() {
    let (_folder, root) = folder();
    let first = store(&root);
    first.append_turns("a", "r", &[turn(0, "p"), turn(1, "p")]).unwrap();
    let mut lines = first.lines("a", "r").unwrap();
    drop(first);
    store(&root).append_turns("a", "r", &[turn(2, "p")]).unwrap();
    assert_eq!(lines.by_ref().count(), 2);
    drop(lines);
    assert_eq!(store(&root).get_run_trace("r").unwrap().len(), 3);
}

#[test]
fn a_log_that_outlives_the_stores_of_its_folder_is_that_of_the_next_ones() {
    let (_folder, root) = folder();
    let log = store(&root).log().unwrap();
    store(&root).write_started(&started("a", "r", NOW)).unwrap();
    assert_eq!(ids(&store(&root), "a"), ["r"]);
    assert_eq!(store(&root).try_list_runs("a").unwrap().len(), 1);
    assert_eq!(log.run(("a", "r")).unwrap().records, 1);
    assert_eq!(ids(&RunStore::on(log.clone(), RetentionConfig::default()), "a"), ["r"]);
    // A writer has it as well.
    let writer = log.start_run("raw", "raw", b"meta").unwrap();
    drop(log);
    store(&root).append_turns("a", "r", &[turn(0, "p")]).unwrap();
    assert_eq!(store(&root).adopt_orphans(), 1);
    let file = root.join("runs.runlog");
    assert!(matches!(Options::new().open(&file), Err(runlog::Error::Busy { .. })));
    drop(writer);
    Options::new().open(&file).unwrap().close().unwrap();
}

#[test]
fn a_log_that_was_closed_is_not_that_of_the_next_stores_however_long_it_is_kept() {
    let (_folder, root) = folder();
    store(&root).write_started(&started("a", "r", NOW)).unwrap();
    let kept = store(&root).log().unwrap();
    kept.clone().close().unwrap();
    assert_eq!(ids(&store(&root), "a"), ["r"]);
    assert!(matches!(kept.run("r"), Err(runlog::Error::Closed)));
}

#[test]
fn the_store_lives_in_its_log_beside_raw_runs() {
    let (_folder, root) = folder();
    let store = store(&root);
    let log = store.log().unwrap();
    log.start_run("a", "raw", b"meta").unwrap().end(&Outcome::completed()).unwrap();
    store.write_started(&started("a", "r", NOW)).unwrap();
    assert_eq!(ids(&store, "a"), ["r"]);
    assert_eq!(log.list_runs(&RunQuery::new().agent("a").limit(9)).unwrap().runs.len(), 2);
    // The dry run, and the policy of an agent, are the engine's.
    for (number, run) in (2..).zip(["old", "new"]) {
        store.write_started(&started("b", run, NOW + number)).unwrap();
        store.write_ended(&ended("b", run, NOW + number, success())).unwrap();
    }
    let limits = Limits::new().keep_newest(1);
    let policy = Retention::new().for_agent(AgentId::new("b").unwrap(), limits);
    let plan = log.gc_plan(&policy).unwrap().evict;
    assert_eq!(plan.iter().map(|run| run.run.to_string()).collect::<Vec<_>>(), ["old"]);
    assert_eq!(ids(&store, "b"), ["new", "old"]);
    let on = RunStore::on(log, RetentionConfig::default());
    assert_eq!(ids(&on, "a"), ["r"]);
    assert_eq!(on.root(), Path::new(""));
}

#[test]
fn a_file_that_is_no_store_is_refused_and_not_touched() {
    let (_folder, root) = folder();
    fs::create_dir_all(&root).unwrap();
    let path = root.join("runs.runlog");
    fs::write(&path, "not a store").unwrap();
    let store = store(&root);
    let error = store.write_started(&started("a", "r", NOW)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    assert!(matches!(
        RunStoreError::of(&error),
        Some(RunStoreError::Engine(runlog::Error::NotAStore { .. }))
    ));
    assert_eq!(fs::read_to_string(path).unwrap(), "not a store");
}

#[test]
fn a_journal_folder_has_its_runs_beside_it_and_its_configuration_too() {
    let folder = tempfile::tempdir().unwrap();
    let journals = folder.path().join("journals");
    let made = RunStore::from_journal_dir(&journals);
    assert_eq!(made.root(), folder.path().join("runs"));
    assert_eq!(made.retention(), RetentionConfig { max_per_agent: 50, max_age_days: 30 });

    let config = folder.path().join("config.toml");
    fs::write(&config, "[other]\nx = 1\n[runs]\nmax_per_agent = 10\n").unwrap();
    let retention = RunStore::from_journal_dir(&journals).retention();
    assert_eq!(retention, RetentionConfig { max_per_agent: 10, max_age_days: 30 });
    fs::write(&config, "[runs]\nmax_per_agent = 0\nmax_age_days = -1\n").unwrap();
    let retention = RunStore::try_from_journal_dir(&journals).unwrap().retention();
    assert_eq!(retention, RetentionConfig { max_per_agent: 0, max_age_days: -1 });
    assert!(retention.policy().is_unlimited());

    fs::write(&config, "[runs]\nmax_per_agent = -5\n").unwrap();
    let retention = RunStore::from_journal_dir(&journals).retention();
    assert_eq!(retention, RetentionConfig::default());
    let error = RunStore::try_from_journal_dir(&journals).unwrap_err();
    let Some(RunStoreError::Config(config)) = RunStoreError::of(&error) else { panic!("{error}") };
    assert!(config.place.is_some());

    for (journals, root) in [("journals", "runs"), ("x/journals", "x/runs"), ("/", "./runs")] {
        assert_eq!(RunStore::from_journal_dir(Path::new(journals)).root(), Path::new(root));
    }
    assert_eq!(RunStore::from_journal_dir(Path::new("")).root(), Path::new("./runs"));
}
