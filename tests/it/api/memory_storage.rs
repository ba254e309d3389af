//! A store's file in memory: lengths, gaps, and its limit.

use std::io;

use runlog::storage::{MemoryStorage, Storage};

#[test]
fn writes_grow_the_file_and_gaps_read_as_zero() {
    let storage = MemoryStorage::new();
    storage.write_at(4, b"abcd").unwrap();
    assert_eq!(storage.to_bytes(), b"\0\0\0\0abcd");
    storage.write_at(2, b"xy").unwrap();
    storage.write_at(1_000, b"").unwrap();
    assert_eq!(storage.to_bytes(), b"\0\0xyabcd");
    let mut buf = [0; 3];
    storage.read_at(3, &mut buf).unwrap();
    assert_eq!(&buf, b"yab");
    assert!(storage.map(0, 4).unwrap().is_none());
}

#[test]
fn reads_behind_the_end_fail() {
    let storage = MemoryStorage::from_bytes(vec![1; 10]);
    let mut buf = [0; 4];
    for offset in [7, 10, 11, u64::MAX] {
        let error = storage.read_at(offset, &mut buf).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "at {offset}");
    }
    storage.read_at(10, &mut []).unwrap();
}

#[test]
fn lengths_holes_and_reservations() {
    let storage = MemoryStorage::from_bytes(vec![7; 10]);
    storage.punch(8, 100).unwrap();
    storage.punch(50, u64::MAX).unwrap();
    storage.allocate(6, 6).unwrap();
    assert_eq!(storage.to_bytes(), [7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0]);
    storage.set_len(2).unwrap();
    storage.set_len(3).unwrap();
    assert_eq!(storage.to_bytes(), [7, 7, 0]);
    storage.set_len(0).unwrap();
    assert!(storage.is_empty().unwrap());
}

#[test]
fn over_the_limit_nothing_changes() {
    let storage = MemoryStorage::with_limit(8);
    storage.write_at(0, b"12345678").unwrap();
    let full = io::ErrorKind::StorageFull;
    assert_eq!(storage.write_at(7, b"xx").unwrap_err().kind(), full);
    assert_eq!(storage.allocate(0, 9).unwrap_err().kind(), full);
    assert_eq!(storage.set_len(9).unwrap_err().kind(), full);
    assert!(storage.write_at(u64::MAX, b"x").is_err());
    assert!(storage.set_len(u64::MAX).is_err());
    assert_eq!(storage.to_bytes(), b"12345678");
}
