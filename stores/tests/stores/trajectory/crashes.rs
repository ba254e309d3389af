//! Kills between any two calls, and kills and power cuts within them.

use runlog_sim::{CrashImages, SimDisk, SplitMix64, Survivors};

use super::*;

/// Parents, children, restarts, repetitions, ends, odd records: each as bytes.
fn script() -> Vec<Vec<u8>> {
    let mut mother = Recorder::root("mother");
    let (mut first, mut second) = (mother.child("first"), mother.child("second"));
    let mut grandchild = first.child("grandchild");
    let mut early = Recorder::root("unseen").child("early");
    let mut calls = vec![mother.started(), first.started(), mother.turn(), grandchild.started()];
    calls.extend([first.turn(), early.started(), second.started(), grandchild.ended()]);
    let _dropped = second.turn();
    calls.extend([second.turn(), first.ended(), first.turn(), early.ended(), mother.turn()]);
    let mut again = mother.child("first");
    calls.extend([again.started(), again.ended(), second.ended(), mother.ended()]);
    let mut calls: Vec<_> = calls.iter().map(|call| serde_json::to_vec(call).unwrap()).collect();
    calls.insert(3, br#"{"seq":9,"payload":{"kind":"before"}}"#.to_vec());
    calls.insert(7, br#"{ "run_id":"second", "seq":1, "schema_version":7 }"#.to_vec());
    calls
}

const RUNS: [&str; 6] = ["mother", "first", "second", "grandchild", "unseen", "early"];

/// All that can be asked, as text.
fn everything(log: &TrajectoryLog) -> Vec<String> {
    let mut all = Vec::new();
    for run in RUNS {
        let Ok(trajectory) = log.trajectory(run) else { continue };
        for item in trajectory {
            all.push(match item.unwrap() {
                Item::Record(record) => {
                    format!("{run}: {}", String::from_utf8_lossy(record.bytes()))
                }
                other => format!("{run}: {other:?}"),
            });
        }
        let children = log.children(run).unwrap();
        all.push(format!("{run} has {:?}", names(&children.runs)));
        all.push(format!("{run} is of {:?}", log.parent(run).unwrap().map(|parent| parent.run)));
        let started = log.store().metadata((AGENT, run)).unwrap();
        let started = started.map(|said| String::from_utf8(said.into_payload()).unwrap());
        all.push(format!("{run} is {}, started as {started:?}", status(log, run)));
    }
    // A call without a run cannot be known for a repetition, so how often it is there may differ.
    if log.unattributed().unwrap().next().is_some() {
        all.push("something without a run".into());
    }
    all
}

#[test]
fn a_kill_between_any_two_calls_changes_nothing() {
    let calls = script();
    let store = Store::new();
    let mut wanted = Vec::new();
    for call in &calls {
        wanted.push(everything(&store.log));
        store.log.record_bytes(call).unwrap();
    }
    wanted.push(everything(&store.log));
    for stop in 0..=calls.len() {
        for in_order in [false, true] {
            let mut store = Store::new();
            for call in &calls[..stop] {
                store.log.record_bytes(call).unwrap();
            }
            store = if in_order { store.reopened() } else { store.killed() };
            assert_eq!(everything(&store.log), wanted[stop], "stopped at call {stop}");
            for call in &calls[stop..] {
                store.log.record_bytes(call).unwrap();
            }
            assert_eq!(everything(&store.log), wanted[calls.len()], "went on at call {stop}");
        }
    }
}

#[test]
fn a_store_that_is_reopened_before_each_call_has_the_same() {
    let calls = script();
    let plain = Store::new();
    let mut restless = Store::new();
    for call in &calls {
        plain.log.record_bytes(call).unwrap();
        restless = restless.killed();
        restless.log.record_bytes(call).unwrap();
        restless = restless.reopened();
    }
    assert_eq!(everything(&restless.log), everything(&plain.log));
}

/// A recording of the script, and the number of operations after each call.
fn recorded(calls: &[Vec<u8>], durable: bool) -> (runlog_sim::Recording, Vec<usize>) {
    let disk = SimDisk::recording();
    let store = options().sync_interval(None).create_storage(Arc::new(disk.clone())).unwrap();
    let log = TrajectoryLog::new(&store, AGENT).unwrap();
    let mut done = vec![disk.op_count()];
    for call in calls {
        let recorded = log.record_bytes(call).unwrap();
        if durable {
            recorded.wait().unwrap();
        }
        done.push(disk.op_count());
    }
    let recording = disk.take_recording();
    (recording, done)
}

fn open(image: Vec<u8>) -> TrajectoryLog {
    let disk = SimDisk::from_image(image);
    let store = options().sync_interval(None).open_storage(Arc::new(disk)).unwrap();
    TrajectoryLog::new(&store, AGENT).unwrap()
}

/// The records that are stored, call by call, and no other.
fn stored(log: &TrajectoryLog) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let runs = RUNS.iter().filter_map(|run| log.trajectory(run).ok());
    for item in runs.chain([log.unattributed().unwrap()]).flatten() {
        if let Item::Record(record) = item.unwrap() {
            all.push((record.lsn(), record.bytes().to_vec()));
        }
    }
    all.sort();
    all.into_iter().map(|(_, bytes)| bytes).collect()
}

/// What must hold after a crash during a call: the calls before it are there, this one is there or
/// not, no child is missing from its parent, and the same call once more completes everything.
fn check(image: Vec<u8>, calls: &[Vec<u8>], call: usize) {
    let log = open(image);
    let found = stored(&log);
    assert!(found.len() == call || found.len() == call + 1, "{} records", found.len());
    assert_eq!(found, calls[..found.len()]);
    for run in RUNS {
        let Ok(Some(parent)) = log.parent(run) else { continue };
        let children = log.children(parent.run.as_str()).unwrap().runs;
        assert!(names(&children).contains(&run), "{run} is missing from {}", parent.run);
    }
    check_ends(&log);
    if let Some(again) = calls.get(call) {
        log.record_bytes(again).unwrap();
    }
    let settled = log.settle_ends().unwrap();
    assert_eq!(settled.len(), 0, "the same call has ended its run");
    let plain = Store::new();
    for call in calls.iter().take(call + 1) {
        plain.log.record_bytes(call).unwrap();
    }
    assert_eq!(everything(&log), everything(&plain.log));
}

/// No run that says that it ended is in progress, once that was settled.
fn check_ends(log: &TrajectoryLog) {
    log.settle_ends().unwrap();
    for run in RUNS {
        let Ok(trajectory) = log.trajectory(run) else { continue };
        let ended = trajectory.filter(|item| match item.as_ref().unwrap() {
            Item::Record(record) => record.kind() == Some("run_ended"),
            _ => false,
        });
        assert!(ended.count() == 0 || status(log, run).is_ended(), "{run} has ended");
    }
}

#[test]
fn a_kill_within_any_call_leaves_all_or_nothing_and_is_repaired_by_the_same_call() {
    let calls = script();
    let (recording, done) = recorded(&calls, false);
    let seed = 4;
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let mut crashes = CrashImages::new(&recording);
    for call in 0..calls.len() {
        for boundary in done[call]..done[call + 1] {
            crashes.seek(boundary);
            check(crashes.killed(0), &calls, call);
            let mut image = Vec::new();
            crashes.killed_within_into(&mut random, &mut image);
            check(image, &calls, call);
        }
    }
}

#[test]
fn a_power_cut_within_a_durable_call_leaves_all_or_nothing() {
    let calls = script();
    let (recording, done) = recorded(&calls, true);
    let mut crashes = CrashImages::new(&recording);
    for call in 0..calls.len() {
        for boundary in done[call]..done[call + 1] {
            for seed in 0..4 {
                crashes.seek(boundary);
                check(crashes.image(Survivors::Half, seed), &calls, call);
            }
        }
    }
}

#[test]
fn an_end_that_was_recorded_and_not_made_is_settled() {
    let store = Store::new();
    let mut recorder = Recorder::root("mother").child("run");
    let records = recorder.whole(1);
    record_all(&store.log, &records[..2]);
    // As if the process had died behind the record.
    let ended = serde_json::to_vec(&records[2]).unwrap();
    let record = runlog::NewRecord::json(&ended).kind("run_ended");
    store.store.append_to(AGENT, "run", &record, runlog::Allow::nothing()).unwrap();
    let store = store.killed();
    assert_eq!(status(&store.log, "run"), RunStatus::InProgress);
    assert_eq!(store.log.settle_ends().unwrap(), ["run"]);
    assert_eq!(store.log.settle_ends().unwrap(), [""; 0]);
    let adopted = store.store.adopt_orphans().unwrap().runs;
    assert!(adopted.iter().all(|(_, run)| *run == "mother"), "no record names that one");
    store.always(|log| {
        assert_eq!(typed(log, "run"), records);
        assert_eq!(status(log, "run"), RunStatus::Completed);
    });
}
