//! Which files the paths of the command line mean, and whose runs they are.
//!
//! | the path is | its runs are |
//! |---|---|
//! | a file | run = its name without its ending, agent = `--agent`, else `imported` |
//! | a folder that holds a folder `runs`, or the home of a program | those of that folder alone |
//! | any other folder | all files in it, at any depth |
//!
//! In a folder, `AGENT/RUN.jsonl` is the run `RUN` of `AGENT`, and `AGENT/a/RUN.jsonl` its run
//! `a/RUN`. The agent of files in the folder itself is `--agent`, else the folder's name. Folders
//! that only sort are left out of the ids: those named by a number, as of a year or a day, and
//! `sessions`, `archived_sessions` and `chats`.
//!
//! Names with escapes, which `export` makes of ids that are no names, give these ids back: see
//! [`crate::names`].
//!
//! Two files may want the same id, such as `a.json` and `a.jsonl`. The second one keeps its ending,
//! its whole way from the folder, or gets a number, whichever is the first that helps: see
//! [`super::run_identity`].
//!
//! Links, special files and hidden files inside of folders are not followed but named. A path that
//! the user names may be any of these but special. Files that are no runs by their names are
//! counted: see [`sidecars`].

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::FileType;

use crate::failure::Failure;
use crate::formats::encoding::Encoding;
use crate::formats::origin::{Origin, digest};
use crate::formats::{Format, Layout};
use crate::names::{ids_of, is_number, only_sorts, plain_name, stem};

use super::args::ImportArgs;
use super::done::Notice;
use super::safe_open::{Entry, Location, not_regular};
use super::session_folder::{self, Parts};
use super::sidecars::{self, Counts, Folder, Home, Kind};

/// The agent of files that belong to no folder of runs, where the user names none.
const DEFAULT_AGENT: &str = "imported";

/// How deep folders are followed.
const MAX_DEPTH: usize = 64;

/// The path that stands for standard input.
pub(crate) const STDIN: &str = "-";

/// One file to import.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) location: Location,
    pub(crate) agent: String,
    pub(crate) run: String,
    /// Longer run ids, for when the file is not the only one with this one.
    pub(crate) longer: Vec<String>,
    /// The files of the session, where it is a folder.
    pub(crate) parts: Option<Parts>,
    /// The file beside it that may have all of it: it has the name that this one had.
    pub(crate) original: Option<Location>,
    /// The store had no run of this name when the scan began.
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

    /// The name of the file, before it was compressed or put away.
    pub(crate) fn file_name(&self) -> String {
        plain_name(&self.location.name().to_string_lossy()).to_owned()
    }

    /// The metadata of the run of this file, which has this text. Standard input has no path.
    pub(crate) fn origin(
        &self,
        (format, layout): (Format, Layout),
        encoding: Encoding,
        text: &[u8],
        records: u64,
    ) -> Origin {
        let path = self.location.absolute_path().to_string_lossy().into_owned();
        let bytes = encoding.encode(text);
        Origin {
            imported_from: self.file_name(),
            path: Some(path).filter(|_| !self.location.is_stdin()),
            format: Some(format),
            layout,
            encoding,
            bytes: Some(bytes.len() as u64),
            digest: Some(digest(&bytes)),
            records: Some(records),
            join: String::new(),
        }
    }
}

/// All files of all paths, each once, in the order of the paths and then of the names.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) sources: Vec<Source>,
    /// Paths that are no sources, and why.
    pub(crate) notices: Vec<(Notice, PathBuf, String)>,
    /// How many files are no runs by their names.
    pub(crate) sidecars: Counts,
}

/// Which files of the paths are wanted.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) args: ImportArgs,
    pub(crate) excluded: GlobSet,
    /// Standard input.
    pub(crate) stdin: Option<Location>,
}

/// The patterns of `--exclude`: one without a slash is of names, any other of whole paths.
pub(crate) fn globs(patterns: &[String]) -> Result<GlobSet, Failure> {
    let mut globs = GlobSetBuilder::new();
    let invalid = |error: globset::Error| Failure::said(format!("--exclude: {error}"));
    for pattern in patterns {
        let trimmed = pattern.trim_end_matches('/');
        let whole = match trimmed.strip_prefix('/') {
            Some(anchored) => anchored.to_owned(),
            None if trimmed.contains('/') => trimmed.to_owned(),
            None => format!("**/{trimmed}"),
        };
        let glob = GlobBuilder::new(&whole).literal_separator(true).build().map_err(invalid)?;
        globs.add(glob);
    }
    globs.build().map_err(invalid)
}

/// Finds the files. Never fails as a whole: what cannot be read is listed.
pub(crate) fn find(paths: &[PathBuf], choice: &Choice) -> Found {
    let mut walk = Walk { choice, found: Found::default(), own_agent: None };
    for path in paths {
        match walk.add(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                walk.note(Notice::Missing, path.clone(), "no such file or folder");
            }
            Err(error) => walk.note(Notice::Refused, path.clone(), &error.to_string()),
        }
    }
    let mut found = walk.found;
    if paths.len() > 1 {
        // They may overlap.
        let mut seen = HashSet::new();
        found.sources.retain(|source| seen.insert(source.location.absolute_path()));
    }
    found
}

/// A walk over the paths of the user's.
struct Walk<'c> {
    choice: &'c Choice,
    found: Found,
    /// The agent of files that are in no folder of an agent; none if its name is not UTF-8.
    own_agent: Option<String>,
}

impl Walk<'_> {
    fn add(&mut self, path: &Path) -> io::Result<()> {
        if let Some(stdin) = self.choice.stdin.as_ref().filter(|_| path == Path::new(STDIN)) {
            self.named(stdin.clone());
            return Ok(());
        }
        let root = Location::named(path);
        let metadata = fs::metadata(path)?;
        if !metadata.is_dir() {
            return self.named_file(root, &metadata);
        }
        self.own_agent = self.choice.args.agent.clone().or_else(|| folder_name(path));
        let entries = root.entries()?;
        let (runs, beside) = match sidecars::home(&entries) {
            Some(Home::Agents(name)) => {
                let runs = root.join(OsStr::new(name));
                let kind = Folder::default().below(OsStr::new(name), &[]);
                self.folder(&runs, &runs.entries()?, &mut Vec::new(), kind);
                (Vec::new(), entries.into_iter().filter(|entry| entry.name != name).collect())
            }
            Some(Home::Sessions(names)) => {
                entries.into_iter().partition(|entry| names.iter().any(|name| entry.name == *name))
            }
            None => (entries, Vec::new()),
        };
        let name = path.file_name().unwrap_or_default();
        let kind = Folder::default().below(name, &runs);
        self.folder(&root, &runs, &mut Vec::new(), kind);
        if self.choice.args.all_files {
            self.folder(&root, &beside, &mut Vec::new(), Folder::default());
        } else {
            for _ in beside {
                self.count(Kind::ProgramFiles);
            }
        }
        Ok(())
    }

    /// A file that the user names.
    fn named_file(&mut self, root: Location, metadata: &fs::Metadata) -> io::Result<()> {
        // Also before it is opened, since to open a device may do something.
        if !metadata.is_file() {
            return Err(not_regular());
        }
        let name = root.name().to_owned();
        if sidecars::is_credential(&name) {
            let message = "its name is that of credentials, which are never read; to import it all \
                           the same, give it another name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.choice.excluded.is_match(Path::new(&name)) {
            self.count(Kind::Excluded);
            return Ok(());
        }
        self.named(root);
        Ok(())
    }

    /// A file or standard input, which the user names, and perhaps its run too.
    fn named(&mut self, location: Location) {
        let agent = self.choice.args.agent.clone().unwrap_or_else(|| DEFAULT_AGENT.to_owned());
        if let Some(run) = &self.choice.args.run {
            self.push(location, agent, run.clone(), Vec::new());
        } else {
            let name = location.name().to_owned();
            self.file(location, &[&name], &agent);
        }
    }

    fn note(&mut self, notice: Notice, path: PathBuf, why: &str) {
        self.found.notices.push((notice, path, why.to_owned()));
    }

    fn refuse(&mut self, location: &Location, error: &io::Error) {
        self.note(Notice::Refused, location.path(), &error.to_string());
    }

    fn count(&mut self, kind: Kind) {
        *self.found.sidecars.entry(kind).or_default() += 1;
    }

    /// All files below a folder. `way` are the names that lead to it from the one that was named.
    fn folder(
        &mut self,
        folder: &Location,
        entries: &[Entry],
        way: &mut Vec<OsString>,
        of_folder: Folder,
    ) {
        let session = self.sessions(folder, entries);
        let mut originals = HashMap::new();
        for entry in entries {
            match &session {
                Some(used) if used.contains(&entry.name) => continue,
                Some(_) if !self.choice.args.all_files => {
                    self.count(Kind::SessionParts);
                    continue;
                }
                _ => {}
            }
            let location = folder.join(&entry.name);
            let is_hidden =
                entry.name.as_encoded_bytes().starts_with(b".") && !self.choice.args.all_files;
            if let Some(kind) = self.sidecar(&location, entry, entries, of_folder) {
                self.count(kind);
                continue;
            }
            way.push(entry.name.clone());
            let why = match entry.kind {
                FileType::Symlink => Some("a symbolic link"),
                _ if is_hidden => Some("hidden"),
                FileType::Directory if way.len() > MAX_DEPTH => Some("a folder too deep"),
                FileType::Directory => {
                    match location.entries() {
                        Ok(entries) => {
                            let kind = of_folder.below(&entry.name, &entries);
                            self.folder(&location, &entries, way, kind);
                        }
                        Err(error) => self.refuse(&location, &error),
                    }
                    None
                }
                FileType::RegularFile => {
                    let known = self.found.sources.len();
                    self.file_below(location.clone(), way);
                    // It may be a copy of another, which has the name that both had.
                    if let Some(source) = self.found.sources.get_mut(known) {
                        let original = originals.entry(source.file_name());
                        let original = original.or_insert_with(|| location.clone());
                        source.original =
                            Some(original.clone()).filter(|file| file.name() != location.name());
                    }
                    None
                }
                _ => Some("not a regular file"),
            };
            if let Some(why) = why {
                self.note(Notice::Skipped, location.path(), why);
            }
            way.pop();
        }
    }

    /// The kind of an entry that is passed over by its name.
    fn sidecar(
        &self,
        location: &Location,
        entry: &Entry,
        entries: &[Entry],
        folder: Folder,
    ) -> Option<Kind> {
        if entry.kind == FileType::RegularFile && sidecars::is_credential(&entry.name) {
            return Some(Kind::Credentials);
        }
        if self.choice.excluded.is_match(location.relative_path()) {
            return Some(Kind::Excluded);
        }
        let kind = folder.kind(entry, entries).filter(|_| entry.kind != FileType::Symlink);
        kind.filter(|_| !self.choice.args.all_files)
    }

    /// A file, by the names that lead to it from the folder that was named.
    fn file_below(&mut self, location: Location, way: &[OsString]) {
        if let Some((agent, run)) = exported(way) {
            self.push(location, agent, run, Vec::new());
            return;
        }
        let own = self.own_agent.clone();
        match agent_of(way, own.as_deref()) {
            Some((agent, rest)) => {
                let rest: Vec<&OsStr> = rest.iter().map(|name| &**name).collect();
                self.file(location, &rest, agent);
            }
            None => self.refuse(&location, &not_utf8()),
        }
    }

    /// A file, by the names that lead to it from its agent's folder.
    fn file(&mut self, location: Location, way: &[&OsStr], agent: &str) {
        let names: Option<Vec<&str>> = way.iter().map(|name| name.to_str()).collect();
        let Some((name, folders)) = names.as_deref().and_then(<[_]>::split_last) else {
            self.refuse(&location, &not_utf8());
            return;
        };
        let kept: Vec<&str> =
            folders.iter().copied().filter(|folder| !only_sorts(folder)).collect();
        let id = |folders: &[&str], name: &str| [folders, &[name]].concat().join("/");
        let run = id(&kept, stem(name));
        let mut longer = vec![id(&kept, name), id(folders, name)];
        longer.retain(|longer| *longer != run);
        longer.dedup();
        self.push(location, agent.to_owned(), run, longer);
    }

    fn push(&mut self, location: Location, agent: String, run: String, longer: Vec<String>) {
        let (parts, original, is_new, old_path) = (None, None, false, None);
        let source = Source { location, agent, run, longer, parts, original, is_new, old_path };
        self.found.sources.push(source);
    }

    /// Takes the sessions of a folder, if it has those of a program that is known. Returns the
    /// names of the entries that are of them.
    fn sessions(&mut self, folder: &Location, entries: &[Entry]) -> Option<Vec<OsString>> {
        let (sessions, used) = match session_folder::sessions(folder, entries) {
            Ok(found) => found?,
            Err(error) => {
                self.refuse(folder, &error);
                return None;
            }
        };
        for session in sessions {
            let agent = self.choice.args.agent.clone().unwrap_or_else(|| session.agent.to_owned());
            self.push(session.location, agent, session.run, Vec::new());
            if let Some(source) = self.found.sources.last_mut() {
                source.parts = session.parts;
            }
        }
        Some(used)
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
    own_agent: Option<&'w str>,
) -> Option<(&'w str, &'w [OsString])> {
    // Folders that only sort, such as `sessions`, are no agents; what is in one of a year has none.
    let is_sorting = |name: &&OsString| name.to_str().is_some_and(only_sorts);
    let skipped = way.iter().take_while(is_sorting).count();
    let has_number = way.iter().take(skipped).any(|name| name.to_str().is_some_and(is_number));
    match way.get(skipped..) {
        Some([first, rest @ ..]) if !rest.is_empty() && !has_number => {
            Some((first.to_str()?, rest))
        }
        _ => Some((own_agent?, way)),
    }
}

/// The name of a folder, also where its path is `.` or ends in `..`: that of the first folder above
/// that does more than sort, and without the dot of a hidden one.
fn folder_name(folder: &Path) -> Option<String> {
    let absolute;
    let folder = match folder.file_name().and_then(OsStr::to_str) {
        Some(name) if !only_sorts(name) => folder,
        _ => {
            absolute = fs::canonicalize(folder).ok()?;
            &absolute
        }
    };
    let names = folder.ancestors().filter_map(Path::file_name);
    let mut names = names.filter(|name| !name.to_str().is_some_and(only_sorts));
    let name = names.next().map_or(Some(DEFAULT_AGENT), OsStr::to_str)?;
    Some(name.strip_prefix('.').unwrap_or(name).to_owned())
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

    fn of_agent(agent: &str) -> Choice {
        let args = ImportArgs { agent: Some(agent.to_owned()), ..ImportArgs::default() };
        Choice { args, ..Choice::default() }
    }

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
            assert_eq!(ids(&find(&[path], &Choice::default())), whole);
        }
        let beside = find(&[root.path().to_path_buf()], &Choice::default());
        assert_eq!((beside.notices.len(), beside.sidecars[&Kind::ProgramFiles]), (1, 1));
        assert_eq!(ids(&find(&[root.path().join("runs/b")], &Choice::default())), whole[1..]);
        assert_eq!(ids(&find(&[root.path().join("runs/a/..")], &Choice::default())), whole);
        assert_eq!(
            ids(&find(&[root.path().join("runs/b")], &of_agent("c"))),
            [("c", "1"), ("c", "2")]
        );
    }

    #[test]
    fn single_files_take_the_named_agent() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "one.log");
        touch(root.path(), "two.jsonl");
        let paths = [root.path().join("one.log"), root.path().join("two.jsonl")];
        assert_eq!(
            ids(&find(&paths, &Choice::default())),
            [("imported", "one"), ("imported", "two")]
        );
        assert_eq!(ids(&find(&paths, &of_agent("me"))), [("me", "one"), ("me", "two")]);
    }

    #[test]
    fn links_and_hidden_files_are_named_and_not_followed() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "a/1.jsonl");
        touch(root.path(), ".git/2.jsonl");
        std::os::unix::fs::symlink("1.jsonl", root.path().join("a/link.jsonl")).expect("a link");
        std::os::unix::fs::symlink("a", root.path().join("b")).expect("a link");
        let found = find(&[root.path().to_path_buf()], &Choice::default());
        assert_eq!(ids(&found), [("a", "1")]);
        let why: Vec<_> = found.notices.iter().map(|(_, _, why)| why).collect();
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
        let found = find(&[root.path().to_path_buf()], &of_agent("codex"));
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
        let found = find(&paths, &Choice::default());
        let notices: Vec<_> = found.notices.iter().map(|(notice, ..)| *notice).collect();
        assert_eq!(notices, [Notice::Missing]);
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
        let before = find(&[path.join("tree"), path.join("1.jsonl")], &Choice::default());
        assert_eq!(before.sources.len(), 3);
        for source in &before.sources {
            source.location.file().expect("the file that was listed");
        }
        fs::remove_file(path.join("tree/runs/a/1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("tree/runs/a/1.jsonl")).expect("a link");
        fs::remove_dir_all(path.join("tree/runs/b")).expect("removed");
        link(path.join("secret"), path.join("tree/runs/b")).expect("a link");
        for source in &before.sources[..2] {
            let said = source.location.file().expect_err("a link").to_string();
            assert!(said.contains("regular file") || said.contains("Not a directory"), "{said}");
        }
        // A path that the user names is followed.
        fs::remove_file(path.join("1.jsonl")).expect("removed");
        link(path.join("secret/1.jsonl"), path.join("1.jsonl")).expect("a link");
        before.sources[2].location.file().expect("the file behind the link");
        // So it is with a folder that is listed, but not with one below it.
        fs::rename(path.join("tree/runs"), path.join("elsewhere")).expect("renamed");
        link(path.join("elsewhere"), path.join("tree/runs")).expect("a link");
        before.sources[0].location.file().expect_err("behind a link");
        before.sources[1].location.file().expect_err("behind a link");
        assert_eq!(ids(&find(&[path.join("tree")], &Choice::default())), []);
        assert_eq!(find(&[path.join("tree/runs")], &Choice::default()).notices.len(), 2);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
        let root = tempfile::tempdir().expect("a folder");
        touch(root.path(), "a/1.jsonl");
        let found = find(&[root.path().to_path_buf()], &Choice::default());
        let path = root.path().join("a/1.jsonl");
        fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a pipe");
        let said = found.sources[0].location.file().expect_err("a pipe").to_string();
        assert_eq!(said, "not a regular file");
        assert_eq!(find(&[root.path().to_path_buf()], &Choice::default()).notices.len(), 1);
        assert!(Location::named(&path).file().is_err());
        assert!(Location::named(Path::new("/dev/zero")).file().is_err());
    }
}
