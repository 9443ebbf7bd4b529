//! Sockets of the host and their users, as the kernel lists them (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{Netlink, NetlinkMessage, attributes, u32_at};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
const ALL_STATES: u32 = u32::MAX;
/// `TCP_LISTEN` and `TCP_CLOSE`, which UNIX sockets have too.
const LISTEN: u8 = 10;
const UNCONNECTED: u8 = 7;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID` (linux/unix_diag.h).
const SHOW_NAME_AND_UID: u32 = 0x01 | 0x40;
/// `UNIX_DIAG_NAME` and `UNIX_DIAG_UID`.
const NAME: u16 = 0;
const UID: u16 = 7;
/// `struct unix_diag_msg`.
const UNIX_MESSAGE: usize = 16;

/// A bound UDP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpSocket {
    /// Its address; unspecified: all.
    pub address: IpAddr,
    /// Index of the interface that it is bound to; 0: none.
    pub interface: u32,
    /// The user who made it.
    pub uid: u32,
}

/// The UDP sockets of IPv6 or IPv4 on `port` in this network namespace.
///
/// # Errors
/// Those of the socket; ENOENT: this kernel doesn't list sockets.
pub fn udp_sockets(v6: bool, port: u16) -> io::Result<Vec<UdpSocket>> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and a socket's identity, which begins with the port.
    let mut request = [0; 56];
    request[..2].copy_from_slice(&[family as u8, libc::IPPROTO_UDP as u8]);
    request[4..8].copy_from_slice(&ALL_STATES.to_ne_bytes());
    request[8..10].copy_from_slice(&port.to_be_bytes());
    let of_port = |message: NetlinkMessage<'_>| {
        parse_udp(message.body).filter(|&(at, _)| at == port).map(|(_, found)| found)
    };
    Netlink::open_for_sockets()?.dump(BY_FAMILY, &request, of_port)
}

/// Port and socket of a `struct inet_diag_msg`: family, state, timer, retransmissions; source port, destination port, source
/// address, destination address, interface, cookie; expiry, queues, user, inode.
fn parse_udp(body: &[u8]) -> Option<(u16, UdpSocket)> {
    let port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let bytes: [u8; 16] = *body.get(8..)?.first_chunk()?;
    let address = match i32::from(*body.first()?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(bytes)),
        _ => return None,
    };
    Some((port, UdpSocket { address, interface: u32_at(body, 40)?, uid: u32_at(body, 64)? }))
}

/// A socket with an abstract name: of datagrams, or a SEQPACKET socket that isn't a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedSocket {
    /// The name without its first NUL, byte for byte.
    pub name: Vec<u8>,
    /// It is a SEQPACKET socket, not one of datagrams.
    pub seqpacket: bool,
    /// Its number in `/proc/PID/fd`.
    pub inode: u32,
    /// The user who made it. `None`: the kernel (before 5.3) doesn't list users.
    pub uid: Option<u32>,
}

/// The sockets in this network namespace whose abstract names begin with `prefix`.
///
/// # Errors
/// Those of the socket; ENOENT: this kernel doesn't list sockets.
pub fn named_sockets(prefix: &[u8]) -> io::Result<Vec<NamedSocket>> {
    // `struct unix_diag_req`: family, protocol, padding, states, inode, what to show, cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&ALL_STATES.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW_NAME_AND_UID.to_ne_bytes());
    Netlink::open_for_sockets()?.dump(BY_FAMILY, &request, |message| {
        parse_named(message.body).filter(|socket| socket.name.starts_with(prefix))
    })
}

/// The socket of a `struct unix_diag_msg` (family, type, state, padding, inode, cookie) and its attributes.
fn parse_named(body: &[u8]) -> Option<NamedSocket> {
    let (kind, state) = (i32::from(*body.get(1)?), *body.get(2)?);
    // A connection has the name of its listener; before it is accepted it has no user.
    let seqpacket = match kind {
        libc::SOCK_DGRAM => false,
        libc::SOCK_SEQPACKET if matches!(state, LISTEN | UNCONNECTED) => true,
        _ => return None,
    };
    let (mut name, mut uid) = (None, None);
    for (kind, payload) in attributes(body.get(UNIX_MESSAGE..)?) {
        match kind {
            NAME => name = payload.strip_prefix(b"\0"),
            UID => uid = u32_at(payload, 0),
            _ => {}
        }
    }
    Some(NamedSocket { name: name?.to_vec(), seqpacket, inode: u32_at(body, 4)?, uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push_attribute;
    use ferroce_os::sys;

    #[test]
    fn a_udp_socket_is_read_with_its_interface_and_user() {
        let mut body = vec![0; 72];
        body[0] = libc::AF_INET6 as u8;
        body[4..6].copy_from_slice(&4791_u16.to_be_bytes());
        let address: Ipv6Addr = "fe80::1".parse().unwrap();
        body[8..24].copy_from_slice(&address.octets());
        body[40..44].copy_from_slice(&7_u32.to_ne_bytes());
        body[64..68].copy_from_slice(&1001_u32.to_ne_bytes());
        let socket = UdpSocket { address: address.into(), interface: 7, uid: 1001 };
        assert_eq!(parse_udp(&body), Some((4791, socket)));
        for length in 0..68 {
            assert_eq!(parse_udp(&body[..length]), None);
        }
        body[0] = libc::AF_INET as u8;
        body[8..12].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(parse_udp(&body).unwrap().1.address, "10.0.0.2".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_named_socket_is_read_with_its_name_and_user() {
        let message = |kind: i32, state: u8, name: &[u8], uid: Option<u32>| {
            let mut body = vec![0; UNIX_MESSAGE];
            body[..3].copy_from_slice(&[libc::AF_UNIX as u8, kind as u8, state]);
            body[4..8].copy_from_slice(&77_u32.to_ne_bytes());
            push_attribute(&mut body, NAME, name);
            uid.iter().for_each(|uid| push_attribute(&mut body, UID, &uid.to_ne_bytes()));
            parse_named(&body)
        };
        let socket = |name: &[u8], seqpacket, uid| {
            Some(NamedSocket { name: name.to_vec(), seqpacket, inode: 77, uid })
        };
        let (seqpacket, datagrams) = (libc::SOCK_SEQPACKET, libc::SOCK_DGRAM);
        assert_eq!(message(seqpacket, LISTEN, b"\0name", Some(1001)), socket(b"name", true, Some(1001)));
        assert_eq!(message(seqpacket, UNCONNECTED, b"\0name", None), socket(b"name", true, None));
        assert_eq!(message(datagrams, UNCONNECTED, b"\0a\nb", Some(0)), socket(b"a\nb", false, Some(0)));
        assert_eq!(message(seqpacket, 1, b"\0name", Some(1001)), None);
        assert_eq!(message(libc::SOCK_STREAM, LISTEN, b"\0name", Some(1001)), None);
        assert_eq!(message(seqpacket, LISTEN, b"@name\0", Some(1001)), None);
        assert_eq!(parse_named(&[]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn a_name_is_listed_byte_for_byte_with_its_user() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};

        let prefix = format!("netdev-test-{}", std::process::id());
        let name = format!("{prefix}\n0 @other");
        let _socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let listed = match named_sockets(prefix.as_bytes()) {
            Ok(listed) => listed,
            Err(error) => return ferroce_tests::record_skip(&format!("sock_diag: {error}")),
        };
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].name, name.as_bytes());
        assert!(listed[0].uid.is_none_or(|uid| uid == sys::user_id()), "{listed:?}");
    }
}
