//! Damage says whose it is: the agent, the run and the record, whoever met it.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Corruption, Error, Metadata, NewRecord, Options, Outcome, RunLog};

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false).index(false)
}

/// A store with two runs of the same id, one of which has a metadata, three records and an outcome
/// with texts of their own, and a document; the text is changed by one bit afterwards.
fn with_damage_in(text: &str, sealed: bool) -> RunLog {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    drop(log.start_run("other", "run", ()).unwrap());
    let run = log.start_run("agent", "run", Metadata::new(b"the metadata")).unwrap();
    for text in ["record zero", "record one", "record two"] {
        let _ = run.append(text.as_bytes()).unwrap();
    }
    let outcome = Outcome::completed().bytes(b"the outcome");
    let _ = run.end(&outcome).unwrap();
    let _ = log.docs().put("space", "key", &NewRecord::new(b"the document")).unwrap();
    if sealed {
        let filler = log.start_run("agent", "filler", ()).unwrap();
        while log.stats().unwrap().sealed_segments == 0 {
            let _ = filler.append(&[7; 4000]).unwrap();
        }
    }
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let at: Vec<usize> =
        (0..image.len()).filter(|at| image[*at..].starts_with(text.as_bytes())).collect();
    let [at] = at[..] else { panic!("{text:?} is at {at:?}") };
    image[at] ^= 1;
    options().open_storage(Arc::new(MemoryStorage::from_bytes(image))).unwrap()
}

/// The agent, the run and the record that damage names.
fn names(damage: &Corruption) -> (Option<&str>, Option<&str>, Option<u64>) {
    let agent = damage.agent.as_ref().map(|agent| agent.as_str());
    let run = damage.run.as_ref().map(|run| run.as_str());
    (agent, run, damage.seq.map(|seq| seq.0))
}

#[track_caller]
fn corruption<T>(result: runlog::Result<T>) -> Corruption {
    match result {
        Err(Error::Corrupt(damage)) => damage,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no damage"),
    }
}

#[test]
fn a_damaged_record_names_its_agent_its_run_and_itself() {
    for sealed in [false, true] {
        let log = with_damage_in("record one", sealed);
        let expected = (Some("agent"), Some("run"), Some(1));
        let verified = log.verify().unwrap().problems;
        let told: Vec<_> = verified.iter().map(names).collect();
        assert_eq!(told, [expected], "sealed: {sealed}");
        let text = verified[0].to_string();
        assert!(text.ends_with(r#"(agent "agent", run "run", record 1)"#), "{text}");

        let read = corruption(log.trace(("agent", "run")).unwrap().collect::<Result<Vec<_>, _>>());
        assert_eq!(names(&read), expected, "sealed: {sealed}");
        assert_eq!(log.trace(("other", "run")).unwrap().count(), 0);
    }
}

#[test]
fn a_damaged_start_and_a_damaged_end_name_their_agent_and_run() {
    for sealed in [false, true] {
        let expected = (Some("agent"), Some("run"), None);
        let log = with_damage_in("the outcome", sealed);
        assert_eq!(names(&corruption(log.outcome(("agent", "run")))), expected);
        let problems = log.verify().unwrap().problems;
        assert_eq!(problems.iter().map(names).collect::<Vec<_>>(), [expected], "sealed: {sealed}");
    }
    // Of a sealed segment the directory says who it is, also where the START itself does not.
    let log = with_damage_in("the metadata", true);
    let expected = (Some("agent"), Some("run"), None);
    assert_eq!(names(&corruption(log.metadata(("agent", "run")))), expected);
    let problems = log.verify().unwrap().problems;
    assert_eq!(problems.iter().map(names).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_damaged_document_names_its_namespace_and_key() {
    for sealed in [false, true] {
        let log = with_damage_in("the document", sealed);
        let expected = (Some("space"), Some("key"), Some(0));
        assert_eq!(
            names(&corruption(log.docs().get("space", "key"))),
            expected,
            "sealed: {sealed}"
        );
        let problems = log.verify().unwrap().problems;
        assert_eq!(problems.iter().map(names).collect::<Vec<_>>(), [expected], "sealed: {sealed}");
    }
}

#[test]
fn recovery_names_the_agent_and_the_run_of_what_it_met() {
    let log = with_damage_in("record one", false);
    let met = &log.recovery_report().damaged;
    let told: Vec<_> = met.iter().map(names).collect();
    assert_eq!(told, [(Some("agent"), Some("run"), Some(1))]);
}
