//! The descriptor that becomes readable when [`Host::service`](crate::Host::service) has something to do.

use super::error::HostError;
use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::os::fd::RawFd;

/// What a readable descriptor in the inner `epoll` is, with the slot, the port's number or the steering value in the low 16
/// bits; of an attended socket the place of its address in the high 32.
pub(super) const LISTENER: u64 = 1 << 16;
pub(super) const INBOX: u64 = 2 << 16;
pub(super) const LEADER: u64 = 3 << 16;
pub(super) const PORT: u64 = 4 << 16;
pub(super) const PORT_CLIENT: u64 = 5 << 16;
pub(super) const PORT_REQUESTS: u64 = 6 << 16;
pub(super) const GUESTS_TIMER: u64 = 7 << 16;
pub(super) const ATTENDED: u64 = 8 << 16;
pub(super) const LEASES_TIMER: u64 = 9 << 16;
pub(super) const SILENT_CLIENT: u64 = 10 << 16;

/// An `epoll` of the descriptors that [`Host::service`](crate::Host::service) looks after.
pub(super) struct Epoll(EngineFd);

impl Epoll {
    pub(super) fn new() -> Result<Self, HostError> {
        sys::epoll_create().map(Self).map_err(HostError::system("epoll_create1"))
    }

    pub(super) fn raw(&self) -> RawFd {
        self.0.raw()
    }

    /// Reports `fd`, when it is readable, as `data`.
    pub(super) fn watch(&self, fd: RawFd, data: u64) -> Result<(), HostError> {
        sys::epoll_control(self.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
            .map_err(HostError::system("epoll_ctl"))
    }

    /// Takes `fd` out.
    ///
    /// # Errors
    /// The program has closed it.
    pub(super) fn unwatch(&self, fd: RawFd) -> io::Result<()> {
        sys::epoll_control(self.raw(), libc::EPOLL_CTL_DEL, fd, 0, 0)
    }
}
