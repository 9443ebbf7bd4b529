//! What a request is for: a service ID (IBTA annex A3), of which the IP port spaces have a part (annex A11).

use core::fmt;

/// The port spaces of librdmacm. Ports of different spaces have nothing to do with one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PortSpace {
    /// Connections (`RDMA_PS_TCP`).
    Tcp,
    /// Datagrams (`RDMA_PS_UDP`).
    Udp,
    /// Service IDs of the program's choice (`RDMA_PS_IB`).
    Ib,
}

impl PortSpace {
    /// The number of librdmacm: bits 16 to 31 of a service ID.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// The space with this number.
    #[must_use]
    pub const fn of(number: u16) -> Option<Self> {
        match number {
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

/// A service ID, 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port.
    #[must_use]
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self((space.number() as u64) << 16 | port as u64)
    }

    /// The port that it stands for; `None` if it doesn't stand for a port.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 32 != 0 {
            return None;
        }
        match PortSpace::of((self.0 >> 16) as u16) {
            Some(space) => Some((space, self.0 as u16)),
            None => None,
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}
