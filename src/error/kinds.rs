//! What an error is, for callers that decide by it and do not want to match variants.

use std::io;

use crate::error::{Error, Place};

impl Error {
    /// Whether it names a quarantined segment.
    pub(crate) fn is_quarantine(&self) -> bool {
        matches!(self, Self::Corrupt(found) if matches!(found.place, Place::Directory { .. }))
    }

    /// Whether the operating system refused, for another reason than that space ran out.
    /// [`Error::io_kind`] tells which.
    pub fn is_io(&self) -> bool {
        matches!(self, Self::Io { .. })
    }

    /// Why the operating system refused, if it did; `StorageFull` for [`Error::DiskFull`].
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::DiskFull { .. } => Some(io::ErrorKind::StorageFull),
            _ => None,
        }
    }

    /// Whether the process may not do this with the file: the rights of the file or of its folder,
    /// or a file system that is read-only.
    pub fn is_permission_denied(&self) -> bool {
        matches!(
            self.io_kind(),
            Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        )
    }

    /// Whether space ran out.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }

    /// Whether stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Damaged(_) | Self::CopyDamaged { .. })
    }

    /// Whether the store needs `salvage` before it can be opened for writing.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged(_))
    }

    /// Whether what is at the path is no store: another file, a folder, a link, a device.
    pub fn is_not_a_store(&self) -> bool {
        matches!(self, Self::NotAStore { .. } | Self::NotRegularFile { .. })
    }

    /// Whether another process or handle has the store open for writing, or views of this process
    /// still hold the closed store.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Locked { .. })
    }

    /// Whether another version of this program wrote the file.
    pub fn is_other_format(&self) -> bool {
        matches!(self, Self::UnsupportedVersion { .. } | Self::UnsupportedFeatures { .. })
    }

    /// Whether another build of this program could do it: another version, or one with a Cargo
    /// feature that this one lacks.
    pub fn is_unsupported(&self) -> bool {
        self.is_other_format()
            || matches!(self, Self::NeedsFeature { .. } | Self::NetworkFileSystem { .. })
    }

    /// Whether an earlier write or sync failed, so that the store must be opened again.
    pub fn is_poisoned(&self) -> bool {
        matches!(self, Self::Poisoned)
    }

    /// Whether the store was closed, or belongs to the parent of this process.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// Whether a reader could not keep up with the writer, or its path names another file by now:
    /// the same call may succeed later, or after the path was opened again.
    pub fn is_overtaken(&self) -> bool {
        matches!(self, Self::Overtaken { .. } | Self::Replaced { .. })
    }

    /// Whether the store has no more numbers, so that a new one must go on.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Exhausted { .. })
    }

    /// Whether the run or store does not exist, or not any more.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::RunNotFound { .. } | Self::NotFound { .. } | Self::Evicted { .. })
    }

    /// Whether the run was deleted while it was used.
    pub fn is_evicted(&self) -> bool {
        matches!(self, Self::Evicted { .. })
    }

    /// Whether what was to be created is there already: a file at the path, or the run, started
    /// with other metadata.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::AlreadyExists { .. } | Self::RunExists { .. })
    }

    /// Whether the run has ended, and accepts nothing more.
    pub fn is_run_ended(&self) -> bool {
        matches!(self, Self::RunEnded { .. })
    }

    /// Whether another call changed the document in between: re-read it and retry.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the arguments are at fault: the same call will never succeed.
    pub fn is_invalid_input(&self) -> bool {
        matches!(
            self,
            Self::InvalidId { .. } | Self::TooLarge { .. } | Self::InvalidArgument { .. }
        )
    }

    /// The error and its sources in one line.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        text
    }
}
