//! A process that takes part in its host. It reads a command from each line.

use super::packets;
use ferroce_host::{Host, HostError};
use ferroce_os::{clock, sys};
use ferroce_tests::helper::{self, Helper};
use ferroce_tests::wait::eventually;
use ferroce_types::{Datagram, HostAddr};
use ferroce_udp::{Endpoint, TxBatch, receiving_socket};
use ferroce_wire::Operation;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The test's side.
pub struct Member(Helper);

impl Member {
    pub fn start() -> Self {
        Self(Helper::start("member"))
    }

    /// One in a network namespace of its own.
    pub fn start_apart() -> Self {
        Self(Helper::start_with("member", &[], libc::CLONE_NEWNET))
    }

    /// One that has joined `address`.
    pub fn joined(address: &str) -> Self {
        let mut member = Self::start();
        assert_eq!(member.ask(&format!("join {address}")), "ok");
        member
    }

    /// A number of the member's: "slot", "leader", "own", "bad", "foreign", "forwarded", "taken", "unknown".
    pub fn number(&mut self, name: &str) -> u64 {
        self.ask(&format!("number {name}")).parse().unwrap()
    }

    pub fn kill(self) {
        self.0.kill();
    }
}

impl Deref for Member {
    type Target = Helper;

    fn deref(&self) -> &Helper {
        &self.0
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Helper {
        &mut self.0
    }
}

/// The sockets of a local address, ready for packets.
pub fn endpoint(host: &Host, address: HostAddr) -> Result<Arc<Endpoint>, HostError> {
    let sockets = host.sockets(address, receiving_socket, Duration::ZERO)?;
    Ok(Arc::new(Endpoint::new(address, sockets)))
}

/// "fe80::1%veth0" or without an interface.
pub fn address(text: &str) -> HostAddr {
    let (ip, interface) = text.split_once('%').unwrap_or((text, ""));
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: a C string.
    HostAddr::new(ip.parse().unwrap(), unsafe { libc::if_nametoindex(name.as_ptr()) })
}

/// The count of rounds of a serving thread that sleeps.
const ASLEEP: u64 = u64::MAX;

/// The child's side.
struct Serving {
    host: Arc<Host>,
    endpoints: Mutex<HashMap<HostAddr, Arc<Endpoint>>>,
    /// Steering values that are read, a bit each.
    reads: AtomicU64,
    own: AtomicU64,
    bad: AtomicU64,
    foreign: AtomicU64,
    /// Rounds of the serving thread.
    rounds: AtomicU64,
    /// It answers no more.
    sleeps: AtomicBool,
}

impl Serving {
    fn packets(&self, datagrams: &[Datagram<'_>]) {
        let (own, foreign): (Vec<_>, Vec<_>) =
            datagrams.iter().copied().partition(|d| self.host.owns(d.dest_qpn()));
        self.foreign.fetch_add(foreign.len() as u64, Ordering::Relaxed);
        self.host.forward(&foreign);
        for datagram in &own {
            if packets::identification(datagram).is_some() {
                self.own.fetch_add(1, Ordering::Relaxed);
            } else {
                self.bad.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn serve(&self) {
        loop {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            while self.sleeps.load(Ordering::SeqCst) {
                self.rounds.store(ASLEEP, Ordering::SeqCst);
                sys::pause(Duration::from_secs(100));
            }
            let poll = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = vec![poll(self.host.poll_fd())];
            let endpoints: Vec<_> = self.endpoints.lock().unwrap().values().map(Arc::clone).collect();
            let reads = self.reads.load(Ordering::SeqCst);
            let steering = |bits: u64| (0..64_u8).filter(move |s| bits & 1 << s != 0);
            for endpoint in &endpoints {
                fds.extend(steering(reads).filter_map(|s| endpoint.fd(s)).map(poll));
            }
            sys::poll(&mut fds, Duration::from_millis(10)).unwrap();
            let mut read = |address: HostAddr, s: u8| {
                if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.address() == address) {
                    endpoint.recv(s, clock::now(), &mut |d| self.packets(d)).unwrap();
                }
            };
            self.host.service(&mut |d| self.packets(d), &mut read).unwrap();
            for endpoint in &endpoints {
                for s in steering(reads) {
                    endpoint.recv(s, clock::now(), &mut |d| self.packets(d)).unwrap();
                }
            }
        }
    }

    fn number(&self, name: &str) -> u64 {
        let stats = self.host.stats();
        let counter = match name {
            "slot" => return u64::from(self.host.slots()[0]),
            "leader" => return u64::from(self.host.is_leader()),
            "own" => &self.own,
            "bad" => &self.bad,
            "foreign" => &self.foreign,
            "forwarded" => &stats.forwarded,
            "taken" => &stats.received,
            "unknown" => &stats.unknown,
            _ => panic!("no number {name}"),
        };
        counter.load(Ordering::Relaxed)
    }

    fn command(&self, words: &[&str]) -> String {
        match *words {
            ["join", to] => match endpoint(&self.host, address(to)) {
                Ok(endpoint) => {
                    self.endpoints.lock().unwrap().insert(endpoint.address(), endpoint);
                    "ok".to_owned()
                }
                Err(error) => format!("errno {} {error}", error.errno()),
            },
            ["number", name] => self.number(name).to_string(),
            ["sleep"] => {
                self.sleeps.store(true, Ordering::SeqCst);
                eventually("the serving thread sleeps", || self.rounds.load(Ordering::SeqCst) == ASLEEP);
                "ok".to_owned()
            }
            ["read", steering] => {
                self.reads.store(1 << steering.parse::<u8>().unwrap(), Ordering::SeqCst);
                // Until the round in which another socket was read is over.
                let round = self.rounds.load(Ordering::SeqCst);
                eventually("the serving thread has noticed", || {
                    self.rounds.load(Ordering::SeqCst) >= round + 2
                });
                "ok".to_owned()
            }
            ["send", to, slot, count, len] => self.command(&["send", to, to, slot, count, len]),
            ["send", from, to, slot, count, len] => {
                let [slot, count, len] = [slot, count, len].map(|n| n.parse::<u32>().unwrap());
                let endpoint = Arc::clone(&self.endpoints.lock().unwrap()[&address(from)]);
                let qpn = slot << 12 | 5;
                let dest = endpoint.dest(address(to), 0, 0, qpn).unwrap();
                let mut batch = TxBatch::new();
                for psn in 0..count {
                    packets::push(&mut batch, &dest, Operation::SendMiddle, qpn, psn, len as usize);
                }
                format!("{}", batch.flush(clock::now()).sent)
            }
            ["path_mtu", from, to] => {
                let endpoint = Arc::clone(&self.endpoints.lock().unwrap()[&address(from)]);
                endpoint.path_mtu(address(to)).unwrap().to_string()
            }
            ["trains", from] => {
                let endpoint = Arc::clone(&self.endpoints.lock().unwrap()[&address(from)]);
                endpoint.stats().trains.load(Ordering::Relaxed).to_string()
            }
            ["ip", ref arguments @ ..] => {
                assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
                "ok".to_owned()
            }
            // A child that closes everything, as the atfork handler does, and lives on.
            ["fork"] => {
                // SAFETY: the child makes system calls only.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    sys::close_all_after_fork();
                    sys::pause(Duration::from_secs(50));
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                child.to_string()
            }
            _ => panic!("no command {words:?}"),
        }
    }
}

/// In a helper: answers commands, in words, until there are no more.
pub fn answer_commands(mut command: impl FnMut(&[&str]) -> String) {
    helper::answer_commands(|line| command(&line.split_whitespace().collect::<Vec<_>>()));
}

/// A member's process.
pub fn serve() {
    let host = Host::join().unwrap();
    let steering = host.slots()[0] % 64;
    let serving = Arc::new(Serving {
        host,
        endpoints: Mutex::default(),
        reads: AtomicU64::new(1 << steering),
        own: AtomicU64::new(0),
        bad: AtomicU64::new(0),
        foreign: AtomicU64::new(0),
        rounds: AtomicU64::new(0),
        sleeps: AtomicBool::new(false),
    });
    let server = Arc::clone(&serving);
    std::thread::spawn(move || server.serve());
    answer_commands(|words| serving.command(words));
}
