//! A multicast group on an interface: this process's socket for it, and the options of the socket that sends to groups.
//!
//! The kernel gives a copy of each packet to every socket that has joined, in whatever order they have: processes don't depend on
//! each other, and the end of one changes nothing for the others.

use super::Stats;
use super::receive::{RecvOutcome, SocketReader, receiving_socket};
use ferroce_netdev::{UdpSocket, udp_sockets};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd, InetAddress};
use ferroce_types::{Datagram, Error, HostAddr, Instant, Result};
use ferroce_wire::ROCE_V2_PORT;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// A membership, for as long as this exists.
pub struct GroupSocket {
    group: HostAddr,
    socket: EngineFd,
    reader: Mutex<class::MulticastReader, SocketReader>,
    stats: Stats,
}

impl std::fmt::Debug for GroupSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GroupSocket").field(&self.group).finish()
    }
}

impl GroupSocket {
    /// Joins `group` on the interface of its scope. The kernel announces the membership by IGMP or MLD.
    ///
    /// # Errors
    /// EADDRINUSE, with the user, when a process has the port and doesn't share it, ENODEV when the interface is gone, else the
    /// error of the system call.
    pub fn join(group: HostAddr) -> Result<Self> {
        let socket = joined(group).map_err(|error| match user_in_the_way(group) {
            Some(uid) if error.raw_os_error() == Some(libc::EADDRINUSE) => Error::Refused {
                errno: libc::EADDRINUSE,
                why: format!("UDP port {ROCE_V2_PORT} of {group} is taken by a process of user {uid}, which doesn't share it"),
            },
            _ => Error::os("joining the multicast group")(error),
        })?;
        Ok(Self { group, socket, reader: Mutex::new(SocketReader::new()), stats: Stats::default() })
    }

    /// The group, with its interface.
    pub const fn group(&self) -> HostAddr {
        self.group
    }

    /// For `epoll`.
    pub fn fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// As [`super::Endpoint::recv`].
    ///
    /// # Errors
    /// Likewise.
    pub fn recv(&self, now: Instant, f: &mut dyn FnMut(&[Datagram<'_>])) -> io::Result<RecvOutcome> {
        let Some(mut reader) = self.reader.try_lock() else { return Ok(RecvOutcome::Busy) };
        reader.receive(self.socket.checked_lately(now), self.group, &self.stats, f)
    }
}

fn joined(group: HostAddr) -> io::Result<EngineFd> {
    let socket = receiving_socket(group.is_ipv6())?;
    let (fd, interface) = (socket.raw(), group.scope_id() as i32);
    // Not SO_REUSEPORT, which is for one user's sockets only.
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)?;
    // What comes to the group by other interfaces is for the devices there.
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &interface)?;
    sys::bind(fd, &InetAddress::new(group.with_port(ROCE_V2_PORT)))?;
    match group.ip() {
        IpAddr::V4(ip) => {
            let membership = on_interface(u32::from_ne_bytes(ip.octets()), interface);
            sys::set_option(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &membership)?;
        }
        IpAddr::V6(ip) => {
            let membership = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: ip.octets() },
                ipv6mr_interface: group.scope_id(),
            };
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &membership)?;
        }
    }
    Ok(socket)
}

/// The user of a socket that keeps others from the port of a group.
fn user_in_the_way(group: HostAddr) -> Option<u32> {
    let is_there = |socket: &UdpSocket| {
        (socket.address == group.ip() || socket.address.is_unspecified())
            && (socket.interface == 0 || socket.interface == group.scope_id())
    };
    let sockets = udp_sockets(group.is_ipv6(), ROCE_V2_PORT).ok()?;
    sockets.into_iter().find(is_there).map(|socket| socket.uid)
}

/// Lets a socket send to groups by the interface that `group` names. Other processes of this host, and this one, get
/// copies if they have joined: that is how a socket begins.
///
/// # Errors
/// ENODEV when the interface is gone.
pub(super) fn send_by(fd: RawFd, group: HostAddr, ttl: u8) -> io::Result<()> {
    let interface = group.scope_id() as i32;
    if group.is_ipv6() {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &interface)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, &i32::from(ttl))
    } else {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &on_interface(0, interface))?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, &i32::from(ttl))
    }
}

/// A group (in network order; 0 where none is meant) and the index of an interface.
const fn on_interface(group: u32, interface: i32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: group },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: interface,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn the_user_who_has_a_groups_port_without_sharing_it_is_named() {
        let group = HostAddr::new("239.47.91.7".parse().unwrap(), 1);
        let Ok(_socket) = std::net::UdpSocket::bind(group.with_port(ROCE_V2_PORT)) else {
            return ferroce_tests::record_skip("239.47.91.7:4791 can't be bound here");
        };
        let error = GroupSocket::join(group).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE);
        let who = format!("is taken by a process of user {}", sys::user_id());
        assert!(error.to_string().contains(&who), "{error}");
    }
}
