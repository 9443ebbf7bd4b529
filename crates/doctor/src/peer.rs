//! The way to another host: route, device, MTU, and whether a datagram to port 4791 is turned back.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ferroce_netdev::{DeviceInfo, Route, RouteKind, active_mtu, interfaces, is_neighbour_known, route_to};
use ferroce_os::sys;

use super::diagnosis::Diagnosis;
use super::port::{ROCE_PORT, address};

/// How long an answer from the network is waited for.
const PATIENCE: Duration = Duration::from_millis(700);
/// Three requests of the kernel's, a second apart, as long as it asks for a neighbour; part of it has passed.
const RESOLUTION: Duration = Duration::from_millis(2500);
/// IPv4 header and UDP header; the larger of IPv6 matters only for the last 20 bytes of the probe.
const IP_AND_UDP: u32 = 48;
/// A BTH opcode of the manufacturers' range: receivers drop what they don't know.
const UNKNOWN_OPCODE: u8 = 0xc0;

/// Looks at the way to `peer`.
pub fn check(peer: &str, devices: &[DeviceInfo], findings: &mut Vec<Diagnosis>) {
    let addresses = match resolve(peer) {
        Ok(addresses) => addresses,
        Err(error) => {
            findings.push(Diagnosis::error(
                "peer-name",
                format!("{peer} is not a name or address that can be resolved here: {error}."),
                "check the spelling, /etc/hosts and the name server",
            ));
            return;
        }
    };
    let mut ways = Vec::new();
    for (ip, scope) in addresses {
        let mut found = Vec::new();
        check_address(peer, ip, scope, devices, &mut found);
        ways.push(found);
    }
    // A host with a way over IPv4 and none over IPv6 (or the reverse) is reachable.
    let stops = |found: &Vec<Diagnosis>| {
        found.iter().any(|finding| finding.level == super::diagnosis::Severity::Error)
    };
    if ways.iter().any(|found| !stops(found)) {
        ways.retain(|found| !stops(found));
    }
    findings.extend(ways.into_iter().flatten());
}

/// The addresses of a name, each once.
fn resolve(peer: &str) -> io::Result<Vec<(IpAddr, u32)>> {
    let mut found = Vec::new();
    // `fe80::1%eth0` and plain IPv6 addresses need brackets, which a name mustn't have.
    let resolved: Vec<SocketAddr> = if let Some((ip, interface)) = peer.split_once('%') {
        let ip: IpAddr =
            ip.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not an address"))?;
        let all = interfaces().map_err(io::Error::other)?;
        let netdev = all.iter().find(|netdev| netdev.name == interface);
        let netdev = netdev.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such interface"))?;
        vec![address(ip, netdev.ifindex, ROCE_PORT)]
    } else {
        (peer, ROCE_PORT).to_socket_addrs()?.collect()
    };
    for resolved in resolved {
        let scope = if let SocketAddr::V6(v6) = resolved { v6.scope_id() } else { 0 };
        if !found.contains(&(resolved.ip(), scope)) {
            found.push((resolved.ip(), scope));
        }
    }
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address"));
    }
    Ok(found)
}

fn check_address(peer: &str, ip: IpAddr, scope: u32, devices: &[DeviceInfo], findings: &mut Vec<Diagnosis>) {
    if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) && scope == 0 {
        findings.push(Diagnosis::error(
            "peer-scope",
            format!("{ip} is link-local: it means nothing without its interface."),
            format!("`ferroce doctor {ip}%INTERFACE`"),
        ));
        return;
    }
    let route = match route_to(ip, scope) {
        Ok(Some(route)) => route,
        Ok(None) => {
            findings.push(Diagnosis::error(
                "peer-route",
                format!("There is no route to {}.", named(peer, ip)),
                "add one (`ip route`), or bring up the interface that leads there",
            ));
            return;
        }
        Err(error) => {
            findings.push(Diagnosis::warning(
                "peer-route",
                format!("The way to {} can't be looked up: {error}.", named(peer, ip)),
            ));
            return;
        }
    };
    if let Some(finding) = judge_route(peer, ip, &route, devices) {
        let ends_here = finding.level == super::diagnosis::Severity::Error || route.kind == RouteKind::Local;
        findings.push(finding);
        if ends_here {
            return;
        }
    }
    findings.push(probe(peer, ip, scope, &route, devices));
}

/// The peer as it was given, and its address unless it was given as one.
fn named(peer: &str, ip: IpAddr) -> String {
    let is_address = peer.split('%').next().is_some_and(|text| text.parse() == Ok(ip));
    if is_address { peer.to_owned() } else { format!("{peer} ({ip})") }
}

fn judge_route(peer: &str, ip: IpAddr, route: &Route, devices: &[DeviceInfo]) -> Option<Diagnosis> {
    match route.kind {
        RouteKind::Local => {
            return Some(Diagnosis::ok(
                "peer-route",
                format!("{} is this host: no network is needed.", named(peer, ip)),
            ));
        }
        RouteKind::Unicast => {}
        RouteKind::Other(_) => {
            return Some(Diagnosis::error(
                "peer-route",
                format!("{ip} is not the address of one host (broadcast or multicast)."),
                "name one host",
            ));
        }
    }
    let device = devices.iter().find(|device| Some(device.netdev.ifindex) == route.ifindex);
    let Some(device) = device else {
        return Some(Diagnosis::error(
            "peer-device",
            format!("The way to {} leaves by an interface that is not a device here.", named(peer, ip)),
            "name that interface in FERROCE_DEVICES (`ip route get` shows it)",
        ));
    };
    let source = route.source.map_or(String::new(), |source| format!(" from {source}"));
    let gateway = route.gateway.map_or(String::new(), |gateway| format!(" by way of {gateway}"));
    Some(Diagnosis::ok(
        "peer-route",
        format!("{} is reached through {}{source}{gateway}.", named(peer, ip), device.name),
    ))
}

/// Sends datagrams as long as the largest packet, and looks what the network answers.
fn probe(peer: &str, ip: IpAddr, scope: u32, route: &Route, devices: &[DeviceInfo]) -> Diagnosis {
    let device = devices.iter().find(|device| Some(device.netdev.ifindex) == route.ifindex);
    let interface_mtu = device.map_or(1500, |device| device.netdev.mtu);
    match send_probe(ip, scope, interface_mtu) {
        Ok((answer, mtu)) => {
            let answer = match answer {
                ProbeAnswer::Silence if !is_neighbour_there(route.gateway.unwrap_or(ip), device) => {
                    ProbeAnswer::NoNeighbour(route.gateway.unwrap_or(ip))
                }
                answer => answer,
            };
            judge_probe(peer, &answer, route.mtu.map_or(mtu, |of_route| of_route.min(mtu)), interface_mtu)
        }
        Err(error) => Diagnosis::error(
            "peer-send",
            format!("A datagram to UDP port {ROCE_PORT} of {} can't be sent: {error}.", named(peer, ip)),
            "look at the packet filter of this host (output of UDP port 4791)",
        ),
    }
}

/// False: the device's network resolves addresses, and the kernel has asked for this one in vain.
fn is_neighbour_there(ip: IpAddr, device: Option<&DeviceInfo>) -> bool {
    let unresolved = (libc::IFF_NOARP | libc::IFF_POINTOPOINT | libc::IFF_LOOPBACK) as u32;
    let Some(netdev) = device.map(|device| &device.netdev).filter(|netdev| netdev.flags & unresolved == 0)
    else {
        return true;
    };
    let deadline = Instant::now() + RESOLUTION;
    loop {
        match is_neighbour_known(ip, netdev.ifindex) {
            Ok(false) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Ok(known) => return known,
            Err(_) => return true,
        }
    }
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ProbeAnswer {
    Silence,
    /// The host, or the gateway to it, has not answered the kernel's question for its hardware address.
    NoNeighbour(IpAddr),
    NobodyListens,
    Unreachable(String),
}

/// The answer, and the MTU of the path as far as it is known afterwards.
fn send_probe(ip: IpAddr, scope: u32, interface_mtu: u32) -> io::Result<(ProbeAnswer, u32)> {
    let any = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    set_dont_fragment(&socket, ip.is_ipv4())?;
    socket.connect(address(ip, scope, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    let longest = (active_mtu(interface_mtu) + 80).min(interface_mtu).saturating_sub(IP_AND_UDP);
    let mut packet = vec![0u8; longest as usize];
    packet[0] = UNKNOWN_OPCODE;
    let mut answer = ProbeAnswer::Silence;
    let deadline = Instant::now() + PATIENCE;
    let mut next = Instant::now();
    while Instant::now() < deadline && answer == ProbeAnswer::Silence {
        // The first may be lost to address resolution, or be the one that finds out the path's MTU.
        if Instant::now() >= next {
            answer = classify(socket.send(&packet).map(|_| ()))?;
            next += PATIENCE / 3;
        }
        if answer == ProbeAnswer::Silence {
            std::thread::sleep(Duration::from_millis(10));
            answer = classify(socket.recv(&mut [0; 64]).map(|_| ()))?;
        }
    }
    Ok((answer, path_mtu(&socket, ip.is_ipv4()).unwrap_or(interface_mtu)))
}

fn classify(result: io::Result<()>) -> io::Result<ProbeAnswer> {
    let Err(error) = result else { return Ok(ProbeAnswer::Silence) };
    match error.raw_os_error() {
        // Too long for the path: the kernel has noted the path's MTU.
        Some(libc::EAGAIN | libc::EINTR | libc::EMSGSIZE) => Ok(ProbeAnswer::Silence),
        Some(libc::ECONNREFUSED) => Ok(ProbeAnswer::NobodyListens),
        Some(
            libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::EPROTO
            | libc::ENOPROTOOPT
            | libc::EACCES,
        ) => Ok(ProbeAnswer::Unreachable(error.to_string())),
        _ => Err(error),
    }
}

fn judge_probe(peer: &str, answer: &ProbeAnswer, path_mtu: u32, interface_mtu: u32) -> Diagnosis {
    let usable = active_mtu(path_mtu);
    if usable < active_mtu(interface_mtu) {
        return Diagnosis::error(
            "path-mtu",
            format!(
                "The path to {peer} carries packets of {path_mtu} bytes only, the interface {interface_mtu}: full \
                 packets are lost on the way."
            ),
            format!(
                "set the interface's MTU to {path_mtu}, or use a path MTU of {usable} in the program (`-m {usable}`)"
            ),
        );
    }
    match answer {
        ProbeAnswer::NobodyListens => Diagnosis::ok("peer-port", format!(
            "{peer} answers that nothing listens on UDP port {ROCE_PORT} at the moment: the way is open, and no \
             verbs program runs there yet."
        )),
        ProbeAnswer::Silence => Diagnosis::warning("peer-port", format!(
            "{peer} does not turn packets for UDP port {ROCE_PORT} back: either a verbs program or an adapter \
             listens there, or a packet filter drops them."
        ))
        .with_fix("if programs get no answer, run `ferroce doctor` there, and let UDP port 4791 in"),
        ProbeAnswer::NoNeighbour(neighbour) => Diagnosis::error(
            "peer-unreachable",
            format!("{peer} can't be reached: no neighbour answers for {neighbour}."),
            "check that the host is up and has this address, and the cable or virtual network between",
        ),
        ProbeAnswer::Unreachable(error) => Diagnosis::error("peer-unreachable", 
            format!("{peer} can't be reached: {error}."),
            "check that the host is up, its address, and packet filters on the way",
        ),
    }
}

fn set_dont_fragment(socket: &UdpSocket, is_ipv4: bool) -> io::Result<()> {
    let (level, name, value) = if is_ipv4 {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    };
    sys::set_option(socket.as_raw_fd(), level, name, &value)
}

/// The MTU that the kernel has noted for a connected socket's path.
fn path_mtu(socket: &UdpSocket, is_ipv4: bool) -> Option<u32> {
    let (level, name) =
        if is_ipv4 { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mtu = sys::int_option(socket.as_raw_fd(), level, name).ok()?;
    u32::try_from(mtu).ok().filter(|&mtu| mtu > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;

    fn route(kind: RouteKind) -> Route {
        Route { kind, ifindex: Some(2), source: None, gateway: None, mtu: None }
    }

    #[test]
    fn own_addresses_need_no_network() {
        let ip = "127.0.0.1".parse().unwrap();
        let finding = judge_route("here", ip, &route(RouteKind::Local), &[]).unwrap();
        assert_eq!(finding.level, Severity::Ok);
        assert_eq!(resolve("127.0.0.1").unwrap(), [(ip, 0)]);
        assert_eq!(resolve("::1").unwrap(), [("::1".parse().unwrap(), 0)]);
    }

    #[test]
    fn way_through_no_device_would_stop_a_program() {
        let ip = "10.0.0.9".parse().unwrap();
        let finding = judge_route("there", ip, &route(RouteKind::Unicast), &[]).unwrap();
        assert!(finding.level == Severity::Error && finding.fix.unwrap().contains("FERROCE_DEVICES"));
        let finding = judge_route("all", ip, &route(RouteKind::Other(libc::RTN_BROADCAST)), &[]).unwrap();
        assert_eq!(finding.level, Severity::Error);
    }

    #[test]
    fn narrow_path_would_stop_a_program() {
        let finding = judge_probe("there", &ProbeAnswer::Silence, 1400, 9000);
        assert!(finding.level == Severity::Error && finding.fix.unwrap().contains("-m 1024"));
        // 1400 and 1500 both carry packets of path MTU 1024.
        assert_eq!(judge_probe("there", &ProbeAnswer::NobodyListens, 1400, 1500).level, Severity::Ok);
    }

    #[test]
    fn silence_is_not_taken_for_an_answer() {
        let finding = judge_probe("there", &ProbeAnswer::Silence, 1500, 1500);
        assert!(finding.level == Severity::Warning && finding.message.contains("packet filter drops them"));
        let absent = judge_probe("there", &ProbeAnswer::NoNeighbour("10.0.0.9".parse().unwrap()), 1500, 1500);
        assert!(
            absent.level == Severity::Error && absent.message.ends_with("no neighbour answers for 10.0.0.9.")
        );
        let gone = ProbeAnswer::Unreachable("No route to host".into());
        assert_eq!(judge_probe("there", &gone, 1500, 1500).level, Severity::Error);
    }

    #[test]
    fn unused_port_of_this_host_is_turned_back() {
        // No process listens at this address of the loopback network.
        let (answer, _) = send_probe("127.47.91.3".parse().unwrap(), 0, 1500).unwrap();
        assert_eq!(answer, ProbeAnswer::NobodyListens);
    }
}
