//! One local address: the 64 sockets that receive for it, unless another user has them, and the sockets that send from it.

use super::receive::{RecvOutcome, SocketReader, receiving_socket};
use super::returned::Heard;
use super::{Stats, multicast};
use ferroce_netdev as net;
use ferroce_os::clock;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd, InetAddress};
use ferroce_types::{Datagram, GROUP_SIZE, HostAddr, Instant, Unreachable, is_adapter_port, steering_of};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{ICRC_LEN, ROCE_V2_PORT};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Hop limit of packets whose address vector has none.
pub(super) const DEFAULT_TTL: u8 = 64;

/// Of the kernel's in6.h.
const IPV6_AUTOFLOWLABEL: i32 = 70;
/// How many sockets are made until one has a port that adapters don't send from.
const PORTS_TRIED: usize = 16;
/// Bytes of ICMP messages that a sending socket keeps; the kernel doubles it.
const RETURNED: i32 = 4096;
/// Accepts no datagram. ICMP messages don't pass this filter.
const NOTHING: [libc::sock_filter; 1] =
    [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
/// Place of the sender to multicast groups, behind those of the steering values.
const TO_GROUPS: usize = GROUP_SIZE;

/// A local address with its sockets.
pub struct Endpoint {
    address: HostAddr,
    /// Dups of the host's sockets, kept for life: closing the last dup of one would reorder the group. None yet, where
    /// another user has them.
    group: OnceLock<Arc<[EngineFd; GROUP_SIZE]>>,
    readers: Box<[Mutex<class::SocketReader, Option<SocketReader>>; GROUP_SIZE]>,
    /// The sockets are left to other processes.
    is_away: AtomicBool,
    senders: Box<[OnceLock<SourceSocket>; GROUP_SIZE + 1]>,
    /// The ICMP messages for packets that were sent from here.
    heard: Mutex<class::HeardOfPackets, Heard>,
    /// UDP_SEGMENT works on this address's device, as far as is known.
    segmentation: AtomicBool,
    /// Flow labels can be sent from here, as far as is known.
    labels: AtomicBool,
    /// 0: not known yet.
    receive_buffer: AtomicU32,
    stats: Stats,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

struct SourceSocket {
    socket: EngineFd,
    port: u16,
    /// TOS and TTL of its packets, unless a message sets others.
    tos: u8,
    ttl: u8,
}

/// A path to a peer: where packets to one of its QPs go, from where, and how. Cheap to clone; keep one per connected
/// QP or address handle.
#[derive(Clone)]
pub struct Dest {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) peer: HostAddr,
    pub(super) to: InetAddress,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// IPv6.
    pub(super) flow_label: u32,
    /// Index into the pool of senders.
    pub(super) sender: u8,
    /// TOS or TTL differ from the sender's, and each message sets them.
    pub(super) marked: (bool, bool),
    pub(super) flow: Flow,
}

impl std::fmt::Debug for Dest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {} (tos {:#x}, ttl {})", self.endpoint.address, self.peer, self.tos, self.ttl)
    }
}

impl Dest {
    /// The local end.
    #[must_use]
    pub const fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The peer's address.
    #[must_use]
    pub const fn peer(&self) -> HostAddr {
        self.peer
    }

    /// UDP source port of the packets.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        self.endpoint.senders[usize::from(self.sender)].get().map_or(0, |s| s.port)
    }

    /// TOS or traffic class of the packets.
    #[must_use]
    pub const fn tos(&self) -> u8 {
        self.tos
    }

    /// TTL or hop limit of the packets.
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// IPv6 flow label of the packets.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        if self.endpoint.labels() { self.flow_label } else { 0 }
    }

    /// The same path for packets that a network which is filling up shall mark: ECT(0) (RFC 3168).
    pub fn ecn_capable(&self) -> Self {
        let tos = self.tos & !3 | 2;
        let (its_tos, _) = self.endpoint.sender_defaults(self.sender);
        Self { tos, marked: (tos != its_tos, self.marked.1), ..self.clone() }
    }

    /// The same path with an IPv6 flow label (20 bits; 0 is none).
    #[must_use]
    pub fn labelled(self, flow_label: u32) -> Self {
        Self { flow_label, ..self }
    }

    /// The packets need no control message: TOS, TTL and flow label are the sender's.
    pub(super) fn is_plain(&self) -> bool {
        self.marked == (false, false) && self.flow_label == 0
    }

    /// Writes the ICRC at the end of a packet, for the IPv4 identification that it will have.
    pub fn write_icrc(&self, packet: &mut [u8], id: u16) {
        let len = packet.len();
        if let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
            let mut crc = self.flow.start(len, id);
            crc.bth(covered);
            *icrc = crc.finish();
        }
    }

    /// The last ICMP message, `within` this time, for packets to the peer's address. It is a hint only: any host can send one.
    #[must_use]
    pub fn unreachable(&self, within: Duration) -> Option<Unreachable> {
        self.endpoint.take_returned(self.sender);
        self.endpoint.heard.lock().of(self.peer.ip(), within)
    }

    /// Whether packets to both may share a train.
    pub(super) fn same_train(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.endpoint, &other.endpoint)
            && (self.sender, self.tos, self.ttl, self.flow_label, self.peer)
                == (other.sender, other.tos, other.ttl, other.flow_label, other.peer)
    }
}

impl Endpoint {
    /// Takes the group's sockets, in the group's order: [`receiving_socket`](super::receiving_socket)s that are bound to the RoCE
    /// port of `address` and steer packets by [`steering_of`]. `None`: nothing is received until [`Endpoint::receive_by`].
    #[must_use]
    pub fn new(address: HostAddr, group: Option<Arc<[EngineFd; GROUP_SIZE]>>) -> Self {
        let this = Self {
            address,
            group: OnceLock::new(),
            readers: Box::new([const { Mutex::new(None) }; GROUP_SIZE]),
            is_away: AtomicBool::new(false),
            senders: Box::new([const { OnceLock::new() }; GROUP_SIZE + 1]),
            heard: Mutex::new(Heard::default()),
            segmentation: AtomicBool::new(true),
            labels: AtomicBool::new(true),
            receive_buffer: AtomicU32::new(0),
            stats: Stats::default(),
        };
        if let Some(group) = group {
            this.receive_by(group);
        }
        this
    }

    /// From now on the endpoint receives by these sockets, unless it has others.
    pub fn receive_by(&self, group: Arc<[EngineFd; GROUP_SIZE]>) {
        self.note_buffer(group[0].raw());
        // The others are as good.
        drop(self.group.set(group));
    }

    fn note_buffer(&self, fd: RawFd) {
        let size = sys::int_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        self.receive_buffer.store(u32::try_from(size).unwrap_or(0), Ordering::Relaxed);
    }

    /// The local address.
    #[must_use]
    pub const fn address(&self) -> HostAddr {
        self.address
    }

    /// What has been counted.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// `SO_RCVBUF` of each of the sockets, as the kernel accounts it (payload plus its own overhead); where another user has them,
    /// of such a socket of this process.
    #[must_use]
    pub fn receive_buffer(&self) -> u32 {
        if self.receive_buffer.load(Ordering::Relaxed) == 0
            && let Ok(socket) = receiving_socket(self.address.is_ipv6())
        {
            self.note_buffer(socket.raw());
        }
        self.receive_buffer.load(Ordering::Relaxed)
    }

    /// The socket that receives for a steering value, for `epoll`; `None` where another user has it. It is shared with other
    /// processes: never connect, shut down or reconfigure it.
    #[must_use]
    pub fn fd(&self, steering: u8) -> Option<RawFd> {
        Some(self.group.get()?[usize::from(steering) % GROUP_SIZE].raw())
    }

    /// Takes what has arrived at one socket, one non-blocking `recvmmsg`. `f` is called once per batch of at most 64
    /// packets, in the order of arrival, and must not call `recv` of the same socket. `now` is the present, at most half
    /// a millisecond ago.
    ///
    /// Packets may be for QPs of other processes that share the socket.
    ///
    /// # Errors
    /// That of `recvmmsg(2)`; nothing there isn't one. In a child of `fork`: EBADF.
    pub fn recv(
        &self,
        steering: u8,
        now: Instant,
        f: &mut dyn FnMut(&[Datagram<'_>]),
    ) -> io::Result<RecvOutcome> {
        let index = usize::from(steering) % GROUP_SIZE;
        let Some(group) = self.group.get() else { return Ok(RecvOutcome::Packets { count: 0, more: false }) };
        let Some(mut reader) = self.readers[index].try_lock() else { return Ok(RecvOutcome::Busy) };
        if self.is_away.load(Ordering::Relaxed) {
            return Ok(RecvOutcome::Busy);
        }
        // Not from a socket of the program's that has the number now.
        let fd = group[index].checked_lately(now);
        let reader = reader.get_or_insert_with(SocketReader::new);
        reader.receive(fd, self.address, &self.stats, f)
    }

    /// Leaves the sockets to other processes: from its return on, [`Endpoint::recv`] takes nothing from them, and all calls of its
    /// callback have returned. Sleepers are woken for packets that they don't get, so this is for a short time only.
    pub fn leave(&self) {
        self.is_away.store(true, Ordering::Relaxed);
        // A `recv` in progress may have missed the store: wait for it. Later ones see it.
        self.readers.iter().for_each(|reader| drop(reader.lock()));
    }

    /// Undoes [`Endpoint::leave`].
    pub fn come_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// A path to `peer`, perhaps a group, for packets to its QP `qpn`, with this TOS (traffic class) and TTL (hop limit;
    /// 0 is 64, or 1 to a group: no router takes it further).
    ///
    /// # Errors
    /// EAFNOSUPPORT when one address is IPv4 and the other IPv6, else what kept a sending socket from being made.
    pub fn dest(self: &Arc<Self>, peer: HostAddr, tos: u8, ttl: u8, qpn: u32) -> io::Result<Dest> {
        let ttl = match ttl {
            0 if peer.is_group() => 1,
            0 => DEFAULT_TTL,
            given => given,
        };
        let (sender, port) = if peer.is_group() {
            self.group_sender(peer, tos, ttl)?
        } else {
            self.sender(steering_of(qpn), tos, ttl)?
        };
        let flow = match (self.address.ip(), peer.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Flow::v4(from, to, port, ROCE_V2_PORT),
            (IpAddr::V6(from), IpAddr::V6(to)) => Flow::v6(from, to, port, ROCE_V2_PORT),
            _ => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        };
        let endpoint = Arc::clone(self);
        let (its_tos, its_ttl) = self.sender_defaults(sender);
        let marked = (tos != its_tos, ttl != its_ttl);
        Ok(Dest {
            marked,
            endpoint,
            peer,
            to: InetAddress::new(peer.with_port(ROCE_V2_PORT)),
            tos,
            ttl,
            flow_label: 0,
            sender,
            flow,
        })
    }

    /// Largest IP packet that is sent to `peer`: the interface's MTU, or less where the route has one of its own.
    ///
    /// # Errors
    /// No route, or it can't be asked for.
    pub fn path_mtu(&self, peer: HostAddr) -> io::Result<u32> {
        let way = net::way(self.address.ip(), peer.ip(), peer.scope_id()).map_err(io::Error::other)?;
        let (ifindex, of_route) = way.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
        let family = if self.address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let mtu = match self.fd(0) {
            Some(fd) => sys::interface_mtu(fd, ifindex)?,
            None => sys::interface_mtu(sys::socket(family, libc::SOCK_DGRAM)?.raw(), ifindex)?,
        };
        Ok(of_route.map_or(mtu, |of_route| of_route.min(mtu)))
    }

    /// False: the kernel has no route to `peer`.
    #[must_use]
    pub fn has_route(&self, peer: HostAddr) -> bool {
        !matches!(net::way(self.address.ip(), peer.ip(), peer.scope_id()), Ok(None))
    }

    /// The socket to send from to QPs with this steering value. GRO on the way merges by addresses and ports, so the
    /// packets of one source port must all steer to one socket of the receiver.
    fn sender(&self, steering: u8, tos: u8, ttl: u8) -> io::Result<(u8, u16)> {
        let own = &self.senders[usize::from(steering) % GROUP_SIZE];
        if own.get().is_none() {
            match self.new_sender_apart(tos, ttl) {
                // Lost a race: the other's is as good.
                Ok(new) => drop(own.set(new)),
                Err(error) => {
                    // Short of descriptors: any sender is right, only slower at the receiver.
                    let other =
                        self.senders.iter().enumerate().find_map(|(i, s)| Some((i as u8, s.get()?.port)));
                    return other.ok_or(error);
                }
            }
        }
        let port = own.get().map_or(0, |s| s.port);
        Ok((steering % GROUP_SIZE as u8, port))
    }

    /// The socket to send to groups from, with the interface that `group` names from here on.
    fn group_sender(&self, group: HostAddr, tos: u8, ttl: u8) -> io::Result<(u8, u16)> {
        let own = &self.senders[TO_GROUPS];
        if own.get().is_none() {
            // Lost a race: the other's is as good.
            drop(own.set(self.new_sender_apart(tos, ttl)?));
        }
        let Some(sender) = own.get() else { return Err(io::Error::from_raw_os_error(libc::EMFILE)) };
        multicast::send_by(sender.socket.raw(), group, sender.ttl)?;
        Ok((TO_GROUPS as u8, sender.port))
    }

    /// A sender's default TOS and TTL: those of packets without a control message.
    pub(super) fn sender_defaults(&self, sender: u8) -> (u8, u8) {
        self.senders
            .get(usize::from(sender))
            .and_then(OnceLock::get)
            .map_or((0, DEFAULT_TTL), |s| (s.tos, s.ttl))
    }

    /// The number of a sending socket, looked at: nothing is sent by a socket of the program's that has the number now.
    /// `now` is the present, at most half a millisecond ago.
    #[inline]
    pub(super) fn sender_fd(&self, sender: u8, now: Instant) -> RawFd {
        self.senders
            .get(usize::from(sender))
            .and_then(OnceLock::get)
            .map_or(-1, |s| s.socket.checked_lately(now))
    }

    /// Reads the ICMP errors for a sender's packets. The kernel returns such an error once from the next send, instead of sending.
    /// False: there was none.
    #[cold]
    pub(super) fn take_returned(&self, sender: u8) -> bool {
        let fd = self.sender_fd(sender, clock::now());
        fd >= 0 && self.heard.lock().take(fd)
    }

    pub(super) fn segmentation(&self) -> bool {
        self.segmentation.load(Ordering::Relaxed)
    }

    pub(super) fn segmentation_failed(&self) {
        if self.segmentation.swap(false, Ordering::Relaxed) {
            tracing::info!(address = %self.address, "no UDP segmentation here: sending packets one by one");
        }
    }

    pub(super) fn labels(&self) -> bool {
        self.labels.load(Ordering::Relaxed)
    }

    /// The kernel refuses labels that aren't leased: before Linux 5.3, or while a process leases one exclusively.
    pub(super) fn labels_refused(&self) {
        if self.labels.swap(false, Ordering::Relaxed) {
            tracing::warn!(address = %self.address, "no flow labels here: the kernel refuses them");
        }
    }

    /// Peers that are Ferroce know by its port that no adapter sends: see [`PacketMeta::of_no_adapter`]. Where the machine has only
    /// other ports (`ip_local_port_range`), or no more descriptors, any one will do.
    ///
    /// [`PacketMeta::of_no_adapter`]: ferroce_types::PacketMeta::of_no_adapter
    fn new_sender_apart(&self, tos: u8, ttl: u8) -> io::Result<SourceSocket> {
        let mut others = Vec::new();
        for _ in 0..PORTS_TRIED {
            match self.new_sender(tos, ttl) {
                Ok(sender) if !is_adapter_port(sender.port) => return Ok(sender),
                // It keeps its port, so that the next one is another.
                Ok(sender) => others.push(sender),
                Err(error) => return others.pop().ok_or(error),
            }
        }
        others.pop().ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// Sets "don't fragment", and ignores ICMP messages about the path's MTU, as adapters do: any host can send one that quotes
    /// port 4791, and it would end all connections to a host. The interface's MTU counts.
    ///
    /// Unconnected: a connected socket's packets would get a changing IPv4 identification, which the ICRC covers.
    fn new_sender(&self, tos: u8, ttl: u8) -> io::Result<SourceSocket> {
        let v6 = self.address.is_ipv6();
        let socket = sys::socket(if v6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_DGRAM)?;
        let fd = socket.raw();
        if v6 {
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1_i32)?;
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_PROBE)?;
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, &i32::from(ttl))?;
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &i32::from(tos))?;
            // Labels are the address vector's: the kernel is to think of none.
            let _ = sys::set_option(fd, libc::IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &0_i32);
        } else {
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_PROBE)?;
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TTL, &i32::from(ttl))?;
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, &i32::from(tos))?;
        }
        sys::large_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        sys::bind(fd, &InetAddress::new(self.address.with_port(0)))?;
        // Only the ICMP errors of sent packets are ever read here: the filter drops datagrams that come to this port, so that they
        // don't take the buffer of the errors.
        let _ = sys::attach_program(fd, libc::SO_ATTACH_FILTER, &NOTHING);
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RETURNED);
        let (level, name) =
            if v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
        let _ = sys::set_option(fd, level, name, &1_i32);
        let mut name = InetAddress::zeroed();
        sys::socket_name(fd, &mut name)?;
        let port = name.socket_addr().map_or(0, |a| a.port());
        Ok(SourceSocket { socket, port, tos, ttl })
    }
}
