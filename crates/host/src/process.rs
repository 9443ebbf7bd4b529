//! This process among those of its host: what it has, and how it reaches the others.

use super::attendance::Attendance;
use super::epoll::Epoll;
use super::exposed::ExposedSocket;
use super::forward::{ForwardReceiver, ForwardStats, Forwarder};
use super::group::{OpenSocket, SocketGroup};
use super::names::{self, Name, USABLE};
use super::port_table::Ports;
use super::services::Services;
use super::slots::{OwnSlot, shuffled};
use super::trust::Trust;
use super::user::User;
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{HostAddr, SLOTS, slot_of};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// This process's part among those of its user in its network namespace.
pub struct Host {
    pub(super) user: User,
    /// Users whose processes may share memory with this one.
    pub(super) trust: Trust,
    pub(super) epoll: Epoll,
    pub(super) slots: RwLock<class::HostSlots, Vec<Arc<OwnSlot>>>,
    /// A bit per slot, for the receive path.
    pub(super) owned: [AtomicU64; SLOTS as usize / 64],
    pub(super) leader: RwLock<class::Leader, Option<Arc<ExposedSocket>>>,
    pub(super) groups: RwLock<class::SocketGroups, BTreeMap<HostAddr, Arc<SocketGroup>>>,
    /// Held while an address is being joined. Never needed to answer others.
    pub(super) joining: Mutex<class::Joining, ()>,
    pub(super) forwarder: Forwarder,
    pub(super) inbox: Mutex<class::ForwardInbox, ForwardReceiver>,
    pub(super) services: Services,
    pub(super) guests: Guests,
    pub(super) attendance: Attendance,
    /// This process has the sockets of an address at which it was a guest.
    pub(super) changed: AtomicBool,
    /// This process may be about to have the sockets of an address.
    pub(super) making: AtomicBool,
    pub(super) ports: Ports,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("slots", &self.slots()).field("leader", &self.is_leader()).finish()
    }
}

/// The addresses of which this process is a guest.
#[derive(Default)]
pub(super) struct Guests {
    pub(super) addresses: Mutex<class::Guests, BTreeMap<HostAddr, GuestAddress>>,
    pub(super) timer: Mutex<class::GuestsTimer, Option<EngineFd>>,
    /// There are any.
    pub(super) some: AtomicBool,
}

/// What is known of an address whose port another user has.
pub(super) struct GuestAddress {
    pub(super) open: OpenSocket,
    /// The user that has the port.
    pub(super) holder: u32,
    /// When that was looked at.
    pub(super) looked: Instant,
    /// A slot of the attendant.
    pub(super) attendant: Option<u16>,
    /// It has answered since it was asked.
    pub(super) answered: bool,
    /// Intervals without an answer.
    pub(super) silence: u32,
}

impl Guests {
    /// Packets may come from other users' processes.
    pub(super) fn are_some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }
}

impl Host {
    /// The services that answer requests of other processes, except those for sockets. [`Host::service`] takes requests:
    /// a service that is registered before its first call misses none.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The slots this process owns, oldest first.
    #[must_use]
    pub fn slots(&self) -> Vec<u16> {
        self.slots.read().iter().map(|s| s.number).collect()
    }

    /// Whether a QPN is in one of this process's slots.
    #[must_use]
    pub fn owns(&self, qpn: u32) -> bool {
        let slot = slot_of(qpn);
        self.owned[usize::from(slot) / 64].load(Ordering::Acquire) & 1 << (slot % 64) != 0
    }

    /// Whether this process has the name that those who join ask first.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader.read().is_some()
    }

    /// What forwarding has counted.
    #[must_use]
    pub const fn stats(&self) -> &ForwardStats {
        &self.forwarder.stats
    }

    pub(super) fn keep_group(&self, address: HostAddr, group: Box<SocketGroup>) -> Arc<SocketGroup> {
        let group: Arc<SocketGroup> = group.into();
        self.groups.write().insert(address, Arc::clone(&group));
        group
    }

    /// The sockets of an address that this process has already. At an address at which it was a guest it has them once
    /// [`Host::has_changed`] is true.
    pub fn group(&self, address: HostAddr) -> Option<Arc<SocketGroup>> {
        self.groups.read().get(&address).map(Arc::clone)
    }

    /// Whether this process has become the holder of an address at which it was a guest, since this was asked last.
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel)
    }

    /// The processes to ask: the leader, then all others in random order.
    pub(super) fn others(&self) -> Vec<Name> {
        let own = self.slots();
        // Where the names can't be read, every name there can be is tried: a few milliseconds.
        let slots = names::slots_of(self.user.uid());
        let mut slots: Vec<u16> = slots.map_or_else(|| USABLE.collect(), |slots| slots.into_keys().collect());
        slots.retain(|slot| !own.contains(slot));
        let seed = sys::random();
        slots.sort_unstable_by_key(|&slot| shuffled(seed, slot));
        let leader = (!slots.is_empty() && !self.is_leader()).then(|| Name::leader(self.user.uid()));
        leader.into_iter().chain(slots.into_iter().map(Name::slot)).collect()
    }

    /// Readable when [`service`](Self::service) has something to do. One descriptor for life, whatever is claimed later.
    #[must_use]
    pub fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    /// A connection to the process of this user that holds a slot, for a request that a [`RequestHandler`](crate::RequestHandler) answers.
    /// This process answers no requests meanwhile: the caller may hold locks.
    ///
    /// # Errors
    /// ECONNREFUSED: no process holds it; EPERM: a process of another user does; EAGAIN: too many wait to ask it.
    pub fn dial(&self, slot: u16) -> io::Result<EngineFd> {
        self.dial_within(slot, Duration::ZERO)
    }

    /// As [`Host::dial`]. A holder that too many wait to ask is tried again for `within` at most, and this process answers requests meanwhile.
    ///
    /// # Errors
    /// As [`Host::dial`].
    pub fn dial_within(&self, slot: u16, within: Duration) -> io::Result<EngineFd> {
        let connection = self.connect_to_slot(slot, within)?;
        let proof = self.user.check_peer(connection.raw());
        connection.proven(proof)
    }

    /// A connection to the process that holds a slot, of whichever user.
    fn connect_to_slot(&self, slot: u16, within: Duration) -> io::Result<ExposedSocket> {
        if !USABLE.contains(&slot) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Name::slot(slot).connect_within(within, &mut || self.answer_requests())
    }

    /// The same as [`Host::dial_within`], also when the holder of the slot is another user's process that this one trusts: it may
    /// refuse.
    ///
    /// # Errors
    /// As [`Host::dial`].
    pub fn dial_trusted(&self, slot: u16, within: Duration) -> io::Result<EngineFd> {
        let connection = self.connect_to_slot(slot, within)?;
        let fd = connection.raw();
        let is_trusted = self.trust.includes(fd);
        let proof =
            self.user.check_peer(fd).or_else(|refused| if is_trusted { Ok(()) } else { Err(refused) });
        connection.proven(proof)
    }

    /// A connection to another process of this user.
    pub fn dial_process(&self, pid: i32) -> Option<EngineFd> {
        let slots = names::slots_of(self.user.uid()).unwrap_or_default();
        let is_it = |connection: &EngineFd| {
            pid != 0 && sys::peer_credentials(connection.raw()).is_ok_and(|peer| peer.pid == pid)
        };
        slots.into_keys().filter_map(|slot| self.dial(slot).ok()).find(is_it)
    }

    /// No process has a slot, of whichever user.
    pub fn is_free(&self, slot: u16) -> bool {
        self.dial(slot).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// The number of the process that has a slot, if it is one of this user.
    #[must_use]
    pub fn holder(&self, slot: u16) -> Option<i32> {
        let connection = self.dial(slot).ok()?;
        sys::peer_credentials(connection.raw()).ok().map(|peer| peer.pid)
    }

    /// The slots of other processes, of whichever user, in no order; none where the names can't be read.
    pub fn other_slots(&self) -> Vec<u16> {
        let own = self.slots();
        let slots = names::taken_slots().unwrap_or_default().into_keys();
        slots.filter(|slot| !own.contains(slot)).collect()
    }
}
