//! Files of /proc, for data paths: no call can be cancelled, as those of the C library can.

use ferroce_os::sys;
use std::ffi::CStr;
use std::os::fd::RawFd;

/// A file that is open for reading.
#[derive(Debug)]
pub(crate) struct ProcFile(RawFd);

impl ProcFile {
    pub(crate) fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a path with its end; no mode is needed without O_CREAT.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (fd >= 0).then_some(Self(fd as RawFd))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for ProcFile {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}
