//! Ports at addresses: how their names have them, and which two collide.

use ferroce_types::HostAddr;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

/// A port at an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PortAddress {
    /// The number of the port space.
    pub space: u16,
    /// The port.
    pub port: u16,
    /// The address; the unspecified and the loopback ones stand for all.
    pub address: HostAddr,
    /// `::` doesn't stand for IPv4 addresses.
    pub v6_only: bool,
}

impl PortAddress {
    /// The address stands for all that it could be.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.address.ip().is_unspecified() || self.address.ip().is_loopback()
    }

    /// It takes requests of the other family as well.
    pub(super) fn is_dual(&self) -> bool {
        self.address.is_ipv6() && self.address.ip().is_unspecified() && !self.v6_only
    }

    /// Requests for `destination` may be for this port.
    pub(super) fn takes(&self, destination: HostAddr) -> bool {
        if self.address.is_ipv6() == destination.is_ipv6() {
            self.is_wide() || self.address == destination
        } else {
            self.is_dual()
        }
    }

    /// It is of its own address family alone, as IPv4 always is.
    fn is_of_one_family(&self) -> bool {
        !self.address.is_ipv6() || self.v6_only
    }

    /// The error if the two can't be held at the same time. The order is the kernel's: a wide address on either side comes first.
    pub(super) fn collision(&self, other: &Self) -> Option<PortError> {
        let apart = self.is_of_one_family()
            && other.is_of_one_family()
            && self.address.is_ipv6() != other.address.is_ipv6();
        if (self.space, self.port) != (other.space, other.port) || apart {
            None
        } else if self.is_wide() || other.is_wide() {
            Some(PortError::Overlaps)
        } else {
            (self.address == other.address).then_some(PortError::Taken)
        }
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = if self.v6_only { "!" } else { "" };
        write!(f, "{:04x}-{}-{}{only}", self.space, self.port, self.address)
    }
}

impl FromStr for PortAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(());
        let space = u16::from_str_radix(next()?, 16).map_err(drop)?;
        let port = next()?.parse().map_err(drop)?;
        let address = next()?;
        let v6_only = address.ends_with('!');
        let (ip, scope) = address.trim_end_matches('!').split_once('%').unwrap_or((address, "0"));
        let ip: IpAddr = ip.trim_end_matches('!').parse().map_err(drop)?;
        Ok(Self { space, port, address: HostAddr::new(ip, scope.parse().map_err(drop)?), v6_only })
    }
}

/// Why a port can't be had.
#[derive(Debug)]
pub enum PortError {
    /// A process of this user has it with this address.
    Taken,
    /// A process of this user has it, and one of the two addresses stands for all.
    Overlaps,
    /// A process of another user has its number, or its name at this address. `None`: one that doesn't listen, where the
    /// kernel lists no users of sockets.
    OtherUsers(Option<u32>),
    /// The process that has the number, of this user as far as that can be found out, doesn't hand its listener over (stopped?).
    Unanswered,
    /// The system refused.
    System(io::Error),
}
#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, port: u16, v6_only: bool) -> PortAddress {
        PortAddress { space: 0x106, port, address: HostAddr::new(address.parse().unwrap(), 3), v6_only }
    }

    #[test]
    fn addresses_come_back_from_their_names() {
        for (address, only) in
            [("10.0.0.1", false), ("0.0.0.0", false), ("fe80::2", true), ("fd00::1", false), ("::", true)]
        {
            let address = at(address, 7000, only);
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        for nonsense in ["", "0106", "0106-1", "0106-1-", "xyz-1-::", "0106-70000-::", "0106-1-1.2.3"] {
            assert!(nonsense.parse::<PortAddress>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn wide_addresses_overlap_and_equal_ones_are_taken() {
        let collide = |a: (&str, bool), b: (&str, bool)| match at(a.0, 1, a.1).collision(&at(b.0, 1, b.1)) {
            None => "no",
            Some(PortError::Taken) => "taken",
            Some(_) => "overlaps",
        };
        assert_eq!(collide(("10.0.0.1", false), ("10.0.0.1", false)), "taken");
        assert_eq!(collide(("10.0.0.1", false), ("10.0.0.2", false)), "no");
        assert_eq!(collide(("10.0.0.1", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("127.0.0.1", false), ("10.0.0.1", false)), "overlaps");
        assert_eq!(collide(("::", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("::", true), ("0.0.0.0", false)), "no");
        assert_eq!(collide(("::", true), ("::", false)), "overlaps");
        assert_eq!(collide(("::", true), ("fd00::1", false)), "overlaps");
        assert_eq!(collide(("0.0.0.0", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("127.0.0.1", false), ("127.0.0.1", false)), "overlaps");
        assert_eq!(collide(("fd00::1", false), ("10.0.0.1", false)), "no");
        assert_eq!(collide(("fd00::1", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("::1", false), ("10.0.0.1", false)), "overlaps");
        assert_eq!(collide(("fd00::1", true), ("0.0.0.0", false)), "no");
        assert_eq!(collide(("fd00::1", true), ("fd00::1", false)), "taken");
        assert!(at("::", 1, false).collision(&at("::", 2, false)).is_none());
    }
}
