//! How much a socket holds.

use super::set_option;
use std::os::fd::RawFd;

/// Asked of the kernel for either direction; it gives what it allows.
const BUFFER_BYTES: i32 = 8 << 20;

/// Gives a socket a buffer as large as the kernel allows: by the option `force` past the kernel's limit, where the process
/// has the right to that, else by `plain` up to it.
pub fn large_buffer(fd: RawFd, force: i32, plain: i32) {
    if set_option(fd, libc::SOL_SOCKET, force, &BUFFER_BYTES).is_err() {
        // Can't fail on a socket; the kernel clips the number.
        let _ = set_option(fd, libc::SOL_SOCKET, plain, &BUFFER_BYTES);
    }
}
