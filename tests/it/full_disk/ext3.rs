//! A store on a file system that punches holes but cannot allocate, such as ext3: released space
//! may be missing later, in the middle of an append.
//!
//! The test mounts it from a file where that is allowed; elsewhere it reports that it was skipped.

use runlog::{Error, NewRecord, Options, RunLog};

use crate::support::mounted::Mounted;

fn put(log: &RunLog, prefix: &str, count: usize) -> Vec<Error> {
    let bytes = vec![7; 7000];
    let all = (0..count).map(|number| format!("{prefix}-{number}"));
    all.filter_map(|key| log.docs().put("space", &key, &NewRecord::new(&bytes)).err()).collect()
}

#[test]
fn where_holes_have_no_space_a_full_disk_is_met_in_front_of_an_append() {
    let Some(mounted) = Mounted::new("ext3", 48 << 20) else { return };
    let options = Options::new().extent_size(64 << 10).background(false);
    let path = mounted.at().join("store");
    let log = options.create(&path).unwrap();
    assert!(put(&log, "gone", 1000).is_empty() && put(&log, "kept", 20).is_empty());
    for number in 0..1000 {
        assert!(log.docs().delete("space", &format!("gone-{number}")).unwrap());
    }
    log.reclaim().unwrap();
    assert!(put(&log, "more", 100).is_empty());
    for number in 0..50 {
        assert!(log.docs().delete("space", &format!("more-{number}")).unwrap());
    }
    mounted.fill();
    // More than the free extents within the file have room for.
    let refused = put(&log, "late", 1000);
    assert!(!refused.is_empty());
    for error in &refused {
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }
    assert!(log.docs().delete("space", "kept-0").unwrap());
    log.close().unwrap();
    let log = options.open(&path).unwrap();
    assert!(log.verify().unwrap().is_clean());
    assert!(log.docs().get("space", "kept-0").unwrap().is_none());
    assert!(log.docs().get("space", "kept-19").unwrap().is_some());
}
