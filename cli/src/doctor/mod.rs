//! `runlog doctor`: what is wrong with a store and with this machine, and what to do about it.
//!
//! It only reads. What a file system can do it finds out with a file that never gets a name.

mod file_system;
mod machine;
mod report;
mod store;

use std::path::Path;
use std::time::{Duration, SystemTime};

use runlog::{Reader, Timestamp};

use crate::doctor::report::Report;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Do not read the whole store to look for damage.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &DoctorArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let mut report = Report::new(path, out);
    let now = Timestamp::from(SystemTime::now());
    match Reader::open(path) {
        Ok(log) => {
            let patient = store::Patient { log: &log, path, now };
            patient.examine(args.quick, &mut report)?;
        }
        Err(error) => store::does_not_open(&error, &mut report),
    }
    machine::examine(path, &mut report);
    report.print(out)
}

/// How long ago a time was; `None` if it is still to come.
fn since(at: Timestamp, now: Timestamp) -> Option<Duration> {
    u64::try_from(now.0.checked_sub(at.0)?).ok().map(Duration::from_nanos)
}
