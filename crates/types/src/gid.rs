//! GIDs and the addresses that they stand for.

use std::net::{IpAddr, Ipv6Addr};

/// The GID of an address: IPv4 as `::ffff:a.b.c.d`.
#[must_use]
#[inline]
pub const fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address that a GID stands for.
#[must_use]
#[inline]
pub fn ip_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_kinds_are_gids_and_come_back() {
        for text in ["10.0.0.1", "fe80::1", "::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(ip_of(gid_of(ip)), ip);
        }
        assert_eq!(gid_of("1.2.3.4".parse().unwrap())[8..], [0, 0, 0xff, 0xff, 1, 2, 3, 4]);
    }
}
