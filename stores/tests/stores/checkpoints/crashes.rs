//! Power cuts and kills at every operation of the disk: each call has happened, or it has not.

use std::collections::BTreeSet;

use runlog_sim::{Fault, Recording, SimDisk};
use runlog_stores::checkpoints::SessionLog;

use super::*;
use crate::support::{in_crashes, recording};

/// The states of a script, which share most of their bytes, and the last two of which have more
/// parts than fit into one batch.
fn state(number: u8) -> Value {
    let words = if number < 11 { 20 * u64::from(number) } else { 6_000 };
    // Those of 12 are others.
    let first = if number == 12 { 6_000 } else { 0 };
    let word = |place: u64| format!("{:x}", (first + place).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    json!({ "words": (0..words).map(word).collect::<Vec<_>>(), "number": number })
}

fn whole(key: &ThreadKey, number: u8) -> Checkpoint<Value> {
    let mut put = checkpoint(key, number);
    put.state = state(number);
    put
}

/// What a thread must be: the numbers of its checkpoints, the newest first; none if it is deleted.
type Model = BTreeMap<&'static str, Vec<u8>>;

/// A step of a script, with what is there after it.
type Step = (Box<dyn Fn(&RunLog)>, Model);

fn script() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut model = Model::new();
    for number in 1..=10 {
        model.entry("t").or_default().insert(0, number);
        let put = move |log: &RunLog| Store::new(log).put(&whole(&key("t"), number)).unwrap();
        steps.push((Box::new(put), model.clone()));
    }
    model.insert("copy", model["t"].clone());
    let copy = |log: &RunLog| {
        Store::new(log).copy_thread(&key("t"), &key("copy")).unwrap();
    };
    steps.push((Box::new(copy), model.clone()));
    model.insert("t", vec![10, 9, 8]);
    let prune = |log: &RunLog| {
        Store::new(log).prune(&key("t"), Some(3), None).unwrap();
    };
    steps.push((Box::new(prune), model.clone()));
    model.remove("copy");
    let delete = |log: &RunLog| {
        Store::new(log).delete_thread(&key("copy")).unwrap();
    };
    steps.push((Box::new(delete), model.clone()));
    model.get_mut("t").unwrap().insert(0, 11);
    let put = |log: &RunLog| Store::new(log).put(&whole(&key("t"), 11)).unwrap();
    steps.push((Box::new(put), model.clone()));
    // The first of a thread takes several batches, and so does pruning it, and deleting it.
    for number in [11, 12, 1] {
        model.entry("big").or_default().insert(0, number);
        let put = move |log: &RunLog| Store::new(log).put(&whole(&key("big"), number)).unwrap();
        steps.push((Box::new(put), model.clone()));
    }
    model.insert("big", vec![1, 12]);
    let prune = |log: &RunLog| {
        Store::new(log).prune(&key("big"), Some(2), None).unwrap();
    };
    steps.push((Box::new(prune), model.clone()));
    model.remove("big");
    let delete = |log: &RunLog| {
        Store::new(log).delete_thread(&key("big")).unwrap();
    };
    steps.push((Box::new(delete), model.clone()));
    steps
}

/// The threads of the script, and the steps that prune one.
const THREADS: [&str; 3] = ["t", "copy", "big"];
const PRUNINGS: [usize; 2] = [11, 17];

/// The script as the disk saw it, and the number of operations after each step.
fn recorded() -> (Recording, Vec<usize>) {
    let (disk, log) = recording();
    let mut done = vec![disk.op_count()];
    for (step, _) in script() {
        step(&log);
        done.push(disk.op_count());
    }
    (disk.take_recording(), done)
}

#[test]
fn a_power_cut_or_a_kill_at_any_operation_leaves_each_call_done_or_not() {
    let (recording, done) = recorded();
    let steps = script();
    in_crashes(&recording, done[0], |log, _, boundary, context| {
        let finished = done[1..].iter().take_while(|&&after| after <= boundary).count();
        let before = finished.checked_sub(1).map_or_else(Model::new, |last| steps[last].1.clone());
        let after = steps.get(finished).map_or_else(|| before.clone(), |step| step.1.clone());
        let store = Store::new(log);
        for thread in THREADS {
            let key = key(thread);
            // Everything that is listed can be read as a whole.
            let history = store.list_history(&key, 99).unwrap();
            for found in &history {
                let number = u8::try_from(found.step).unwrap();
                assert!(*found == whole(&key, number), "{context}: {thread} {number}");
            }
            if let Some(oldest) = history.last() {
                assert!(store.get_by_id(&key, &oldest.id).unwrap().as_ref() == Some(oldest));
            }
            assert!(store.get_latest(&key).unwrap().as_ref() == history.first(), "{context}");
            let found: Vec<u8> = history.iter().map(|one| one.step as u8).collect();
            let expected = |model: &Model| model.get(thread).cloned().unwrap_or_default();
            let (old, new) = (expected(&before), expected(&after));
            // A pruning goes by steps; all else is done or not.
            let partly = found.len() > new.len() && found.len() < old.len();
            let prunes =
                PRUNINGS.contains(&finished) && partly && found.iter().all(|one| old.contains(one));
            assert!(found == old || found == new || prunes, "{context}: {thread} has {found:?}");
        }
        // Trying again works, and leaves what was wanted and nothing else.
        if let Some((again, model)) = steps.get(finished) {
            let repeatable = finished != 10 || store.get_latest(&key("copy")).unwrap().is_none();
            if repeatable {
                again(log);
            }
            let steps = |thread| -> Vec<u8> {
                let history = store.list_history(&key(thread), 99).unwrap();
                history.iter().map(|found| found.step as u8).collect()
            };
            for thread in THREADS {
                let expected = model.get(thread).cloned().unwrap_or_default();
                assert_eq!(steps(thread), expected, "{context}");
            }
        }
    });
}

#[test]
fn nothing_is_left_of_threads_that_a_crash_made_or_deleted_half() {
    let (recording, done) = recorded();
    // From the copy on.
    in_crashes(&recording, done[10], |log, _, _, context| {
        let store = Store::new(log);
        store.put(&checkpoint(&key("a"), 1)).unwrap();
        store.copy_thread(&key("a"), &key("b")).unwrap();
        // Only those that are shown.
        for thread in store.threads(&TenantId::default(), None, 9).unwrap() {
            store.delete_thread(&key(&thread)).unwrap();
        }
        let namespaces = (0..9).map(|number| number.to_string());
        let marks = ["gone", "copy", "begun", "t/default"].map(str::to_owned);
        for namespace in namespaces.chain(marks) {
            let left = documents(log, &format!("\0checkpoints/7/default/{namespace}"));
            assert!(left.is_empty(), "{context}: {namespace} has {:?}", left.keys());
        }
    });
}

#[test]
fn a_pruning_that_is_broken_off_between_any_two_steps_leaves_whole_checkpoints() {
    let word = |place: u64| format!("{:x}", place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut large = checkpoint(&key("t"), 1);
    large.state = json!((0..30_000).map(word).collect::<Vec<_>>());
    let (mut steps, mut is_over) = (0, false);
    while !is_over {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().sync_interval(None).create_storage(Arc::new(disk.clone())).unwrap();
        let store = Store::new(&log);
        store.put(&large).unwrap();
        store.put(&checkpoint(&key("t"), 2)).unwrap();
        disk.fail_from(disk.op_count() + steps, Fault::short(std::io::ErrorKind::Other, 0));
        is_over = store.prune(&key("t"), Some(1), None).is_ok();
        let disk = SimDisk::from_image(disk.image());
        let log = options().open_storage(Arc::new(disk)).unwrap();
        let left = Store::new(&log).list_history(&key("t"), 9).unwrap();
        let is_whole = |found: &Checkpoint<Value>| found.id == id(2) || *found == large;
        assert!(left.iter().all(is_whole), "{steps} operations were done");
        steps += 1;
    }
    assert!(steps > 3, "it takes several batches");
}

#[test]
fn a_power_cut_or_a_kill_at_any_operation_leaves_whole_appends_of_a_session() {
    let (disk, log) = recording();
    let session: SessionLog<u64> = SessionLog::new(&log);
    let mut done = vec![(disk.op_count(), 0, 0)];
    let (mut last, mut archived) = (0, 0);
    for turn in 0..24 {
        if turn % 4 == 3 {
            archived = last - 2;
            session.archive_before(&key("t"), archived).unwrap();
        } else {
            let events: Vec<u64> = (last + 1..=last + 1 + turn % 5).collect();
            last = session.append(&key("t"), &events).unwrap();
        }
        done.push((disk.op_count(), last, archived));
    }
    let recording = disk.take_recording();
    in_crashes(&recording, done[0].0, |log, _, boundary, context| {
        let finished = done.iter().rposition(|(after, ..)| *after <= boundary).unwrap();
        let session: SessionLog<u64> = SessionLog::new(log);
        let events = session.load_numbered_since(&key("t"), 0).unwrap();
        assert!(events.iter().all(|(ordinal, event)| ordinal == event), "{context}");
        let ordinals: BTreeSet<u64> = events.iter().map(|(ordinal, _)| *ordinal).collect();
        let possible = &done[finished..done.len().min(finished + 2)];
        let fits = possible
            .iter()
            .any(|(_, last, archived)| ordinals.iter().copied().eq(archived + 1..=*last));
        assert!(fits, "{context}: {ordinals:?} is not one of {possible:?}");
        let last = session.append(&key("t"), &[]).unwrap();
        assert_eq!(session.append(&key("t"), &[last + 1]).unwrap(), last + 1, "{context}");
        assert_eq!(session.load_since(&key("t"), last).unwrap(), [last + 1], "{context}");
        let archived = possible.iter().any(|(_, _, archived)| {
            session.clone().archive_before(&key("t"), *archived).unwrap() == 0
        });
        assert!(archived, "{context}");
    });
}
