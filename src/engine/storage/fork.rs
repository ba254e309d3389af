//! Detecting that this process was forked while a store was open. Such a child shares the open
//! file, the writer lock and the writable maps with its parent, and has none of its threads. It may
//! read what it has, but must not write, give space back, or release the lock.

#![allow(unsafe_code, reason = "the system calls back; the block says what it needs")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Once;

/// The number of forks from the first process of the program to this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A number that changes in each forked child.
pub(crate) fn generation() -> u64 {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> core::ffi::c_int;
    }
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the signature is that of POSIX. The handler lives as long as the program, and
        // does nothing but add to an atomic, which is allowed in a child that was just forked.
        let _ = unsafe { pthread_atfork(None, None, Some(count)) };
    });
    current()
}

/// The same number, once a store was opened. It costs one load.
#[inline]
pub(crate) fn current() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
