//! Damaged stores: found, told, confined, and exit code 3.

use std::fs;

use runlog::{Corruption, Damage, Options};
use serde_json::from_value;

use crate::world::World;

/// A store of one run of five records; one bit of the third is flipped.
fn damaged_world() -> World {
    let world = World::new();
    let lines =
        (0..5).map(|n| format!("\"the text of record {n}\"\n")).collect::<Vec<_>>().concat();
    world.write("a/r.jsonl", lines);
    world.write("a/other.jsonl", "\"another run\"\n");
    world.good(&["import", "--create", "a"]);
    let mut bytes = fs::read(world.store()).expect("the store");
    let text = b"the text of record 2";
    let at: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    let [at] = at[..] else { panic!("the record is in the file once, not at {at:?}") };
    bytes[at] ^= 1;
    fs::write(world.store(), bytes).expect("the store");
    world
}

#[test]
fn verify_names_the_run_and_the_record() {
    let world = damaged_world();
    let ran = world.run(&["verify"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.text().contains("(agent \"a\", run \"r\", record 2)"), "{}", ran.text());
    assert!(ran.text().contains("1 problem"), "{}", ran.text());
    let events = world.run(&["verify", "--json"]).json();
    assert_eq!(events.len(), 2);
    assert_eq!((&events[0]["event"], &events[0]["run"]), (&"problem".into(), &"r".into()));
    assert_eq!((&events[0]["agent"], &events[0]["seq"]), (&"a".into(), &2.into()));
    let problem: Corruption = from_value(events[0].clone()).expect("the library reads it");
    assert_eq!(events[0]["message"], problem.to_string());
    assert!(matches!(problem.damage, Damage::Checksum { .. }), "{problem}");
    assert_eq!((&events[1]["event"], &events[1]["problems"]), (&"summary".into(), &1.into()));
}

#[test]
fn show_gives_every_other_record() {
    let world = damaged_world();
    let ran = world.run(&["show", "r", "--raw"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let texts = [0, 1, 3, 4]
        .map(|n| format!("\"the text of record {n}\"\n"))
        .into_iter()
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(ran.text(), texts);
    assert!(ran.stderr.contains("record 2"), "{}", ran.stderr);
    assert_eq!(world.good(&["show", "other", "--raw"]).text(), "\"another run\"\n");
}

#[test]
fn a_damaged_record_is_one_of_the_last() {
    let world = damaged_world();
    for (last, code, texts) in [(2, 0, &[3, 4][..]), (3, 3, &[3, 4]), (4, 3, &[1, 3, 4])] {
        let ran = world.run(&["show", "r", "--raw", "--last", &last.to_string()]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let texts = texts.iter().map(|n| format!("\"the text of record {n}\"\n"));
        assert_eq!(ran.text(), texts.collect::<Vec<_>>().concat(), "{last}");
    }
}

#[test]
fn a_clean_store_has_no_problems() {
    let world = World::new();
    world.write("a/r.jsonl", "1\n2\n");
    world.good(&["import", "--create", "a"]);
    let ran = world.good(&["verify"]);
    assert!(ran.text().contains("2 records of 1 run"), "{}", ran.text());
    assert!(ran.text().ends_with("no problems\n"), "{}", ran.text());
    let events = world.good(&["verify", "--json"]).json();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["problems"], 0);
}

/// The directory of a full segment, and all of its frames: which runs it had is not known.
#[test]
fn ls_says_which_directory_is_damaged() {
    let world = World::new();
    let log = Options::new().extent_size(64 << 10).create(world.store()).expect("a store");
    for run in 0..9 {
        let writer = log.start_run("a", &format!("run-{run}"), ()).expect("a run");
        writer.append(&vec![b'.'; 20_000]).expect("a record");
        writer.append(&[b'.'; 5_000]).expect("a record");
    }
    log.close().expect("closed");
    let clean = world.good(&["ls", "--all", "--json"]).json();
    assert_eq!(clean.len(), 9);
    let mut bytes = fs::read(world.store()).expect("the store");
    let first = bytes.windows(5).position(|part| part == b"run-1").expect("it is there");
    // The extent of it.
    let start = first / (64 << 10) * (64 << 10);
    bytes[start + 64..start + (64 << 10)].fill(0x55);
    fs::write(world.store(), bytes).expect("the store");
    let ran = world.run(&["ls", "--all", "--json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.json().len() < 9, "{ran:?}");
    assert!(ran.stderr.contains("directory"), "{}", ran.stderr);
    let ran = world.run(&["ls"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(3), 1), "{ran:?}");
}

/// The directory of a full segment does not list a record of a run, so that no number is known of a
/// record whose header is damaged there.
#[test]
fn damage_without_a_number_is_one_of_the_last() {
    let world = World::new();
    let options = Options::new().extent_size(64 << 10).background(false).index(false);
    let log = options.create(world.store()).expect("a store");
    let run = log.start_run("a", "r", ()).expect("a run");
    let text = |number: usize| format!("the text of record {number:02} ").repeat(20);
    (0..6).for_each(|number| drop(run.append(text(number).as_bytes()).expect("a record")));
    log.sync().expect("synced");
    let bytes = fs::read(world.store()).expect("the store");
    drop((run, log));
    // The headers are 48 bytes long, in front of the payloads.
    let harm = |bytes: &mut [u8], number: usize| {
        let text = text(number);
        let at = bytes.windows(text.len()).position(|part| part == text.as_bytes());
        bytes[at.expect("it is there") - 48 + 20] ^= 1;
    };
    fs::write(world.store(), bytes).expect("the store");
    let log = options.open(world.store()).expect("it opens");
    let run = log.writer("r").expect("it is there");
    (6..9).for_each(|number| drop(run.append(text(number).as_bytes()).expect("a record")));
    let filler = log.start_run("a", "filler", ()).expect("a run");
    while log.stats().expect("stats").sealed_segments == 0 {
        let _ = filler.append(&[b'.'; 9000]).expect("a record");
    }
    log.close().expect("closed");
    let mut bytes = fs::read(world.store()).expect("the store");
    harm(&mut bytes, 7);
    harm(&mut bytes, 8);
    fs::write(world.store(), bytes).expect("the store");
    for (last, texts, told) in [(1, 9..9, 1), (2, 9..9, 2), (3, 6..7, 2), (4, 5..7, 2)] {
        let last = last.to_string();
        for args in [["show", "r", "--raw", "--last", &last], ["tail", "r", "--raw", "-n", &last]] {
            let ran = world.run(&args);
            assert_eq!(ran.code, Some(3), "{args:?}: {ran:?}");
            let texts = texts.clone().map(|number| format!("{}\n", text(number)));
            assert_eq!(ran.text(), texts.collect::<String>(), "{args:?}: {ran:?}");
            assert_eq!(ran.stderr.matches("damage").count(), told, "{args:?}: {ran:?}");
        }
    }
}
