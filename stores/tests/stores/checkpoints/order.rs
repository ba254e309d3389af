//! The order of a thread, ids, and branches.

use super::*;

#[test]
fn a_history_has_the_newest_first_and_no_more_than_was_asked_for() {
    in_each_life(|log| {
        let key = key("t");
        assert!(Store::new(&log()).list_history(&key, 5).unwrap().is_empty());
        // Neither steps nor times nor ids decide.
        for number in [5, 1, 9, 3, 7] {
            Store::new(&log()).put(&checkpoint(&key, number)).unwrap();
        }
        let history = |limit| {
            let history = Store::new(&log()).list_history(&key, limit).unwrap();
            history.iter().map(|found| found.step).collect::<Vec<_>>()
        };
        assert_eq!(history(0), [0; 0]);
        assert_eq!(history(1), [7]);
        assert_eq!(history(3), [7, 3, 9]);
        assert_eq!(history(usize::MAX), [7, 3, 9, 1, 5]);
        assert_eq!(Store::new(&log()).get_latest(&key).unwrap().unwrap().step, 7);
    });
}

#[test]
fn a_history_longer_than_a_page_is_whole() {
    let store = Store::new(&in_memory());
    let key = key("t");
    let mut ids = Vec::new();
    for step in 0..300 {
        let put = store.checkpoint(&key, step, json!(step), None).unwrap();
        store.put(&put).unwrap();
        ids.push(put.id);
    }
    assert!(ids.is_sorted(), "ids are in the order in which they were made");
    let history = store.list_history(&key, 1000).unwrap();
    assert!(history.iter().map(|found| found.step).eq((0..300).rev()));
    assert!(history.iter().map(|found| found.id).eq(ids.into_iter().rev()));
    assert_eq!(store.list_history(&key, 200).unwrap().len(), 200);
}

#[test]
fn an_id_that_is_not_there_is_not_found() {
    in_each_life(|log| {
        let key = key("t");
        assert!(Store::new(&log()).get_by_id(&key, &id(1)).unwrap().is_none());
        assert!(Store::new(&log()).get_latest(&key).unwrap().is_none());
        Store::new(&log()).put(&checkpoint(&key, 1)).unwrap();
        assert!(Store::new(&log()).get_by_id(&key, &id(2)).unwrap().is_none());
        assert!(Store::new(&log()).get_by_id(&key, &id(1)).unwrap().is_some());
    });
}

#[test]
fn the_same_checkpoint_again_changes_nothing_and_another_with_its_id_is_refused() {
    in_each_life(|log| {
        let key = key("t");
        for number in [1, 2] {
            Store::new(&log()).put(&checkpoint(&key, number)).unwrap();
        }
        Store::new(&log()).put(&checkpoint(&key, 1)).unwrap();
        let ways: [fn(&mut Checkpoint<Value>); 5] = [
            |other| other.state = json!("other"),
            |other| other.step += 1,
            |other| other.next_node = None,
            |other| other.parent_id = Some(id(2)),
            |other| other.timestamp = second(77),
        ];
        for way in ways {
            let mut other = checkpoint(&key, 1);
            way(&mut other);
            let refused = Store::new(&log()).put(&other);
            assert!(matches!(refused, Err(CheckpointError::Exists { id: one }) if one == id(1)));
        }
        let history = Store::new(&log()).list_history(&key, 9).unwrap();
        assert!(history == [checkpoint(&key, 2), checkpoint(&key, 1)]);
    });
}

#[test]
fn a_branch_has_the_next_step_and_node_of_its_parent_and_is_the_newest() {
    in_each_life(|log| {
        let key = key("t");
        for number in 1..=5 {
            Store::new(&log()).put(&checkpoint(&key, number)).unwrap();
        }
        let branch = Store::new(&log()).update_state(&key, &id(2), json!("branch")).unwrap();
        let found = Store::new(&log()).get_latest(&key).unwrap().unwrap();
        assert_eq!((found.id, found.parent_id), (branch, Some(id(2))));
        assert_eq!((found.step, found.next_node.as_deref()), (3, Some("node 2")));
        assert_eq!(found.state, json!("branch"));
        assert!(found.timestamp > second(5) && branch.as_bytes()[6] >> 4 == 7);
        // What was there is there.
        let history = Store::new(&log()).list_history(&key, 9).unwrap();
        let steps: Vec<usize> = history.iter().map(|found| found.step).collect();
        assert_eq!(steps, [3, 5, 4, 3, 2, 1]);
        assert!(history[4] == checkpoint(&key, 2));
        let twig = Store::new(&log()).update_state(&key, &branch, json!("twig")).unwrap();
        let found = Store::new(&log()).get_by_id(&key, &twig).unwrap().unwrap();
        assert_eq!((found.parent_id, found.step), (Some(branch), 4));
    });
}

#[test]
fn a_branch_of_an_unknown_parent_is_refused_and_leaves_nothing() {
    in_each_life(|log| {
        let key = key("t");
        let refused = Store::new(&log()).update_state(&key, &id(1), json!(1)).unwrap_err();
        assert!(matches!(refused, CheckpointError::UnknownParent { parent } if parent == id(1)));
        assert!(refused.to_string().contains("01010101-0101-0101-0101-010101010101"));
        assert!(Store::new(&log()).threads(&TenantId::default(), None, 9).unwrap().is_empty());
        Store::new(&log()).put(&checkpoint(&key, 1)).unwrap();
        assert!(Store::new(&log()).update_state(&key, &id(2), json!(1)).is_err());
        assert_eq!(Store::new(&log()).list_history(&key, 9).unwrap().len(), 1);
    });
}

#[test]
fn the_last_step_of_all_has_branches_of_the_same_step() {
    let store = Store::new(&in_memory());
    let mut last = checkpoint(&key("t"), 1);
    last.step = usize::MAX;
    store.put(&last).unwrap();
    store.update_state(&key("t"), &last.id, json!(1)).unwrap();
    assert_eq!(store.get_latest(&key("t")).unwrap().unwrap().step, usize::MAX);
}

#[test]
fn times_at_the_ends_of_time_come_back() {
    let store = Store::new(&in_memory());
    let times = [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC, DateTime::UNIX_EPOCH];
    for (number, time) in (1..).zip(times) {
        let mut put = checkpoint(&key("t"), number);
        put.timestamp = time;
        store.put(&put).unwrap();
        assert!(store.get_latest(&key("t")).unwrap() == Some(put));
    }
}

#[test]
fn of_many_threads_putting_at_once_each_has_all_of_its_checkpoints() {
    let log = in_memory();
    std::thread::scope(|scope| {
        for thread in 0..16_u8 {
            let store = Store::new(&log);
            scope.spawn(move || {
                for turn in 0..8_u8 {
                    // All share one thread; every other turn has a thread of its own, too.
                    let number = thread * 8 + turn;
                    let mut put = checkpoint(&key("shared"), number);
                    put.state = json!({ "text": "x".repeat(3000), "number": number });
                    store.put(&put).unwrap();
                    store.put(&checkpoint(&key(&format!("thread {thread}")), turn)).unwrap();
                }
            });
        }
    });
    let store = Store::new(&log);
    let shared = store.list_history(&key("shared"), 999).unwrap();
    let mut steps: Vec<usize> = shared.iter().map(|found| found.step).collect();
    for own in steps.chunk_by(|_, _| true).flatten().map(|step| step / 8) {
        let of_one: Vec<_> = steps.iter().filter(|step| *step / 8 == own).collect();
        assert!(of_one.is_sorted_by(|left, right| left > right), "{of_one:?}");
    }
    steps.sort_unstable();
    assert!(steps.into_iter().eq(0..128));
    for thread in 0..16 {
        let own = store.list_history(&key(&format!("thread {thread}")), 999).unwrap();
        assert!(own.iter().map(|found| found.step).eq((0..8).rev()));
    }
}
