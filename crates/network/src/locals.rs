//! The local addresses in use, and what is known about peers.

use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::{self, InetAddress};
use ferroce_parts::PeerSocket;
use ferroce_types::HostAddr;
use ferroce_udp::Endpoint;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A local address of an open device.
#[derive(Debug)]
pub struct Local {
    /// Its sockets.
    pub endpoint: Arc<Endpoint>,
    /// The sockets of its group that packets for this process come to.
    pub steerings: SmallVec<[u8; 4]>,
    /// The background thread is woken for packets to QP 1.
    pub(crate) is_gsi_watched: bool,
    /// QPs that expect packets there.
    pub users: Arc<AtomicUsize>,
}

/// An address of a device that was left out when the device was opened.
#[derive(Debug)]
pub(crate) struct LeftOut {
    /// The address.
    pub(crate) address: HostAddr,
    /// Its port is taken by a process that doesn't share it. Otherwise its holder hasn't answered, or was waited for less because of other
    /// holders, and is asked again.
    pub(crate) for_good: bool,
}

/// Addresses that a device has got since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Those that no thread has made usable yet.
    pub(crate) waiting: BTreeSet<HostAddr>,
    /// A thread makes them usable.
    pub(crate) has_thread: bool,
}

/// All of them, and what is known about peers.
#[derive(Debug, Default)]
pub struct Addresses {
    /// Those that are in use.
    pub(crate) locals: RwLock<class::Locals, Arc<Vec<Local>>>,
    /// Addresses of devices whose port this process doesn't share.
    pub(crate) left_out: Mutex<class::LeftOut, Vec<LeftOut>>,
    /// Those that are made usable later.
    pub(crate) arrivals: Mutex<class::Arrivals, Arrivals>,
    /// Where each QP has been counted as a user.
    pub(crate) listeners: Mutex<class::Listeners, BTreeMap<u32, Vec<Arc<AtomicUsize>>>>,
    /// How often QPs have been counted, at all addresses together.
    pub(crate) users: AtomicUsize,
    /// The socket of each peer, by address and steering.
    pub(crate) peer_sockets: Mutex<class::PeerSockets, BTreeMap<(HostAddr, u8), Weak<PeerSocket>>>,
}

impl Addresses {
    /// Gives the sockets of all addresses to `f`.
    pub fn for_each_endpoint(&self, f: impl Fn(&Endpoint)) {
        self.snapshot().iter().for_each(|address| f(&address.endpoint));
    }

    /// The addresses in use as they are now.
    pub fn snapshot(&self) -> Arc<Vec<Local>> {
        self.locals.read().clone()
    }

    /// A QP expects packets at some address.
    #[inline]
    pub fn have_users(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// The sockets of an address that is in use.
    pub fn endpoint(&self, address: HostAddr) -> Option<Arc<Endpoint>> {
        self.locals.read().iter().find(|l| l.endpoint.address() == address).map(|l| l.endpoint.clone())
    }
}

impl Local {
    /// Another handle of the same address.
    pub(crate) fn share(&self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            steerings: self.steerings.clone(),
            is_gsi_watched: self.is_gsi_watched,
            users: self.users.clone(),
        }
    }
}

/// An address of this network namespace can be bound to.
#[must_use]
pub fn is_of_this_host(address: HostAddr) -> bool {
    let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    let bound = sys::socket(family, libc::SOCK_DGRAM)
        .and_then(|socket| sys::bind(socket.raw(), &InetAddress::new(address.with_port(0))));
    // Without a descriptor, a port or memory: another host's packets pass the checks for this host's, but not the other way round.
    let is_full = |error: std::io::Error| {
        const FULL: [i32; 5] = [libc::EADDRINUSE, libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
        error.raw_os_error().is_some_and(|errno| FULL.contains(&errno))
    };
    bound.map_or_else(is_full, |()| true)
}
