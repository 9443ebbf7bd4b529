//! Making the 64 sockets of a local address, and finding out who else has made them.

use super::SocketGroup;
use super::error::{Error, Holder};
use ferroce_os::sys::{self, EngineFd, InetAddress};
use ferroce_types::{GROUP_SIZE, HostAddr};
use ferroce_wire::ROCE_V2_PORT;
use std::io;
use std::net::IpAddr;

const PREPARING: &str = "preparing a socket for UDP port 4791";

/// Makes a socket for RoCEv2 packets, of IPv6 or IPv4, that isn't bound yet.
pub type OpenSocket = fn(v6: bool) -> io::Result<EngineFd>;

/// Tries to make the group of sockets that `open` makes. `Ok(None)`: somebody holds the port, perhaps one of ours.
///
/// The program is attached before the first bind: that makes creation exclusive (a second such bind fails with
/// EADDRINUSE), while the other 63 join as plain members.
pub(super) fn create(address: HostAddr, open: OpenSocket) -> Result<Option<Box<SocketGroup>>, Error> {
    let mut sockets = Vec::with_capacity(GROUP_SIZE);
    for index in 0..GROUP_SIZE {
        let socket = member(address, open).map_err(Error::system(PREPARING))?;
        if index == 0 {
            match attach_steering(socket.raw()) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                    return create_unsteered(address, open);
                }
                Err(e) => return Err(Error::system("SO_ATTACH_REUSEPORT_CBPF")(e)),
            }
        }
        if !bind(&socket, address)? {
            return Ok(None);
        }
        sockets.push(socket);
    }
    Ok(boxed(sockets))
}

/// The group where the kernel refuses to steer (qemu-user): one socket, 64 times. Which of the host's processes reads a packet is chance
/// then, and who reads another's passes it on. A socket that doesn't share the port makes creation exclusive, too.
fn create_unsteered(address: HostAddr, open: OpenSocket) -> Result<Option<Box<SocketGroup>>, Error> {
    let socket = open(address.is_ipv6()).map_err(Error::system(PREPARING))?;
    if !bind(&socket, address)? {
        return Ok(None);
    }
    let others = (1..GROUP_SIZE).map(|_| sys::duplicate_engine(socket.raw()));
    let mut sockets = others.collect::<io::Result<Vec<_>>>().map_err(Error::system(PREPARING))?;
    sockets.push(socket);
    tracing::debug!(%address, "the kernel can't steer packets to their processes: who reads another's passes it on");
    Ok(boxed(sockets))
}

/// `Ok(false)`: somebody holds the port.
fn bind(socket: &EngineFd, address: HostAddr) -> Result<bool, Error> {
    match sys::bind(socket.raw(), &InetAddress::new(address.with_port(ROCE_V2_PORT))) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(false),
        // EINVAL: a link-local address whose interface is gone.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL)) => {
            Err(Error::NoSuchAddress { address })
        }
        Err(e) => Err(Error::system("bind to UDP port 4791")(e)),
    }
}

/// `None` unless there are exactly [`GROUP_SIZE`].
pub(super) fn boxed(sockets: Vec<EngineFd>) -> Option<Box<SocketGroup>> {
    sockets.into_boxed_slice().try_into().ok()
}

fn member(address: HostAddr, open: OpenSocket) -> io::Result<EngineFd> {
    let socket = open(address.is_ipv6())?;
    sys::set_option(socket.raw(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &1_i32)?;
    Ok(socket)
}

/// Classic BPF over the UDP payload: the BTH's second word, without its last 12 bits, modulo 64. That is the low part of
/// the slot in the destination QPN ([`ferroce_types::steering_of`]). A packet too short for the load goes to socket 0.
fn attach_steering(fd: i32) -> io::Result<()> {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 12),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, GROUP_SIZE as u32 - 1),
        op(libc::BPF_RET | BPF_A, 0),
    ];
    sys::attach_program(fd, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// "Return the accumulator" (linux/filter.h).
const BPF_A: u32 = 0x10;

/// Whether a received descriptor is bound as the group's sockets must be.
pub(super) fn is_member(fd: i32, address: HostAddr) -> bool {
    let mut name = InetAddress::zeroed();
    sys::socket_name(fd, &mut name).is_ok()
        && name.socket_addr().is_some_and(|a| a.port() == ROCE_V2_PORT && HostAddr::from(a) == address)
}

/// What can be seen of a foreign holder of the port.
pub(super) fn holder(address: HostAddr) -> Holder {
    let table = if address.is_ipv6() { c"/proc/thread-self/net/udp6" } else { c"/proc/thread-self/net/udp" };
    let text = sys::read_file(table, 4 << 20).unwrap_or_default();
    let uid = holder_in(&String::from_utf8_lossy(&text), address);
    // The kernel's own sockets show user 0.
    let kernel_rxe =
        uid.is_none_or(|u| u == 0) && sys::read_file(c"/sys/module/rdma_rxe/initstate", 16).is_ok();
    Holder { uid, kernel_rxe, ..Holder::default() }
}

/// The owner of the first socket on the port, at this address or at all of them.
fn holder_in(table: &str, address: HostAddr) -> Option<u32> {
    let hex = |ip: IpAddr| -> String {
        let bytes: Vec<u8> = match ip {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        // The kernel prints 32-bit words in host byte order.
        bytes.as_chunks::<4>().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect()
    };
    let own = hex(address.ip());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        let ours = u16::from_str_radix(port, 16).ok()? == ROCE_V2_PORT;
        (ours && (ip == own || ip.bytes().all(|b| b == b'0'))).then(|| fields.nth(5)?.parse().ok())?
    })
}

/// A pause between attempts, not the same in two processes.
pub(super) fn pause() {
    sys::pause(std::time::Duration::from_micros(500 + sys::random() % 1000));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_read_from_the_udp_table() {
        let word = |a, b, c, d| format!("{:08X}", u32::from_ne_bytes([a, b, c, d]));
        let line = |ip: &str, port: &str, uid: u32| {
            format!(
                " 7: {ip}:{port} 00000000:0000 07 00000000:00000000 00:00000000 00000000 {uid} 0 4242 2 0 0\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let own = HostAddr::new("10.0.0.2".parse().unwrap(), 0);
        let other = line(&word(10, 0, 0, 3), "12B7", 5);
        let port = line(&word(10, 0, 0, 2), "12B8", 6);
        let exact = line(&word(10, 0, 0, 2), "12B7", 1001);
        let wildcard = line("00000000", "12B7", 0);
        assert_eq!(holder_in(&format!("{head}{other}{port}"), own), None);
        assert_eq!(holder_in(&format!("{head}{other}{port}{exact}"), own), Some(1001));
        assert_eq!(holder_in(&format!("{head}{wildcard}"), own), Some(0));
        assert_eq!(holder_in("", own), None);
    }
}
