//! Small file systems of the real kernel, each in a file of its own.

use std::fs::{File, create_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system; dropping this unmounts it.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
}

impl Mounted {
    /// Makes and mounts one, if the system has the tools and permits it.
    pub(crate) fn new(kind: &str, bytes: u64) -> Option<Self> {
        let mounted = Self { dir: tempfile::tempdir().unwrap() };
        let (image, at) = (mounted.dir.path().join("image"), mounted.at());
        File::create(&image).unwrap().set_len(bytes).unwrap();
        create_dir(&at).unwrap();
        // An empty file has nothing to overwrite, so nothing must be forced.
        let force: &[&str] = if kind == "xfs" { &[] } else { &["-F"] };
        let mut make = Command::new(format!("mkfs.{kind}"));
        let is_there = run(make.arg("-q").args(force).arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        if !is_there {
            println!("passed over: no {kind} can be mounted here");
        }
        is_there.then_some(mounted)
    }

    /// Where it is mounted.
    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Takes all the space that is left.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.at().join("filler");
        fill(&path, &[1; 64 << 10]);
        fill(&path, &[1; 4096]);
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.at()));
    }
}

fn fill(path: &Path, block: &[u8]) {
    let mut filler = File::options().append(true).create(true).open(path).unwrap();
    while filler.write_all(block).is_ok() {}
    let _ = filler.sync_all();
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
