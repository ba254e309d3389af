//! Sessions of several files, which are one run: all files as one text, from which each of them
//! comes back.
//!
//! A line before each file names its path and its length, and a newline follows each file:
//!
//! ```json
//! {"runlog_file":{"path":"events/event-00000.json","bytes":2}}
//! {}
//! ```

use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Format;
use super::documents::split::{Parsed, Shallow, Step, steps};
use super::documents::{cline, openhands};
use super::facts::unix_millis;
use super::json;

/// The line before a file.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    runlog_file: Named,
}

#[derive(Debug, Serialize, Deserialize)]
struct Named {
    path: String,
    bytes: u64,
}

/// The files of a session.
#[derive(Debug, Default)]
pub struct Files {
    text: String,
    /// The path of each, and where its content is in the text.
    files: Vec<(String, Range<usize>)>,
}

impl Files {
    /// Adds a file. Its path has slashes, and begins in the folder of the session.
    pub fn add(&mut self, path: &str, content: &str) {
        let named = Named { path: path.to_owned(), bytes: content.len() as u64 };
        let head = serde_json::to_string(&Head { runlog_file: named }).unwrap_or_default();
        self.text.push_str(&head);
        self.text.push('\n');
        let start = self.text.len();
        self.text.push_str(content);
        self.files.push((path.to_owned(), start..self.text.len()));
        self.text.push('\n');
    }

    /// All files as one text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the files say.
    pub fn parse(&self, format: Format) -> Parsed {
        let mut parsed = Parsed::default();
        for (path, range) in &self.files {
            let content = self.text.get(range.clone()).unwrap_or_default();
            match Shallow::new(json::without_mark(content)) {
                Ok(document) => take(&mut parsed, format, path, range.start, content, &document),
                Err(error) => parsed.unread.push((path.clone(), error.to_string())),
            }
        }
        parsed
    }
}

/// Takes what a file says, whose content begins there in the text.
fn take(
    parsed: &mut Parsed,
    format: Format,
    path: &str,
    start: usize,
    content: &str,
    document: &Shallow<'_>,
) {
    let array = match format {
        Format::Cline => {
            let inner = steps(content, document, &[&[]]);
            let is_ui = path.starts_with("ui_messages");
            if let Some(last) = inner.last().filter(|_| is_ui) {
                let last = content.get(last.range.clone()).unwrap_or_default();
                parsed.course.end = json::value(last.as_bytes()).and_then(|m| cline::end(&m));
            }
            let array = if is_ui { "ui_message" } else { "message" };
            let range = |range: Range<usize>| start + range.start..start + range.end;
            parsed
                .steps
                .extend(inner.into_iter().map(|step| Step { range: range(step.range), array }));
            return;
        }
        Format::OpenHands if path.contains('/') => "event",
        Format::OpenHands => {
            parsed.course.end = openhands::end(document);
            return;
        }
        _ if path.starts_with("session/") => {
            let time = document.value("time").unwrap_or_default();
            parsed.course.started = unix_millis(&time, "created");
            "session"
        }
        _ if path.starts_with("message/") => "message",
        _ => "part",
    };
    if matches!(document, Shallow::Object(_)) {
        let before = content.len() - content.trim_start().len();
        let range = start + before..start + content.trim_end().len();
        parsed.steps.push(Step { range, array });
    }
}

/// The paths of the files in their text, and what each has.
///
/// # Errors
/// If it is not such a text.
pub fn split(mut text: &[u8]) -> io::Result<Vec<(String, &[u8])>> {
    let mut files = Vec::new();
    while !text.is_empty() {
        let head = memchr::memchr(b'\n', text).and_then(|end| text.split_at_checked(end + 1));
        let (head, rest) = head.ok_or(io::ErrorKind::UnexpectedEof)?;
        let Named { path, bytes } = serde_json::from_slice::<Head>(head)?.runlog_file;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (content, rest) = rest.split_at_checked(len).ok_or(io::ErrorKind::UnexpectedEof)?;
        files.push((path, content));
        text = rest.get(1..).unwrap_or_default();
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use runlog::RunStatus;

    use super::*;

    #[test]
    fn each_file_comes_back_out_of_the_text() {
        let wanted = [("a/1.json", "{}"), ("b \"\n.json", "x\n\n"), ("empty", ""), ("z", "\u{e9}")];
        let mut files = Files::default();
        for (path, content) in wanted {
            files.add(path, content);
        }
        let text = files.text().as_bytes();
        let found = split(text).expect("files");
        let found: Vec<_> = found
            .iter()
            .map(|(path, content)| (&**path, str::from_utf8(content).expect("text")))
            .collect();
        assert_eq!(found, wanted);
        assert!(split(&text[..text.len() - 3]).is_err());
        assert!(split(b"no head\n").is_err());
    }

    fn texts<'f>(files: &'f Files, parsed: &Parsed) -> Vec<(&'f str, &'static str)> {
        let step = |step: &Step| (&files.text()[step.range.clone()], step.array);
        parsed.steps.iter().map(step).collect()
    }

    #[test]
    fn each_event_is_a_step_and_the_state_says_how_the_conversation_ended() {
        let mut files = Files::default();
        files.add("events/1.json", " {\"id\": 1}\n");
        files.add("events/2.json", "{\"id\":");
        files.add("base_state.json", "{\"execution_status\": \"finished\"}");
        let parsed = files.parse(Format::OpenHands);
        assert_eq!(texts(&files, &parsed), [("{\"id\": 1}", "event")]);
        assert_eq!(parsed.course.end, Some(RunStatus::Completed));
        let damaged: Vec<_> = parsed.unread.iter().map(|(path, _)| &**path).collect();
        assert_eq!(damaged, ["events/2.json"]);
    }

    #[test]
    fn each_message_of_both_files_of_a_task_is_a_step() {
        let mut files = Files::default();
        files.add("api_conversation_history.json", "[{\"role\": \"user\"}, {}]");
        files.add("ui_messages.json", "[{\"ts\": 1, \"ask\": \"completion_result\"}]");
        let parsed = files.parse(Format::Cline);
        let arrays: Vec<_> = texts(&files, &parsed).into_iter().map(|(_, array)| array).collect();
        assert_eq!(arrays, ["message", "message", "ui_message"]);
        assert_eq!(parsed.course.end, Some(RunStatus::Completed));
    }
}
