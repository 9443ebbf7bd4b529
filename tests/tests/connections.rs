//! Debian's programs of librdmacm and perftest's `-R`, unmodified: connections, datagram services and groups between processes of one host, on whatever
//! fabric they choose and over `udp`, and between two hosts.

use ferroce_tests::{Artifacts, Fabric, Host, Outcome, Process, World, require, tool};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Port spaces.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;

/// Where both sides run.
#[derive(Clone, Copy)]
enum Place {
    OneHost,
    OneHostUdp,
    TwoHosts,
}

impl Place {
    fn world(self) -> Result<World, ferroce_tests::Skip> {
        match self {
            Self::OneHost | Self::OneHostUdp => World::one_host(9000),
            Self::TwoHosts => World::two_hosts(1500),
        }
    }

    fn fabric(self) -> Fabric {
        if matches!(self, Self::OneHostUdp) { Fabric::Udp } else { Fabric::Any }
    }
}

/// Both sides of a program.
struct Programs<'a> {
    server: &'a str,
    client: &'a str,
    space: u16,
    port: u16,
    options: &'a [&'a str],
}

/// In a line of words, `SERVER` stands for the server's IPv4 address, `SERVER6` for its IPv6 address, `CLIENT` for the client's.
fn words(line: &str, server: &Host, client: &Host) -> Vec<String> {
    let named = |word: &str| match word {
        "SERVER" => server.ipv4(),
        "SERVER6" => server.ipv6(),
        "CLIENT" => client.ipv4(),
        word => word.to_owned(),
    };
    line.split_whitespace().map(named).collect()
}

/// The library has refused nothing and found nothing wrong. (The programs themselves talk on standard error.)
fn expect_no_complaint(outcome: &Outcome) {
    assert!(!outcome.stderr.contains("ferroce"), "{outcome}");
}

impl<'a> Programs<'a> {
    /// rping's, at its port.
    fn rping(server: &'a str, client: &'a str) -> Self {
        Self { server, client, space: TCP, port: 7174, options: &[] }
    }

    fn start_server(&self, world: &World, fabric: Fabric) -> Process {
        let host = world.last();
        let line = words(self.server, host, world.first());
        let mut server = host.start_ferroce(self.options, &line, fabric.settings());
        host.wait_for_rdma_port(self.space, self.port, &mut server, LIMIT);
        server
    }

    fn start_client(&self, world: &World, fabric: Fabric) -> Process {
        let line = words(self.client, world.last(), world.first());
        world.first().start_ferroce(self.options, &line, fabric.settings())
    }

    /// Runs both to their ends: both succeed, and nothing is left.
    fn run(&self, place: Place) {
        let name = self.server.split_whitespace().next().expect("a program");
        require!(tool(name, if name.starts_with("ib_") { "perftest" } else { "rdmacm-utils" }));
        let world = require!(place.world());
        let mut server = self.start_server(&world, place.fabric());
        let client = self.start_client(&world, place.fabric()).wait(LIMIT);
        let server = server.wait(LIMIT);
        assert!(client.success() && server.success(), "server: {server}client: {client}");
        expect_no_complaint(&client);
        expect_no_complaint(&server);
        for host in [world.first(), world.last()] {
            host.expect_no_traces();
        }
    }
}

/// Makes a test of each name at each place.
macro_rules! everywhere {
    ($($name:ident: $space:ident $port:literal, $server:literal, $client:literal;)*) => {
        everywhere! { one_host, OneHost: $($name: $space $port, $server, $client;)* }
        everywhere! { one_host_udp, OneHostUdp: $($name: $space $port, $server, $client;)* }
        everywhere! { two_hosts, TwoHosts: $($name: $space $port, $server, $client;)* }
    };
    ($module:ident, $place:ident: $($name:ident: $space:ident $port:literal, $server:literal, $client:literal;)*) => {
        mod $module {$(
            #[test]
            fn $name() {
                let programs = super::Programs {
                    server: $server,
                    client: $client,
                    space: super::$space,
                    port: $port,
                    options: &[],
                };
                programs.run(super::Place::$place);
            }
        )*}
    };
}

// As few datagrams as a socket has room for: perftest waits for ever for one that is lost.
// -F: on a machine that is too busy for measuring the processor's clock, the client would end without a word, for which the server waits.
everywhere! {
    rping: TCP 7174, "rping -s -a SERVER -C 1000 -v -V", "rping -c -a SERVER -C 1000 -v -V";
    rping_ipv6: TCP 7174, "rping -s -a SERVER6 -C 1000 -v -V", "rping -c -a SERVER6 -C 1000 -v -V";
    rping_any_address: TCP 7174, "rping -s -C 100 -v -V", "rping -c -a SERVER -C 100 -v -V";
    rping_own_queue_pair: TCP 7174, "rping -s -q -a SERVER -C 100 -v -V", "rping -c -q -a SERVER -C 100 -v -V";
    ucmatose: TCP 7471, "ucmatose -b SERVER", "ucmatose -s SERVER";
    ucmatose_100_connections: TCP 7471, "ucmatose -b SERVER -c 100", "ucmatose -s SERVER -c 100";
    ucmatose_migrates: TCP 7471, "ucmatose -b SERVER -c 10 -m", "ucmatose -s SERVER -c 10 -m";
    ucmatose_type_of_service: TCP 7471, "ucmatose -b SERVER -t 104 -a 16", "ucmatose -s SERVER -t 104 -a 16";
    udaddy: UDP 7174, "udaddy -b SERVER", "udaddy -s SERVER";
    udaddy_ipv6: UDP 7174, "udaddy -b SERVER6", "udaddy -s SERVER6";
    udaddy_20_services: UDP 7174, "udaddy -b SERVER -c 20", "udaddy -s SERVER -c 20";
    rdma_server: TCP 7471, "rdma_server", "rdma_client -s SERVER";
    rdma_xserver: TCP 7471, "rdma_xserver -c r", "rdma_xclient -s SERVER -c r";
    perftest_send_bw: TCP 18515, "ib_send_bw -F -R -n 1000", "ib_send_bw -F -R -n 1000 SERVER";
    perftest_send_bw_datagrams: TCP 18515, "ib_send_bw -F -R -c UD -n 32", "ib_send_bw -F -R -c UD -n 32 SERVER";
    perftest_send_lat: TCP 18515, "ib_send_lat -F -R -n 1000", "ib_send_lat -F -R -n 1000 SERVER";
    perftest_write_bw: TCP 18515, "ib_write_bw -F -R -n 1000 -q 4", "ib_write_bw -F -R -n 1000 -q 4 SERVER";
    perftest_write_lat: TCP 18515, "ib_write_lat -F -R -n 1000", "ib_write_lat -F -R -n 1000 SERVER";
    perftest_read_bw: TCP 18515, "ib_read_bw -F -R -n 1000", "ib_read_bw -F -R -n 1000 SERVER";
    perftest_read_lat: TCP 18515, "ib_read_lat -F -R -n 1000", "ib_read_lat -F -R -n 1000 SERVER";
    perftest_atomic_bw: TCP 18515, "ib_atomic_bw -F -R -n 1000", "ib_atomic_bw -F -R -n 1000 SERVER";
    perftest_atomic_lat: TCP 18515, "ib_atomic_lat -F -R -n 1000", "ib_atomic_lat -F -R -n 1000 SERVER";
    rdma_xserver_xrc: IB 7471, "rdma_xserver -c x", "rdma_xclient -s SERVER -c x";
}

/// Within a host, the loopback addresses stand for it.
#[test]
fn loopback_addresses_reach_the_host_itself() {
    for address in ["127.0.0.1", "::1"] {
        let line = |role: &str| format!("rping {role} -a {address} -C 100 -v -V");
        let (server, client) = (line("-s"), line("-c"));
        let programs = Programs::rping(&server, &client);
        programs.run(Place::OneHost);
    }
}

/// A thread of the kernel's lists a new IPv6 address as local; before, the route of its network leads there, to no neighbour.
#[test]
fn an_address_that_becomes_local_while_it_is_resolved_is_reached() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    let programs = Programs::rping("rping -s -a SERVER6 -C 10 -v -V", "rping -c -a SERVER6 -C 10 -v -V");
    let mut server = programs.start_server(&world, Fabric::Any);
    let route = format!("local {} dev eth0 table local", world.first().ipv6());
    world.first().admin(&format!("ip -6 route del {route}"));
    let mut client = programs.start_client(&world, Fabric::Any);
    std::thread::sleep(Duration::from_millis(500));
    world.first().admin(&format!("ip -6 route add {route}"));
    client.wait(LIMIT).expect_success();
    server.wait(LIMIT).expect_success();
}

#[test]
fn a_persistent_server_serves_one_client_after_another() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(9000));
    let programs = Programs::rping("rping -s -P -a SERVER", "rping -c -a SERVER -C 2000 -v -V");
    let mut server = programs.start_server(&world, Fabric::Any);
    for at_once in [1, 1, 4] {
        let mut clients = Vec::new();
        for _ in 0..at_once {
            let mut client = programs.start_client(&world, Fabric::Any);
            // rping forgets a request that comes before it has begun with the one before.
            client.wait_for_output("ping data", LIMIT);
            clients.push(client);
        }
        for mut client in clients {
            expect_no_complaint(client.wait(LIMIT).expect_success());
        }
    }
    assert!(!server.has_ended());
    server.signal(libc::SIGKILL);
    server.wait(LIMIT);
    world.first().expect_no_traces();
}

/// Whether the kernel lists the host in the group.
fn is_member(host: &Host, table: &str, address: &str) -> bool {
    host.admin(&format!("cat /proc/net/{table}")).lines().any(|line| line.contains(address))
}

#[test]
fn messages_to_a_group_reach_who_has_joined() {
    send_to_groups(Place::TwoHosts, &[]);
}

#[test]
fn messages_to_a_group_reach_another_process_of_the_host() {
    for place in [Place::OneHost, Place::OneHostUdp] {
        send_to_groups(place, &[]);
    }
}

/// Ports of InfiniBand: programs get address vectors with LIDs, paths with LIDs and groups with MLIDs.
#[test]
fn programs_connect_by_lids() {
    const INFINIBAND: [&str; 2] = ["--link-layer", "infiniband"];
    for place in [Place::OneHost, Place::OneHostUdp, Place::TwoHosts] {
        for (space, port, server, client) in [
            (TCP, 7174, "rping -s -a SERVER -C 100 -v -V", "rping -c -a SERVER -C 100 -v -V"),
            (TCP, 7174, "rping -s -a SERVER6 -C 100 -v -V", "rping -c -a SERVER6 -C 100 -v -V"),
            (TCP, 7471, "ucmatose -b SERVER -c 10", "ucmatose -s SERVER -c 10"),
            (UDP, 7174, "udaddy -b SERVER", "udaddy -s SERVER"),
            (TCP, 7471, "rdma_server", "rdma_client -s SERVER"),
        ] {
            Programs { server, client, space, port, options: &INFINIBAND }.run(place);
        }
        send_to_groups(place, &INFINIBAND);
    }
}

fn send_to_groups(place: Place, options: &[&str]) {
    require!(tool("mckey", "rdmacm-utils"));
    let groups = [
        ("SERVER", "CLIENT", "239.1.2.3", "igmp", "030201EF"),
        ("SERVER6", "fd77::1", "ff0e::1234", "igmp6", "ff0e0000"),
    ];
    for (receiver, sender, group, table, entry) in groups {
        let world = require!(place.world());
        let start = |host: &Host, line: &str| {
            host.start_ferroce(options, &words(line, world.last(), world.first()), place.fabric().settings())
        };
        let mut joined = start(world.last(), &format!("mckey -b {receiver} -m {group}"));
        let since = Instant::now();
        while !is_member(world.last(), table, entry) {
            assert!(!joined.has_ended() && since.elapsed() < LIMIT, "{}", joined.wait(Duration::ZERO));
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut sender = start(world.first(), &format!("mckey -b {sender} -m {group} -s"));
        expect_no_complaint(sender.wait(LIMIT).expect_success());
        expect_no_complaint(joined.wait(LIMIT).expect_success());
        world.last().expect_no_traces();
    }
}

/// Lost messages are sent again, by the communication manager as by the transport. (A server whose client exits before its last message
/// has arrived learns of the end late: the client can't repeat the message.)
#[test]
fn connections_are_made_with_loss() {
    require!(tool("ucmatose", "rdmacm-utils"));
    let world = require!(World::two_hosts(1500));
    let programs = Programs {
        server: "ucmatose -b SERVER -c 200",
        client: "ucmatose -s SERVER -c 200",
        space: TCP,
        port: 7471,
        options: &["--fault", "drop=1%,seed=7"],
    };
    let server = programs.start_server(&world, Fabric::Any);
    let client = programs.start_client(&world, Fabric::Any).wait(LIMIT);
    expect_no_complaint(client.expect_success());
    server.signal(libc::SIGKILL);
}

#[test]
fn a_port_that_nobody_has_refuses() {
    require!(tool("rdma_client", "rdmacm-utils"));
    let world = require!(World::one_host(9000));
    let mut client = world.first().start_ferroce(&[], &["rdma_client", "-s", "10.77.0.1"], &[]);
    let outcome = client.wait(LIMIT);
    assert!(!outcome.success() && outcome.stderr.contains("Connection refused"), "{outcome}");
    assert!(outcome.stderr.contains("RDMA_CM_EVENT_REJECTED with status 8"), "{outcome}");
}

/// As with an adapter, an address that no host of the link has is found out before a connection is tried.
#[test]
fn a_host_that_does_not_answer_is_an_address_error() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(9000));
    let mut client = world.first().start_ferroce(&[], &["rping", "-c", "-a", "10.77.0.99", "-C", "1"], &[]);
    let outcome = client.wait(LIMIT);
    assert!(!outcome.success(), "{outcome}");
    assert!(outcome.stderr.contains("RDMA_CM_EVENT_ADDR_ERROR, error -110"), "{outcome}");
}

/// A server that is killed leaves its port to the next one at once, and its client gets the end of the connection.
#[test]
fn a_killed_server_leaves_its_port_free() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(9000));
    let programs = Programs::rping("rping -s -a SERVER -v", "rping -c -a SERVER -v");
    for _ in 0..3 {
        let mut server = programs.start_server(&world, Fabric::Any);
        let mut client = programs.start_client(&world, Fabric::Any);
        client.wait_for_output("ping data", LIMIT);
        server.signal(libc::SIGKILL);
        server.wait(LIMIT);
        let outcome = client.wait(LIMIT);
        assert!(outcome.over_limit.is_none(), "the client goes on without a server: {outcome}");
        world.first().expect_no_traces();
    }
}

#[test]
fn an_id_hears_that_its_device_has_gone() {
    let program = require!(Artifacts::get().c_program("connections/removal"));
    for how in ["events", "calls"] {
        let world = require!(World::one_host(1500));
        let mut process = world.first().start_ferroce(&[], &[&*program, how], &[]);
        process.wait_for_output("ready", LIMIT);
        world.first().admin("ip link del eth0");
        process.wait(LIMIT).expect_success();
    }
}

/// When an address goes, only its ids get an event; when the hardware address changes, all ids of the interface do. Changes of neighbours
/// cause no event.
#[test]
fn ids_hear_that_an_address_of_their_interface_has_changed() {
    let program = require!(Artifacts::get().c_program("connections/changes"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    host.admin("ip addr add 10.77.0.7/24 dev eth0");
    let mut process = host.start_ferroce(&[], &[&*program], &[]);
    process.wait_for_output("ready", LIMIT);
    let mut expected = Vec::new();
    let mut change = |script: &str, event: &str, ids: &[&str]| {
        host.admin(script);
        expected.extend(ids.iter().map(|id| format!("{event} of {id}")));
        expected.sort_unstable();
        let start = Instant::now();
        loop {
            let said = process.stdout();
            let mut said: Vec<_> = said.lines().filter(|line| line.starts_with("RDMA_CM_EVENT_")).collect();
            said.sort_unstable();
            if said == expected {
                return;
            }
            assert!(start.elapsed() < LIMIT, "after {script}: {said:?}, not {expected:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let neighbour = |last| format!("ip neigh replace 10.77.0.99 lladdr 02:00:00:00:00:{last} dev eth0");
    change(&format!("{}; {}", neighbour("01"), neighbour("02")), "", &[]);
    change("ip addr add 10.77.0.8/24 dev eth0; ip addr del 10.77.0.8/24 dev eth0", "", &[]);
    change("ip addr del 10.77.0.7/24 dev eth0", "RDMA_CM_EVENT_ADDR_CHANGE", &["second"]);
    let of_device = ["client", "listening", "second", "server"];
    change("ip link set eth0 address 02:00:00:00:00:77", "RDMA_CM_EVENT_ADDR_CHANGE", &of_device);
    change("ip link del eth0", "RDMA_CM_EVENT_DEVICE_REMOVAL", &of_device);
    process.wait(LIMIT).expect_success();
}

/// A call that waits for acknowledgements logs after a second which id it waits for, and which events.
#[test]
fn who_waits_for_acknowledgements_says_of_which_events() {
    let program = require!(Artifacts::get().c_program("connections/acknowledged"));
    let world = require!(World::one_host(1500));
    for (how, call, event) in [
        ("destroy", "rdma_destroy_id", "ADDR_RESOLVED"),
        ("migrate", "rdma_migrate_id", "ADDR_RESOLVED"),
        ("request", "rdma_destroy_id", "CONNECT_REQUEST"),
    ] {
        let run = |when| world.first().start_ferroce(&[], &[&*program, how, when], &[]).wait(LIMIT);
        let late = run("late");
        late.expect_success();
        let id = late.stdout.lines().next().expect("the program prints the id");
        let begins = format!("ferroce: FC103 {call} of id {id} at 10.77.0.1:");
        let says = format!(
            ": the call waits until events are acknowledged (1 RDMA_CM_EVENT_{event}). Call rdma_ack_cm_event"
        );
        let lines: Vec<_> = late.stderr.lines().collect();
        let is_it = |line: &str| line.starts_with(&begins) && line.contains(&says);
        assert!(lines.len() == 1 && is_it(lines[0]), "{begins}…{says}: {late}");
        run("soon").expect_success().expect_quiet();
    }
}

/// The checker reports where the program has got the event that is waited for, not one that was acknowledged.
#[test]
fn the_place_of_an_event_is_that_of_the_one_waited_for() {
    let program = require!(Artifacts::get().c_program("connections/acknowledged"));
    let world = require!(World::one_host(1500));
    let words = [&*program, "second", "late"];
    let late = world.first().start_ferroce(&["--check=-FC106"], &words, &[]).wait(LIMIT);
    late.expect_success();
    assert!(late.stderr.contains("(1 RDMA_CM_EVENT_ROUTE_RESOLVED; at take_second"), "{late}");
}

/// Neither a thread that polls nor one that waits keeps messages of the communication manager waiting.
#[test]
fn threads_that_look_for_completions_leave_connections_alone() {
    let program = require!(Artifacts::get().c_program("connections/occupied"));
    for how in ["polls", "waits"] {
        let world = require!(World::two_hosts(1500));
        let start = |host: &Host, role: &str| {
            host.start_ferroce(&[], &[&*program, how, &world.last().ipv4(), role], &[])
        };
        let mut server = start(world.last(), "server");
        server.wait_for_output("listening", LIMIT);
        start(world.first(), "client").wait(LIMIT).expect_success();
        server.wait(LIMIT).expect_success();
    }
}

/// The time of each step of a thousand connections.
#[test]
fn cmtime_makes_1000_connections() {
    require!(tool("cmtime", "rdmacm-utils"));
    for place in [Place::OneHost, Place::TwoHosts] {
        let world = require!(place.world());
        let programs = Programs {
            server: "cmtime -b SERVER -c 1000",
            client: "cmtime -s SERVER -c 1000",
            space: TCP,
            port: 7471,
            options: &[],
        };
        // The server waits for ever.
        let server = programs.start_server(&world, place.fabric());
        let outcome = programs.start_client(&world, place.fabric()).wait(LIMIT);
        outcome.expect_success();
        assert!(outcome.stdout.contains("destroy"), "{outcome}");
        server.signal(libc::SIGKILL);
    }
}

/// A number in an event isn't enough: a line names the address, the cause and the fix.
#[test]
fn a_connection_that_fails_has_a_line_with_cause_and_fix() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    for (address, says) in [
        ("10.77.0.1", "ferroce: rdma_connect: no process listens at 10.77.0.1:7174. Start the server first"),
        ("10.77.0.99", "ferroce: rdma_resolve_addr: no neighbour answers for 10.77.0.99. Check the address"),
    ] {
        let line = ["rping", "-c", "-a", address, "-C", "1"];
        let outcome = world.first().start_ferroce(&[], &line, &[]).wait(LIMIT);
        assert!(!outcome.success() && outcome.stderr.contains(says), "{outcome}");
    }
}

#[test]
fn a_host_without_ferroce_is_named_after_two_seconds() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::two_hosts(1500));
    let peer = world.last().ipv4();
    let mut client = world.first().start_ferroce(&[], &["rping", "-c", "-C", "1", "-a", &*peer], &[]);
    let says = format!(
        "ferroce: rdma_connect: {peer} rejects packets to UDP port 4791: no process uses Ferroce there; retrying for 9"
    );
    client.wait_for_error(&says, LIMIT);
    assert!(!client.has_ended(), "it goes on");
    // The request that is sent again finds a server that has started meanwhile.
    let mut server = world.last().start_ferroce(&[], &["rping", "-s", "-C", "1"], &[]);
    client.wait(LIMIT).expect_success();
    server.wait(LIMIT).expect_success();
}

/// Has the name by which processes are asked first, and prints of which interface's GIDs it is asked.
const LEADER: &str = "
import os, socket, struct
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind('\\0ferroce-2-u%d-leader' % os.geteuid()); s.listen(64); print('listening', flush=True)
while True:
    c = s.accept()[0]; c.settimeout(20)
    try: m = c.recv(100)
    except OSError: continue
    if m[5:6] == b'\\3': print('asked about', socket.if_indextoname(struct.unpack('=I', m[8:12])[0]), flush=True)";

/// A process that is asked may be stopped, and is waited for.
#[test]
fn an_address_is_resolved_without_a_question_about_other_devices() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    host.admin(
        "ip link add eth7 type veth peer name peer7 && ip link set peer7 addrgenmode none up && \
         ip link set eth7 addrgenmode none up && ip addr add 10.88.0.1/24 dev eth7",
    );
    let mut leader = host.start(&["python3", "-c", LEADER], &[]);
    leader.wait_for_output("listening", LIMIT);
    let outcome = host.start_ferroce(&[], &["rping", "-c", "-C", "1", "-a", "10.88.0.1"], &[]).wait(LIMIT);
    assert!(outcome.stderr.contains("no process listens at 10.88.0.1:7174"), "{outcome}");
    let asked = leader.stdout();
    assert!(asked.contains("asked about eth7") && !asked.contains("asked about eth0"), "{asked}");
}
