//! Why a destination is unreachable, by ICMP.

/// The reason in an ICMP "destination unreachable" message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// No route to the network.
    Network,
    /// The network is reachable, the host isn't.
    Host,
    /// No socket is bound to the port.
    Port,
    /// A router or firewall drops the packet.
    Prohibited,
}

impl Unreachable {
    /// The reason in an ICMP message of this type and code; `None`: another message.
    #[must_use]
    pub const fn of_icmp(kind: u8, code: u8) -> Option<Self> {
        match (kind, code) {
            (3, 0 | 5 | 6 | 11) => Some(Self::Network),
            (3, 1 | 7 | 8 | 12) => Some(Self::Host),
            (3, 3) => Some(Self::Port),
            (3, 9 | 10 | 13) => Some(Self::Prohibited),
            _ => None,
        }
    }

    /// As [`Unreachable::of_icmp`], for ICMPv6.
    #[must_use]
    pub const fn of_icmpv6(kind: u8, code: u8) -> Option<Self> {
        match (kind, code) {
            (1, 0 | 2 | 6) => Some(Self::Network),
            (1, 3) => Some(Self::Host),
            (1, 4) => Some(Self::Port),
            (1, 1 | 5) => Some(Self::Prohibited),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_icmp_say_that_a_port_is_closed() {
        assert_eq!(Unreachable::of_icmp(3, 3), Some(Unreachable::Port));
        assert_eq!(Unreachable::of_icmpv6(1, 4), Some(Unreachable::Port));
        // "Fragmentation needed", "packet too big" and redirections are ignored.
        assert_eq!([Unreachable::of_icmp(3, 4), Unreachable::of_icmp(5, 1)], [None; 2]);
        assert_eq!(Unreachable::of_icmpv6(2, 0), None);
    }
}
