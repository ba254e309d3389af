//! Opening a store whose process was killed. A separate process fills the store, continues some
//! runs record by record, and kills itself; each round opens a copy of the file. JSONL opens
//! nothing, so there is nothing to measure.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

use super::{Context, Row};
use crate::engine::{Engine, Kind, Level, New, Run};
use crate::files::copy;
use crate::measure::{folder, micros};
use crate::workload::runs::{Records, Runs, kind};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

/// The argument that makes this program fill a store and kill itself.
pub(crate) const FILL: &str = "fill-and-be-killed";

/// Runs in progress when the process is killed, and their records.
const LIVE: u64 = 64;
const LIVE_RECORDS: usize = 40;
const AGENTS: u64 = 50;
const RECORDS: usize = 30;
const RECORD_LEN: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Reopen {
    /// The files of killed processes, and copies of them, which are made anew for each round, since
    /// opening changes them.
    stores: Vec<(Kind, TempDir, TempDir)>,
}

fn runs(count: u64) -> Runs {
    let (records, sizes) = (Records::Fixed(RECORDS), Sizes::Fixed(RECORD_LEN));
    let words = Words::new();
    Runs { count, agents: AGENTS, at_once: 64, favourite: false, records, sizes, words }
}

/// The runs that were in progress when the process was killed.
fn live(count: u64) -> Runs {
    Runs { records: Records::Fixed(LIVE_RECORDS), ..runs(count) }
}

/// Fills a store with this many runs, and more that do not end. Never returns.
pub(crate) fn fill(kind_of: Kind, folder: &Path, count: u64) -> ! {
    let engine = kind_of.open(folder, Level::Process);
    runs(count).load(&[&*engine]);
    let live = live(count);
    let runs: Vec<Run> = (count..count + LIVE).map(|number| live.run(number)).collect();
    let mut writers: Vec<_> = runs.iter().map(|run| engine.start(run)).collect();
    let records: Vec<_> = runs.iter().map(|run| live.records(run.number)).collect();
    for seq in 0..LIVE_RECORDS {
        for ((writer, run), records) in writers.iter_mut().zip(&runs).zip(&records) {
            let new = New { kind: kind(run.number, seq), payload: &records[seq] };
            writer.append(&[new]);
        }
    }
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("a killed process does not go on");
}

/// Checks that what was acknowledged is there: all runs in progress, and some of the others.
fn check(engine: &dyn Engine, count: u64) {
    let (ended, live) = (runs(count), live(count));
    let step = usize::try_from(count / 50 + 1).unwrap();
    let some = (0..count).step_by(step).map(|number| (&ended, number));
    for (runs, number) in some.chain((count..count + LIVE).map(|number| (&live, number))) {
        let mut found = Vec::new();
        let id = runs.run(number).id;
        engine.trace(&id, &mut |_, _, payload| found.push(payload.to_vec()));
        assert!(found == runs.records(number), "{id} is as it was before the kill");
    }
}

impl Row for Reopen {
    fn name(&self) -> String {
        "reopen after a kill".to_owned()
    }

    fn what(&self) -> String {
        format!(
            "Milliseconds from before the call that opens the store: until the records of a run \
             are read, then until a new run is started and its first record acknowledged. Runs of \
             {RECORDS} records of {RECORD_LEN} B, {LIVE} more in progress; in the page cache. \
             JSONL is left out: it opens nothing, and would have to parse all files to know which \
             runs were interrupted."
        )
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["first append ms", "first trace ms", "payload MB"]
    }

    fn lines(&self) -> Vec<(usize, String)> {
        vec![
            (0, "reopen after a kill, to the first append: ms".to_owned()),
            (1, "the same, to the first trace: ms".to_owned()),
        ]
    }

    fn takes(&self, kind: Kind) -> bool {
        kind.answers() && !kind.has_file_for_each_run()
    }

    fn prepare(&mut self, context: &Context, kinds: &[Kind]) {
        let count = context.scale.reopened;
        let fill = |kind: &Kind| {
            let folder = folder(&context.dir);
            let mut filling = Command::new(std::env::current_exe().unwrap());
            filling.arg(FILL).arg(kind.name()).arg(folder.path()).arg(count.to_string());
            (*kind, filling.spawn().unwrap(), folder)
        };
        let filling: Vec<_> = kinds.iter().map(fill).collect();
        for (kind, mut filling, folder) in filling {
            assert!(filling.wait().unwrap().code().is_none(), "it was killed");
            let copied = self::folder(&context.dir);
            copy(folder.path(), copied.path());
            let engine = kind.open(copied.path(), Level::Process);
            check(&*engine, count);
            engine.close();
            self.stores.push((kind, folder, copied));
        }
        context.calm();
    }

    #[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let (_, left, copied) = self.stores.iter().find(|(of, ..)| *of == kind).unwrap();
        copy(left.path(), copied.path());
        let count = context.scale.reopened;
        let (runs, mut found) = (runs(count), Vec::new());
        let (old, new) = (runs.run(count / 2), runs.run(count + LIVE));
        let record = runs.records(0);
        let began = Instant::now();
        let engine = kind.open(copied.path(), Level::Process);
        engine.trace(&old.id, &mut |_, _, payload| found.extend_from_slice(payload));
        let traced = began.elapsed();
        engine.start(&new).append(&[New { kind: "user", payload: &record[0] }]);
        let appended = began.elapsed();
        assert!(found == runs.records(old.number).concat(), "the trace is what was written");
        engine.close();
        let records = count * RECORDS as u64 + LIVE * LIVE_RECORDS as u64;
        let payload = (records * RECORD_LEN as u64) as f64 / 1e6;
        vec![Some(micros(appended) / 1e3), Some(micros(traced) / 1e3), Some(payload)]
    }

    fn finish(&mut self, _context: &Context) {
        self.stores.clear();
    }
}
