//! What repetition costs on the disk: one run of each shape, in each engine.
//!
//! - The bytes are those of the blocks of all files, after each engine reorganized its data, in
//!   percent of the payload. With zstd, JSON Lines are one frame: what has no access to one record.
//! - In parentheses: without extents that are not full, and without the index.
//! - A run is read completely, and each byte of it is looked at. The fastest of three readings
//!   counts.
//! - Packing is what runlog does for that: its processor time, in payload a second.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::engine::{Change, Kind, Level, New, Run};
use crate::files::allocated;
use crate::measure::{folder, processor};
use crate::workload::shapes::{self, Shape};

/// How many bytes of records an engine gets at once.
const AT_ONCE: usize = 32 << 20;
/// Who has no access to one record, but few bytes.
const ARCHIVES: [(&str, bool); 2] = [("JSONL, zstd -3", false), ("JSONL, zstd -3 --long", true)];

/// What one engine has of a shape.
struct Measured {
    bytes: u64,
    /// Those of frames and directories, if it can tell.
    frames: Option<u64>,
    read: Duration,
    /// The processor time of compressing.
    packed: Option<Duration>,
}

/// Prints a table of the shapes with these words in their names.
pub(crate) fn compare(small: bool, kinds: &[Kind], wanted: impl Fn(&str) -> bool, dir: &Path) {
    let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| kind.answers()).collect();
    let archives = ARCHIVES.map(|(name, _)| name);
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).chain(archives).collect();
    println!("Bytes on the disk in percent of the payload; a whole run read, MB/s");
    println!("| shape | payload, MB | {} | packing, MB/s |", names.join(" | "));
    println!("|---|--:|{}--:|", "--:|".repeat(names.len()));
    for shape in shapes::all(if small { 16 } else { 1 }) {
        if !wanted(shape.name) {
            continue;
        }
        let payload: u64 = (0..shape.records).map(|seq| shape.record(seq).len() as u64).sum();
        let (mut cells, mut packing) = (Vec::new(), String::new());
        for kind in &kinds {
            if *kind == Kind::Jsonl && !shape.is_json() {
                cells.push(String::from("-"));
                continue;
            }
            let found = measure(*kind, &shape, payload, dir);
            let (bytes, read) = (percent(found.bytes, payload), speed(payload, found.read));
            let frames = found.frames.map(|frames| format!(" ({})", percent(frames, payload)));
            cells.push(format!("{bytes}{}; {read}", frames.unwrap_or_default()));
            packing.extend(found.packed.map(|time| speed(payload, time)));
        }
        for (_, long) in ARCHIVES {
            cells.push(percent(archived(&shape, long), payload));
        }
        let (name, mega) = (shape.name, payload / 1_000_000);
        println!("| {name} | {mega} | {} | {packing} |", cells.join(" | "));
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn speed(bytes: u64, time: Duration) -> String {
    format!("{:.0}", bytes as f64 / 1e6 / time.as_secs_f64())
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn percent(bytes: u64, of: u64) -> String {
    let percent = bytes as f64 * 100.0 / of as f64;
    if percent < 2.0 { format!("{percent:.2} %") } else { format!("{percent:.1} %") }
}

/// Stores a shape in an engine, and reads it back.
fn measure(kind: Kind, shape: &Shape, payload: u64, dir: &Path) -> Measured {
    let folder = folder(dir);
    let run = Run { number: 1, agent: "agent".to_owned(), id: "run".to_owned() };
    let mut engine = kind.open(folder.path(), Level::Process);
    engine.load(&[Change::Start(&run)]);
    let mut seq = 0;
    while seq < shape.records {
        let (first, mut some, mut bytes) = (seq, Vec::new(), 0);
        while seq < shape.records && bytes < AT_ONCE {
            let record = shape.record(seq);
            bytes += record.len();
            some.push(record);
            seq += 1;
        }
        let changes = some.iter().zip(first..).map(|(payload, seq)| {
            let new = New { kind: "progress", payload };
            Change::Record { run: 1, seq: u32::try_from(seq).unwrap(), new }
        });
        engine.load(&changes.collect::<Vec<_>>());
    }
    engine.load(&[Change::End(&run)]);
    engine.settle();
    let begun = processor();
    let packed = if engine.compress() {
        Some(processor().saturating_sub(begun))
    } else {
        engine.compact();
        None
    };
    engine.settle();
    let frames = engine.parts().first().map(|(_, bytes)| *bytes);
    let mut read = Duration::MAX;
    for _ in 0..3 {
        let (begun, mut bytes, mut sum) = (Instant::now(), 0, 0_u64);
        engine.trace("run", &mut |_, _, payload| {
            bytes += payload.len() as u64;
            let words = payload.as_chunks::<8>().0;
            sum = words.iter().fold(sum, |sum, word| sum ^ u64::from_le_bytes(*word));
        });
        assert_eq!(bytes, payload, "{}", kind.name());
        std::hint::black_box(sum);
        read = read.min(begun.elapsed());
    }
    engine.close();
    Measured { bytes: allocated(folder.path()), frames, read, packed }
}

/// The bytes of all records as lines in one frame of zstd.
fn archived(shape: &Shape, long: bool) -> u64 {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    if long {
        encoder.long_distance_matching(true).unwrap();
        encoder.window_log(27).unwrap();
    }
    for seq in 0..shape.records {
        encoder.write_all(&shape.record(seq)).unwrap();
        encoder.write_all(b"\n").unwrap();
    }
    encoder.finish().unwrap().len() as u64
}
