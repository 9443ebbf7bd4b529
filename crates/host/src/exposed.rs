//! A socket to which processes of other users can send, whose end waits for none of them.

use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// A socket that any user's process can reach by its name, or a connection whose other end may be any user's. Closing it closes the
/// descriptors too that lie unread in it, which [`sys::discard`] does without a wait.
#[derive(Debug)]
pub(super) struct ExposedSocket {
    /// Until it is proven, or dropped.
    socket: Option<EngineFd>,
    /// It goes on in other processes.
    is_shared: bool,
}

impl ExposedSocket {
    pub(super) const fn new(socket: EngineFd) -> Self {
        Self { socket: Some(socket), is_shared: false }
    }

    /// Other processes of this user have duplicates, or get them.
    pub(super) const fn share(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// The connection, if its other end has proven to be a process whose requests or answers this one takes; an error otherwise.
    pub(super) fn proven(mut self, proof: io::Result<()>) -> io::Result<EngineFd> {
        proof?;
        self.socket.take().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn raw(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, EngineFd::raw)
    }

    /// As [`EngineFd::checked`].
    pub(super) fn checked(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, EngineFd::checked)
    }
}

impl Drop for ExposedSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if !self.is_shared {
            sys::discard(socket);
        } else if sys::wait_for(socket.raw(), libc::POLLIN, Duration::ZERO) {
            sys::leave(socket);
        }
    }
}
