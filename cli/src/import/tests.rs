//! Files that grow: wherever a file is cut when it is imported first, and however it goes on, its
//! run is that of the whole file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use runlog::{
    Allow, ContentType, Metadata, NewRecord, Options, Outcome, RunLog, RunQuery, RunStatus,
    RunSummary, Timestamp,
};
use tempfile::TempDir;

use crate::formats::Format;
use crate::formats::origin::Origin;
use crate::output::Output;

use super::args::ImportArgs;
use super::done::Done;
use super::file::Importer;
use super::input::{IN_MEMORY, Input, Text};
use super::refusal::FileError;
use super::replace::{STAND_IN, StandIn};
use super::report::Reporter;
use super::scan_loop::ScanLoop;
use super::tree::{self, Choice, Found};

/// A folder of files, and a store beside it.
struct Fixture {
    folder: TempDir,
    log: RunLog,
    /// Of an import, and of one that follows.
    args: [ImportArgs; 2],
    /// The longest file of lines that is held in memory.
    in_memory: u64,
}

/// All files of lines in memory, those of more bytes than these not, and none.
const LIMITS: [u64; 3] = [IN_MEMORY, 40, 0];

/// All that a store says of a run and its records.
#[derive(Debug, PartialEq)]
struct Told {
    status: RunStatus,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    late: u64,
    records: Vec<(Option<String>, ContentType, Timestamp, bool, String)>,
}

/// The files of a folder, whose agent is `a`.
fn found(folder: &Path) -> Found {
    let args = ImportArgs { agent: Some("a".to_owned()), ..ImportArgs::default() };
    let choice = Choice { args, ..Choice::default() };
    tree::find(&[folder.to_path_buf()], &choice)
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("logs")).expect("a folder");
        let log = Options::new().create(folder.path().join("store")).expect("a store");
        let follows = ImportArgs { follow: true, ..ImportArgs::default() };
        Self { folder, log, args: [ImportArgs::default(), follows], in_memory: IN_MEMORY }
    }

    fn of_limit(in_memory: u64) -> Self {
        Self { in_memory, ..Self::new() }
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
        self.importer_with(&self.args[usize::from(follows)])
    }

    fn importer_with<'a>(&'a self, args: &'a ImportArgs) -> Importer<'a> {
        let mut importer = Importer::new(&self.log, None, args);
        importer.in_memory = self.in_memory;
        importer
    }

    /// One round over the files; none may be refused.
    fn scan(&self, scan: &mut ScanLoop, follows: bool) {
        let found = found(&self.logs());
        let mut out = Output::nowhere();
        let options = ImportArgs::default();
        let mut reporter = Reporter::new(&mut out, &options);
        scan.run(&self.importer(follows), found, &mut reporter).expect("a round");
        assert_eq!(reporter.sums.errors, 0);
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
    let fixture = Fixture::new();
    fixture.write(name, text.as_bytes());
    fixture.scan(&mut ScanLoop::default(), false);
    fixture.told(name.split('.').next().expect("a name"))
}

/// Cuts each file at every byte, imports all cuts, then all whole files.
fn cut_and_continued(first_follows: bool, then_follows: bool) {
    let files = FILES.into_iter().flat_map(|file| LIMITS.map(|limit| (file, limit)));
    for ((name, text), in_memory) in files {
        let wanted = whole(name, text);
        let fixture = Fixture::of_limit(in_memory);
        let ending = name.split('.').next_back().expect("an ending");
        let names: Vec<String> = (0..=text.len()).map(|cut| format!("r{cut}.{ending}")).collect();
        let mut scan = ScanLoop::default();
        for (cut, name) in names.iter().enumerate() {
            // In the middle of a letter a file of text is not text: no program writes it so.
            let is_letter = ending != "txt" || text.is_char_boundary(cut);
            fixture.write(name, &text.as_bytes()[..if is_letter { cut } else { 0 }]);
        }
        fixture.scan(&mut scan, first_follows);
        if first_follows != then_follows {
            scan = ScanLoop::default();
        }
        for name in &names {
            fixture.write(name, text.as_bytes());
        }
        fixture.scan(&mut scan, then_follows);
        if then_follows {
            // What has no end waits for it, and comes in the end.
            fixture.scan(&mut ScanLoop::default(), false);
        }
        for cut in 0..=text.len() {
            let told = fixture.told(&format!("r{cut}"));
            assert_eq!(told, wanted, "{name} cut at {cut}, {in_memory} in memory");
        }
        fixture.log.close().expect("closed");
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
    for ((name, text), in_memory) in [(FILES[1], IN_MEMORY), (FILES[2], IN_MEMORY), (FILES[2], 0)] {
        let fixture = Fixture::of_limit(in_memory);
        let mut scan = ScanLoop::default();
        for cut in 0..=text.len() {
            fixture.write(name, &text.as_bytes()[..cut]);
            fixture.scan(&mut scan, true);
            // A line is there as soon as it has its end.
            let lines = text[..text.floor_char_boundary(cut)].matches('\n').count() as u64;
            let stem = name.split('.').next().expect("a name");
            let records = fixture.log.run(("a", stem)).map_or(0, |run| run.records);
            assert_eq!(records, lines, "{name} cut at {cut}");
        }
        fixture.scan(&mut ScanLoop::default(), false);
        let stem = name.split('.').next().expect("a name");
        assert_eq!(fixture.told(stem), whole(name, text), "{name}");
    }
}

/// More bytes are there than a mark checks before it continues.
#[test]
fn a_long_file_that_is_followed_gives_the_run_of_the_whole_file() {
    let line =
        |n: u32| format!("{{\"type\":\"turn\",\"n\":{n},\"text\":\"{}\"}}\n", "x".repeat(99));
    let text: String = (0..400).map(line).collect();
    for in_memory in [IN_MEMORY, 10_000, 0] {
        let fixture = Fixture::of_limit(in_memory);
        let mut scan = ScanLoop::default();
        for len in [9_000, 9_001, 20_000, 41_111, text.len()] {
            fixture.write("r.jsonl", &text.as_bytes()[..len]);
            fixture.scan(&mut scan, true);
            let lines = text[..len].matches('\n').count();
            assert_eq!(fixture.told("r").records.len(), lines, "{len} bytes");
        }
        assert_eq!(fixture.told("r"), whole("r.jsonl", &text));
    }
}

/// The origin of a run says the same of its file, however that is read.
#[test]
fn a_file_on_the_disk_has_the_same_origin_as_one_in_memory() {
    for text in [CAR, DAMAGED, "\u{feff}{\"a\":1}\n", "\u{feff}{\"a\":1}\n{\"a\":"] {
        let origins = [IN_MEMORY, 0].map(|in_memory| {
            let fixture = Fixture::of_limit(in_memory);
            fixture.write("r.jsonl", text.as_bytes());
            fixture.scan(&mut ScanLoop::default(), false);
            (Origin { path: None, ..fixture.origin("r") }, fixture.told("r"))
        });
        assert_eq!(origins[0].0.bytes, Some(text.len() as u64));
        assert_eq!(origins[0], origins[1]);
    }
}

#[test]
fn a_file_on_the_disk_is_left_out_where_it_is_all_in_the_one_beside_it() {
    let fixture = Fixture::of_limit(0);
    fixture.write("r.jsonl", CAR.as_bytes());
    let file = File::open(fixture.logs().join("r.jsonl")).expect("a file");
    let input = |text: &str, in_memory| {
        fixture.write("x.jsonl", text.as_bytes());
        let other = File::open(fixture.logs().join("x.jsonl")).expect("a file");
        Input::new(&other, "x.jsonl", in_memory).expect("a file")
    };
    for (own, other) in [(0, 0), (0, IN_MEMORY), (IN_MEMORY, 0)] {
        let whole = Input::new(&file, "r.jsonl", other).expect("a file");
        let is_in = |text: &str| input(text, own).is_beginning_of(&whole).expect("read");
        assert!(is_in(CAR) && is_in(&CAR[..99]) && is_in(""));
        assert!(!is_in(&format!("{CAR}1")) && !is_in(&CAR[1..]));
    }
}

/// Goal: of a file that changed between its two readings nothing is imported, and the run that was
/// there stays. Method: a file of the system that has another text each time it is read.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_changes_between_two_readings_is_refused() {
    let fixture = Fixture::of_limit(0);
    let import = |text: Option<Text>, name: &str, replace| {
        let source = found(&fixture.logs()).sources.remove(0);
        let (file, _) = source.location.file().expect("a file");
        let mut input = Input::new(&file, name, 0).expect("a file");
        input.text = text.unwrap_or(input.text);
        let args = ImportArgs { replace, ..ImportArgs::default() };
        fixture.importer_with(&args).lines(&source, &input, Format::JsonLines)
    };
    let changing = || {
        let file = File::open("/proc/sys/kernel/random/uuid").expect("the file");
        Some(Text::OnDisk(file, 0, 37))
    };
    let is_refused = |done: Result<Done, FileError>| match done {
        Err(FileError::File(refusal)) => {
            refusal.to_string() == "the file changed while it was read"
        }
        _ => false,
    };
    let line = format!("{}\n", "x".repeat(36));
    fixture.write("r.jsonl", line.as_bytes());
    assert!(is_refused(import(changing(), "r.jsonl", false)));
    assert!(fixture.log.run(("a", "r")).is_err());
    assert!(matches!(import(None, "r.jsonl", false), Ok(Done::Run(_))));
    let before = fixture.told("r");
    assert!(is_refused(import(changing(), "r.jsonl", true)));
    assert!(fixture.told("r") == before);
    assert_eq!(others(&fixture), [""; 0]);
    // One that becomes shorter.
    let file = File::open(fixture.logs().join("r.jsonl")).expect("a file");
    let shorter = Some(Text::OnDisk(file, 0, 99));
    assert!(matches!(import(shorter, "r.jsonl", true), Err(FileError::File(_))));
    assert!(fixture.told("r") == before);
}

#[test]
fn a_followed_file_that_is_written_anew_is_told_and_kept() {
    let fixture = Fixture::new();
    fixture.write("r.jsonl", b"{\"a\":1}\n{\"a\":2}\n");
    let mut scan = ScanLoop::default();
    fixture.scan(&mut scan, true);
    // Longer than it was, and another one before the place where it was read to.
    fixture.write("r.jsonl", b"{\"a\":1}\n{\"b\":2}\n{\"a\":3}\n");
    let found = found(&fixture.logs());
    let mut out = Output::nowhere();
    let options = ImportArgs::default();
    let mut reporter = Reporter::new(&mut out, &options);
    let wrote = scan.run(&fixture.importer(true), found, &mut reporter).expect("a round");
    assert!(!wrote);
    assert_eq!(fixture.told("r").records.len(), 2);
    let exit = reporter.finish(Path::new("store")).expect("sums");
    assert_eq!(exit, crate::failure::Exit::Error);
}

#[test]
fn a_followed_document_is_imported_when_it_is_whole() {
    let fixture = Fixture::new();
    let text = br#"{"messages":[{"role":"user","content":"q"},{"role":"assistant"}]}"#;
    let mut scan = ScanLoop::default();
    for cut in 0..text.len() {
        fixture.write("r.json", &text[..cut]);
        fixture.scan(&mut scan, true);
        assert!(fixture.log.run(("a", "r")).is_err(), "cut at {cut}");
    }
    fixture.write("r.json", text);
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("r").records.len(), 4);
}

#[test]
fn a_followed_document_is_continued_and_a_changed_step_is_reported() {
    let fixture = Fixture::new();
    let step = |n: u32| format!("{{\"role\":\"user\",\"content\":{n}}}");
    let text = |steps: &[u32]| {
        let steps: Vec<String> = steps.iter().map(|n| step(*n)).collect();
        format!("{{\"messages\":[{}]}}", steps.join(","))
    };
    let mut scan = ScanLoop::default();
    for n in 0..4 {
        fixture.write("r.json", text(&(0..=n).collect::<Vec<_>>()).as_bytes());
        fixture.scan(&mut scan, true);
        let records = fixture.told("r").records;
        let steps = records.iter().filter(|(kind, ..)| kind.as_deref() == Some("messages"));
        assert_eq!(steps.count(), n as usize + 1);
    }
    fixture.write("r.json", text(&[0, 7, 2, 3, 4]).as_bytes());
    let found = found(&fixture.logs());
    let mut out = Output::nowhere();
    let options = ImportArgs::default();
    let mut reporter = Reporter::new(&mut out, &options);
    let wrote = scan.run(&fixture.importer(true), found, &mut reporter).expect("a scan");
    assert!(!wrote);
    assert_eq!(reporter.sums.errors, 1);
}

/// Goal: what a program keeps that follows files is bounded by the files that are there.
#[test]
fn files_that_are_gone_are_forgotten() {
    let fixture = Fixture::new();
    let mut scan = ScanLoop::default();
    for name in ["gone.jsonl", "gone/gone.jsonl", "gone.json", "stays.jsonl"] {
        fixture.write(name, "{\"a\":\n".repeat(2000).as_bytes());
    }
    std::os::unix::fs::symlink("gone.jsonl", fixture.logs().join("gone-link")).expect("a link");
    fixture.write("gone.json", b"{");
    fixture.scan(&mut scan, true);
    assert!(format!("{scan:?}").contains("gone"));
    for name in ["gone.jsonl", "gone/gone.jsonl", "gone.json", "gone-link"] {
        fs::remove_file(fixture.logs().join(name)).expect("removed");
    }
    fixture.scan(&mut scan, true);
    let kept = format!("{scan:?}");
    assert!(kept.contains("stays") && !kept.contains("gone"), "{kept}");
    // Of what was read, a digest is enough.
    assert!(kept.len() < 4096, "{} bytes", kept.len());
}

#[test]
fn a_followed_file_that_moved_keeps_its_run_and_a_new_one_of_its_name_gets_another() {
    let fixture = Fixture::new();
    let mut scan = ScanLoop::default();
    fixture.write("1/x.jsonl", b"{\"a\":1}\n");
    fixture.scan(&mut scan, true);
    fs::rename(fixture.logs().join("1"), fixture.logs().join("2")).expect("renamed");
    fixture.write("2/x.jsonl", b"{\"a\":1}\n{\"a\":2}\n");
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("x").records.len(), 2);
    // It is gone, and another one comes: in the same round, and in a later one.
    fs::remove_dir_all(fixture.logs().join("2")).expect("removed");
    fixture.write("3/x.jsonl", b"{\"b\":1}\n");
    fixture.scan(&mut scan, true);
    fs::remove_dir_all(fixture.logs().join("3")).expect("removed");
    fixture.scan(&mut scan, true);
    fixture.write("0/x.jsonl", b"{\"c\":1}\n{\"c\":2}\n{\"c\":3}\n");
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("x").records.len(), 2);
    assert_eq!(fixture.told("x.jsonl").records.len(), 1);
    assert_eq!(fixture.told("0/x.jsonl").records.len(), 3);
    // They come back, and each has its own.
    fixture.write("2/x.jsonl", b"{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
    fixture.write("3/x.jsonl", b"{\"b\":1}\n{\"b\":2}\n");
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("x").records.len(), 3);
    assert_eq!(fixture.told("x.jsonl").records.len(), 2);
    assert_eq!(fixture.told("0/x.jsonl").records.len(), 3);
}

/// A copy has the run of its original only as long as it has no more.
#[test]
fn a_followed_copy_that_grows_gets_a_run_of_its_own() {
    let (fixture, original) = (Fixture::new(), Fixture::new());
    original.write("x.jsonl", b"{\"a\":1}\n");
    let found = found(&original.logs());
    let mut out = Output::nowhere();
    let options = ImportArgs::default();
    let mut reporter = Reporter::new(&mut out, &options);
    let importer = fixture.importer(false);
    ScanLoop::default().run(&importer, found, &mut reporter).expect("a round");
    let mut scan = ScanLoop::default();
    fixture.write("x.jsonl", b"{\"a\":1}\n");
    fixture.scan(&mut scan, true);
    assert!(fixture.log.run(("a", "x.jsonl")).is_err());
    fixture.write("x.jsonl", b"{\"a\":1}\n{\"c\":1}\n");
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("x").records.len(), 1);
    assert_eq!(fixture.told("x.jsonl").records.len(), 2);
    fixture.write("x.jsonl", b"{\"a\":1}\n{\"c\":1}\n{\"c\":2}\n");
    fixture.scan(&mut scan, true);
    assert_eq!(fixture.told("x").records.len(), 1);
    assert_eq!(fixture.told("x.jsonl").records.len(), 3);
}

/// All runs of the store that are not `a/r`.
fn others(fixture: &Fixture) -> Vec<String> {
    let runs = fixture.log.runs(&RunQuery::new()).map(|run| run.expect("a run"));
    let names = runs.map(|run| format!("{}/{}", run.agent, run.run));
    names.filter(|name| name != "a/r").collect()
}

/// A store with the run of a file, whole as `a/w` and its beginning as `a/r`, and no file any more.
fn begun() -> (Fixture, Told, Told) {
    let fixture = Fixture::new();
    let cut = CAR.find("ended\"").expect("an end");
    fixture.write("r.jsonl", &CAR.as_bytes()[..cut]);
    fixture.write("w.jsonl", CAR.as_bytes());
    fixture.scan(&mut ScanLoop::default(), false);
    for name in ["r.jsonl", "w.jsonl"] {
        fs::remove_file(fixture.logs().join(name)).expect("removed");
    }
    let (before, wanted) = (fixture.told("r"), fixture.told("w"));
    (fixture, before, wanted)
}

impl Fixture {
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
        let stands_for = ("a".to_owned(), "r".to_owned(), old.number().0);
        let said = StandIn { stands_for, origin: self.origin("w") };
        let importer = self.importer(false);
        let fill = |ids: (&str, &str)| importer.copy(&whole, ids);
        importer.stand_in(&said, whole.started_at, fill).expect("a stand-in")
    }

    /// Deletes `a/r`, as the import does.
    fn delete(&self) {
        let run = self.log.run(("a", "r")).expect("a run");
        if !run.status.is_ended() {
            self.end("r");
        }
        let _ = self.log.delete_run(&run).expect("deleted");
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

/// Goal: an import anew that is cut short after it deleted the old run is finished by the next one,
/// also without the file. Method: each state that the steps pass through, made by hand.
#[test]
fn an_import_anew_that_was_cut_short_is_finished_without_the_file() {
    let records = CAR.lines().count();
    let parts = (0..=records).flat_map(|n| [(Some(n), false), (Some(n), true)]);
    for (part, is_adopted) in [(None, false)].into_iter().chain(parts) {
        let (fixture, _, wanted) = begun();
        let stand_in = fixture.stand_in();
        assert!(stand_in.held);
        fixture.delete();
        if let Some(records) = part {
            fixture.part(records);
            // By `runlog adopt`.
            if is_adopted {
                fixture.end("r");
            }
        }
        let left = fixture.importer(false).settle_all().expect("settled");
        assert!(left.is_empty(), "{part:?}: {left:?}");
        assert_eq!(others(&fixture), ["a/w"], "{part:?}");
        // What somebody ended stays as it is.
        if !(part == Some(records) && is_adopted) {
            assert_eq!(fixture.told("r"), wanted, "{part:?}");
        }
        assert_eq!(fixture.told("r").records, wanted.records, "{part:?}");
        assert!(fixture.importer(false).settle_all().expect("settled").is_empty());
    }
}

#[test]
fn a_stand_in_goes_as_long_as_the_old_run_is_there() {
    for is_held in [false, true] {
        let (fixture, before, wanted) = begun();
        let stand_in = fixture.stand_in();
        if !is_held {
            let _ = fixture.log.release(&stand_in).expect("released");
        }
        assert!(fixture.importer(false).settle_all().expect("settled").is_empty());
        assert!(fixture.told("r") == before);
        assert_eq!(others(&fixture), ["a/w"]);
        fixture.write("r.jsonl", CAR.as_bytes());
        fixture.scan(&mut ScanLoop::default(), false);
        assert_eq!(fixture.told("r"), wanted);
        assert_eq!(others(&fixture), ["a/w"]);
        // A run that only has the agent of stand-ins is none.
        drop(fixture.log.start_run(STAND_IN, "r", ()).expect("a run"));
        assert!(fixture.importer(false).settle_all().expect("settled").is_empty());
        assert_eq!(others(&fixture).len(), 2);
    }
}

#[test]
fn a_run_that_the_user_erased_does_not_come_back() {
    let (fixture, ..) = begun();
    let _ = fixture.stand_in();
    fixture.delete();
    fixture.part(2);
    fixture.end("r");
    let _ = fixture.log.erase_run(("a", "r")).expect("erased");
    assert!(fixture.importer(false).settle_all().expect("settled").is_empty());
    assert!(fixture.log.run(("a", "r")).is_err());
    assert_eq!(others(&fixture), ["a/w"]);
}

#[test]
fn a_stand_in_waits_while_its_run_is_held_or_another_and_both_stay() {
    let (fixture, _, wanted) = begun();
    let stand_in = fixture.stand_in();
    let waits = |before: &Told| {
        let left = fixture.importer(false).settle_all().expect("settled");
        assert_eq!(left.len(), 1);
        assert!(left[0].1.to_string().contains("was to take its place"), "{left:?}");
        assert!(fixture.told("r") == *before);
        assert_eq!(fixture.log.run(&stand_in).expect("a run"), stand_in);
    };
    fixture.delete();
    drop(fixture.log.start_run("a", "r", ()).expect("a run"));
    waits(&fixture.told("r"));
    fixture.delete();
    fixture.part(2);
    let _ = fixture.log.hold(("a", "r"), "audit").expect("held");
    waits(&fixture.told("r"));
    let _ = fixture.log.release(("a", "r")).expect("released");
    assert!(fixture.importer(false).settle_all().expect("settled").is_empty());
    assert_eq!(fixture.told("r"), wanted);
    assert_eq!(others(&fixture), ["a/w"]);
}
