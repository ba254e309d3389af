//! Lookups do not scan, memory is bounded, opening after a kill is fast, small stores are small.
//!
//! What must not depend on the number of runs is counted, not timed: reads of the storage and pages
//! of the index. Times are printed; benchmarks check them.
//!
//! The memory of a process, or the file after its death, is measured in a separate process: this
//! test binary, started again for the one test [`worker`].

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use runlog::{
    Durability, Metadata, NewRecord, Options, Outcome, RunLog, RunQuery, Stats, Timestamp,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

use runlog_sim::settings::{child, child_arguments, scale};

/// Agents of the large stores.
const AGENTS: u64 = 50;
/// The runs of a page of a list.
const LIST: usize = 20;
/// How much memory the process may need besides the file, for any number of runs.
const MEMORY: u64 = 128 << 20;

fn run_count() -> u64 {
    scale(100_000, 300_000)
}

fn run_id(number: u64) -> String {
    // As random as the ids that daemons use.
    format!("run-{:016x}", SplitMix64::new(number).next_u64())
}

fn agent_id(number: u64) -> String {
    format!("agent-{}", number % AGENTS)
}

/// Starts, appends to and ends this many runs; every thousandth goes on.
fn write_runs(log: &RunLog, runs: u64, mut each: impl FnMut(u64)) {
    let unsynced = Metadata::json(b"{\"goal\":\"scale\"}").durability(Durability::Process);
    let outcome = Outcome::completed().durability(Durability::Process);
    for number in 0..runs {
        let metadata = unsynced.at(Timestamp(i64::try_from(number / 3).unwrap()));
        let run = log.start_run(&agent_id(number), &run_id(number), metadata).unwrap();
        run.append(format!("{{\"number\":{number}}}").as_bytes()).unwrap();
        if number % 1000 != 0 {
            run.end(&outcome).unwrap();
        }
        each(number);
    }
}

/// The task of a separate process.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn worker() {
    let Some(arguments) = child_arguments() else { return };
    let [task, path] = &arguments[..] else { panic!("a task and a path") };
    // The test harness has begun a line.
    println!();
    match task.as_str() {
        "write" => write_and_tell_memory(Path::new(&path)),
        "read" => read_and_tell_memory(Path::new(&path)),
        "die" => write_and_die(Path::new(&path)),
        _ => unreachable!("{task}"),
    }
}

/// Does a task in a separate process; returns its output.
fn in_a_process(task: &str, path: &Path) -> String {
    let mut command = child("api::scale::worker", &[task, path.to_str().unwrap()]);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() || task == "die", "{task}: {text}");
    text
}

/// The number that a worker printed under this name.
fn told(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {text:?}")).parse().unwrap()
}

/// The anonymous memory of this process in bytes, if the system reports it.
fn anonymous_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

fn write_and_tell_memory(path: &Path) {
    let log = Options::new().create(path).unwrap();
    let mut peak = 0;
    let began = Instant::now();
    write_runs(&log, run_count(), |number| {
        if number % 10_000 == 0 {
            peak = peak.max(anonymous_memory().unwrap_or(0));
        }
    });
    println!("milliseconds: {}", began.elapsed().as_millis());
    log.checkpoint().unwrap();
    peak = peak.max(anonymous_memory().unwrap_or(0));
    println!("memory: {peak}");
    println!("hot: {}", log.stats().unwrap().active_runs);
    log.close().unwrap();
}

fn read_and_tell_memory(path: &Path) {
    let began = Instant::now();
    let log = Options::new().open_existing(path).unwrap();
    println!("microseconds: {}", began.elapsed().as_micros());
    let mut random = SplitMix64::new(1);
    for _ in 0..20_000 {
        let number = random.below(run_count());
        assert_eq!(log.agent_of(&run_id(number)).unwrap(), agent_id(number).as_str());
        assert_eq!(log.trace(&run_id(number)).unwrap().count(), 1);
    }
    let mut cursor = None;
    for _ in 0..50 {
        let page = log.list_runs(&RunQuery::new().limit(200).after(cursor)).unwrap();
        cursor = page.next;
    }
    println!("memory: {}", anonymous_memory().unwrap_or(0));
}

/// A query of the store; the number chooses which run or agent it is about.
type Query = fn(&RunLog, u64);

/// The first list of a snapshot of the index looks which of the states of runs are in use.
const STATES: u64 = 10;

/// Queries, with how often each of them descends a tree of the index at most.
const QUERIES: [(&str, u64, Query); 5] = [
    ("agent_of", 3, |log, number| {
        assert_eq!(log.agent_of(&run_id(number)).unwrap(), agent_id(number).as_str());
    }),
    ("run", 3, |log, number| assert_eq!(log.run(&run_id(number)).unwrap().records, 1)),
    ("trace", 7, |log, number| {
        assert!(log.trace(&run_id(number)).unwrap().all(|record| record.is_ok()));
    }),
    ("runs", LIST as u64 + 3 + STATES, |log, number| {
        assert_eq!(
            log.list_runs(&RunQuery::new().agent(&agent_id(number)).limit(LIST))
                .unwrap()
                .runs
                .len(),
            LIST
        );
    }),
    ("all_runs", LIST as u64 + 3 + STATES, |log, _| {
        assert_eq!(log.list_runs(&RunQuery::new().limit(LIST)).unwrap().runs.len(), LIST);
    }),
];

/// Reads of the storage, by call and through a map, and pages of the index.
fn looked_at(stats: &Stats) -> [u64; 2] {
    [stats.io.reads + stats.io.mapped_reads, stats.index_page_reads]
}

/// The most reads of each query, over many runs of a store with nothing in memory.
fn most_looked_at(path: &Path, runs: u64) -> Vec<[u64; 2]> {
    // Without a cache each page that is looked at is a page that is read.
    let options = Options::new().background(false).index_cache(0);
    let log = options.open_existing(path).unwrap();
    assert!(log.stats().unwrap().index_open);
    let mut random = SplitMix64::new(runs);
    let mut all = Vec::new();
    for (_, _, query) in QUERIES {
        let mut most = [0, 0];
        for _ in 0..100 {
            let number = random.below(runs);
            // Asking for the numbers looks at pages too, as many each time.
            let asked = [(); 2].map(|()| looked_at(&log.stats().unwrap()));
            query(&log, number);
            let after = looked_at(&log.stats().unwrap());
            for (counter, most) in most.iter_mut().enumerate() {
                let [first, second] = asked.map(|counts| counts[counter]);
                *most = (*most).max(after[counter] - second - (second - first));
            }
        }
        all.push(most);
    }
    log.close().unwrap();
    all
}

/// Goal: a lookup or a page of a list reads the same amount with 1,000 runs and with very many,
/// except for the height of the index's trees; and memory is bounded.
#[test]
fn lookups_read_as_much_at_very_many_runs_as_at_a_thousand() {
    let folder = TempDir::new().unwrap();
    let (small, large) = (folder.path().join("small"), folder.path().join("large"));
    // With the default extents a thousand runs fit the first one, and have no index.
    let log = Options::new().extent_size(64 << 10).background(false).create(&small).unwrap();
    write_runs(&log, 1000, |_| ());
    log.close().unwrap();
    let wrote = in_a_process("write", &large);
    let read = in_a_process("read", &large);
    let (writer, reader) = (told(&wrote, "memory"), told(&read, "memory"));
    println!(
        "{} runs, {} MB: written in {} ms, {} MiB and {} runs in memory; opened in {} us, {} MiB",
        run_count(),
        fs::metadata(&large).unwrap().len() / 1_000_000,
        told(&wrote, "milliseconds"),
        writer >> 20,
        told(&wrote, "hot"),
        told(&read, "microseconds"),
        reader >> 20
    );
    let found = most_looked_at(&small, 1000).into_iter().zip(most_looked_at(&large, run_count()));
    let found: Vec<_> = found.zip(QUERIES).collect();
    for ((small, large), (name, descents, _)) in &found {
        println!(
            "{name}: reads of the storage and of index pages {small:?} at 1,000 runs, {large:?}"
        );
        assert!(large[0] <= small[0] + 2, "{name} reads more of the log");
        // Two levels more are a thousand times as many entries.
        assert!(large[1] <= small[1] + 2 * descents, "{name} reads more of the index");
    }
    assert!(writer < MEMORY, "{} MiB while writing", writer >> 20);
    assert!(reader < MEMORY, "{} MiB while reading", reader >> 20);
}

fn write_and_die(path: &Path) {
    let bytes = scale(100_000_000, 500_000_000);
    let log = Options::new().create(path).unwrap();
    let payload = vec![b'x'; 1000];
    let mut written = 0;
    for number in 0.. {
        let metadata = Metadata::default().durability(Durability::Process);
        let run = log.start_run(&agent_id(number), &run_id(number), metadata).unwrap();
        for _ in 0..30 {
            run.append(&payload).unwrap();
            written += payload.len() as u64;
        }
        if written >= bytes {
            println!("runs: {}", number + 1);
            std::process::abort();
        }
        run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    }
}

#[test]
fn a_large_store_takes_appends_right_after_a_kill() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let text = in_a_process("die", &path);
    let runs = told(&text, "runs");
    let began = Instant::now();
    let log = Options::new().open_existing(&path).unwrap();
    let opened = began.elapsed();
    let metadata = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent", "first", metadata).unwrap();
    run.append(b"first").unwrap();
    let appended = began.elapsed();
    run.append_record(&NewRecord::new(b"second").durability(Durability::Disk)).unwrap();
    let synced = began.elapsed();
    let report = log.recovery_report();
    println!(
        "{} MB after a kill: opened in {opened:?}, first append at Process level after \
         {appended:?}, at Disk level after {synced:?}; {report}",
        fs::metadata(&path).unwrap().len() / 1_000_000
    );
    assert!(!report.clean && report.is_clean(), "{report}");
    // How many segments were read does not depend on the size of the store: appends help with the
    // checkpoint when 24 segments wait for it, and on an idle machine four do.
    assert!(report.scanned_segments <= 24 + 2, "{report}");
    for number in [0, runs / 2, runs - 1] {
        assert_eq!(log.trace(&run_id(number)).unwrap().count(), 30);
    }
    assert_eq!(log.stats().unwrap().runs, runs + 1);
}

/// The length of a file and the space that it has, in bytes.
fn sizes(path: &Path) -> [u64; 2] {
    let metadata = fs::metadata(path).unwrap();
    let allocated = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
    [metadata.len(), allocated]
}

#[test]
fn an_empty_store_has_at_most_256_kib() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = Options::new().create(&path).unwrap();
    assert!(sizes(&path).iter().all(|size| *size <= 256 << 10), "open: {:?}", sizes(&path));
    log.close().unwrap();
    assert!(sizes(&path).iter().all(|size| *size <= 256 << 10), "closed: {:?}", sizes(&path));
    for _ in 0..3 {
        Options::new().open(&path).unwrap().close().unwrap();
    }
    println!("an empty store: {:?} bytes", sizes(&path));
    assert!(sizes(&path).iter().all(|size| *size <= 256 << 10), "again: {:?}", sizes(&path));
}

#[test]
fn a_store_with_one_run_of_a_megabyte_has_at_most_2_1_mb() {
    let folder = TempDir::new().unwrap();
    for len in [256, 1000, 64_000, 1_000_000] {
        let path = folder.path().join(format!("store-{len}"));
        let log = Options::new().create(&path).unwrap();
        let run = log.start_run("agent", "run", b"{}").unwrap();
        let payload = vec![b'x'; len];
        for _ in 0..1_000_000 / len {
            run.append(&payload).unwrap();
        }
        run.end(&Outcome::completed()).unwrap();
        drop(run);
        let open = sizes(&path);
        log.close().unwrap();
        println!("one run of 1 MB in records of {len}: {open:?} bytes open, {:?}", sizes(&path));
        assert!(sizes(&path).iter().all(|size| *size <= 2_100_000), "{len}: {:?}", sizes(&path));
    }
}
