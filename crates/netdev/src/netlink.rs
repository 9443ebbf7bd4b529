//! A netlink socket: requests, dumps and the framing of messages and attributes (netlink(7), rtnetlink(7), sock_diag(7)).
//!
//! In here: bytes to messages. Out of here: what a link, an address or a route is.
//! Everything read is checked against its length; a malformed message ends the iteration, it never panics.

use std::io;
use std::os::fd::RawFd;

use ferroce_os::sys::{self, EngineFd, NetlinkAddress};

/// `struct nlmsghdr`: length, type, flags, sequence number, port id.
const HEADER: usize = 16;
/// The kernel packs a dump into datagrams of at most 32 KiB; room for twice that is never too little.
const RECEIVE_BUFFER: usize = 64 << 10;
/// A dump that the kernel marks as interrupted by a change is asked again this often.
const DUMP_ATTEMPTS: usize = 5;
/// The kernel answers within the system call; this bounds the wait should an answer get lost.
const ANSWER_TIMEOUT_S: libc::time_t = 2;

const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// A netlink socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Netlink {
    fd: EngineFd,
    sequence: u32,
}

/// One message: its type and what follows the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetlinkMessage<'a> {
    pub(super) kind: u16,
    pub(super) body: &'a [u8],
    flags: u16,
    sequence: u32,
}

#[cfg(test)]
impl<'a> NetlinkMessage<'a> {
    /// A message for tests of what reads its body.
    pub(super) fn new(kind: u16, body: &'a [u8]) -> Self {
        Self { kind, body, flags: 0, sequence: 0 }
    }
}

impl Netlink {
    /// Opens a socket of the routing family, subscribed to `groups` (a mask of `RTMGRP_*`; 0 for requests only).
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        Self::open_family(libc::NETLINK_ROUTE, groups)
    }

    /// Opens a socket that asks about sockets (sock_diag(7)).
    pub(super) fn open_for_sockets() -> io::Result<Self> {
        Self::open_family(libc::NETLINK_SOCK_DIAG, 0)
    }

    fn open_family(family: i32, groups: u32) -> io::Result<Self> {
        let fd = sys::netlink_socket(family)?;
        sys::bind(fd.raw(), &NetlinkAddress::new(groups))?;
        let timeout = libc::timeval { tv_sec: ANSWER_TIMEOUT_S, tv_usec: 0 };
        sys::set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// The socket, for epoll.
    pub(super) fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// Asks for everything of one kind and maps each message of the answer. A dump during which the tables
    /// changed is repeated, so that the result is a consistent one.
    pub(super) fn dump<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut parse: impl FnMut(NetlinkMessage<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let consistent = self.exchange(kind, libc::NLM_F_DUMP as u16, body, |message| {
                found.extend(parse(message));
            })?;
            if consistent {
                return Ok(found);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the tables changed during every attempt to read them",
        ))
    }

    /// Asks for one thing. `Ok(None)` when the kernel acknowledges without an answer or `parse` refuses it.
    pub(super) fn get<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut parse: impl FnMut(NetlinkMessage<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        self.exchange(kind, libc::NLM_F_ACK as u16, body, |message| found = parse(message))?;
        Ok(found)
    }

    /// Sends one request and gives each message of the answer to `take`; true if no message was marked as
    /// interrupted.
    fn exchange(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut take: impl FnMut(NetlinkMessage<'_>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&0u32.to_ne_bytes());
        request.extend_from_slice(body);
        self.send(&request)?;

        let mut buffer = vec![0u8; RECEIVE_BUFFER];
        let mut consistent = true;
        loop {
            let length = self.receive(&mut buffer, 0)?;
            for message in messages(&buffer[..length]) {
                if message.sequence != self.sequence {
                    continue;
                }
                consistent &= message.flags & libc::NLM_F_DUMP_INTR as u16 == 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(consistent),
                    libc::NLMSG_ERROR => {
                        let code = message.body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                        if code == 0 {
                            return Ok(consistent);
                        }
                        return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                    }
                    libc::NLMSG_NOOP => {}
                    _ => take(message),
                }
            }
        }
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        loop {
            // To the kernel, which takes it within the call.
            match sys::send_to(self.fd.checked(), request, &NetlinkAddress::new(0)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives one datagram that the kernel sent, with `flags` of recv(2); bytes received.
    pub(super) fn receive(&self, buffer: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        loop {
            let mut from = NetlinkAddress::new(0);
            let flags = flags | libc::MSG_TRUNC;
            let length = match sys::receive_from(self.fd.checked(), buffer, flags, &mut from) {
                Ok(length) => length,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock if flags & libc::MSG_DONTWAIT == 0 => {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer"));
                    }
                    _ => return Err(error),
                },
            };
            // Other processes may address a netlink socket too.
            if !from.is_kernel() {
                continue;
            }
            if length > buffer.len() {
                return Err(io::Error::other("a netlink message is longer than the buffer"));
            }
            return Ok(length);
        }
    }
}

/// The messages of a datagram.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(datagram, 0)? as usize;
        let body = datagram.get(HEADER..length)?;
        let message = NetlinkMessage {
            kind: u16_at(datagram, 4)?,
            flags: u16_at(datagram, 6)?,
            sequence: u32_at(datagram, 8)?,
            body,
        };
        datagram = datagram.get(align(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`: type without its flag bits, and payload.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & !((libc::NLA_F_NESTED | libc::NLA_F_NET_BYTEORDER) as u16);
        let payload = bytes.get(4..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// Appends an attribute with its padding.
pub(super) fn push_attribute(body: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    body.extend_from_slice(&((4 + payload.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(payload);
    body.resize(align(body.len()), 0);
}

/// The 16 bits at `offset`, in the machine's order.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

/// The 32 bits at `offset`, in the machine's order.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// A string attribute, without its terminator.
pub(super) fn string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    #[cfg_attr(miri, ignore = "it opens a socket")]
    fn a_number_that_has_become_the_programs_is_left_alone() {
        let netlink = Netlink::open(0).unwrap();
        let (program, peer) = UnixDatagram::pair().unwrap();
        // SAFETY: takes no pointer; the socket was opened here, and no other code uses it.
        assert!(unsafe { libc::dup2(program.as_raw_fd(), netlink.fd()) } >= 0);
        peer.send(b"the program's").unwrap();
        let errors = [netlink.receive(&mut [0; 64], libc::MSG_DONTWAIT).map(drop), netlink.send(b"ours")];
        assert_eq!(errors.map(|result| result.unwrap_err().raw_os_error()), [Some(libc::EBADF); 2]);
        let mut bytes = [0; 64];
        assert_eq!(program.recv(&mut bytes).unwrap(), b"the program's".len());
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.recv(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn attributes_round_trip_with_padding() {
        let mut body = Vec::new();
        push_attribute(&mut body, 3, b"eth0\0");
        push_attribute(&mut body, 4, &1500u32.to_ne_bytes());
        let found: Vec<_> = attributes(&body).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (4, &1500u32.to_ne_bytes()[..])]);
        assert_eq!(string(found[0].1), "eth0");
    }

    #[test]
    fn truncated_bytes_end_the_iteration() {
        let mut body = Vec::new();
        push_attribute(&mut body, 3, b"eth0\0");
        for length in 0..body.len() {
            assert!(attributes(&body[..length]).count() <= 1);
            assert_eq!(messages(&body[..length]).count(), 0);
        }
        // Lengths that lie: shorter than the header, and beyond the end.
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(attributes(&[255, 255, 1, 0]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
    }
}
