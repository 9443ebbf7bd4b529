//! The zeros that reading a null memory region gives.

use ferroce_types::{Error, Result};
use std::io;
use std::sync::OnceLock;

/// Bytes of them: more than an element of a work request can name.
const LEN: usize = 1 << 32;

/// Address of 4 GiB of zeros: pages of the kernel's one zero page, which take up address space and page tables only.
///
/// # Errors
/// [`Error::NoMemory`] when the address space has no room (RLIMIT_AS).
pub(super) fn zeros() -> Result<u64> {
    static ZEROS: OnceLock<u64> = OnceLock::new();
    if let Some(&at) = ZEROS.get() {
        return Ok(at);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(Error::NoMemory(format!("no address space for a null memory region: {error}")));
    }
    let winner = *ZEROS.get_or_init(|| at as u64);
    if winner != at as u64 {
        // SAFETY: made above, and unused: another thread was faster.
        unsafe { libc::munmap(at, LEN) };
    }
    Ok(winner)
}
