//! The real file: lengths, space, views, refusals, and the lock.

use std::path::PathBuf;

use super::*;

/// A directory with a locked store of `content` in it.
fn store(content: &[u8]) -> (tempfile::TempDir, PathBuf, FileStorage) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    fs::write(&path, content).unwrap();
    let storage = locked(&path);
    (dir, path, storage)
}

fn locked(path: &Path) -> FileStorage {
    match FileStorage::open_locked(path).unwrap() {
        OpenedFile::Locked(storage) => storage,
        OpenedFile::Busy(_) => panic!("busy"),
    }
}

fn is_busy(path: &Path) -> bool {
    matches!(FileStorage::open_locked(path).unwrap(), OpenedFile::Busy(_))
}

#[test]
fn space_is_reserved_and_given_back() {
    let (_dir, path, storage) = store(&[7; 10]);
    storage.allocate(0, 1 << 20).unwrap();
    assert_eq!(storage.len().unwrap(), 1 << 20);
    let mut expected = vec![0; 1 << 20];
    expected[..10].fill(7);
    assert_eq!(fs::read(&path).unwrap(), expected);
    storage.allocate(0, 0).unwrap();
    storage.punch(0, 0).unwrap();
    storage.punch(5, 1 << 30).unwrap();
    expected[5..].fill(0);
    assert_eq!(fs::read(&path).unwrap(), expected);
    let blocks = fs::metadata(&path).unwrap().blocks();
    assert!(blocks < 64, "{blocks} blocks of 512 bytes are still allocated");
    storage.set_len(3).unwrap();
    storage.set_len(6).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7, 7, 7, 0, 0, 0]);
}

#[test]
fn an_allocation_that_fails_leaves_the_file_as_it_was() {
    let (_dir, path, storage) = store(&[7; 10_000]);
    for (offset, len) in [(0, 1 << 60), (5_000, 1 << 60), (10_000, 1 << 55), (1, u64::MAX)] {
        let error = storage.allocate(offset, len).unwrap_err();
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge);
        assert!(full, "{error:?}");
        assert_eq!(fs::read(&path).unwrap(), [7; 10_000]);
    }
}

#[test]
fn zeros_stand_in_for_space_that_cannot_be_managed() {
    let (_dir, path, storage) = store(&[7; 10]);
    write_zeros(&storage.handle().unwrap().file, 8, 200_000).unwrap();
    write_zeros(&storage.handle().unwrap().file, 300_000, 5).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 200_000);
    assert_eq!(content[..8], [7; 8]);
    assert!(content[8..].iter().all(|byte| *byte == 0));
}

#[test]
fn views_show_what_is_written_and_end_with_the_file() {
    let (_dir, _path, storage) = store(&[7; 10_000]);
    let view = storage.map(5, 9_995).unwrap().unwrap();
    assert_eq!(view[..], [7; 9_995]);
    storage.write_at(5, b"new").unwrap();
    assert_eq!(&view[..4], b"new\x07");
    assert_eq!(storage.map(10_000, 0).unwrap().unwrap().len(), 0);
    let behind = [(9_999, 2), (10_000, 1), (1 << 40, 1), (u64::MAX, 1), (0, usize::MAX)];
    for (offset, len) in behind {
        assert!(storage.map(offset, len).is_err(), "{len} bytes at {offset}");
    }
    storage.write_at(10_000, b"more").unwrap();
    assert_eq!(&storage.map(10_000, 4).unwrap().unwrap()[..], b"more");
    storage.set_len(9_000).unwrap();
    assert!(storage.map(8_999, 2).is_err());
    storage.allocate(9_000, 1_000).unwrap();
    assert_eq!(storage.map(8_999, 2).unwrap().unwrap()[..], [7, 0]);
    assert_eq!(view[8_995..], [0; 1_000]);
}

#[test]
fn views_cross_windows() {
    let window = 256_u64 << 20;
    let (_dir, _path, storage) = store(b"");
    storage.set_len(3 * window).unwrap();
    storage.write_at(window - 3, b"abcdef").unwrap();
    storage.write_at(2 * window + 5, b"third").unwrap();
    assert_eq!(&storage.map(window - 3, 6).unwrap().unwrap()[..], b"abcdef");
    assert_eq!(&storage.map(window - 3, 3).unwrap().unwrap()[..], b"abc");
    assert_eq!(&storage.map(window, 3).unwrap().unwrap()[..], b"def");
    assert_eq!(&storage.map(2 * window + 5, 5).unwrap().unwrap()[..], b"third");
    storage.set_len(1 << 43).unwrap();
    assert!(storage.map(1 << 42, 10).unwrap().is_none(), "windows are bounded");
}

/// Goal: dropping the storage releases the lock even if a copy of the descriptor lives on, as in a
/// child process that is being started.
#[test]
fn a_copied_descriptor_does_not_keep_the_lock() {
    let (_dir, path, storage) = store(b"content");
    let copy = storage.handle().unwrap().file.try_clone().unwrap();
    assert!(is_busy(&path));
    drop(storage);
    assert!(!is_busy(&path));
    drop(copy);
}

#[test]
fn what_takes_the_place_of_the_file_after_it_was_looked_at_is_refused() {
    let (dir, path, _storage) = store(b"content");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for refused in [dir.path(), &link, &socket] {
        let error = open_to_write(refused).map(|_| ()).unwrap_err();
        assert!(matches!(refusal(refused, error), Error::NotRegularFile { .. }));
    }
}

/// Goal: the lock is never held on a file that the path no longer names. Method: the file is
/// replaced, or removed, after it was opened and before it is locked.
#[test]
fn the_locked_file_is_the_one_at_the_path() {
    let (dir, path, storage) = store(b"old");
    drop(storage);
    let open = || open_regular(&path, open_to_write).unwrap();
    let ((first, len), (second, _), (third, _)) = (open(), open(), open());
    let held = FileStorage::lock(&path, first, len).unwrap().unwrap();
    assert!(matches!(held, OpenedFile::Locked(_)));
    let next = dir.path().join("next");
    fs::write(&next, b"new").unwrap();
    fs::rename(&next, &path).unwrap();
    assert!(FileStorage::lock(&path, second, len).unwrap().is_none(), "busy at another file");
    drop(held);
    let third = (third.try_clone().unwrap(), FileStorage::lock(&path, third, len).unwrap());
    assert!(third.1.is_none(), "free, but at another file");
    let mut buf = [0; 3];
    locked(&path).read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"new");
    fs::remove_file(&path).unwrap();
    assert!(FileStorage::lock(&path, third.0, len).unwrap().is_none());
}

/// Goal: growth by writes survives allocations that fail at the same time.
#[test]
fn a_failing_allocation_cuts_no_concurrent_write() {
    use core::sync::atomic::AtomicBool;

    const WRITES: u64 = 20_000;
    let (_dir, _path, storage) = store(b"");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                storage.allocate(0, 1 << 60).unwrap_err();
            }
        });
        for n in 0..WRITES {
            storage.write_at(n * 8, &n.to_le_bytes()).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for n in 0..WRITES {
        let mut found = [0; 8];
        storage.read_at(n * 8, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), n);
    }
}

#[test]
fn stores_are_read_back_and_stay_within_window_and_file() {
    let (_dir, path, storage) = store(&[7; 4096]);
    storage.allocate(0, 64 << 10).unwrap();
    let Some(window) = storage.map_tail(4096, 128 << 10).unwrap() else { return };
    storage.write_at(4096, &[0; 4096]).unwrap();
    let view = storage.map(0, 8192).unwrap().unwrap();
    window.store(16, b"12345678abcdefgh").unwrap();
    assert_eq!(view[4096 + 16..4096 + 32], *b"12345678abcdefgh");
    let mut read = [0; 32];
    storage.read_at(4096, &mut read).unwrap();
    assert_eq!(read, *b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0012345678abcdefgh");
    storage.sync().unwrap();
    let kind = |at, len| window.store(at, &[1; 64][..len]).unwrap_err().kind();
    assert_eq!(kind(0, 7), io::ErrorKind::InvalidInput);
    assert_eq!(kind(4, 8), io::ErrorKind::InvalidInput);
    assert_eq!(kind(128 << 10, 8), io::ErrorKind::InvalidInput);
    assert_eq!(kind(usize::MAX - 7, 16), io::ErrorKind::InvalidInput);
    assert_eq!(kind(60 << 10, 8), io::ErrorKind::UnexpectedEof);
    assert_eq!(kind((60 << 10) - 8, 16), io::ErrorKind::UnexpectedEof);
    storage.allocate(64 << 10, 4096).unwrap();
    storage.write_at(64 << 10, &[0; 4096]).unwrap();
    window.store(60 << 10, &[1; 8]).unwrap();
    drop((storage, view));
    assert!(is_busy(&path), "a window keeps the lock");
    drop(window);
    assert!(!is_busy(&path));
}

#[test]
fn a_call_that_has_the_file_gets_it_again_while_another_thread_waits_to_release_it() {
    let (_dir, _path, storage) = store(b"content");
    let (told, got) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let held = storage.handle().unwrap();
        scope.spawn(|| storage.release());
        while !storage.open.is_locked_exclusive() {
            std::thread::yield_now();
        }
        scope.spawn(|| told.send(storage.len()).unwrap());
        let len = got.recv_timeout(core::time::Duration::from_secs(20));
        drop(held);
        assert_eq!(len.unwrap().unwrap(), 7);
    });
    assert_eq!(storage.len().unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[test]
fn only_kernels_that_are_known_to_are_asked_for_holes() {
    assert!(["5.4.0-150-generic", "6.18.44", "10.0"].into_iter().all(holes::is_fifth_series));
    assert!(
        !["4.19.0", "3.10.0-1160.el7", "", "x.5", "-5.1"].into_iter().any(holes::is_fifth_series)
    );
}

#[test]
fn what_was_written_or_stored_counts_as_data_before_any_sync() {
    let (_dir, _path, storage) = store(&[7; 4096]);
    let (at, len) = (64 << 10, 1 << 20);
    storage.allocate(at, len).unwrap();
    let end_of = |range: u64| storage.data_end(range, len - (range - at)).unwrap();
    let is_told = end_of(at) == at;
    for written in [0, 40_000, 41_000, 300_000, 900_000] {
        storage.write_at(at + written, b"x").unwrap();
        assert!(end_of(at) > at + written, "written at {written}");
        assert!(!is_told || end_of(at) <= at + written + (64 << 10));
    }
    assert!(!is_told || end_of(at + 950_000) == at + 950_000, "none of the range was written");
    storage.sync().unwrap();
    assert!(end_of(at) > at + 900_000);
    let Some(window) = storage.map_tail(at, 1 << 20).unwrap() else { return };
    storage.write_at(at + 1_000_000, &[0; 4096]).unwrap();
    window.store(1_003_000, b"stored..").unwrap();
    assert!(end_of(at) >= at + 1_003_008, "stored through a map");
    assert!(storage.data_end(u64::MAX, 1).is_err());
}

#[test]
fn windows_for_stores_cross_those_of_the_map() {
    let (_dir, _path, storage) = store(&[]);
    let at = (256 << 20) - 4096;
    storage.allocate(at, 8192).unwrap();
    let Some(window) = storage.map_tail(at, 8192).unwrap() else { return };
    storage.write_at(at, &[0; 8192]).unwrap();
    window.store(4088, b"in frontbehind..").unwrap();
    let mut read = [0; 16];
    storage.read_at(at + 4088, &mut read).unwrap();
    assert_eq!(&read, b"in frontbehind..");
    assert!(storage.map_tail(3, 8).unwrap().is_none(), "words are aligned in the file");
}
