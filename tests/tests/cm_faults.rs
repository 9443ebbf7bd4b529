//! Connections in bad company: sides that die or stop in the middle, great numbers, a port that another program has. The remaining side
//! gets a documented event in time, a server goes on serving, and nothing is left behind.

use ferroce_tests::{Artifacts, Host, Process, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Of `connections/states`.
const STATES: [&str; 6] = ["unfetched", "fetched", "accepted", "established", "disconnecting", "ending"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Server,
    Client,
}

/// A connection in one of the program's states, and the side that gets the signal.
struct Case {
    state: &'static str,
    victim: Side,
    port: u16,
    server: Process,
    client: Process,
}

fn start(host: &Host, program: &str, role: &str, server: &Host, port: u16, state: &str) -> Process {
    host.start_ferroce(&[], &[program, role, &server.ipv4(), &port.to_string(), state], &[])
}

impl Case {
    /// All states, each with either side as victim; both sides are there.
    fn all(world: &World, program: &str) -> Vec<Self> {
        let mut cases = Vec::new();
        for (number, state) in STATES.into_iter().enumerate() {
            for victim in [Side::Server, Side::Client] {
                let port = 7600 + 2 * number as u16 + u16::from(victim == Side::Client);
                let mut server = start(world.last(), program, "server", world.last(), port, state);
                server.wait_for_output("listening", LIMIT);
                let client = start(world.first(), program, "client", world.last(), port, state);
                cases.push(Self { state, victim, port, server, client });
            }
        }
        for case in &mut cases {
            case.server.wait_for_output("there", LIMIT);
            case.client.wait_for_output("there", LIMIT);
        }
        cases
    }

    fn victim(&self) -> &Process {
        if self.victim == Side::Server { &self.server } else { &self.client }
    }

    fn survivor(&mut self) -> &mut Process {
        if self.victim == Side::Server { &mut self.client } else { &mut self.server }
    }

    /// The survivor's last event of the connection, and after how many milliseconds.
    fn ended(&mut self, limit: Duration) -> (String, u64) {
        self.survivor().wait_for_output("ended by", limit);
        self.survivor().wait_for_output(" ms\n", limit);
        let stdout = self.survivor().stdout();
        let line = stdout.lines().find_map(|line| line.strip_prefix("ended by ")).expect("waited for");
        let (how, after) = line.split_once(" after ").expect("the program's words");
        let ms = after.trim_end_matches(" ms").parse().expect("a number");
        println!("{}, {:?} gone: {how} after {ms} ms", self.state, self.victim);
        (how.to_owned(), ms)
    }

    /// How it may end when the victim is gone, if the victim or another process of its host sends a message about it.
    fn expected(&self, signal: libc::c_int) -> &'static [&'static str] {
        let exits = signal == libc::SIGUSR2;
        match (self.state, self.victim) {
            ("unfetched" | "fetched", Side::Server) if exits => &["RDMA_CM_EVENT_REJECTED 28"],
            ("unfetched" | "fetched", Side::Server) => &["RDMA_CM_EVENT_REJECTED 8"],
            // The reply is there. Its sender's word that it has gone may find the client established.
            ("accepted", Side::Server) if exits => &[
                "RDMA_CM_EVENT_CONNECT_ERROR -22",
                "RDMA_CM_EVENT_REJECTED 4",
                "RDMA_CM_EVENT_REJECTED 28",
                "RDMA_CM_EVENT_DISCONNECTED 0",
            ],
            // The queue pair can't be connected any more, or is just before its peer's end is known.
            ("accepted", Side::Server) => &[
                "RDMA_CM_EVENT_CONNECT_ERROR -22",
                "RDMA_CM_EVENT_REJECTED 4",
                "RDMA_CM_EVENT_DISCONNECTED 0",
            ],
            // An answer of the victim, or of the kernel or a process of its host in its place, perhaps before the server has answered.
            ("unfetched" | "fetched" | "accepted", Side::Client) => &[
                "refusal -22",
                "RDMA_CM_EVENT_REJECTED 28",
                "RDMA_CM_EVENT_REJECTED 4",
                "RDMA_CM_EVENT_REJECTED 6",
            ],
            _ => &["RDMA_CM_EVENT_DISCONNECTED 0"],
        }
    }
}

/// Surviving servers take the next client.
fn serve_one_more(world: &World, program: &str, cases: &mut [Case]) {
    let next = |case: &Case| {
        let is_server = case.victim == Side::Client;
        is_server.then(|| start(world.first(), program, "client", world.last(), case.port, "established"))
    };
    let clients: Vec<Option<Process>> = cases.iter().map(next).collect();
    for mut client in clients.into_iter().flatten() {
        client.wait_for_output("there", LIMIT);
        client.signal(libc::SIGUSR1);
        client.wait(LIMIT).expect_success();
    }
    for case in cases {
        case.survivor().wait(LIMIT).expect_success();
    }
}

/// Ends the victims of all states by a signal; the others know within `limit`.
fn end_in_every_state(world: &World, signal: libc::c_int, limit: Duration) {
    let program = &*require!(Artifacts::get().c_program("connections/states"));
    let mut cases = Case::all(world, program);
    for case in &mut cases {
        case.victim().signal(signal);
        case.survivor().signal(libc::SIGUSR1);
    }
    for case in &mut cases {
        let (how, ms) = case.ended(LIMIT);
        let (state, victim) = (case.state, case.victim);
        assert!(case.expected(signal).contains(&&*how), "{state}, {victim:?} gone: {how}");
        assert!(Duration::from_millis(ms) < limit, "{state}, {victim:?} gone: {ms} ms");
    }
    serve_one_more(world, program, &mut cases);
}

/// The kernel reports the death at once.
#[test]
fn a_process_of_the_host_that_is_killed_in_any_state_is_noticed() {
    let world = require!(World::one_host(1500));
    end_in_every_state(&world, libc::SIGKILL, Duration::from_secs(5));
    world.first().expect_no_traces();
}

/// On a host where others use Ferroce, they answer the first message that comes again.
#[test]
fn a_process_of_another_host_that_is_killed_in_any_state_is_noticed() {
    let world = require!(World::two_hosts(1500));
    let program = &*require!(Artifacts::get().c_program("connections/states"));
    let bystanders = [world.first(), world.last()].map(|host| {
        let mut bystander = start(host, program, "server", host, 7700, "established");
        bystander.wait_for_output("listening", LIMIT);
        bystander
    });
    end_in_every_state(&world, libc::SIGKILL, Duration::from_secs(20));
    drop(bystanders);
}

/// A process that exits informs its peers, also those whose requests it hasn't fetched.
#[test]
fn a_process_that_exits_in_any_state_says_so() {
    for world in [World::one_host(1500), World::two_hosts(1500)] {
        end_in_every_state(&require!(world), libc::SIGUSR2, Duration::from_secs(4));
    }
}

/// A process that was stopped for a while goes on where it was.
#[test]
fn a_process_that_was_stopped_in_any_state_goes_on() {
    for world in [World::one_host(1500), World::two_hosts(1500)] {
        let world = require!(world);
        let program = &*require!(Artifacts::get().c_program("connections/states"));
        let mut cases = Case::all(&world, program);
        for case in &mut cases {
            case.victim().signal(libc::SIGSTOP);
            case.survivor().signal(libc::SIGUSR1);
        }
        std::thread::sleep(Duration::from_millis(1500));
        for case in &mut cases {
            case.victim().signal(libc::SIGUSR1);
            case.victim().signal(libc::SIGCONT);
            let (how, _) = case.ended(LIMIT);
            assert_eq!(how, "RDMA_CM_EVENT_DISCONNECTED 0", "{}, {:?} stopped", case.state, case.victim);
        }
    }
}

/// A killed process that was the only one of its host sends no answer, and neither does a stopped one: all repetitions go unanswered.
#[test]
#[ignore = "takes all repetitions, twice: three and a half minutes"]
fn silence_ends_connections_in_any_state() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let world = require!(World::two_hosts(1500));
        let program = &*require!(Artifacts::get().c_program("connections/states"));
        let mut cases = Case::all(&world, program);
        // One side of all, so that no process answers on that host.
        cases.retain(|case| case.victim == Side::Server);
        for case in &mut cases {
            case.victim().signal(signal);
            case.survivor().signal(libc::SIGUSR1);
        }
        for case in &mut cases {
            let (how, ms) = case.ended(Duration::from_secs(110));
            let ends = [
                "RDMA_CM_EVENT_UNREACHABLE -110",
                "RDMA_CM_EVENT_DISCONNECTED -110",
                "RDMA_CM_EVENT_DISCONNECTED 0",
            ];
            assert!(ends.contains(&&*how), "{}: {how}", case.state);
            assert!(ms < 110_000, "{}: {ms} ms", case.state);
        }
    }
}

/// Makes connections between a client on the first host and a server on the last; all end, and nothing is left.
fn make_many(world: &World, options: &[&str], count: u32, rate: u32) -> String {
    let program = Artifacts::get().c_program("connections/many").unwrap_or_else(|skip| panic!("{}", skip.0));
    let address = world.last().ipv4();
    let limit = Duration::from_secs(220);
    let mut server = world.last().start_ferroce(options, &[&*program, "server", &address, "7900"], &[]);
    server.wait_for_output("listening", LIMIT);
    let words = [&*program, "client", &address, "7900", &count.to_string(), &rate.to_string()];
    let client = world.first().start_ferroce(options, &words, &[]).wait(limit);
    server.signal(libc::SIGUSR1);
    let server = server.wait(limit);
    assert!(client.success() && server.success(), "server: {server}client: {client}");
    println!("server: {}client: {}", server.stdout, client.stdout);
    for host in [world.first(), world.last()] {
        host.expect_no_traces();
    }
    client.stdout
}

#[test]
fn a_thousand_connections_come_and_go_on_one_host() {
    let world = require!(World::one_host(1500));
    let said = make_many(&world, &[], 1000, 200);
    assert!(said.contains("1000 answered, 0 refused, 0 failed"), "{said}");
}

#[test]
fn a_thousand_connections_come_and_go_between_hosts_with_loss() {
    let world = require!(World::two_hosts(1500));
    make_many(&world, &["--fault", "drop=1%,seed=12"], 1000, 200);
}

#[test]
fn ten_thousand_connections_exist_at_once() {
    let world = require!(World::one_host(1500));
    let said = make_many(&world, &[], 10_000, 0);
    assert!(said.contains("all 10000 at once"), "{said}");
    assert!(said.contains("10000 answered, 0 refused, 0 failed"), "{said}");
}

/// The process that reads the requests is another one, and the queue of a UNIX socket has room for ten messages. What is lost is sent again
/// after six seconds.
#[test]
fn requests_that_come_at_once_from_another_host_are_all_passed_on() {
    let world = require!(World::two_hosts(1500));
    let program = Artifacts::get().c_program("connections/many").unwrap_or_else(|skip| panic!("{}", skip.0));
    let words = [&*program, "server", &world.last().ipv4(), "7901"];
    let mut reader = world.last().start_ferroce(&[], &words, &[]);
    reader.wait_for_output("listening", LIMIT);
    let mut server =
        world.last().start_ferroce(&[], &[&*program, "server", &world.last().ipv4(), "7900"], &[]);
    server.wait_for_output("listening", LIMIT);
    let words = [&*program, "client", &world.last().ipv4(), "7900", "200", "0"];
    let begin = std::time::Instant::now();
    let client = world.first().start_ferroce(&[], &words, &[]).wait(LIMIT);
    let taken = begin.elapsed();
    assert!(client.stdout.contains("200 answered, 0 refused, 0 failed"), "{client}");
    assert!(taken < Duration::from_secs(6), "{taken:?}: some were lost");
    for mut process in [server, reader] {
        process.signal(libc::SIGUSR1);
        process.wait(LIMIT).expect_success();
    }
}

/// To programs of librdmacm EADDRINUSE is a port of theirs.
#[test]
fn a_device_whose_udp_port_is_taken_is_none() {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    let script = "import socket,time; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('0.0.0.0',4791)); \
                  print('bound',flush=True); time.sleep(60)";
    let mut holder = world.first().start(&["python3", "-c", script], &[]);
    holder.wait_for_output("bound", LIMIT);
    for words in
        [&["rping", "-s", "-a", "10.77.0.1"][..], &["rping", "-s"], &["rping", "-c", "-a", "10.77.0.1"]]
    {
        let outcome = world.first().start_ferroce(&[], words, &[]).wait(LIMIT);
        assert!(!outcome.success(), "{outcome}");
        assert!(outcome.stderr.contains("UDP port 4791 of 10.77.0.1 is taken by"), "{outcome}");
        assert!(outcome.stderr.contains("No such device"), "{outcome}");
    }
}
