//! Many processes of one host on one UDP port: they join, work and leave at once, and one that stands still doesn't
//! block the others.

use ferroce_tests::{Artifacts, Fabric, Pair, Process, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn stream() -> Result<String, ferroce_tests::Skip> {
    Artifacts::get().c_program("traffic/stream")
}

fn start(world: &World, program: &str, port: u16, server: bool, more: &[&str]) -> Process {
    let (port_word, address) = (port.to_string(), world.first().ipv4());
    let mut words = vec![program, "-p", &port_word];
    words.extend(more);
    if !server {
        words.push(&address);
    }
    let mut process = world.first().start_ferroce(&[], &words, Fabric::Udp.settings());
    if server {
        world.first().wait_for_listener(port, &mut process, LIMIT);
    }
    process
}

#[test]
fn sixteen_processes_share_one_port() {
    let program = require!(stream());
    let world = require!(World::one_host(1500));
    let ports = 20000..20008;
    let more = ["-n", "1200", "-s", "3000", "-e"];
    let mut servers: Vec<Process> =
        ports.clone().map(|port| start(&world, &program, port, true, &more)).collect();
    let mut clients: Vec<Process> = ports.map(|port| start(&world, &program, port, false, &more)).collect();
    for process in clients.iter_mut().chain(&mut servers) {
        process.wait(LIMIT).expect_success().expect_quiet();
    }
    world.first().expect_no_traces();
}

/// The stopped process came first, so it is the one that would hand out the sockets; another has to.
#[test]
fn stopped_process_blocks_no_other() {
    let program = require!(stream());
    let world = require!(World::one_host(1500));
    let mut first = start(&world, &program, 20000, true, &[]);
    let mut idle = start(&world, &program, 20003, true, &[]);
    first.signal(libc::SIGSTOP);
    for port in [20001, 20002] {
        let mut server = start(&world, &program, port, true, &["-n", "1200"]);
        start(&world, &program, port, false, &["-n", "1200"]).wait(LIMIT).expect_success();
        server.wait(LIMIT).expect_success();
    }
    // Continued, it works as if nothing had been.
    first.signal(libc::SIGCONT);
    for (port, server) in [(20000, &mut first), (20003, &mut idle)] {
        start(&world, &program, port, false, &[]).wait(LIMIT).expect_success();
        server.wait(LIMIT).expect_success();
    }
    world.first().expect_no_traces();
}

/// 1,024 open files is what most systems give a process.
#[test]
fn sixty_four_qps_work_with_1024_open_files() {
    require!(tool("ib_write_bw", "perftest"));
    require!(tool("prlimit", "util-linux"));
    let world = require!(World::two_hosts(1500));
    let words = ["prlimit", "--nofile=1024:1024", "ib_write_bw", "-F", "-q", "64", "-n", "50", "-s", "20000"];
    Pair::new(&world, Fabric::Any).limit(LIMIT).run(&words).expect_success();
}
