//! Folders that are sessions: all that belongs to one is one run, whose id is that of the session.
//!
//! | folder | agent | run | files |
//! |---|---|---|---|
//! | with `events.jsonl` of Copilot | `copilot` | its name | `events.jsonl` |
//! | with `api_conversation_history.json`, `ui_messages.json` | `cline` or kin | its name | both |
//! | `S` with `S.messages.json` | `cline` | its name | that one |
//! | with `events` of `OpenHands` | `openhands` | its name | the events, `base_state.json` |
//! | with `session` and `message` of `OpenCode` | `opencode` | each session | it and its messages |
//!
//! Other files in such a folder are no runs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::PathBuf;

use rustix::fs::FileType;

use crate::formats::Format;
use crate::formats::documents::openhands;
use crate::formats::files::Files;
use crate::formats::json;

use super::safe_open::{Entry, Location};

/// How much of a file is looked at to recognise it.
const LOOK: u64 = 4096;

/// The longest session of several files: it is held in memory.
const MAX_SESSION: u64 = crate::formats::probe::MAX_DOCUMENT;

/// The file with the state of a conversation of `OpenHands`.
const STATE: &str = "base_state.json";

const CLINE: [&str; 2] = ["api_conversation_history.json", "ui_messages.json"];

/// The extensions of VS Code that write tasks as Cline does, by a part of their folders.
const KIN: [(&str, &str); 3] = [("roo-cline", "roo"), ("kilo-code", "kilo"), ("", "cline")];

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) agent: &'static str,
    pub(crate) run: String,
    /// The file that is the session, or its folder.
    pub(crate) location: Location,
    /// Its files, where it has several.
    pub(crate) parts: Option<Parts>,
}

/// The files of a session.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) format: Format,
    /// The folder that the paths begin in.
    folder: Location,
    /// In the order of the run.
    files: Vec<Location>,
}

/// The sessions of a folder with these entries, and the names of the entries that are of them;
/// `None` if it is no folder of this kind.
pub(crate) fn sessions(
    folder: &Location,
    entries: &[Entry],
) -> io::Result<Option<(Vec<Session>, Vec<OsString>)>> {
    let has = |name: &str, kind| entries.iter().any(|e| e.name == name && e.kind == kind);
    let has_file = |name: &str| has(name, FileType::RegularFile);
    let has_folder = |name: &str| has(name, FileType::Directory);
    if has_folder("session") && has_folder("message") {
        let used = ["session", "message", "part"].map(OsString::from);
        return opencode(folder).map(|sessions| Some((sessions, used.to_vec())));
    }
    let Some(name) = folder.name().to_str() else { return Ok(None) };
    let messages = format!("{name}.messages.json");
    let one = |agent, file: &str| {
        let location = folder.join(file.as_ref());
        Some(Session { agent, run: name.to_owned(), location, parts: None })
    };
    let several = |agent, format, files| {
        let parts = Some(Parts { format, folder: folder.clone(), files });
        Some(Session { agent, run: name.to_owned(), location: folder.clone(), parts })
    };
    let (session, used) = if has_file("events.jsonl") && is_copilot(folder, name)? {
        (one("copilot", "events.jsonl"), vec!["events.jsonl".into()])
    } else if CLINE.into_iter().any(has_file) {
        let path = folder.absolute_path().to_string_lossy().into_owned();
        let kin = KIN.iter().find(|(word, _)| path.contains(word));
        let used = CLINE.into_iter().filter(|name| has_file(name)).map(OsString::from);
        let used: Vec<_> = used.collect();
        let files = used.iter().map(|name| folder.join(name)).collect();
        (several(kin.map_or("cline", |(_, agent)| agent), Format::Cline, files), used)
    } else if has_file(&messages) {
        (one("cline", &messages), vec![messages.into()])
    } else if has_folder("events") {
        let Some(mut files) = openhands_events(&folder.join("events".as_ref()))? else {
            return Ok(None);
        };
        files.extend(has_file(STATE).then(|| folder.join(STATE.as_ref())));
        let used = vec!["events".into(), STATE.into()];
        (several("openhands", Format::OpenHands, files), used)
    } else {
        (None, Vec::new())
    };
    Ok(session.map(|session| (vec![session], used)))
}

/// Whether the events in a folder of this name are of a session of Copilot.
fn is_copilot(folder: &Location, name: &str) -> io::Result<bool> {
    let head = head(&folder.join("events.jsonl".as_ref()))?;
    let groups: Vec<usize> = name.split('-').map(str::len).collect();
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let is_uuid = groups == [8, 4, 4, 4, 12] && name.bytes().all(is_hex);
    let is_start = memchr::memmem::find(&head, b"\"session.start\"").is_some();
    Ok(is_start || is_uuid && head.is_empty())
}

fn head(file: &Location) -> io::Result<Vec<u8>> {
    let (file, _) = file.file()?;
    let mut head = Vec::new();
    file.take(LOOK).read_to_end(&mut head)?;
    Ok(head)
}

/// The events in a folder, in their order; `None` if they are not of `OpenHands`.
fn openhands_events(folder: &Location) -> io::Result<Option<Vec<Location>>> {
    let number = |name: &str| {
        let digits = name.strip_prefix("event-").unwrap_or(name);
        let digits = digits.strip_suffix(".json")?.split('-').next()?;
        digits.parse::<u64>().ok()
    };
    let files = folder.entries()?.into_iter().filter(|entry| entry.kind == FileType::RegularFile);
    let events = files.filter_map(|entry| Some((number(entry.name.to_str()?)?, entry.name)));
    let mut events: Vec<(u64, OsString)> = events.collect();
    events.sort();
    let Some((_, first)) = events.first() else { return Ok(None) };
    let is_named = first.to_string_lossy().starts_with("event-");
    let is_event = || {
        let (file, metadata) = folder.join(first).file()?;
        let mut bytes = Vec::new();
        file.take(metadata.len().min(MAX_SESSION)).read_to_end(&mut bytes)?;
        io::Result::Ok(json::value(&bytes).is_some_and(|event| openhands::is_event(&event)))
    };
    if !is_named && !is_event()? {
        return Ok(None);
    }
    Ok(Some(events.iter().map(|(_, name)| folder.join(name)).collect()))
}

/// The sessions in a folder `storage` of `OpenCode`.
fn opencode(storage: &Location) -> io::Result<Vec<Session>> {
    let list = |folder: &Location, kind| -> io::Result<Vec<Location>> {
        let entries = match folder.entries() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let wanted = |entry: &Entry| {
            let is_json = entry.name.as_encoded_bytes().ends_with(b".json");
            entry.kind == kind && (is_json || kind == FileType::Directory)
        };
        Ok(entries.into_iter().filter(wanted).map(|entry| folder.join(&entry.name)).collect())
    };
    let [session, message, part] = ["session", "message", "part"].map(|n| storage.join(n.as_ref()));
    let mut found: Vec<(String, Vec<Location>)> = Vec::new();
    for project in list(&session, FileType::Directory)? {
        let files = list(&project, FileType::RegularFile)?;
        found.extend(files.into_iter().map(|file| (stem(&file), vec![file])));
    }
    // Messages whose session was deleted.
    let known: BTreeSet<String> = found.iter().map(|(id, _)| id.clone()).collect();
    let all = list(&message, FileType::Directory)?;
    let ids = all.iter().map(|folder| folder.name().to_string_lossy().into_owned());
    found.extend(ids.filter(|id| !known.contains(id)).map(|id| (id, Vec::new())));
    let mut sessions = Vec::new();
    for (run, mut files) in found {
        for file in list(&message.join(run.as_ref()), FileType::RegularFile)? {
            let of_message = part.join(stem(&file).as_ref());
            files.push(file);
            files.extend(list(&of_message, FileType::RegularFile)?);
        }
        let Some(location) = files.first().cloned() else { continue };
        let parts = Some(Parts { format: Format::OpenCode, folder: storage.clone(), files });
        sessions.push(Session { agent: "opencode", run, location, parts });
    }
    Ok(sessions)
}

/// The name of a file without `.json`.
fn stem(file: &Location) -> String {
    let name = file.name().to_string_lossy();
    name.strip_suffix(".json").unwrap_or(&name).to_owned()
}

impl Parts {
    /// The path of a file, for people.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Reads all files, and when the last one was written.
    pub(crate) fn read(&self) -> io::Result<(Files, runlog::Timestamp)> {
        let (mut files, mut modified) = (Files::default(), None);
        let folder = self.folder.relative_path();
        for location in &self.files {
            let path = location.relative_path();
            let path = path.strip_prefix(&folder).unwrap_or(&path).to_string_lossy();
            let (file, metadata) = location.file()?;
            let invalid =
                |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {why}"));
            let read = files.text().len() as u64;
            if metadata.len() + read > MAX_SESSION {
                return Err(invalid(&format!(
                    "with this file the session has more than {} MiB",
                    MAX_SESSION >> 20
                )));
            }
            let mut bytes = Vec::new();
            file.take(MAX_SESSION - read).read_to_end(&mut bytes)?;
            let text = String::from_utf8(bytes).map_err(|_| invalid("not UTF-8"))?;
            files.add(&path, &text);
            modified = modified.max(Some(metadata.modified()?));
        }
        let modified = modified.unwrap_or(std::time::UNIX_EPOCH);
        Ok((files, modified.into()))
    }
}
