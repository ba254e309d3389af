//! A folder of its own for each test, and the command run in it.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use runlog::{Options, RunLog};
use serde_json::Value;
use tempfile::TempDir;

/// A folder that is removed with the test. The store is the default one in it.
pub(crate) struct World {
    folder: TempDir,
}

/// What a command left behind.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("runs.runlog")
    }

    /// Writes a file, with the folders above it.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, bytes).expect("a file");
    }

    /// The store, for what the command line cannot do.
    pub(crate) fn open(&self) -> RunLog {
        Options::new().open(self.store()).expect("a store")
    }

    /// The command, not started yet.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runlog"));
        command.args(args).current_dir(self.folder.path()).env_remove("RUNLOG_STORE");
        command.stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        Ran::of(&mut self.command(args))
    }

    /// Runs a command that must succeed and say nothing on standard error.
    pub(crate) fn good(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}: {ran:?}");
        ran
    }
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the command runs");
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("the output is UTF-8")
    }

    /// The output as JSON Lines.
    pub(crate) fn json(&self) -> Vec<Value> {
        let lines = self.text().lines();
        lines.map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
    }
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        write!(f, "exit code {:?}\n{stdout}\n{}", self.code, self.stderr)
    }
}

/// The keys of an object, sorted.
pub(crate) fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}
