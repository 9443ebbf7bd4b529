//! Sockets of the host and their users, as the kernel lists them (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{Message, Netlink, attributes, u32_at};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
const ALL_STATES: u32 = u32::MAX;
/// `TCP_LISTEN`, which listeners of UNIX sockets have too.
const LISTEN: u8 = 10;
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
    let of_port =
        |message: Message<'_>| parse_udp(message.body).filter(|&(at, _)| at == port).map(|(_, found)| found);
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

/// The user of the SEQPACKET listener with an abstract name, `name` without its first NUL. `None`: there is none, or the
/// kernel (before 5.3) doesn't list users.
///
/// # Errors
/// Those of the socket; ENOENT: this kernel doesn't list sockets.
pub fn user_of_listener(name: &[u8]) -> io::Result<Option<u32>> {
    // `struct unix_diag_req`: family, protocol, padding, states, inode, what to show, cookie.
    let mut request = [0; 24];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&(1_u32 << LISTEN).to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW_NAME_AND_UID.to_ne_bytes());
    let found = Netlink::open_for_sockets()?
        .dump(BY_FAMILY, &request, |message| parse_listener(message.body).filter(|(of, _)| of == name))?;
    Ok(found.first().map(|&(_, uid)| uid))
}

/// Abstract name and user of a SEQPACKET listener in a `struct unix_diag_msg` (family, type, state, padding, inode, cookie) and
/// its attributes.
fn parse_listener(body: &[u8]) -> Option<(Vec<u8>, u32)> {
    if *body.get(1)? != libc::SOCK_SEQPACKET as u8 || *body.get(2)? != LISTEN {
        return None;
    }
    let (mut name, mut uid) = (None, None);
    for (kind, payload) in attributes(body.get(UNIX_MESSAGE..)?) {
        match kind {
            NAME => name = payload.strip_prefix(b"\0"),
            UID => uid = u32_at(payload, 0),
            _ => {}
        }
    }
    Some((name?.to_vec(), uid?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push_attribute;

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
    fn a_listener_is_read_with_its_name_and_user() {
        let message = |kind: i32, state: u8, name: &[u8]| {
            let mut body = vec![0; UNIX_MESSAGE];
            body[..3].copy_from_slice(&[libc::AF_UNIX as u8, kind as u8, state]);
            push_attribute(&mut body, NAME, name);
            push_attribute(&mut body, UID, &1001_u32.to_ne_bytes());
            parse_listener(&body)
        };
        assert_eq!(message(libc::SOCK_SEQPACKET, LISTEN, b"\0name"), Some((b"name".to_vec(), 1001)));
        assert_eq!(message(libc::SOCK_DGRAM, LISTEN, b"\0name"), None);
        assert_eq!(message(libc::SOCK_SEQPACKET, 1, b"\0name"), None);
        assert_eq!(message(libc::SOCK_SEQPACKET, LISTEN, b"/a/path\0"), None);
        assert_eq!(parse_listener(&[]), None);
    }
}
