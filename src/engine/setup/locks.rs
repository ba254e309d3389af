//! The order of the engine's locks. The table in ARCHITECTURE.md says for each lock what it guards,
//! which I/O happens under it, and what its holder may wait for.
//!
//! A thread takes locks in the order of their ranks. Builds with debug assertions check that.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// The position of a lock in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Closing the store.
    Closing,
    /// Writing a large record in chunks.
    Rows,
    /// Moving, retiring and freeing segments.
    Compacting,
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
}

/// A lock with a rank.
pub(crate) struct Ranked<T> {
    rank: Rank,
    lock: Mutex<T>,
}

impl<T> Ranked<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: Mutex::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        let order = Order::before(self.rank);
        Held { guard: self.lock.lock(), _order: order.entered() }
    }

    /// Takes the lock if it is free. This never waits, so it may break the order.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(Held { guard, _order: Order { rank: self.rank }.entered() })
    }

    /// Takes the lock if it is free within this time.
    pub(crate) fn lock_within(&self, time: Duration) -> Option<Held<'_, T>> {
        let order = Order::before(self.rank);
        let guard = self.lock.try_lock_for(time)?;
        Some(Held { guard, _order: order.entered() })
    }

    /// Takes the lock by calling `take`.
    #[inline]
    pub(crate) fn lock_by<'l>(
        &'l self,
        take: impl FnOnce(&'l Mutex<T>) -> MutexGuard<'l, T>,
    ) -> Held<'l, T> {
        let order = Order::before(self.rank);
        Held { guard: take(&self.lock), _order: order.entered() }
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
    _order: Entered,
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
        static HELD: Cell<[u8; 8]> = const { Cell::new([0; 8]) };
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
        assert!(held == [0; 8], "code that may call the store is called under locks: {held:?}");
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
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (state, allocator) = (Ranked::new(Rank::State, 1), Ranked::new(Rank::Allocator, 2));
        let held = state.lock();
        assert_eq!(*held + *allocator.lock(), 3);
        drop(held);
        assert_eq!(*allocator.lock(), 2);
        assert_eq!(*state.lock(), 1);
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
    #[should_panic(expected = "under locks: [0, 0, 0, 0, 0, 1, 0, 0]")]
    fn code_that_may_call_the_store_is_not_called_under_a_lock_in_debug_builds() {
        let state = Ranked::new(Rank::State, 1);
        drop(state.lock());
        assert_none_held();
        let _held = state.lock();
        assert_none_held();
    }
}
