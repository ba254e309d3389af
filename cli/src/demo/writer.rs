//! The process that writes until it is killed.
//!
//! Each thread drives a few runs at a time, like a daemon, and reports to the parent each call that
//! the store has acknowledged. When the parent dies, its end of the pipe to our standard input
//! closes, and this process ends too.

use std::fs::File;
use std::io::{self, Read as _};
use std::process;
use std::thread;

use runlog::{ContentType, Durability, NewRecord, Outcome, RunLog, RunWriter};

use crate::args::WriterArgs;
use crate::failure::{Exit, Failure};
use crate::output::complain;
use crate::store;

use super::ack::{Ack, Level, What};
use super::workload::{RunNumber, Workload};

/// How many runs a thread has open at a time.
const OPEN_RUNS: usize = 4;

pub(crate) fn run(args: &WriterArgs) -> Result<Exit, Failure> {
    let log = store::open_existing(&args.file)?;
    let workload = Workload::new(args.seed);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The parent sends nothing: reading returns when the parent has died.
            let _ = io::stdin().read(&mut [0]);
            process::exit(1);
        });
        for thread in 0..args.threads {
            let (log, workload) = (&log, &workload);
            scope.spawn(move || {
                let failed = match unbuffered_stdout() {
                    Ok(acks) => {
                        let (next, step) = (thread, args.threads);
                        Thread { log, workload, next, step, acks }.write()
                    }
                    Err(error) => Err(error.into()),
                };
                if let Err(failure) = failed {
                    complain(&failure.to_string());
                    process::exit(1);
                }
            });
        }
    });
    Ok(Exit::Fine)
}

/// One thread: its runs are `next`, `next + step`, and so on.
struct Thread<'a> {
    log: &'a RunLog,
    workload: &'a Workload,
    next: u32,
    step: u32,
    acks: File,
}

/// A run in progress.
struct Open {
    run: RunNumber,
    writer: RunWriter,
    seq: u64,
    records: u64,
}

impl Thread<'_> {
    fn write(&mut self) -> Result<(), Failure> {
        let mut open = Vec::with_capacity(OPEN_RUNS);
        for _ in 0..OPEN_RUNS {
            open.push(self.start()?);
        }
        let mut payload = Vec::new();
        loop {
            for slot in &mut open {
                self.append(slot, &mut payload)?;
                if slot.seq == slot.records {
                    let ended = std::mem::replace(slot, self.start()?);
                    self.end(&ended)?;
                }
            }
        }
    }

    fn start(&mut self) -> Result<Open, Failure> {
        let run = RunNumber(self.next);
        self.next += self.step;
        let metadata = Workload::metadata(run);
        let writer = self.log.start_run(
            self.workload.agent(run),
            &Workload::run_id(run),
            metadata.as_bytes(),
        )?;
        self.acknowledge(run, What::Start, Level::Disk)?;
        Ok(Open { run, writer, seq: 0, records: self.workload.records(run) })
    }

    fn append(&mut self, open: &mut Open, payload: &mut Vec<u8>) -> Result<(), Failure> {
        let (run, seq) = (open.run, open.seq);
        self.workload.payload(run, seq, payload);
        let (level, durability) = if Workload::is_for_disk(run, seq) {
            (Level::Disk, Durability::Disk)
        } else {
            (Level::Process, Durability::Process)
        };
        let record = NewRecord::new(payload)
            .kind(self.workload.kind(run, seq))
            .content_type(ContentType::JSON)
            .durability(durability);
        let _ = open.writer.append_record(&record)?;
        open.seq += 1;
        self.acknowledge(run, What::Record(seq), level)
    }

    fn end(&mut self, open: &Open) -> Result<(), Failure> {
        let _ = open.writer.end(&Outcome::completed())?;
        self.acknowledge(open.run, What::End, Level::Disk)
    }

    /// Reports to the parent, after the store has returned.
    fn acknowledge(&mut self, run: RunNumber, what: What, level: Level) -> Result<(), Failure> {
        Ok(Ack { run, what, level }.write(&mut self.acks)?)
    }
}

/// Standard output without the buffer of the standard library, which would split an acknowledgement
/// at a byte that equals a newline.
fn unbuffered_stdout() -> io::Result<File> {
    use std::os::fd::AsFd as _;
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}
