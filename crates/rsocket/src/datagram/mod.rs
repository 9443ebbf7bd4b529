//! Datagram sockets: a UDP socket, and a queue pair for each local address that datagrams leave from.
//!
//! The first datagram to a peer travels over the UDP socket with the sender's QPN; the answer has the peer's. From then
//! on datagrams travel by RDMA. What can't (no device has the address, the datagram is longer than the device's MTU) goes on
//! travelling over UDP.

mod port;
mod state;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::core::{Core, SocketState, StateGuard};
use crate::service;
use crate::verbs::ConnectionId;
use ferroce_rsocket_calls::address;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, zero};
use ferroce_rsocket_calls::waiting::Set;
use ferroce_rsocket_protocol::wire::UDP_HEADER;

use state::{DatagramState, LONGEST, same_host};

/// How long rclose waits for what is under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// A datagram socket.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub(crate) core: Core<DatagramState>,
}

impl DatagramSocket {
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        // Without a device the call fails: the caller is better off with an ordinary socket.
        drop(ConnectionId::new(RDMA_PS_UDP)?);
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed.
        let udp = unsafe { libc::socket(domain, kind, 0) };
        if udp < 0 {
            return Err(SocketRefusal::last("no UDP socket"));
        }
        // SAFETY: a new descriptor.
        let udp = unsafe { OwnedFd::from_raw_fd(udp) };
        let set = Set::new()?;
        set.add(udp.as_raw_fd(), 0)?;
        Ok(Arc::new(Self { core: Core::new(set, nonblocking, DatagramState::new(domain, udp))? }))
    }

    pub(crate) fn lock(&self) -> Outcome<StateGuard<'_, DatagramState>> {
        self.core.lock()
    }

    pub(crate) fn bind(self: &Arc<Self>, name: libc::sockaddr_storage) -> Outcome<()> {
        let mut state = self.lock()?;
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(state.udp(), (&raw const name).cast(), address::c_length(&name)) };
        zero(bound, "bind")?;
        self.watch(&mut state);
        Ok(())
    }

    /// Has the service thread answer peers from now on.
    fn watch(self: &Arc<Self>, state: &mut DatagramState) {
        if !std::mem::replace(&mut state.watched, true) {
            service::watch(self, state.udp());
        }
    }

    /// The socket's number shows from now on what the socket is ready for.
    pub(crate) fn show(self: &Arc<Self>) -> Outcome<()> {
        let was_shown = self.lock()?.is_shown();
        self.core.show()?;
        if !was_shown {
            service::watch(self, self.core.set.fd());
        }
        Ok(())
    }

    pub(crate) fn connect(self: &Arc<Self>, name: libc::sockaddr_storage) -> Outcome<()> {
        let mut state = self.lock()?;
        if c_int::from(name.ss_family) == libc::AF_UNSPEC {
            state.connected = None;
            return Ok(());
        }
        let peer = address::to_rust(&name).ok_or_else(|| {
            SocketRefusal::new(libc::EAFNOSUPPORT, "datagram sockets have IPv4 and IPv6 addresses")
        })?;
        state.ensure_bound()?;
        self.watch(&mut state);
        state.connected = Some(peer);
        state.arrived.retain(|(from, _)| same_host(*from, peer));
        Ok(())
    }

    /// As [`Core::wait`], until the socket is closed.
    fn wait<T>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut DatagramState) -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        self.core.wait(nonblocking, until, |state| {
            if state.closed { Some(Err(SocketRefusal::plain(libc::EBADF))) } else { ready(state) }
        })
    }

    /// Sends a datagram of `pieces`, to the connected peer if no other is named.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn send(
        self: &Arc<Self>,
        pieces: &[libc::iovec],
        flags: c_int,
        to: Option<libc::sockaddr_storage>,
    ) -> Outcome<usize> {
        let nonblocking = self.core.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let (to, until) = {
            let mut state = self.lock()?;
            let to = match to {
                Some(name) => {
                    address::to_rust(&name).ok_or_else(|| SocketRefusal::plain(libc::EAFNOSUPPORT))?
                }
                None => state.connected.ok_or_else(|| SocketRefusal::plain(libc::EDESTADDRREQ))?,
            };
            state.ensure_bound()?;
            self.watch(&mut state);
            (to, state.options.send_deadline())
        };
        let mut data = Vec::new();
        for piece in pieces {
            // SAFETY: the caller's promise.
            data.extend_from_slice(unsafe { slice(piece) });
        }
        if data.len() > LONGEST - UDP_HEADER {
            return Err(SocketRefusal::plain(libc::EMSGSIZE));
        }
        self.wait(nonblocking, until, |state| match state.send(to, &data, &self.core.set) {
            Ok(true) => Some(Ok(data.len())),
            Ok(false) => None,
            Err(refusal) => Some(Err(refusal)),
        })
    }

    /// Receives a datagram into `pieces`: its length there, whether it was longer, and its sender.
    ///
    /// # Safety
    /// They are writable.
    pub(crate) unsafe fn receive(
        &self,
        pieces: &[libc::iovec],
        flags: c_int,
    ) -> Outcome<(usize, bool, libc::sockaddr_storage)> {
        let nonblocking = self.core.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let (until, domain) = {
            let state = self.lock()?;
            (state.options.receive_deadline(), state.domain)
        };
        let (mut from, bytes) = self.wait(nonblocking, until, |state| {
            if flags & libc::MSG_PEEK != 0 {
                return state.arrived.front().cloned().map(Ok);
            }
            state.arrived.pop_front().map(Ok)
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
        self.core.hide();
        let until = Instant::now() + FAREWELL;
        // What is under way leaves. What doesn't in time is lost, as datagrams may be.
        let _ = self.wait(false, Some(until), |state| state.is_idle().then_some(Ok(())));
        let Ok(mut state) = self.lock() else { return };
        state.closed = true;
        let fd = state.udp();
        state.changed();
        drop(state);
        service::forget(fd);
        service::forget(self.core.set.fd());
        self.core.set.remove(fd);
    }

    pub(crate) fn local_name(&self) -> Outcome<libc::sockaddr_storage> {
        Ok(address::of_rust(self.lock()?.local()?))
    }

    pub(crate) fn peer_name(&self) -> Outcome<libc::sockaddr_storage> {
        let connected = self.lock()?.connected;
        connected.map(address::of_rust).ok_or_else(|| SocketRefusal::plain(libc::ENOTCONN))
    }
}

impl service::Attendee for DatagramSocket {
    fn attend(self: Arc<Self>) -> service::NextAttendance {
        match self.lock() {
            Ok(mut state) if !state.closed => {
                state.take_udp(&self.core.set);
                state.progress(&self.core.set);
                service::NextAttendance::EVENT
            }
            _ => service::NextAttendance::NEVER,
        }
    }
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
