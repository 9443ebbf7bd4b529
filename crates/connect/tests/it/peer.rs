//! A process that binds ports and makes connections, by commands of one line each.

use ferroce_connect::{
    Accept, Bind, BoundPort, CmEvent, Connect, Connection, ConnectionEvent, ConnectionQp, ConnectionRoute,
    Ece, IpHeader, Lookup, LookupReply, PortSpace, RejectReason, ServiceId, SidrStatus, Sink,
    TransportService, bind, connect, lookup,
};
use ferroce_nic::Context;
use ferroce_tests::helper::{Helper, answer_commands};
use ferroce_types::HostAddr;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A request or its answer may be lost several times in a row, and comes again every 6 s. After 98 s there is an event in any case.
const PATIENCE: Duration = Duration::from_secs(120);

/// The test's side.
pub struct Peer(Helper);

impl Peer {
    pub fn start() -> Self {
        Self::start_with(&[], 0)
    }

    /// One with these in its environment, in the network namespace of this process, or with CLONE_NEWNET in one of its own.
    pub fn start_with(environment: &[(&str, &str)], namespaces: i32) -> Self {
        Self(Helper::start_with("peer", environment, namespaces))
    }

    /// The next thing that happens.
    pub fn event(&mut self) -> String {
        self.ask("event")
    }

    pub fn kill(self) {
        self.0.kill();
    }
}

impl Deref for Peer {
    type Target = Helper;

    fn deref(&self) -> &Helper {
        &self.0
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Helper {
        &mut self.0
    }
}

#[derive(Default)]
struct Happened {
    lines: Mutex<VecDeque<String>>,
    changed: Condvar,
    requests: Mutex<VecDeque<Connection>>,
    /// The communication ID of the peer that has sent the last request or reply.
    peer_id: AtomicU32,
}

impl Happened {
    fn say(&self, line: String) {
        self.lines.lock().expect("a lock").push_back(line);
        self.changed.notify_all();
    }

    fn next(&self, patience: Duration) -> String {
        let lines = self.lines.lock().expect("a lock");
        let (mut lines, _) =
            self.changed.wait_timeout_while(lines, patience, |lines| lines.is_empty()).expect("a lock");
        lines.pop_front().unwrap_or_else(|| "nothing".to_owned())
    }
}

/// The sink of a listener (no number) or a connection.
struct Ear {
    happened: Arc<Happened>,
    name: String,
}

fn text(data: &[u8]) -> String {
    data.iter().take_while(|&&b| b != 0).map(|&b| char::from(b)).collect()
}

impl Sink for Ear {
    fn event(&self, event: CmEvent) {
        let name = &self.name;
        let line = match event {
            CmEvent::Request(incoming) => {
                self.happened.peer_id.store(incoming.request.local_comm_id, Ordering::Relaxed);
                let line = format!(
                    "request {} {} {}",
                    incoming.header.source.ip(),
                    incoming.request.qpn,
                    text(&incoming.request.private_data[36..])
                );
                self.happened.requests.lock().expect("a lock").push_back(incoming.connection);
                line
            }
            CmEvent::Lookup(incoming) => {
                let line = format!("lookup {}", text(&incoming.request.private_data[36..]));
                self.happened.requests.lock().expect("a lock").push_back(incoming.connection);
                line
            }
            CmEvent::Of(ConnectionEvent::Reply(reply)) => {
                self.happened.peer_id.store(reply.local_comm_id, Ordering::Relaxed);
                format!("reply {name} {} {}", reply.qpn, text(&reply.private_data))
            }
            CmEvent::Of(ConnectionEvent::Established) => format!("established {name}"),
            CmEvent::Of(ConnectionEvent::Rejected(reject)) => {
                format!("rejected {name} {} {}", reject.reason.0, text(&reject.private_data))
            }
            CmEvent::Of(ConnectionEvent::Unreachable) => format!("unreachable {name}"),
            CmEvent::Of(ConnectionEvent::Disconnected { timed_out: false }) => format!("disconnected {name}"),
            CmEvent::Of(ConnectionEvent::Disconnected { timed_out: true }) => format!("given-up {name}"),
            CmEvent::Of(ConnectionEvent::TimewaitExit) => format!("exit {name}"),
            CmEvent::Of(ConnectionEvent::Answer(reply)) => {
                format!("answer {name} {} {} {}", reply.status.0, reply.qpn, text(&reply.private_data))
            }
        };
        self.happened.say(line);
    }

    fn port_closed(&self, _: SocketAddr, _: Duration) {
        self.happened.say(format!("port-closed {}", self.name));
    }
}

#[derive(Default)]
struct Process {
    happened: Arc<Happened>,
    contexts: Vec<Arc<Context>>,
    ports: HashMap<String, BoundPort>,
    connections: HashMap<String, Connection>,
}

fn outcome(result: ferroce_types::Result<()>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => format!("errno {}", error.errno()),
    }
}

fn space(udp: bool) -> PortSpace {
    if udp { PortSpace::Udp } else { PortSpace::Tcp }
}

impl Process {
    fn ear(&self, name: &str) -> Arc<Ear> {
        Arc::new(Ear { happened: self.happened.clone(), name: name.to_owned() })
    }

    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["open"] => {
                let devices = ferroce_nic::devices().expect("devices");
                self.contexts = devices.iter().map(|device| device.open().expect("a device")).collect();
                self.contexts.len().to_string()
            }
            // bind NAME ADDRESS OPTIONS…
            ["bind", name, address, ref options @ ..] => {
                let wanted = Bind {
                    space: space(options.contains(&"udp")),
                    address: address.parse().expect("an address"),
                    reuse: options.contains(&"reuse"),
                    v6_only: options.contains(&"only"),
                    label: options.contains(&"label"),
                };
                match bind(&wanted) {
                    Ok(port) => {
                        let address = port.address();
                        self.ports.insert(name.to_owned(), port);
                        format!("ok {address}")
                    }
                    Err(error) => format!("errno {}", error.errno()),
                }
            }
            ["free", name] => self.ports.remove(name).map_or("none", |_| "ok").to_owned(),
            // listen NAME BACKLOG [udp]
            ["listen", name, backlog, ref options @ ..] => {
                let transport = if options.contains(&"udp") { None } else { Some(TransportService::Rc) };
                let backlog = backlog.parse().expect("a number");
                outcome(self.ports[name].listen(transport, backlog, self.ear("")))
            }
            // connect NAME FROM TO QPN TEXT
            ["connect", name, from, to, qpn, data] => {
                let (from, to) = (address(from), address(to));
                let wanted = Connect {
                    route: route(from, to),
                    service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
                    header: Some(IpHeader { source: from, destination: to.ip() }),
                    ca_guid: 0x1234,
                    qp: ConnectionQp { qpn: qpn.parse().expect("a number"), ..QP },
                    ece: Ece::default(),
                    private_data: data.as_bytes(),
                };
                self.begun(name, |ear| connect(&wanted, ear))
            }
            // lookup NAME FROM TO TEXT
            ["lookup", name, from, to, data] => {
                let (from, to) = (address(from), address(to));
                let wanted = Lookup {
                    route: route(from, to),
                    service_id: ServiceId::of_port(PortSpace::Udp, to.port()),
                    header: Some(IpHeader { source: from, destination: to.ip() }),
                    pkey: 0xffff,
                    private_data: data.as_bytes(),
                };
                self.begun(name, |ear| lookup(&wanted, ear))
            }
            // The oldest request gets a name.
            ["name", name] => match self.happened.requests.lock().expect("a lock").pop_front() {
                Some(connection) => {
                    connection.take();
                    self.connections.insert(name.to_owned(), connection);
                    "ok".to_owned()
                }
                None => "none".to_owned(),
            },
            // accept NAME QPN TEXT
            ["accept", name, qpn, data] => {
                let answer = Accept {
                    ca_guid: 0x1234,
                    qpn: qpn.parse().expect("a number"),
                    eecn: 0,
                    srq: false,
                    starting_psn: 0x777,
                    responder_resources: 1,
                    initiator_depth: 1,
                    flow_control: false,
                    rnr_retry_count: 7,
                    target_ack_delay: 15,
                    ece: Ece::default(),
                    private_data: data.as_bytes(),
                };
                outcome(self.connections[name].accept(&answer, self.ear(name)))
            }
            ["answer", name, qpn, data] => {
                let answer = LookupReply {
                    status: SidrStatus::SUCCESS,
                    qpn: qpn.parse().expect("a number"),
                    qkey: 0x0123_4567,
                    ece: Ece::default(),
                    private_data: data.as_bytes(),
                };
                outcome(self.connections[name].answer(&answer))
            }
            ["reject", name, data] => {
                outcome(self.connections[name].reject(RejectReason::CONSUMER, data.as_bytes()))
            }
            ["establish", name] => outcome(self.connections[name].establish()),
            ["notify", name] => outcome(self.connections[name].notify_established()),
            ["disconnect", name] => outcome(self.connections[name].disconnect()),
            ["drop", name] => self.connections.remove(name).map_or("none", |_| "ok").to_owned(),
            ["event"] => self.happened.next(PATIENCE),
            ["peer-id"] => self.happened.peer_id.load(Ordering::Relaxed).to_string(),
            ["flood"] => {
                super::flood::send();
                "ok".to_owned()
            }
            ["quiet", ms] => self.happened.next(Duration::from_millis(ms.parse().expect("a number"))),
            // many COUNT FROM TO: connections one after the other, each to the end; how many.
            ["many", count, from, to] => self.many(count.parse().expect("a number"), from, to).to_string(),
            // burst COUNT FROM TO: all at once; how many were established and ended.
            ["burst", count, from, to] => self.burst(count.parse().expect("a number"), from, to),
            // serve COUNT: accepts so many and follows them to their end.
            ["serve", count] => self.serve(count.parse().expect("a number")).to_string(),
            _ => panic!("{line}"),
        }
    }

    fn begun(
        &mut self,
        name: &str,
        begin: impl FnOnce(Arc<dyn Sink>) -> ferroce_types::Result<Connection>,
    ) -> String {
        match begin(self.ear(name)) {
            Ok(connection) => {
                self.connections.insert(name.to_owned(), connection);
                "ok".to_owned()
            }
            Err(error) => format!("errno {}", error.errno()),
        }
    }

    fn many(&mut self, count: u32, from: &str, to: &str) -> u32 {
        let mut done = 0;
        for at in 0..count {
            let name = format!("c{at}");
            let mut line = String::new();
            let _ = write!(line, "connect {name} {from} {to} {} x", 4096 + at);
            assert_eq!(self.obey(&line), "ok");
            let wanted = [format!("reply {name} {} y", 4096 + at), format!("disconnected {name}")];
            if self.happened.next(PATIENCE) != wanted[0] {
                continue;
            }
            assert_eq!(self.obey(&format!("establish {name}")), "ok");
            assert_eq!(self.obey(&format!("disconnect {name}")), "ok");
            done += u32::from(self.happened.next(PATIENCE) == wanted[1]);
            self.connections.remove(&name);
        }
        done
    }

    fn burst(&mut self, count: u32, from: &str, to: &str) -> String {
        for at in 0..count {
            assert_eq!(self.obey(&format!("connect c{at} {from} {to} {} x", 4096 + at)), "ok");
        }
        let (mut established, mut ended) = (0, 0);
        while ended < count {
            let event = self.happened.next(PATIENCE);
            match event.split(' ').collect::<Vec<_>>()[..] {
                ["reply", name, ..] => {
                    assert_eq!(self.obey(&format!("establish {name}")), "ok");
                    established += 1;
                    if established == count {
                        (0..count).for_each(|at| drop(self.obey(&format!("disconnect c{at}"))));
                    }
                }
                ["disconnected", name] => {
                    self.connections.remove(name);
                    ended += 1;
                }
                ["exit", _] => {}
                ref other => return format!("{established} {ended} {other:?}"),
            }
        }
        format!("{established} {ended}")
    }

    fn serve(&mut self, count: u32) -> u32 {
        let mut ended = 0;
        while ended < count {
            let event = self.happened.next(PATIENCE);
            match event.split(' ').collect::<Vec<_>>()[..] {
                ["request", _, qpn, _] => {
                    self.obey(&format!("name {qpn}"));
                    assert_eq!(self.obey(&format!("accept {qpn} {qpn} y")), "ok");
                }
                ["disconnected", name] => {
                    assert_eq!(self.obey(&format!("disconnect {name}")), "ok");
                    self.connections.remove(name);
                    ended += 1;
                }
                ["nothing"] => return ended,
                _ => {}
            }
        }
        ended
    }
}

const QP: ConnectionQp = ConnectionQp {
    transport: TransportService::Rc,
    qpn: 0,
    srq: false,
    starting_psn: 0x555,
    pkey: 0xffff,
    path_mtu: 3,
    responder_resources: 1,
    initiator_depth: 1,
    flow_control: true,
    retry_count: 7,
    rnr_retry_count: 7,
    ack_timeout: 14,
};

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn route(from: SocketAddr, to: SocketAddr) -> ConnectionRoute {
    let (from, to) = (HostAddr::from(from), HostAddr::from(to));
    ConnectionRoute { from, to, traffic_class: 0, hop_limit: 64, flow_label: 1, sl: 0 }
}

/// A peer's process.
pub fn serve() {
    let mut process = Process::default();
    answer_commands(|line| process.obey(line));
    // As a program that is killed: nothing is ended in order.
    std::process::exit(0);
}
