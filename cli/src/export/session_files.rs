//! A session of several files, as these files again: below a folder of its own.

use std::io::{self, Write as _};

use crate::formats::files::Sink;

use super::outcome::Why;
use super::tree::{NewFile, Tree};

/// The longest name of a file, and the most folders that lead to one.
const MAX_NAME: usize = 255;
const MAX_FOLDERS: usize = 8;

/// Writes the files of a session below the folder of its run.
pub(super) struct SessionFiles<'t> {
    tree: &'t Tree,
    folder: &'t [String],
    open: Option<NewFile>,
    /// Why a file cannot be written.
    pub(super) why: Option<Why>,
}

impl<'t> SessionFiles<'t> {
    pub(super) fn new(tree: &'t Tree, folder: &'t [String]) -> Self {
        Self { tree, folder, open: None, why: None }
    }

    fn noted<T>(&mut self, result: Result<T, Why>) -> io::Result<T> {
        result.map_err(|why| {
            self.why = Some(why);
            io::ErrorKind::Other.into()
        })
    }
}

impl Sink for &mut SessionFiles<'_> {
    fn begin(&mut self, path: &str) -> io::Result<()> {
        let names: Vec<String> = path.split('/').map(str::to_owned).collect();
        // The path is data: it must not lead elsewhere.
        let is_name =
            |name: &String| (1..=MAX_NAME).contains(&name.len()) && !matches!(&**name, "." | "..");
        if names.len() > MAX_FOLDERS || !names.iter().all(is_name) || path.contains('\0') {
            return self.noted(Err(Why::Differs));
        }
        let file = self.tree.file(&[self.folder, &names].concat());
        self.open = Some(self.noted(file)?);
        Ok(())
    }

    fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |file| file.as_write().write_all(bytes))
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(file) = self.open.take() else { return Ok(()) };
        self.noted(file.publish())
    }
}
