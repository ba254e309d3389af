//! A folder of its own for each test, and the command run in it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use runlog::{Options, RunLog};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
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
    /// A copy of the command that another user can reach too, wherever it was built. `cp` makes it:
    /// a child that another test forks meanwhile would keep a file open that this process writes,
    /// and the system runs no program that is open for writing.
    pub(crate) fn own_program(&self) -> PathBuf {
        let program = self.path("runlog");
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_runlog")).arg(&program);
        assert!(copy.status().expect("cp").success());
        program
    }

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
        // No pager, unless a test sets one.
        command.env("PAGER", "");
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

    /// Runs an import that must report damage in files on standard output, and import them.
    pub(crate) fn damaged(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{args:?}: {ran:?}");
        ran
    }
}

/// A terminal of a number of columns, in Tokyo, with colours only if the test wants them.
pub(crate) struct Terminal {
    pub(crate) columns: u16,
    pub(crate) has_colours: bool,
    /// What its user types, from the beginning on.
    pub(crate) typed: &'static str,
}

impl Terminal {
    pub(crate) fn of(columns: u16) -> Self {
        Self { columns, has_colours: false, typed: "" }
    }

    /// What the terminal shows of a command, both of its outputs, and its exit code.
    pub(crate) fn run(&self, world: &World, args: &[&str]) -> (Option<i32>, String) {
        self.show(&mut world.command(args))
    }

    pub(crate) fn show(&self, command: &mut Command) -> (Option<i32>, String) {
        let mut near: File = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pty").into();
        grantpt(&near).expect("granted");
        unlockpt(&near).expect("unlocked");
        let name = ptsname(&near, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let far = File::options().read(true).write(true).open(name).expect("the terminal");
        let size = Winsize { ws_row: 24, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&near, size).expect("a size");
        command.env("TZ", "JST-9").env("TERM", "xterm").env_remove("NO_COLOR");
        if !self.has_colours {
            command.env("NO_COLOR", "1");
        }
        command.stdin(far.try_clone().expect("a copy")).stdout(far.try_clone().expect("a copy"));
        let mut child = command.stderr(far).spawn().expect("it starts");
        // The command has copies of the terminal, which must not keep it open.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        near.write_all(self.typed.as_bytes()).expect("typed");
        let mut shown = Vec::new();
        // An error once no process has the terminal open any more.
        let _ = near.read_to_end(&mut shown);
        let code = child.wait().expect("it ends").code();
        (code, String::from_utf8(shown).expect("UTF-8").replace("\r\n", "\n"))
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

    /// The last message on standard error, which is an object with `--json`.
    pub(crate) fn message(&self) -> Option<Value> {
        let last = self.stderr.lines().last()?;
        Some(serde_json::from_str(last).expect("an object"))
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
