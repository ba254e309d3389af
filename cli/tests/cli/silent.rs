//! Commands that read leave no trace in the file: by what they ask the system for, as a user who
//! may not write, and on a file system that cannot be written.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live::{READING, open, state};
use crate::world::{Ran, World};

/// Reading commands with an output of their own, below the folder `OUT`, and others that `READING`
/// does not have. Each with its exit code: `search` says with it that it found nothing.
const OTHERS: [(&[&str], i32); 16] = [
    (&["ls", "--limit", "1"], 0),
    (&["ls", "--agent", "planner", "--oldest"], 0),
    (&["show", "running", "--pretty"], 0),
    (&["tail"], 0),
    (&["tail", "running"], 0),
    (&["tail", "-f", "ended"], 0),
    (&["tail", "--agent", "planner", "--json"], 0),
    (&["search", "step"], 0),
    (&["search", "-e", "no [s]uch thing"], 1),
    (&["docs", "space", "--json"], 0),
    (&["du"], 0),
    (&["backup", "OUT/copy.runlog"], 0),
    // Now it is brought up to date.
    (&["backup", "OUT/copy.runlog", "--json"], 0),
    (&["export", "OUT/runs"], 0),
    (&["export", "OUT/otlp", "--format", "otlp"], 0),
    (&["salvage", "STORE", "OUT/salvaged.runlog"], 0),
];

/// What a command may ask the system for with the store: no write, no sync, no change of length, no
/// allocation, no lock.
const ALLOWED: [&str; 15] = [
    "access",
    "close",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fstat",
    "fstatfs",
    "lseek",
    "newfstatat",
    "pread64",
    "read",
    "readlink",
    "stat",
    "statfs",
    "statx",
];

/// The arguments of every reading command, and its exit code.
fn all(store: &Path, out: &Path) -> Vec<(Vec<String>, i32)> {
    let named = |arg: &str| {
        let (store, out) = (store.to_str().expect("text"), out.to_str().expect("text"));
        arg.replace("STORE", store).replace("OUT", out)
    };
    let reading = READING.iter().map(|(args, _)| (*args, 0));
    let each = reading.chain(OTHERS);
    each.map(|(args, code)| (args.iter().map(|arg| named(arg)).collect(), code)).collect()
}

/// Runs every reading command, and requires that it does its work and changes nothing.
fn each_reads(store: &Path, out: &Path, mut run: impl FnMut(&[String]) -> Ran) {
    let before = state(store);
    let beside = names(store);
    for (args, code) in all(store, out) {
        let ran = run(&args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(before == state(store), "{args:?} changed the file");
        assert_eq!(names(store), beside, "{args:?} left a file");
    }
}

/// What is in the folder of a file.
fn names(file: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(file.parent().expect("a folder")).expect("a folder");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    names
}

/// The store, in a folder of its own, and a folder for what is put out.
fn apart(world: &World) -> (PathBuf, PathBuf) {
    open(world).close().expect("closed");
    let (folder, out) = (world.path("apart"), world.path("out"));
    for folder in [&folder, &out] {
        fs::create_dir(folder).expect("a folder");
    }
    let store = folder.join("runs.runlog");
    fs::rename(world.store(), &store).expect("moved");
    (store.canonicalize().expect("a path"), out)
}

/// Why a line of a trace is about the store, and forbidden.
fn forbidden(line: &str, store: &str) -> Option<String> {
    // "1234 pread64(3</store>, ...": the rest of a call that was interrupted names no file.
    let (_, call) = line.split_once(' ')?;
    let (name, args) = call.trim_start().split_once('(')?;
    if !args.contains(store) || name.starts_with('<') {
        return None;
    }
    let is_allowed = match name {
        // The command line of the process itself.
        "execve" => true,
        "open" | "openat" => args.contains("O_RDONLY") && !args.contains("O_CREAT"),
        "fcntl" => ["F_GETFD", "F_SETFD", "F_GETFL", "F_DUPFD"].iter().any(|op| args.contains(op)),
        "mmap" => args.contains("PROT_READ,") && !args.contains("PROT_WRITE"),
        // From the store, and not to it.
        "copy_file_range" => args.find(store) < args.find(',') && args.matches(store).count() == 1,
        name => ALLOWED.contains(&name),
    };
    (!is_allowed).then(|| line.to_owned())
}

#[test]
fn no_reading_command_asks_the_system_to_write_sync_cut_off_allocate_or_lock_the_store() {
    let world = World::new();
    let trace = world.path("trace");
    let strace = || {
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-o"]).arg(&trace);
        command
    };
    if !strace().arg("true").output().is_ok_and(|output| output.status.success()) {
        println!("passed over: strace cannot trace here");
        return;
    }
    let (store, out) = apart(&world);
    let name = store.to_str().expect("text").to_owned();
    let mut reads = 0;
    each_reads(&store, &out, |args| {
        let mut command = strace();
        command.arg(env!("CARGO_BIN_EXE_runlog")).args(args).arg("--store").arg(&store);
        command.env("PAGER", "");
        let ran = Ran::of(&mut command);
        let trace = fs::read_to_string(&trace).expect("a trace");
        let found: Vec<String> = trace.lines().filter_map(|line| forbidden(line, &name)).collect();
        assert!(found.is_empty(), "{args:?}: {found:#?}");
        reads += trace.lines().filter(|line| line.contains(&format!("<{name}>"))).count();
        ran
    });
    assert!(reads > 300, "the traces have only {reads} calls with the store");
}

#[test]
fn a_trace_with_a_change_of_the_store_is_recognised() {
    let of = |call: &str| forbidden(&format!("1234 {call}"), "/folder/runs.runlog").is_some();
    for call in [
        "write(3</folder/runs.runlog>, \"x\", 1) = 1",
        "pwrite64(3</folder/runs.runlog>, \"x\", 1, 0) = 1",
        "fdatasync(3</folder/runs.runlog> <unfinished ...>",
        "ftruncate(3</folder/runs.runlog>, 0) = 0",
        "fallocate(3</folder/runs.runlog>, 0, 0, 4096) = 0",
        "flock(3</folder/runs.runlog>, LOCK_EX|LOCK_NB) = 0",
        "fcntl(3</folder/runs.runlog>, F_SETLK, {l_type=F_WRLCK}) = 0",
        "openat(AT_FDCWD</>, \"/folder/runs.runlog\", O_RDWR|O_CLOEXEC) = 3",
        "unlink(\"/folder/runs.runlog\") = 0",
        "utimensat(3</folder/runs.runlog>, NULL, [], 0) = 0",
        "copy_file_range(4</copy>, NULL, 3</folder/runs.runlog>, NULL, 10, 0) = 10",
        "mmap(NULL, 10, PROT_READ|PROT_WRITE, MAP_SHARED, 3</folder/runs.runlog>, 0) = 0x7f",
    ] {
        assert!(of(call), "{call}");
    }
    for call in [
        "openat(AT_FDCWD</>, \"/folder/runs.runlog\", O_RDONLY|O_CLOEXEC) = 3</folder/runs.runlog>",
        "pread64(3</folder/runs.runlog>, \"x\", 1, 0) = 1",
        "write(1</dev/null>, \"x\", 1) = 1",
        "copy_file_range(3</folder/runs.runlog>, NULL, 4</copy>, NULL, 10, 0) = 10",
    ] {
        assert!(!of(call), "{call}");
    }
}

/// Runs the command as a user who owns nothing, if this one may become another.
fn as_another(world: &World, store: &Path) -> impl FnMut(&[String]) -> Ran {
    let program = world.own_program();
    let is_root = fs::metadata(&program).expect("a file").uid() == 0;
    let store = store.to_owned();
    move |args| {
        let mut command = Command::new(&program);
        command.args(args).arg("--store").arg(&store).current_dir("/").env("PAGER", "");
        if is_root {
            command.uid(65_534).gid(65_534);
        }
        Ran::of(&mut command)
    }
}

#[test]
fn a_store_that_may_only_be_read_in_a_folder_that_may_only_be_read_is_enough() {
    let world = World::new();
    let (store, out) = apart(&world);
    fs::set_permissions(world.path("."), Permissions::from_mode(0o755)).expect("a mode");
    fs::set_permissions(&out, Permissions::from_mode(0o777)).expect("a mode");
    fs::set_permissions(&store, Permissions::from_mode(0o444)).expect("a mode");
    let folder = store.parent().expect("a folder");
    fs::set_permissions(folder, Permissions::from_mode(0o555)).expect("a mode");
    each_reads(&store, &out, as_another(&world, &store));
    // So that the folder can be removed.
    fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("a mode");
}

/// A folder that is mounted a second time; dropping this unmounts it.
struct Mounted(PathBuf);

impl Mounted {
    fn to_read(folder: &Path, at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).expect("a folder");
        let run =
            |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_there = run(Command::new("mount").arg("--bind").arg(folder).arg(&at));
        let mounted = is_there.then_some(Self(at))?;
        let options = "remount,bind,ro";
        run(Command::new("mount").args(["-o", options]).arg(&mounted.0)).then_some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_store_on_a_file_system_that_is_mounted_to_be_read_only_is_read() {
    let world = World::new();
    let (store, out) = apart(&world);
    let folder = store.parent().expect("a folder");
    let Some(mounted) = Mounted::to_read(folder, world.path("mounted")) else {
        println!("passed over: nothing can be mounted here");
        return;
    };
    let there = mounted.0.join("runs.runlog");
    assert!(fs::File::options().write(true).open(&there).is_err(), "it can be written");
    each_reads(&there, &out, |args| {
        let mut command = world.command(args);
        Ran::of(command.arg("--store").arg(&there))
    });
    // A command that writes says why it cannot.
    let ran = Ran::of(world.command(&["rm", "--yes", "ended"]).arg("--store").arg(&there));
    assert_eq!(ran.code, Some(1), "{ran:?}");
}
