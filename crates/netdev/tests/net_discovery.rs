//! Discovery against a real kernel: each test runs itself again in a network namespace of its own, made without
//! privileges, and builds interfaces there with ip(8). Where that is refused, a test prints so and does nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use ferroce_netdev::{
    DeviceInfo, GidTable, LocalAddresses, Monitor, NetError, Netdev, PortState, RouteKind, discover_as,
    interfaces, route_to, way,
};
use ferroce_tests::inside::in_namespace;

/// ip(8) commands, one a line.
fn ip(commands: &str) {
    for line in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn shown(devices: &[DeviceInfo]) -> Vec<String> {
    devices.iter().map(|device| format!("{}={}", device.name, device.netdev.name)).collect()
}

fn gids(table: &GidTable) -> Vec<String> {
    table.iter().map(|(index, entry)| format!("{index}:{}%{}", entry.ip, entry.scope_id)).collect()
}

fn index_of(name: &str) -> u32 {
    interfaces().unwrap().into_iter().find(|netdev| netdev.name == name).unwrap().ifindex
}

/// Whether the fd becomes readable within two seconds.
fn readable(monitor: &Monitor) -> bool {
    let mut poll = libc::pollfd { fd: monitor.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives across the call.
    unsafe { libc::poll(&raw mut poll, 1, 2000) == 1 }
}

#[test]
fn loopback_is_the_device_of_an_otherwise_empty_namespace() {
    in_namespace("loopback_is_the_device_of_an_otherwise_empty_namespace", || {
        ip("link set lo down");
        assert_eq!(discover_as(None).unwrap(), [], "lo is down");
        ip("link set lo up");
        let devices = discover_as(None).unwrap();
        assert_eq!(shown(&devices), ["ferroce0=lo"]);
        assert_eq!(gids(&devices[0].gid_table()), ["0:127.0.0.1%0", "1:127.0.0.1%0", "2:::1%0"]);
        let port = devices[0].port();
        assert_eq!((port.state, port.active_mtu), (PortState::Active, 4096));
        assert_ne!(devices[0].node_guid, [0; 8]);
        assert_eq!(discover_as(None).unwrap()[0].node_guid, devices[0].node_guid);
    });
}

#[test]
fn devices_follow_the_default_route_and_leave_ports_out() {
    in_namespace("devices_follow_the_default_route_and_leave_ports_out", || {
        ip("link add a0 address 02:00:00:00:00:0a type veth peer name a0p
            link set a0p addrgenmode none
            link set a0p up
            link add b0 address 02:00:00:00:00:0b mtu 9000 type veth peer name b0p
            link set b0p addrgenmode none
            link set b0p up
            link add br0 type bridge
            link add v0 type veth peer name v1
            link set v1 master br0
            link add down0 type veth peer name down0p
            link add bare0 type veth peer name bare0p
            link set bare0p addrgenmode none
            link set bare0p up
            addr add 10.1.0.1/24 dev a0
            addr add 10.2.0.1/24 dev b0
            addr add 10.2.0.2/24 dev b0
            addr add fd00::2/64 dev b0 nodad
            addr add 10.3.0.1/24 dev br0
            addr add 10.4.0.1/24 dev down0
            addr add 10.5.0.1/24 dev v1
            link set bare0 addrgenmode none
            link set b0 addrgenmode eui64
            link set a0 up
            link set b0 up
            link set v0 addrgenmode none
            link set v0 up
            link set v1 up
            link set br0 up
            link set bare0 up
            route add default via 10.1.0.254 metric 200
            route add default via 10.2.0.254 metric 100");
        // Duplicate address detection of br0's link-local address and the bridge's port take their time.
        let deadline = Instant::now() + Duration::from_secs(10);
        let devices = loop {
            let devices = discover_as(None).unwrap();
            let settled = |name: &str| {
                let found = devices.iter().find(|device| device.netdev.name == name);
                found.is_some_and(|device| device.netdev.usable_addresses().any(|a| a.is_link_local_v6()))
            };
            if (settled("a0") && settled("b0") && settled("br0")) || Instant::now() > deadline {
                break devices;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(shown(&devices), ["ferroce0=b0", "ferroce1=a0", "ferroce2=br0"]);
        let b0 = &devices[0];
        let at = b0.netdev.ifindex;
        assert_eq!(
            gids(&b0.gid_table()),
            [
                format!("0:fe80::ff:fe00:b%{at}"),
                "1:10.2.0.1%0".to_string(),
                "2:10.2.0.2%0".to_string(),
                "3:fd00::2%0".to_string(),
            ]
        );
        assert_eq!(b0.node_guid, [0, 0, 0, 0xff, 0xfe, 0, 0, 0x0b]);
        assert_eq!((b0.port().active_mtu, devices[1].port().active_mtu), (4096, 1024));

        let named = discover_as(Some("mlx5_0=down0,mlx5_1=v1,mlx5_2=lo")).unwrap();
        assert_eq!(shown(&named), ["mlx5_0=down0", "mlx5_1=v1", "mlx5_2=lo"]);
        assert_eq!(named[0].port().state, PortState::Down);
        assert_eq!(named[1].netdev.port_kind.as_deref(), Some("bridge"));
        let unknown = discover_as(Some("mlx5_0=eth9")).unwrap_err();
        assert!(matches!(unknown, NetError::UnknownInterface { .. }), "{unknown}");

        ip("route del default via 10.2.0.254 metric 100");
        assert_eq!(shown(&discover_as(None).unwrap())[0], "ferroce0=a0");
        ip("route flush default
            -6 route add default via fd00::1 dev b0");
        assert_eq!(shown(&discover_as(None).unwrap())[0], "ferroce0=b0");
    });
}

#[test]
fn monitor_tells_of_addresses_and_links() {
    in_namespace("monitor_tells_of_addresses_and_links", || {
        ip("link add d0 type veth peer name d0p
            link set d0p addrgenmode none
            link set d0p up
            link set d0 addrgenmode none
            addr add 10.1.0.1/24 dev d0
            link set d0 up");
        let at = index_of("d0");
        let mut monitor = Monitor::open().unwrap();
        assert!(monitor.drain().unwrap().is_empty());
        let mut table = GidTable::new(&Netdev::read(at).unwrap());

        ip("addr add 10.1.0.2/24 dev d0");
        assert!(readable(&monitor));
        assert!(monitor.drain().unwrap().concerns(at));
        let changes = table.update(&Netdev::read(at).unwrap());
        assert_eq!(changes.iter().map(|change| change.index).collect::<Vec<_>>(), [2]);

        ip("link set d0 down");
        assert!(readable(&monitor));
        let changes = monitor.drain().unwrap();
        assert!(changes.concerns(at) && !changes.concerns(at + 100));
        assert!(!Netdev::read(at).unwrap().is_up());

        ip("link del d0");
        assert!(readable(&monitor));
        assert!(monitor.drain().unwrap().concerns(at));
        assert!(matches!(Netdev::read(at), Err(NetError::Gone { ifindex }) if ifindex == at));
        assert!(monitor.drain().unwrap().is_empty());
    });
}

#[test]
fn monitor_says_when_news_was_lost() {
    in_namespace("monitor_says_when_news_was_lost", || {
        ip("link add d0 type veth peer name d0p
            link set d0p addrgenmode none
            link set d0p up");
        let mut monitor = Monitor::open().unwrap();
        let small: libc::c_int = 1;
        // SAFETY: an int that lives across the call, with its length.
        let set = unsafe {
            libc::setsockopt(
                monitor.fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const small).cast(),
                size_of_val(&small) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        for _ in 0..4 {
            ip("link set d0 up
                link set d0 down");
        }
        assert!(monitor.drain().unwrap().lost);
    });
}

#[test]
fn routes_and_local_addresses_are_those_of_the_namespace() {
    in_namespace("routes_and_local_addresses_are_those_of_the_namespace", || {
        ip("link set lo up
            link add d0 type veth peer name d0p
            link set d0p addrgenmode none
            link set d0p up
            addr add 10.1.0.1/24 dev d0
            addr add fd00::1/64 dev d0 nodad
            link set d0 up
            route add 10.9.0.0/16 via 10.1.0.254 mtu 1400
            route add unreachable 10.8.0.0/16");
        // The kernel makes the route to an IPv6 address of its own a while after the address.
        let deadline = Instant::now() + Duration::from_secs(10);
        let is_local = |own: &str| {
            let route = route_to(own.parse().unwrap(), 0).unwrap();
            route.is_some_and(|route| route.kind == RouteKind::Local)
        };
        while !is_local("fd00::1") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let at = index_of("d0");
        // The kernel enters an IPv6 address in its table a little after the link has come up.
        let own = "fd00::1".parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while route_to(own, 0).unwrap().unwrap().kind != RouteKind::Local && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let far = route_to("10.9.1.1".parse().unwrap(), 0).unwrap().unwrap();
        assert_eq!((far.kind, far.ifindex, far.mtu), (RouteKind::Unicast, Some(at), Some(1400)));
        assert_eq!(far.gateway, Some("10.1.0.254".parse().unwrap()));
        let way_to = |to: &str, from: &str| way(from.parse().unwrap(), to.parse().unwrap(), 0).unwrap();
        assert_eq!(way_to("10.9.1.1", "10.1.0.1"), Some((at, Some(1400))));
        assert_eq!(way_to("10.1.0.2", "10.1.0.1"), Some((at, None)));
        assert_eq!(way_to("fd00::2", "fd00::1"), Some((at, None)));
        assert_eq!(way_to("192.0.2.1", "10.1.0.1"), None);
        assert_eq!(far.source, Some("10.1.0.1".parse().unwrap()));
        let near = route_to("fd00::2".parse().unwrap(), 0).unwrap().unwrap();
        assert_eq!((near.kind, near.ifindex, near.gateway), (RouteKind::Unicast, Some(at), None));
        for own in ["10.1.0.1", "127.0.0.1", "::1", "fd00::1"] {
            assert!(is_local(own), "{own}");
        }
        for nowhere in ["192.0.2.1", "10.8.0.1", "2001:db8::1"] {
            assert_eq!(route_to(nowhere.parse().unwrap(), 0).unwrap(), None, "{nowhere}");
        }

        let local = LocalAddresses::read().unwrap();
        for own in ["10.1.0.1", "127.0.0.9", "::1", "fd00::1"] {
            assert!(local.contains(own.parse().unwrap(), 0), "{own}");
        }
        assert!(!local.contains("10.9.1.1".parse().unwrap(), 0));
    });
}

#[test]
fn veth_tells_its_speed_to_everybody() {
    in_namespace("veth_tells_its_speed_to_everybody", || {
        ip("link add v0 type veth peer name v1
            addr add 10.1.0.1/24 dev v0
            link set v1 up
            link set v0 up");
        let v0 = Netdev::read(index_of("v0")).unwrap();
        assert_eq!((v0.kind.as_deref(), v0.speed_mbps), (Some("veth"), Some(10_000)));
    });
}
