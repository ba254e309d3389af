//! What is refused leaves the folder as it was.

use std::fs;

use runlog::{Options, Outcome, Reader};
use runlog_parquet::{ExportError, export};

fn store(folder: &std::path::Path) -> Reader {
    let path = folder.join("runs.runlog");
    let log = Options::new().open(&path).expect("a store");
    let run = log.start_run("agent", "run", ()).expect("a run");
    let _ = run.append(b"\xff\x00 not text").expect("an append");
    let _ = run.append(b"\"text\"").expect("an append");
    let _ = run.end(&Outcome::completed()).expect("an end");
    log.close().expect("closed");
    Reader::open(path).expect("a reader")
}

#[test]
fn a_table_that_is_there_is_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    for name in ["runs.parquet", "records.parquet"] {
        let tables = folder.path().join(name.replace('.', "-"));
        fs::create_dir(&tables).expect("a folder");
        fs::write(tables.join(name), b"mine").expect("a file");
        let refused = export(&store, &tables, None).expect_err("it is there");
        assert!(matches!(&refused, ExportError::Exists(path) if path.ends_with(name)), "{refused}");
        assert_eq!(fs::read(tables.join(name)).expect("the file"), b"mine");
        assert_eq!(fs::read_dir(&tables).expect("the folder").count(), 1);
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("a file");
    let refused = export(&store, &file.join("below"), None).expect_err("a file is in the way");
    assert!(matches!(refused, ExportError::File { .. }), "{refused}");
    assert!(refused.to_string().contains("below"), "{refused}");
}

#[test]
fn an_empty_store_and_an_unknown_agent_give_tables_without_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let tables = folder.path().join("tables");
    let exported = export(&store, &tables, Some("other")).expect("exported");
    assert_eq!((exported.runs, exported.records, exported.damaged), (0, 0, 0));
    assert_eq!(fs::read_dir(&tables).expect("the folder").count(), 2);
}
