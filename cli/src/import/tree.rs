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

use super::DEFAULT_AGENT;

/// One file to import.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
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
        if !fs::metadata(path)?.is_dir() {
            self.file(path, agent.unwrap_or(DEFAULT_AGENT));
            return Ok(());
        }
        let runs = path.join("runs");
        let holds_runs = fs::symlink_metadata(&runs).is_ok_and(|found| found.is_dir());
        let root = if holds_runs { runs } else { path.to_path_buf() };
        let own_agent = match agent {
            Some(agent) => Ok(agent.to_owned()),
            None => folder_name(&root),
        };
        for entry in Entry::all(&root)? {
            match entry.what {
                What::Folder => self.agent(&entry.path),
                What::Run => match &own_agent {
                    Ok(agent) => self.file(&entry.path, agent),
                    Err(error) => self.errors.push((entry.path, error.to_string())),
                },
                What::Other => {}
                What::Skipped(why) => self.skipped.push(Skipped { path: entry.path, why }),
            }
        }
        Ok(())
    }

    /// All runs of a folder that is named after its agent.
    fn agent(&mut self, folder: &Path) {
        let entries = match Entry::all(folder) {
            Ok(entries) => entries,
            Err(error) => return self.errors.push((folder.to_path_buf(), error.to_string())),
        };
        let agent = folder_name(folder);
        for entry in entries {
            match entry.what {
                What::Run => match &agent {
                    Ok(agent) => self.file(&entry.path, agent),
                    Err(error) => self.errors.push((entry.path, error.to_string())),
                },
                What::Folder => self.skipped.push(Skipped {
                    path: entry.path,
                    why: "a folder inside of an agent's folder",
                }),
                What::Other => {}
                What::Skipped(why) => self.skipped.push(Skipped { path: entry.path, why }),
            }
        }
    }

    fn file(&mut self, path: &Path, agent: &str) {
        match path.file_stem().and_then(OsStr::to_str) {
            Some(run) => self.sources.push(Source {
                path: path.to_path_buf(),
                agent: agent.to_owned(),
                run: run.to_owned(),
            }),
            None => self.errors.push((path.to_path_buf(), not_utf8().to_string())),
        }
    }
}

/// An entry of a folder.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    what: What,
}

#[derive(Debug)]
enum What {
    Folder,
    /// A regular file `*.jsonl`.
    Run,
    /// A file of another name.
    Other,
    Skipped(&'static str),
}

impl Entry {
    /// The entries of a folder, sorted by name so that every import runs in the same order.
    fn all(folder: &Path) -> io::Result<Vec<Self>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Not followed where it is a link.
            let file_type = entry.file_type()?;
            let path = entry.path();
            let is_named_run = path.extension() == Some(OsStr::new("jsonl"));
            let what = if file_type.is_symlink() {
                What::Skipped("a symbolic link")
            } else if file_type.is_dir() {
                What::Folder
            } else if !is_named_run {
                What::Other
            } else if file_type.is_file() {
                What::Run
            } else {
                What::Skipped("not a regular file")
            };
            entries.push(Self { path, what });
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
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

    #[cfg(unix)]
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
}
