//! Holes: what a recorder dropped is told in its place, and what it shared is told apart from that.

use std::collections::BTreeMap;

use runlog_sim::SplitMix64;

use super::*;

#[test]
fn records_that_were_dropped_are_holes_in_their_place() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let records = recorder.whole(9);
    for record in records.iter().filter(|record| ![0, 3, 4, 5, 8].contains(&record.seq)) {
        store.log.record(record).unwrap();
    }
    store.always(|log| {
        assert_eq!(told(log, "run"), "lost0..1 1 2 lost3..6 6 7 lost8..9 9 10");
    });
}

#[test]
fn a_recorder_that_is_shared_leaves_no_holes() {
    let store = Store::new();
    let mother = RunIdentity::root("mother");
    let (child, grandchild) = (mother.child("child"), mother.child("child").child("grandchild"));
    let sister = mother.child("sister");
    let turns =
        [&mother, &mother, &child, &child, &grandchild, &child, &sister, &grandchild, &mother];
    for (seq, run) in (0..).zip(turns) {
        let record = TrajectoryRecord::new(run, seq, NOON, TrajectoryPayload::TurnStarted);
        store.log.record(&record).unwrap();
    }
    store.always(|log| {
        assert_eq!(told(log, "mother"), "0 1 elsewhere2..8 8");
        assert_eq!(told(log, "child"), "elsewhere0..2 2 3 elsewhere4..5 5");
        assert_eq!(told(log, "grandchild"), "elsewhere0..4 4 elsewhere5..7 7");
        assert_eq!(told(log, "sister"), "elsewhere0..6 6");
    });
}

#[test]
fn a_shared_recorder_that_dropped_a_record_has_a_hole_in_each_run_around_it() {
    let store = Store::new();
    let mother = RunIdentity::root("mother");
    let child = mother.child("child");
    for (seq, run) in [(0, &mother), (1, &child), (3, &child), (4, &mother), (5, &child)] {
        let record = TrajectoryRecord::new(run, seq, NOON, TrajectoryPayload::TurnStarted);
        store.log.record(&record).unwrap();
    }
    store.always(|log| {
        assert_eq!(told(log, "mother"), "0 lost1..4 4");
        assert_eq!(told(log, "child"), "elsewhere0..1 1 lost2..3 3 elsewhere4..5 5");
    });
}

#[test]
fn a_shared_recorder_that_is_set_back_by_a_child_is_told() {
    let store = Store::new();
    let mother = RunIdentity::root("mother");
    let child = mother.child("child");
    let turns = [(0, &mother), (1, &mother), (0, &child), (1, &child), (2, &child), (3, &mother)];
    for (seq, run) in turns {
        let payload = match seq {
            0 => TrajectoryPayload::RunStarted { identity: run.clone() },
            _ => TrajectoryPayload::TurnStarted,
        };
        store.log.record(&TrajectoryRecord::new(run, seq, NOON, payload)).unwrap();
    }
    let back = TrajectoryRecord::new(&mother, 1, NOON, TrajectoryPayload::TurnStarted);
    store.log.record(&back).unwrap();
    store.always(|log| {
        assert_eq!(told(log, "mother"), "0 1 elsewhere2..3 3 back 1");
        assert_eq!(told(log, "child"), "0 1 2");
    });
}

#[test]
fn a_child_that_counts_for_itself_does_not_hide_a_hole_of_its_parent() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    let mut child = mother.child("child");
    record_all(&store.log, &[mother.started(), mother.turn(), child.started()]);
    record_all(&store.log, &[child.turn(), child.turn(), child.turn()]);
    let _dropped = mother.turn();
    store.log.record(&mother.turn()).unwrap();
    store.always(|log| {
        assert_eq!(told(log, "mother"), "0 1 lost2..3 3", "the child has a 2 there, by chance");
        assert_eq!(told(log, "child"), "0 1 2 3");
    });
}

#[test]
fn a_child_that_has_the_missing_number_at_the_right_moment_does_not_hide_it_either() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    let mut child = mother.child("child");
    record_all(&store.log, &[mother.started(), child.started(), mother.turn(), child.turn()]);
    let _dropped = mother.turn();
    record_all(&store.log, &[child.turn(), mother.turn()]);
    store.always(|log| {
        assert_eq!(told(log, "mother"), "0 1 lost2..3 3", "one recorder gives no number twice");
        assert_eq!(told(log, "child"), "0 1 2");
    });
}

#[test]
fn a_child_that_started_anew_and_goes_on_with_the_same_numbers_does_not_either() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    let mut child = mother.child("child");
    record_all(&store.log, &[mother.started(), child.started(), child.turn()]);
    let _dropped = mother.turn();
    store.log.record(&mother.turn()).unwrap();
    assert_eq!(
        told(&store.log, "mother"),
        "0 elsewhere1..2 2",
        "so far it looks like one recorder"
    );
    store.log.record(&child.turn()).unwrap();
    store.always(|log| assert_eq!(told(log, "mother"), "0 lost1..2 2"));
}

#[test]
fn sequences_that_records_without_a_run_have_are_no_holes() {
    let store = Store::new();
    for seq in 0..2 {
        let mut record = Recorder::root("run").turn();
        (record.seq, record.run_id) = (seq, None);
        store.log.record(&record).unwrap();
    }
    let mut recorder = Recorder { seq: 2, ..Recorder::root("run") };
    record_all(&store.log, &recorder.whole(1));
    store.always(|log| {
        assert_eq!(told(log, "run"), "elsewhere0..2 2 3 4");
        let before = log.unattributed().unwrap().map(Result::unwrap);
        let seqs: Vec<_> = before
            .map(|item| match item {
                Item::Record(record) => record.seq(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seqs, [Some(0), Some(1)]);
    });
}

#[test]
fn relatives_that_were_deleted_explain_nothing() {
    let store = Store::new();
    let mother = RunIdentity::root("mother");
    let child = mother.child("child");
    let record = |run: &RunIdentity, seq, payload| {
        store.log.record(&TrajectoryRecord::new(run, seq, NOON, payload)).unwrap();
    };
    let ended = || TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] };
    record(&mother, 0, TrajectoryPayload::TurnStarted);
    record(&child, 1, ended());
    record(&mother, 2, TrajectoryPayload::TurnStarted);
    assert_eq!(told(&store.log, "mother"), "0 elsewhere1..2 2");
    store.store.delete_run((AGENT, "child")).unwrap();
    store.always(|log| assert_eq!(told(log, "mother"), "0 lost1..2 2"));
}

#[test]
fn the_largest_sequences_there_are_do_no_harm() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    store.log.record(&recorder.started()).unwrap();
    for seq in [u64::MAX - 1, u64::MAX, u64::MAX] {
        let mut record = recorder.turn();
        (record.seq, record.recorded_at_unix_ms) = (seq, u64::MAX - recorder.seq);
        store.log.record(&record).unwrap();
    }
    store.always(|log| {
        let told = told(log, "run");
        assert_eq!(told, format!("0 lost1..{0} {0} {1} back {1}", u64::MAX - 1, u64::MAX));
    });
}

#[test]
fn a_damaged_record_is_an_error_and_a_hole_and_the_rest_follows() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let mut child = recorder.child("child");
    record_all(&store.log, &recorder.whole(5));
    // The frame of the next record states that these five are durable.
    store.store.sync().unwrap();
    store.log.record(&child.started()).unwrap();
    let record = whole(&store.log, "run")[3].bytes().to_vec();
    let mut bytes = store.storage.to_bytes();
    let at = bytes.windows(record.len()).position(|window| window == record).unwrap();
    bytes[at + 20] ^= 1;
    let store = Store::from_bytes(bytes);
    let found: Vec<_> = store.log.trajectory("run").unwrap().collect();
    assert_eq!(found.iter().filter(|item| item.is_err()).count(), 1);
    assert!(found[3].as_ref().unwrap_err().is_corruption());
    let Item::Hole(hole) = found[4].as_ref().unwrap() else { panic!("{:?}", found[4]) };
    assert_eq!((hole.missing.clone(), hole.cause), (3..4, HoleCause::Damaged));
    assert_eq!(found.len(), 8, "six records, the error and the hole");
    let children = store.log.children("run").unwrap();
    assert_eq!((names(&children.runs), children.damage.len()), (vec!["child"], 1));
}

#[test]
fn whatever_is_dropped_of_any_tree_is_told_exactly() {
    let seed = 2026;
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let (mut holes, mut explained) = (0, 0);
    for _ in 0..30 {
        let store = Store::new();
        let mut recorders = vec![Recorder::root("0")];
        let mut kept: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for step in 0..200 {
            let chosen = random.index(recorders.len());
            if random.index(10) == 0 {
                let child = recorders[chosen].child(&format!("{}", step + 1));
                recorders.push(child);
            }
            let recorder = &mut recorders[chosen];
            let record = if recorder.seq == 0 { recorder.started() } else { recorder.turn() };
            if random.index(4) != 0 {
                store.log.record(&record).unwrap();
                kept.entry(record.run_id.unwrap()).or_default().push(record.seq);
            }
        }
        for log in [&store.log, &store.killed().log] {
            for (run, seqs) in &kept {
                let (mut found, mut missing) = (Vec::new(), Vec::new());
                for item in items(log, run) {
                    match item {
                        Item::Record(record) => found.extend(record.seq()),
                        Item::Hole(hole) => {
                            holes += 1;
                            explained += usize::from(hole.cause != HoleCause::NotRecorded);
                            missing.extend(hole.missing);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(found, *seqs);
                let last = seqs[seqs.len() - 1];
                let wanted: Vec<_> = (0..last).filter(|seq| !seqs.contains(seq)).collect();
                assert_eq!(missing, wanted);
            }
        }
    }
    println!("{holes} holes, {explained} of them explained by chance");
    assert!(holes > 1000 && explained * 100 < holes);
}
