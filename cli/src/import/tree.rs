//! Which files the paths of the command line mean, and whose runs they are.
//!
//! | the path is | its runs are |
//! |---|---|
//! | a file | run = its name without its ending, agent = `--agent`, else `imported` |
//! | a folder that holds a folder `runs` | those of `runs` alone |
//! | any other folder | all files in it, at any depth |
//!
//! In a folder, `AGENT/RUN.jsonl` is the run `RUN` of `AGENT`, and `AGENT/a/RUN.jsonl` its run
//! `a/RUN`. The agent of files in the folder itself is `--agent`, else the folder's name. Folders
//! that only sort are left out of the ids: those named by a number, as of a year or a day, and
//! `sessions` and `chats` below an agent.
//!
//! Names with escapes, which `export` makes of ids that are no names, give these ids back: see
//! [`crate::names`].
//!
//! Two files may want the same id, such as `a.json` and `a.jsonl`. The second one keeps its ending,
//! its whole way from the folder, or gets a number, whichever is the first that helps: see
//! [`super::whose`].
//!
//! Links, special files and hidden files inside of folders are not followed but named. A path that
//! the user names may be any of these but special.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::names::{ids_of, is_number, only_sorts, stem};

use super::DEFAULT_AGENT;
use super::place::{Entry, Place, not_regular};

/// How deep folders are followed.
const MAX_DEPTH: usize = 64;

/// One file to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) place: Place,
    pub(crate) agent: String,
    pub(crate) run: String,
    /// Longer run ids, for when the file is not the only one with this one.
    pub(crate) longer: Vec<String>,
    /// The store had no run of this name when the round began.
    pub(crate) is_new: bool,
    /// Where the run was imported from, if that is another path than the one of this file.
    pub(crate) old_path: Option<PathBuf>,
}

impl Source {
    /// Agent and run.
    pub(crate) fn ids(&self) -> (&str, &str) {
        (&self.agent, &self.run)
    }

    /// Whether the file is, as far as its run says, the copy of one that is still there.
    pub(crate) fn is_copy(&self) -> bool {
        self.old_path.as_ref().is_some_and(|path| fs::exists(path).unwrap_or(true))
    }

    /// The name of the file.
    pub(crate) fn file_name(&self) -> String {
        self.place.name().to_string_lossy().into_owned()
    }

    /// Where it is, from the root on, as the metadata say it.
    pub(crate) fn path_text(&self) -> String {
        self.place.absolute_path().to_string_lossy().into_owned()
    }
}

/// What was passed over on purpose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) path: PathBuf,
    pub(crate) why: &'static str,
}

/// All files of all paths, each once, in the order of the paths and then of the names.
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
    if paths.len() > 1 {
        // They may overlap.
        let mut seen = HashSet::new();
        found.sources.retain(|source| seen.insert(source.place.absolute_path()));
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
            let way = path.file_name().into_iter().collect::<Vec<_>>();
            self.file(root, &way, agent.unwrap_or(DEFAULT_AGENT));
            return Ok(());
        }
        let mut entries = root.entries()?;
        let is_runs = |entry: &Entry| entry.name == "runs" && entry.kind == FileType::Directory;
        if entries.iter().any(is_runs) {
            for beside in entries.iter().filter(|entry| !is_runs(entry)) {
                let why = "beside the folder of the runs";
                self.skipped.push(Skipped { path: root.join(&beside.name).path(), why });
            }
            root = root.join(OsStr::new("runs"));
            entries = root.entries()?;
        }
        let own_agent = match agent {
            Some(agent) => Ok(agent.to_owned()),
            None => folder_name(&root.path()),
        };
        self.folder(&root, entries, &mut Vec::new(), &own_agent);
        Ok(())
    }

    /// All files below a folder. `way` are the names that lead to it from the one that was named.
    fn folder(
        &mut self,
        folder: &Place,
        entries: Vec<Entry>,
        way: &mut Vec<OsString>,
        own_agent: &io::Result<String>,
    ) {
        for entry in entries {
            let place = folder.join(&entry.name);
            let is_hidden = entry.name.as_encoded_bytes().starts_with(b".");
            way.push(entry.name);
            let why = match entry.kind {
                FileType::Symlink => Some("a symbolic link"),
                _ if is_hidden => Some("hidden"),
                FileType::Directory if way.len() > MAX_DEPTH => Some("a folder too deep"),
                FileType::Directory => {
                    match place.entries() {
                        Ok(entries) => self.folder(&place, entries, way, own_agent),
                        Err(error) => self.errors.push((place.path(), error.to_string())),
                    }
                    None
                }
                FileType::RegularFile => {
                    self.file_below(place.clone(), way, own_agent);
                    None
                }
                _ => Some("not a regular file"),
            };
            if let Some(why) = why {
                self.skipped.push(Skipped { path: place.path(), why });
            }
            way.pop();
        }
    }

    /// A file, by the names that lead to it from the folder that was named.
    fn file_below(&mut self, place: Place, way: &[OsString], own_agent: &io::Result<String>) {
        if let Some((agent, run)) = exported(way) {
            self.push(place, agent, run, Vec::new());
            return;
        }
        match agent_of(way, own_agent) {
            Ok((agent, rest)) => {
                let rest: Vec<&OsStr> = rest.iter().map(|name| &**name).collect();
                self.file(place, &rest, &agent);
            }
            Err(error) => self.errors.push((place.path(), error)),
        }
    }

    /// A file, by the names that lead to it from its agent's folder.
    fn file(&mut self, place: Place, way: &[&OsStr], agent: &str) {
        let names: Option<Vec<&str>> = way.iter().map(|name| name.to_str()).collect();
        let Some((name, folders)) = names.as_deref().and_then(<[_]>::split_last) else {
            self.errors.push((place.path(), not_utf8().to_string()));
            return;
        };
        let kept: Vec<&str> =
            folders.iter().copied().filter(|folder| !only_sorts(folder)).collect();
        let id = |folders: &[&str], name: &str| [folders, &[name]].concat().join("/");
        let run = id(&kept, stem(name));
        let mut longer = vec![id(&kept, name), id(folders, name)];
        longer.retain(|longer| *longer != run);
        longer.dedup();
        self.push(place, agent.to_owned(), run, longer);
    }

    fn push(&mut self, place: Place, agent: String, run: String, longer: Vec<String>) {
        let (is_new, old_path) = (false, None);
        self.sources.push(Source { place, agent, run, longer, is_new, old_path });
    }
}

/// Agent and run of a file whose names an export made, and which have escapes.
fn exported(way: &[OsString]) -> Option<(String, String)> {
    let mut names: Vec<&str> = way.iter().map(|name| name.to_str()).collect::<Option<_>>()?;
    let file = names.last_mut()?;
    *file = stem(file);
    let has_escapes = names.iter().any(|name| name.contains('%'));
    has_escapes.then(|| ids_of(&names))?
}

/// The agent of a file, and the names that lead to the file from the agent's folder.
fn agent_of<'w>(
    way: &'w [OsString],
    own_agent: &io::Result<String>,
) -> Result<(String, &'w [OsString]), String> {
    let own = || match own_agent {
        Ok(agent) => Ok(agent.clone()),
        Err(error) => Err(error.to_string()),
    };
    match way {
        [first, rest @ ..] if !rest.is_empty() => {
            let name = first.to_str().ok_or_else(|| not_utf8().to_string())?;
            // A folder of a year, and not of an agent.
            if is_number(name) { Ok((own()?, way)) } else { Ok((name.to_owned(), rest)) }
        }
        _ => Ok((own()?, way)),
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
    use super::super::place::Opened;
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
        assert_eq!(find(&[root.path().to_path_buf()], None).skipped.len(), 2);
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
    fn links_and_hidden_files_are_named_and_not_followed() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "a/1.jsonl");
        touch(root.path(), ".git/2.jsonl");
        std::os::unix::fs::symlink("1.jsonl", root.path().join("a/link.jsonl")).expect("a link");
        std::os::unix::fs::symlink("a", root.path().join("b")).expect("a link");
        let found = find(&[root.path().to_path_buf()], None);
        assert_eq!(ids(&found), [("a", "1")]);
        let why: Vec<_> = found.skipped.iter().map(|skipped| skipped.why).collect();
        assert_eq!(why, ["hidden", "a symbolic link", "a symbolic link"]);
    }

    #[test]
    fn ids_are_the_way_from_the_agent_without_what_only_sorts() {
        let root = tempfile::tempdir().expect("a folder");
        for name in [
            "2026/01/31/rollout-1.jsonl",
            "main/sessions/s.jsonl",
            "project/session/subagents/agent-1.jsonl",
            "x/local.traj.json",
            "x/.traj.json.d/hidden",
        ] {
            touch(root.path(), name);
        }
        let found = find(&[root.path().to_path_buf()], Some("codex"));
        let wanted = [
            ("codex", "rollout-1"),
            ("main", "s"),
            ("project", "session/subagents/agent-1"),
            ("x", "local"),
        ];
        assert_eq!(ids(&found), wanted);
        assert_eq!(found.sources[0].longer, ["rollout-1.jsonl", "2026/01/31/rollout-1.jsonl"]);
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
            source.place.file(&mut Opened::default()).expect("the file that was listed");
        }
        fs::remove_file(path.join("tree/runs/a/1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("tree/runs/a/1.jsonl")).expect("a link");
        fs::remove_dir_all(path.join("tree/runs/b")).expect("removed");
        link(path.join("secret"), path.join("tree/runs/b")).expect("a link");
        for source in &before.sources[..2] {
            let said = source.place.file(&mut Opened::default()).expect_err("a link").to_string();
            assert!(said.contains("link") || said.contains("Not a directory"), "{said}");
        }
        // A path that the user names is followed.
        fs::remove_file(path.join("1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("1.jsonl")).expect("a link");
        before.sources[2].place.file(&mut Opened::default()).expect("the file behind the link");
        // So it is with a folder that is listed, but not with one below it.
        fs::rename(path.join("tree/runs"), path.join("elsewhere")).expect("renamed");
        link(path.join("elsewhere"), path.join("tree/runs")).expect("a link");
        before.sources[0].place.file(&mut Opened::default()).expect_err("behind a link");
        let again = &mut Opened::default();
        before.sources[1].place.file(again).expect_err("behind a link");
        assert_eq!(ids(&find(&[path.join("tree")], None)), []);
        assert_eq!(find(&[path.join("tree/runs")], None).skipped.len(), 2);
    }

    /// Goal: a folder that stays open between its files is the one that was listed.
    #[test]
    fn the_files_of_a_folder_that_is_open_are_those_of_the_folder_that_was_listed() {
        let root = tempfile::tempdir().expect("a folder");
        let (path, link) = (root.path(), std::os::unix::fs::symlink::<PathBuf, PathBuf>);
        for (name, text) in [("a/1.log", "1"), ("a/2.log", "2"), ("a/3.log", "3"), ("b/1.log", "4")]
        {
            touch(path, &format!("tree/{name}"));
            fs::write(path.join("tree").join(name), text).expect("written");
        }
        touch(path, "secret/2.log");
        fs::write(path.join("secret/2.log"), "secret").expect("written");
        let found = find(&[path.join("tree")], None);
        assert_eq!(found.sources.len(), 4);
        let opened = &mut Opened::default();
        let read = |number: usize, opened: &mut Opened| {
            let (file, metadata) = found.sources[number].place.file(opened)?;
            assert_eq!(metadata.len(), 1);
            io::read_to_string(file)
        };
        assert_eq!(read(0, opened).expect("a file"), "1");
        fs::rename(path.join("tree/a"), path.join("moved")).expect("renamed");
        link(path.join("secret"), path.join("tree/a")).expect("a link");
        assert_eq!(read(1, opened).expect("the file that was listed"), "2");
        // A file in an open folder is not followed either.
        fs::remove_file(path.join("moved/3.log")).expect("removed");
        link(path.join("secret/2.log"), path.join("moved/3.log")).expect("a link");
        let said = read(2, opened).expect_err("a link").to_string();
        assert!(said.contains("link"), "{said}");
        // Another folder is opened anew, and this one is behind a link by now.
        assert_eq!(read(3, opened).expect("a file"), "4");
        read(0, opened).expect_err("behind a link");
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
        let said =
            found.sources[0].place.file(&mut Opened::default()).expect_err("a pipe").to_string();
        assert_eq!(said, "not a regular file");
        assert_eq!(find(&[root.path().to_path_buf()], None).skipped.len(), 1);
        assert!(Place::named(&path).file(&mut Opened::default()).is_err());
        assert!(Place::named(Path::new("/dev/zero")).file(&mut Opened::default()).is_err());
    }
}
