//! The memory that one thread takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts for each thread what it allocates and frees.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// The bytes that the thread has now, and the most since [`most_of`] began. What one thread
    /// allocates and another frees makes the first number wrong, and that of the other negative.
    static TAKEN: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn note(change: isize) {
    // A thread that ends has none any more.
    let _ = TAKEN.try_with(|taken| {
        let (now, most) = taken.get();
        taken.set((now + change, most.max(now + change)));
    });
}

// SAFETY: the allocator of the system does it all.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller promises what the trait asks for.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller promises what the trait asks for.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller promises what the trait asks for.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    // SAFETY: the caller promises what the trait asks for.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Calls `act`, and returns how many bytes this thread had at most meanwhile, besides those that it
/// had before.
pub(crate) fn most_of<R>(act: impl FnOnce() -> R) -> (R, usize) {
    let before = TAKEN.get().0;
    TAKEN.set((before, before));
    let done = act();
    (done, usize::try_from(TAKEN.get().1 - before).unwrap_or(0))
}
