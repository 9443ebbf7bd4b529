//! The state of a datagram socket: its queue pairs, what it knows of peers, and what has arrived.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::core::SocketState;
use crate::options::{About, SocketOptions};
use ferroce_rsocket_calls::address;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, zero};
use ferroce_rsocket_calls::waiting::{Set, Waiters};
use ferroce_rsocket_protocol::wire::{DATAGRAM_HEADER, UdpHeader, UdpOperation, emit_datagram_header};

use super::port::{Arrived, MOST_WAITING, SLOT, UdPort};

/// The longest UDP datagram.
pub(super) const LONGEST: usize = 65507;
/// Peers whose queue pairs are remembered.
const MOST_PEERS: usize = 4096;
/// How long a silent peer's queue pair is used: another socket may have the peer's port by now.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct DatagramState {
    pub(crate) domain: c_int,
    pub(crate) options: SocketOptions,
    ports: BTreeMap<IpAddr, Option<UdPort>>,
    peers: BTreeMap<Peer, KnownPeer>,
    pub(super) connected: Option<SocketAddr>,
    pub(super) arrived: VecDeque<Arrived>,
    udp: OwnedFd,
    pub(super) watched: bool,
    waiters: Waiters,
    pub(super) closed: bool,
}

/// What identifies a peer.
type Peer = (IpAddr, u16);

/// What is known of a peer.
#[derive(Debug)]
struct KnownPeer {
    qpn: u32,
    heard: Instant,
}

fn peer_of(address: SocketAddr) -> Peer {
    (address.ip().to_canonical(), address.port())
}

/// Whether a datagram from `from` comes from the connected peer.
pub(super) fn same_host(from: SocketAddr, peer: SocketAddr) -> bool {
    peer_of(from) == peer_of(peer)
}

impl SocketState for DatagramState {
    fn progress(&mut self, _set: &Set) {
        let mut changed = false;
        let before = self.arrived.len();
        for port in self.ports.values_mut().flatten() {
            changed |= port.progress(&mut self.arrived);
        }
        if self.arrived.len() > before {
            let now = Instant::now();
            for (from, _) in self.arrived.range(before..) {
                if let Some(known) = self.peers.get_mut(&peer_of(*from)) {
                    known.heard = now;
                }
            }
        }
        if let Some(peer) = self.connected {
            let mut at = 0;
            self.arrived.retain(|(from, _)| {
                at += 1;
                at <= before || same_host(*from, peer)
            });
        }
        if self.arrived.len() > before {
            self.waiters.arrived();
        }
        if changed {
            self.changed();
        }
    }

    fn arm(&mut self) -> bool {
        let mut told = true;
        for port in self.ports.values_mut().flatten() {
            told &= port.qp.arm().is_ok();
        }
        told
    }

    fn is_armed(&self) -> bool {
        self.ports.values().flatten().all(|port| port.qp.is_armed())
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn ended(&self) -> libc::c_short {
        0
    }

    fn ready_for(&self, events: libc::c_short) -> libc::c_short {
        if self.closed {
            return libc::POLLNVAL;
        }
        let mut ready = 0;
        if !self.arrived.is_empty() {
            ready |= events & (libc::POLLIN | libc::POLLRDNORM);
        }
        if self.ports.values().flatten().all(|port| !port.free.is_empty()) {
            ready |= events & (libc::POLLOUT | libc::POLLWRNORM);
        }
        ready
    }
}

impl DatagramState {
    pub(super) fn new(domain: c_int, udp: OwnedFd) -> Self {
        Self {
            domain,
            options: SocketOptions::new(),
            ports: BTreeMap::new(),
            peers: BTreeMap::new(),
            connected: None,
            arrived: VecDeque::new(),
            udp,
            watched: false,
            waiters: Waiters::default(),
            closed: false,
        }
    }

    pub(super) fn changed(&mut self) {
        self.waiters.wake();
    }

    /// The UDP socket, for options that are its own.
    pub(crate) fn udp(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    /// What options depend on.
    pub(crate) fn about(&self) -> About {
        About {
            kind: libc::SOCK_DGRAM,
            domain: self.domain,
            connected: !self.ports.is_empty(),
            listening: false,
            segment: None,
        }
    }

    pub(super) fn local(&self) -> Outcome<SocketAddr> {
        name_of(self.udp.as_raw_fd())
    }

    /// Gives the UDP socket a port if it has none.
    pub(super) fn ensure_bound(&mut self) -> Outcome<()> {
        if self.local()?.port() != 0 {
            return Ok(());
        }
        let name = address::of_rust(address::unspecified(self.domain));
        // SAFETY: an address of this length.
        let bound =
            unsafe { libc::bind(self.udp.as_raw_fd(), (&raw const name).cast(), address::c_length(&name)) };
        zero(bound, "bind")
    }

    /// The address that datagrams to `peer` leave from.
    fn source_for(&self, peer: SocketAddr) -> Outcome<SocketAddr> {
        let local = self.local()?;
        if !local.ip().is_unspecified() {
            return Ok(SocketAddr::new(local.ip().to_canonical(), local.port()));
        }
        // SAFETY: no memory is passed.
        let probe = unsafe { libc::socket(self.domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if probe < 0 {
            return Err(SocketRefusal::last("no UDP socket"));
        }
        // SAFETY: a new descriptor.
        let probe = unsafe { OwnedFd::from_raw_fd(probe) };
        let name = address::of_rust(peer);
        // Connecting a UDP socket sends nothing; it chooses the source.
        // SAFETY: an address of this length.
        let connected =
            unsafe { libc::connect(probe.as_raw_fd(), (&raw const name).cast(), address::c_length(&name)) };
        zero(connected, "no route")?;
        Ok(SocketAddr::new(name_of(probe.as_raw_fd())?.ip().to_canonical(), local.port()))
    }

    /// The queue pair at a local address; none if no device has it.
    fn port(&mut self, source: IpAddr, set: &Set) -> Option<&mut UdPort> {
        // Loopback addresses don't belong to a device.
        if source.is_loopback() {
            return None;
        }
        let options = &self.options;
        let port = self.ports.entry(source).or_insert_with(|| {
            let port = UdPort::new(source, options)
                .inspect_err(|refusal| ferroce_rsocket_calls::log::refused("rsendto", &refusal.why))
                .ok()?;
            set.add(port.qp.fd(), 0).ok()?;
            Some(port)
        });
        port.as_mut()
    }

    /// Sends a datagram; whether there was room.
    pub(super) fn send(&mut self, to: SocketAddr, data: &[u8], set: &Set) -> Outcome<bool> {
        let source = self.source_for(to)?;
        let known = self.peers.get(&peer_of(to)).filter(|known| known.heard.elapsed() < FRESH);
        let qpn = known.map(|known| known.qpn);
        let fits = |port: &UdPort| data.len() + DATAGRAM_HEADER <= port.mtu.min(SLOT);
        let Some(port) = self.port(source.ip(), set) else {
            return self.send_udp(UdpOperation::Data, 0, source.ip(), to, data);
        };
        if let Some(qpn) = qpn.filter(|_| fits(port)) {
            let (header, length) = emit_datagram_header(source);
            let datagram = [&header[..length], data].concat();
            match port.send(to.ip().to_canonical(), qpn, &datagram) {
                Ok(sent) => return Ok(sent),
                // The peer can still be reached over UDP.
                Err(refusal) => ferroce_rsocket_calls::log::refused("rsendto", &refusal.why),
            }
        }
        let own = port.qp.number();
        self.send_udp(UdpOperation::Data, own, source.ip(), to, data)
    }

    fn send_udp(
        &self,
        operation: UdpOperation,
        qpn: u32,
        address: IpAddr,
        to: SocketAddr,
        data: &[u8],
    ) -> Outcome<bool> {
        let (header, length) = UdpHeader { operation, qpn, address }.emit();
        let datagram = [&header[..length], data].concat();
        let name = address::of_rust(to);
        // SAFETY: a readable buffer and an address of these lengths.
        let sent = unsafe {
            libc::sendto(
                self.udp.as_raw_fd(),
                datagram.as_ptr().cast(),
                datagram.len(),
                libc::MSG_NOSIGNAL,
                (&raw const name).cast(),
                address::c_length(&name),
            )
        };
        if sent >= 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // What an earlier datagram has met; this one may do better.
            error if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
            error => Err(error.into()),
        }
    }

    /// Deals with what has come over the UDP socket.
    pub(super) fn take_udp(&mut self, set: &Set) {
        let mut bytes = vec![0u8; LONGEST];
        let mut name = address::nothing(0);
        let mut any = false;
        // So that other sockets have their turn.
        for _ in 0..64 {
            let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            // SAFETY: a buffer and a place for an address, of these lengths.
            let got = unsafe {
                libc::recvfrom(
                    self.udp.as_raw_fd(),
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    libc::MSG_DONTWAIT,
                    (&raw mut name).cast(),
                    &mut length,
                )
            };
            let Ok(got) = usize::try_from(got) else { break };
            let Some(from) = address::to_rust(&name) else { continue };
            let Some((header, start)) = UdpHeader::parse(&bytes[..got]) else { continue };
            if header.qpn != 0 && (self.peers.len() < MOST_PEERS || self.peers.contains_key(&peer_of(from))) {
                self.peers.insert(peer_of(from), KnownPeer { qpn: header.qpn, heard: Instant::now() });
            }
            if header.operation == UdpOperation::Data {
                if let Ok(source) = self.source_for(from) {
                    let own = self.port(source.ip(), set).map_or(0, |port| port.qp.number());
                    // An answer that is lost is asked for again by the next datagram.
                    let _ = self.send_udp(UdpOperation::Answer, own, source.ip(), from, &[]);
                }
                if self.arrived.len() < MOST_WAITING
                    && self.connected.is_none_or(|peer| same_host(from, peer))
                {
                    self.arrived.push_back((from, bytes[start..got].to_vec()));
                    self.waiters.arrived();
                }
            }
            any = true;
        }
        if any {
            self.changed();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ports.values().flatten().all(|port| port.free.len() == port.qp.sizes().send as usize)
    }
}

fn name_of(fd: RawFd) -> Outcome<SocketAddr> {
    let mut name = address::nothing(0);
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: a place for an address of this length.
    zero(unsafe { libc::getsockname(fd, (&raw mut name).cast(), &mut length) }, "getsockname")?;
    address::to_rust(&name).ok_or_else(|| SocketRefusal::plain(libc::EAFNOSUPPORT))
}
