//! UDP port 4791: is it ours to take on the devices' addresses, and do datagrams get through to it?

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use ferroce_host::{listings, openers_of};
use ferroce_netdev::{DeviceInfo, interfaces};
use ferroce_os::sys;

use super::diagnosis::{Diagnosis, user_name};

/// The port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;
/// A datagram to oneself arrives at once or never.
const SELF_TEST_PATIENCE: Duration = Duration::from_millis(300);

/// A socket as /proc/net/udp and udp6 show it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SocketEntry {
    ip: IpAddr,
    uid: u32,
    inode: u32,
}

/// Looks at the port on each address of each device.
pub fn check(devices: &[DeviceInfo], findings: &mut Vec<Diagnosis>) {
    let sockets = open_sockets(ROCE_PORT);
    let users: BTreeSet<u32> = listings().iter().map(|listing| listing.uid).collect();
    let mut seen = BTreeSet::new();
    for device in devices {
        for (_, entry) in device.gid_table().iter() {
            if seen.insert((entry.ip, entry.scope_id)) {
                findings.push(check_address(entry.ip, entry.scope_id, &sockets, &users));
            }
        }
    }
}

/// `users`: the users with Ferroce processes here.
fn check_address(ip: IpAddr, scope_id: u32, sockets: &[SocketEntry], users: &BTreeSet<u32>) -> Diagnosis {
    let holders: Vec<&SocketEntry> = sockets.iter().filter(|socket| conflicts(socket.ip, ip)).collect();
    // Binding would disturb a group of sockets that is at work, and proves nothing more.
    if let Some(first) = holders.first()
        && users.contains(&first.uid)
        && holders.iter().all(|socket| (socket.uid, socket.ip) == (first.uid, ip))
    {
        return Diagnosis::ok(
            "port",
            if first.uid == sys::user_id() {
                format!(
                    "UDP port {ROCE_PORT} on {ip} is in use by your Ferroce processes; more can join them."
                )
            } else {
                format!(
                    "UDP port {ROCE_PORT} on {ip} is in use by Ferroce processes of {}, which pass your packets on while they run.",
                    user_name(first.uid)
                )
            },
        );
    }
    match bind(ip, scope_id) {
        Ok(socket) => self_test(&socket, ip, scope_id),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Diagnosis::error(
            "port-taken",
            format!("UDP port {ROCE_PORT} on {ip} is taken{}.", holder_text(holders.first().copied())),
            "end that process, or use another interface (FERROCE_DEVICES) or network namespace",
        ),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Diagnosis::warning(
            "address-tentative",
            format!(
                "The address {ip} can't be used just now: it has gone, or the kernel still looks for another host that \
                 has it (`ip address` shows it as tentative)."
            ),
        ),
        Err(error) => Diagnosis::error(
            "port",
            format!("UDP port {ROCE_PORT} on {ip} cannot be used: {error}."),
            "allow UDP sockets in the sandbox or seccomp profile that this runs in",
        ),
    }
}

fn bind(ip: IpAddr, scope_id: u32) -> io::Result<UdpSocket> {
    UdpSocket::bind(address(ip, scope_id, ROCE_PORT))
}

/// A socket address with its scope.
pub fn address(ip: IpAddr, scope_id: u32, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
    }
}

/// Sends a datagram from another port of the address to `receiver`, which is bound to it.
fn self_test(receiver: &UdpSocket, ip: IpAddr, scope_id: u32) -> Diagnosis {
    let blocked = |how: String| {
        let says = format!("UDP port {ROCE_PORT} on {ip} is free, but a datagram sent to it here {how}");
        if !loopback_is_up() {
            return Diagnosis::error(
                "loopback-down",
                format!("{says}: lo is down, and packets between programs of one host take it."),
                "`ip link set lo up`",
            );
        }
        Diagnosis::error(
            "port-blocked",
            format!("{says}."),
            format!(
                "let it through the packet filter: `nft add rule inet filter input udp dport {ROCE_PORT} accept`, or \
                 `iptables -I INPUT -p udp --dport {ROCE_PORT} -j ACCEPT`"
            ),
        )
    };
    let attempt = || -> io::Result<()> {
        receiver.set_read_timeout(Some(SELF_TEST_PATIENCE))?;
        let sender = UdpSocket::bind(address(ip, scope_id, 0))?;
        let from = sender.local_addr()?;
        sender.send_to(b"ferroce doctor", address(ip, scope_id, ROCE_PORT))?;
        let mut buffer = [0; 64];
        // Others may send to a port of this number too: only the own datagram counts.
        for _ in 0..64 {
            if receiver.recv_from(&mut buffer)?.1.port() == from.port() {
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    };
    match attempt() {
        Ok(()) => Diagnosis::ok(
            "port",
            format!("UDP port {ROCE_PORT} on {ip} is free, and datagrams to it arrive."),
        ),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            blocked("does not arrive".into())
        }
        Err(error) => blocked(format!("is refused: {error}")),
    }
}

fn loopback_is_up() -> bool {
    interfaces().is_ok_and(|all| all.iter().any(|netdev| netdev.is_loopback() && netdev.is_up()))
}

/// Whether a socket bound to `bound` keeps another user from binding to `wanted`.
fn conflicts(bound: IpAddr, wanted: IpAddr) -> bool {
    match (bound, wanted) {
        (IpAddr::V4(bound), IpAddr::V4(wanted)) => bound == wanted || bound.is_unspecified(),
        (IpAddr::V6(bound), IpAddr::V6(wanted)) => bound == wanted || bound.is_unspecified(),
        // A socket on [::] usually takes IPv4 as well.
        (IpAddr::V6(bound), IpAddr::V4(wanted)) => {
            bound.is_unspecified() || bound.to_ipv4_mapped() == Some(wanted)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    }
}

fn holder_text(holder: Option<&SocketEntry>) -> String {
    let Some(socket) = holder else {
        return " by something that is not visible here (another user or PID namespace, or the kernel)"
            .into();
    };
    let user = if socket.uid == sys::user_id() { "you".to_owned() } else { user_name(socket.uid) };
    match process_with(socket.inode) {
        Some((pid, name)) => format!(" by process {pid} ({name}) of {user}"),
        None if socket.uid == 0 && sys::user_id() == 0 => {
            " by the kernel (a soft-RoCE device of rdma_rxe?) or a process of root that is not visible here"
                .into()
        }
        None => format!(" by {user}; which process that is, only that user and root can see"),
    }
}

/// The process that has the socket open and its name, if this user may inspect it.
pub fn process_with(inode: u32) -> Option<(i32, String)> {
    let pid = *openers_of(&[inode]).get(&inode)?.first()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

/// The sockets on `port` in this network namespace. The kernel gives its tables piece by piece, and leaves a socket out where
/// another one ends between two pieces: a socket that stays is in one of several readings.
fn open_sockets(port: u16) -> Vec<SocketEntry> {
    const READINGS: usize = 4;
    let mut found: Vec<SocketEntry> = Vec::new();
    for path in ["/proc/net/udp", "/proc/net/udp6"].repeat(READINGS) {
        for socket in sockets_on_port(&std::fs::read_to_string(path).unwrap_or_default(), port) {
            if !found.contains(&socket) {
                found.push(socket);
            }
        }
    }
    found
}

/// The sockets on `port` in the text of /proc/net/udp or udp6.
fn sockets_on_port(table: &str, port: u16) -> Vec<SocketEntry> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (ip, local_port) = fields.get(1)?.split_once(':')?;
        if u16::from_str_radix(local_port, 16).ok()? != port {
            return None;
        }
        Some(SocketEntry {
            ip: parse_ip(ip)?,
            uid: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// An address as the kernel prints it: words of the machine's byte order, in hexadecimal.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  335: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0
  336: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 815 2 0000000000000000 0
  337: broken
";
    const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
   39: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 99 2 0000000000000000 0
   40: 000080FE000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000    33        0 98 2 0000000000000000 0
";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_on_the_port_are_read_with_owner_and_inode() {
        assert_eq!(sockets_on_port(UDP, 4791), [SocketEntry { ip: ip("127.0.0.1"), uid: 1000, inode: 4711 }]);
        assert_eq!(
            sockets_on_port(UDP6, 4791),
            [
                SocketEntry { ip: ip("::"), uid: 0, inode: 99 },
                SocketEntry { ip: ip("fe80::1"), uid: 33, inode: 98 },
            ]
        );
        assert_eq!(sockets_on_port("", 4791), []);
    }

    #[test]
    fn wildcard_sockets_conflict_with_every_address_of_their_family() {
        assert!(conflicts(ip("0.0.0.0"), ip("10.0.0.1")));
        assert!(conflicts(ip("::"), ip("10.0.0.1")));
        assert!(conflicts(ip("::"), ip("fe80::1")));
        assert!(conflicts(ip("10.0.0.1"), ip("10.0.0.1")));
        assert!(!conflicts(ip("10.0.0.2"), ip("10.0.0.1")));
        assert!(!conflicts(ip("0.0.0.0"), ip("fe80::1")));
    }

    #[test]
    fn process_that_has_a_socket_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = open_sockets(socket.local_addr().unwrap().port());
        assert_eq!(own.len(), 1);
        assert_eq!(process_with(own[0].inode).unwrap().0, std::process::id().cast_signed());
    }

    #[test]
    fn taken_port_would_stop_a_program_and_names_the_holder() {
        // An address of the loopback network that nothing else uses, held by this very process.
        let here = ip("127.47.91.1");
        let Ok(_holder) = bind(here, 0) else {
            return ferroce_tests::record_skip("127.47.91.1:4791 can't be bound here");
        };
        let finding = check_address(here, 0, &open_sockets(ROCE_PORT), &BTreeSet::new());
        assert_eq!(finding.level, Severity::Error);
        assert!(finding.message.contains(&format!("by process {}", std::process::id())), "{finding:?}");
    }

    #[test]
    fn port_of_another_users_ferroce_is_in_nobodys_way() {
        let address = ip("127.47.91.3");
        let socket = |ip| SocketEntry { ip, uid: 4_000_000, inode: 7 };
        let finding = check_address(address, 0, &[socket(address)], &BTreeSet::from([4_000_000]));
        assert_eq!(finding.level, Severity::Ok, "{finding:?}");
        assert!(finding.message.contains("which pass your packets on"), "{finding:?}");
    }

    #[test]
    fn free_port_is_tried_with_a_datagram() {
        let finding = check_address(ip("127.47.91.2"), 0, &[], &BTreeSet::new());
        assert_eq!(
            finding,
            Diagnosis::ok("port", "UDP port 4791 on 127.47.91.2 is free, and datagrams to it arrive.")
        );
    }
}
