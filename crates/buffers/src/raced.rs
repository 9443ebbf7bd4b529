//! Copies of bytes that an adapter may write or read at the same time.
//!
//! Such an access is a data race, unless the compiler doesn't see it as an access of Rust code: the copy is an instruction.

/// Copies `len` bytes. Those that change meanwhile are old or new, each for itself.
///
/// # Safety
/// Both ranges are valid for their accesses and don't overlap. Only the adapter accesses them at the same time.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear at an `asm!`.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..len {
        // SAFETY: the caller's promise. One of the ranges is the program's own; the other is accessed atomically.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}
