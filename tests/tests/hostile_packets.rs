//! Packets that must be dropped, in the middle of real traffic: malformed and cut off, with a wrong ICRC, QPN, P_Key,
//! Q_Key, source or PSN, with any opcode, and mutated copies of real ones. They change nothing but counters: every byte
//! of the real traffic is right, and no request fails.
//!
//! A packet in which all of this is right can't be distinguished from a real one: `hostile-sender` makes none.

use ferroce_tests::{Artifacts, Fabric, Process, World, require};
use std::time::Duration;

/// A million packets take twenty seconds, and more on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Addresses of the two hosts, or twice that of the one, and the attacker's own, from which no peer sends.
struct Addresses {
    server: &'static str,
    client: &'static str,
    alias: &'static str,
    gid_index: &'static str,
    alias_command: &'static str,
}

const IPV4: Addresses = Addresses {
    server: "10.77.0.2",
    client: "10.77.0.1",
    alias: "10.77.0.99",
    gid_index: "1",
    alias_command: "ip addr add 10.77.0.99/24 dev eth0",
};
const IPV6: Addresses = Addresses {
    server: "fd77::2",
    client: "fd77::1",
    alias: "fd77::99",
    gid_index: "2",
    alias_command: "ip addr add fd77::99/64 dev eth0 nodad",
};

/// The numbers that a side of `traffic/hostile_packets` prints about itself, as `name=value`.
fn settings_of(process: &Process) -> Vec<String> {
    let stdout = process.stdout();
    let line = stdout.lines().find_map(|line| line.strip_prefix("ready ")).expect("waited for");
    line.split_whitespace().map(str::to_owned).collect()
}

fn qpn_of(settings: &[String]) -> &str {
    settings.iter().find_map(|word| word.strip_prefix("rc=")).expect("a QPN")
}

/// Packets a second for each side: nearly all find room in its sockets.
const RATE: u64 = 50_000;

/// Both sides get half of `packets`, sent from the other's host.
fn attack(world: &World, settings: &[(&str, &str)], addresses: &Addresses, packets: u64, more: &[&str]) {
    let program = &*require!(Artifacts::get().c_program("traffic/hostile_packets"));
    let sender = Artifacts::get()
        .stage_program(env!("CARGO_BIN_EXE_hostile-sender").as_ref())
        .expect("the stage is writable");
    let sender = sender.to_str().expect("a UTF-8 path");
    let two = !std::ptr::eq(world.first(), world.last());
    let (client_host, server_host) = (world.first(), world.last());

    let words = [program, "-g", addresses.gid_index];
    let mut server = server_host.start_ferroce(&[], &words, settings);
    server_host.wait_for_listener(18515, &mut server, LIMIT);
    let meeting_point = server_host.ipv4();
    let mut client = client_host.start_ferroce(&[], &[&words[..], &[&meeting_point]].concat(), settings);
    for side in [&mut server, &mut client] {
        side.wait_for_output("ready", LIMIT);
    }
    // Only now, so that the sides can't have chosen its GID.
    client_host.admin(addresses.alias_command);
    let interface = if two { "eth0" } else { "lo" };
    // With another fabric than udp there is nothing to record.
    let wanted = if two || !settings.is_empty() { 4000 } else { 0 };
    let recorded = client_host.admin(&format!("{sender} capture {interface} {wanted} /tmp/recorded"));
    assert_eq!(recorded, format!("{}\n", if wanted == 0 { "0 packets" } else { recorded.trim() }));
    if two {
        let copy = std::fs::read(client_host.path("/tmp/recorded")).expect("just written");
        std::fs::write(server_host.path("/tmp/recorded"), copy).expect("a /tmp of its own");
        server_host.admin(addresses.alias_command.replace("99", "98").as_str());
    }

    let (of_server, of_client) = (settings_of(&server), settings_of(&client));
    let server_address = if two { addresses.server } else { addresses.client };
    let alias_of_server_host =
        if two { addresses.alias.replace("99", "98") } else { addresses.alias.to_owned() };
    let attacks = [
        (client_host, &of_server, &of_client, addresses.client, addresses.alias, server_address),
        (server_host, &of_client, &of_server, server_address, &*alias_of_server_host, addresses.client),
    ];
    let mut senders: Vec<Process> = attacks
        .into_iter()
        .enumerate()
        .map(|(seed, (host, victim, peer, from, alias, to))| {
            let mut words = vec![sender.to_owned(), "send".into()];
            words.extend(victim.iter().cloned());
            words.extend([
                format!("peer-rc={}", qpn_of(peer)),
                format!("from={from}"),
                format!("alias={alias}"),
                format!("to={to}"),
                format!("count={}", packets / 2),
                format!("rate={RATE}"),
                format!("seed={}", seed + 1),
                "captured=/tmp/recorded".into(),
            ]);
            words.extend(more.iter().map(ToString::to_string));
            host.start(&words, &[])
        })
        .collect();
    for sender in &mut senders {
        let outcome = sender.wait(LIMIT);
        outcome.expect_success();
        println!("{}", outcome.stdout.trim());
    }
    println!(
        "found a full socket: {} and {}",
        client_host.full_socket_drops(),
        if two { server_host.full_socket_drops() } else { 0 }
    );
    for side in [&mut server, &mut client] {
        side.signal(libc::SIGUSR1);
    }
    let (client, server) = (client.wait(LIMIT), server.wait(LIMIT));
    assert!(client.success() && server.success(), "{client}{server}");
    for side in [client, server] {
        // Datagrams with another Q_Key are reported.
        side.expect_success().expect_only_reasons();
        println!("{}", side.stdout.trim());
        assert!(side.stdout.contains("were right"), "{side}");
    }
}

#[test]
fn a_million_hostile_packets_between_two_hosts_change_nothing() {
    let world = require!(World::two_hosts(1500));
    attack(&world, &[], &IPV4, 1_000_000, &[]);
}

#[test]
fn hostile_packets_over_ipv6_change_nothing() {
    let world = require!(World::two_hosts(9000));
    attack(&world, &[], &IPV6, 100_000, &[]);
}

#[test]
fn hostile_packets_on_one_host_over_udp_change_nothing() {
    let world = require!(World::one_host(1500));
    attack(&world, Fabric::Udp.settings(), &IPV4, 100_000, &[]);
}

#[test]
fn hostile_packets_on_one_host_change_nothing() {
    let world = require!(World::one_host(1500));
    attack(&world, &[], &IPV4, 100_000, &[]);
}

/// Each of these makes the receiver ask for what is missing, which must not pass for failed retries.
#[test]
fn hostile_packets_with_future_psns_change_nothing() {
    let world = require!(World::two_hosts(1500));
    attack(&world, &[], &IPV4, 100_000, &["future=yes"]);
}

/// Where the server of the attacks on the communication manager listens.
const MAD_PORT: &str = "7950";

/// Attacks a listener whose program takes all requests, from a third address, while a real client makes connections with it: they end as
/// documented. The next client finds nothing of the attack.
fn attack_listener(world: &World, kind: &str, count: u32, rate: u32) {
    let program = &*require!(Artifacts::get().c_program("connections/many"));
    let sender = Artifacts::get()
        .stage_program(env!("CARGO_BIN_EXE_hostile-sender").as_ref())
        .expect("the stage is writable");
    let sender = sender.to_str().expect("a UTF-8 path");
    let address = world.last().ipv4();
    let mut server = world.last().start_ferroce(&[], &[program, "server", &address, MAD_PORT], &[]);
    server.wait_for_output("listening", LIMIT);
    // On an interface that isn't an adapter's, as the address is the attacker's alone.
    world.first().admin(&format!("ip addr add {}/32 dev lo", IPV4.alias));
    let settings = [
        format!("to={address}"),
        format!("from={}", IPV4.alias),
        format!("port={MAD_PORT}"),
        format!("kind={kind}"),
        format!("count={count}"),
        format!("rate={rate}"),
        "seed=5".to_owned(),
    ];
    let words: Vec<&str> = [sender, "mads"].into_iter().chain(settings.iter().map(String::as_str)).collect();
    let mut attacker = world.first().start(&words, &[]);
    attacker.wait_for_output("begins", LIMIT);
    let connect = || {
        let words = [program, "client", &address, MAD_PORT, "200", "100"];
        world.first().start_ferroce(&[], &words, &[])
    };
    // Meanwhile, packets may find a full socket as often as they are sent again.
    let during = connect().wait(Duration::from_secs(210));
    let attacker = attacker.wait(LIMIT);
    let after = connect().wait(LIMIT);
    server.signal(libc::SIGUSR2);
    let server = server.wait(LIMIT);
    println!("attacker: {attacker}during: {during}after: {after}server: {server}");
    for outcome in [&attacker, &during, &after, &server] {
        outcome.expect_success();
    }
    assert!(!during.stdout.contains(": 0 answered"), "{during}");
    assert!(after.stdout.contains("200 answered, 0 refused, 0 failed"), "{after}");
    world.last().expect_no_traces();
}

#[test]
fn a_flood_of_requests_leaves_a_listener_serving() {
    let world = require!(World::two_hosts(1500));
    attack_listener(&world, "flood", 50_000, 10_000);
}

#[test]
fn repeated_requests_and_replies_leave_a_listener_serving() {
    let world = require!(World::two_hosts(1500));
    attack_listener(&world, "replayed", 20_000, 10_000);
}

#[test]
fn mutated_messages_leave_a_listener_serving() {
    let world = require!(World::two_hosts(1500));
    attack_listener(&world, "mutated", 40_000, 20_000);
}

#[test]
#[ignore = "takes a minute"]
fn a_million_mutated_messages_leave_a_listener_serving() {
    let world = require!(World::two_hosts(1500));
    attack_listener(&world, "mutated", 1_000_000, 20_000);
}
