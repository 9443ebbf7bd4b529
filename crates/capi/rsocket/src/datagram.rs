//! Datagram sockets: a UDP socket, and a queue pair for each local address that datagrams leave from.
//!
//! The first datagram to a peer travels over the UDP socket and tells the sender's QPN; the answer tells the peer's. From then
//! on datagrams travel by RDMA. What can't (no device has the address, the datagram is longer than the device's MTU) goes on
//! travelling over UDP.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use std::{io, ptr};

use crate::abi::*;
use crate::address;
use crate::call::{Outcome, Refusal, zero};
use crate::handle::Handle;
use crate::options::{About, Options};
use crate::service;
use crate::settings::settings;
use crate::stream::Readiness;
use crate::verbs::{Id, NO_COMPLETION, QueuePair, Region, Sizes, request};
use crate::waiting::{Set, Waiters, Waker, own_waker, readable, sleep};
use crate::wire::{
    DATAGRAM_HEADER, UDP_HEADER, UdpHeader, UdpOperation, emit_datagram_header, parse_datagram_header,
};

/// What the adapter puts before a received datagram.
const GRH: usize = 40;
/// The longest datagram that travels by RDMA, with its header.
const SLOT: usize = 2048;
/// The longest UDP datagram.
const LONGEST: usize = 65507;
/// Peers whose queue pairs are remembered.
const MOST_PEERS: usize = 4096;
/// How long rclose waits for what is under way.
const FAREWELL: Duration = Duration::from_secs(1);
/// Datagrams that wait for the program, before others are dropped.
const MOST_WAITING: usize = 4096;

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    inner: Mutex<Inner>,
    nonblocking: AtomicBool,
    me: Weak<Datagram>,
    set: Set,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) domain: c_int,
    pub(crate) options: Options,
    ports: HashMap<IpAddr, Option<Port>>,
    peers: HashMap<Peer, u32>,
    connected: Option<SocketAddr>,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    udp: OwnedFd,
    watched: bool,
    waiters: Waiters,
    changes: u64,
    closed: bool,
}

/// A queue pair at a local address. Its fields go in this order.
#[derive(Debug)]
struct Port {
    handles: HashMap<IpAddr, Handle>,
    qp: QueuePair,
    received: Region,
    sent: Region,
    free: Vec<u32>,
    mtu: usize,
    id: Id,
}

/// The `wr_id` of a send is its slot; of a receive, its slot and this.
const RECEIVE: u64 = 1 << 32;

impl Port {
    fn new(address: IpAddr, options: &Options) -> Outcome<Self> {
        let id = Id::new(RDMA_PS_UDP)?;
        let mut name = address::of_rust(SocketAddr::new(address, 0));
        // SAFETY: a live id, an address.
        zero(unsafe { rdma_bind_addr(id.raw(), (&raw mut name).cast()) }, "rdma_bind_addr")?;
        let choices = &options.choices;
        let sizes =
            Sizes { send: choices.send_queue.into(), receive: choices.receive_queue.into(), inline: 0 };
        let qp = QueuePair::new(&id, IBV_QPT_UD, sizes)?;
        let sizes = qp.sizes();
        let slots = |count: u32, length: usize| count as usize * length;
        let received = Region::new(id.pd(), slots(sizes.receive, GRH + SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let sent = Region::new(id.pd(), slots(sizes.send, SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let mtu = crate::handle::mtu(&id)?;
        let new =
            Self { handles: HashMap::new(), qp, received, sent, free: (0..sizes.send).collect(), mtu, id };
        for slot in 0..sizes.receive {
            new.post_receive(slot)?;
        }
        Ok(new)
    }

    fn post_receive(&self, slot: u32) -> Outcome<()> {
        let mut list = [self.received.entry(slot as usize * (GRH + SLOT), GRH + SLOT)];
        self.qp.post_receive(RECEIVE | u64::from(slot), &mut list)
    }

    /// What has arrived goes to `arrived`; whether something has completed.
    fn progress(&mut self, arrived: &mut VecDeque<(SocketAddr, Vec<u8>)>) -> bool {
        self.qp.take_events();
        let mut any = false;
        let mut room = [NO_COMPLETION; 16];
        loop {
            let Ok(found) = self.qp.poll(&mut room).map(<[ibv_wc]>::len) else { return any };
            for completion in &room[..found] {
                if completion.wr_id & RECEIVE == 0 {
                    self.free.push(completion.wr_id as u32);
                } else if completion.status == IBV_WC_SUCCESS {
                    let slot = completion.wr_id as u32;
                    if let Some(datagram) = self.read(slot, completion.byte_len as usize)
                        && arrived.len() < MOST_WAITING
                    {
                        arrived.push_back(datagram);
                    }
                    // A receive that can't be posted is one less.
                    let _ = self.post_receive(slot);
                }
            }
            any |= found > 0;
            if found < room.len() {
                return any;
            }
        }
    }

    fn read(&self, slot: u32, length: usize) -> Option<(SocketAddr, Vec<u8>)> {
        let length = length.min(GRH + SLOT).checked_sub(GRH)?;
        let mut bytes = vec![0; length];
        // SAFETY: a vector of this length.
        unsafe { self.received.get(slot as usize * (GRH + SLOT) + GRH, bytes.as_mut_ptr(), length) };
        let (source, header) = parse_datagram_header(&bytes)?;
        bytes.drain(..header);
        Some((source, bytes))
    }

    /// Sends a datagram, if there is a free slot; whether there was.
    fn send(&mut self, peer: IpAddr, qpn: u32, datagram: &[u8]) -> Outcome<bool> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let offset = slot as usize * SLOT;
        let handle = match self.handles.get(&peer) {
            Some(handle) => handle,
            None => {
                let handle = Handle::new(&self.id, peer);
                let handle = handle.inspect_err(|_| self.free.push(slot))?;
                self.handles.entry(peer).or_insert(handle)
            }
        };
        // SAFETY: readable bytes; a slot is as long as the longest datagram that comes here.
        unsafe { self.sent.put(offset, datagram.as_ptr(), datagram.len().min(SLOT)) };
        let mut list = [self.sent.entry(offset, datagram.len())];
        let mut send = request(slot.into(), IBV_WR_SEND);
        (send.sg_list, send.num_sge) = (list.as_mut_ptr(), 1);
        send.wr = ibv_send_wr_wr {
            ud: ibv_send_wr_ud { ah: handle.raw(), remote_qpn: qpn, remote_qkey: RDMA_UDP_QKEY },
        };
        self.qp.post_send(&mut send).inspect_err(|_| self.free.push(slot))?;
        Ok(true)
    }
}

impl Datagram {
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        // Without a device the caller is better off with an ordinary socket, and is told so.
        drop(Id::new(RDMA_PS_UDP)?);
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed.
        let udp = unsafe { libc::socket(domain, kind, 0) };
        if udp < 0 {
            return Err(Refusal::last("no UDP socket"));
        }
        // SAFETY: a new descriptor.
        let udp = unsafe { OwnedFd::from_raw_fd(udp) };
        let set = Set::new()?;
        set.add(udp.as_raw_fd(), 0)?;
        let inner = Inner {
            domain,
            options: Options::new(),
            ports: HashMap::new(),
            peers: HashMap::new(),
            connected: None,
            arrived: VecDeque::new(),
            udp,
            watched: false,
            waiters: Waiters::default(),
            changes: 0,
            closed: false,
        };
        Ok(Arc::new_cyclic(|me| Self {
            inner: Mutex::new(inner),
            nonblocking: AtomicBool::new(nonblocking),
            me: me.clone(),
            set,
        }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.set.fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> Outcome<MutexGuard<'_, Inner>> {
        self.inner
            .lock()
            .map_err(|_| Refusal::new(libc::EIO, "an earlier call has failed within; close the socket"))
    }

    pub(crate) fn bind(&self, name: libc::sockaddr_storage) -> Outcome<()> {
        let mut inner = self.lock()?;
        // SAFETY: an address of this length.
        let bound =
            unsafe { libc::bind(inner.udp.as_raw_fd(), (&raw const name).cast(), address::c_length(&name)) };
        zero(bound, "bind")?;
        self.watch(&mut inner);
        Ok(())
    }

    /// Has the service thread answer peers from now on.
    fn watch(&self, inner: &mut Inner) {
        if !std::mem::replace(&mut inner.watched, true)
            && let Some(me) = self.me.upgrade()
        {
            service::watch(&me, inner.udp.as_raw_fd());
        }
    }

    pub(crate) fn connect(&self, name: libc::sockaddr_storage) -> Outcome<()> {
        let mut inner = self.lock()?;
        if c_int::from(name.ss_family) == libc::AF_UNSPEC {
            inner.connected = None;
            return Ok(());
        }
        let peer = address::to_rust(&name).ok_or_else(|| {
            Refusal::new(libc::EAFNOSUPPORT, "datagram sockets have IPv4 and IPv6 addresses")
        })?;
        inner.ensure_bound()?;
        self.watch(&mut inner);
        inner.connected = Some(peer);
        inner.arrived.retain(|(from, _)| same_host(*from, peer));
        Ok(())
    }

    fn wait<T>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut Inner) -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        let mut inner = self.lock()?;
        loop {
            let polling = Instant::now() + settings().polling;
            loop {
                inner.progress();
                if inner.closed {
                    return Err(Refusal::plain(libc::EBADF));
                }
                if let Some(answer) = ready(&mut inner) {
                    return answer;
                }
                if nonblocking {
                    return Err(Refusal::would_block());
                }
                if Instant::now() >= polling {
                    break;
                }
                std::hint::spin_loop();
            }
            inner.progress_armed();
            if let Some(answer) = ready(&mut inner) {
                return answer;
            }
            let waker = own_waker()?;
            waker.clear();
            inner.waiters.add(&waker);
            drop(inner);
            let slept = sleep(&mut [readable(waker.fd()), readable(self.fd())], until);
            inner = self.lock()?;
            inner.waiters.remove(&waker);
            match slept {
                Ok(0) => return Err(Refusal::would_block()),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a datagram of `pieces`, to the connected peer if no other is named.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn send(
        &self,
        pieces: &[libc::iovec],
        flags: c_int,
        to: Option<libc::sockaddr_storage>,
    ) -> Outcome<usize> {
        let nonblocking = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let (to, until) = {
            let mut inner = self.lock()?;
            let to = match to {
                Some(name) => address::to_rust(&name).ok_or_else(|| Refusal::plain(libc::EAFNOSUPPORT))?,
                None => inner.connected.ok_or_else(|| Refusal::plain(libc::EDESTADDRREQ))?,
            };
            inner.ensure_bound()?;
            self.watch(&mut inner);
            (to, inner.options.send_deadline())
        };
        let mut data = Vec::new();
        for piece in pieces {
            // SAFETY: the caller's promise.
            data.extend_from_slice(unsafe { slice(piece) });
        }
        if data.len() > LONGEST - UDP_HEADER {
            return Err(Refusal::plain(libc::EMSGSIZE));
        }
        self.wait(nonblocking, until, |inner| match inner.send(to, &data, &self.set) {
            Ok(true) => Some(Ok(data.len())),
            Ok(false) => None,
            Err(refusal) => Some(Err(refusal)),
        })
    }

    /// Receives a datagram into `pieces`: its length there, whether it was longer, and who has sent it.
    ///
    /// # Safety
    /// They are writable.
    pub(crate) unsafe fn receive(
        &self,
        pieces: &[libc::iovec],
        flags: c_int,
    ) -> Outcome<(usize, bool, libc::sockaddr_storage)> {
        let nonblocking = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let (until, domain) = {
            let inner = self.lock()?;
            (inner.options.receive_deadline(), inner.domain)
        };
        let (mut from, bytes) = self.wait(nonblocking, until, |inner| {
            if flags & libc::MSG_PEEK != 0 {
                return inner.arrived.front().cloned().map(Ok);
            }
            inner.arrived.pop_front().map(Ok)
        })?;
        if let (libc::AF_INET6, SocketAddr::V4(v4)) = (domain, from) {
            from = SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port());
        }
        let mut left = &bytes[..];
        for piece in pieces {
            let now = left.len().min(piece.iov_len);
            // SAFETY: the caller's promise.
            unsafe { ptr::copy_nonoverlapping(left.as_ptr(), piece.iov_base.cast(), now) };
            left = &left[now..];
        }
        let whole = if flags & libc::MSG_TRUNC != 0 { bytes.len() } else { bytes.len() - left.len() };
        Ok((whole, !left.is_empty(), address::of_rust(from)))
    }

    pub(crate) fn close(&self) {
        let until = Instant::now() + FAREWELL;
        // What is under way leaves. What doesn't in time is lost, as datagrams may be.
        let _ = self.wait(false, Some(until), |inner| inner.is_idle().then_some(Ok(())));
        let Ok(mut inner) = self.lock() else { return };
        inner.closed = true;
        let fd = inner.udp.as_raw_fd();
        inner.changed();
        drop(inner);
        service::forget(fd);
        self.set.remove(fd);
    }

    pub(crate) fn readiness(&self, events: libc::c_short) -> Readiness {
        match self.lock() {
            Ok(mut inner) => {
                inner.progress();
                (inner.ready_for(events), inner.changes)
            }
            Err(_) => (libc::POLLERR, 0),
        }
    }

    pub(crate) fn readiness_or_wake(&self, events: libc::c_short, waker: &Arc<Waker>) -> Readiness {
        match self.lock() {
            Ok(mut inner) => {
                inner.progress_armed();
                inner.waiters.add(waker);
                (inner.ready_for(events), inner.changes)
            }
            Err(_) => (libc::POLLERR, 0),
        }
    }

    pub(crate) fn dont_wake(&self, waker: &Arc<Waker>) {
        if let Ok(mut inner) = self.lock() {
            inner.waiters.remove(waker);
        }
    }

    pub(crate) fn local_name(&self) -> Outcome<libc::sockaddr_storage> {
        Ok(address::of_rust(self.lock()?.local()?))
    }

    pub(crate) fn peer_name(&self) -> Outcome<libc::sockaddr_storage> {
        let connected = self.lock()?.connected;
        connected.map(address::of_rust).ok_or_else(|| Refusal::plain(libc::ENOTCONN))
    }
}

impl service::Attended for Datagram {
    fn attend(self: Arc<Self>) -> service::Next {
        match self.lock() {
            Ok(mut inner) if !inner.closed => {
                inner.take_udp(&self.set);
                service::Next::EVENT
            }
            _ => service::Next::NEVER,
        }
    }
}

/// What tells a peer from others.
type Peer = (IpAddr, u16);

fn peer_of(address: SocketAddr) -> Peer {
    (address.ip().to_canonical(), address.port())
}

/// Whether a datagram from `from` comes from the connected peer.
fn same_host(from: SocketAddr, peer: SocketAddr) -> bool {
    peer_of(from) == peer_of(peer)
}

/// # Safety
/// The piece is readable.
unsafe fn slice(piece: &libc::iovec) -> &[u8] {
    if piece.iov_len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
}

impl Inner {
    fn changed(&mut self) {
        self.changes += 1;
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

    fn local(&self) -> Outcome<SocketAddr> {
        name_of(self.udp.as_raw_fd())
    }

    /// Gives the UDP socket a port if it has none.
    fn ensure_bound(&mut self) -> Outcome<()> {
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
            return Err(Refusal::last("no UDP socket"));
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
    fn port(&mut self, source: IpAddr, set: &Set) -> Option<&mut Port> {
        // The loopback addresses are no device's.
        if source.is_loopback() {
            return None;
        }
        let options = &self.options;
        let port = self.ports.entry(source).or_insert_with(|| {
            let port = Port::new(source, options)
                .inspect_err(|refusal| crate::log::refused("rsendto", refusal))
                .ok()?;
            set.add(port.qp.fd(), 0).ok()?;
            Some(port)
        });
        port.as_mut()
    }

    /// Sends a datagram; whether there was room.
    fn send(&mut self, to: SocketAddr, data: &[u8], set: &Set) -> Outcome<bool> {
        let source = self.source_for(to)?;
        let qpn = self.peers.get(&peer_of(to)).copied();
        let fits = |port: &Port| data.len() + DATAGRAM_HEADER <= port.mtu.min(SLOT);
        let Some(port) = self.port(source.ip(), set) else {
            return self.send_udp(UdpOperation::Data, 0, source.ip(), to, data);
        };
        if let Some(qpn) = qpn.filter(|_| fits(port)) {
            let (header, length) = emit_datagram_header(source);
            let datagram = [&header[..length], data].concat();
            match port.send(to.ip().to_canonical(), qpn, &datagram) {
                Ok(sent) => return Ok(sent),
                // The peer can still be reached over UDP.
                Err(refusal) => crate::log::refused("rsendto", &refusal),
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
    fn take_udp(&mut self, set: &Set) {
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
                self.peers.insert(peer_of(from), header.qpn);
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
                }
            }
            any = true;
        }
        if any {
            self.changed();
        }
    }

    fn progress(&mut self) {
        let mut changed = false;
        let before = self.arrived.len();
        for port in self.ports.values_mut().flatten() {
            changed |= port.progress(&mut self.arrived);
        }
        if let Some(peer) = self.connected {
            let mut at = 0;
            self.arrived.retain(|(from, _)| {
                at += 1;
                at <= before || same_host(*from, peer)
            });
        }
        if changed {
            self.changed();
        }
    }

    fn is_idle(&self) -> bool {
        self.ports.values().flatten().all(|port| port.free.len() == port.qp.sizes().send as usize)
    }

    /// Deals with what has happened; what happens from now on is told by the set.
    fn progress_armed(&mut self) {
        loop {
            let mut failed = false;
            for port in self.ports.values_mut().flatten() {
                failed |= port.qp.arm().is_err();
            }
            self.progress();
            // Else dealing with it has taken a notification.
            if failed || self.ports.values().flatten().all(|port| port.qp.is_armed()) {
                return;
            }
        }
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

fn name_of(fd: RawFd) -> Outcome<SocketAddr> {
    let mut name = address::nothing(0);
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: a place for an address of this length.
    zero(unsafe { libc::getsockname(fd, (&raw mut name).cast(), &mut length) }, "getsockname")?;
    address::to_rust(&name).ok_or_else(|| Refusal::plain(libc::EAFNOSUPPORT))
}
