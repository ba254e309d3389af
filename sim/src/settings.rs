//! The environment variables of the tests that use this crate.
//!
//! - `RUNLOG_SCALE`: the scale of campaigns in percent of that of CI. Without it a campaign has the
//!   scale of a plain `cargo test`.
//! - `RUNLOG_SEED`: the seed of all random choices of a campaign.
//! - `RUNLOG_REPLAY`: the one case that a campaign repeats, as the failure printed it.
//! - `RUNLOG_CHILD`: the arguments of a process that a test starts from its own program.
//! - `RUNLOG_BLESS`: writes the golden files anew.

use std::process::Command;

/// Separates the arguments of a child.
const SEPARATOR: char = '\u{1f}';

/// How many cases a campaign makes: `plain` without `RUNLOG_SCALE`, else the percentage of `ci`.
pub fn scale(plain: u64, ci: u64) -> u64 {
    percentage().map_or(plain, |percent| (ci * percent / 100).max(1))
}

/// The distance of two cases of a campaign that takes each of so many.
pub fn stride(plain: u64, ci: u64) -> u64 {
    percentage().map_or(plain, |percent| (ci * 100 / percent).max(1))
}

fn percentage() -> Option<u64> {
    number("RUNLOG_SCALE")
}

/// The seed of a campaign.
pub fn seed(default: u64) -> u64 {
    number("RUNLOG_SEED").unwrap_or(default)
}

/// The case that a campaign repeats, as text.
pub fn replay() -> Option<String> {
    std::env::var("RUNLOG_REPLAY").ok()
}

/// The same of a campaign whose cases have numbers.
pub fn replayed() -> Option<u64> {
    number("RUNLOG_REPLAY")
}

/// Whether golden files are written anew.
pub fn blesses() -> bool {
    std::env::var_os("RUNLOG_BLESS").is_some()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.replace('_', "").parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// The command that runs one test, `name`, in a process of its own. The test finds `arguments` by
/// [`child_arguments`].
pub fn child(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    with_arguments(&mut command, arguments);
    command
}

/// Gives a command that runs one test its arguments.
pub fn with_arguments<'a>(command: &'a mut Command, arguments: &[&str]) -> &'a mut Command {
    command.env("RUNLOG_CHILD", arguments.join(&SEPARATOR.to_string()))
}

/// The arguments of this process, if a test started it.
pub fn child_arguments() -> Option<Vec<String>> {
    let text = std::env::var("RUNLOG_CHILD").ok()?;
    Some(text.split(SEPARATOR).map(str::to_owned).collect())
}
