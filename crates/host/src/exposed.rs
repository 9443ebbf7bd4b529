//! A socket to which processes of other users can send, whose end waits for none of them.

use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// A socket that any user's process can reach by its name, or a connection whose other end may be any user's. Closing it closes the
/// descriptors too that lie unread in it, which [`sys::discard`] does without a wait. Where the kernel refuses them at their sender, none is.
#[derive(Debug)]
pub(super) struct ExposedSocket {
    /// Until it is proven, or dropped.
    socket: Option<EngineFd>,
    /// It goes on in other processes.
    is_shared: bool,
    /// No message with descriptors comes to it, nor to the connections that are made to it.
    refuses: bool,
}

impl ExposedSocket {
    pub(super) const fn new(socket: EngineFd) -> Self {
        Self { socket: Some(socket), is_shared: false, refuses: false }
    }

    /// A socket to which nothing has been sent yet: no descriptors come to it, as far as the kernel can see to it.
    pub(super) fn without_descriptors(socket: EngineFd) -> Self {
        let refuses = sys::refuse_descriptors(socket.raw());
        Self { socket: Some(socket), is_shared: false, refuses }
    }

    /// A connection that waits at this listener.
    pub(super) fn accept(&self) -> io::Result<Self> {
        let connection = sys::accept(self.checked())?;
        Ok(Self { socket: Some(connection), is_shared: false, refuses: self.refuses })
    }

    /// The next message may have descriptors with it, and has.
    pub(super) fn brings_descriptors(&self) -> bool {
        !self.refuses && sys::brings_descriptors(self.raw())
    }

    /// Takes a message that has been [looked at](sys::peek_message): it has no descriptors with it.
    pub(super) fn take_message(&self) {
        // Fails where the other end has gone.
        let _ = sys::receive_message(self.checked(), &mut [], &mut sys::control::ControlBuffer::<0>::new());
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
        if self.refuses {
            if !self.is_shared {
                // Also for a child of this process that has it.
                sys::shutdown(socket.checked());
            }
        } else if !self.is_shared {
            sys::discard(socket);
        } else if sys::wait_for(socket.raw(), libc::POLLIN, Duration::ZERO) {
            sys::leave(socket);
        }
    }
}
