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
    /// Create the store at FILE, which must not exist, and keep it. --store does the same.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) keep: Option<PathBuf>,

    /// The seed of all ids and payloads.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,

    /// How many threads append.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,

    /// How long to write before the kill, in milliseconds.
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u64).range(50..=10_000))]
    pub(crate) millis: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    #[arg(long)]
    pub(crate) file: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) threads: u32,
}

pub(crate) fn run(args: &DemoArgs, file: Option<&Path>, out: &mut Output) -> Result<Exit, Failure> {
    let kept = args.keep.as_deref().or(file);
    let is_good = match kept {
        Some(file) => perform(args, file, out)?,
        None => {
            let done = in_a_folder(|file| perform(args, file, out));
            done.map_err(|source| Failure::file(&std::env::temp_dir(), source))??
        }
    };
    if out.is_json() {
        out.object(&json!({"event": "end", "good": is_good, "kept": kept}))?;
    } else {
        let good = "good     nothing that was acknowledged is missing or changed";
        out.line(if is_good { good } else { "FAILED   see above" })?;
    }
    Ok(if is_good { Exit::Fine } else { Exit::Error })
}

fn perform(args: &DemoArgs, file: &Path, out: &mut Output) -> Result<bool, Failure> {
    let (seed, threads) = (args.seed, args.threads);
    let time = Duration::from_millis(args.millis);
    let demo = Demo { file: file.to_path_buf(), seed, threads, time };
    let program = std::env::current_exe().map_err(|error| failed(error.into()))?;
    let mut writer = Command::new(program);
    writer.args(["demo-writer", "--file"]).arg(file);
    writer.args([format!("--seed={seed}"), format!("--threads={threads}")]);
    let told = demo.run(writer, &mut |object, text| {
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
    let (file, seed, threads) = (args.file.clone(), args.seed, args.threads);
    Demo { file, seed, threads, time: Duration::ZERO }.write().map_err(failed)?;
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
