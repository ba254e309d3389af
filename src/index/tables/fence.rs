//! The fence around redb: its errors and panics become [`IndexError`], and no other type of it
//! leaves this module.
//!
//! redb does not verify its pages on normal reads. Damaged pages can make it return an error,
//! panic, or return wrong bytes. This module catches the first two, and the checksums of the values
//! the third.
//!
//! Rules:
//!
//! - Each call of redb runs in [`guarded`], and each redb object is in a [`Fenced`], so that a drop
//!   cannot panic out of this module either.
//! - Under `panic = "abort"` a panic cannot be caught. For that case the engine keeps a durable
//!   flag set while it opens the index.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{Damage, Error};

/// Why the index cannot answer. The engine drops and rebuilds the index then, except for
/// [`RedbFailure::Io`], whose cause the engine's storage knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum IndexError {
    /// redb returned an error.
    Redb(RedbFailure),
    /// redb panicked, and the panic was caught.
    Panicked,
    /// A key or a value fails its check.
    Damaged(Damage),
    /// The index belongs to another store, or has another version.
    Foreign,
}

/// The error of redb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum RedbFailure {
    /// Its pages are damaged.
    Corrupted,
    /// The storage failed, now or earlier.
    Io,
    /// The index was closed.
    Closed,
    /// One of its tables is missing or of another type, or its file format is another one.
    Layout,
    /// One of its locks is poisoned by a panic.
    Lock,
    /// An error that the calls of this crate should not cause.
    Unexpected,
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redb(failure) => write!(f, "the index library refused: {failure}"),
            Self::Panicked => f.write_str("the index library panicked"),
            Self::Damaged(damage) => write!(f, "the index is damaged: {damage}"),
            Self::Foreign => f.write_str("the index belongs to another store or version"),
        }
    }
}

impl fmt::Display for RedbFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupted => "damaged pages",
            Self::Io => "the storage failed",
            Self::Closed => "closed",
            Self::Layout => "other tables or another format",
            Self::Lock => "a lock was held during a panic",
            Self::Unexpected => "an unexpected error",
        })
    }
}

impl std::error::Error for IndexError {}

impl From<IndexError> for Error {
    fn from(error: IndexError) -> Self {
        Self::Index { source: Arc::new(error) }
    }
}

impl From<Damage> for IndexError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<redb::Error> for IndexError {
    fn from(error: redb::Error) -> Self {
        use redb::Error;
        Self::Redb(match error {
            Error::Corrupted(_) => RedbFailure::Corrupted,
            Error::Io(_) | Error::PreviousIo | Error::Unsupported => RedbFailure::Io,
            Error::DatabaseClosed => RedbFailure::Closed,
            Error::UpgradeRequired(_)
            | Error::TableTypeMismatch { .. }
            | Error::TableIsMultimap(_)
            | Error::TableIsNotMultimap(_)
            | Error::TypeDefinitionChanged { .. }
            | Error::TableDoesNotExist(_) => RedbFailure::Layout,
            Error::LockPoisoned(_) => RedbFailure::Lock,
            _ => RedbFailure::Unexpected,
        })
    }
}

macro_rules! through_redb_error {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for IndexError {
            fn from(error: redb::$error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}

through_redb_error!(
    CommitError,
    DatabaseError,
    SetDurabilityError,
    StorageError,
    TableError,
    TransactionError
);

/// Runs a call of redb; a panic becomes an error.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    // A panic leaves at worst a redb object in a broken state. The only further uses of it are
    // calls and a drop, both guarded here.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(IndexError::Panicked))
}

/// A redb object that is only used and dropped inside [`guarded`].
pub(crate) struct Fenced<T>(Option<T>);

impl<T> Fenced<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self(Some(inner))
    }

    pub(crate) fn call<R>(
        &self,
        call: impl FnOnce(&T) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        let inner = self.0.as_ref().ok_or(IndexError::Redb(RedbFailure::Closed))?;
        guarded(|| call(inner))
    }

    pub(crate) fn call_mut<R>(
        &mut self,
        call: impl FnOnce(&mut T) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        let inner = self.0.as_mut().ok_or(IndexError::Redb(RedbFailure::Closed))?;
        guarded(|| call(inner))
    }

    pub(crate) fn consume<R>(
        mut self,
        call: impl FnOnce(T) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        let inner = self.0.take().ok_or(IndexError::Redb(RedbFailure::Closed))?;
        guarded(|| call(inner))
    }
}

impl<T> Drop for Fenced<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            // The error cannot be returned, and nothing depends on it: what redb does when it
            // closes only makes the next opening faster.
            let _ = guarded(|| {
                drop(inner);
                Ok(())
            });
        }
    }
}

impl<T> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fenced").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn panics_of_calls_and_drops_stay_inside() {
        let mut fenced = Fenced::new(PanicsOnDrop);
        let outcome: Result<(), _> = fenced.call(|_| panic!("called"));
        assert_eq!(outcome, Err(IndexError::Panicked));
        let outcome: Result<(), _> = fenced.call_mut(|_| panic!("called"));
        assert_eq!(outcome, Err(IndexError::Panicked));
        assert_eq!(fenced.consume(|_inner| Ok(())), Err(IndexError::Panicked));
        drop(Fenced::new(PanicsOnDrop));
    }

    #[test]
    fn errors_of_redb_keep_their_kind() {
        let corrupted = redb::StorageError::Corrupted("page 7".into());
        assert_eq!(IndexError::from(corrupted), IndexError::Redb(RedbFailure::Corrupted));
        let missing = redb::TableError::TableDoesNotExist("runs".into());
        assert_eq!(IndexError::from(missing), IndexError::Redb(RedbFailure::Layout));
    }
}
