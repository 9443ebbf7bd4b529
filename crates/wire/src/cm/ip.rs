//! The header that requests of the IP port spaces have before the consumer's private data (IBTA annex A11).

use core::net::{IpAddr, SocketAddr};

/// Major and minor version of the header.
const VERSION: u8 = 0;
/// Bytes of the header.
pub const IP_HEADER_LEN: usize = 36;

/// The IP addresses of requester and responder. The destination's port is in the service ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// The requester's address and port.
    pub source: SocketAddr,
    /// The responder's address.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Reads the header of a request's private data; `None` when it is of another version or too short.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let header: &[u8; IP_HEADER_LEN] = private_data.first_chunk()?;
        let (first, rest) = header.split_first()?;
        let (version, rest) = rest.split_first()?;
        let (port, addresses) = rest.split_first_chunk()?;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        let destination: &[u8; 16] = destination.try_into().ok()?;
        let of = |bytes: &[u8; 16]| match *version >> 4 {
            4 => Some(IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]])),
            6 => Some(IpAddr::from(*bytes)),
            _ => None,
        };
        if *first != VERSION {
            return None;
        }
        let source = SocketAddr::new(of(source)?, u16::from_be_bytes(*port));
        Some(Self { source, destination: of(destination)? })
    }

    /// The bytes of the header. Both addresses are IPv4, or both are taken for IPv6.
    #[must_use]
    pub fn emit(&self) -> [u8; IP_HEADER_LEN] {
        let mut bytes = [0; IP_HEADER_LEN];
        let (source, destination) = (self.source.ip(), self.destination);
        let v4 = source.is_ipv4() && destination.is_ipv4();
        let put = |room: &mut [u8], address: IpAddr| match address {
            IpAddr::V4(address) if v4 => room[12..].copy_from_slice(&address.octets()),
            IpAddr::V4(address) => room.copy_from_slice(&address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => room.copy_from_slice(&address.octets()),
        };
        bytes[0] = VERSION;
        bytes[1] = if v4 { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        put(&mut bytes[4..20], source);
        put(&mut bytes[20..36], destination);
        bytes
    }
}
