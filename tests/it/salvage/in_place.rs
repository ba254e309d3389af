//! A salvage that puts the new store in the place of the damaged one: for daemons that must come
//! back by themselves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use runlog::{Durability, Error, Metadata, NewRecord, Options, Reader, salvage_in_place};

fn store(folder: &Path) -> PathBuf {
    let path = folder.join("store");
    let log = Options::new().extent_size(1 << 16).background(false).open(&path).unwrap();
    let run = log.start_run("agent", "run", Metadata::default()).unwrap();
    for number in 0..30_u8 {
        let payload = [number; 4000];
        let record = NewRecord::new(&payload).durability(Durability::Process);
        let _ = run.append_record(&record).unwrap();
    }
    drop(run);
    log.close().unwrap();
    path
}

fn lose_the_front(path: &Path) {
    let mut image = fs::read(path).unwrap();
    image[..64 << 10].fill(0);
    fs::write(path, image).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_damaged_store_is_replaced_and_the_damaged_file_is_kept_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = store(folder.path());
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    for damaged in ["store.damaged", "store.damaged-2"] {
        lose_the_front(&path);
        let before = fs::read(&path).unwrap();
        let replaced = salvage_in_place(&path).unwrap().unwrap();
        assert!(replaced.report.is_complete(), "{replaced:?}");
        assert_eq!(replaced.damaged, folder.path().join(damaged));
        assert!(fs::read(&replaced.damaged).unwrap() == before);
        let log = Options::new().open_existing(&path).unwrap();
        let records = log.trace("run").unwrap().map(|record| record.unwrap().payload()[0]);
        assert!(records.eq(0..30));
        log.close().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }
    assert_eq!(names(folder.path()), ["store", "store.damaged", "store.damaged-2"]);
}

#[test]
fn a_store_that_opens_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = store(folder.path());
    let mut image = fs::read(&path).unwrap();
    // It opens with one superblock too, and with a torn frame at the end of its log.
    for damage in ["none", "a superblock", "a frame"] {
        match damage {
            "none" => {}
            "a superblock" => image[4096..8192].fill(0),
            _ => {
                let last = image.windows(4000).rposition(|part| part == [29; 4000]).unwrap();
                image[last + 3000..last + 4000].fill(0);
            }
        }
        fs::write(&path, &image).unwrap();
        assert_eq!(salvage_in_place(&path).unwrap(), None, "{damage}");
        assert!(fs::read(&path).unwrap() == image, "{damage}");
        assert_eq!(names(folder.path()), ["store"], "{damage}");
    }
}

#[test]
fn a_store_that_is_open_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = store(folder.path());
    let log = Options::new().open_existing(&path).unwrap();
    let refused = salvage_in_place(&path).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    log.close().unwrap();
    let refused = salvage_in_place(folder.path().join("none")).unwrap_err();
    assert!(matches!(refused, Error::NotFound { .. }), "{refused:?}");
    assert_eq!(names(folder.path()), ["store"]);
}

#[test]
fn a_file_that_is_no_store_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("noise");
    fs::write(&path, vec![7; 300_000]).unwrap();
    let refused = salvage_in_place(&path).unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused:?}");
    assert!(fs::read(&path).unwrap() == vec![7; 300_000]);
    assert_eq!(names(folder.path()), ["noise"]);
    assert!(Reader::open(&path).is_err());
}
