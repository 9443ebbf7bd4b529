//! QP 1, the general services interface: MADs between this process's communication manager, the host's other processes and other
//! hosts.
//!
//! In here: which process a MAD is for, the packets of MADs, which processes are gone, and when the communication manager has
//! something to do.
//! Out of here: what the messages mean (`ferroce_cm`), connections and their events (`ferroce_connect`).
//!
//! All processes of a host that connect read the sockets to which packets for QP 1 come, and pass MADs on to whom they are for. A
//! message has a port, or a communication ID, whose high bits are a slot of the process that gave it.

mod at_ports;
mod lifelines;
mod pass_on;
mod state;

pub use lifelines::register;
pub use state::{CommunicationManager, GsiState};

use crate::flow::identification;
use crate::locals::is_of_this_host;
use crate::network::Network;
use ferroce_cm::{AddressedMad, AskedUser, ConnectionRoute, answer_for_nobody};
use ferroce_engine::{Handler, Source};
use ferroce_host::{Delivery, Destination, Host, NameHolder};
use ferroce_os::clock;
use ferroce_os::throttle::{OncePerSecond, RateLimiter};
use ferroce_parts::{Path, ResolvedAv};
use ferroce_types::{Datagram, HostAddr, Instant, Result, Unreachable, slot_of};
use ferroce_udp::{OutgoingTap as _, send_alone};
use ferroce_wire::cm::{GSI_QKEY, GSI_QPN, IpHeader, MAD_LEN, Mad, Message, RejectReason, ServiceId};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Deth, Headers, ICRC_LEN, Opcode, Packet, ROCE_V2_PORT};
use pass_on::{Attempt, Kept};
use state::{PACKET_LEN, PendingInput, UnreadMad};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// MADs that wait for the communication manager; further ones are lost, as on a wire.
const MOST_WAITING: usize = 8192;
/// The low bits of a communication ID: the high ones are a slot.
pub const COMM_ID_BITS: u32 = 20;
/// A P_Key without its membership bit.
const DEFAULT_PKEY: u16 = 0x7fff;

/// What has become of a MAD that was sent.
#[derive(Clone, Debug)]
pub enum SentMad {
    /// It is on its way, waits until its receiver has less to read, or is lost.
    Gone,
    /// A process of this host gets it, of this user.
    To(AskedUser),
    /// It is for this process.
    Own,
    /// It has no receiver on this host: the answer.
    Answered(Box<AddressedMad>),
}

/// The slot of the process that gave a communication ID.
#[must_use]
pub const fn slot_of_id(comm_id: u32) -> u16 {
    slot_of(comm_id >> (COMM_ID_BITS - 12))
}

/// The receiver of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MadReceiver {
    /// … and the destination address, as the programs know it.
    Port(ServiceId, Option<IpAddr>),
    Slot(u16),
    /// Not named: the process whose connection has the sender's ID as its peer's.
    Unknown,
}

/// "TTL" of a copy that another process of the host has passed on, which none on the network has.
const PASSED_ON: Option<u8> = Some(0);
/// Time between two searches for the process that a message is for, on average.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// Searches that may be made at once.
const SEARCHES_AT_ONCE: u32 = 64;

impl MadReceiver {
    fn of(message: &Message) -> Self {
        let id = match message {
            Message::Request(m) => {
                return Self::port(m.service_id, &m.private_data);
            }
            Message::SidrRequest(m) => {
                return Self::port(m.service_id, &m.private_data);
            }
            Message::Mra(m) => m.ids.remote,
            // A REJ for another reason names its receiver.
            Message::Reject(m) if m.remote_comm_id == 0 && m.reason == RejectReason::TIMEOUT => {
                return Self::Unknown;
            }
            Message::Reject(m) => m.remote_comm_id,
            Message::Reply(m) => m.remote_comm_id,
            Message::ReadyToUse(ids) | Message::DisconnectReply(ids) => ids.remote,
            Message::DisconnectRequest(m) => m.ids.remote,
            Message::SidrReply(m) => m.request_id,
        };
        Self::Slot(slot_of_id(id))
    }

    fn port(service_id: ServiceId, private_data: &[u8]) -> Self {
        Self::Port(service_id, IpHeader::parse(private_data).map(|header| header.destination))
    }

    /// Takes the packets of MADs to the process that they are for, to one of another user only if they are `from_network`.
    fn deliver(&self, host: &Host, packets: &[Datagram<'_>], from_network: bool) -> Delivery {
        let Some(first) = packets.first() else { return Delivery::Sent(None) };
        match self {
            Self::Slot(slot) => host.deliver_to_slot(*slot, packets, from_network),
            // The others have it already, or get it now.
            Self::Unknown => Delivery::Own,
            Self::Port(service_id, destination) => {
                let Some((space, port)) = service_id.port() else { return Delivery::Nobody };
                let of_packet = first.destination;
                let address = destination.map_or(of_packet, |ip| HostAddr::new(ip, of_packet.scope_id()));
                host.deliver_to_port(space.number(), port, address, packets, from_network)
            }
        }
    }
}

/// QP 1 as the communication manager has it.
pub struct Gsi<H: Handler>(&'static Network<H>);

impl<H: Handler> Clone for Gsi<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Handler> Copy for Gsi<H> {}

impl<H: Handler> Gsi<H> {
    /// QP 1 of `network`, whose connections `make` makes the manager for: once in a process, and again after a fork.
    ///
    /// # Errors
    /// The system refused.
    pub fn start(
        network: &'static Network<H>,
        make: impl FnOnce(Self) -> Arc<dyn CommunicationManager>,
    ) -> Result<Self> {
        let gsi = Self(network);
        network.gsi.manager.get_or_init(|| {
            network.gsi.due.store(u64::MAX, Ordering::Relaxed);
            make(gsi)
        });
        network.watch_slots()?;
        Ok(gsi)
    }

    /// It is of this process, and not of one that this one was forked from.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.0.generation() == ferroce_os::fork::generation()
    }

    /// The host's processes.
    #[must_use]
    pub fn host(&self) -> &'static Arc<Host> {
        &self.0.host
    }

    /// Has [`CommunicationManager::gone`] called when the process of this host dies that gave a communication ID, or soon if that process is
    /// gone already: after [`CommunicationManager::work`] for its messages. Whether `address` is this host's.
    pub fn follow(&self, address: HostAddr, comm_id: u32) -> bool {
        if !is_of_this_host(address) {
            return false;
        }
        let slot = slot_of_id(comm_id);
        if !self.0.follow(slot) {
            self.0.keep(PendingInput::Gone(Some(slot)));
        }
        true
    }

    /// Whether an address is this host's.
    #[must_use]
    pub fn is_of_this_host(&self, address: HostAddr) -> bool {
        is_of_this_host(address)
    }

    /// Calls [`CommunicationManager::work`] when `at` has come, or before.
    pub fn set_alarm(&self, at: Instant) {
        if at.0 < self.0.gsi.due.fetch_min(at.0, Ordering::AcqRel) {
            self.0.engine.wake_for(at);
        }
    }

    /// Whether the peer's host has rejected packets of this route in the time `within`, because no process there has the RoCE port. Nothing may
    /// be decided by it: any host can send such an ICMP message.
    #[must_use]
    pub fn is_port_closed(&self, route: &ConnectionRoute, within: Duration) -> bool {
        let ConnectionRoute { from, to, traffic_class: tos, .. } = *route;
        let route = ResolvedAv { from, to, tos, ttl: 64, flow_label: 0 };
        match self.0.udp_path(&route, GSI_QPN) {
            Ok(Path::Udp { dest, .. }) => dest.unreachable(within) == Some(Unreachable::Port),
            _ => false,
        }
    }

    /// Sends a MAD. The caller holds no lock.
    pub fn send(&self, mad: &AddressedMad) -> SentMad {
        let Self(network) = self;
        let mut bytes = network.gsi_packet(&mad.mad);
        if !is_of_this_host(mad.to) {
            network.send_mad(mad, &mut bytes, false);
            return SentMad::Gone;
        }
        write_icrc(&mut bytes, mad.from, mad.to);
        let datagram = Datagram {
            source: mad.from.with_port(ROCE_V2_PORT),
            destination: mad.to,
            tos: mad.traffic_class,
            ttl: None,
            flow_label: 0,
            is_of_user: mad.is_of_user,
            segment: 0,
            bytes: &bytes,
        };
        // Before it is delivered: the answer comes behind it.
        network.show_sent(&[datagram]);
        network.send_within_host(mad, &datagram, None)
    }
}

impl<H: Handler> Network<H> {
    /// The communication manager, once the process has one.
    pub fn manager(&self) -> Option<&Arc<dyn CommunicationManager>> {
        self.gsi.manager.get()
    }

    /// The packet of a MAD, without its ICRC.
    fn gsi_packet(&self, mad: &Mad) -> [u8; PACKET_LEN] {
        let psn = self.gsi.psn.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, GSI_QPN, psn));
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
        let mut packet = [0; PACKET_LEN];
        // There is room: the length is that of these headers.
        let begin = headers.emit(&mut packet).unwrap_or(0);
        if let Some(room) = packet.get_mut(begin..begin + MAD_LEN) {
            room.copy_from_slice(&mad.emit());
        }
        packet
    }

    /// Sends the packet of a MAD to another host, or to another user's process. `shown`: the capture has it already.
    fn send_mad(&self, mad: &AddressedMad, packet: &mut [u8], shown: bool) {
        let AddressedMad { from, to, traffic_class, .. } = *mad;
        let route = ResolvedAv { from, to, tos: traffic_class, ttl: 64, flow_label: 0 };
        let path = self.add_address(from).and_then(|()| self.udp_path(&route, GSI_QPN));
        match path {
            Ok(Path::Udp { dest, .. }) => {
                dest.write_icrc(packet, 0);
                match self.taps.filter(|taps| taps.has_faults() || !shown) {
                    Some(taps) if !taps.outgoing(&dest, 0, packet) => {
                        // It goes when the faults let it.
                        taps.flushed();
                        self.wake_for_taps();
                    }
                    _ => drop(send_alone(&dest, packet)),
                }
            }
            Ok(_) => {}
            Err(error) => {
                static BRAKE: OncePerSecond = OncePerSecond::new();
                if BRAKE.allows_now() {
                    tracing::warn!(%error, %from, %to, "a message of the communication manager can't be sent");
                }
            }
        }
    }

    /// Sends a MAD to a process of this host. If it has too much to read, that is tried until `until`, which is known when it was
    /// tried before.
    fn send_within_host(
        &self,
        mad: &AddressedMad,
        datagram: &Datagram<'_>,
        until: Option<Instant>,
    ) -> SentMad {
        let receiver = MadReceiver::of(&mad.mad.message);
        if receiver == MadReceiver::Unknown {
            self.ask_everybody(datagram);
        }
        let delivery = receiver.deliver(&self.host, std::slice::from_ref(datagram), false);
        // To another user's process as to another host. A receiver that isn't named may be one of the user that has the port.
        let is_unnamed = receiver == MadReceiver::Unknown && self.host.is_guest(mad.to);
        if matches!(delivery, Delivery::OtherUser) || is_unnamed {
            self.send_mad(mad, &mut self.gsi_packet(&mad.mad), true);
        }
        match delivery {
            Delivery::Own => SentMad::Own,
            Delivery::Sent(at_port) => {
                at_port.into_iter().for_each(|request| self.keep_at_port(request));
                SentMad::To(AskedUser::Own)
            }
            Delivery::OtherUser => SentMad::To(self.asked_user(receiver)),
            Delivery::Busy(to) => {
                self.keep_unread(to, datagram, false, until);
                SentMad::Gone
            }
            Delivery::Nobody => {
                let (message, to) = (mad.mad.message.name(), mad.to);
                tracing::debug!(message, %to, "no process of this host has the port or connection of a message");
                match answer_for_nobody(&mad.mad) {
                    Some(answer) => SentMad::Answered(Box::new(mad.answered_by(answer))),
                    None => SentMad::Gone,
                }
            }
        }
    }

    /// The user of the receiver of a request.
    fn asked_user(&self, receiver: MadReceiver) -> AskedUser {
        let MadReceiver::Port(service_id, _) = receiver else { return AskedUser::Unknown };
        let holder = service_id.port().map(|(space, port)| self.host.holder_of_port(space.number(), port));
        match holder {
            Some(NameHolder::Other(uid)) => AskedUser::Other(uid),
            _ => AskedUser::Unknown,
        }
    }

    /// Keeps a MAD for a process that has too much to read.
    fn keep_unread(
        &self,
        to: Destination,
        datagram: &Datagram<'_>,
        from_network: bool,
        until: Option<Instant>,
    ) {
        let Ok(bytes) = datagram.bytes.try_into() else { return };
        let unread = UnreadMad { datagram: Datagram { bytes: &[], ..*datagram }, bytes, from_network };
        if let Some(at) = self.gsi.pass_on.keep(to, unread, until, clock::now()) {
            self.engine.wake_for(at);
        }
    }

    /// Tries again the processes that had too much to read.
    fn pass_on(&self) {
        let send = |to: &Destination, unread: &[&UnreadMad]| {
            let packets: Vec<Datagram<'_>> = unread.iter().map(|unread| unread.datagram()).collect();
            match self.host.deliver_to(to, &packets) {
                Delivery::Busy(_) => Attempt::Busy,
                Delivery::Sent(at_port) => {
                    at_port.into_iter().for_each(|request| self.keep_at_port(request));
                    Attempt::Sent
                }
                Delivery::Nobody | Delivery::Own | Delivery::OtherUser => Attempt::Gone,
            }
        };
        // Another process may have the port or slot now, or none.
        let find_again = |kept: Kept<UnreadMad>| {
            let Kept { mad: unread, until } = kept;
            if unread.from_network {
                return self.take_mad(&unread.datagram(), Some(until));
            }
            let Some(mad) = read(&unread.datagram()) else { return };
            match self.send_within_host(&mad, &unread.datagram(), Some(until)) {
                SentMad::Gone | SentMad::To(_) => {}
                SentMad::Own => self.keep(PendingInput::ForManager(mad)),
                SentMad::Answered(answer) => self.keep(PendingInput::ForManager(*answer)),
            }
        };
        if let Some(at) = self.gsi.pass_on.try_again(clock::now(), send, find_again) {
            self.engine.wake_for(at);
        }
    }

    /// Passes a message on to all other processes of the host, unless another one has done that. Where too many such messages come, the
    /// peer of a connection that isn't found learns of its end by the answer to its next repetition.
    fn ask_everybody(&self, packet: &Datagram<'_>) {
        static SEARCHES: RateLimiter = RateLimiter::new(SEARCH_INTERVAL, SEARCHES_AT_ONCE);
        if packet.ttl == PASSED_ON || SEARCHES.take(clock::now()).is_none() {
            return;
        }
        let copy = Datagram { ttl: PASSED_ON, ..*packet };
        for slot in self.host.other_slots() {
            self.host.deliver_to_slot(slot, &[copy], true);
        }
    }

    /// A packet for QP 1 has come, from the network or from another process of the host.
    pub fn mad_arrived(&self, datagram: &Datagram<'_>) {
        self.take_mad(datagram, None);
    }

    /// As [`Network::mad_arrived`], of one that is kept until then, if it was kept before.
    fn take_mad(&self, datagram: &Datagram<'_>, until: Option<Instant>) {
        let Some(mad) = read(datagram) else { return };
        let receiver = MadReceiver::of(&mad.mad.message);
        if matches!(receiver, MadReceiver::Unknown) {
            self.ask_everybody(datagram);
        }
        match receiver.deliver(&self.host, std::slice::from_ref(datagram), true) {
            Delivery::Sent(_) | Delivery::OtherUser => {}
            Delivery::Busy(to) => self.keep_unread(to, datagram, true, until),
            Delivery::Own if self.gsi.is_read() => self.keep(PendingInput::ForManager(mad)),
            // What this process would have is gone.
            Delivery::Own | Delivery::Nobody => {
                let (message, from, to) = (mad.mad.message.name(), mad.from, mad.to);
                tracing::debug!(message, %from, %to, "no process here has the port or connection of a message");
                if let Some(answer) = answer_for_nobody(&mad.mad) {
                    self.keep(PendingInput::Answer(mad.answered_by(answer)));
                }
            }
        }
    }

    /// Leaves something to do when no lock is held.
    fn keep(&self, mad: PendingInput) {
        let mut inbox = self.gsi.inbox.lock();
        if inbox.len() < MOST_WAITING || matches!(mad, PendingInput::Gone(_)) {
            inbox.push_back(mad);
            self.gsi.has_mads.store(true, Ordering::Release);
        }
        drop(inbox);
        self.engine.wake_for(clock::now());
    }
}

/// The MAD in a packet for QP 1; `None` when it isn't a message of the communication manager that has come intact.
fn read(datagram: &Datagram<'_>) -> Option<AddressedMad> {
    identification(datagram)?;
    let packet = Packet::parse(datagram.bytes).ok()?;
    let Headers { bth, deth, .. } = packet.headers;
    let intact = bth.opcode == Opcode::UD_SEND_ONLY
        && bth.pkey & DEFAULT_PKEY == DEFAULT_PKEY
        && deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
    let mad = Mad::parse(packet.payload).ok().filter(|_| intact)?;
    let from = HostAddr::new(datagram.source.ip(), datagram.destination.scope_id());
    let (to, traffic_class) = (datagram.destination, datagram.tos);
    Some(AddressedMad { from, to, traffic_class, is_of_user: datagram.is_of_user, mad })
}

/// Writes the ICRC of a packet that stays in this host.
fn write_icrc(packet: &mut [u8], from: HostAddr, to: HostAddr) {
    let len = packet.len();
    let flow = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Flow::v4(from, to, ROCE_V2_PORT, ROCE_V2_PORT),
        (IpAddr::V6(from), IpAddr::V6(to)) => Flow::v6(from, to, ROCE_V2_PORT, ROCE_V2_PORT),
        _ => return,
    };
    if let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        let mut crc = flow.start(len, 0);
        crc.bth(covered);
        *icrc = crc.finish();
    }
}

/// A thread is at work. Dropped, also by a panic, it isn't any more.
struct AtWork<'a>(&'a AtomicBool);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// QP 1 as a source. Nothing of it is done by threads that poll.
pub struct GsiSource<H: Handler, E: Fn()> {
    network: &'static Network<H>,
    empty_sockets: E,
}

impl<H: Handler, E: Fn()> GsiSource<H, E> {
    /// `empty_sockets` takes all that lies in the sockets of QP 1.
    #[inline]
    pub fn new(network: &'static Network<H>, empty_sockets: E) -> Self {
        Self { network, empty_sockets }
    }

    /// The processes that had these slots are gone. What they sent before may lie in sockets: that is taken first.
    fn report(&self, gone: Vec<u16>) {
        if !gone.is_empty() {
            (self.empty_sockets)();
        }
        gone.into_iter().for_each(|slot| self.network.keep(PendingInput::Gone(Some(slot))));
    }
}

impl<H: Handler, E: Fn()> Source for GsiSource<H, E> {
    fn serve(&self) {
        let lifelines::EndedLifelines { mut gone, unheard } = self.ended();
        for (slot, asked) in unheard {
            if !self.network.ask_to_follow(slot, asked + 1) {
                gone.push(slot);
            }
        }
        self.report(gone);
        self.look_at_ports();
    }

    fn attend(&self) {
        let network = self.network;
        let gsi = &network.gsi;
        if self.next() > clock::now().0 || gsi.at_work.swap(true, Ordering::AcqRel) {
            return;
        }
        let at_work = AtWork(&gsi.at_work);
        if gsi.is_read() {
            gsi.due.store(u64::MAX, Ordering::Relaxed);
            if gsi.lifelines.next() <= clock::now().0 {
                self.report(network.ask_again());
            }
        }
        gsi.has_mads.store(false, Ordering::Release);
        // Before the inbox is emptied: what they have sent is in it.
        let heard = network.host.heard_so_far();
        let waiting = std::mem::take(&mut *gsi.inbox.lock());
        let mut gone = Vec::new();
        let mut mads = waiting.into_iter().filter_map(|waiting| match waiting {
            PendingInput::ForManager(mad) => Some(mad),
            PendingInput::Answer(answer) => {
                Gsi(network).send(&answer);
                None
            }
            PendingInput::Gone(slot) => {
                gone.push(slot);
                None
            }
        });
        let manager = gsi.manager.get();
        if let Some(manager) = manager {
            manager.work(&mut mads);
        }
        mads.for_each(drop);
        if let Some(manager) = manager {
            gone.into_iter().for_each(|slot| manager.gone(slot));
        }
        if !gsi.lifelines.are_missing() {
            network.host.end_heard(heard);
        }
        network.pass_on();
        drop(at_work);
        // More clients have sent since, and `next` left them out. The lock of the clients sees to it that they are found here, or there.
        if network.host.heard_so_far() > heard {
            network.engine.wake_for(clock::now());
        }
    }

    fn next(&self) -> u64 {
        let gsi = &self.network.gsi;
        // A thread that is at work does this itself.
        let ends_heard = || {
            self.network.host.has_heard()
                && !gsi.lifelines.are_missing()
                && !gsi.at_work.load(Ordering::Acquire)
        };
        if gsi.has_mads.load(Ordering::Acquire) || ends_heard() {
            return 0;
        }
        // Without a manager nothing has set them.
        let of_manager =
            if gsi.is_read() { gsi.due.load(Ordering::Acquire).min(gsi.lifelines.next()) } else { u64::MAX };
        of_manager.min(gsi.pass_on.next())
    }
}
