//! Folders: how much of the disk they have, and copies of them with their holes.

use std::fs::{File, create_dir_all, read_dir};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// Bytes of the blocks of all files below a folder.
pub(crate) fn allocated(folder: &Path) -> u64 {
    let entries = read_dir(folder).unwrap().map(Result::unwrap);
    let bytes = entries.map(|entry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() { allocated(&entry.path()) } else { found.blocks() * 512 }
    });
    bytes.sum()
}

/// Copies a folder. The copies are on the disk when this returns, and in the page cache.
pub(crate) fn copy(from: &Path, to: &Path) {
    create_dir_all(to).unwrap();
    for entry in read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            copy_file(&entry.path(), &to);
        }
    }
    File::open(to).unwrap().sync_all().unwrap();
}

/// Copies a file without filling its holes.
fn copy_file(from: &Path, to: &Path) {
    let (from, to) = (File::open(from).unwrap(), File::create_new(to).unwrap());
    let len = from.metadata().unwrap().len();
    to.set_len(len).unwrap();
    let mut buffer = vec![0; usize::try_from(CHUNK).unwrap()];
    let mut end = 0;
    // Behind the last data this is an error.
    while let Ok(begin) = seek(&from, SeekFrom::Data(end)) {
        end = seek(&from, SeekFrom::Hole(begin)).unwrap();
        for at in (begin..end).step_by(buffer.len()) {
            let buffer = &mut buffer[..usize::try_from(CHUNK.min(end - at)).unwrap()];
            from.read_exact_at(buffer, at).unwrap();
            to.write_all_at(buffer, at).unwrap();
        }
    }
    to.sync_all().unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_bytes_and_the_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        create_dir_all(from.join("within")).unwrap();
        let file = File::create_new(from.join("within/sparse")).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"in the middle", 20 << 20).unwrap();
        std::fs::write(from.join("dense"), vec![7; 3_000_000]).unwrap();
        copy(&from, &to);
        for name in ["within/sparse", "dense"] {
            let [left, right] = [&from, &to].map(|place| std::fs::read(place.join(name)).unwrap());
            assert!(left == right, "{name}");
        }
        assert!(allocated(&to) < 8 << 20, "{} of 67 MB", allocated(&to));
    }
}
