//! Documents that are not what their places say: typed errors with the place, and the bytes are
//! there.

use runlog::{Error, NewRecord};
use runlog_sim::SplitMix64;
use runlog_stores::checkpoints::Defect;

use super::*;

const HEADS: &str = "\0checkpoints/7/default/t/default";
const DOCUMENTS: &str = "\0checkpoints/7/default/1";

/// A store with a thread of two checkpoints, of which the second has a large state.
fn two() -> (RunLog, Store) {
    let log = in_memory();
    let store = Store::new(&log);
    store.put(&checkpoint(&key("t"), 1)).unwrap();
    let mut large = checkpoint(&key("t"), 2);
    let line = |number: u64| format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    large.state = json!((0..4000).map(line).collect::<Vec<_>>());
    store.put(&large).unwrap();
    (log, store)
}

fn defect(error: &CheckpointError) -> Option<Defect> {
    match error {
        CheckpointError::Damaged { defect, .. } => Some(*defect),
        _ => None,
    }
}

fn replace(log: &RunLog, namespace: &str, at: &str, from: &str, to: &str) {
    let document = log.docs().get(namespace, at).unwrap().unwrap();
    let text = String::from_utf8(document.payload().to_vec()).unwrap();
    assert!(text.contains(from), "{text}");
    log.docs().put(namespace, at, &NewRecord::new(text.replacen(from, to, 1).as_bytes())).unwrap();
}

#[test]
fn a_newer_schema_is_refused_wherever_it_is_and_stays_readable() {
    let newest = "c/fffffffffffffffd";
    let place = format!("i/{}", id(2));
    let at = [(HEADS, "t"), (DOCUMENTS, newest), (DOCUMENTS, &*place)];
    for (namespace, at) in at {
        let (log, store) = two();
        replace(&log, namespace, at, "\"schema_version\":1", "\"schema_version\":2");
        let error = store.get_by_id(&key("t"), &id(2)).unwrap_err();
        let CheckpointError::NewerSchema { found: 2, known: 1, .. } = &error else {
            panic!("{error}");
        };
        assert!(error.to_string().contains("schema version 2"), "{error}");
        assert!(store.put(&checkpoint(&key("t"), 2)).is_err(), "nothing is written over it");
        assert!(
            log.docs().get(namespace, at).unwrap().unwrap().payload().starts_with(b"{\"schema")
        );
        for broken in ["\"schema_version\":0", "\"version\":1"] {
            let (log, store) = two();
            replace(&log, namespace, at, "\"schema_version\":1", broken);
            let error = store.get_by_id(&key("t"), &id(2)).unwrap_err();
            assert_eq!(defect(&error), Some(Defect::NoSchema), "{error}");
        }
    }
    let (log, store) = two();
    replace(&log, DOCUMENTS, newest, "\"schema_version\":1", "\"schema_version\":2");
    let pruned = store.prune(&key("t"), Some(1), None);
    assert!(matches!(pruned, Err(CheckpointError::NewerSchema { .. })));
    assert_eq!(store.get_by_id(&key("t"), &id(1)).unwrap().unwrap().step, 1, "nothing went");
    assert!(store.copy_thread(&key("t"), &key("u")).is_err());
    assert!(store.get_latest(&key("u")).unwrap().is_none());
    assert!(store.delete_thread(&key("t")).unwrap());
}

#[test]
fn missing_documents_are_told_by_their_place() {
    let (whole, _) = two();
    for at in documents(&whole, DOCUMENTS).into_keys() {
        let (log, store) = two();
        assert!(log.docs().delete(DOCUMENTS, &at).unwrap());
        let (latest, by_id) = (store.get_latest(&key("t")), store.get_by_id(&key("t"), &id(2)));
        if at.starts_with("i/") {
            assert!(latest.unwrap().is_some());
            continue;
        }
        if at == "c/fffffffffffffffe" {
            assert!(latest.is_ok() && by_id.is_ok());
            assert!(store.get_by_id(&key("t"), &id(1)).is_err());
            continue;
        }
        for error in [latest.unwrap_err(), by_id.unwrap_err()] {
            let CheckpointError::Damaged { key, defect: Defect::Missing, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(*key, at);
            assert!(error.to_string().contains("is missing"), "{error}");
        }
        assert!(store.get_by_id(&key("t"), &id(1)).unwrap().is_some(), "others are there");
    }
}

#[test]
fn foreign_documents_are_never_taken_for_ours() {
    let (log, store) = two();
    store.put(&checkpoint(&key("u"), 7)).unwrap();
    // The head of another thread, and a checkpoint of another place.
    let head = log.docs().get(HEADS, "u").unwrap().unwrap();
    log.docs().put(HEADS, "t", &NewRecord::json(head.payload())).unwrap();
    let error = store.get_latest(&key("t")).unwrap_err();
    assert_eq!(defect(&error), Some(Defect::Foreign), "{error}");
    let (log, store) = two();
    let one = log.docs().get(DOCUMENTS, &format!("i/{}", id(1))).unwrap().unwrap();
    log.docs().put(DOCUMENTS, &format!("i/{}", id(2)), &NewRecord::json(one.payload())).unwrap();
    let error = store.get_by_id(&key("t"), &id(2)).unwrap_err();
    assert_eq!(defect(&error), Some(Defect::Foreign), "{error}");
}

#[test]
fn parts_with_other_bytes_are_told() {
    let (whole, _) = two();
    let parts = documents(&whole, DOCUMENTS);
    for (at, bytes) in parts.iter().filter(|(at, _)| at.starts_with("p/")) {
        let (log, store) = two();
        let mut other = bytes.clone();
        other[5] ^= 1;
        for other in [&other[..], &bytes[1..], b""] {
            log.docs().put(DOCUMENTS, at, &NewRecord::new(other)).unwrap();
            let error = store.get_latest(&key("t")).unwrap_err();
            let told = matches!(error, CheckpointError::Damaged { .. });
            assert!(told, "{at} of {} bytes: {error}", bytes.len());
            assert!(store.get_by_id(&key("t"), &id(1)).unwrap().is_some());
        }
        // What is put later does not lean on it.
        let mut again = checkpoint(&key("t"), 3);
        again.state = whole_state(&whole);
        store.put(&again).unwrap();
        assert!(store.get_latest(&key("t")).unwrap() == Some(again));
    }
}

fn whole_state(log: &RunLog) -> Value {
    Store::new(log).get_latest(&key("t")).unwrap().unwrap().state
}

#[test]
fn a_state_of_another_type_is_told_and_its_bytes_can_be_read() {
    let (log, store) = two();
    let numbers: Checkpointer<Vec<u64>> = Checkpointer::new(&log);
    let error = numbers.get_latest(&key("t")).unwrap_err();
    assert!(matches!(error, CheckpointError::OtherShape { line: 1, .. }), "{error}");
    let bytes = numbers.state_bytes(&key("t"), &id(2)).unwrap().unwrap();
    let state = serde_json::from_slice::<Value>(&bytes).unwrap();
    assert_eq!(state, store.get_latest(&key("t")).unwrap().unwrap().state);
    assert_eq!(store.state_bytes(&key("t"), &id(1)).unwrap().unwrap(), b"{\"number\":1}");
    assert!(store.state_bytes(&key("t"), &id(3)).unwrap().is_none());
    // A state that cannot be JSON is refused before anything is written.
    let maps: Checkpointer<BTreeMap<(u8, u8), u8>> = Checkpointer::new(&log);
    let odd = maps.checkpoint(&key("maps"), 1, BTreeMap::from([((1, 2), 3)]), None).unwrap();
    let refused = maps.put(&odd);
    assert!(matches!(refused, Err(CheckpointError::Store(Error::Json { .. }))));
}

#[test]
fn no_bytes_in_any_document_make_a_call_panic() {
    let mut random = SplitMix64::new(19);
    let (whole, _) = two();
    let mut places = vec![(HEADS, "t".to_owned()), ("\0checkpoints/7/default", "next".into())];
    // All but most of the parts, which are alike.
    places.extend(documents(&whole, DOCUMENTS).into_keys().take(8).map(|at| (DOCUMENTS, at)));
    for (namespace, at) in places {
        for case in 0..12 {
            let (log, store) = two();
            let mut bytes = log.docs().get(namespace, &at).unwrap().unwrap().payload().to_vec();
            match case {
                0 => bytes.clear(),
                1 => bytes = b"null".to_vec(),
                2 => bytes = b"[[[[{}]]]]".to_vec(),
                3 => bytes = bytes.iter().map(|_| 0xff).collect(),
                _ => {
                    for _ in 0..case {
                        let place = random.below(bytes.len() as u64) as usize;
                        bytes[place] = b"0123456789\"{}[]:,f\n\xff"[random.below(20) as usize];
                    }
                }
            }
            log.docs().put(namespace, &at, &NewRecord::new(&bytes)).unwrap();
            // Whatever they answer.
            let _ = store.get_latest(&key("t"));
            let _ = store.get_by_id(&key("t"), &id(2));
            let _ = store.list_history(&key("t"), 9);
            let _ = store.state_bytes(&key("t"), &id(1));
            let _ = store.update_state(&key("t"), &id(1), json!(1));
            let _ = store.put(&checkpoint(&key("t"), 5));
            let _ = store.put(&checkpoint(&key("new"), 5));
            let _ = store.copy_thread(&key("t"), &key("copy"));
            let _ = store.prune(&key("t"), Some(1), None);
            let _ = store.delete_thread(&key("t"));
        }
    }
}

#[test]
fn nodes_that_lead_to_themselves_come_to_an_end() {
    let (log, store) = two();
    let at = "c/fffffffffffffffd";
    let document = log.docs().get(DOCUMENTS, at).unwrap().unwrap();
    let line: Value =
        serde_json::from_slice(document.payload().split(|byte| *byte == b'\n').next().unwrap())
            .unwrap();
    assert!(line["state"]["depth"].as_u64().unwrap() >= 1, "the state has nodes");
    let name = line["state"]["parts"][0].as_str().unwrap().to_owned();
    let number = u64::from_str_radix(&name, 16).unwrap();
    let node: Vec<u8> = [number; 100].iter().flat_map(|number| number.to_be_bytes()).collect();
    log.docs().put(DOCUMENTS, &format!("p/{name}"), &NewRecord::new(&node)).unwrap();
    replace(&log, DOCUMENTS, at, "\"depth\":1", "\"depth\":12");
    assert!(defect(&store.get_latest(&key("t")).unwrap_err()).is_some());
    let _ = store.prune(&key("t"), Some(1), None);
}
