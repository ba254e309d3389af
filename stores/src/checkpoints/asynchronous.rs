//! The same calls for async callers, with any runtime or none.
//!
//! A thread of the store does the work of the calls, one after the other, so polling never waits
//! for a disk. Calls that wait for the disk at the same time share a sync. A second thread does
//! pruning, copying, deleting and archiving, so that these delay no other call. The first call
//! starts each thread. Dropping the last handle ends it and waits for it.
//!
//! A call begins at its first poll. If it is dropped later, it is done as a whole, or skipped as a
//! whole if the thread had not begun it.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::Checkpoint;
use super::error::CheckpointError;
use super::id::CheckpointId;
use super::key::{TenantId, ThreadKey};
use super::retention::Pruned;
use super::session_log::{SessionLog, lines_of};
use super::store::Checkpointer;
use crate::worker::{Later, OnThread};
use runlog::RunLog;

/// A [`Checkpointer`] whose calls are futures: see the [module](super) for what they do. Cheap to
/// clone; clones share their thread.
///
/// That thread converts states to and from JSON. What is durable when a call of [`Checkpointer`]
/// returns is durable when the future is ready.
///
/// # Errors
/// Those of [`Checkpointer`], and [`CheckpointError::NoAnswer`].
///
/// ```
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake, Waker}, thread};
/// # struct Unpark(thread::Thread);
/// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = pin!(future);
/// #     let waker = Waker::from(Arc::new(Unpark(thread::current())));
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
/// #             Poll::Ready(output) => return output,
/// #             Poll::Pending => thread::park(),
/// #         }
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let storage = Arc::new(runlog::storage::MemoryStorage::new());
/// use runlog_stores::checkpoints::{AsyncCheckpointer, Checkpointer, TenantId, ThreadKey};
///
/// # let log = runlog::Options::new().create_storage(storage)?;
/// let checkpointer: Checkpointer<Vec<String>> = Checkpointer::new(&log);
/// let store = AsyncCheckpointer::new(checkpointer);
/// let key = ThreadKey::new(TenantId::default(), "thread-1")?;
/// let first = store.blocking().checkpoint(&key, 1, vec!["boil water".into()], None)?;
/// block_on(async {
///     store.put(first).await?;
///     let latest = store.get_latest(&key).await?.expect("one was put");
///     assert_eq!(latest.state, ["boil water"]);
///     Ok::<(), runlog_stores::checkpoints::CheckpointError>(())
/// })?;
/// # Ok(()) }
/// ```
pub struct AsyncCheckpointer<S> {
    inner: Arc<Inner<Checkpointer<S>>>,
}

/// [`SessionLog`] whose calls are futures. Cheap to clone; clones share their thread.
///
/// The first poll converts events to JSON; the thread reads them from JSON.
///
/// # Errors
/// Those of [`SessionLog`], and [`CheckpointError::NoAnswer`].
pub struct AsyncSessionLog<E> {
    inner: Arc<Inner<SessionLog<E>>>,
}

/// A store on two threads.
struct Inner<T> {
    /// The thread that waits for the disk for the calls.
    quick: OnThread<T>,
    /// The thread for long calls.
    slow: OnThread<T>,
}

impl<T: Send + Sync + 'static> Inner<T> {
    fn new(log: &RunLog, store: T, put_off: impl FnOnce(&T, Later) -> T) -> Arc<Self> {
        let quick = OnThread::new("runlog-threads", log, |later| put_off(&store, later));
        let slow = OnThread::new("runlog-prune", log, |_| store);
        Arc::new(Self { quick, slow })
    }
}

impl<S> Clone for AsyncCheckpointer<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S> fmt::Debug for AsyncCheckpointer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCheckpointer").field(self.inner.slow.store()).finish()
    }
}

impl<E> Clone for AsyncSessionLog<E> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<E> fmt::Debug for AsyncSessionLog<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncSessionLog").field(self.inner.slow.store()).finish()
    }
}

impl<S: 'static> AsyncCheckpointer<S> {
    /// A store for async callers. No thread is started yet.
    pub fn new(store: Checkpointer<S>) -> Self {
        let log = store.log().clone();
        Self { inner: Inner::new(&log, store, Checkpointer::put_off) }
    }

    /// The blocking store, for callers that may wait for the disk.
    pub fn blocking(&self) -> &Checkpointer<S> {
        self.inner.slow.store()
    }

    /// As [`Checkpointer::threads`].
    pub async fn threads(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, CheckpointError> {
        let (tenant, after) = (tenant.clone(), after.map(str::to_owned));
        self.inner.quick.ask(move |store| store.threads(&tenant, after.as_deref(), limit)).await
    }

    /// As [`Checkpointer::prune`].
    pub async fn prune(
        &self,
        key: &ThreadKey,
        newest: Option<usize>,
        max_age: Option<Duration>,
    ) -> Result<Pruned, CheckpointError> {
        let key = key.clone();
        self.inner.slow.ask(move |store| store.prune(&key, newest, max_age)).await
    }

    /// As [`Checkpointer::delete_thread`].
    pub async fn delete_thread(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let key = key.clone();
        self.inner.slow.ask(move |store| store.delete_thread(&key)).await
    }

    /// As [`Checkpointer::copy_thread`].
    pub async fn copy_thread(
        &self,
        from: &ThreadKey,
        to: &ThreadKey,
    ) -> Result<usize, CheckpointError> {
        let (from, to) = (from.clone(), to.clone());
        self.inner.slow.ask(move |store| store.copy_thread(&from, &to)).await
    }
}

impl<S: Serialize + DeserializeOwned + Send + 'static> AsyncCheckpointer<S> {
    /// As [`Checkpointer::put`].
    pub async fn put(&self, checkpoint: Checkpoint<S>) -> Result<(), CheckpointError> {
        self.inner.quick.ask(move |store| store.put(&checkpoint)).await
    }

    /// As [`Checkpointer::get_latest`].
    pub async fn get_latest(
        &self,
        key: &ThreadKey,
    ) -> Result<Option<Checkpoint<S>>, CheckpointError> {
        let key = key.clone();
        self.inner.quick.ask(move |store| store.get_latest(&key)).await
    }

    /// As [`Checkpointer::get_by_id`].
    pub async fn get_by_id(
        &self,
        key: &ThreadKey,
        id: &CheckpointId,
    ) -> Result<Option<Checkpoint<S>>, CheckpointError> {
        let (key, id) = (key.clone(), *id);
        self.inner.quick.ask(move |store| store.get_by_id(&key, &id)).await
    }

    /// As [`Checkpointer::list_history`].
    pub async fn list_history(
        &self,
        key: &ThreadKey,
        limit: usize,
    ) -> Result<Vec<Checkpoint<S>>, CheckpointError> {
        let key = key.clone();
        self.inner.quick.ask(move |store| store.list_history(&key, limit)).await
    }

    /// As [`Checkpointer::update_state`].
    pub async fn update_state(
        &self,
        key: &ThreadKey,
        parent: &CheckpointId,
        new_state: S,
    ) -> Result<CheckpointId, CheckpointError> {
        let (key, parent) = (key.clone(), *parent);
        self.inner.quick.ask(move |store| store.update_state(&key, &parent, new_state)).await
    }
}

impl<E: 'static> AsyncSessionLog<E> {
    /// A log for async callers. No thread is started yet.
    pub fn new(log: SessionLog<E>) -> Self {
        let store = log.log().clone();
        Self { inner: Inner::new(&store, log, SessionLog::put_off) }
    }

    /// The blocking log, for callers that may wait for the disk.
    pub fn blocking(&self) -> &SessionLog<E> {
        self.inner.slow.store()
    }

    /// As [`SessionLog::threads`].
    pub async fn threads(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, CheckpointError> {
        let (tenant, after) = (tenant.clone(), after.map(str::to_owned));
        self.inner.quick.ask(move |log| log.threads(&tenant, after.as_deref(), limit)).await
    }

    /// As [`SessionLog::archive_before`].
    pub async fn archive_before(
        &self,
        key: &ThreadKey,
        watermark: u64,
    ) -> Result<u64, CheckpointError> {
        let key = key.clone();
        self.inner.slow.ask(move |log| log.archive_before(&key, watermark)).await
    }

    /// As [`SessionLog::delete_thread`].
    pub async fn delete_thread(&self, key: &ThreadKey) -> Result<bool, CheckpointError> {
        let key = key.clone();
        self.inner.slow.ask(move |log| log.delete_thread(&key)).await
    }
}

impl<E: Serialize + DeserializeOwned + Send + 'static> AsyncSessionLog<E> {
    /// As [`SessionLog::append`].
    pub async fn append(&self, key: &ThreadKey, events: &[E]) -> Result<u64, CheckpointError> {
        let (key, lines) = (key.clone(), lines_of(events)?);
        self.inner.quick.ask(move |log| log.append_lines(&key, &lines)).await
    }

    /// As [`SessionLog::load_since`].
    pub async fn load_since(
        &self,
        key: &ThreadKey,
        cursor: u64,
    ) -> Result<Vec<E>, CheckpointError> {
        let key = key.clone();
        self.inner.quick.ask(move |log| log.load_since(&key, cursor)).await
    }

    /// As [`SessionLog::load_numbered_since`].
    pub async fn load_numbered_since(
        &self,
        key: &ThreadKey,
        cursor: u64,
    ) -> Result<Vec<(u64, E)>, CheckpointError> {
        let key = key.clone();
        self.inner.quick.ask(move |log| log.load_numbered_since(&key, cursor)).await
    }
}
