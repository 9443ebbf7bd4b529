//! A peer that neither Ferroce nor a kernel runs, as far as a wire shows: `wire-peer ADDRESS PORT QPN PSN PEER` sends a RoCE packet from a
//! UDP port to a queue pair, an RDMA WRITE with a key of no region, and prints what comes back to port 4791 of ADDRESS: for each packet
//! the bytes after the IP and UDP headers, in hexadecimal, but for the ICRC, which must be right.

use ferroce_wire::icrc::Flow;
use ferroce_wire::{Bth, Headers, ICRC_LEN, Opcode, Operation, Reth, Service};
use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

const ROCE: u16 = 4791;
/// How long nothing comes before there is no more.
const QUIET: Duration = Duration::from_millis(500);
const PAYLOAD: usize = 8;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [from, port, qpn, psn, to] = &words[..] else {
        return Err(Error::other("usage: wire-peer ADDRESS PORT QPN PSN PEER"));
    };
    let address = |text: &str| text.parse::<Ipv4Addr>().map_err(Error::other);
    let number = |text: &str| text.parse::<u32>().map_err(Error::other);
    let (from, to) = (address(from)?, address(to)?);
    let port = port.parse().map_err(Error::other)?;
    let answers = UdpSocket::bind((from, ROCE))?;
    answers.set_read_timeout(Some(QUIET))?;
    let sender = sender(from, port)?;
    let request = request(number(qpn)?, number(psn)?, Flow::v4(from, to, port, ROCE))?;
    sender.send_to(&request, SocketAddrV4::new(to, ROCE))?;
    let mut packet = [0; 2048];
    while let Ok((length, source)) = answers.recv_from(&mut packet) {
        let packet = &packet[..length];
        let flow = Flow::v4(to, from, source.port(), ROCE);
        if flow.verify(packet, 0).is_none() {
            return Err(Error::other("a packet with a wrong ICRC"));
        }
        let hex: String = packet[..length - ICRC_LEN].iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{hex}");
    }
    Ok(())
}

/// A socket whose packets have the IPv4 identification 0, which the ICRC covers.
fn sender(from: Ipv4Addr, port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((from, port))?;
    let value = libc::IP_PMTUDISC_DO;
    // SAFETY: the option's value is an int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(socket) } else { Err(Error::last_os_error()) }
}

/// An RDMA WRITE of eight bytes.
fn request(qpn: u32, psn: u32, flow: Flow) -> Result<Vec<u8>> {
    let opcode = Opcode { service: Service::Rc, operation: Operation::WriteOnly };
    let mut headers = Headers::new(Bth { ack_request: true, ..Bth::new(opcode, qpn, psn) });
    headers.reth = Some(Reth { va: 0x1000, rkey: 0x5a5a_5a00, dma_len: PAYLOAD as u32 });
    let mut packet = vec![0; headers.len() + PAYLOAD + ICRC_LEN];
    headers.emit(&mut packet).map_err(|error| Error::other(format!("{error:?}")))?;
    let (length, covered) = (packet.len(), packet.len() - ICRC_LEN);
    let mut crc = flow.start(length, 0);
    crc.bth(&packet[..covered]);
    packet[covered..].copy_from_slice(&crc.finish());
    Ok(packet)
}
