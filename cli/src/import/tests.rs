//! Files that grow: wherever a file is cut when it is imported first, and however it goes on, its
//! run is that of the whole file.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use runlog::{
    Allow, ContentType, Metadata, NewRecord, Options, Outcome, RunLog, RunQuery, RunStatus,
    RunSummary, RunWriter, Timestamp,
};
use tempfile::TempDir;

use crate::formats::origin::Origin;
use crate::output::Output;

use super::anew::{Anew, GOES, STAND_IN, StandIn};
use super::crew::Job;
use super::file::{Done, FileError, Importer};
use super::place::Opened;
use super::report::Reporter;
use super::round::Rounds;
use super::tree::{self, Source};

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

/// A copy has the run of its original only as long as it has no more.
#[test]
fn a_followed_copy_that_grows_gets_a_run_of_its_own() {
    let (place, original) = (Place::new(), Place::new());
    original.write("x.jsonl", b"{\"a\":1}\n");
    let found = tree::find(&[original.logs()], Some("a"));
    let mut out = Output::nowhere();
    let mut reporter = Reporter::new(&mut out, false, false);
    let importer = place.importer(false);
    Rounds::default().round(&importer, found, &mut reporter).expect("a round");
    let mut rounds = Rounds::default();
    place.write("x.jsonl", b"{\"a\":1}\n");
    place.round(&mut rounds, true);
    assert!(place.log.run(("a", "x.jsonl")).is_err());
    place.write("x.jsonl", b"{\"a\":1}\n{\"c\":1}\n");
    place.round(&mut rounds, true);
    assert_eq!(place.told("x").records.len(), 1);
    assert_eq!(place.told("x.jsonl").records.len(), 2);
    place.write("x.jsonl", b"{\"a\":1}\n{\"c\":1}\n{\"c\":2}\n");
    place.round(&mut rounds, true);
    assert_eq!(place.told("x").records.len(), 1);
    assert_eq!(place.told("x.jsonl").records.len(), 3);
}

/// A file that is too long to stay in memory, whose run ends in a half written line, and grew.
fn long_and_completed(place: &Place) -> (Source, u64) {
    let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(1 << 10));
    let mut text = line.repeat(9 << 10);
    text.push_str("{\"last\":");
    place.write("r.jsonl", text.as_bytes());
    place.round(&mut Rounds::default(), false);
    text.push_str("1}\n");
    place.write("r.jsonl", text.as_bytes());
    let mut found = tree::find(&[place.logs()], Some("a"));
    (found.sources.remove(0), text.len() as u64)
}

/// Imports a file; `between` is called once, behind the first of its readings of so many bytes.
fn import_beside(
    place: &Place,
    source: &Source,
    bytes: u64,
    between: impl Fn(&Path),
) -> Result<Done, FileError> {
    let (told, path) = (Cell::new(0), place.logs().join("r.jsonl"));
    let progress = |more: u64| {
        let before = told.replace(told.get() + more);
        if before < bytes && told.get() >= bytes {
            between(&path);
        }
    };
    let job = Job { source, mark: None };
    place.importer(false).import(&job, &mut Opened::default(), &progress)
}

/// All runs of the store that are not `a/r`.
fn others(place: &Place) -> Vec<String> {
    let runs = place.log.runs(&RunQuery::new()).map(|run| run.expect("a run"));
    let names = runs.map(|run| format!("{}/{}", run.agent, run.run));
    names.filter(|name| name != "a/r").collect()
}

#[test]
fn a_run_stays_as_it_was_if_its_file_becomes_shorter_while_it_is_imported_anew() {
    let place = Place::new();
    let (source, len) = long_and_completed(&place);
    let before = place.told("r");
    let text = fs::read(place.logs().join("r.jsonl")).expect("a file");
    // In the second reading.
    let failed = import_beside(&place, &source, len, |path| {
        File::options().write(true).open(path).and_then(|file| file.set_len(100)).expect("cut");
    });
    assert!(matches!(failed, Err(FileError::File(_))), "{failed:?}");
    assert!(place.told("r") == before, "the run is as it was");
    assert_eq!(others(&place), [""; 0]);
    place.write("r.jsonl", &text);
    place.round(&mut Rounds::default(), false);
    assert_eq!(place.told("r").records.len(), before.records.len());
    assert_eq!(place.told("r").records.last().expect("a record").4, "{\"last\":1}");
}

#[test]
fn a_run_stays_as_it_was_if_its_file_becomes_another_while_it_is_imported_anew() {
    let place = Place::new();
    let (source, len) = long_and_completed(&place);
    let before = place.told("r");
    // Between the two readings: all lines but the last one are compared by then.
    let failed = import_beside(&place, &source, len - 11, |path| {
        let mut file = File::options().write(true).open(path).expect("the file");
        let mut other = "{\"other\":1}\n".repeat(1 << 20);
        other.truncate(usize::try_from(len).expect("a length"));
        file.write_all(other.as_bytes()).expect("written");
    });
    assert!(matches!(failed, Err(FileError::File(_))), "{failed:?}");
    assert!(place.told("r") == before, "the run is as it was");
    assert_eq!(others(&place), [""; 0]);
}

/// A store with the run of a file, whole as `a/w` and its beginning as `a/r`, and no file any more.
fn begun() -> (Place, Told, Told) {
    let place = Place::new();
    let cut = CAR.find("ended\"").expect("an end");
    place.write("r.jsonl", &CAR.as_bytes()[..cut]);
    place.write("w.jsonl", CAR.as_bytes());
    place.round(&mut Rounds::default(), false);
    for name in ["r.jsonl", "w.jsonl"] {
        fs::remove_file(place.logs().join(name)).expect("removed");
    }
    let (before, wanted) = (place.told("r"), place.told("w"));
    (place, before, wanted)
}

impl Place {
    fn origin(&self, run: &str) -> Origin {
        let metadata = self.log.metadata(("a", run)).expect("metadata");
        Origin {
            imported_from: "r.jsonl".to_owned(),
            ..Origin::of(metadata.as_ref()).expect("one")
        }
    }

    /// The stand-in for `a/r`, with all that `a/w` has.
    fn stand_in(&self) -> RunSummary {
        let (old, whole) =
            (self.log.run(("a", "r")).expect("a run"), self.log.run(("a", "w")).expect("a run"));
        let (importer, anew) = (self.importer(false), Anew { old: &old, may_lose: false });
        let said = StandIn::new(&old, &self.origin("w"));
        let fill = |run: &RunWriter| importer.copy(&whole, run);
        importer.stand_in(anew, &said, whole.started_at, fill).expect("a stand-in")
    }

    fn end(&self, run: &str) {
        let end = Outcome::interrupted();
        let _ = self.log.end_run("a", run, &end, Allow::nothing()).expect("an end");
    }

    /// Starts the copy of a stand-in and appends so many records.
    fn part(&self, records: usize) {
        let whole = self.log.run(("a", "w")).expect("a run");
        let metadata = self.origin("w").to_json();
        let start = Metadata::json(metadata.as_bytes()).at(whole.started_at);
        let run = self.log.start_run("a", "r", start).expect("a run");
        for record in self.log.trace(&whole).expect("a trace").take(records) {
            let record = record.expect("a record");
            let copy = NewRecord::new(record.payload())
                .kind(record.kind().expect("a kind"))
                .content_type(record.content_type())
                .at(record.timestamp());
            let _ = run.append_record(&copy).expect("an append");
        }
    }
}

/// Goal: wherever an import anew is cut short, the next import finishes it, also without the file.
/// Method: each state that the steps pass through, made by hand.
#[test]
fn an_import_anew_that_was_cut_short_is_finished_without_the_file() {
    let records = CAR.lines().count();
    let states = ["stand-in", "ended", "deleted"].map(|state| (state, 0, false)).into_iter();
    let parts = (0..=records).flat_map(|n| [("part", n, false), ("part", n, true)]);
    for (state, records, is_adopted) in states.chain(parts) {
        let (place, _, wanted) = begun();
        let stand_in = place.stand_in();
        assert!(stand_in.held);
        if state != "stand-in" {
            let _ = place.log.hold(&stand_in, GOES).expect("held");
            place.end("r");
        }
        if matches!(state, "deleted" | "part") {
            let _ = place.log.delete_run(("a", "r")).expect("deleted");
        }
        if state == "part" {
            place.part(records);
            // By `runlog adopt`.
            if is_adopted {
                place.end("r");
            }
        }
        let is_whole = records as u64 == stand_in.records;
        let left = place.importer(false).settle_all().expect("settled");
        assert!(left.is_empty(), "{state} {records}: {left:?}");
        assert_eq!(others(&place), ["a/w"], "{state} {records}");
        // What somebody ended stays as it is.
        if !(is_whole && is_adopted) {
            assert_eq!(place.told("r"), wanted, "{state} {records}");
        }
        assert_eq!(place.told("r").records, wanted.records, "{state} {records}");
        assert!(place.importer(false).settle_all().expect("settled").is_empty());
    }
}

#[test]
fn a_stand_in_that_is_not_whole_or_not_needed_goes_and_the_run_stays() {
    let (place, before, wanted) = begun();
    let stand_in = place.stand_in();
    let _ = place.log.release(&stand_in).expect("released");
    assert!(place.importer(false).settle_all().expect("settled").is_empty());
    assert!(place.told("r") == before);
    assert_eq!(others(&place), ["a/w"]);
    place.write("r.jsonl", CAR.as_bytes());
    place.round(&mut Rounds::default(), false);
    assert_eq!(place.told("r"), wanted);
    assert_eq!(others(&place), ["a/w"]);
    // A run that only has the agent of stand-ins is none.
    drop(place.log.start_run(STAND_IN, "r", ()).expect("a run"));
    assert!(place.importer(false).settle_all().expect("settled").is_empty());
    assert_eq!(others(&place).len(), 2);
}

/// Goal: a run that the user deleted does not come back.
#[test]
fn a_stand_in_whose_run_the_user_deleted_goes_too() {
    for (erases, begins) in [(false, false), (true, false), (true, true)] {
        let (place, ..) = begun();
        let stand_in = place.stand_in();
        if begins {
            let _ = place.log.hold(&stand_in, GOES).expect("held");
        }
        place.end("r");
        if erases {
            let _ = place.log.erase_run(("a", "r")).expect("erased");
        } else {
            let _ = place.log.delete_run(("a", "r")).expect("deleted");
        }
        let left = place.importer(false).settle_all().expect("settled");
        assert_eq!(others(&place), ["a/w"]);
        assert!(place.log.run(("a", "r")).is_err());
        assert_eq!(left.len(), 1);
        assert!(left[0].1.to_string().contains("was deleted"), "{left:?}");
        assert!(place.importer(false).settle_all().expect("settled").is_empty());
    }
}

#[test]
fn a_stand_in_waits_while_its_run_has_an_end_of_the_users_or_is_of_another_file() {
    let waits = |place: &Place| {
        let before = place.told("r");
        let left = place.importer(false).settle_all().expect("settled");
        assert_eq!(left.len(), 1);
        assert!(left[0].1.to_string().contains("waits for it"), "{left:?}");
        assert!(place.told("r") == before);
        assert_eq!(others(place).len(), 2);
    };
    let (place, ..) = begun();
    let _ = place.stand_in();
    let failed = Outcome::failed();
    let _ = place.log.end_run("a", "r", &failed, Allow::nothing()).expect("an end");
    waits(&place);
    // One without records, which all runs begin with.
    let (place, ..) = begun();
    let old = place.log.run(("a", "r")).expect("a run");
    let said = StandIn::new(&old, &place.origin("w"));
    let anew = Anew { old: &old, may_lose: true };
    let stand_in = place.importer(false).stand_in(anew, &said, old.started_at, |_| Ok(()));
    let _ = place.log.hold(&stand_in.expect("a stand-in"), GOES).expect("held");
    place.end("r");
    let _ = place.log.delete_run(("a", "r")).expect("deleted");
    let run = place.log.start_run("a", "r", ()).expect("a run");
    let _ = run.append_record(&NewRecord::new(b"{}")).expect("an append");
    waits(&place);
}

#[test]
fn a_stand_in_waits_while_its_run_is_held_or_another_and_both_stay() {
    let (place, _, wanted) = begun();
    let stand_in = place.stand_in();
    let waits = |before: &Told| {
        let left = place.importer(false).settle_all().expect("settled");
        assert_eq!(left.len(), 1);
        assert!(left[0].1.to_string().contains("waits for it"), "{left:?}");
        assert!(place.told("r") == *before);
        assert_eq!(place.log.run(&stand_in).expect("a run"), stand_in);
    };
    // Another program appends.
    let metadata = NewRecord::new(b"{}");
    let _ = place.log.append_to("a", "r", &metadata, Allow::nothing()).expect("an append");
    waits(&place.told("r"));
    place.end("r");
    let _ = place.log.delete_run(("a", "r")).expect("deleted");
    let run = place.log.start_run("a", "r", ()).expect("a run");
    waits(&place.told("r"));
    let _ = run.end(&Outcome::interrupted()).expect("an end");
    let _ = place.log.delete_run(&run).expect("deleted");
    place.part(2);
    let _ = place.log.hold(("a", "r"), "audit").expect("held");
    waits(&place.told("r"));
    let _ = place.log.release(("a", "r")).expect("released");
    assert!(place.importer(false).settle_all().expect("settled").is_empty());
    assert_eq!(place.told("r"), wanted);
    assert_eq!(others(&place), ["a/w"]);
}
