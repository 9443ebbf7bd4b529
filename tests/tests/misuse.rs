//! Mistakes of programs, each with its correct twin, on each fabric: the line that explains a mistake appears exactly once at
//! each side that can detect it, `vendor_err` has its number, and the twin logs none.

use ferroce_tests::pages::error_programs;
use ferroce_tests::{Artifacts, Fabric, Outcome, World, require};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// The numbers that both sides report: the requester, in its completion and its line, and the responder; 0 is nothing.
type Said = (u16, u16);

/// A mistake, and what is reported in one process, in two that share memory, in two over UDP, and on two hosts. `None`: it isn't a
/// mistake there.
struct Mistake {
    program: &'static str,
    case: &'static str,
    local: Option<Said>,
    shm: Option<Said>,
    udp: Option<Said>,
    hosts: Option<Said>,
}

/// Reported by both sides.
const fn refused(program: &'static str, case: &'static str, number: u16) -> Mistake {
    everywhere(program, case, (number, number))
}

/// Reported the same way on each fabric.
const fn everywhere(program: &'static str, case: &'static str, said: Said) -> Mistake {
    Mistake { program, case, local: Some(said), shm: Some(said), udp: Some(said), hosts: Some(said) }
}

/// On two hosts no more is known than in two processes over UDP.
const fn silence(case: &'static str, local: Said, shm: Said, udp: Said) -> Mistake {
    let [local, shm, udp] = [Some(local), Some(shm), Some(udp)];
    Mistake { program: "misuse/connection", case, local, shm, udp, hosts: udp }
}

const MISTAKES: &[Mistake] = &[
    refused("misuse/keys", "unknown_rkey", 30),
    refused("misuse/keys", "deregistered", 31),
    refused("misuse/keys", "other_domain", 32),
    refused("misuse/keys", "region_without_right", 34),
    refused("misuse/keys", "unbound_window", 33),
    refused("misuse/keys", "unmapped", 38),
    refused("misuse/keys", "outside", 35),
    refused("misuse/keys", "swapped_address", 36),
    refused("misuse/keys", "queue_pair_without_right", 37),
    refused("misuse/keys", "invalidation", 39),
    everywhere("misuse/keys", "unknown_lkey", (30, 0)),
    everywhere("misuse/keys", "local_range", (35, 0)),
    everywhere("misuse/keys", "no_local_write", (34, 0)),
    everywhere("misuse/receives", "never_posted", (20, 0)),
    everywhere("misuse/receives", "used_up", (21, 0)),
    refused("misuse/receives", "too_small", 40),
    refused("misuse/receives", "receive_with_unknown_lkey", 30),
    refused("misuse/receives", "receive_without_local_write", 34),
    silence("unknown_qpn", (11, 0), (11, 0), (10, 0)),
    silence("peer_in_init", (12, 0), (12, 0), (10, 0)),
    silence("psn_behind", (13, 13), (17, 13), (10, 13)),
    silence("psn_ahead", (13, 0), (13, 0), (13, 0)),
    Mistake { local: None, hosts: Some((18, 0)), ..silence("peer_ends", (0, 0), (15, 0), (11, 0)) },
    // Through shared memory no time passes for a peer that is stopped.
    Mistake { local: None, shm: None, hosts: None, ..silence("peer_stopped", (0, 0), (0, 0), (19, 0)) },
    Mistake { local: None, shm: None, ..refused("misuse/connection", "path_mtu", 41) },
    Mistake { local: None, shm: None, ..everywhere("misuse/connection", "path_mtu_of_a_read", (54, 0)) },
    everywhere("misuse/connection", "no_route", (14, 0)),
    // It needs faults, and has a test of its own.
    Mistake {
        local: None,
        shm: None,
        udp: None,
        hosts: None,
        ..silence("packets_missing", (0, 0), (0, 0), (0, 0))
    },
    refused("misuse/connection", "posted_after", 30),
    everywhere("misuse/operations", "max_rd_atomic", (50, 0)),
    refused("misuse/operations", "max_dest_rd_atomic", 51),
    refused("misuse/operations", "misaligned", 52),
    everywhere("misuse/operations", "short_result", (53, 0)),
    everywhere("misuse/operations", "no_room_for_grh", (0, 43)),
    everywhere("misuse/operations", "other_qkey", (0, 44)),
    everywhere("misuse/operations", "window_on_a_region_without_right", (55, 0)),
    everywhere("misuse/operations", "overrun", (0, 70)),
    refused("misuse/xrc", "unknown_srq", 71),
    refused("misuse/xrc", "owner_refuses", 72),
];

/// The numbers of the lines of requesters and of responders, but for those of requests that were posted later.
fn said(outcome: &Outcome) -> (Vec<u16>, Vec<u16>) {
    said_by(&[outcome])
}

fn said_by(outcomes: &[&Outcome]) -> (Vec<u16>, Vec<u16>) {
    let (mut requesters, mut responders) = (Vec::new(), Vec::new());
    for (outcome, line) in
        outcomes.iter().flat_map(|outcome| outcome.stderr.lines().map(move |line| (outcome, line)))
    {
        let Some((number, text)) = line.strip_prefix("ferroce: FC").and_then(|line| line.split_once(' '))
        else {
            panic!("another line: {outcome}");
        };
        let number: u16 = number.parse().expect("a number");
        match (number, text.contains(": request 4")) {
            (1, true) => assert!(text.contains(": request 43 ("), "{outcome}"),
            (_, true) => requesters.push(number),
            (_, false) => responders.push(number),
        }
    }
    (requesters, responders)
}

fn some(number: u16) -> Vec<u16> {
    if number == 0 { Vec::new() } else { vec![number] }
}

/// The world has no way to the addresses for examples (RFC 5737), of which one is some mistake's.
const NO_ROUTE: &str = "ip route add unreachable 203.0.113.0/24";

fn check(mistakes: &[Mistake], fabric: Fabric, processes: &str, of: impl Fn(&Mistake) -> Option<Said>) {
    for mistake in mistakes {
        let Some((requester, responder)) = of(mistake) else { continue };
        let path = require!(Artifacts::get().c_program(mistake.program));
        let world = require!(World::one_host(1500));
        world.first().admin(NO_ROUTE);
        let run = |how| {
            let words = [&*path, mistake.case, how, processes];
            let outcome = world.first().start_ferroce(&[], &words, fabric.settings()).wait(LIMIT);
            outcome.expect_success();
            outcome
        };
        let wrong = run("wrong");
        assert_eq!(said(&wrong), (some(requester), some(responder)), "{}: {wrong}", mistake.case);
        let code = format!("vendor_err FC{requester:03}\n");
        assert!(requester == 0 || wrong.stdout.contains(&code), "{}: {wrong}", mistake.case);
        let after = wrong.stderr.lines().filter(|line| line.contains("FC001 ")).count();
        assert_eq!(after, usize::from(mistake.case == "posted_after"), "{wrong}");
        run("right").expect_ok().expect_quiet();
    }
}

/// As [`check`], of a requester on one host and a responder on another.
fn check_between_hosts(mistakes: &[Mistake]) {
    let world = require!(World::two_hosts(9000));
    world.first().admin(NO_ROUTE);
    for mistake in mistakes {
        let Some((requester, responder)) = mistake.hosts else { continue };
        let path = require!(Artifacts::get().c_program(mistake.program));
        let run = |how| {
            let mut server = world.last().start_ferroce(&[], &[&path, mistake.case, how, "server"], &[]);
            world.last().wait_for_listener(18515, &mut server, LIMIT);
            let words = [&*path, mistake.case, how, &world.last().ipv4()];
            let client = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
            client.expect_success();
            [client, server.wait(LIMIT)]
        };
        let [client, server] = run("wrong");
        server.expect_success();
        assert_eq!(
            said_by(&[&client, &server]),
            (some(requester), some(responder)),
            "{}: {client}{server}",
            mistake.case
        );
        let code = format!("vendor_err FC{requester:03}\n");
        assert!(requester == 0 || client.stdout.contains(&code), "{}: {client}", mistake.case);
        run("right").iter().for_each(|side| {
            side.expect_ok().expect_quiet();
        });
    }
}

macro_rules! on_each_fabric {
    ($($program:ident)*) => {$(
        mod $program {
            use super::*;

            fn mistakes() -> Vec<Mistake> {
                let here = |mistake: &&Mistake| mistake.program == concat!("misuse/", stringify!($program));
                MISTAKES.iter().filter(here).map(|m| Mistake { ..*m }).collect()
            }

            #[test]
            fn every_case_is_in_the_table() {
                let path = require!(Artifacts::get().c_program(concat!("misuse/", stringify!($program))));
                let listed = std::process::Command::new(path).output().expect("the program runs").stdout;
                let listed = String::from_utf8(listed).expect("case names are ASCII");
                let named: Vec<_> = mistakes().iter().map(|mistake| mistake.case).collect();
                assert_eq!(listed.lines().collect::<Vec<_>>(), named);
            }

            #[test]
            fn in_one_process() {
                check(&mistakes(), Fabric::Any, "one", |mistake| mistake.local);
            }

            #[test]
            fn through_shared_memory() {
                check(&mistakes(), Fabric::Any, "two", |mistake| mistake.shm);
            }

            #[test]
            fn over_udp() {
                check(&mistakes(), Fabric::Udp, "two", |mistake| mistake.udp);
            }

            #[test]
            fn between_hosts() {
                check_between_hosts(&mistakes());
            }
        }
    )*};
}

on_each_fabric! { keys receives connection operations xrc }

/// Cases of `c/misuse/refused.c`: a refused call, and a part of the line about it; `true`: over UDP only.
const REFUSED: &[(&str, &str, bool)] = &[
    ("attribute_missing", "ibv_modify_qp: Init to Rtr needs IBV_QP_MIN_RNR_TIMER", false),
    ("gid_index_of_nothing", "entry 99 of the GID table of ferroce0 is empty; there are: 0, 1", false),
    ("gid_index_of_the_other_family", "both must be IPv4 or both IPv6 (another sgid_index", false),
    ("path_mtu_above_the_port", "path_mtu 4096 is above the 1024 bytes that this path carries", true),
    ("states_left_out", "there is no transition from INIT to RTS: the order is RESET, INIT, RTR, RTS", false),
    (
        "receive_in_reset",
        "ibv_post_recv: a receive request in state RESET: the QP takes them from INIT on",
        false,
    ),
    ("send_in_init", "ibv_post_send: a send request in state INIT: the QP takes them from RTS on", false),
    (
        "remote_write_alone",
        "ibv_reg_mr: remote write or atomic access needs local write access as well",
        false,
    ),
    ("domain_in_use", "ibv_dealloc_pd: the protection domain still has objects (1)", false),
    ("queue_in_use", "ibv_destroy_cq: the completion queue still has send and receive queues (2)", false),
    ("inline_too_long", "ibv_post_send: 4096 bytes inline, the queue takes 64", false),
    ("too_many_elements", "ibv_post_send: 9 scatter/gather elements, the queue takes 2", false),
    ("receive_queue_full", "ibv_post_recv: the receive queue of 8 work requests is full", false),
    (
        "address_of_infiniband",
        "rdma_resolve_addr: dst_addr is an AF_IB address: devices are found by IP addresses",
        false,
    ),
];

#[test]
fn a_refused_call_says_why_once() {
    let path = require!(Artifacts::get().c_program("misuse/refused"));
    let listed = std::process::Command::new(&path).output().expect("the program runs").stdout;
    let listed = String::from_utf8(listed).expect("case names are ASCII");
    assert_eq!(listed.lines().collect::<Vec<_>>(), REFUSED.iter().map(|case| case.0).collect::<Vec<_>>());
    let world = require!(World::one_host(1500));
    for (case, says, udp_only) in REFUSED {
        for fabric in [Fabric::Any, Fabric::Udp] {
            let run = |how| {
                let process = world.first().start_ferroce(&[], &[&*path, case, how], fabric.settings());
                { process }.wait(LIMIT)
            };
            if !udp_only || fabric == Fabric::Udp {
                let wrong = run("wrong");
                wrong.expect_success();
                let lines: Vec<_> = wrong.stderr.lines().collect();
                assert!(lines.len() == 1 && lines[0].contains(says), "{case}: {wrong}");
            }
            run("right").expect_ok().expect_quiet();
        }
    }
}

#[test]
fn pages_of_reasons_name_programs_that_lead_to_them() {
    let named = error_programs();
    assert!(named.len() > 40, "{named:?}");
    for named in named.iter().filter(|named| named.option.is_none()) {
        let of_page = |mistake: &&Mistake| mistake.program == named.program && mistake.case == named.case;
        let said = MISTAKES
            .iter()
            .find(of_page)
            .map(|m| [m.local, m.shm, m.udp, m.hosts].map(Option::unwrap_or_default));
        let leads = |said: [Said; 4]| said.iter().any(|&(one, other)| [one, other].contains(&named.number));
        // The consequence of a failure (FC001) is reported by the same case.
        assert!(said.is_some_and(leads) || named.number == 1, "{named:?}");
    }
}

/// A packet that comes behind later ones is missed, and the peer asks for it again.
#[test]
fn a_packet_that_the_peer_misses_ends_a_request_without_retries() {
    let world = require!(World::one_host(1500));
    let named = error_programs();
    let named = named.iter().find(|named| named.number == 16).expect("FC016 has a program");
    let options: Vec<_> = named.option.as_deref().expect("its option").split(' ').collect();
    let path = require!(Artifacts::get().c_program(&named.program));
    for processes in ["one", "two"] {
        let run = |how| {
            let words = [&*path, &named.case, how, processes];
            world.first().start_ferroce(&options, &words, &[]).wait(LIMIT)
        };
        let wrong = run("wrong");
        wrong.expect_success();
        assert_eq!(said(&wrong), (vec![16], vec![]), "{wrong}");
        assert!(wrong.stdout.contains("vendor_err FC016\n"), "{wrong}");
        run("right").expect_ok().expect_quiet();
    }
}

/// With a capture all packets are those of a wire: the requester gets no more information than from a peer without Ferroce.
#[test]
fn a_peer_that_says_no_more_is_told_of_by_its_status() {
    let world = require!(World::one_host(1500));
    let named = error_programs();
    let untold = named.iter().filter(|named| named.option.as_deref() == Some("--capture"));
    let mut numbers = Vec::new();
    for named in untold {
        numbers.push(named.number);
        let path = require!(Artifacts::get().c_program(&named.program));
        let run = |how| {
            let words = [&*path, &named.case, how, "two"];
            world.first().start_ferroce(&["--capture", "/tmp/capture.pcapng"], &words, &[]).wait(LIMIT)
        };
        let wrong = run("wrong");
        wrong.expect_success();
        assert_eq!(said(&wrong).0, [named.number], "{wrong}");
        assert!(wrong.stdout.contains(&format!("vendor_err FC{:03}\n", named.number)), "{wrong}");
        run("right").expect_ok().expect_quiet();
    }
    assert_eq!(numbers, [22, 60, 61, 62]);
}

/// What a peer of this UDP port gets when its request is refused: the packets, from the BTH on.
fn refusal(world: &World, port: &str) -> Vec<String> {
    let program = &*Artifacts::get().c_program("traffic/one_responder").expect("asked for before");
    let wire_peer = Artifacts::get().stage_program(env!("CARGO_BIN_EXE_wire-peer").as_ref());
    let wire_peer = wire_peer.expect("the stage is writable").display().to_string();
    let (first, last) = (world.first(), world.last());
    let mut responder = first.start_ferroce(&[], &[program, &last.ipv4()], &[]);
    responder.wait_for_output("responds", LIMIT);
    let said = responder.stdout();
    let words: Vec<&str> = said.split_whitespace().skip(1).collect();
    let peer = [&*wire_peer, &last.ipv4(), port, words[0], words[1], &first.ipv4()];
    let outcome = last.start(&peer, &[]).wait(LIMIT);
    outcome.expect_success().expect_quiet();
    responder.signal(libc::SIGKILL);
    let responder = responder.wait(LIMIT);
    assert!(responder.stderr.starts_with("ferroce: FC030 "), "{responder}");
    outcome.stdout.lines().map(str::to_owned).collect()
}

/// Adapters and rdma_rxe send from 0xc000 on, and bnxt_re from 0x8cd1. They get the NAK of a refusal, and nothing beside it; a peer that
/// is neither gets the same NAK, and before it a packet with the reason, which is as the NAK but for four bytes of payload.
#[test]
fn no_adapter_gets_more_than_a_nak() {
    require!(Artifacts::get().c_program("traffic/one_responder"));
    let world = require!(World::two_hosts(1500));
    let of_adapters: Vec<_> = ["49152", "65535", "36049"].map(|port| refusal(&world, port)).into();
    // BTH and AETH: an acknowledgement of RC with the syndrome "remote access error", to QP 0x123.
    for packets in &of_adapters {
        assert!(packets.len() == 1 && packets[0].len() == 2 * 16, "{of_adapters:?}");
        assert!(packets[0].starts_with("11") && &packets[0][10..16] == "000123", "{packets:?}");
        assert_eq!(&packets[0][24..26], "62", "{packets:?}");
    }
    for port in ["1024", "49151"] {
        let packets = refusal(&world, port);
        let [before, nak] = &packets[..] else { panic!("{packets:?}") };
        assert_eq!(nak, &of_adapters[0][0]);
        assert_eq!(*before, format!("{nak}{:02x}000000", 30));
    }
}
