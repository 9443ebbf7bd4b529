//! What programs leave behind on a host, and what its kernel has dropped.

use super::Host;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

impl Host {
    /// What verbs programs have left here: abstract sockets, UDP sockets on 4791, files. Those that Debian's programs make
    /// themselves for an XRC domain don't count.
    pub fn traces(&self) -> Vec<String> {
        let roce_port = format!(":{:04X}", 4791);
        let mut found: Vec<String> = self
            .net_table("unix")
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .filter(|name| name.starts_with('@'))
            .map(|name| format!("abstract socket {name}"))
            .collect();
        for table in ["udp", "udp6"] {
            let sockets = self.net_table(table);
            let open = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
            found.extend(
                open.filter(|local| local.ends_with(&roce_port))
                    .map(|local| format!("{table} socket {local}")),
            );
        }
        for directory in ["/run", "/tmp", "/dev/shm"] {
            let entries = fs::read_dir(self.path(directory)).expect("the keeper's root can be read");
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            found.extend(
                names
                    .filter(|name| !name.starts_with("xrc_domain"))
                    .map(|name| format!("{directory}/{name}")),
            );
        }
        found
    }

    /// The traces that are still there after five seconds (the kernel frees names a little after death).
    pub fn lasting_traces(&self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let traces = self.traces();
            if traces.is_empty() || start.elapsed() > Duration::from_secs(5) {
                return traces;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Panics unless all traces are gone within five seconds.
    #[track_caller]
    pub fn expect_no_traces(&self) {
        let traces = self.lasting_traces();
        assert!(traces.is_empty(), "left behind: {traces:#?}");
    }

    /// How many datagrams this host's kernel has dropped because a socket's receive buffer was full.
    pub fn full_socket_drops(&self) -> u64 {
        let snmp = self.net_table("snmp");
        let mut udp = snmp.lines().filter(|line| line.starts_with("Udp:")).map(str::split_whitespace);
        let over_ipv4 = match (udp.next(), udp.next()) {
            (Some(names), Some(values)) => names.zip(values).find(|(name, _)| *name == "RcvbufErrors"),
            _ => None,
        };
        let snmp6 = self.net_table("snmp6");
        let over_ipv6 = snmp6.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
        [over_ipv4.map(|(_, value)| value), over_ipv6]
            .iter()
            .flatten()
            .filter_map(|v| v.trim().parse::<u64>().ok())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::{World, require};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn datagrams_that_find_a_full_socket_are_counted() {
        let world = require!(World::one_host(1500));
        assert_eq!(world.first().full_socket_drops(), 0);
        let script = "import socket; r=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); r.bind(('127.0.0.1',5009)); \
                      s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                      for i in range(2000): s.sendto(b'x'*1000,('127.0.0.1',5009))";
        world.first().start(&["python3", "-c", script], &[]).wait(SOON).expect_success();
        assert!(world.first().full_socket_drops() > 100);
    }

    #[test]
    fn files_and_names_left_behind_are_found() {
        let world = require!(World::one_host(1500));
        world.first().expect_no_traces();
        world.first().start(&["touch", "/dev/shm/left", "/tmp/too"], &[]).wait(SOON).expect_success();
        assert_eq!(world.first().traces(), ["/tmp/too", "/dev/shm/left"]);
    }
}
