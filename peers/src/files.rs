//! Folders: their space on the disk, and copies of them with their holes.

use std::fs::{File, OpenOptions, create_dir_all, read_dir, remove_dir_all, remove_file};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

/// Bytes that are compared and copied at once.
const CHUNK: u64 = 64 << 10;

/// Bytes of the blocks of all files below a folder.
pub(crate) fn allocated(folder: &Path) -> u64 {
    let entries = read_dir(folder).unwrap().map(Result::unwrap);
    let bytes = entries.map(|entry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() { allocated(&entry.path()) } else { found.blocks() * 512 }
    });
    bytes.sum()
}

/// Makes a folder a copy of another one, or updates the copy: it does not write parts that are the
/// same. The bytes are on the disk when this returns, and in the page cache.
pub(crate) fn copy(from: &Path, to: &Path) {
    create_dir_all(to).unwrap();
    for entry in read_dir(to).unwrap().map(Result::unwrap) {
        if !from.join(entry.file_name()).exists() {
            let is_dir = entry.file_type().unwrap().is_dir();
            let remove = if is_dir { remove_dir_all } else { remove_file };
            remove(entry.path()).unwrap();
        }
    }
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
    let mut options = OpenOptions::new();
    let to = options.read(true).write(true).create(true).truncate(false).open(to).unwrap();
    let from = File::open(from).unwrap();
    to.set_len(from.metadata().unwrap().len()).unwrap();
    // Data that only the copy has becomes a hole.
    let (whole, mine, mut end) = (data(&from), data(&to), 0);
    for (begin, next) in whole.iter().copied().chain([(u64::MAX, u64::MAX)]) {
        for &(from, until) in &mine {
            let (from, until) = (from.max(end), until.min(begin));
            if from < until {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&to, flags, from, until - from).unwrap();
            }
        }
        end = next;
    }
    let [mut there, mut here] = [0, 1].map(|_| vec![0; usize::try_from(CHUNK).unwrap()]);
    for (begin, end) in whole {
        for at in (begin..end).step_by(there.len()) {
            let len = usize::try_from(CHUNK.min(end - at)).unwrap();
            let (there, here) = (&mut there[..len], &mut here[..len]);
            from.read_exact_at(there, at).unwrap();
            to.read_exact_at(here, at).unwrap();
            if there != here {
                to.write_all_at(there, at).unwrap();
            }
        }
    }
    to.sync_all().unwrap();
}

/// The ranges of a file that have data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut ranges, mut end) = (Vec::new(), 0);
    // After the last data this is an error.
    while let Ok(begin) = seek(file, SeekFrom::Data(end)) {
        end = seek(file, SeekFrom::Hole(begin)).unwrap();
        ranges.push((begin, end));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_bytes_and_the_holes_also_after_it_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        create_dir_all(from.join("within")).unwrap();
        let file = File::create_new(from.join("within/sparse")).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"in the middle", 20 << 20).unwrap();
        std::fs::write(from.join("dense"), vec![7; 3_000_000]).unwrap();
        copy(&from, &to);
        assert_is_copy(&from, &to);
        std::fs::write(to.join("new"), "another file").unwrap();
        create_dir_all(to.join("new folder/within")).unwrap();
        remove_file(to.join("dense")).unwrap();
        let changed = File::options().write(true).open(to.join("within/sparse")).unwrap();
        changed.write_all_at(b"IN THE MIDDLE", 20 << 20).unwrap();
        changed.write_all_at(b"where a hole was", 40 << 20).unwrap();
        changed.set_len(65 << 20).unwrap();
        copy(&from, &to);
        assert_is_copy(&from, &to);
        assert_eq!(read_dir(&to).unwrap().count(), 2, "what was new is gone");
    }

    fn assert_is_copy(from: &Path, to: &Path) {
        for name in ["within/sparse", "dense"] {
            let [left, right] = [from, to].map(|place| std::fs::read(place.join(name)).unwrap());
            assert!(left == right, "{name}");
        }
        assert_eq!(data(&File::open(to.join("within/sparse")).unwrap()).len(), 1);
        assert!(allocated(to) < 8 << 20, "{} of 67 MB", allocated(to));
    }
}
