//! Files that grow: wherever a file is cut when it is imported first, and however it goes on, its
//! run is that of the whole file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use runlog::{ContentType, Options, RunLog, RunStatus, Timestamp};
use tempfile::TempDir;

use crate::output::Output;

use super::file::Importer;
use super::report::Reporter;
use super::round::Rounds;
use super::tree;

/// A folder of files, and a store beside it.
struct Place {
    folder: TempDir,
    log: RunLog,
}

/// All that a store says of a run and its records.
#[derive(Debug, PartialEq)]
struct Told {
    status: RunStatus,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    late: u64,
    records: Vec<(Option<String>, ContentType, Timestamp, bool, String)>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("logs")).expect("a folder");
        let log = Options::new().create(folder.path().join("store")).expect("a store");
        Self { folder, log }
    }

    fn logs(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    /// Writes a file as of a fixed time.
    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.logs().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(&path, bytes).expect("a file");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        File::options().write(true).open(path).and_then(|file| file.set_modified(at)).expect("set");
    }

    fn importer(&self, follows: bool) -> Importer<'_> {
        Importer { log: &self.log, end: None, replace: false, follows }
    }

    /// One round over the files; none may be refused.
    fn round(&self, rounds: &mut Rounds, follows: bool) {
        let found = tree::find(&[self.logs()], Some("a"));
        let mut out = Output::nowhere();
        let mut reporter = Reporter::new(&mut out, false, false);
        rounds.round(&self.importer(follows), found, &mut reporter).expect("a round");
        let exit = reporter.finish(Path::new("store")).expect("sums");
        assert_eq!(exit, crate::failure::Exit::Fine);
    }

    fn told(&self, run: &str) -> Told {
        let summary = self.log.run(("a", run)).expect("a run");
        let records = self.log.trace(&summary).expect("a trace").map(|record| {
            let record = record.expect("a record");
            let payload = String::from_utf8_lossy(record.payload()).into_owned();
            let kind = record.kind().map(str::to_owned);
            (kind, record.content_type(), record.timestamp(), record.is_late(), payload)
        });
        Told {
            status: summary.status,
            started_at: summary.started_at,
            ended_at: summary.ended_at,
            late: summary.late_records,
            records: records.collect(),
        }
    }
}

const CAR: &str = concat!(
    r#"{"record":"started","run_id":"r","started_at":"2026-01-02T03:04:05Z"}"#,
    "\n",
    "{\"record\":\"turn\",\"prompt\":\"\\u00e9\u{e9}\",\"verifier_verdict\":\"pass\"}",
    "\n",
    r#"{"record":"ended","termination":{"kind":"incomplete"},"ended_at":"2026-01-02T03:05:00Z"}"#,
    "\n",
    r#"{"record":"turn","index":1,"verifier_verdict":"not_run"}"#,
    "\n",
    r#"{"record":"ended","termination":{"kind":"outcome","status":"success"}}"#,
    "\n",
);

const CLAUDE: &str = concat!(
    r#"{"type":"summary","summary":"s","leafUuid":"l"}"#,
    "\n",
    r#"{"type":"user","uuid":"u","sessionId":"s","timestamp":"2026-01-02T03:04:05Z"}"#,
    "\r\n\n",
    r#"{"type":"system","uuid":"v","sessionId":"s"}"#,
    "\n",
    r#"{"type":"assistant","uuid":"w","sessionId":"s","timestamp":"2026-01-02T03:04:06Z"}"#,
    "\n",
);

/// Welded, torn, blank and scalar lines, and a last one without an end.
const DAMAGED: &str =
    "1\n12\n{\"type\":\"a\"}{\"b\":1}\n{\"type\":\n\n \r\n[\"x\"]\n\u{feff}{}\n{\"z\":0}";

const TEXT: &str = "a line\nand \u{e9}\u{1f980}\n\nthe last one";

const FILES: [(&str, &str); 4] =
    [("car.jsonl", CAR), ("claude.jsonl", CLAUDE), ("damaged.jsonl", DAMAGED), ("t.txt", TEXT)];

/// The file as it is when it is imported whole at once.
fn whole(name: &str, text: &str) -> Told {
    let place = Place::new();
    place.write(name, text.as_bytes());
    place.round(&mut Rounds::default(), false);
    place.told(name.split('.').next().expect("a name"))
}

/// Cuts each file at every byte, imports all cuts, then all whole files.
fn cut_and_continued(first_follows: bool, then_follows: bool) {
    for (name, text) in FILES {
        let wanted = whole(name, text);
        let place = Place::new();
        let ending = name.split('.').next_back().expect("an ending");
        let names: Vec<String> = (0..=text.len()).map(|cut| format!("r{cut}.{ending}")).collect();
        let mut rounds = Rounds::default();
        for (cut, name) in names.iter().enumerate() {
            // In the middle of a letter a file of text is not text: no program writes it so.
            let is_letter = ending != "txt" || text.is_char_boundary(cut);
            place.write(name, &text.as_bytes()[..if is_letter { cut } else { 0 }]);
        }
        place.round(&mut rounds, first_follows);
        if first_follows != then_follows {
            rounds = Rounds::default();
        }
        for name in &names {
            place.write(name, text.as_bytes());
        }
        place.round(&mut rounds, then_follows);
        if then_follows {
            // What has no end waits for it, and comes in the end.
            place.round(&mut Rounds::default(), false);
        }
        for cut in 0..=text.len() {
            assert_eq!(place.told(&format!("r{cut}")), wanted, "{name} cut at {cut}");
        }
        place.log.close().expect("closed");
    }
}

#[test]
fn a_file_that_is_followed_from_any_cut_gives_the_run_of_the_whole_file() {
    cut_and_continued(true, true);
}

#[test]
fn a_file_that_is_imported_again_from_any_cut_gives_the_run_of_the_whole_file() {
    cut_and_continued(false, false);
}

#[test]
fn a_file_that_is_imported_and_then_followed_gives_the_run_of_the_whole_file() {
    cut_and_continued(false, true);
}

#[test]
fn a_file_that_grows_byte_by_byte_gives_the_run_of_the_whole_file() {
    for (name, text) in [FILES[1], FILES[2]] {
        let place = Place::new();
        let mut rounds = Rounds::default();
        for cut in 0..=text.len() {
            place.write(name, &text.as_bytes()[..cut]);
            place.round(&mut rounds, true);
            // A line is there as soon as it has its end.
            let lines = text[..text.floor_char_boundary(cut)].matches('\n').count() as u64;
            let stem = name.split('.').next().expect("a name");
            let records = place.log.run(("a", stem)).map_or(0, |run| run.records);
            assert_eq!(records, lines, "{name} cut at {cut}");
        }
        place.round(&mut Rounds::default(), false);
        let stem = name.split('.').next().expect("a name");
        assert_eq!(place.told(stem), whole(name, text), "{name}");
    }
}

#[test]
fn a_followed_file_that_is_written_anew_is_told_and_kept() {
    let place = Place::new();
    place.write("r.jsonl", b"{\"a\":1}\n{\"a\":2}\n");
    let mut rounds = Rounds::default();
    place.round(&mut rounds, true);
    // Longer than it was, and another one in front of where it was read to.
    place.write("r.jsonl", b"{\"a\":1}\n{\"b\":2}\n{\"a\":3}\n");
    let found = tree::find(&[place.logs()], Some("a"));
    let mut out = Output::nowhere();
    let mut reporter = Reporter::new(&mut out, false, false);
    let wrote = rounds.round(&place.importer(true), found, &mut reporter).expect("a round");
    assert!(!wrote);
    assert_eq!(place.told("r").records.len(), 2);
    let exit = reporter.finish(Path::new("store")).expect("sums");
    assert_eq!(exit, crate::failure::Exit::Error);
}

#[test]
fn a_followed_document_is_imported_when_it_is_whole() {
    let place = Place::new();
    let text = br#"{"messages":[{"role":"user","content":"q"},{"role":"assistant"}]}"#;
    let mut rounds = Rounds::default();
    for cut in 0..text.len() {
        place.write("r.json", &text[..cut]);
        place.round(&mut rounds, true);
        assert!(place.log.run(("a", "r")).is_err(), "cut at {cut}");
    }
    place.write("r.json", text);
    place.round(&mut rounds, true);
    assert_eq!(place.told("r").records.len(), 4);
}

/// Goal: what a program keeps that follows files is bounded by the files that are there.
#[test]
fn files_that_are_gone_are_forgotten() {
    let place = Place::new();
    let mut rounds = Rounds::default();
    for name in ["gone.jsonl", "gone/gone.jsonl", "gone.json", "stays.jsonl"] {
        place.write(name, "{\"a\":\n".repeat(2000).as_bytes());
    }
    std::os::unix::fs::symlink("gone.jsonl", place.logs().join("gone-link")).expect("a link");
    place.write("gone.json", b"{");
    place.round(&mut rounds, true);
    assert!(format!("{rounds:?}").contains("gone"));
    for name in ["gone.jsonl", "gone/gone.jsonl", "gone.json", "gone-link"] {
        fs::remove_file(place.logs().join(name)).expect("removed");
    }
    place.round(&mut rounds, true);
    let kept = format!("{rounds:?}");
    assert!(kept.contains("stays") && !kept.contains("gone"), "{kept}");
    // Of what was read, a digest is enough.
    assert!(kept.len() < 4096, "{} bytes", kept.len());
}

#[test]
fn a_followed_file_that_moved_keeps_its_run_and_a_new_one_of_its_name_gets_another() {
    let place = Place::new();
    let mut rounds = Rounds::default();
    place.write("1/x.jsonl", b"{\"a\":1}\n");
    place.round(&mut rounds, true);
    fs::rename(place.logs().join("1"), place.logs().join("2")).expect("renamed");
    place.write("2/x.jsonl", b"{\"a\":1}\n{\"a\":2}\n");
    place.round(&mut rounds, true);
    assert_eq!(place.told("x").records.len(), 2);
    // It is gone, and another one comes: in the same round, and in a later one.
    fs::remove_dir_all(place.logs().join("2")).expect("removed");
    place.write("3/x.jsonl", b"{\"b\":1}\n");
    place.round(&mut rounds, true);
    fs::remove_dir_all(place.logs().join("3")).expect("removed");
    place.round(&mut rounds, true);
    place.write("0/x.jsonl", b"{\"c\":1}\n{\"c\":2}\n{\"c\":3}\n");
    place.round(&mut rounds, true);
    assert_eq!(place.told("x").records.len(), 2);
    assert_eq!(place.told("x.jsonl").records.len(), 1);
    assert_eq!(place.told("0/x.jsonl").records.len(), 3);
    // They come back, and each has its own.
    place.write("2/x.jsonl", b"{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
    place.write("3/x.jsonl", b"{\"b\":1}\n{\"b\":2}\n");
    place.round(&mut rounds, true);
    assert_eq!(place.told("x").records.len(), 3);
    assert_eq!(place.told("x.jsonl").records.len(), 2);
    assert_eq!(place.told("0/x.jsonl").records.len(), 3);
}
