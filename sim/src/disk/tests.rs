//! The disk: what calls report, what faults do, and that a recording replays what happened.

use std::io::ErrorKind;

use super::*;
use crate::random::SplitMix64;

#[test]
fn reads_see_writes_and_are_counted() {
    let disk = SimDisk::new();
    disk.write_at(3, b"abc").unwrap();
    let mut buf = [9; 4];
    disk.clone().read_at(2, &mut buf).unwrap();
    assert_eq!(&buf, b"\0abc");
    for offset in [3, 6, u64::MAX] {
        assert_eq!(disk.read_at(offset, &mut buf).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    assert_eq!(disk.reads(), 4);
    assert_eq!(disk.take_counts().read_bytes, 16);
    assert_eq!(disk.counts(), Counts::default());
    assert_eq!(disk.len().unwrap(), 6);
    assert_eq!(disk.op_count(), 1);
}

#[test]
fn absurd_ranges_are_refused() {
    let disk = SimDisk::new();
    for offset in [u64::MAX, MAX_LEN] {
        assert_eq!(disk.write_at(offset, b"x").unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(disk.allocate(offset, 1).is_err());
        assert!(disk.punch(offset, 1).is_err());
    }
    assert!(disk.set_len(u64::MAX).is_err());
    assert!(disk.image().is_empty());
}

#[test]
fn faults_hit_the_call_they_are_meant_for() {
    let disk = SimDisk::new();
    disk.fail_op(1, ErrorKind::TimedOut);
    disk.fail_next(OpKind::Sync, ErrorKind::Other);
    disk.fail_next(OpKind::Write, Fault::short(ErrorKind::Interrupted, 2));
    disk.fail_next(OpKind::Read, ErrorKind::BrokenPipe);
    assert_eq!(disk.write_at(0, b"abcd").unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(disk.set_len(9).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(disk.sync().unwrap_err().kind(), ErrorKind::Other);
    assert_eq!(disk.read_at(0, &mut [0]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(disk.image(), b"ab");
    disk.read_at(0, &mut [0]).unwrap();
    disk.set_len(9).unwrap();
    disk.sync().unwrap();

    disk.fail_behind(b"zz", 1, ErrorKind::TimedOut);
    for _ in 0..2 {
        disk.write_at(0, b"zz").unwrap();
        disk.write_at(0, b"zy").unwrap_or_default();
    }
    assert_eq!(&disk.image()[..2], b"zz", "the second call behind such a write failed");
    disk.fail_from(disk.op_count() + 1, ErrorKind::NotConnected);
    disk.write_at(0, b"xy").unwrap();
    for _ in 0..3 {
        assert_eq!(disk.write_at(0, b"zz").unwrap_err().kind(), ErrorKind::NotConnected);
        assert!(disk.punch(0, 1).is_err());
        assert!(disk.allocate(0, 100).is_err());
        assert!(disk.sync().is_err());
    }
    disk.fail_reads_in(4..5, ErrorKind::InvalidData);
    disk.read_at(0, &mut [0; 4]).unwrap();
    disk.read_at(5, &mut [0; 4]).unwrap();
    assert_eq!(disk.read_at(0, &mut [0; 5]).unwrap_err().kind(), ErrorKind::InvalidData);
    disk.clear_faults();
    disk.read_at(0, &mut [0; 5]).unwrap();
    disk.sync().unwrap();
    assert_eq!(disk.image(), b"xy\0\0\0\0\0\0\0");
}

#[test]
fn a_full_disk_refuses_growth_until_space_returns() {
    let disk = SimDisk::new();
    disk.set_capacity(3 * 4096);
    disk.allocate(0, 2 * 4096).unwrap();
    assert_eq!(disk.allocate(4096, 3 * 4096).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.len().unwrap(), 2 * 4096);
    assert_eq!(disk.allocated(), 2 * 4096);
    // A write stores the part that fits.
    let error = disk.write_at(4096, &[7; 3 * 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(disk.len().unwrap(), 3 * 4096);
    disk.write_at(0, &[8; 3 * 4096]).unwrap();
    disk.set_len(10 * 4096).unwrap();
    assert_eq!(disk.write_at(9 * 4096, b"x").unwrap_err().kind(), ErrorKind::StorageFull);
    disk.punch(4096, 4096).unwrap();
    disk.write_at(9 * 4096, b"x").unwrap();
    assert!(disk.allocate(4096, 1).is_err());
    disk.set_len(4096).unwrap();
    assert_eq!(disk.allocated(), 4096);
    disk.allocate(4096, 2 * 4096).unwrap();
}

/// Makes the same random calls on any disk.
fn exercise(disk: &SimDisk, seed: u64) {
    let mut random = SplitMix64::new(seed);
    for step in 0..200_u32 {
        let offset = random.below(20_000);
        let len = 1 + random.below(5_000);
        match random.index(12) {
            0 => disk.set_len(offset).unwrap(),
            1 => disk.allocate(offset, len).unwrap(),
            2 => disk.punch(offset, len).unwrap(),
            3 => disk.sync().unwrap(),
            4 => {
                disk.fail_next(OpKind::Sync, ErrorKind::Other);
                disk.sync().unwrap_err();
            }
            5 => {
                disk.fail_next(OpKind::Write, Fault::short(ErrorKind::Other, random.index(600)));
                disk.write_at(offset, &[0xff; 600]).unwrap_err();
            }
            _ => {
                let mut data = vec![0; usize::try_from(len).unwrap()];
                SplitMix64::for_case(seed, step.into()).fill(&mut data);
                disk.write_at(offset, &data).unwrap();
            }
        }
    }
}

#[test]
fn a_recording_replays_what_happened() {
    for seed in 0..50 {
        let tracked = SimDisk::new();
        let recorded = SimDisk::recording();
        exercise(&tracked, seed);
        exercise(&recorded, seed);
        assert_eq!(tracked.image(), recorded.image());
        assert_eq!(tracked.durable(), recorded.durable());
        let op_count = recorded.op_count();
        let recording = recorded.take_recording();
        assert_eq!(recording.ops.len(), op_count);
        let mut crashes = CrashImages::new(&recording);
        crashes.seek(op_count);
        assert!(!crashes.advance());
        assert_eq!(crashes.killed(0), tracked.image());
        assert_eq!(crashes.durable(), tracked.durable());
        for survivors in Survivors::ALL {
            assert_eq!(crashes.image(survivors, seed), tracked.crash(survivors, seed));
        }
    }
}

#[test]
fn a_boundary_can_be_reached_from_both_sides() {
    let disk = SimDisk::recording_from(vec![5; 1_000]);
    exercise(&disk, 77);
    let recording = disk.take_recording();
    let mut forwards = CrashImages::new(&recording);
    assert_eq!(forwards.image(Survivors::Everything, 0), [5; 1_000]);
    let mut back = CrashImages::new(&recording);
    back.seek(usize::MAX);
    assert_eq!(back.boundary(), recording.ops.len());
    for boundary in [3, 50, 120, 199] {
        forwards.seek(boundary);
        back.seek(boundary);
        assert_eq!(back.boundary(), boundary);
        assert_eq!(
            forwards.image(Survivors::Half, 1),
            back.image(Survivors::Half, 1),
            "at {boundary}"
        );
    }
}

#[test]
fn a_killed_process_leaves_a_part_of_its_last_write() {
    let disk = SimDisk::recording();
    disk.write_at(0, b"first").unwrap();
    disk.write_at(3, b"second").unwrap();
    disk.sync().unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    assert_eq!(crashes.killed(0), b"");
    crashes.seek(1);
    assert_eq!(crashes.killed(0), b"first");
    assert_eq!(crashes.killed(1), b"first"[..3].iter().chain(b"st").copied().collect::<Vec<_>>());
    assert_eq!(crashes.killed(4), b"firseco");
    assert_eq!(crashes.killed(usize::MAX), b"firsecond");
    assert_eq!(crashes.durable(), b"");
    crashes.seek(2);
    assert_eq!(crashes.killed(9), b"firsecond");
}

#[test]
fn the_image_can_be_taken_without_a_copy() {
    let disk = SimDisk::from_image(vec![1; 10]);
    assert_eq!(disk.take_image(), [1; 10]);
    assert!(disk.is_empty().unwrap());
    assert_eq!(disk.allocated(), 0);
    assert_eq!(SimDisk::untracked(vec![2; 3]).durable(), [2; 3]);
}

#[test]
fn stores_are_operations_that_reads_see_and_faults_hit() {
    let disk = SimDisk::recording();
    disk.allocate(0, 8192).unwrap();
    let window = disk.map_tail(4096, 4096).unwrap().unwrap();
    window.store(8, &[1; 16]).unwrap();
    for (at, len) in [(4096, 8), (4, 8), (0, 4)] {
        assert_eq!(window.store(at, &[2; 16][..len]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    disk.fail_next(OpKind::Store, Fault::short(ErrorKind::Other, 12));
    assert!(window.store(24, &[3; 16]).is_err());
    let mut found = [9; 24];
    disk.read_at(4104, &mut found).unwrap();
    assert_eq!((found[..16].to_vec(), found[16..].to_vec()), (vec![1; 16], vec![3; 8]));
    assert_eq!((disk.counts().stores, disk.op_count()), (5, 6));
    let recording = disk.take_recording();
    assert_eq!(recording.ops[1], Op::Store { offset: 4104, data: [1; 16].into() });
    assert_eq!(recording.ops.len(), 6);
}

#[test]
#[should_panic(expected = "no space")]
fn a_store_where_nothing_was_allocated_ends_the_process() {
    let disk = SimDisk::new();
    disk.set_len(8192).unwrap();
    let _ = disk.map_tail(0, 8192).unwrap().unwrap().store(0, &[1; 8]);
}

#[test]
fn a_kill_within_a_store_leaves_any_of_its_words_and_all_of_earlier_stores() {
    let disk = SimDisk::recording();
    disk.allocate(0, 4096).unwrap();
    let window = disk.map_tail(0, 4096).unwrap().unwrap();
    window.store(0, &[1; 16]).unwrap();
    window.store(16, &[2; 16]).unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    crashes.seek(2);
    let mut found = std::collections::BTreeSet::new();
    let mut random = SplitMix64::new(1);
    for _ in 0..100 {
        let mut image = Vec::new();
        let any = crashes.killed_within_into(&mut random, &mut image);
        assert_eq!(image[..16], [1; 16]);
        assert_eq!(any, image[16..32] != [0; 16]);
        found.insert((image[16], image[24]));
    }
    assert_eq!(found, [(0, 0), (0, 2), (2, 0), (2, 2)].into());
}

#[test]
fn one_call_of_a_kind_fails_after_so_many_others() {
    let disk = SimDisk::new();
    disk.fail_nth(OpKind::Write, 1, ErrorKind::Other);
    disk.fail_nth(OpKind::Read, 0, ErrorKind::Interrupted);
    disk.write_at(0, &[1; 8]).unwrap();
    disk.sync().unwrap();
    assert_eq!(disk.write_at(0, &[2; 8]).unwrap_err().kind(), ErrorKind::Other);
    disk.write_at(0, &[3; 8]).unwrap();
    assert_eq!(disk.read_at(0, &mut [0; 8]).unwrap_err().kind(), ErrorKind::Interrupted);
    disk.read_at(0, &mut [0; 8]).unwrap();
}

#[test]
fn power_is_lost_in_place_and_what_a_failed_sync_dropped_with_it() {
    let disk = SimDisk::new();
    disk.write_at(0, &[1; 4096]).unwrap();
    disk.sync().unwrap();
    disk.write_at(0, &[2; 4096]).unwrap();
    disk.fail_next(OpKind::Sync, ErrorKind::Other);
    assert!(disk.sync().is_err());
    // A later successful sync brings back nothing that was dropped.
    disk.sync().unwrap();
    assert_eq!(disk.image(), [2; 4096]);
    let operations = disk.op_count();
    disk.lose_power(Survivors::Everything, 1);
    let image = disk.image();
    assert!(image.contains(&1) && image.chunks(512).all(|sector| sector == [sector[0]; 512]));
    assert_eq!((disk.durable(), disk.op_count()), (image, operations));
    disk.write_at(0, &[3; 4096]).unwrap();
    disk.lose_power(Survivors::Nothing, 1);
    assert!(disk.image().iter().all(|byte| *byte < 3));
}

#[test]
fn a_disk_that_is_filled_by_others_has_what_the_file_gives_back() {
    let disk = SimDisk::new();
    disk.fill_from(2);
    disk.allocate(0, 4096).unwrap();
    disk.allocate(4096, 4096).unwrap();
    assert_eq!(disk.allocate(8192, 4096).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.punch(0, 4096).unwrap();
    disk.allocate(8192, 4096).unwrap();
    assert_eq!(disk.allocate(0, 4096).unwrap_err().kind(), ErrorKind::StorageFull);
}
