//! What a reader does to the file that it reads, which is nothing, and what it meets there.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use runlog::{Error, Options, Outcome, ReadLog, Reader, RunQuery};
use tempfile::TempDir;

/// A closed store with some runs, large records and documents.
fn make(path: &Path, runs: usize) {
    let log = Options::new().extent_size(64 << 10).open(path).unwrap();
    for number in 0..runs {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        for len in [10, 3_000, 40_000] {
            run.append(&vec![number as u8; len]).unwrap();
        }
        run.end(&Outcome::completed()).unwrap();
        let document = runlog::NewRecord::new(b"value");
        log.docs().put("space", &number.to_string(), &document).unwrap();
    }
    log.delete_run("run-0").unwrap();
    log.close().unwrap();
}

/// Asks everything; returns how many records were read, and the first error.
fn ask_all(log: &impl ReadLog) -> (usize, Option<Error>) {
    let (mut records, mut failure) = (0, None);
    let mut note = |error: Option<Error>| {
        if failure.is_none() {
            failure = error;
        }
    };
    let page = log.list_runs(&RunQuery::new().limit(10_000));
    for run in page.as_ref().map(|page| page.runs.as_slice()).unwrap_or_default() {
        note(log.run(run).err());
        note(log.metadata(run).err());
        note(log.outcome(run).err());
        match log.trace(run) {
            Ok(trace) => trace.for_each(|item| match item {
                Ok(_) => records += 1,
                Err(error) => note(Some(error)),
            }),
            Err(error) => note(Some(error)),
        }
    }
    note(page.err());
    note(log.agents(None, 100).err());
    note(log.held_runs().err());
    note(log.receipts(100).err());
    note(log.document("space", "1").err());
    note(log.list_documents("space", "", None, 100).err());
    note(log.stats().err());
    note(log.verify().err());
    (records, failure)
}

fn times(path: &Path) -> [i64; 7] {
    let found = fs::metadata(path).unwrap();
    let (size, blocks) = (found.size() as i64, found.blocks() as i64);
    let [m, c] = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    [m.0, m.1, c.0, c.1, size, blocks, found.mode().into()]
}

#[test]
fn a_reader_changes_no_byte_and_no_time_of_the_file_and_takes_no_lock() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    make(&path, 12);
    let (bytes, before) = (fs::read(&path).unwrap(), times(&path));
    let reader = Reader::open(&path).unwrap();
    let (records, failure) = ask_all(&reader);
    assert!(failure.is_none() && records == 33, "{records}: {failure:?}");
    assert!(!reader.refresh().unwrap());
    assert!(fs::read(&path).unwrap() == bytes, "the bytes are others");
    assert_eq!(times(&path), before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "another file");
    // A writer beside a reader, and a reader beside a writer.
    let log = Options::new().open(&path).unwrap();
    let second = Reader::open(&path).unwrap();
    let run = log.start_run("agent", "later", ()).unwrap();
    run.append(b"later").unwrap();
    for reader in [&reader, &second] {
        assert!(reader.refresh().unwrap());
        assert_eq!(reader.trace("later").unwrap().count(), 1);
    }
    log.close().unwrap();
}

#[test]
fn a_file_and_a_directory_without_write_permission_are_enough() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    make(&path, 3);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let (records, failure) = ask_all(&Reader::open(&path).unwrap());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(failure.is_none() && records == 6, "{records}: {failure:?}");
}

#[test]
fn what_is_not_a_usable_store_is_a_typed_error() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    make(&at("store"), 6);
    let whole = fs::read(at("store")).unwrap();
    assert!(matches!(Reader::open(at("none")), Err(Error::NotFound { .. })));
    assert!(matches!(Reader::open(dir.path()), Err(Error::NotRegularFile { .. })));
    std::os::unix::fs::symlink(at("store"), at("link")).unwrap();
    // As for a writer.
    assert!(matches!(Reader::open(at("link")), Err(Error::NotRegularFile { .. })));
    for (name, bytes) in [("empty", &b""[..]), ("foreign", &[b'x'; 100_000]), ("short", b"RUN")] {
        fs::write(at(name), bytes).unwrap();
        let refused = Reader::open(at(name));
        assert!(matches!(refused, Err(Error::NotAStore { .. })), "{name}: {refused:?}");
    }
    // At any length: refused, or what is there is read, and what is missing is told.
    for len in (0..whole.len()).step_by(4096 + 123) {
        fs::write(at("cut"), &whole[..len]).unwrap();
        match Reader::open(at("cut")) {
            Ok(reader) => drop(ask_all(&reader)),
            Err(Error::Damaged(_) | Error::NotAStore { .. }) => {}
            Err(error) => panic!("{len}: {error}"),
        }
    }
}

#[test]
fn a_file_that_is_replaced_deleted_or_cut_off_while_it_is_read_is_told() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (way, name) in ["replaced", "deleted", "cut", "emptied"].into_iter().enumerate() {
        make(&at(name), 6);
        make(&at("other"), 2);
        let reader = Reader::open(at(name)).unwrap();
        let mut trace = reader.trace("run-3").unwrap();
        assert_eq!(trace.next().unwrap().unwrap().payload(), [3; 10]);
        let file = File::options().write(true).open(at(name)).unwrap();
        match way {
            0 => fs::rename(at("other"), at(name)).unwrap(),
            1 => fs::remove_file(at(name)).unwrap(),
            2 => file.set_len(80_000).unwrap(),
            _ => file.set_len(0).unwrap(),
        }
        let items: Vec<_> = trace.collect();
        let refreshed = reader.refresh();
        let (records, failure) = ask_all(&reader);
        if way < 2 {
            // The file that was opened is still there.
            assert!(items.iter().all(Result::is_ok) && items.len() == 2, "{name}: {items:?}");
            assert!(matches!(refreshed, Err(Error::Replaced { .. })), "{name}: {refreshed:?}");
            assert!(records == 15 && failure.is_none(), "{name}: {records} {failure:?}");
        } else {
            let told = items.iter().any(Result::is_err) && failure.is_some();
            assert!(told, "{name}: {records} {refreshed:?} {items:?}");
        }
        let _ = fs::remove_file(at("other"));
    }
}

#[test]
fn a_reader_of_a_file_without_its_end_reads_a_prefix_of_each_run_then_the_damage() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    let log = Options::new().extent_size(64 << 10).background(false).open(&path).unwrap();
    let runs = ["a", "b"].map(|id| log.start_run("agent", id, ()).unwrap());
    let end = || log.stats().unwrap().end;
    let third = end().segment.0 + 2;
    let mut written = 0u8;
    while (end().segment.0, end().offset) < (third, 30_000) {
        written += 1;
        runs.iter().for_each(|run| drop(run.append(&[written; 2_000]).unwrap()));
    }
    drop(runs);
    log.close().unwrap();
    let file = File::options().write(true).open(&path).unwrap();

    // Within the third segment, which has no directory yet.
    file.set_len((3 * 64 + 16) << 10).unwrap();
    let reader = Reader::open(&path).unwrap();
    for run in ["a", "b"] {
        let items: Vec<_> = reader.trace(run).unwrap().collect();
        let whole = items.iter().take_while(|item| item.is_ok()).count();
        assert!(whole > 30 && whole < usize::from(written), "{run}: {whole}");
        for (number, item) in (1..).zip(&items[..whole]) {
            assert_eq!(item.as_ref().unwrap().payload(), [number; 2_000], "{run}");
        }
        // Of the record at the cut, and of the end of the log.
        let lost = &items[whole..];
        assert!(matches!(lost, [.., Err(Error::Corrupt(_))]) && lost.len() <= 2, "{run}: {lost:?}");
    }
    drop(reader);

    // Within the second one: its directory and its frames are gone.
    file.set_len((2 * 64 + 30) << 10).unwrap();
    let reader = Reader::open(&path).unwrap();
    for run in ["a", "b"] {
        let refused = reader.trace(run);
        assert!(matches!(refused, Err(Error::Corrupt(_))), "{run}: {refused:?}");
    }
    let refused = Options::new().open(&path);
    assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
}
