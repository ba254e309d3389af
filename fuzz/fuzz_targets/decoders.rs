//! Any bytes for each decoder, unchanged and with a corrected checksum. A decoded value that is
//! encoded and decoded again is the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runlog::format::frames::eviction::{decode_evictions, evicted_runs};
use runlog::format::frames::frame::{FrameCheck, FrameHeader, LONG_HEADER_LEN, SegmentKey};
use runlog::format::frames::{block, frame, ids};
use runlog::format::layout::ExtentSize;
use runlog::format::map::header::StaticHeader;
use runlog::format::map::manifest::{AREA_HEADER_LEN, AreaHeader, Change, RECORD_LEN, RecordKey};
use runlog::format::map::superblock::Superblock;
use runlog::format::map::{manifest, owner};
use runlog::format::segments::directory::{DirectoryKey, IdHash};
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{Directory, FrameKind};
use runlog::{RunNo, Timestamp};
use runlog_fuzz::checks::{repair, repair_change, repair_directory, repair_frame, repair_ids};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let (repaired, mut bytes) = (choice & 1 != 0, rest.to_vec());
    let mut checked = |len: usize| {
        if repaired {
            repair(&mut bytes, 0, len);
        }
        bytes.clone()
    };
    match choice >> 1 {
        0 => {
            if let Ok(header) = StaticHeader::decode(&checked(80)) {
                assert_eq!(StaticHeader::decode(&header.encode()), Ok(header));
            }
        }
        1 => {
            if let Ok(block) = Superblock::decode(&checked(152)) {
                assert_eq!(Superblock::decode(&block.encode()), Ok(block));
            }
        }
        2 => {
            if let Ok(who) = owner::decode(&checked(280)) {
                assert_eq!(owner::decode(&owner::encode(&who)), Ok(who));
            }
        }
        3 => {
            if let Ok(header) = AreaHeader::decode(&checked(AREA_HEADER_LEN - 4)) {
                assert_eq!(AreaHeader::decode(&header.encode()), Ok(header));
            }
        }
        4 => {
            if let Ok(header) = SegmentHeader::decode(&checked(60)) {
                assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            }
        }
        5 => change(bytes, repaired),
        6 => area(bytes, repaired),
        7 => frame_header(bytes, repaired),
        8 => payloads(&bytes),
        9 => decode_all_ids(bytes, repaired),
        _ => read_directory(bytes, repaired),
    }
});

fn change(mut bytes: Vec<u8>, repaired: bool) {
    let key = RecordKey { generation: 3, index: 5 };
    if let (true, Some(record)) = (repaired, bytes.get_mut(..RECORD_LEN)) {
        repair_change(record, key.generation, key.index);
    }
    if let Ok(record) = Change::decode(&bytes, key)
        && (record.place, record.last) == (0, true)
    {
        let again = manifest::encode_batch(&[record.change], key);
        assert_eq!(Change::decode(&again, key), Ok(record));
    }
}

fn area(mut bytes: Vec<u8>, repaired: bool) {
    if repaired && bytes.len() >= AREA_HEADER_LEN {
        // The identity and the generation that the code below expects.
        bytes[8..24].fill(0);
        bytes[24..32].copy_from_slice(&1_u64.to_le_bytes());
        repair(&mut bytes, 0, AREA_HEADER_LEN - 4);
        let records = bytes[AREA_HEADER_LEN..].chunks_exact_mut(RECORD_LEN);
        for (index, record) in (0..).zip(records) {
            repair_change(record, 1, index);
        }
    }
    if let Ok(area) = manifest::read_area(&bytes, [0; 16], 1) {
        let _ = area.extents.index_map(ExtentSize::MIN);
        let mut again = manifest::Extents::default();
        for change in area.extents.snapshot() {
            again.apply(change).expect("a snapshot can be applied");
        }
        assert_eq!(again, area.extents);
    }
}

fn frame_header(mut bytes: Vec<u8>, repaired: bool) {
    let (key, offset) = (SegmentKey { id: runlog::SegmentId(5), salt: 11 }, 640);
    if repaired && bytes.len() >= LONG_HEADER_LEN {
        repair_frame(&mut bytes, key.salt, offset);
    }
    if let Ok(header) = FrameHeader::decode(&bytes, key, offset) {
        assert!(frame::may_be_header(&bytes));
        let again = FrameHeader::decode(&header.encode(key.salt), key, offset);
        assert_eq!(again, Ok(header));
        let _ = header.frame_len();
        let _ = header.check_payload(&FrameCheck::new(key), &bytes[header.header_len()..]);
    }
}

fn payloads(bytes: &[u8]) {
    if let Ok(chunks) = frame::Chunks::decode(bytes) {
        assert_eq!(chunks.encode(), bytes);
    }
    let numbers = evicted_runs(bytes);
    if let Ok(evictions) = decode_evictions(bytes) {
        let listed = evictions.iter().map(|found| (found.run_no, found.receipt.is_some()));
        assert_eq!(numbers, Ok(listed.collect()));
        let mut again = Vec::new();
        evictions.iter().for_each(|eviction| eviction.encode(&mut again));
        assert_eq!(again, bytes);
    }
    let mut out = Vec::new();
    if block::unpack_chunk(bytes, 1 << 20, &mut out).is_err() {
        assert!(out.len() <= 1 << 20);
    }
    block_payload(bytes);
}

fn decode_all_ids(bytes: Vec<u8>, repaired: bool) {
    for kind in [FrameKind::Start, FrameKind::Put] {
        let (mut bytes, mut again) = (bytes.clone(), Vec::new());
        if repaired {
            repair_ids(kind as u8, &mut bytes);
        }
        assert_eq!(
            ids::names_in(kind, &bytes).is_some(),
            match kind {
                FrameKind::Put => ids::decode_put(&bytes).is_ok(),
                _ => ids::decode_ids(&bytes).is_ok(),
            }
        );
        let rest = match kind {
            FrameKind::Put => ids::decode_put(&bytes).map(|(space, key, replaced, rest)| {
                ids::encode_put(&space, &key, replaced.unwrap_or_default(), &mut again);
                rest
            }),
            _ => ids::decode_ids(&bytes).map(|(agent, run, rest)| {
                ids::encode_ids(&agent, &run, &mut again);
                rest
            }),
        };
        if let Ok(rest) = rest {
            again.extend_from_slice(rest);
            assert_eq!(again, bytes);
            let _ = ids::without_replaced(&bytes);
        }
    }
}

fn block_payload(bytes: &[u8]) {
    let Some((front, payload)) = bytes.split_first_chunk::<2>() else { return };
    let mut header = FrameHeader::new(FrameKind::Block, RunNo(1), Timestamp(5));
    header.extra = u32::from(u16::from_le_bytes(*front));
    let mut payload = payload.to_vec();
    let is_sliced = payload.get(1) == Some(&1);
    let len = if is_sliced { block::SLICED_HEAD_LEN } else { block::BLOCK_HEAD_LEN };
    if payload.len() >= len {
        let crc = crc32fast::hash(&payload[..len - 4]);
        payload[len - 4..len].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok((head, compressed)) = block::BlockHead::decode(&header, &payload) else { return };
    let (mut raw, mut rows) = (Vec::new(), Vec::new());
    if head.open(&header, compressed, &mut raw, &mut rows).is_ok() {
        assert_eq!(rows.len(), header.extra as usize);
        for row in &rows {
            let _ = row.bytes(&raw);
            let mut made = 0;
            if row.recipe.is_some() {
                row.each_range(&raw, |range| made += range.end - range.start).unwrap();
                assert_eq!(made, row.len);
            }
        }
    }
}

fn read_directory(mut bytes: Vec<u8>, repaired: bool) {
    let key = DirectoryKey { salt: 7, end: 64, ids: IdHash::default() };
    if repaired {
        repair_directory(&mut bytes, key.salt, key.end);
    }
    let Ok(view) = Directory::new(&bytes, &key) else { return };
    for slot in 0..view.run_count().min(64) {
        let _ = (view.run(slot), view.run_no(slot), view.parts(slot).map(Iterator::count));
        let _ = (view.listed_offset(slot, 0), view.listed_offset(slot, u32::MAX));
        if let Ok((run, agent)) = view.ids(slot) {
            let _ = (view.find_run(run), view.find_document(agent, run));
        }
        if let Ok(run_no) = view.run_no(slot) {
            let _ = view.find_no(run_no);
        }
    }
    let _ = (view.find_no(RunNo(u64::MAX)), view.find_run("run"), view.run(u32::MAX));
    let _ = view.pieces().count();
    for index in 0..view.eviction_count().min(64) {
        let _ = view.eviction(index);
    }
    let _ = (view.first_lsn(), view.last_lsn(), view.next_run_no());
    let _ = view.check();
}
