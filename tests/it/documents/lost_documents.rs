//! A document of which damage took the record exists: reading it returns an error, and conditions
//! hold for its version. A START that counts says so, since it is in one batch with the record.

use std::sync::Arc;

use runlog::format::frames::frame::{FLAG_DOCUMENT, FRAME_HEADER_LEN};
use runlog::format::{FrameHeader, FrameKind};
use runlog::{
    Error, Expected, NewRecord, Options, Outcome, ReadLog, ReaderOptions, RunLog, Version,
};
use runlog_sim::SimDisk;

use crate::support::frames::{EXTENT, frames_in};

fn options(index: bool) -> Options {
    Options::new().extent_size(EXTENT as u64).background(false).index(index)
}

fn on(image: &[u8]) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image.to_vec()))
}

/// Where the log was when the record was lost, and since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Tail,
    /// A writer lost it in the tail, and has sealed that.
    Sealed,
    /// The directory of a sealed segment is damaged too, and was rebuilt.
    Rebuilt,
}

/// Fills the last segment.
pub(crate) fn seal(log: &RunLog) {
    let sealed = log.stats().unwrap().sealed_segments;
    let run = log.start_run("filler", &format!("{:?}", log.stats().unwrap().end), ()).unwrap();
    while log.stats().unwrap().sealed_segments == sealed {
        let _ = run.append(&[0; 4000]).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
    log.checkpoint().unwrap();
}

/// Flips a bit in the header of the last record of a document.
fn harm(image: &mut [u8]) {
    let segments = (0..).map(|number| frames_in(image, number)).take_while(|all| !all.is_empty());
    let is_record =
        |frame: &FrameHeader| frame.kind == FrameKind::Record && frame.flags & FLAG_DOCUMENT != 0;
    let records = segments.flatten().filter(|(_, frame)| is_record(frame));
    let start = records.map(|(at, _)| at.start).last().unwrap();
    image[start + 20] ^= 1;
}

/// A closed store with documents, the second of them put `puts` times; its record is lost. Also its
/// version.
fn store(place: Place, index: bool, len: usize, puts: usize) -> (Vec<u8>, Version) {
    let disk = on(&[]);
    let log = options(index).create_storage(disk.clone()).unwrap();
    let whole = log.docs().put("space", "a", &NewRecord::new(b"whole")).unwrap();
    let mut expected = Expected::Absent;
    for _ in 0..puts {
        let value = vec![7; len];
        let put = log.docs().put_if("space", "key", &NewRecord::new(&value), expected);
        expected = Expected::Version(put.unwrap());
    }
    let Expected::Version(version) = expected else { panic!("it was put") };
    assert!(version > whole);
    if place == Place::Rebuilt {
        seal(&log);
    }
    log.close().unwrap();
    let mut image = disk.image();
    harm(&mut image);
    if place == Place::Sealed {
        let disk = on(&image);
        let log = options(index).open_storage(disk.clone()).unwrap();
        seal(&log);
        log.close().unwrap();
        image = disk.image();
    }
    (image, version)
}

/// What reads say of a document that has lost its record.
fn check(log: &impl ReadLog, version: Version, what: &str) {
    let found = log.document("space", "key");
    assert!(matches!(&found, Err(Error::Corrupt(_))), "{what}: {found:?}");
    let Err(Error::Corrupt(found)) = found else { return };
    assert_eq!(found.run.as_ref().map(|key| key.as_str()), Some("key"), "{what}: {found}");
    let page = log.list_documents("space", "", None, 9).unwrap();
    let listed: Vec<_> = page.documents.iter().map(|one| (one.key.as_str(), one.version)).collect();
    assert_eq!(listed.len(), 2, "{what}: {listed:?}");
    assert_eq!(listed[1], ("key", version), "{what}");
    assert_eq!(log.document("space", "a").unwrap().unwrap().payload(), b"whole", "{what}");
}

fn cases() -> impl Iterator<Item = (Vec<u8>, Version, bool, String)> {
    let places = [Place::Tail, Place::Sealed];
    let lens = [(5, 1), (5, 3), (40_000, 1)];
    let all = places.into_iter().flat_map(move |place| lens.map(|(len, puts)| (place, len, puts)));
    all.flat_map(|(place, len, puts)| [false, true].map(|index| (place, len, puts, index))).map(
        |(place, len, puts, index)| {
            let (image, version) = store(place, index, len, puts);
            (image, version, index, format!("{place:?}, index {index}, {len} bytes, {puts} puts"))
        },
    )
}

#[test]
fn a_document_without_its_record_is_damaged_and_not_absent() {
    for (image, version, index, what) in cases() {
        let reader = ReaderOptions::new().open_storage(on(&image)).unwrap();
        check(&reader, version, &what);
        let disk = on(&image);
        for opening in 0..3 {
            let log = options(index).open_storage(disk.clone()).unwrap();
            let what = format!("{what}, opening {opening}");
            check(&log, version, &what);
            assert_eq!(log.docs().version_of("space", "key").unwrap(), Some(version), "{what}");
            let new = NewRecord::new(b"new");
            let put = log.docs().put_if("space", "key", &new, Expected::Absent);
            let is_refused = matches!(&put, Err(Error::Conflict { found, .. })
                if *found == Some(version));
            assert!(is_refused, "{what}: {put:?}");
            if opening == 1 {
                seal(&log);
                check(&log, version, &what);
            }
            log.close().unwrap();
        }
    }
}

#[test]
fn a_document_without_its_record_is_replaced_and_deleted_like_any_other() {
    for (image, version, index, what) in cases() {
        let open = |disk: &Arc<SimDisk>| options(index).open_storage(disk.clone()).unwrap();
        let new = NewRecord::new(b"new");
        for expected in [Expected::Version(version), Expected::Anything] {
            let disk = on(&image);
            let log = open(&disk);
            let put = log.docs().put_if("space", "key", &new, expected).unwrap();
            assert!(put > version, "{what}");
            log.close().unwrap();
            let log = open(&disk);
            let found = log.docs().get("space", "key").unwrap().unwrap();
            assert_eq!((found.payload(), found.version()), (&b"new"[..], put), "{what}");
        }
        let disk = on(&image);
        let log = open(&disk);
        assert!(log.docs().delete("space", "key").unwrap(), "{what}");
        for _ in 0..2 {
            assert!(log.docs().get("space", "key").unwrap().is_none(), "{what}");
            assert!(!log.docs().delete("space", "key").unwrap(), "{what}");
            assert_eq!(log.docs().list("space", "", None, 9).unwrap().documents.len(), 1, "{what}");
        }
        log.close().unwrap();
        let log = open(&disk);
        assert_eq!(log.docs().version_of("space", "key").unwrap(), None, "{what}");
        let _ = log.docs().put_if("space", "key", &new, Expected::Absent).unwrap();
    }
}

/// Its segment was sealed whole, and has lost its directory too.
#[test]
fn a_document_that_a_rebuilt_directory_lists_without_its_record_is_damaged() {
    for index in [false, true] {
        let (mut image, version) = store(Place::Rebuilt, index, 5, 1);
        let clean = options(index).open_storage(on(&image)).unwrap();
        check(&clean, version, &format!("a whole directory, index {index}"));
        drop(clean);
        let directory = image.windows(8).position(|part| part == b"RLOGDIR1").unwrap();
        image[directory + 9] ^= 1;
        let log = options(index).open_storage(on(&image)).unwrap();
        check(&log, version, &format!("a rebuilt directory, index {index}"));
        let reader = ReaderOptions::new().open_storage(on(&image)).unwrap();
        check(&reader, version, &format!("a rebuilt directory, index {index}, a reader"));
    }
}

/// What a crash leaves of a long document is no document: it has neither a START nor a record.
#[test]
fn chunks_alone_are_no_document() {
    let disk = on(&[]);
    let log = options(false).create_storage(disk.clone()).unwrap();
    let _ = log.docs().put("space", "key", &NewRecord::new(&[7; 40_000])).unwrap();
    log.sync().unwrap();
    let mut image = disk.image();
    drop(log);
    let frames = frames_in(&image, 0);
    let at = frames.iter().position(|(_, frame)| frame.kind == FrameKind::Start).unwrap();
    let (from, to) = (frames[at].0.start, frames.last().unwrap().0.end);
    assert!(frames[..at].iter().any(|(_, frame)| frame.kind == FrameKind::Chunk));
    assert!(to - from > 2 * FRAME_HEADER_LEN);
    image[from..to].fill(0);
    let log = options(false).open_storage(on(&image)).unwrap();
    assert!(log.docs().get("space", "key").unwrap().is_none());
    assert_eq!(log.docs().version_of("space", "key").unwrap(), None);
    let _ = log.docs().put_if("space", "key", &NewRecord::new(b"new"), Expected::Absent).unwrap();
}
