//! The folder of the store: for its owner only, and marked as excluded from backups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file that excludes a folder from backups.
const NO_BACKUP: &str = ".nobackup";

/// The text in that file.
const NO_BACKUP_TEXT: &str = "This folder has traces of agent runs. They are not backed up.\n";

/// Creates the folder and its parents, or removes the rights of other users.
pub(super) fn prepare(root: &Path) -> io::Result<()> {
    let is_new = !root.try_exists()?;
    if is_new {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(root)?;
        // A hint for other programs; the store works without it.
        let _ = fs::write(root.join(NO_BACKUP), NO_BACKUP_TEXT);
    }
    close_to_others(root)
}

fn close_to_others(root: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(root)?.permissions().mode() & 0o777 == 0o700 {
        return Ok(());
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o700))
}

/// The canonical path of the folder; `None` if it does not exist.
pub(super) fn canonical(root: &Path) -> io::Result<Option<PathBuf>> {
    match fs::canonicalize(root) {
        Ok(path) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The text of a file.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}
