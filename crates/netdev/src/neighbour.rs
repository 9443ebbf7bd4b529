//! Neighbours: whether the kernel knows by which hardware address a host of the link is reached.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ferroce_os::sys::{self, InetAddress};

use super::NetError;
use super::netlink::{Netlink, attributes, push_attribute, u16_at, u32_at};

/// `struct ndmsg`.
const NDMSG: usize = 12;
/// States in which packets leave (`NUD_VALID`): permanent, without ARP, reachable, probed, stale, delayed.
const VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08;
/// The discard service (RFC 863): a listener there expects any datagram.
const DISCARD: u16 = 9;

/// Whether packets to the neighbour `ip` on an interface leave at once. False: the kernel has to ask for it first, or has asked in
/// vain.
///
/// # Errors
/// [`NetError::Netlink`].
pub fn is_neighbour_known(ip: IpAddr, ifindex: u32) -> Result<bool, NetError> {
    let address = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut body = vec![0u8; NDMSG];
    body[0] = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    push_attribute(&mut body, libc::NDA_DST, &address);
    let asking = NetError::asking("for a neighbour");
    let mut socket = Netlink::open(0).map_err(&asking)?;
    let found = socket.get(libc::RTM_GETNEIGH, &body, |message| {
        let is_it = u32_at(message.body, 4) == Some(ifindex)
            && attributes(message.body.get(NDMSG..)?)
                .any(|(kind, ip)| kind == libc::NDA_DST && ip == address);
        is_it.then(|| u16_at(message.body, 8)).flatten()
    });
    match found {
        Ok(state) => Ok(state.is_some_and(|state| state & VALID != 0)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(asking(error)),
    }
}

/// Has the kernel look for a host of the link, by an empty datagram to it. A network that doesn't take the datagram doesn't matter.
pub fn look_for_neighbour(ip: IpAddr, ifindex: u32) {
    let (domain, to) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, SocketAddr::from((ip, DISCARD))),
        IpAddr::V6(ip) => (libc::AF_INET6, SocketAddrV6::new(ip, DISCARD, 0, ifindex).into()),
    };
    let sent = sys::socket(domain, libc::SOCK_DGRAM)
        .and_then(|socket| sys::send_to(socket.checked(), &[], &InetAddress::new(to)));
    if let Err(error) = sent {
        tracing::debug!(%error, %ip, "a datagram that would make the neighbour known can't be sent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_nobody_has_asked_for_is_unknown() {
        // 192.0.2.0/24 is for documentation; the loopback interface has no neighbours there.
        assert!(!is_neighbour_known("192.0.2.77".parse().unwrap(), 1).unwrap());
        assert!(!is_neighbour_known("2001:db8::77".parse().unwrap(), 1).unwrap());
    }
}
