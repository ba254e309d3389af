//! The structures of a file as they are: all of them, on whole, living and damaged files.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use runlog::{ContentType, NewRecord, Options, Outcome, RunLog};
use serde_json::Value;

use crate::world::{Ran, World};

/// The size of the extents: small, so that there are several.
const EXTENT: u64 = 64 << 10;
/// The length of what stands in front of them.
const FRONT: usize = 64 << 10;

/// The length of the header of a frame.
fn header_len(fields: &Value) -> u64 {
    let long = ["chunk", "commit", "evict", "seal", "hold", "block", "put"];
    let is_long = fields["kind"].as_str().is_some_and(|kind| long.contains(&kind));
    if is_long || fields["flags"].as_u64().is_some_and(|flags| flags & 4 != 0) { 56 } else { 48 }
}

fn open(world: &World) -> RunLog {
    let options = Options::new().extent_size(EXTENT).background(false);
    options.open(world.store()).expect("a store")
}

/// A store of three runs and several segments, and the orders of the records of the first.
fn world() -> (World, Vec<u64>) {
    let world = World::new();
    let log = open(&world);
    let mut orders = Vec::new();
    for run in ["run-0", "run-1", "run-2"] {
        let writer = log.start_run("planner", run, b"{}").expect("a run");
        for step in 0..60 {
            let payload = format!("step {step} of {run} {}", "x".repeat(900));
            let record =
                NewRecord::new(payload.as_bytes()).kind("step").content_type(ContentType::TEXT);
            let done = writer.append_record(&record).expect("a record");
            if run == "run-0" {
                orders.push(done.lsn.0);
            }
        }
        if run != "run-2" {
            writer.end(&Outcome::failed()).expect("an end");
        }
    }
    log.hold(("planner", "run-1"), "a look").expect("held");
    log.docs().put("space", "key", &NewRecord::new(b"a value")).expect("a document");
    log.close().expect("closed");
    (world, orders)
}

/// The objects of an event.
fn of<'a>(rows: &'a [Value], event: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["event"] == event).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What the manifest says of the segments of the log, or their headers without it.
fn logs(rows: &[Value]) -> Vec<&Value> {
    let log = |row: &'_ Value| {
        let (used, header) = (&row["fields"]["use"], &row["fields"]["header"]);
        used["log"].is_object() || (used.is_null() && header.is_object())
    };
    of(rows, "extent").into_iter().filter(|row| log(row)).collect()
}

/// The segments that have frames.
fn segments(world: &World) -> Vec<u64> {
    let rows = world.run(&["inspect", "--json"]).json();
    let id = |row: &&Value| row["fields"]["header"]["key"]["id"].as_u64();
    logs(&rows).iter().filter_map(id).collect()
}

fn segment(world: &World, id: u64) -> Ran {
    world.run(&["inspect", "--json", "--segment", &id.to_string()])
}

fn harm(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("the store");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}

#[test]
fn the_overview_agrees_with_stat() {
    let (world, _) = world();
    let rows = world.good(&["inspect", "--json"]).json();
    let stat = &world.good(&["stat", "--json"]).json()[0];
    let extents = of(&rows, "extent");
    let count = |name: &str| {
        let uses = extents.iter().map(|row| &row["fields"]["use"]);
        uses.filter(|used| used.get(name).is_some()).count() as u64
    };
    let sealed = |row: &&&Value| row["fields"]["use"]["log"]["sealed"].is_object();
    let sealed = extents.iter().filter(sealed).count() as u64;
    assert_eq!(sealed, number(&stat["sealed_segments"]));
    assert_eq!(count("log"), number(&stat["log_extents"]));
    assert_eq!(count("index"), number(&stat["index_extents"]));
    let free = extents.iter().filter(|row| row["fields"]["use"].is_null()).count() as u64;
    assert_eq!(free, number(&stat["free_extents"]));
    assert!(sealed >= 2 && count("log") > sealed, "{rows:?}");
    for (at, row) in extents.iter().enumerate() {
        assert_eq!(number(&row["offset"]), FRONT as u64 + at as u64 * EXTENT);
    }
    assert_eq!(of(&rows, "superblock").len(), 2);
    assert_eq!(of(&rows, "header")[0]["fields"]["extent_size"]["log2"], EXTENT.ilog2());
    assert_eq!(of(&rows, "owner")[0]["fields"]["pid"], std::process::id());
    assert!(of(&rows, "manifest")[0]["damage"].is_null());
    assert_eq!(of(&rows, "summary")[0]["damaged"], 0);
    let text = world.good(&["inspect"]);
    for part in ["0x00000000  header  ", "0x00001000  superblock", "owner  ", "manifest  "] {
        assert!(text.text().contains(part), "{part}: {}", text.text());
    }
    assert_eq!(text.text().lines().count(), 5 + extents.len());
}

#[test]
fn a_segment_is_shown_from_its_first_byte_to_its_last() {
    let (world, _) = world();
    let (mut records, mut ends) = (0, 0);
    for id in segments(&world) {
        let rows = segment(&world, id).json();
        let start = number(&of(&rows, "extent")[0]["offset"]);
        let mut at = start + 64;
        for row in rows.iter().filter(|row| row["event"] == "frame" || row["event"] == "gap") {
            assert_eq!(number(&row["offset"]), at, "{row}");
            let fields = &row["fields"];
            at += match row["event"].as_str() {
                Some("gap") => number(&fields["bytes"]),
                _ => (header_len(fields) + number(&fields["payload_len"])).next_multiple_of(8),
            };
        }
        assert_eq!(at, start + EXTENT, "segment {id}");
        let frames = of(&rows, "frame");
        assert!(frames.iter().all(|frame| frame["damage"].is_null()));
        let kinds = |kind: &str| {
            let is_it = |frame: &&&Value| frame["fields"]["kind"] == kind;
            frames.iter().filter(is_it).count()
        };
        records += kinds("record") + kinds("put");
        ends += kinds("end");
        let text = world.good(&["inspect", "--segment", &id.to_string()]);
        assert!(text.text().contains(&format!("segment {id}")), "{}", text.text());
        assert!(frames.is_empty() || text.text().contains("run-"), "{}", text.text());
        assert!(!text.text().contains("step 1 of"), "no payload: {}", text.text());
    }
    // The document is one too.
    assert_eq!((records, ends), (3 * 60 + 1, 2));
}

/// The frames of a kind in all segments, with their segments.
fn frames(world: &World, kind: &str) -> Vec<(u64, Value)> {
    let mut found = Vec::new();
    for id in segments(world) {
        let rows = segment(world, id).json();
        let of_kind = |row: &&Value| row["fields"]["kind"] == kind;
        found.extend(of(&rows, "frame").into_iter().filter(of_kind).map(|row| (id, row.clone())));
    }
    found
}

#[test]
fn a_frame_is_found_by_each_place_within_it() {
    let (world, orders) = world();
    let frames = frames(&world, "record");
    for (seq, order) in orders.iter().enumerate().step_by(7) {
        let is_it = |(_, row): &&(u64, Value)| row["fields"]["lsn"] == *order;
        let (id, record) = frames.iter().find(is_it).expect("a record");
        assert_eq!(record["fields"]["seq"], seq);
        assert_eq!(record["fields"]["contents"]["record_kind"], "step");
        assert!(record.get("payload").is_none(), "only if it is asked for");
        let offset = number(&record["fields"]["position"]["offset"]);
        for offset in [offset, offset + 50] {
            let place = format!("{id}:{offset:#x}");
            let by_place = world.good(&["inspect", "--json", &place, "--payload"]).json();
            let text = by_place[0]["payload"].as_str().expect("text").to_owned();
            assert!(text.starts_with(&format!("step {seq} of run-0 x")), "{text}");
            let mut same = by_place[0].clone();
            same.as_object_mut().expect("an object").remove("payload");
            assert_eq!(same, *record);
            let text = world.good(&["inspect", &place]);
            assert!(!text.text().contains("damaged"), "{}", text.text());
            assert!(!text.text().contains("xxxx"), "{}", text.text());
            let text = world.good(&["inspect", &place, "--payload"]);
            assert!(text.text().contains("xxxx"), "{}", text.text());
        }
    }
}

#[test]
fn places_without_a_frame_are_told() {
    let (world, _) = world();
    for (place, why) in [
        ("1:999999", "segment 1 has no offset 0xf423f"),
        ("99:64", "no extent has segment 99"),
        ("1", "no place of a frame"),
    ] {
        let ran = world.run(&["inspect", place]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains(why), "{ran:?}");
    }
    let last = segments(&world).into_iter().max().expect("a segment");
    let ran = world.good(&["inspect", &format!("{last}:{}", EXTENT - 48)]);
    assert!(ran.text().contains("gap") && ran.text().contains("zeros true"), "{ran:?}");
    for args in [&["inspect", "--payload"][..], &["inspect", "1:64", "--segment", "1"]] {
        assert_eq!(world.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn the_place_that_verify_names_is_the_place_of_the_damaged_frame() {
    let (world, _) = world();
    harm(&world.store(), |bytes| {
        let text = b"step 7 of run-1";
        let at = bytes.windows(text.len()).position(|found| found == text).expect("a payload");
        bytes[at] ^= 1;
    });
    let verified = world.run(&["verify"]);
    let said = verified.text().lines().next().expect("a problem");
    let place: Vec<&str> = said.split(' ').skip(3).take(4).collect();
    assert_eq!((place[0], place[2]), ("segment", "offset"), "{said}");
    let ran = world.run(&[&["inspect"][..], &place].concat());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.text().contains("damaged: its checksum is"), "{ran:?}");
    assert!(ran.text().contains("seq 7"), "{ran:?}");
    let ran = segment(&world, place[1].parse().expect("a number"));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let rows = ran.json();
    let damaged = of(&rows, "frame").iter().filter(|frame| !frame["damage"].is_null()).count();
    assert_eq!((damaged, &of(&rows, "summary")[0]["damaged"]), (1, &1.into()));
    assert!(of(&rows, "frame").len() > 20, "the rest is shown");
}

#[test]
fn a_file_without_a_part_of_its_front_is_shown_by_its_segments() {
    let (world, _) = world();
    let before = segments(&world);
    let frames = |world: &World| -> usize {
        before.iter().map(|id| of(&segment(world, *id).json(), "frame").len()).sum()
    };
    let whole = frames(&world);
    let good = fs::read(world.store()).expect("the store");
    // The manifest; the header; both superblocks.
    for gone in [16 << 10..FRONT, 0..4096, 4096..12 << 10] {
        fs::write(world.store(), &good).expect("written");
        harm(&world.store(), |bytes| bytes[gone.clone()].fill(0));
        let ran = world.run(&["inspect", "--json"]);
        assert_eq!(ran.code, Some(3), "{gone:?}: {ran:?}");
        let rows = ran.json();
        assert_ne!(of(&rows, "summary")[0]["damaged"], 0);
        let found = segments(&world);
        assert!(before.iter().all(|id| found.contains(id)), "{gone:?}: {found:?}");
        assert_eq!(frames(&world), whole, "{gone:?}");
        let ran = world.run(&["inspect"]);
        assert!(ran.code == Some(3) && ran.text().contains("damaged: "), "{ran:?}");
    }
    harm(&world.store(), |bytes| bytes[..FRONT].fill(0));
    let ran = world.run(&["inspect"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("is not a run log"), "{ran:?}");
}

/// What a writer moves while it is read is read again, and is no damage.
#[test]
fn a_store_that_is_being_written_is_not_called_damaged() {
    let world = World::new();
    let log = Options::new().extent_size(EXTENT).open(world.store()).expect("a store");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for agent in ["a", "b"] {
            let (log, is_done) = (&log, &is_done);
            scope.spawn(move || {
                for number in 0_u32.. {
                    let run = format!("run-{number}");
                    let writer = log.start_run(agent, &run, ()).expect("a run");
                    for len in 0..20 {
                        writer.append(&vec![b'x'; 37 * len]).expect("a record");
                    }
                    writer.end(&Outcome::completed()).expect("an end");
                    if number % 7 != 0 {
                        log.delete_run((agent, run.as_str())).expect("deleted");
                    }
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut bad = Vec::new();
        for _ in 0..25 {
            let ran = world.run(&["inspect"]);
            if ran.code != Some(0) {
                bad.push(ran);
                continue;
            }
            let last = segments(&world).into_iter().max();
            // It may be gone by now.
            let ran = segment(&world, last.expect("a segment"));
            if !matches!(ran.code, Some(0 | 1)) {
                bad.push(ran);
            }
        }
        // Before anything fails, which waits for the writers.
        is_done.store(true, Ordering::Relaxed);
        assert!(bad.is_empty(), "{bad:?}");
    });
    log.close().expect("closed");
}

#[test]
fn compressed_records_are_shown_after_their_block() {
    let (world, orders) = world();
    world.good(&["compact", "--zstd"]);
    let mut found = Vec::new();
    for (id, block) in frames(&world, "block") {
        let offset = number(&block["fields"]["position"]["offset"]);
        let place = format!("{id}:{offset}");
        let rows = world.good(&["inspect", "--json", &place, "--payload"]).json();
        found.extend(of(&rows, "record").into_iter().cloned());
        assert!(world.good(&["inspect", &place]).text().contains("codec 1"));
    }
    let record = found.iter().find(|row| row["fields"]["lsn"] == orders[30]).expect("the record");
    assert_eq!(
        (&record["fields"]["seq"], &record["fields"]["content"]),
        (&30.into(), &"text".into())
    );
    let payload = record["payload"].as_str().expect("text");
    assert!(payload.starts_with("step 30 of run-0"), "{payload}");
}

#[test]
fn other_files_are_refused_and_no_bytes_end_it_badly() {
    let (world, _) = world();
    let long = vec![7; 200_000];
    for (name, bytes) in [("empty", &b""[..]), ("text", b"no store at all"), ("long", &long)] {
        world.write(name, bytes);
        let ran = world.run(&["inspect", "--store", name]);
        assert!(ran.code == Some(1) && ran.stderr.contains("is not a run log"), "{ran:?}");
    }
    assert_eq!(world.run(&["inspect", "--store", "."]).code, Some(1));
    let good = fs::read(world.store()).expect("the store");
    let mut random = 7_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).expect("31 bits") % below
    };
    for round in 0..40 {
        let mut bytes = good.clone();
        for _ in 0..=next(60) {
            // More often in front, where the structures are.
            let below = if next(2) == 0 { FRONT } else { bytes.len() };
            let at = next(below);
            let len = (1 << next(12)).min(bytes.len() - at);
            let with = u8::try_from(next(256)).expect("a byte");
            bytes[at..at + len].fill(with);
        }
        bytes.truncate(bytes.len() - next(3) * next(FRONT));
        fs::write(world.store(), &bytes).expect("written");
        for args in [
            &["inspect"][..],
            &["inspect", "--json", "--segment", "1"],
            &["inspect", "1:0x1000", "--payload"],
        ] {
            let ran = world.run(args);
            assert!(matches!(ran.code, Some(0 | 1 | 3)), "{round}, {args:?}: {ran:?}");
        }
        assert!(bytes == fs::read(world.store()).expect("the store"), "it wrote");
    }
}
