//! What states cost: what is new in them, once.

use runlog_sim::SplitMix64;

use super::*;

/// The bytes of all documents in a namespace.
fn bytes_of(log: &RunLog, namespace: &str) -> u64 {
    log.docs()
        .list(namespace, "", None, usize::MAX)
        .unwrap()
        .documents
        .iter()
        .map(|one| one.bytes)
        .sum()
}

/// What the thread with number 1 has.
fn thread_bytes(log: &RunLog) -> u64 {
    bytes_of(log, "\0checkpoints/7/default/1")
}

/// Random words, so that no word predicts the next.
fn words(random: &mut SplitMix64, len: usize) -> String {
    let mut text = String::new();
    while text.len() < len {
        text.push_str(&format!("{:x} ", random.next_u64()));
    }
    text.truncate(len);
    text
}

/// Puts states that grow by 4,000 bytes a step, and answers what a thread has after each 50 steps.
fn grown(state: impl Fn(&[String]) -> Value) -> Vec<u64> {
    let log = Options::new()
        .background(false)
        .extent_size(1 << 20)
        .create_storage(Arc::new(MemoryStorage::new()))
        .unwrap();
    let store = Store::new(&log);
    let (mut random, mut texts, mut sizes) = (SplitMix64::new(7), Vec::new(), Vec::new());
    for step in 1..=200 {
        texts.push(words(&mut random, 4000));
        let put = store.checkpoint(&key("t"), step, state(&texts), None).unwrap();
        store.put(&put).unwrap();
        if step % 50 == 0 {
            sizes.push(thread_bytes(&log));
            assert!(store.get_latest(&key("t")).unwrap() == Some(put));
        }
    }
    let file = log.stats().unwrap();
    println!("{sizes:?} bytes of documents after 50, 100, 150 and 200 steps of 4,000 bytes");
    println!("{} bytes live in a file of {}", file.live_bytes, file.file_len);
    sizes
}

#[test]
fn two_hundred_steps_of_a_growing_list_cost_what_was_appended() {
    let sizes = grown(|texts| {
        let message = |text| json!({ "role": "user", "content": text });
        json!({ "messages": texts.iter().map(message).collect::<Vec<_>>(), "turns": texts.len() })
    });
    assert!(sizes[3] < 200 * 5500, "{} bytes for 800,000 that were appended", sizes[3]);
    // Steps at the end cost what steps at the beginning do, but for names of parts.
    assert!(sizes[3] - sizes[2] < (sizes[1] - sizes[0]) * 5 / 4, "{sizes:?}");
}

#[test]
fn two_hundred_steps_of_a_growing_text_cost_about_twice_what_was_appended() {
    let sizes = grown(|texts| json!(texts.concat()));
    assert!(sizes[3] < 200 * 10_000, "{} bytes for 800,000 that were appended", sizes[3]);
    assert!(sizes[3] - sizes[2] < (sizes[1] - sizes[0]) * 5 / 4, "{sizes:?}");
}

#[test]
fn a_list_that_loses_its_first_message_at_each_step_costs_what_was_appended() {
    let sizes = grown(|texts| json!({ "messages": texts[texts.len().saturating_sub(40)..] }));
    assert!(sizes[3] < 200 * 7500, "{} bytes for 800,000 that were appended", sizes[3]);
}

#[test]
fn a_small_change_in_a_large_state_costs_little() {
    let log = in_memory();
    let store = Store::new(&log);
    let mut random = SplitMix64::new(3);
    let mut text = words(&mut random, 300_000);
    store.put(&store.checkpoint(&key("t"), 0, json!(text), None).unwrap()).unwrap();
    let before = thread_bytes(&log);
    for step in 1..=20 {
        let at = random.below(290_000) as usize;
        text.replace_range(at..at + 5, "other text");
        let put = store.checkpoint(&key("t"), step, json!(text), None).unwrap();
        store.put(&put).unwrap();
        assert!(store.get_by_id(&key("t"), &put.id).unwrap() == Some(put));
    }
    let each = (thread_bytes(&log) - before) / 20;
    assert!(each < 15_000, "{each} bytes for a change of 10 in 300,000");
}

#[test]
fn a_state_that_did_not_change_is_not_stored_again() {
    let log = in_memory();
    let store = Store::new(&log);
    let (one, two) = (json!("one ".repeat(5000)), json!("two ".repeat(5000)));
    for (step, state) in [&one, &two].into_iter().enumerate() {
        let put = store.checkpoint(&key("t"), step, state.clone(), None).unwrap();
        store.put(&put).unwrap();
    }
    let before = thread_bytes(&log);
    // Back and forth, and by a branch.
    for step in 0..20 {
        let state = if step % 2 == 0 { one.clone() } else { two.clone() };
        let put = store.checkpoint(&key("t"), step, state, None).unwrap();
        store.put(&put).unwrap();
        store.update_state(&key("t"), &put.id, one.clone()).unwrap();
    }
    let each = (thread_bytes(&log) - before) / 40;
    assert!(each < 700, "{each} bytes for a checkpoint with a state that is there");
}

#[test]
fn a_state_with_more_parts_than_a_batch_takes_is_stored() {
    let log = in_memory();
    let store = Store::new(&log);
    let text = words(&mut SplitMix64::new(5), 1_500_000);
    let put = store.checkpoint(&key("t"), 1, json!(text), None).unwrap();
    store.put(&put).unwrap();
    assert!(store.get_latest(&key("t")).unwrap() == Some(put));
    assert!(thread_bytes(&log) < 1_600_000);
}

#[test]
fn parts_with_the_same_name_are_told_apart_by_their_bytes() {
    let namespace = "\0checkpoints/7/default/1";
    let log = in_memory();
    let store = Store::new(&log);
    let put = store.checkpoint(&key("t"), 1, json!("x".repeat(1000)), None).unwrap();
    store.put(&put).unwrap();
    let names: Vec<String> =
        documents(&log, namespace).into_keys().filter(|key| key.starts_with("p/")).collect();
    assert_eq!(names.len(), 1);
    // In another store, other bytes have that name already.
    let log = in_memory();
    let store = Store::new(&log);
    log.docs().put(namespace, &names[0], &runlog::NewRecord::new(b"other bytes")).unwrap();
    for _ in 0..2 {
        store.put(&put).unwrap();
        assert!(store.get_latest(&key("t")).unwrap().as_ref() == Some(&put));
    }
    let parts = documents(&log, namespace).into_keys().filter(|key| key.starts_with("p/")).count();
    assert_eq!(parts, 2);
}

#[test]
fn what_is_pruned_gives_its_space_back() {
    let log = in_memory();
    let store = Store::new(&log);
    let mut random = SplitMix64::new(11);
    for step in 0..100 {
        let state = json!(words(&mut random, 20_000));
        store.put(&store.checkpoint(&key("t"), step, state, None).unwrap()).unwrap();
        if step % 10 == 9 {
            store.prune(&key("t"), Some(3), None).unwrap();
        }
    }
    log.reclaim().unwrap();
    let stats = log.stats().unwrap();
    assert!(stats.file_len < 1_000_000, "{} bytes for 3 states of 20,000", stats.file_len);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_thread_whose_first_checkpoint_was_broken_off_has_none_and_is_not_listed() {
    let disk = runlog_sim::SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let store = Store::new(&log);
    let text = words(&mut SplitMix64::new(5), 1_500_000);
    let put = store.checkpoint(&key("t"), 1, json!(text), None).unwrap();
    disk.set_capacity(disk.allocated() + 700_000);
    let refused = store.put(&put).unwrap_err();
    let is_full = |error: &runlog::Error| error.is_disk_full();
    assert!(matches!(&refused, CheckpointError::Store(error) if is_full(error)), "{refused:?}");
    assert!(documents(&log, "\0checkpoints/7/default/1").len() > 9, "it was broken off");
    let tenant = TenantId::default();
    assert!(store.threads(&tenant, None, 9).unwrap().is_empty());
    assert!(store.get_latest(&key("t")).unwrap().is_none());
    disk.set_capacity(u64::MAX);
    for thread in ["a", "u"] {
        store.put(&checkpoint(&key(thread), 1)).unwrap();
    }
    assert_eq!(store.threads(&tenant, Some("a"), 1).unwrap(), ["u"]);
    store.put(&put).unwrap();
    assert_eq!(store.threads(&tenant, None, 9).unwrap(), ["a", "t", "u"]);
}

/// What a first put leaves that a full disk breaks off, once the process was killed as well.
fn broken_off() -> (runlog_sim::SimDisk, RunLog, Checkpoint<Value>) {
    let disk = runlog_sim::SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let store = Store::new(&log);
    let text = words(&mut SplitMix64::new(5), 1_500_000);
    let put = store.checkpoint(&key("t"), 1, json!(text), None).unwrap();
    disk.set_capacity(disk.allocated() + 700_000);
    store.put(&put).unwrap_err();
    let disk = runlog_sim::SimDisk::from_image(disk.image());
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    assert!(documents(&log, "\0checkpoints/7/default/1").len() > 9, "it was broken off");
    (disk, log, put)
}

/// All documents of the threads that are not shown.
fn hidden(log: &RunLog) -> usize {
    let namespaces = ["1", "gone", "copy", "begun"].into_iter();
    let of = |name| documents(log, &format!("\0checkpoints/7/default/{name}")).len();
    namespaces.map(of).sum()
}

#[test]
fn what_a_first_put_left_that_was_broken_off_goes_with_the_next_sweep_of_any_thread() {
    let ways: [fn(&Store); 3] = [
        |store| assert_eq!(store.prune(&key("other"), Some(1), None).unwrap().checkpoints, 0),
        |store| assert!(!store.delete_thread(&key("none")).unwrap()),
        |store| assert!(!store.delete_thread(&key("t")).unwrap(), "it was never there"),
    ];
    for way in ways {
        let (_, log, put) = broken_off();
        let store = Store::new(&log);
        way(&store);
        assert_eq!(hidden(&log), 0);
        store.put(&put).unwrap();
        assert!(store.get_latest(&key("t")).unwrap() == Some(put));
    }
}

#[test]
fn a_first_put_that_was_broken_off_goes_on_and_then_its_thread_stays() {
    let (_, log, put) = broken_off();
    let store = Store::new(&log);
    store.put(&put).unwrap();
    assert!(documents(&log, "\0checkpoints/7/default/begun").is_empty());
    store.prune(&key("t"), Some(1), None).unwrap();
    assert!(store.get_latest(&key("t")).unwrap() == Some(put));
}

#[test]
fn a_thread_whose_first_put_was_broken_off_is_neither_copied_nor_in_the_way_of_a_copy() {
    let (_, log, _) = broken_off();
    let store = Store::new(&log);
    store.put(&checkpoint(&key("u"), 1)).unwrap();
    assert_eq!(store.copy_thread(&key("u"), &key("t")).unwrap(), 1);
    assert_eq!(hidden(&log), 0);
    let (_, log, _) = broken_off();
    let unknown = Store::new(&log).copy_thread(&key("t"), &key("x")).unwrap_err();
    assert!(matches!(unknown, CheckpointError::UnknownThread { .. }), "{unknown:?}");
}

#[test]
fn first_puts_of_several_batches_end_beside_one_who_sweeps() {
    let log = in_memory();
    let store = Store::new(&log);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let text = words(&mut SplitMix64::new(5), 1_500_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let store = Store::new(&log);
            // Bounded, so that puts end also where a sweep makes them begin anew.
            for _ in 0..20_000 {
                if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                store.prune(&key("other"), Some(1), None).unwrap();
            }
        });
        for number in 0..4 {
            let put = store.checkpoint(&key(&number.to_string()), 1, json!(text), None).unwrap();
            store.put(&put).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // Had a sweep made them begin anew, more numbers would have been given.
    let next = &documents(&log, "\0checkpoints/7/default")["next"];
    let next: Value = serde_json::from_slice(next).unwrap();
    assert_eq!(next["number"], 5);
    assert!(documents(&log, "\0checkpoints/7/default/begun").is_empty());
}

#[test]
fn a_thread_with_more_documents_than_fit_into_memory_at_once_is_deleted_whole() {
    let options = Options::new().background(false).extent_size(8 << 20);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let store = Store::new(&log);
    store.put(&checkpoint(&key("t"), 1)).unwrap();
    let keys: Vec<String> = (0..70_000).map(|number| format!("p/{number:016x}")).collect();
    for some in keys.chunks(1000) {
        let mut batch = runlog::Batch::new();
        for key in some {
            batch.put("\0checkpoints/7/default/1", key, runlog::NewRecord::new(b"x"));
        }
        drop(log.commit(&batch).unwrap());
    }
    assert!(store.delete_thread(&key("t")).unwrap());
    assert_eq!(hidden(&log), 0);
}
