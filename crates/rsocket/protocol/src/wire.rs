//! What two rsockets exchange: connection data, immediate data, entries of the two tables that a peer writes, and the
//! headers of datagrams.
//!
//! Entries are written by RDMA in the byte order of the host that owns the table; all else is big-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The only version of the connection data.
pub const VERSION: u8 = 1;
/// Length of the connection data.
pub const CONNECTION_DATA: usize = 40;
/// Length of a [`MemoryEntry`].
pub const ENTRY: usize = 16;
/// Length of an [`IoMapEntry`].
pub const IO_MAP_ENTRY: usize = 24;
/// Entries of the table of receive buffers.
pub const TABLE: usize = 2;

/// A piece of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryEntry {
    /// Where it begins.
    pub addr: u64,
    /// Its rkey.
    pub key: u32,
    /// Its length in bytes.
    pub length: u32,
}

impl MemoryEntry {
    fn big_endian(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    fn from_big_endian(bytes: &[u8; ENTRY]) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let [k0, k1, k2, k3, l0, l1, l2, l3] = rest;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// As it is written into the table of a peer.
    #[must_use]
    pub fn for_peer(self, peer_is_big_endian: bool) -> [u8; ENTRY] {
        if peer_is_big_endian {
            return self.big_endian();
        }
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// As a peer has written it into our table.
    #[must_use]
    pub fn from_own_table(bytes: &[u8; ENTRY]) -> Self {
        let big = Self::from_big_endian(bytes);
        if cfg!(target_endian = "big") {
            return big;
        }
        Self { addr: big.addr.swap_bytes(), key: big.key.swap_bytes(), length: big.length.swap_bytes() }
    }
}

/// Memory that a peer may write by riowrite.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IoMapEntry {
    /// The offset that the program gave its first byte.
    pub offset: u64,
    /// The memory.
    pub memory: MemoryEntry,
}

impl IoMapEntry {
    /// As it is written into the table of a peer.
    #[must_use]
    pub fn for_peer(self, peer_is_big_endian: bool) -> [u8; IO_MAP_ENTRY] {
        let mut bytes = [0; IO_MAP_ENTRY];
        bytes[..8].copy_from_slice(&if peer_is_big_endian {
            self.offset.to_be_bytes()
        } else {
            self.offset.to_le_bytes()
        });
        bytes[8..].copy_from_slice(&self.memory.for_peer(peer_is_big_endian));
        bytes
    }

    /// As a peer has written it into our table.
    #[must_use]
    pub fn from_own_table(bytes: &[u8; IO_MAP_ENTRY]) -> Self {
        let (offset, memory) = bytes.split_at(8);
        Self {
            offset: u64::from_ne_bytes(offset.try_into().expect("8 bytes")),
            memory: MemoryEntry::from_own_table(memory.try_into().expect("16 bytes")),
        }
    }

    /// Whether `offset` lies in it.
    #[must_use]
    pub fn holds(&self, offset: u64) -> bool {
        offset >= self.offset && offset - self.offset < u64::from(self.memory.length)
    }
}

/// The private data of a connection request and of its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionData {
    /// The sender's byte order.
    pub big_endian: bool,
    /// Whether the sender lets its peer write mapped memory.
    pub io_map: bool,
    /// Messages that may be sent before the sender grants more.
    pub credits: u16,
    /// How many entries of the sender's memory may be mapped; see [`from_8_bits`].
    pub io_map_size: u16,
    /// The sender's table, which its peer writes.
    pub table: MemoryEntry,
    /// The first piece of the sender's receive buffer.
    pub buffer: MemoryEntry,
}

const BIG_ENDIAN: u8 = 1;
const IO_MAP: u8 = 2;

impl ConnectionData {
    /// The bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; CONNECTION_DATA] {
        let mut bytes = [0; CONNECTION_DATA];
        bytes[0] = VERSION;
        bytes[1] = if self.big_endian { BIG_ENDIAN } else { 0 } | if self.io_map { IO_MAP } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = to_8_bits(self.io_map_size);
        bytes[8..24].copy_from_slice(&self.table.big_endian());
        bytes[24..].copy_from_slice(&self.buffer.big_endian());
        bytes
    }

    /// Reads them; `None` if they are too short or of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONNECTION_DATA] = bytes.get(..CONNECTION_DATA)?.try_into().ok()?;
        if bytes[0] != VERSION {
            return None;
        }
        Some(Self {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            io_map: bytes[1] & IO_MAP != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            io_map_size: from_8_bits(bytes[7]),
            table: MemoryEntry::from_big_endian(bytes[8..24].try_into().expect("16 bytes")),
            buffer: MemoryEntry::from_big_endian(bytes[24..].try_into().expect("16 bytes")),
        })
    }
}

/// A number in eight bits: up to 127 as it is, from 256 on in units of 256.
#[must_use]
pub fn to_8_bits(value: u16) -> u8 {
    match value {
        0..=127 => value as u8,
        128..=255 => 127,
        _ => 0x80 | (value >> 8).min(127) as u8,
    }
}

/// The number that a peer understands by those bits, which may be less than the one that was meant.
#[must_use]
pub fn from_8_bits(bits: u8) -> u16 {
    if bits & 0x80 == 0 { bits.into() } else { u16::from(bits & 0x7f) << 8 }
}

/// The number that a peer decodes from `value` in eight bits.
#[must_use]
pub fn told_in_8_bits(value: u16) -> u16 {
    from_8_bits(to_8_bits(value))
}

/// The content of a message beside its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlMessage {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Nothing.
    KeepAlive,
    /// The sender doesn't send any more.
    Shutdown,
}

/// The immediate data of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImmediateMessage {
    /// So many bytes have been written into the receive buffer.
    Data(u32),
    /// Messages may be sent up to this number.
    Credits(u16),
    /// An entry of the table of mapped memory has been written.
    IoMap(u16),
    /// Something about the connection.
    Control(ControlMessage),
    /// What no implementation sends.
    Unknown(u32),
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IO_MAP_WRITTEN: u32 = 6;
const CONTROL: u32 = 7;
/// The largest number beside an operation.
pub const VALUE: u32 = (1 << 29) - 1;

impl ImmediateMessage {
    /// The number on the wire, in host order.
    #[must_use]
    pub fn emit(self) -> u32 {
        let of = |op: u32, value: u32| op << 29 | value & VALUE;
        match self {
            Self::Data(length) => of(DATA, length),
            Self::Credits(until) => of(CREDITS, until.into()),
            Self::IoMap(index) => of(IO_MAP_WRITTEN, index.into()),
            Self::Control(ControlMessage::Disconnect) => of(CONTROL, 0),
            Self::Control(ControlMessage::KeepAlive) => of(CONTROL, 1),
            Self::Control(ControlMessage::Shutdown) => of(CONTROL, 2),
            Self::Unknown(number) => number,
        }
    }

    /// Reads it.
    #[must_use]
    pub fn parse(number: u32) -> Self {
        let value = number & VALUE;
        match (number >> 29, value) {
            (DATA, _) => Self::Data(value),
            (CREDITS, _) => Self::Credits(value as u16),
            (IO_MAP_WRITTEN, _) => Self::IoMap(value as u16),
            (CONTROL, 0) => Self::Control(ControlMessage::Disconnect),
            (CONTROL, 1) => Self::Control(ControlMessage::KeepAlive),
            (CONTROL, 2) => Self::Control(ControlMessage::Shutdown),
            _ => Self::Unknown(number),
        }
    }
}

/// Begins each datagram that travels over the UDP socket.
pub const UDP_TAG: u32 = 0x5555_5555;
/// The longest [`UdpHeader`].
pub const UDP_HEADER: usize = 28;
/// The longest header of a datagram that travels by RDMA.
pub const DATAGRAM_HEADER: usize = 24;

/// What a datagram over the UDP socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UdpOperation {
    /// It carries data of the program.
    Data,
    /// It has the QPN only.
    Answer,
}

/// Stands before the data of a datagram that travels over the UDP socket, because the sender doesn't know the peer's queue
/// pair yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    /// What it is for.
    pub operation: UdpOperation,
    /// The sender's queue pair.
    pub qpn: u32,
    /// The sender's address.
    pub address: IpAddr,
}

impl UdpHeader {
    /// The bytes on the wire, and how many of them there are.
    #[must_use]
    pub fn emit(&self) -> ([u8; UDP_HEADER], usize) {
        let mut bytes = [0; UDP_HEADER];
        bytes[..4].copy_from_slice(&UDP_TAG.to_be_bytes());
        bytes[5] = match self.operation {
            UdpOperation::Data => 0,
            UdpOperation::Answer => 7,
        };
        bytes[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        let (version, length) = match self.address {
            IpAddr::V4(address) => {
                bytes[12..16].copy_from_slice(&address.octets());
                (4, 16)
            }
            IpAddr::V6(address) => {
                bytes[12..].copy_from_slice(&address.octets());
                (6, UDP_HEADER)
            }
        };
        bytes[4] = version;
        bytes[6] = length as u8;
        (bytes, length)
    }

    /// Reads it, and returns where the data begins; `None` for what isn't a datagram of an rsocket.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed = bytes.get(..12)?;
        if fixed[..4] != UDP_TAG.to_be_bytes() {
            return None;
        }
        let (address, length) = match (fixed[4], fixed[6]) {
            (4, 16) => (IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(12..16)?).ok()?)), 16),
            (6, 28) => {
                (IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(12..28)?).ok()?)), UDP_HEADER)
            }
            _ => return None,
        };
        let operation = match fixed[5] {
            0 => UdpOperation::Data,
            7 => UdpOperation::Answer,
            _ => return None,
        };
        let qpn = u32::from_be_bytes([0, fixed[9], fixed[10], fixed[11]]);
        Some((Self { operation, qpn, address }, length))
    }
}

/// Precedes the data of a datagram that travels by RDMA: its sender.
///
/// Returns the bytes and how many of them there are.
#[must_use]
pub fn emit_datagram_header(source: SocketAddr) -> ([u8; DATAGRAM_HEADER], usize) {
    let mut bytes = [0; DATAGRAM_HEADER];
    bytes[2..4].copy_from_slice(&source.port().to_be_bytes());
    let (version, length) = match source {
        SocketAddr::V4(source) => {
            bytes[4..8].copy_from_slice(&source.ip().octets());
            (4, 8)
        }
        SocketAddr::V6(source) => {
            bytes[4..8].copy_from_slice(&source.flowinfo().to_be_bytes());
            bytes[8..].copy_from_slice(&source.ip().octets());
            (6, DATAGRAM_HEADER)
        }
    };
    bytes[0] = version;
    bytes[1] = length as u8;
    (bytes, length)
}

/// Reads it, and returns where the data begins.
#[must_use]
pub fn parse_datagram_header(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let fixed = bytes.get(..8)?;
    let port = u16::from_be_bytes([fixed[2], fixed[3]]);
    match (fixed[0], fixed[1]) {
        (4, 8) => {
            let address = Ipv4Addr::new(fixed[4], fixed[5], fixed[6], fixed[7]);
            Some((SocketAddr::new(address.into(), port), 8))
        }
        (6, 24) => {
            let flow = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?);
            Some((SocketAddr::V6(SocketAddrV6::new(address, port, flow, 0)), DATAGRAM_HEADER))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The private data of the first connection request in a capture of Debian 12's rstream.
    const CAPTURED: [u8; CONNECTION_DATA] = [
        0x01, 0x02, 0x01, 0x80, 0, 0, 0, 0, 0x00, 0x00, 0x56, 0x45, 0xc7, 0xea, 0x30, 0x00, 0x00, 0x00, 0x09,
        0x1e, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x7f, 0xee, 0x65, 0x91, 0xc0, 0x00, 0x00, 0x00, 0x0a, 0x41,
        0x00, 0x08, 0x00, 0x00,
    ];

    #[test]
    fn captured_connection_data_is_read_and_written() {
        let data = ConnectionData {
            big_endian: false,
            io_map: true,
            credits: 384,
            io_map_size: 0,
            table: MemoryEntry { addr: 0x5645_c7ea_3000, key: 0x91e, length: 2 },
            buffer: MemoryEntry { addr: 0x7fee_6591_c000, key: 0xa41, length: 0x8_0000 },
        };
        assert_eq!(ConnectionData::parse(&CAPTURED), Some(data));
        assert_eq!(data.emit(), CAPTURED);
    }

    #[test]
    fn captured_credits_are_read_and_written() {
        // Frame 4 of that capture.
        let payload = [0x00, 0xc0, 0x99, 0x65, 0xee, 0x7f, 0, 0, 0x41, 0x0a, 0, 0, 0, 0, 0x08, 0];
        let entry = MemoryEntry { addr: 0x7fee_6599_c000, key: 0xa41, length: 0x8_0000 };
        assert_eq!(entry.for_peer(false), payload);
        if cfg!(target_endian = "little") {
            assert_eq!(MemoryEntry::from_own_table(&payload), entry);
        }
        assert_eq!(ImmediateMessage::parse(0x8000_0180), ImmediateMessage::Credits(384));
        assert_eq!(ImmediateMessage::Credits(384).emit(), 0x8000_0180);
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = CAPTURED;
        bytes[0] = 2;
        assert_eq!(ConnectionData::parse(&bytes), None);
        assert_eq!(ConnectionData::parse(&CAPTURED[..39]), None);
    }

    #[test]
    fn eight_bits_never_say_more_than_was_meant() {
        for value in 0..0x8000 {
            let told = from_8_bits(to_8_bits(value));
            assert!(told <= value && value - told < 256, "{value} is decoded as {told}");
        }
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(number: u32) {
            let message = ImmediateMessage::parse(number);
            prop_assert_eq!(ImmediateMessage::parse(message.emit()), message);
        }

        #[test]
        fn headers_are_read_as_they_were_written(
            port: u16, qpn in 0..1u32 << 24, flow: u32, v4: [u8; 4], v6: [u8; 16], six: bool, answer: bool
        ) {
            let address = if six { IpAddr::from(v6) } else { IpAddr::from(v4) };
            let operation = if answer { UdpOperation::Answer } else { UdpOperation::Data };
            let header = UdpHeader { operation, qpn, address };
            let (bytes, length) = header.emit();
            prop_assert_eq!(UdpHeader::parse(&bytes[..length]), Some((header, length)));
            prop_assert_eq!(UdpHeader::parse(&bytes[..length - 1]), None);
            let source = match address {
                IpAddr::V4(_) => SocketAddr::new(address, port),
                IpAddr::V6(address) => SocketAddrV6::new(address, port, flow, 0).into(),
            };
            let (bytes, length) = emit_datagram_header(source);
            prop_assert_eq!(parse_datagram_header(&bytes[..length]), Some((source, length)));
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (ConnectionData::parse(&bytes), UdpHeader::parse(&bytes), parse_datagram_header(&bytes));
        }
    }
}
