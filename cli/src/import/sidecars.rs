//! Files beside runs that are no runs: known by their names and by what lies beside them.
//!
//! `import` reads none of them, counts them by kind, and says so in one line. With `--all-files` it
//! takes all but the credentials, which it never opens.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use rustix::fs::FileType;
use serde::Serialize;

use crate::formats::ends;
use crate::names::plain_name;

use super::safe_open::Entry;

/// The kinds of files that are no runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Keys and tokens: never read.
    Credentials,
    /// Results of tools that a session refers to.
    ToolResults,
    /// Notes of a program about a session.
    Metadata,
    /// Lists of sessions, and histories of prompts.
    Indexes,
    /// The memory of an agent between sessions.
    Memories,
    /// Locks, and what a database keeps beside it.
    Locks,
    /// Settings of a program.
    Settings,
    /// Files of the job of a benchmark besides the trajectories.
    JobFiles,
    /// Pictures, sound, films and fonts.
    Media,
    /// Beside the folder of the runs in the home of a program.
    ProgramFiles,
    /// Beside the files of a session in its folder.
    SessionParts,
    /// A copy of a session that is there too, compressed or put away.
    Copies,
    /// Not of a format that `--only` names.
    OtherFormats,
    /// Named by `--exclude`.
    Excluded,
}

/// How many files of each kind there are.
pub(crate) type Counts = BTreeMap<Kind, u64>;

impl Kind {
    /// Whether `--all-files` imports it.
    pub(crate) fn is_taken_by_all_files(self) -> bool {
        !matches!(self, Self::Credentials | Self::Copies | Self::OtherFormats | Self::Excluded)
    }
}

/// Files of each kind, wherever they lie. A `*` is any beginning or any end of a name.
const NAMES: [(Kind, &str); 6] = [
    (
        Kind::Credentials,
        "auth.json credentials credentials.json .credentials.json oauth_creds.json \
         google_accounts.json mcp-oauth-tokens.json secrets.json .netrc .npmrc .pypirc id_rsa \
         id_ed25519 .env.* *.env *.pem *.key *.p12 *.pfx *.keystore *.jks",
    ),
    (Kind::Indexes, "sessions-index.json session_index.jsonl shell_history"),
    (Kind::Metadata, "task_metadata.json thumbs.db desktop.ini *.meta.json"),
    (Kind::Settings, "settings.json settings.local.json config.toml config.yaml config.yml"),
    (Kind::Locks, "lockfile *.lock *.lck *.pid *-wal *-shm *-journal"),
    (
        Kind::Media,
        "*.png *.jpg *.jpeg *.gif *.webp *.bmp *.ico *.svg *.tiff *.pdf *.mp3 *.mp4 *.mov *.wav \
         *.webm *.ttf *.woff *.woff2",
    ),
];

/// Files of one name beside a file or a folder of another name, in small letters.
const BESIDE: [(Kind, &str, &str); 3] = [
    (Kind::Indexes, "sessions.json", "*.jsonl"),
    (Kind::Indexes, "logs.json", "chats"),
    (Kind::Settings, "workspace.json", "chatsessions"),
];

/// Files and folders of a job, besides what is below `agent`.
const JOB: &str = "result.json config.json lock.json trial.log job.log exception.txt verifier \
                   artifacts steps";

/// Whether a name is one of a list.
fn is_one_of(name: &str, list: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| {
        match (listed.strip_prefix('*'), listed.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(begin)) => name.starts_with(begin),
            (None, None) => name == listed,
        }
    })
}

/// The kind that a name has wherever the file lies.
fn named(name: &str) -> Option<Kind> {
    NAMES.iter().find(|(_, list)| is_one_of(name, list)).map(|(kind, _)| *kind)
}

/// Whether a file of this name holds credentials.
pub(crate) fn is_credential(name: &OsStr) -> bool {
    named(&lower(name)) == Some(Kind::Credentials)
}

/// A folder, as far as it says which of its files are no runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Folder {
    /// All in it is of this kind, but for files of lines.
    all: Option<Kind>,
    /// All Markdown in it is of this kind.
    markdown: Option<Kind>,
    is_job: bool,
    /// It has the trajectory of a job: the rest of it says the same in another form.
    has_trajectory: bool,
}

impl Folder {
    /// A folder of this name with these entries, in another one.
    pub(crate) fn below(self, name: &OsStr, entries: &[Entry]) -> Self {
        let has = |wanted: &str| entries.iter().any(|entry| entry.name == wanted);
        let name = lower(name);
        let is_job_part = self.is_job && is_one_of(&name, JOB);
        let all = match &*name {
            "tool-results" => Some(Kind::ToolResults),
            _ if is_job_part || self.all == Some(Kind::JobFiles) => Some(Kind::JobFiles),
            _ => self.all,
        };
        let has_results =
            ["result.json", "trial.log", "job.log", "verifier"].iter().any(|n| has(n));
        Self {
            all,
            markdown: match &*name {
                "memory" | "memories" => Some(Kind::Memories),
                _ => self.markdown,
            },
            is_job: has_results && (has("agent") || has("config.json")),
            has_trajectory: name == "agent" && has("trajectory.json"),
        }
    }

    /// The kind of a file or a folder in it that is known to be no run.
    pub(crate) fn kind(self, entry: &Entry, entries: &[Entry]) -> Option<Kind> {
        let name = lower(&entry.name);
        let is_lines = ends(&name, &[".jsonl", ".ndjson"]);
        let is_trajectory = name.starts_with("trajectory") && ends(&name, &[".json"]);
        if self.has_trajectory && !is_trajectory {
            return Some(Kind::JobFiles);
        }
        if entry.kind == FileType::Directory {
            return None;
        }
        if let Some(kind) = self.all
            && (kind == Kind::JobFiles || !is_lines)
        {
            return Some(kind);
        }
        if self.is_job && is_one_of(&name, JOB) {
            return Some(Kind::JobFiles);
        }
        if ends(&name, &[".md"]) && self.markdown.is_some() {
            return self.markdown;
        }
        let beside = || {
            let is_there = |other: &str| {
                let name = |entry: &Entry| plain_name(&entry.name.to_string_lossy()).to_lowercase();
                entries.iter().any(|entry| is_one_of(&name(entry), other))
            };
            let is = |(_, own, other): &&(Kind, &str, &str)| name == *own && is_there(other);
            BESIDE.iter().find(is).map(|(kind, ..)| *kind)
        };
        named(&name).or_else(beside)
    }
}

/// The folders with runs in the home of a program; what is beside them is none of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The folders in this one are those of the agents.
    Agents(&'static str),
    /// The sessions of one agent are in these.
    Sessions(&'static [&'static str]),
}

/// The homes that are known: where the runs are, and of what one must lie beside.
const HOMES: [(Home, &str); 5] = [
    (Home::Agents("runs"), "*"),
    (Home::Agents("projects"), "settings.json history.jsonl todos statsig shell-snapshots plugins"),
    (
        Home::Sessions(&["sessions", "archived_sessions"]),
        "auth.json config.toml history.jsonl session_index.jsonl models.json",
    ),
    (Home::Agents("tmp"), "oauth_creds.json google_accounts.json installation_id settings.json"),
    (Home::Agents("agents"), "openclaw.json clawdbot.json"),
];

/// The home that a folder with these entries is.
pub(crate) fn home(entries: &[Entry]) -> Option<Home> {
    let has_folder = |name: &str| {
        entries.iter().any(|entry| entry.name == name && entry.kind == FileType::Directory)
    };
    let is = |(home, beside): &&(Home, &str)| {
        let has_runs = match home {
            Home::Agents(name) => has_folder(name),
            Home::Sessions(names) => names.iter().any(|name| has_folder(name)),
        };
        has_runs && entries.iter().any(|entry| is_one_of(&entry.name.to_string_lossy(), beside))
    };
    HOMES.iter().find(is).map(|(home, _)| *home)
}

fn lower(name: &OsStr) -> String {
    name.to_string_lossy().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry> {
        let entry = |name: &&str| Entry {
            name: name.trim_end_matches('/').into(),
            kind: if name.ends_with('/') { FileType::Directory } else { FileType::RegularFile },
        };
        names.iter().map(entry).collect()
    }

    /// The kind of the first of these names in a folder that has all of them.
    fn kind(folder: Folder, names: &[&str]) -> Option<Kind> {
        let entries = entries(names);
        folder.kind(&entries[0], &entries)
    }

    #[test]
    fn sidecars_are_known_by_their_names_and_by_what_lies_beside_them() {
        let root = Folder::default();
        for (names, wanted) in [
            (&["s.jsonl"][..], None),
            (&["notes.md"], None),
            (&["s.meta.json"], Some(Kind::Metadata)),
            (&["sessions-index.json"], Some(Kind::Indexes)),
            (&["sessions.json", "s.jsonl"], Some(Kind::Indexes)),
            (&["sessions.json"], None),
            (&["logs.json", "chats/"], Some(Kind::Indexes)),
            (&["logs.json"], None),
            (&["result.json"], None),
            (&["S.JSONL.lock"], Some(Kind::Locks)),
            (&["shot.PNG"], Some(Kind::Media)),
            (&["settings.local.json"], Some(Kind::Settings)),
        ] {
            assert_eq!(kind(root, names), wanted, "{names:?}");
        }
        let results = root.below(OsStr::new("tool-results"), &[]);
        assert_eq!(kind(results, &["toolu_1.txt"]), Some(Kind::ToolResults));
        assert_eq!(kind(results, &["s.jsonl"]), None);
        let memory = root.below(OsStr::new("memory"), &[]);
        assert_eq!(kind(memory, &["MEMORY.md"]), Some(Kind::Memories));
        assert_eq!(kind(memory, &["s.jsonl"]), None);
    }

    #[test]
    fn of_a_job_only_the_trajectories_are_runs() {
        let trial = entries(&["agent/", "config.json", "result.json", "trial.log", "verifier/"]);
        let trial = Folder::default().below(OsStr::new("task__x"), &trial);
        for name in ["config.json", "result.json", "trial.log"] {
            assert_eq!(kind(trial, &[name]), Some(Kind::JobFiles), "{name}");
        }
        assert_eq!(kind(trial, &["agent/"]), None);
        let verifier = trial.below(OsStr::new("verifier"), &[]);
        assert_eq!(kind(verifier, &["reward.txt"]), Some(Kind::JobFiles));
        let agent = entries(&["trajectory.json", "trajectory.cont-1.json", "sessions/", "x.log"]);
        let folder = trial.below(OsStr::new("agent"), &agent);
        let kinds: Vec<_> = agent.iter().map(|entry| folder.kind(entry, &agent)).collect();
        assert_eq!(kinds, [None, None, Some(Kind::JobFiles), Some(Kind::JobFiles)]);
        let alone = trial.below(OsStr::new("agent"), &entries(&["codex.txt"]));
        assert_eq!(kind(alone, &["codex.txt"]), None);
    }

    #[test]
    fn credentials_are_known_whatever_their_letters() {
        for name in
            ["auth.json", "AUTH.JSON", "server.pem", ".env", ".env.local", "id_rsa", "a.env"]
        {
            assert!(is_credential(OsStr::new(name)), "{name}");
        }
        for name in ["author.json", "pem", "env", "auth.jsonl", "key"] {
            assert!(!is_credential(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn homes_are_known_by_what_lies_beside_the_runs() {
        let sessions = Home::Sessions(&["sessions", "archived_sessions"]);
        for (names, wanted) in [
            (&["runs/", "journals/"][..], Some(Home::Agents("runs"))),
            (&["projects/", "todos/"], Some(Home::Agents("projects"))),
            (&["projects/"], None),
            (&["projects", "todos/"], None),
            (&["archived_sessions/", "auth.json"], Some(sessions)),
            (&["sessions/"], None),
            (&["agents/", "openclaw.json"], Some(Home::Agents("agents"))),
        ] {
            assert_eq!(home(&entries(names)), wanted, "{names:?}");
        }
    }
}
