//! Making the 64 sockets of a local address, and finding out who else has made them.

use super::error::{Holder, HostError};
use ferroce_netdev::{UdpSocket, udp_sockets};
use ferroce_os::sys::{self, EngineFd, InetAddress};
use ferroce_types::{GROUP_SIZE, HostAddr};
use ferroce_wire::ROCE_V2_PORT;
use std::io;
use std::net::IpAddr;

const PREPARING: &str = "preparing a socket for UDP port 4791";

/// Makes a socket for RoCEv2 packets, of IPv6 or IPv4, that isn't bound yet.
pub type OpenSocket = fn(v6: bool) -> io::Result<EngineFd>;

/// The sockets of a local address, by steering value.
pub type SocketGroup = [EngineFd; GROUP_SIZE];

/// Tries to make the group of sockets that `open` makes. `Ok(None)`: another process holds the port, perhaps one of ours.
///
/// The program is attached before the first bind: that makes creation exclusive (a second such bind fails with
/// EADDRINUSE), while the other 63 join as plain members.
pub(super) fn create(address: HostAddr, open: OpenSocket) -> Result<Option<Box<SocketGroup>>, HostError> {
    let mut sockets = Vec::with_capacity(GROUP_SIZE);
    for index in 0..GROUP_SIZE {
        let socket = member(address, open).map_err(HostError::system(PREPARING))?;
        if index == 0 {
            match attach_steering(socket.raw()) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                    return create_unsteered(address, open);
                }
                Err(e) => return Err(HostError::system("SO_ATTACH_REUSEPORT_CBPF")(e)),
            }
        }
        if !bind(&socket, address)? {
            return Ok(None);
        }
        sockets.push(socket);
    }
    Ok(boxed(sockets))
}

/// The group where the kernel refuses to steer (qemu-user): one socket, 64 times. Any of the host's processes
/// may then read a packet, and passes on another's. A socket that doesn't share the port makes creation exclusive, too.
fn create_unsteered(address: HostAddr, open: OpenSocket) -> Result<Option<Box<SocketGroup>>, HostError> {
    let socket = open(address.is_ipv6()).map_err(HostError::system(PREPARING))?;
    if !bind(&socket, address)? {
        return Ok(None);
    }
    let others = (1..GROUP_SIZE).map(|_| sys::duplicate_engine(socket.raw()));
    let mut sockets = others.collect::<io::Result<Vec<_>>>().map_err(HostError::system(PREPARING))?;
    sockets.push(socket);
    tracing::debug!(%address, "the kernel can't steer packets to their processes: a process that reads another's packet passes it on");
    Ok(boxed(sockets))
}

/// `Ok(false)`: another process holds the port.
fn bind(socket: &EngineFd, address: HostAddr) -> Result<bool, HostError> {
    match sys::bind(socket.raw(), &InetAddress::new(address.with_port(ROCE_V2_PORT))) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(false),
        // EINVAL: a link-local address whose interface is gone.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::ENODEV | libc::EINVAL)) => {
            Err(HostError::NoSuchAddress { address })
        }
        Err(e) => Err(HostError::system("bind to UDP port 4791")(e)),
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
    let sockets = match udp_sockets(address.is_ipv6(), ROCE_V2_PORT) {
        Ok(sockets) => sockets,
        // This kernel has no such list. The table has no interfaces, so it proves nothing about a link-local address.
        Err(_) if address.scope_id() == 0 => {
            let table =
                if address.is_ipv6() { c"/proc/thread-self/net/udp6" } else { c"/proc/thread-self/net/udp" };
            sockets_in(&String::from_utf8_lossy(&sys::read_file(table, 4 << 20).unwrap_or_default()))
        }
        Err(_) => Vec::new(),
    };
    let uid = holder_among(&sockets, address);
    // The kernel's own sockets show user 0.
    let kernel_rxe =
        uid.is_none_or(|u| u == 0) && sys::read_file(c"/sys/module/rdma_rxe/initstate", 16).is_ok();
    Holder { uid, kernel_rxe, ..Holder::default() }
}

/// Whether some process here has UDP port 4791 at this address, as far as can be seen.
pub fn is_held(address: HostAddr) -> bool {
    holder(address).uid.is_some()
}

/// The user of the socket to which the kernel gives the port's packets: one at this address before one at all addresses. A
/// socket that is bound to another interface than that of a link-local address gets none.
fn holder_among(sockets: &[UdpSocket], address: HostAddr) -> Option<u32> {
    let is_there = |socket: &&UdpSocket| {
        (socket.address == address.ip() || socket.address.is_unspecified())
            && (socket.interface == 0 || address.scope_id() == 0 || socket.interface == address.scope_id())
    };
    let best = |socket: &&UdpSocket| (socket.address == address.ip(), socket.interface != 0);
    sockets.iter().filter(is_there).max_by_key(best).map(|socket| socket.uid)
}

/// The sockets on the port in the text of `/proc/net/udp` or `/proc/net/udp6`, which has no interfaces. The heading isn't a socket's line.
fn sockets_in(table: &str) -> Vec<UdpSocket> {
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (address, port) = fields.nth(1)?.split_once(':')?;
        // The kernel prints 32-bit words in host byte order.
        let word = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let words = address.as_bytes().chunks(8).map(|digits| Some(word(digits)?.to_ne_bytes()));
        let bytes = words.collect::<Option<Vec<_>>>()?.concat();
        let address = match <[u8; 4]>::try_from(&bytes[..]) {
            Ok(v4) => IpAddr::from(v4),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?),
        };
        let ours = u16::from_str_radix(port, 16).ok()? == ROCE_V2_PORT;
        let uid = fields.nth(5)?.parse().ok()?;
        ours.then_some(UdpSocket { address, interface: 0, uid })
    };
    table.lines().filter_map(parse).collect()
}

/// A pause between attempts, not the same in two processes.
pub(super) fn pause() {
    sys::pause(std::time::Duration::from_micros(500 + sys::random() % 1000));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_the_user_at_the_address_and_its_interface() {
        let at =
            |address: &str, interface, uid| UdpSocket { address: address.parse().unwrap(), interface, uid };
        let own = HostAddr::new("10.0.0.2".parse().unwrap(), 0);
        assert_eq!(holder_among(&[], own), None);
        assert_eq!(holder_among(&[at("10.0.0.3", 0, 5)], own), None);
        assert_eq!(holder_among(&[at("0.0.0.0", 0, 5)], own), Some(5));
        assert_eq!(holder_among(&[at("0.0.0.0", 3, 5), at("10.0.0.2", 0, 6)], own), Some(6));
        assert_eq!(holder_among(&[at("10.0.0.2", 3, 5)], own), Some(5), "bound to an interface");
        let own = HostAddr::new("fe80::1".parse().unwrap(), 2);
        let others = [at("fe80::1", 3, 5), at("::", 3, 5)];
        assert_eq!(holder_among(&others, own), None);
        assert_eq!(holder_among(&[&others[..], &[at("fe80::1", 2, 6)]].concat(), own), Some(6));
        assert_eq!(holder_among(&[&others[..], &[at("::", 0, 6)]].concat(), own), Some(6));
        assert_eq!(holder_among(&[&others[..], &[at("::", 2, 6)]].concat(), own), Some(6));
    }

    #[test]
    fn sockets_on_the_port_are_read_from_the_udp_tables() {
        let word = |a, b, c, d| format!("{:08X}", u32::from_ne_bytes([a, b, c, d]));
        let line = |ip: &str, port: &str, uid: u32| {
            format!(
                " 7: {ip}:{port} 00000000:0000 07 00000000:00000000 00:00000000 00000000 {uid} 0 4242 2 0 0\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let at = |address: &str, uid| UdpSocket { address: address.parse().unwrap(), interface: 0, uid };
        let port = line(&word(10, 0, 0, 2), "12B8", 6);
        let exact = line(&word(10, 0, 0, 2), "12B7", 1001);
        let wildcard = line("00000000", "12B7", 0);
        let v6 = format!("{}{}{}{}", word(0xfd, 0, 0, 0), "00000000", "00000000", word(0, 0, 0, 1));
        let text = format!("{head}{port}{exact}{wildcard}{}", line(&v6, "12B7", 7));
        assert_eq!(sockets_in(&text), [at("10.0.0.2", 1001), at("0.0.0.0", 0), at("fd00::1", 7)]);
        assert_eq!(sockets_in(""), []);
    }
}
