//! Descriptors that the children of a fork keep, or that the program knows.

use super::{close_if, identity};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An owned descriptor that the program may have closed, and then the number isn't closed again.
#[derive(Debug)]
pub struct KeptFd {
    fd: ManuallyDrop<OwnedFd>,
    identity: Option<u64>,
}

impl KeptFd {
    /// Owns an open descriptor, which the caller gives up.
    #[must_use]
    pub fn adopt(fd: RawFd) -> Self {
        // SAFETY: the number is the caller's to give.
        unsafe { OwnedFd::from_raw_fd(fd) }.into()
    }
}

impl From<OwnedFd> for KeptFd {
    fn from(fd: OwnedFd) -> Self {
        Self { identity: identity(fd.as_raw_fd()), fd: ManuallyDrop::new(fd) }
    }
}

impl Deref for KeptFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Drop for KeptFd {
    fn drop(&mut self) {
        if let Some(identity) = self.identity {
            close_if(self.fd.as_raw_fd(), identity);
        }
    }
}
