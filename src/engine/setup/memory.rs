//! Freed memory that goes back to the system.

#![allow(unsafe_code, reason = "a call of the allocator; the block says what it needs")]

/// Gives freed memory back to the system, after work that needed much of it. glibc keeps what many
/// small allocations of several threads leave: up to ten times of what is in use. Other allocators
/// give it back by themselves.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> core::ffi::c_int;
        }
        // SAFETY: the signature is that of glibc, where any thread may call it at any time.
        let _ = unsafe { malloc_trim(0) };
    }
}
