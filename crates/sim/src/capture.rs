//! Packets for Wireshark.

use crate::frame::Frame;
use ferroce_pcapng::{
    Direction, Interface, IpUdpHeader, PacketBlock, file_header, headed, ip_udp_bytes, trailer,
};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// UDP source ports of RoCEv2 begin here (annex A17.9.2).
const PORTS: u16 = 0xc000;

/// ECN: the transport reacts to marks (RFC 3168).
const ECN_CAPABLE: u8 = 0b10;

/// ECN: a queue was long.
const CONGESTION: u8 = 0b11;

/// A capture file.
#[derive(Debug)]
pub(crate) struct Capture(BufWriter<File>);

impl Capture {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&file_header())?;
        Ok(Self(file))
    }

    /// Adds a packet that leaves at `time`.
    pub(crate) fn add(&mut self, time: Duration, from: Ipv4Addr, frame: &Frame) -> io::Result<()> {
        let Some(headed) = headed(&frame.headers, frame.payload.len()) else { return Ok(()) };
        let source = SocketAddr::new(IpAddr::V4(from), PORTS | frame.headers.bth.dest_qp as u16 & 0x3fff);
        let tos = if frame.marked { CONGESTION } else { u8::from(frame.ecn) * ECN_CAPABLE };
        let ip_udp = IpUdpHeader { tos, ..IpUdpHeader::plain(source, IpAddr::V4(frame.to)) };
        let icrc = trailer(&ip_udp, &headed, &frame.payload);
        let pieces = [headed.bytes(), &frame.payload, headed.pad(), &icrc];
        let below = ip_udp_bytes(&ip_udp, headed.packet_len(), &pieces);
        let len = below.packet_len();
        let block = PacketBlock::new(Interface::Packets, Direction::Out, time, (len, len));
        let block = block.map_err(io::Error::other)?;
        self.0.write_all(block.front())?;
        self.0.write_all(below.bytes())?;
        pieces.iter().try_for_each(|piece| self.0.write_all(piece))?;
        self.0.write_all(block.back())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
