//! Which files the paths of the command line mean, and whose runs they are.
//!
//! | the path is | its runs are |
//! |---|---|
//! | a file | run = stem of its name, agent = `--agent`, else `imported` |
//! | a folder that holds a folder `runs` | those of `runs` alone |
//! | any other folder | `AGENT/RUN.jsonl` below it, and `RUN.jsonl` in it |
//!
//! The agent of files in the folder itself is `--agent`, else the folder's name.
//!
//! Inside of folders, links, special files and folders of the third level are not followed but
//! named; files of other names are not runs. A path that the user names may be a link.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::DEFAULT_AGENT;
use super::place::{Entry, Place, not_regular};

/// One file to import.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) agent: String,
    pub(crate) run: String,
}

/// What was passed over on purpose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) path: PathBuf,
    pub(crate) why: &'static str,
}

/// All files of all paths, in the order of the paths and then of the names.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) sources: Vec<Source>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) errors: Vec<(PathBuf, String)>,
}

/// Finds the files. Never fails as a whole: what cannot be read is listed.
pub(crate) fn find(paths: &[PathBuf], agent: Option<&str>) -> Found {
    let mut found = Found::default();
    for path in paths {
        if let Err(error) = found.add(path, agent) {
            found.errors.push((path.clone(), error.to_string()));
        }
    }
    found
}

impl Found {
    fn add(&mut self, path: &Path, agent: Option<&str>) -> io::Result<()> {
        let mut root = Place::named(path);
        let metadata = fs::metadata(path)?;
        if !metadata.is_dir() {
            // Also before it is opened, since to open a device may do something.
            if !metadata.is_file() {
                return Err(not_regular());
            }
            self.file(root, path, agent.unwrap_or(DEFAULT_AGENT));
            return Ok(());
        }
        let mut entries = root.entries()?;
        let is_runs = |entry: &Entry| entry.name == "runs" && entry.kind == FileType::Directory;
        if let Some(runs) = entries.iter().find(|entry| is_runs(entry)) {
            root = root.join(&runs.name);
            entries = root.entries()?;
        }
        let own_agent = match agent {
            Some(agent) => Ok(agent.to_owned()),
            None => folder_name(&root.path()),
        };
        for entry in entries {
            let place = root.join(&entry.name);
            if entry.kind == FileType::Directory {
                let agent = folder_name(Path::new(&entry.name));
                match place.entries() {
                    Ok(entries) => self.runs(&place, entries, &agent),
                    Err(error) => self.errors.push((place.path(), error.to_string())),
                }
            } else {
                self.entry(place, &entry, &own_agent);
            }
        }
        Ok(())
    }

    /// All runs of a folder of one agent.
    fn runs(&mut self, folder: &Place, entries: Vec<Entry>, agent: &io::Result<String>) {
        for entry in entries {
            let place = folder.join(&entry.name);
            if entry.kind == FileType::Directory {
                let why = "a folder inside of an agent's folder";
                self.skipped.push(Skipped { path: place.path(), why });
            } else {
                self.entry(place, &entry, agent);
            }
        }
    }

    /// What is no folder.
    fn entry(&mut self, place: Place, entry: &Entry, agent: &io::Result<String>) {
        let name = Path::new(&entry.name);
        let why = match entry.kind {
            FileType::Symlink => "a symbolic link",
            // Not a run, whatever it is.
            _ if name.extension() != Some(OsStr::new("jsonl")) => return,
            FileType::RegularFile => {
                return match agent {
                    Ok(agent) => self.file(place, name, agent),
                    Err(error) => self.errors.push((place.path(), error.to_string())),
                };
            }
            _ => "not a regular file",
        };
        self.skipped.push(Skipped { path: place.path(), why });
    }

    fn file(&mut self, place: Place, name: &Path, agent: &str) {
        let agent = agent.to_owned();
        match name.file_stem().and_then(OsStr::to_str).map(str::to_owned) {
            Some(run) => self.sources.push(Source { place, agent, run }),
            None => self.errors.push((place.path(), not_utf8().to_string())),
        }
    }
}

/// The name of a folder, also where its path is `.` or ends in `..`.
fn folder_name(folder: &Path) -> io::Result<String> {
    let absolute;
    let named = if folder.file_name().is_some() {
        folder
    } else {
        absolute = fs::canonicalize(folder)?;
        &absolute
    };
    match named.file_name() {
        None => Ok(DEFAULT_AGENT.to_owned()),
        Some(name) => name.to_str().map(str::to_owned).ok_or_else(not_utf8),
    }
}

fn not_utf8() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the name is not UTF-8 and cannot become an id; rename it, or name an agent by --agent",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, "").expect("a file");
    }

    fn ids(found: &Found) -> Vec<(&str, &str)> {
        found.sources.iter().map(|s| (s.agent.as_str(), s.run.as_str())).collect()
    }

    #[test]
    fn a_tree_of_runs_is_found_from_its_parent_from_itself_and_from_an_agent() {
        let root = tempfile::tempdir().expect("a folder");
        for name in ["runs/b/2.jsonl", "runs/b/1.jsonl", "runs/a/x.y.jsonl", "runs/.nobackup"] {
            touch(root.path(), name);
        }
        touch(root.path(), "journals/j.jsonl");
        let whole = [("a", "x.y"), ("b", "1"), ("b", "2")];
        for path in [root.path().to_path_buf(), root.path().join("runs")] {
            assert_eq!(ids(&find(&[path], None)), whole);
        }
        assert_eq!(ids(&find(&[root.path().join("runs/b")], None)), whole[1..]);
        assert_eq!(ids(&find(&[root.path().join("runs/a/..")], None)), whole);
        assert_eq!(ids(&find(&[root.path().join("runs/b")], Some("c"))), [("c", "1"), ("c", "2")]);
    }

    #[test]
    fn single_files_take_the_named_agent() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "one.log");
        touch(root.path(), "two.jsonl");
        let paths = [root.path().join("one.log"), root.path().join("two.jsonl")];
        assert_eq!(ids(&find(&paths, None)), [("imported", "one"), ("imported", "two")]);
        assert_eq!(ids(&find(&paths, Some("me"))), [("me", "one"), ("me", "two")]);
    }

    #[test]
    fn links_and_deep_folders_are_named_and_not_followed() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "a/1.jsonl");
        touch(root.path(), "a/deep/2.jsonl");
        std::os::unix::fs::symlink("1.jsonl", root.path().join("a/link.jsonl")).expect("a link");
        std::os::unix::fs::symlink("a", root.path().join("b")).expect("a link");
        let found = find(&[root.path().to_path_buf()], None);
        assert_eq!(ids(&found), [("a", "1")]);
        let why: Vec<_> = found.skipped.iter().map(|skipped| skipped.why).collect();
        assert_eq!(
            why,
            ["a folder inside of an agent's folder", "a symbolic link", "a symbolic link"]
        );
    }

    #[test]
    fn a_missing_path_is_an_error_of_its_own() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "1.jsonl");
        let paths = [root.path().join("none"), root.path().join("1.jsonl")];
        let found = find(&paths, None);
        assert_eq!(found.errors.len(), 1);
        assert_eq!(ids(&found), [("imported", "1")]);
    }

    /// Goal: nothing but what was listed is read, whatever is put in its place meanwhile.
    #[test]
    fn a_link_that_takes_the_place_of_what_was_listed_is_not_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let (path, link) = (root.path(), std::os::unix::fs::symlink::<PathBuf, PathBuf>);
        for name in ["tree/runs/a/1.jsonl", "tree/runs/b/1.jsonl", "secret/1.jsonl", "1.jsonl"] {
            touch(path, name);
        }
        let before = find(&[path.join("tree"), path.join("1.jsonl")], None);
        assert_eq!(before.sources.len(), 3);
        for source in &before.sources {
            source.place.file().expect("the file that was listed");
        }
        fs::remove_file(path.join("tree/runs/a/1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("tree/runs/a/1.jsonl")).expect("a link");
        fs::remove_dir_all(path.join("tree/runs/b")).expect("removed");
        link(path.join("secret"), path.join("tree/runs/b")).expect("a link");
        for source in &before.sources[..2] {
            let said = source.place.file().expect_err("a link").to_string();
            assert!(said.contains("link") || said.contains("Not a directory"), "{said}");
        }
        // A path that the user names is followed.
        fs::remove_file(path.join("1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("1.jsonl")).expect("a link");
        before.sources[2].place.file().expect("the file behind the link");
        // So it is with a folder that is listed, but not with one below it.
        fs::rename(path.join("tree/runs"), path.join("elsewhere")).expect("renamed");
        link(path.join("elsewhere"), path.join("tree/runs")).expect("a link");
        before.sources[0].place.file().expect_err("behind a link");
        assert_eq!(ids(&find(&[path.join("tree")], None)), []);
        assert_eq!(find(&[path.join("tree/runs")], None).skipped.len(), 2);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "a/1.jsonl");
        let found = find(&[root.path().to_path_buf()], None);
        let path = root.path().join("a/1.jsonl");
        fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a pipe");
        let said = found.sources[0].place.file().expect_err("a pipe").to_string();
        assert_eq!(said, "not a regular file");
        assert_eq!(find(&[root.path().to_path_buf()], None).skipped.len(), 1);
        assert!(Place::named(&path).file().is_err());
        assert!(Place::named(Path::new("/dev/zero")).file().is_err());
    }
}
