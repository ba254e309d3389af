//! A session of several files, as these files again: below a folder of its own.

use std::io::Write as _;

use crate::formats::files;

use super::outcome::Why;
use super::tree::Tree;

/// The longest name of a file, and the most folders that lead to one.
const MAX_NAME: usize = 255;
const MAX_FOLDERS: usize = 8;

/// Writes the files in a text below the folder of their run, each whole or not at all.
pub(super) fn write(tree: &Tree, folder: &[String], text: &[u8]) -> Result<(), Why> {
    for (path, content) in files::split(text)? {
        let names: Vec<String> = path.split('/').map(str::to_owned).collect();
        // The path is data: it must not lead elsewhere.
        let is_name =
            |name: &String| (1..=MAX_NAME).contains(&name.len()) && !matches!(&**name, "." | "..");
        if names.len() > MAX_FOLDERS || !names.iter().all(is_name) || path.contains('\0') {
            return Err(Why::differs());
        }
        let mut file = tree.file(&[folder, &names].concat())?;
        file.as_write().write_all(content)?;
        file.publish()?;
    }
    Ok(())
}
