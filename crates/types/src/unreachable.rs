//! What the network says of a destination.

/// Why a packet didn't arrive, as ICMP says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// There is no way to the network.
    Network,
    /// There is a way, and no such host at its end.
    Host,
    /// Nobody listens at the port.
    Port,
    /// Somebody on the way doesn't let it through.
    Prohibited,
}

impl Unreachable {
    /// What an ICMP message of this type and code says of its packet's destination; `None`: something else.
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

    /// The same of ICMPv6.
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
        // Of the path's MTU, and of redirections, nothing is heard.
        assert_eq!([Unreachable::of_icmp(3, 4), Unreachable::of_icmp(5, 1)], [None; 2]);
        assert_eq!(Unreachable::of_icmpv6(2, 0), None);
    }
}
