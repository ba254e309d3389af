//! The order of the engine's locks. The table in ARCHITECTURE.md says for each lock what it guards,
//! which I/O happens under it, and what its holder may wait for.
//!
//! A thread takes locks in the order of their ranks. Builds with debug assertions check that.
//!
//! A panic under a lock of a store poisons the store, since the guarded value may be half changed.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use std::thread::panicking;

use parking_lot::{Mutex, MutexGuard};

use crate::engine::storage::disk::Disk;
use crate::error::Error;

/// The position of a lock in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Closing the store.
    Closing,
    /// Writing a large record in chunks.
    Rows,
    /// Moving, retiring and freeing segments.
    Compacting,
    /// Mapping a segment before it is read.
    Prefault,
    /// The index.
    Index,
    /// Telling the manifest about sealed segments.
    Noting,
    /// The state of the log.
    State,
    /// Segments that are set aside.
    Reserved,
    /// The manifest and the superblock.
    Allocator,
    /// The zeros ahead of the tail.
    Zeros,
}

/// A lock with a rank.
pub(crate) struct Ranked<T> {
    rank: Rank,
    lock: Mutex<T>,
    /// The store that a panic under the lock poisons.
    store: Option<Disk>,
}

impl<T> Ranked<T> {
    /// A lock without a store.
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: Mutex::new(value), store: None }
    }

    /// A lock of the store on this disk.
    pub(crate) fn of(disk: &Disk, rank: Rank, value: T) -> Self {
        Self { rank, lock: Mutex::new(value), store: Some(disk.clone()) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        let order = Order::before(self.rank);
        self.held(self.lock.lock(), order)
    }

    /// Takes the lock if it is free. This never waits, so it may break the order.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(self.held(guard, Order { rank: self.rank }))
    }

    /// Takes the lock if it is free within this time.
    pub(crate) fn lock_within(&self, time: Duration) -> Option<Held<'_, T>> {
        let order = Order::before(self.rank);
        let guard = self.lock.try_lock_for(time)?;
        Some(self.held(guard, order))
    }

    /// Takes the lock by calling `take`.
    #[inline]
    pub(crate) fn lock_by<'l>(
        &'l self,
        take: impl FnOnce(&'l Mutex<T>) -> MutexGuard<'l, T>,
    ) -> Held<'l, T> {
        let order = Order::before(self.rank);
        self.held(take(&self.lock), order)
    }

    #[inline]
    fn held<'l>(&'l self, guard: MutexGuard<'l, T>, order: Order) -> Held<'l, T> {
        let (store, was_panicking) = (self.store.as_ref(), panicking());
        Held { guard, store, was_panicking, _order: order.entered() }
    }
}

impl<T> fmt::Debug for Ranked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranked").field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// A lock that is held.
pub(crate) struct Held<'l, T> {
    guard: MutexGuard<'l, T>,
    store: Option<&'l Disk>,
    /// The thread took the lock while it was panicking already.
    was_panicking: bool,
    _order: Entered,
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if panicking()
            && !self.was_panicking
            && let Some(store) = self.store
        {
            store.poison(&Error::Panicked);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Panics, in builds with debug assertions, if this thread holds a lock with a rank.
#[inline]
pub(crate) fn assert_none_held() {
    #[cfg(debug_assertions)]
    checked::assert_none_held();
}

/// A lock that is about to be taken.
struct Order {
    #[cfg_attr(not(debug_assertions), expect(dead_code, reason = "only debug builds check it"))]
    rank: Rank,
}

/// Notes, in debug builds, which locks the thread holds.
struct Entered {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
mod checked {
    use core::cell::Cell;

    use super::{Entered, Order, Rank};

    thread_local! {
        /// How many locks of each rank this thread holds; more than one if it uses several stores.
        static HELD: Cell<[u8; 10]> = const { Cell::new([0; 10]) };
    }

    impl Order {
        /// Panics if the thread holds a lock of the same or a higher rank.
        pub(super) fn before(rank: Rank) -> Self {
            let held = HELD.with(Cell::get);
            let later = held.iter().skip(rank as usize).any(|count| *count > 0);
            assert!(!later, "a lock of rank {rank:?} is taken behind others: {held:?}");
            Self { rank }
        }

        pub(super) fn entered(self) -> Entered {
            change(self.rank, 1);
            Entered { rank: self.rank }
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {
            change(self.rank, -1);
        }
    }

    pub(super) fn assert_none_held() {
        let held = HELD.with(Cell::get);
        assert!(held == [0; 10], "code that may call the store is called under locks: {held:?}");
    }

    fn change(rank: Rank, by: i8) {
        HELD.with(|held| {
            let mut counts = held.get();
            if let Some(count) = counts.get_mut(rank as usize) {
                *count = count.saturating_add_signed(by);
            }
            held.set(counts);
        });
    }
}

#[cfg(not(debug_assertions))]
impl Order {
    #[inline]
    fn before(rank: Rank) -> Self {
        Self { rank }
    }

    #[inline]
    fn entered(self) -> Entered {
        Entered {}
    }
}

#[cfg(test)]
mod tests {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use super::*;
    use crate::engine::storage::MemoryStorage;

    #[test]
    fn a_panic_under_a_lock_poisons_its_store() {
        let disk = Disk::new(Arc::new(MemoryStorage::new()));
        let state = Ranked::of(&disk, Rank::State, ());
        let panics = |held: Option<Held<'_, ()>>| {
            let _ = catch_unwind(AssertUnwindSafe(move || {
                let _held = held;
                panic!("the test said so");
            }));
        };
        drop(state.lock());
        panics(None);
        disk.check().unwrap();
        panics(Some(state.lock()));
        assert!(matches!(disk.check(), Err(Error::Poisoned)));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank State is taken behind others")]
    fn a_lock_that_comes_earlier_is_refused_in_debug_builds() {
        let (state, allocator) = (Ranked::new(Rank::State, 1), Ranked::new(Rank::Allocator, 2));
        let _held = allocator.lock();
        drop(state.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "under locks: [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]")]
    fn code_that_may_call_the_store_is_not_called_under_a_lock_in_debug_builds() {
        let state = Ranked::new(Rank::State, 1);
        drop(state.lock());
        assert_none_held();
        let _held = state.lock();
        assert_none_held();
    }
}
