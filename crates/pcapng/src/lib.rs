//! RoCEv2 packets in capture files, for Wireshark and its like.
//!
//! In here: the blocks of a file (pcapng), the IP and UDP headers that the kernel puts on the wire, and the bytes of a packet.
//! Out of here: files, and which packets are captured.
#![forbid(unsafe_code)]

mod block;
mod ip;
mod packet;

pub use block::{Direction, Interface, PacketBlock, file_header};
pub use ip::{IpUdpBytes, IpUdpHeader, ip_udp_bytes};
pub use packet::{PacketHead, flow, headed, trailer};
