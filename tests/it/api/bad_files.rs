//! Files that are not stores, are incomplete or newer, or are not regular files: each is refused by
//! a typed error, and is not touched.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use runlog::format::map::header::StaticHeader;
use runlog::storage::MemoryStorage;
use runlog::{Error, Options, Outcome, RunLog, RunQuery};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

/// The smallest extents, so that little data fills many.
fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

#[test]
fn files_of_other_programs_are_refused_and_untouched() {
    let folder = TempDir::new().unwrap();
    let mut noise = vec![0; 200_000];
    SplitMix64::new(1).fill(&mut noise);
    let files: [(&str, Vec<u8>); 8] = [
        ("empty", Vec::new()),
        ("one byte", vec![0x93]),
        ("zeros", vec![0; 1 << 20]),
        ("jsonl", b"{\"a\":1}\n".repeat(20_000)),
        ("sqlite", [&b"SQLite format 3\0"[..], &[0; 8176]].concat()),
        ("png", [&b"\x89PNG\r\n\x1a\n"[..], &[1; 5000]].concat()),
        ("noise", noise),
        ("text", b"hello".to_vec()),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        for opened in [options().open(&path), options().open_existing(&path)] {
            match opened {
                Err(Error::NotAStore { found, len }) => {
                    assert_eq!(found, bytes[..bytes.len().min(16)], "{name}");
                    assert_eq!(len, bytes.len() as u64, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(fs::read(&path).unwrap() == bytes, "{name} was touched");
    }
    let empty = options().open_storage(Arc::new(MemoryStorage::new()));
    assert!(matches!(empty, Err(Error::NotAStore { len: 0, .. })));
}

/// The runs of the small store: agent, run, records.
type Runs = Vec<(String, String, Vec<Vec<u8>>)>;

/// A closed store of a few segments with an index, and what is in it.
fn small_store() -> (Vec<u8>, Runs) {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let mut random = SplitMix64::new(3);
    let mut runs = Runs::new();
    for number in 0..30 {
        let (agent, run) = (format!("agent-{}", number % 4), format!("run-{number}"));
        let writer = log.start_run(&agent, &run, b"metadata").unwrap();
        let mut records = Vec::new();
        for _ in 0..10 {
            let mut payload = vec![0; random.index(1200)];
            random.fill(&mut payload);
            writer.append(&payload).unwrap();
            records.push(payload);
        }
        if number % 3 != 0 {
            writer.end(&Outcome::completed()).unwrap();
        }
        runs.push((agent, run, records));
    }
    log.close().unwrap();
    (storage.to_bytes(), runs)
}

/// Everything that was in the small store, whole.
fn assert_whole(log: &RunLog, runs: &Runs, what: &str) {
    for (agent, run, records) in runs {
        assert_eq!(log.agent_of(run).unwrap(), agent.as_str(), "{what}");
        assert!(
            log.trace((agent.as_str(), run.as_str()))
                .unwrap()
                .map(|record| record.unwrap().payload().to_vec())
                .eq(records.iter().cloned()),
            "{what}: {run}"
        );
    }
    assert_eq!(
        log.list_runs(&RunQuery::new().limit(1000)).unwrap().runs.len(),
        runs.len(),
        "{what}"
    );
}

#[test]
fn a_file_that_was_cut_off_anywhere_is_refused_untouched_or_is_whole_all_the_same() {
    let (bytes, runs) = small_store();
    let step = 512;
    let cuts = (0..bytes.len()).step_by(step).chain((1..5000).step_by(97));
    let (mut refused, mut opened) = (0, 0);
    for cut in cuts.chain([bytes.len() - 1, bytes.len()]) {
        let storage = Arc::new(MemoryStorage::from_bytes(bytes[..cut].to_vec()));
        let what = format!("{cut} of {} bytes", bytes.len());
        match options().open_storage(storage.clone()) {
            Ok(log) => {
                opened += 1;
                assert_whole(&log, &runs, &what);
                assert!(log.verify().unwrap().is_clean(), "{what}: {:?}", log.verify());
            }
            Err(Error::NotAStore { .. }) => {
                assert!(cut < 4096, "{what}");
                assert!(storage.to_bytes() == bytes[..cut], "{what}: touched");
            }
            Err(error) => {
                refused += 1;
                assert!(error.is_damaged(), "{what}: {error:?}");
                assert!(storage.to_bytes() == bytes[..cut], "{what}: touched");
            }
        }
    }
    println!("{refused} cuts refused, {opened} opened whole");
    assert!(refused > 100 && opened > 0);
}

/// The small store with another static header.
fn with_header(change: impl FnOnce(&mut StaticHeader)) -> Vec<u8> {
    let (mut bytes, _) = small_store();
    let mut header = StaticHeader::decode(&bytes[..4096]).unwrap();
    change(&mut header);
    bytes[..4096].copy_from_slice(&header.encode());
    bytes
}

#[test]
fn files_of_other_versions_are_refused_and_untouched() {
    let older = with_header(|header| (header.version, header.min_reader) = (1, 1));
    let newer = with_header(|header| (header.version, header.min_reader) = (7, 3));
    let needs = with_header(|header| header.required = 1 << 40);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    for (bytes, version) in [(older, Some(1)), (newer, Some(3)), (needs, None)] {
        fs::write(&path, &bytes).unwrap();
        let error = options().open(&path).unwrap_err();
        assert!(error.is_other_format());
        match error {
            Error::UnsupportedVersion { found, supported: 2 } => assert_eq!(version, Some(found)),
            Error::UnsupportedFeatures { unknown } => {
                assert_eq!((version, unknown), (None, 1 << 40));
            }
            other => panic!("{other:?}"),
        }
        assert!(fs::read(&path).unwrap() == bytes, "touched");
    }
    let still_readable = with_header(|header| header.version = 7);
    options().open_storage(Arc::new(MemoryStorage::from_bytes(still_readable))).unwrap();
}

#[test]
fn paths_that_are_no_regular_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let refused = |path: &Path| {
        for opened in [options().open(path), options().open_existing(path)] {
            assert!(
                matches!(&opened, Err(Error::NotRegularFile { path: told }) if told == path),
                "{opened:?}"
            );
        }
        let created = options().create(path);
        assert!(
            matches!(created, Err(Error::AlreadyExists { .. } | Error::NotRegularFile { .. })),
            "{created:?}"
        );
    };
    refused(folder.path());
    let store = folder.path().join("store");
    options().create(&store).unwrap().close().unwrap();
    let bytes = fs::read(&store).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&store, &link).unwrap();
    refused(&link);
    assert!(fs::read(&store).unwrap() == bytes, "touched through a link");
    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink(folder.path().join("nothing"), &dangling).unwrap();
    refused(&dangling);
    assert!(!folder.path().join("nothing").exists(), "created through a link");
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    if made.is_ok_and(|status| status.success()) {
        refused(&fifo);
    }
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(&socket);
    refused(Path::new("/dev/null"));
}

#[test]
fn paths_that_lead_nowhere_are_refused() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let opened = options().open_existing(&missing);
    assert!(matches!(opened, Err(Error::NotFound { path }) if path == missing));
    assert!(!missing.exists());
    let orphan = missing.join("store");
    for result in [options().open(&orphan), options().create(&orphan)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. } | Error::Io { .. }), "{error:?}");
    }
    let through_file = folder.path().join("file").join("store");
    fs::write(folder.path().join("file"), b"x").unwrap();
    for result in [options().open(&through_file), options().open_existing(&through_file)] {
        assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    }
    let nameless = options().open("").unwrap_err();
    assert!(!matches!(nameless, Error::NotAStore { .. } | Error::Corrupt(_)), "{nameless:?}");
    let long = folder.path().join("x".repeat(300));
    assert!(matches!(options().open(long), Err(Error::Io { .. })));
}

#[test]
fn a_file_that_may_not_be_read_is_refused_and_untouched() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    options().create(&path).unwrap().close().unwrap();
    let bytes = fs::read(&path).unwrap();
    for mode in [0o000, 0o400, 0o200] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        if fs::OpenOptions::new().read(true).write(true).open(&path).is_ok() {
            // The superuser may do everything.
            return;
        }
        match options().open(&path) {
            Err(Error::Io { source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
            }
            other => panic!("{other:?}"),
        }
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn creating_over_something_that_is_there_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    log.start_run("agent", "run", ()).unwrap();
    assert!(matches!(options().create(&path), Err(Error::AlreadyExists { .. })));
    log.close().unwrap();
    assert!(matches!(options().create(&path), Err(Error::AlreadyExists { .. })));
    let log = options().open_existing(&path).unwrap();
    assert_eq!(log.agent_of("run").unwrap(), "agent");
    let other = folder.path().join("other");
    fs::write(&other, b"precious").unwrap();
    assert!(matches!(options().create(&other), Err(Error::AlreadyExists { .. })));
    assert_eq!(fs::read(&other).unwrap(), b"precious");
    let full = Arc::new(MemoryStorage::from_bytes(vec![1; 100]));
    let created = options().create_storage(full.clone());
    assert!(matches!(created, Err(Error::InvalidArgument { .. })));
    assert_eq!(full.to_bytes(), [1; 100]);
}

#[test]
fn extent_sizes_that_are_not_allowed_create_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let bad = [0, 1, 4096, 32 << 10, (64 << 10) + 1, 3 << 16, 128 << 20, u64::MAX];
    for size in bad {
        let options = Options::new().extent_size(size);
        for result in [options.open(&path), options.create(&path)] {
            assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{size}: {result:?}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{size}");
    }
    for size in [64 << 10, 128 << 10, 64 << 20] {
        let log = Options::new().extent_size(size).create(&path).unwrap();
        assert_eq!(log.stats().unwrap().extent_len, size);
        log.close().unwrap();
        let log = Options::new().extent_size(4 << 20).open(&path).unwrap();
        assert_eq!(log.stats().unwrap().extent_len, size, "the file's own size counts");
        log.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_new_store_does_not_fit_on_a_full_disk_and_leaves_nothing() {
    for limit in [0, 1000, 70_000] {
        let storage = Arc::new(MemoryStorage::with_limit(limit));
        let created = options().create_storage(storage.clone());
        assert!(created.unwrap_err().is_disk_full(), "{limit}");
    }
}
