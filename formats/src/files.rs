//! Sessions of several files, which are one run: all files as one text, from which each of them
//! comes back.
//!
//! A line before each file names its path and its length, and a newline follows each file:
//!
//! ```json
//! {"runlog_file":{"path":"events/event-00000.json","bytes":2}}
//! {}
//! ```

use std::io::{self, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Format;
use super::documents::split::{Shallow, Step, steps};
use super::documents::{Course, cline, openhands};
use super::facts::unix_millis;
use super::json;

/// The longest line before a file.
const MAX_HEAD: usize = 16 << 10;

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

/// What the files of a session say.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The steps, in the order of the text.
    pub steps: Vec<Step>,
    /// What they say of the run.
    pub course: Course,
    /// The paths of files that are not JSON, and why.
    pub damaged: Vec<(String, String)>,
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
                Ok(document) => parsed.file(format, path, range.start, content, &document),
                Err(error) => parsed.damaged.push((path.clone(), error.to_string())),
            }
        }
        parsed
    }
}

impl Parsed {
    /// Takes what one file says.
    fn file(
        &mut self,
        format: Format,
        path: &str,
        start: usize,
        content: &str,
        document: &Shallow<'_>,
    ) {
        let is_object = matches!(document, Shallow::Object(_));
        let array = match format {
            Format::Cline => {
                let inner = steps(content, document, &[&[]]);
                if let Some(last) = inner.last().filter(|_| path.starts_with("ui_messages")) {
                    let last = content.get(last.range.clone()).unwrap_or_default();
                    self.course.end = json::value(last.as_bytes()).and_then(|m| cline::end(&m));
                }
                let name = if path.starts_with("ui_") { "ui_message" } else { "message" };
                self.steps.extend(inner.into_iter().map(|step| Step {
                    range: start + step.range.start..start + step.range.end,
                    array: name,
                }));
                return;
            }
            Format::OpenHands if path.contains('/') => "event",
            Format::OpenHands => {
                let state = |key: &str| Some((key.to_owned(), Value::from(document.text(key)?)));
                let status = ["execution_status", "agent_status"].into_iter().filter_map(state);
                self.course.end = openhands::end(&status.collect());
                return;
            }
            _ if path.starts_with("session/") => {
                let time = document.value("time").unwrap_or_default();
                self.course.started = unix_millis(&time, "created");
                "session"
            }
            _ if path.starts_with("message/") => "message",
            _ => "part",
        };
        if is_object {
            let before = content.len() - content.trim_start().len();
            let range = start + before..start + content.trim_end().len();
            self.steps.push(Step { range, array });
        }
    }
}

/// Takes the files out of their text.
pub trait Sink {
    /// A file with this path begins; its content follows.
    fn begin(&mut self, path: &str) -> io::Result<()>;

    /// A part of the content of the file.
    fn content(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The file is whole.
    fn end(&mut self) -> io::Result<()>;
}

/// Writes the text of files into a sink, file by file.
#[derive(Debug)]
pub struct Splitter<S> {
    sink: S,
    head: Vec<u8>,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Head,
    Content(u64),
    Newline,
}

impl<S: Sink> Splitter<S> {
    /// A splitter at the beginning of the text.
    pub fn new(sink: S) -> Self {
        Self { sink, head: Vec::new(), at: At::Head }
    }

    fn begin(&mut self) -> io::Result<()> {
        let head = std::mem::take(&mut self.head);
        let head: Head = serde_json::from_slice(&head)?;
        self.sink.begin(&head.runlog_file.path)?;
        self.at = At::Content(head.runlog_file.bytes);
        self.end_if_whole()
    }

    fn end_if_whole(&mut self) -> io::Result<()> {
        if self.at == At::Content(0) {
            self.at = At::Newline;
            self.sink.end()?;
        }
        Ok(())
    }
}

impl<S: Sink> Write for Splitter<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.at {
            At::Head => {
                let end = memchr::memchr(b'\n', bytes);
                let taken = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
                self.head.extend_from_slice(taken);
                if self.head.len() > MAX_HEAD {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "no name of a file"));
                }
                if end.is_some() {
                    self.begin()?;
                }
                Ok(taken.len() + usize::from(end.is_some()))
            }
            At::Content(left) => {
                let len = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                self.sink.content(bytes.get(..len).unwrap_or_default())?;
                self.at = At::Content(left - len as u64);
                self.end_if_whole()?;
                Ok(len)
            }
            At::Newline => {
                self.at = At::Head;
                Ok(usize::from(!bytes.is_empty()))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::End;

    /// Paths and contents.
    #[derive(Debug, Default)]
    struct Taken(Vec<(String, Vec<u8>)>);

    impl Sink for &mut Taken {
        fn begin(&mut self, path: &str) -> io::Result<()> {
            self.0.push((path.to_owned(), Vec::new()));
            Ok(())
        }

        fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.last_mut().expect("a file").1.extend_from_slice(bytes);
            Ok(())
        }

        fn end(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_file_comes_back_out_of_the_text() {
        let wanted = [("a/1.json", "{}"), ("b \"\n.json", "x\n\n"), ("empty", ""), ("z", "\u{e9}")];
        let mut files = Files::default();
        for (path, content) in wanted {
            files.add(path, content);
        }
        for chunk in [1, 2, 7, 1000] {
            let mut taken = Taken::default();
            let mut splitter = Splitter::new(&mut taken);
            for part in files.text().as_bytes().chunks(chunk) {
                splitter.write_all(part).expect("files");
            }
            let found: Vec<_> = taken
                .0
                .iter()
                .map(|(path, content)| (&**path, str::from_utf8(content).expect("text")))
                .collect();
            assert_eq!(found, wanted, "{chunk}");
        }
        let mut taken = Taken::default();
        assert!(Splitter::new(&mut taken).write_all(b"no head\n").is_err());
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
        assert_eq!(parsed.course.end, Some(End::Completed));
        let damaged: Vec<_> = parsed.damaged.iter().map(|(path, _)| &**path).collect();
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
        assert_eq!(parsed.course.end, Some(End::Completed));
    }
}
