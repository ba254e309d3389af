//! How what is written is put together, and what a start answers.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, ContentType, Durability, Metadata, NewRecord, Options, Outcome, RunLog, RunStatus,
    Timestamp,
};

fn open() -> RunLog {
    Options::new().background(false).create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

#[test]
fn records_metadata_and_outcomes_are_made_the_same_way() {
    let (log, text) = (open(), ContentType::TEXT);
    let level = Durability::Process;
    let metadata = Metadata::new(b"m").content_type(text).durability(level).at(Timestamp(1));
    let run = log.start_run("agent", "run", metadata).unwrap();
    let record = NewRecord::new(b"r").content_type(text).durability(level).at(Timestamp(2));
    let _ = run.append_record(&record).unwrap();
    let outcome = Outcome::failed().bytes(b"o").content_type(text).durability(level);
    let _ = run.end(&outcome.at(Timestamp(3))).unwrap();

    let said = log.metadata("run").unwrap().unwrap();
    assert_eq!((said.content_type(), said.payload()), (text, &b"m"[..]));
    assert_eq!(log.run("run").unwrap().started_at, Timestamp(1));
    let record = log.trace("run").unwrap().next().unwrap().unwrap();
    assert_eq!((record.content_type(), record.payload()), (text, &b"r"[..]));
    assert_eq!(record.timestamp(), Timestamp(2));
    let said = log.outcome("run").unwrap().unwrap();
    assert_eq!((said.status(), said.at()), (RunStatus::Failed, Timestamp(3)));
    assert_eq!((said.content_type(), said.payload()), (text, &b"o"[..]));
}

#[test]
fn json_is_said_the_same_way_of_records_metadata_and_outcomes() {
    let log = open();
    let run = log.start_run("agent", "run", Metadata::json(b"{}")).unwrap();
    let _ = run.append_record(&NewRecord::json(b"[1]")).unwrap();
    let _ = run.end(&Outcome::completed().json(b"[2]")).unwrap();
    let record = log.trace("run").unwrap().next().unwrap().unwrap();
    let outcome = log.outcome("run").unwrap().unwrap();
    let metadata = log.metadata("run").unwrap().unwrap();
    let said = [metadata.content_type(), record.content_type(), outcome.content_type()];
    assert_eq!(said, [ContentType::JSON; 3]);
    assert_eq!((metadata.into_payload(), outcome.into_payload()), (b"{}".into(), b"[2]".into()));
}

#[test]
fn a_value_as_json_can_have_a_kind_a_level_and_a_time() {
    let log = open();
    let run = log.start_run("agent", "run", ()).unwrap();
    let kind = String::from("payment");
    let like = NewRecord::new(b"ignored").kind(&kind).durability(Durability::Disk);
    let appended = run.append_json_with(&[1, 2], like.at(Timestamp(7))).unwrap();
    assert!(appended.ticket.is_durable());
    let _ = run.append_json("plain").unwrap();
    let records: Vec<_> = log.trace("run").unwrap().map(Result::unwrap).collect();
    assert_eq!((records[0].kind(), records[0].payload()), (Some("payment"), &b"[1,2]"[..]));
    assert_eq!(records[0].timestamp(), Timestamp(7));
    assert_eq!((records[1].kind(), records[1].payload()), (None, &b"\"plain\""[..]));
    assert!(records.iter().all(|record| record.content_type() == ContentType::JSON));
}

#[test]
fn a_start_says_whether_it_found_the_run() {
    let log = open();
    let run = log.start_run("agent", "run", ()).unwrap();
    assert!(!run.was_found());
    assert!(log.start_run("agent", "run", ()).unwrap().was_found());
    assert!(log.writer("run").unwrap().was_found());
    let _ = run.end(&Outcome::completed()).unwrap();
    assert!(log.start_run("agent", "run", ()).unwrap().was_found(), "it stays ended");
    log.delete_run("run").unwrap();
    assert!(!log.start_run("agent", "run", ()).unwrap().was_found(), "another run");
    // Begun by a record that came before its start.
    let allow = Allow::everything();
    let _ = log.append_to("agent", "early", &NewRecord::new(b"1"), allow).unwrap();
    assert!(log.start_run("agent", "early", ()).unwrap().was_found());
}
