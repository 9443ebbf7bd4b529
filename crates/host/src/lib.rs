//! How the processes of a host share one QPN space and UDP port 4791, without a daemon.
//!
//! In here: slots of the QPN space, the socket group of each local address and its handover between processes,
//! requests of other processes and the services that answer them, forwarding of packets that came to the wrong process, guests
//! at an address whose port another user has, ports of the communication manager.
//! All of it lives in abstract UNIX names and open descriptors: a
//! process that ends, however it ends, leaves nothing.
//! Out of here: what packets mean, QPs, sending (`udp`), shared memory between processes (`hostlink`).
//!
//! # How it works
//! A QPN has 24 bits: a *slot* (the high 12) and an index in it. A process owns slot *s* while it holds the abstract name
//! of that slot, which no other process of any user can have. Each local address has 64 SO_REUSEPORT sockets on UDP 4791; a BPF program picks the socket by the low six
//! bits of the slot. The first process to use an address makes the sockets, all later ones get duplicates from any process
//! that has them, and everybody keeps all 64 for life (closing the last duplicate of one would reorder the group). Two
//! owners can share a socket; what one of them reads for the other is forwarded.
//!
//! The *leader* (holder of one more name) is asked first by those who join. When it dies, whoever joins next takes the name. A stopped
//! leader delays a join by milliseconds.
//!
//! # Order of calls
//! 1. [`Host::join_trusting`]: once per process, and again in a child of `fork` (whose atfork handler has called
//!    [`ferroce_os::sys::close_all_after_fork`]). The process then owns a slot.
//! 2. The engine's thread puts [`Host::poll_fd`] into its `epoll` and calls [`Host::service`] when that is
//!    readable: it answers processes that join, and hands on forwarded packets. It takes at most some milliseconds.
//! 3. [`Host::sockets`] for each local address in use (at most about a second, usually under a millisecond).
//!    Where it says that the process is a guest, [`Host::group`] may have the sockets later.
//! 4. QPNs: those of a slot of [`Host::slots`]; [`Host::claim_slot`] when they run out.
//! 5. On receipt: packets for which [`Host::owns`] is false go to [`Host::forward`]. Threads that poll call
//!    [`Host::recv_forwarded`] now and then.
//!
//! All methods may be called from any thread. None is a cancellation point.

#![forbid(unsafe_code)]

mod attendance;
mod encoding;
mod error;
mod foreign_holders;
mod forward;
pub mod frame;
mod gids;
mod group;
mod guests;
mod handover;
mod names;
mod notice;
mod ports;
mod services;
mod slots;
mod tracer;
mod trust;
mod user;
mod watch;

pub use error::{Error, Holder};
pub use ferroce_types::{SLOTS, slot_of};
pub use foreign_holders::{ForeignHolders, foreign_holders};
pub use forward::ForwardStats;
pub use gids::gid_table;
pub use gids::{GidTables, KIND_GIDS};
pub use group::OpenSocket;
pub use names::{ListedSlots, listings};
pub use ports::{Delivery, Destination, HeldPort, PortAddress, PortError};
pub use services::{Service, Services};
pub use tracer::{KIND_TRACE, Tracer};
pub use trust::Trust;
pub use user::is_of_this_user;
pub use watch::{KIND_WATCH, Told, Watched, ask_all, is_stopped};

use attendance::Attendance;
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{Datagram, GROUP_SIZE, HostAddr};
use ferroce_wire::cm::GSI_QPN;
use forward::{ForwardReceiver, Forwarder};
use guests::Guests;
use handover::{OwnSockets, SocketSearch};
use names::{Name, USABLE};
use ports::Ports;
use services::Reception;
use slots::OwnSlot;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use user::User;

/// How long the processes that are asked for a group have to answer after the last of them was asked, the first time and at most: each
/// time it is twice as long.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
const MOST_ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long a join goes on while a process of this user that runs doesn't answer: a processor that is busy with other programs
/// keeps it waiting …
const BUSY_PATIENCE: Duration = Duration::from_secs(15);
/// … while the port's sockets are this user's, and no process that could answer has them: one that ends lets go of them, or one
/// that starts is about to have them …
const ENDING_PATIENCE: Duration = Duration::from_secs(3);
/// … when all that don't answer are stopped, or the port is another user's …
const JOIN_PATIENCE: Duration = Duration::from_secs(1);
/// … and when no other process of this user is there, and the port's sockets aren't this user's.
const LONELY_PATIENCE: Duration = Duration::from_millis(100);
/// So often somebody who holds the port may turn out to be gone when it is asked who that is.
const MOST_VANISHED: u32 = 3;
/// Datagrams of forwarded packets taken from one slot in a row.
const INBOX_BURST: usize = 16;

/// What a readable descriptor in the inner `epoll` is, with the slot, the port's number or the steering value in the low 16
/// bits; of an attended socket the place of its address in the high 32.
const LISTENER: u64 = 1 << 16;
const INBOX: u64 = 2 << 16;
const LEADER: u64 = 3 << 16;
const PORT: u64 = 4 << 16;
const PORT_CLIENT: u64 = 5 << 16;
const PORT_REQUESTS: u64 = 6 << 16;
const GUESTS_TIMER: u64 = 7 << 16;
const ATTENDED: u64 = 8 << 16;
const LEASES_TIMER: u64 = 9 << 16;
const SILENT_CLIENT: u64 = 10 << 16;

/// The sockets of a local address, by steering value.
pub type SocketGroup = [EngineFd; GROUP_SIZE];

/// This process's part among those of its user in its network namespace.
pub struct Host {
    user: User,
    /// Users whose processes may share memory with this one.
    trust: Trust,
    /// Contains every descriptor that [`Host::service`] looks after.
    epoll: EngineFd,
    slots: RwLock<class::HostSlots, Vec<Arc<OwnSlot>>>,
    /// A bit per slot, for the receive path.
    owned: [AtomicU64; SLOTS as usize / 64],
    leader: RwLock<class::Leader, Option<Arc<EngineFd>>>,
    groups: RwLock<class::SocketGroups, BTreeMap<HostAddr, Arc<SocketGroup>>>,
    /// Held while an address is being joined. Never needed to answer others.
    joining: Mutex<class::Joining, ()>,
    forwarder: Forwarder,
    inbox: Mutex<class::ForwardInbox, ForwardReceiver>,
    services: Services,
    guests: Guests,
    attendance: Attendance,
    /// This process has the sockets of an address at which it was a guest.
    changed: AtomicBool,
    /// This process may be about to have the sockets of an address.
    making: AtomicBool,
    ports: Ports,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("slots", &self.slots()).field("leader", &self.is_leader()).finish()
    }
}

impl Host {
    /// Joins, and claims the first slot.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join() -> Result<Arc<Self>, Error> {
        Self::join_trusting(Trust::default())
    }

    /// Joins, and claims the first slot. Processes of users whom `trust` includes may share memory with this one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn join_trusting(trust: Trust) -> Result<Arc<Self>, Error> {
        let user = User::current();
        let this = Arc::new(Self {
            user,
            trust,
            epoll: sys::epoll_create().map_err(Error::system("epoll_create1"))?,
            slots: RwLock::default(),
            owned: [const { AtomicU64::new(0) }; SLOTS as usize / 64],
            leader: RwLock::default(),
            groups: RwLock::default(),
            joining: Mutex::default(),
            forwarder: Forwarder::new(user),
            inbox: Mutex::new(ForwardReceiver::new()),
            services: Services::default(),
            guests: Guests::default(),
            attendance: Attendance::default(),
            changed: AtomicBool::new(false),
            making: AtomicBool::new(false),
            ports: Ports::default(),
        });
        this.claim_slot()?;
        this.lead();
        this.services.keep_spare();
        Ok(this)
    }

    /// Takes one more slot (4,096 QPNs), and returns its number.
    ///
    /// # Errors
    /// [`Error::NoFreeSlot`], or a system call's.
    pub fn claim_slot(&self) -> Result<u16, Error> {
        let mut slots = self.slots.write();
        let own: Vec<u16> = slots.iter().map(|s| s.number).collect();
        let slot = slots::claim(self.user.uid(), &own)?;
        let number = slot.number;
        self.watch(slot.listener.raw(), LISTENER | u64::from(number))?;
        self.watch(slot.inbox.raw(), INBOX | u64::from(number))?;
        self.owned[usize::from(number) / 64].fetch_or(1 << (number % 64), Ordering::Release);
        slots.push(Arc::new(slot));
        drop(slots);
        tracing::debug!(slot = number, "claimed a slot of the QPN space");
        self.ask_for_new_slot();
        Ok(number)
    }

    /// Who answers requests of other processes that aren't for sockets. Requests are taken by [`Host::service`]:
    /// what is registered before its first call misses none.
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

    /// The sockets of a local address: this process's already, or another's, or new ones, which `open` makes. `None`: another user's
    /// processes have them, and pass on what comes for this one, as for a guest.
    ///
    /// # Errors
    /// See [`Error`]. After at most about a second.
    pub fn sockets(&self, address: HostAddr, open: OpenSocket) -> Result<Option<Arc<SocketGroup>>, Error> {
        if let Some(group) = self.group(address) {
            return Ok(Some(group));
        }
        let _joining = self.joining.lock();
        if let Some(group) = self.group(address) {
            return Ok(Some(group));
        }
        if self.is_guest(address) {
            return Ok(None);
        }
        let group = self.obtain(address, open)?;
        if group.is_some() {
            tracing::debug!(%address, "has the sockets of UDP port 4791");
        }
        Ok(group)
    }

    fn keep_group(&self, address: HostAddr, group: Box<SocketGroup>) -> Arc<SocketGroup> {
        let group: Arc<SocketGroup> = group.into();
        self.groups.write().insert(address, Arc::clone(&group));
        group
    }

    /// Makes the sockets of an address. Processes that ask for them meanwhile get the answer that they are coming.
    fn make_group(&self, address: HostAddr, open: OpenSocket) -> Result<Option<Arc<SocketGroup>>, Error> {
        self.making.store(true, Ordering::Release);
        let made = group::create(address, open);
        let made = made.map(|made| made.map(|group| self.keep_group(address, group)));
        self.making.store(false, Ordering::Release);
        made
    }

    /// The sockets of an address that this process has already. At an address at which it was a guest it has them once
    /// [`Host::has_changed`] says so.
    pub fn group(&self, address: HostAddr) -> Option<Arc<SocketGroup>> {
        self.groups.read().get(&address).map(Arc::clone)
    }

    /// Whether this process has become the holder of an address at which it was a guest, since this was asked last.
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel)
    }

    /// `None`: as a guest.
    fn obtain(&self, address: HostAddr, open: OpenSocket) -> Result<Option<Arc<SocketGroup>>, Error> {
        let start = Instant::now();
        let mut answer_patience = ANSWER_PATIENCE;
        let mut vanished = 0;
        let mut asked_holder = false;
        loop {
            self.lead();
            let names = self.others();
            let lonely = names.is_empty();
            let answer =
                handover::ask(&names, address, self.user, answer_patience, &mut || self.answer_requests())?;
            if let SocketSearch::Group(group) = answer {
                return Ok(Some(self.keep_group(address, group)));
            }
            if let Some(group) = self.make_group(address, open)? {
                return Ok(Some(group));
            }
            answer_patience = (2 * answer_patience).min(MOST_ANSWER_PATIENCE);
            let is_late = start.elapsed() >= if lonely { LONELY_PATIENCE } else { JOIN_PATIENCE };
            let holder = if is_late || !asked_holder { group::holder(address) } else { Holder::default() };
            let same = holder.uid == Some(self.user.uid());
            // A process of the same user doesn't know of those in another user namespace, who have other numbers there.
            if let Some(uid) = holder.uid
                && !asked_holder
                && (!same || is_late && lonely)
            {
                asked_holder = true;
                if self.become_guest(address, open, uid) {
                    return Ok(None);
                }
            }
            if is_late {
                let indistinct =
                    holder.uid.is_some_and(|uid| self.user.is_ambiguous() && same || !self.trust.knows(uid));
                // A process of ours that has no name yet, or none any more, and that a busy machine keeps waiting; or one
                // that has let go of it since.
                let is_gone = holder.uid.is_none() && !holder.kernel_rxe && vanished < MOST_VANISHED;
                vanished += u32::from(is_gone);
                let patience = match answer {
                    _ if indistinct || !(same || is_gone) => Duration::ZERO,
                    SocketSearch::Silence => BUSY_PATIENCE,
                    SocketSearch::Nobody if same => ENDING_PATIENCE,
                    _ => JOIN_PATIENCE,
                };
                if start.elapsed() >= patience {
                    let holder = Holder { indistinct, is_own: same, ..holder };
                    let foreign = holder.uid.is_some() && !same;
                    return Err(match answer {
                        SocketSearch::Silence if !foreign => Error::Unresponsive { address, stopped: false },
                        SocketSearch::Stopped if !foreign => Error::Unresponsive { address, stopped: true },
                        _ => Error::AddressInUse { address, holder },
                    });
                }
            }
            // Somebody is just making the group, or letting go of it.
            self.answer_requests();
            group::pause();
        }
    }

    /// Whom to ask: the leader, then everybody in random order.
    fn others(&self) -> Vec<Name> {
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

    /// Takes the leader's name if it is free.
    fn lead(&self) {
        if self.is_leader() {
            return;
        }
        if let Ok(Some(listener)) = Name::leader(self.user.uid()).listen() {
            let mut leader = self.leader.write();
            if leader.is_none() && self.watch(listener.raw(), LEADER).is_ok() {
                *leader = Some(Arc::new(listener));
                tracing::debug!("leader of this host");
            }
        }
    }

    fn watch(&self, fd: RawFd, data: u64) -> Result<(), Error> {
        sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Readable when [`service`](Self::service) has something to do. One descriptor for life, whatever is claimed later.
    #[must_use]
    pub fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    /// Does what is to be done: answers processes that join, hands forwarded packets to `f`, and has `read` read sockets of an address for
    /// guests, by steering value. To be called when [`poll_fd`](Self::poll_fd) is readable.
    ///
    /// # Errors
    /// The inner `epoll` is gone (EBADF: a child of `fork`).
    pub fn service(
        &self,
        f: &mut dyn FnMut(&[Datagram<'_>]),
        read: &mut dyn FnMut(HostAddr, u8),
    ) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = match sys::epoll_wait(self.epoll.raw(), &mut events, Some(Duration::ZERO)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            result => result?,
        };
        let (mut inboxes, mut spoken) = (false, false);
        for event in &events[..ready] {
            let (data, slot) = (event.u64, event.u64 as u16);
            match data & 0xffff_0000 {
                LEADER => self.serve_leader(),
                LISTENER => self.serve_slot(slot),
                SILENT_CLIENT => spoken = true,
                PORT => self.recv_for_port(slot, f),
                PORT_CLIENT => self.recv_from_port_clients(f),
                PORT_REQUESTS => self.serve_port_requests(slot),
                GUESTS_TIMER => self.ask_attendants(),
                LEASES_TIMER => self.end_leases(),
                ATTENDED => {
                    if let Some(address) = self.attended_address((data >> 32) as usize) {
                        read(address, slot as u8);
                    }
                }
                _ => inboxes = true,
            }
        }
        if spoken {
            self.with_reception(|reception| self.services.serve_silent(reception));
        }
        if inboxes {
            self.recv_forwarded(f);
        }
        Ok(())
    }

    /// A connection to the process that holds a slot, for a request that a [`Service`] answers; `None` where it is
    /// another user's process, or too many wait to ask it.
    pub fn dial(&self, slot: u16) -> Option<EngineFd> {
        self.reach_slot(slot).ok()
    }

    /// A connection to the process of this user that holds a slot.
    ///
    /// # Errors
    /// ECONNREFUSED: no process holds it; EPERM: a process of another user does; EAGAIN: too many wait to ask it.
    fn reach_slot(&self, slot: u16) -> io::Result<EngineFd> {
        if !USABLE.contains(&slot) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        handover::dial(&Name::slot(slot), self.user)
    }

    /// The same as [`Host::dial`], also when the holder of the slot is another user's process that this one trusts: it may
    /// refuse.
    pub fn dial_trusted(&self, slot: u16) -> Option<EngineFd> {
        let connection = handover::connect(&Name::slot(slot)).ok().filter(|_| USABLE.contains(&slot))?;
        let fd = connection.raw();
        (self.user.check_peer(fd).is_ok() || self.trust.includes(fd)).then_some(connection)
    }

    /// A connection to another process of this user.
    pub fn dial_process(&self, pid: i32) -> Option<EngineFd> {
        let slots = names::slots_of(self.user.uid()).unwrap_or_default();
        let is_it = |connection: &EngineFd| {
            pid != 0 && sys::peer_credentials(connection.raw()).is_ok_and(|peer| peer.pid == pid)
        };
        slots.into_keys().filter_map(|slot| self.dial(slot)).find(is_it)
    }

    /// No process has a slot, of whichever user.
    pub fn is_free(&self, slot: u16) -> bool {
        self.reach_slot(slot).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// The number of the process that has a slot, if it is one of this user.
    #[must_use]
    pub fn holder(&self, slot: u16) -> Option<i32> {
        let connection = self.reach_slot(slot).ok()?;
        sys::peer_credentials(connection.raw()).ok().map(|peer| peer.pid)
    }

    /// The slots of other processes, of whichever user, in no order; none where the names can't be read.
    pub fn other_slots(&self) -> Vec<u16> {
        let own = self.slots();
        let slots = names::taken_slots().unwrap_or_default().into_keys();
        slots.filter(|slot| !own.contains(slot)).collect()
    }

    /// All who ask, whether it shows or not; for a thread that waits for others itself.
    pub fn answer_requests(&self) {
        self.with_reception(|reception| self.services.serve_silent(reception));
        self.serve_leader();
        for slot in self.slots() {
            self.serve_slot(slot);
        }
        self.serve_all_port_requests();
    }

    fn serve_leader(&self) {
        // Whoever asks may ask for anything, whose answer may need any lock.
        let listener = self.leader.read().clone();
        if let Some(listener) = listener {
            self.serve(listener.raw());
        }
    }

    fn serve_slot(&self, number: u16) {
        let slot = self.slots.read().iter().find(|s| s.number == number).map(Arc::clone);
        if let Some(slot) = slot {
            self.serve(slot.listener.raw());
        }
    }

    fn serve(&self, listener: RawFd) {
        self.with_reception(|reception| self.services.serve(listener, reception));
    }

    fn with_reception(&self, f: impl FnOnce(&Reception<'_>)) {
        f(&Reception {
            user: self.user,
            trust: &self.trust,
            epoll: self.epoll.raw(),
            spoken: SILENT_CLIENT,
            rest: &|connection, request| {
                if let Some((space, port)) = ports::parse_request(request) {
                    return self.answer_for_number(connection, space, port);
                }
                handover::answer(connection, request, &mut |address| {
                    // Before the groups are looked at: what is made in between is found there.
                    let is_making = self.making.load(Ordering::Acquire);
                    // Groups live as long as this object: the numbers stay valid.
                    match self.groups.read().get(&address) {
                        Some(group) => OwnSockets::Have(group.iter().map(EngineFd::checked).collect()),
                        None if is_making => OwnSockets::Coming,
                        None => OwnSockets::Nothing,
                    }
                })
            },
        });
    }

    /// Passes packets on to the processes that own the slots of their QPNs. Never blocks; what a queue has no room for
    /// and what nobody owns is dropped and counted.
    pub fn forward(&self, datagrams: &[Datagram<'_>]) {
        let Some(own) = self.slots.read().first().map(Arc::clone) else { return };
        for same in datagrams.chunk_by(|a, b| slot_of(a.dest_qpn()) == slot_of(b.dest_qpn())) {
            let Some(first) = same.first() else { continue };
            let slot = slot_of(first.dest_qpn());
            if USABLE.contains(&slot) && !self.owns(first.dest_qpn()) {
                self.forwarder.forward(own.inbox.raw(), slot, same);
            } else {
                self.forwarder.stats.unknown.fetch_add(same.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Whether a packet that a process has passed on is to be believed: it is one of this user, or of the user to whom the
    /// kernel gives what is sent to the packet's destination.
    fn is_believed(&self, is_own: bool, sender: Option<u32>, packet: &Datagram<'_>) -> bool {
        is_own || self.guests.are_some() && self.is_of_holder(sender, packet.destination)
    }

    /// Takes one datagram of packets; whether there was one.
    fn receive(&self, inbox: &mut ForwardReceiver, fd: RawFd, f: &mut dyn FnMut(&[Datagram<'_>])) -> bool {
        let Ok(Some(received)) = inbox.receive(fd) else { return false };
        let (sender, bytes) = inbox.bytes(&received);
        if self.take_notice(sender, bytes) {
            return true;
        }
        let is_own = self.user.has_sent(sender);
        let mut is_mine = |packet: &Datagram<'_>| {
            let qpn = packet.dest_qpn();
            (self.owns(qpn) || qpn == GSI_QPN) && self.is_believed(is_own, sender, packet)
        };
        inbox.hand_on(&received, self.stats(), &mut is_mine, f);
        true
    }

    /// Takes what other processes have passed on to this one's slots; `f` gets it in batches, and must not call this
    /// method. Returns how many packets; 0 also when another thread is at it.
    pub fn recv_forwarded(&self, f: &mut dyn FnMut(&[Datagram<'_>])) -> usize {
        let Some(mut inbox) = self.inbox.try_lock() else { return 0 };
        let slots: smallvec::SmallVec<[Arc<OwnSlot>; 4]> = self.slots.read().iter().map(Arc::clone).collect();
        let mut packets = 0;
        for slot in slots {
            let fd = slot.inbox.checked();
            for _ in 0..INBOX_BURST {
                let mut count = |batch: &[Datagram<'_>]| {
                    packets += batch.len();
                    f(batch);
                };
                if !self.receive(&mut inbox, fd, &mut count) {
                    break;
                }
            }
        }
        packets
    }
}

/// Whether some process here has UDP port 4791 at this address, as far as can be seen.
pub fn is_held(address: HostAddr) -> bool {
    group::holder(address).uid.is_some()
}

/// A place in a random order.
fn shuffled(seed: u64, slot: u16) -> u64 {
    let mut x = (seed ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}
