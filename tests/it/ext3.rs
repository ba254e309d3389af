//! A store on a file system that punches holes and cannot allocate, such as ext3: what was given
//! back there can be gone when it is needed again, in the middle of an append.
//!
//! It is mounted from a file where that is allowed; elsewhere the test says that it was passed
//! over.

use runlog::{Error, NewRecord, Options, RunLog};

use super::support::mounted::Mounted;

fn put(log: &RunLog, prefix: &str, count: usize) -> Vec<Error> {
    let bytes = vec![7; 7000];
    let all = (0..count).map(|number| format!("{prefix}-{number}"));
    all.filter_map(|key| log.put("space", &key, &NewRecord::new(&bytes)).err()).collect()
}

#[test]
fn where_holes_have_no_space_a_full_disk_is_met_in_front_of_an_append() {
    let Some(mounted) = Mounted::new("ext3", 48 << 20) else { return };
    let options = Options::new().extent_size(64 << 10).background(false);
    let path = mounted.at().join("store");
    let log = options.create(&path).unwrap();
    assert!(put(&log, "gone", 1000).is_empty() && put(&log, "kept", 20).is_empty());
    for number in 0..1000 {
        assert!(log.delete("space", &format!("gone-{number}")).unwrap());
    }
    log.reclaim().unwrap();
    assert!(put(&log, "more", 100).is_empty());
    for number in 0..50 {
        assert!(log.delete("space", &format!("more-{number}")).unwrap());
    }
    mounted.fill();
    let refused = put(&log, "late", 200);
    assert!(!refused.is_empty());
    for error in &refused {
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }
    assert!(log.delete("space", "kept-0").unwrap());
    log.close().unwrap();
    let log = options.open(&path).unwrap();
    assert!(log.verify().unwrap().is_clean());
    assert!(log.get("space", "kept-0").unwrap().is_none());
    assert!(log.get("space", "kept-19").unwrap().is_some());
}
