//! `runlog demo`: demonstrates the promises of the store, as the example of the same name does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::demonstration::{Demo, Failed, in_a_folder};
use crate::failure::{Exit, Failure};
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// How long to write before the kill, in milliseconds.
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u64).range(50..=10_000))]
    pub(crate) millis: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    file: PathBuf,
}

fn demo(file: &Path, millis: u64) -> Demo {
    let (file, time) = (file.to_path_buf(), Duration::from_millis(millis));
    Demo { file, seed: 7, threads: 8, time }
}

/// Performs it in a file that is kept, or in one that is removed.
pub(crate) fn run(args: &DemoArgs, kept: Option<&Path>, out: &mut Output) -> Result<Exit, Failure> {
    let is_good = match kept {
        Some(file) => perform(args, file, out)?,
        None => {
            let done = in_a_folder(|file| perform(args, file, out));
            done.map_err(|source| Failure::file(&std::env::temp_dir(), source))??
        }
    };
    let good = "good     nothing that was acknowledged is missing or changed";
    let object = json!({"event": "end", "good": is_good, "kept": kept});
    out.tell(&object, if is_good { good } else { "FAILED   see above" })?;
    Ok(if is_good { Exit::Fine } else { Exit::Error })
}

fn perform(args: &DemoArgs, file: &Path, out: &mut Output) -> Result<bool, Failure> {
    let program = std::env::current_exe().map_err(|error| failed(error.into()))?;
    let mut writer = Command::new(program);
    writer.arg("demo-writer").arg(file);
    let told = demo(file, args.millis).run(writer, &mut |object, text| {
        if out.is_json() {
            out.object(&object)?;
        } else {
            text.split('\n').try_for_each(|line| out.line(line))?;
        }
        out.flush()
    });
    told.map_err(failed)
}

/// The hidden command that the second process runs.
pub(crate) fn write(args: &WriterArgs) -> Result<Exit, Failure> {
    demo(&args.file, 0).write().map_err(failed)?;
    Ok(Exit::Fine)
}

fn failed(error: Failed) -> Failure {
    match error.downcast::<runlog::Error>() {
        Ok(error) => Failure::Store(*error),
        Err(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Failure::Output(*error),
            Err(error) => Failure::said(error.to_string()),
        },
    }
}
