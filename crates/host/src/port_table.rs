//! The ports of this process, and the listeners at which requests and messages for them arrive.

use super::exposed::ExposedSocket;
use super::names::USABLE;
use super::port_address::{PortAddress, PortError};
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

/// The ports of this process.
#[derive(Default)]
pub(super) struct Ports {
    /// Those that MADs come to, and the listeners that only requests come to.
    pub(super) all: RwLock<class::HostPorts, KnownPorts>,
    pub(super) clients: Mutex<class::PortClients, PortClients>,
    /// How many connections are in [`PortClients::heard`].
    pub(super) heard: AtomicUsize,
    /// Per slot: until when it is taken for one of this user's processes.
    pub(super) own_until: OwnUntil,
}

pub(super) struct OwnUntil(pub(super) Box<[AtomicU64]>);

impl Default for OwnUntil {
    fn default() -> Self {
        Self((0..=*USABLE.end()).map(|_| AtomicU64::default()).collect())
    }
}

#[derive(Default)]
pub(super) struct KnownPorts {
    pub(super) ports: Vec<Arc<OwnPort>>,
    pub(super) requested: Vec<Weak<NumberListener>>,
}

impl KnownPorts {
    /// One that no port has, and no listener for requests.
    pub(super) fn free_id(&self) -> Result<u16, PortError> {
        let used = |id: u16| {
            self.ports.iter().any(|port| port.id == id)
                || self.requested.iter().any(|one| one.upgrade().is_some_and(|one| one.id == id))
        };
        (0..=u16::MAX)
            .find(|&id| !used(id))
            .ok_or_else(|| PortError::System(io::ErrorKind::OutOfMemory.into()))
    }
}

/// The connections to this process's ports.
#[derive(Default)]
pub(super) struct PortClients {
    /// Those over which nothing has come yet.
    pub(super) silent: VecDeque<Client>,
    /// Those whose messages have been handed on, and lie there until [`Host::end_heard`](super::process::Host::end_heard).
    pub(super) heard: VecDeque<Client>,
    /// How many connections were there before, and have ended.
    pub(super) ended: u64,
}

/// A connection to a port.
pub(super) struct Client {
    pub(super) connection: ExposedSocket,
    pub(super) uid: u32,
    /// It is a process of this user.
    pub(super) is_own: bool,
}

/// A listener that this process has and that requests come to: that of a port's number, or of a port that is shared.
#[derive(Debug)]
pub(super) struct NumberListener {
    pub(super) id: u16,
    /// The port space and the port, of a number's listener.
    pub(super) number: Option<(u16, u16)>,
    pub(super) listener: ExposedSocket,
    pub(super) epoll: RawFd,
}

impl Drop for NumberListener {
    fn drop(&mut self) {
        // Other processes may have the listener too, so closing it doesn't take it out. Fails where the program has closed it.
        let _ = sys::epoll_control(self.epoll, libc::EPOLL_CTL_DEL, self.listener.raw(), 0, 0);
    }
}

/// A port of this process, and the socket at which MADs for it come.
#[derive(Debug)]
pub(super) struct OwnPort {
    pub(super) id: u16,
    pub(super) address: PortAddress,
    pub(super) listener: ExposedSocket,
}
