//! Sealed segments of which the manifest does not say how far the numbers of their runs go.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use runlog::env::{BootId, Environment};
use runlog::format::map::manifest::{Change, SealedAt};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::{Durability, Error, ExtentNo, Metadata, Options, RunNo, RunQuery};
use runlog_sim::SimDisk;

use crate::recovery::trust::add_changes;
use crate::support::background::Background;

const EXTENT: usize = 64 << 10;

fn options() -> Options {
    let environment = Environment::system().boot_id(Some(BootId([1; 16])));
    Options::new()
        .extent_size(EXTENT as u64)
        .index(false)
        .environment(environment)
        // Nothing runs in the background, so the manifest is not told of full segments.
        .scheduler(Arc::new(Background::default()))
}

/// Tells the manifest of the seal in an extent; where the SEAL frame is.
fn tell(image: &mut [u8], extent: u32, next_run_no: RunNo) -> Range<u64> {
    let start = EXTENTS_AT as usize + extent as usize * EXTENT;
    let key = SegmentHeader::decode(&image[start..]).unwrap().key;
    let mut at = SEGMENT_HEADER_LEN;
    loop {
        let frame = FrameHeader::decode(&image[start + at as usize..], key, at).unwrap();
        let len = u32::try_from(frame.frame_len()).unwrap();
        if frame.kind != FrameKind::Seal {
            at += len;
            continue;
        }
        let (end, digest, has_evictions) = (frame.extra, frame.payload_crc, false);
        let sealed = SealedAt { end, seal: at, digest, has_evictions, next_run_no };
        let (extent, segment) = (ExtentNo(extent), key.id);
        add_changes(image, &[Change::Seal { extent, segment, at: sealed }]);
        let begin = start as u64 + u64::from(at);
        return begin..begin + u64::from(len);
    }
}

#[test]
fn an_opening_that_cannot_read_which_numbers_were_given_fails_and_writes_nothing() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let first = log.stats().unwrap().end.segment;
    // No run goes on in another segment, so opening asks no directory for one.
    let about = Metadata::new(&[b'm'; 3000]).durability(Durability::Process);
    let mut started = 0;
    while log.stats().unwrap().end.segment.0 < first.0 + 2 {
        let _ = log.start_run("agent", &format!("run-{started}"), about).unwrap();
        started += 1;
    }
    let mut image = disk.image();
    drop(log);
    let seal = tell(&mut image, 0, RunNo(0));
    // Opening reads the directory of the last one anyway.
    let _ = tell(&mut image, 1, RunNo(1 << 20));

    let disk = SimDisk::untracked(image.clone());
    disk.fail_reads_in(seal, ErrorKind::Other);
    let failed = options().open_storage(Arc::new(disk.clone()));
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert!(disk.image() == image, "an opening that fails writes nothing");
    disk.clear_faults();
    let log = options().open_storage(Arc::new(disk)).unwrap();
    assert_eq!(log.runs(&RunQuery::new()).map(Result::unwrap).count(), started);
}
