//! Real packets off an interface, by a packet socket: what UDP carries to port 4791, trains cut into packets.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const FRAME: usize = 1 << 17;
/// struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
const VNET_HEADER: usize = 10;
const ETHERNET: usize = 14;
const UDP: usize = 8;

/// Waits for `count` packets on `interface`, or for `limit` to pass.
pub(crate) fn capture(interface: &str, count: usize, limit: Duration) -> io::Result<Vec<Vec<u8>>> {
    let socket = packet_socket(interface)?;
    let mut frame = vec![0; FRAME];
    let mut packets = Vec::new();
    let start = Instant::now();
    while packets.len() < count && start.elapsed() < limit {
        // SAFETY: the buffer is valid for its length.
        let length = unsafe {
            libc::recv(socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(length) {
            Ok(length) => take(&frame[..length.min(FRAME)], &mut packets),
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    Ok(packets)
}

/// The UDP payloads of a frame.
fn take(frame: &[u8], packets: &mut Vec<Vec<u8>>) {
    let Some((vnet, frame)) = frame.split_at_checked(VNET_HEADER) else { return };
    let segment = usize::from(u16::from_ne_bytes([vnet[4], vnet[5]]));
    let Some(ip) = frame.get(ETHERNET..) else { return };
    let header = match ip.first().map(|byte| byte >> 4) {
        Some(4) if ip.get(9) == Some(&17) => usize::from(ip[0] & 15) * 4,
        Some(6) if ip.get(6) == Some(&17) => 40,
        _ => return,
    };
    let Some(udp) = ip.get(header..).filter(|udp| udp.len() > UDP && udp[2..4] == 4791_u16.to_be_bytes())
    else {
        return;
    };
    let payload = &udp[UDP..];
    let size = if segment == 0 { payload.len() } else { segment };
    packets.extend(payload.chunks(size).map(<[u8]>::to_vec));
}

fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: socket has no memory preconditions.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(all)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    // SAFETY: a NUL-terminated string.
    address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let one: libc::c_int = 1;
    // SAFETY: both pointers are to live locals of the lengths given.
    let failed = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_VNET_HDR,
            (&raw const one).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        ) != 0
            || libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Writes packets to a file, each behind its length.
pub(crate) fn write(file: &str, packets: &[Vec<u8>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for packet in packets {
        bytes.extend((packet.len() as u32).to_be_bytes());
        bytes.extend(packet);
    }
    fs::write(file, bytes)
}

/// Reads what [`write()`] wrote.
pub(crate) fn read(file: &str) -> io::Result<Vec<Vec<u8>>> {
    let bytes = fs::read(file)?;
    let (mut rest, mut packets) = (bytes.as_slice(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let (packet, after) =
            after.split_at_checked(length).ok_or_else(|| io::Error::other(format!("{file} is cut off")))?;
        packets.push(packet.to_vec());
        rest = after;
    }
    Ok(packets)
}
