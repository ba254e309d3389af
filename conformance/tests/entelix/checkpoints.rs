//! Checkpoints through the trait, without a graph; beside the store in memory that entelix has,
//! which answers the same.

use entelix_core::Error;
use entelix_graph::{Checkpoint, CheckpointId, Checkpointer, InMemoryCheckpointer};
use runlog_conformance::entelix::EntelixCheckpointer;
use runlog_sim::SplitMix64;
use serde_json::{Value, json};

use super::{LIVES, World, key, key_of};

fn same(left: &Checkpoint<Value>, right: &Checkpoint<Value>) -> bool {
    left.id == right.id
        && left.key() == right.key()
        && left.parent_id == right.parent_id
        && (left.step, &left.state, &left.next_node) == (right.step, &right.state, &right.next_node)
        && left.timestamp == right.timestamp
}

#[tokio::test]
async fn a_checkpoint_comes_back_with_all_of_its_fields() {
    for life in LIVES {
        let world = World::new(life);
        let store = || EntelixCheckpointer::<Value>::new(&world.log());
        let state = json!({"text": "\u{1f375}", "large": "x".repeat(100_000), "null": null});
        let thread = key_of("\u{e9}/..", "a\0b");
        let put =
            Checkpoint::new(&thread, usize::MAX, state, None).with_parent(CheckpointId::new());
        store().put(put.clone()).await.unwrap();
        let found = store().get_latest(&thread).await.unwrap().unwrap();
        assert!(same(&found, &put), "{found:?}");
        let found = store().get_by_id(&thread, &put.id).await.unwrap().unwrap();
        assert!(same(&found, &put));
        let branch = store().update_state(&thread, &put.id, json!(1)).await.unwrap();
        let found = store().get_by_id(&thread, &branch).await.unwrap().unwrap();
        assert_eq!(found.step, usize::MAX, "the last step there is has none behind it");
        assert!(found.timestamp >= put.timestamp);
    }
}

#[tokio::test]
async fn ids_of_any_form_are_kept_and_those_that_are_made_grow() {
    let store = EntelixCheckpointer::<Value>::new(&World::new(LIVES[0]).log());
    for id in ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"] {
        let id = CheckpointId::from_uuid(id.parse().unwrap());
        let found = Checkpoint::new(&key("t"), 0, json!(0), None);
        let (next, time) = (found.next_node, found.timestamp);
        let put = Checkpoint::from_parts(id.clone(), &key("t"), None, 0, json!(0), next, time);
        store.put(put).await.unwrap();
        assert_eq!(store.get_latest(&key("t")).await.unwrap().unwrap().id, id);
    }
    let parent = store.get_latest(&key("t")).await.unwrap().unwrap().id;
    let mut last = None;
    for _ in 0..100 {
        let id = store.update_state(&key("t"), &parent, json!(0)).await.unwrap();
        let id = id.as_uuid().to_owned();
        assert_eq!(id.get_version_num(), 7);
        assert!(last.is_none_or(|last| last < id));
        last = Some(id);
    }
}

/// Where the stores of entelix agree with one another, ours agrees with them; where not, with the
/// one in memory.
#[tokio::test]
async fn whatever_is_done_the_answers_are_those_of_the_store_in_memory() {
    let seed = 0x0e47_e11c;
    println!("seed {seed:#x}");
    for life in LIVES {
        let world = World::new(life);
        let mut random = SplitMix64::new(seed);
        let ours = || EntelixCheckpointer::<Value>::new(&world.log());
        let theirs = InMemoryCheckpointer::<Value>::new();
        let tenants = ["a", "b"].into_iter();
        let keys: Vec<_> = tenants.flat_map(|t| [key_of(t, "1"), key_of(t, "2")]).collect();
        // The ids of each checkpoint: of branches each store makes its own.
        let mut ids = vec![(CheckpointId::new(), CheckpointId::new())];
        for number in 0..60 {
            let key = &keys[random.index(keys.len())];
            let state = json!({ "number": number, "text": "x".repeat(number * 100) });
            if random.coin() {
                let (step, next) = (random.index(5), Some(format!("node {number}")));
                let put = Checkpoint::new(key, step, state, next);
                ids.push((put.id.clone(), put.id.clone()));
                ours().put(put.clone()).await.unwrap();
                theirs.put(put).await.unwrap();
            } else {
                let parent = &ids[random.index(ids.len())];
                let branch = ours().update_state(key, &parent.0, state.clone()).await;
                match (branch, theirs.update_state(key, &parent.1, state).await) {
                    (Ok(ours), Ok(theirs)) => ids.push((ours, theirs)),
                    (Err(Error::InvalidRequest(_)), Err(Error::InvalidRequest(_))) => {}
                    (ours, theirs) => panic!("{ours:?} where it should be {theirs:?}"),
                }
            }
            let pair = &ids[random.index(ids.len())];
            let found = ours().get_by_id(key, &pair.0).await.unwrap();
            assert_same(&ids, found, theirs.get_by_id(key, &pair.1).await.unwrap());
            let found = ours().get_latest(key).await.unwrap();
            assert_same(&ids, found, theirs.get_latest(key).await.unwrap());
            for limit in [0, 1, 3, usize::MAX] {
                let found = ours().list_history(key, limit).await.unwrap();
                assert_same(&ids, found, theirs.list_history(key, limit).await.unwrap());
            }
        }
    }
}

/// These are the same checkpoints, but that of a branch each store has made the id and the time.
fn assert_same(
    ids: &[(CheckpointId, CheckpointId)],
    ours: impl IntoIterator<Item = Checkpoint<Value>>,
    theirs: impl IntoIterator<Item = Checkpoint<Value>>,
) {
    let translated = |id: CheckpointId| {
        let pair = ids.iter().find(|(ours, _)| *ours == id);
        pair.map(|(_, theirs)| theirs.clone()).expect("somebody made it")
    };
    let ours: Vec<_> = ours.into_iter().collect();
    let theirs: Vec<_> = theirs.into_iter().collect();
    assert_eq!(ours.len(), theirs.len());
    for (mut ours, theirs) in ours.into_iter().zip(theirs) {
        let made = ours.id != theirs.id;
        ours.id = translated(ours.id);
        ours.parent_id = ours.parent_id.map(translated);
        if made {
            ours.timestamp = theirs.timestamp;
        }
        assert!(same(&ours, &theirs), "{ours:?} is not {theirs:?}");
    }
}

/// The stores of entelix differ: one keeps both, one replaces, one refuses. Ours refuses what would
/// lose something.
#[tokio::test]
async fn the_same_checkpoint_can_be_put_again_and_another_with_its_id_cannot() {
    for life in LIVES {
        let world = World::new(life);
        let store = || EntelixCheckpointer::<Value>::new(&world.log());
        let put = Checkpoint::new(&key("t"), 1, json!("first"), None);
        for _ in 0..3 {
            store().put(put.clone()).await.unwrap();
        }
        let mut other = put.clone();
        other.state = json!("second");
        let refused = store().put(other).await.unwrap_err();
        assert!(matches!(refused, Error::InvalidRequest(_)), "{refused}");
        let history = store().list_history(&key("t"), 9).await.unwrap();
        assert_eq!(history.len(), 1);
        assert_eq!(history[0].state, json!("first"));
    }
}

#[tokio::test]
async fn keys_that_are_too_long_are_refused_and_a_store_that_is_closed_says_so() {
    let world = World::new(LIVES[0]);
    let store = EntelixCheckpointer::<Value>::new(&world.log());
    let long = key(&"t".repeat(513));
    let put = Checkpoint::new(&long, 1, json!(0), None);
    for refused in [
        store.put(put).await.unwrap_err(),
        store.get_latest(&long).await.unwrap_err(),
        store.list_history(&long, 1).await.unwrap_err(),
    ] {
        assert!(matches!(refused, Error::InvalidRequest(_)), "{refused}");
    }
    world.log().close().unwrap();
    let closed = store.put(Checkpoint::new(&key("t"), 1, json!(0), None)).await.unwrap_err();
    assert!(matches!(closed, Error::Provider { .. }), "{closed}");
}

/// A runtime with one thread goes on with other tasks while the disk is waited for.
#[tokio::test(flavor = "current_thread")]
async fn many_graphs_can_put_at_once_on_one_thread() {
    let store = EntelixCheckpointer::<Value>::new(&World::new(LIVES[0]).log());
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = key(&format!("thread {}", number % 5));
                store.put(Checkpoint::new(&key, number, json!(number), None)).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    for thread in 0..5 {
        let history = store.list_history(&key(&format!("thread {thread}")), 99).await.unwrap();
        assert_eq!(history.len(), 10);
    }
}
