//! The communication manager of a host. Its MADs are packets of the simulated network, to QP 1.

use crate::adapter::QpState;
use crate::frame::Frame;
use crate::host_manager::{Asked, FIRST_PORT, HostManager};
use crate::objects::dead;
use crate::reasons;
use crate::state::State;
use crate::world::Host;
use ferroce_buffers::{Error, Kind, ManagedPeer, ManagedQp, ManagerNews};
use ferroce_cm::{
    Accept, Connect, ConnectionEvent, ConnectionQp, ConnectionRoute, Event, Handle, Listen, ListenerId,
};
use ferroce_types::{HostAddr, QpState as TransportState, WcStatus};
use ferroce_wire::cm::{
    Ece, GSI_QKEY, GSI_QPN, IP_HEADER_LEN, IpHeader, Mad, PortSpace, RejectReason, ServiceId,
    TransportService,
};
use ferroce_wire::{Bth, Deth, Headers, Opcode};
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// Requests that may wait for the program.
const BACKLOG: u32 = 128;

/// A number as the code of an MTU: 1 is 256.
const fn mtu_code(mtu: u32) -> u8 {
    (mtu.ilog2() - 7) as u8
}

const fn mtu_of(code: u8) -> u32 {
    128 << if code < 1 || code > 5 { 1 } else { code }
}

fn here(ip: Ipv4Addr) -> HostAddr {
    HostAddr::new(IpAddr::V4(ip), 0)
}

impl State {
    fn cm_now(&self) -> Duration {
        Duration::from_nanos(self.now.0)
    }

    /// Lets the managers do what is due.
    pub(crate) fn run_managers(&mut self) {
        let now = self.cm_now();
        for host in 0..self.hosts.len() {
            if self.hosts[host].manager.next_timeout().is_some_and(|at| at <= self.now) {
                self.hosts[host].manager.cm.handle_timeout(now);
                self.pump(host);
            }
        }
    }

    /// A packet for QP 1.
    pub(crate) fn mad_arrives(&mut self, host: usize, from: Ipv4Addr, payload: &[u8]) {
        let Ok(mad) = Mad::parse(payload) else { return };
        let (now, to) = (self.cm_now(), self.hosts[host].ip);
        self.hosts[host].manager.cm.handle(now, here(from), here(to), &mad);
        self.pump(host);
    }

    /// Sends what the manager of a host has to send, and files what has happened.
    fn pump(&mut self, host: usize) {
        while let Some(mad) = self.hosts[host].manager.cm.poll_transmit() {
            let IpAddr::V4(to) = mad.to.ip() else { continue };
            let mut headers = Headers::new(Bth::new(Opcode::UD_SEND_ONLY, GSI_QPN, 0));
            headers.deth = Some(Deth { qkey: GSI_QKEY, src_qp: GSI_QPN });
            self.send(host, Frame::new(to, headers, mad.mad.emit().to_vec()));
        }
        while let Some(event) = self.hosts[host].manager.cm.poll_event() {
            self.progress = self.now;
            match event {
                Event::Request { listener, handle, request, header, route } => {
                    let qp = ManagedQp {
                        qpn: request.qpn,
                        starting_psn: request.starting_psn,
                        mtu: mtu_of(request.path_mtu),
                        reads: request.initiator_depth,
                        peer_reads: request.responder_resources,
                        timeout: request.primary.ack_timeout,
                        retries: request.retry_count,
                        rnr_retries: request.rnr_retry_count,
                    };
                    let private_data = request.private_data[IP_HEADER_LEN..].to_vec();
                    let peer = ManagedPeer { gid: route.to.gid(), qp, private_data };
                    let IpAddr::V4(ip) = route.to.ip() else { continue };
                    let from = SocketAddrV4::new(ip, header.source.port());
                    if let Some((_, asked)) = self.hosts[host].manager.listeners.get_mut(&listener) {
                        asked.push_back(Asked { handle, from, peer });
                    }
                }
                Event::Lookup { .. } => {}
                Event::Of(handle, event) => self.file(host, handle, event),
            }
        }
    }

    fn file(&mut self, host: usize, handle: Handle, event: ConnectionEvent) {
        let manager = &self.hosts[host].manager;
        let news = match event {
            ConnectionEvent::Reply(reply) => {
                let Some(route) = manager.cm.route(handle) else { return };
                let qp = ManagedQp {
                    qpn: reply.qpn,
                    starting_psn: reply.starting_psn,
                    mtu: 0,
                    reads: reply.initiator_depth,
                    peer_reads: reply.responder_resources,
                    timeout: 0,
                    retries: 0,
                    rnr_retries: reply.rnr_retry_count,
                };
                let private_data = reply.private_data.to_vec();
                ManagerNews::Accepted(ManagedPeer { gid: route.to.gid(), qp, private_data })
            }
            ConnectionEvent::Established => ManagerNews::Ready,
            ConnectionEvent::Rejected(reject) => {
                ManagerNews::Rejected { reason: reject.reason.0, private_data: reject.private_data.to_vec() }
            }
            ConnectionEvent::Unreachable => ManagerNews::Unreachable,
            ConnectionEvent::Disconnected { .. } => {
                let qpn = manager.cm.own_qpn(handle);
                qpn.into_iter().for_each(|qpn| self.peer_has_ended(host, qpn));
                ManagerNews::Ended
            }
            ConnectionEvent::TimewaitExit | ConnectionEvent::Answer(_) => return,
        };
        if let Some(queue) = self.hosts[host].manager.news.get_mut(&handle) {
            queue.push_back(news);
        }
    }

    /// The queue pair of a connection that has ended fails, as librdmacm has it.
    fn peer_has_ended(&mut self, host: usize, qpn: u32) {
        if let Some(QpState { side, .. }) = self.hosts[host].qps.get_mut(&qpn) {
            let why = "the peer has ended the connection";
            let fault = reasons::fault(WcStatus::WrFlushErr, 0, Some(why.into()), None);
            side.first.get_or_insert((0, fault));
        }
        self.with_qp(host, qpn, |qp, env| qp.set_state(TransportState::Err, env));
    }
}

impl Host {
    /// Calls `f` with the manager of the host, and sends what follows from that. `None`: the host has crashed, or (since the object with
    /// this number of crashes was made) has crashed and restarted.
    fn with_manager<R>(
        &self,
        crashes: Option<u32>,
        f: impl FnOnce(&mut HostManager, Duration) -> R,
    ) -> Option<R> {
        let mut state = self.world.lock();
        let host = &state.hosts[self.index];
        if !host.up || crashes.is_some_and(|crashes| crashes != host.crashes) {
            return None;
        }
        let now = state.cm_now();
        let result = f(&mut state.hosts[self.index].manager, now);
        state.pump(self.index);
        Some(result)
    }

    fn crashes(&self) -> u32 {
        self.world.lock().hosts[self.index].crashes
    }

    /// Listens at a port; 0 has one chosen.
    ///
    /// # Errors
    /// Another listener has the port.
    pub fn listen(&self, port: u16) -> Result<SimListener, Error> {
        let listens = self.with_manager(None, |manager, _| {
            let taken = |port: u16| manager.listeners.values().any(|(of, _)| *of == port);
            let chosen = if port == 0 { (FIRST_PORT..).find(|port| !taken(*port)) } else { Some(port) };
            let Some(port) = chosen.filter(|port| !taken(*port)) else {
                let why = format!("port {port} of this host is taken");
                return Err(Error::new(Kind::InUse, "bind", why));
            };
            let id = manager.cm.listen(Listen {
                space: PortSpace::Tcp,
                port,
                address: IpAddr::V4(self.ip),
                v6_only: false,
                transport: Some(TransportService::Rc),
                backlog: BACKLOG,
            });
            manager.listeners.insert(id, (port, VecDeque::new()));
            Ok((id, port))
        });
        let (id, port) = listens.ok_or_else(|| dead("bind"))??;
        Ok(SimListener { host: self.clone(), crashes: self.crashes(), id, port })
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// Too much private data.
    pub fn ask(&self, to: SocketAddrV4, qp: &ManagedQp, private_data: &[u8]) -> Result<SimConnection, Error> {
        let handle = self.with_manager(None, |manager, now| {
            manager.next_port = manager.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            let (from, to_ip) = (here(self.ip), here(*to.ip()));
            let header = IpHeader {
                source: SocketAddrV4::new(self.ip, manager.next_port).into(),
                destination: IpAddr::V4(*to.ip()),
            };
            let connect = Connect {
                route: ConnectionRoute {
                    from,
                    to: to_ip,
                    traffic_class: 0,
                    hop_limit: 64,
                    flow_label: 0,
                    sl: 0,
                },
                service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
                header: Some(header),
                ca_guid: guid(self),
                qp: ConnectionQp {
                    transport: TransportService::Rc,
                    qpn: qp.qpn,
                    srq: false,
                    starting_psn: qp.starting_psn,
                    pkey: 0xffff,
                    path_mtu: mtu_code(qp.mtu),
                    responder_resources: qp.peer_reads,
                    initiator_depth: qp.reads,
                    flow_control: true,
                    retry_count: qp.retries,
                    rnr_retry_count: qp.rnr_retries,
                    ack_timeout: qp.timeout,
                },
                ece: Ece::default(),
                private_data,
            };
            let handle = manager.cm.connect(now, &connect)?;
            manager.news.insert(handle, VecDeque::new());
            Ok(handle)
        });
        let handle = handle.ok_or_else(|| dead("connect"))?.map_err(refused)?;
        Ok(SimConnection { host: self.clone(), crashes: self.crashes(), handle })
    }
}

/// The number of a host's adapter.
fn guid(host: &Host) -> u64 {
    0x5100 + host.index as u64
}

fn refused(error: ferroce_cm::CmError) -> Error {
    let kind = match error {
        ferroce_cm::CmError::PrivateData { .. } => Kind::TooLong,
        ferroce_cm::CmError::TooMany { .. } => Kind::Busy,
        ferroce_cm::CmError::State { .. } | ferroce_cm::CmError::Established => Kind::Dead,
    };
    Error::new(kind, "connect", error.to_string())
}

/// A listener of a host. It ends with its handle.
pub struct SimListener {
    host: Host,
    /// How often the host had crashed when it was made.
    crashes: u32,
    id: ListenerId,
    port: u16,
}

impl SimListener {
    /// Its address and port.
    #[must_use]
    pub const fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.host.ip, self.port)
    }

    /// The oldest request, if there is one: its connection, the requester's address, and its attributes.
    #[must_use]
    pub fn next(&self) -> Option<(SimConnection, SocketAddrV4, ManagedPeer)> {
        let taken = self.host.with_manager(Some(self.crashes), |manager, _| {
            let asked = manager.listeners.get_mut(&self.id)?.1.pop_front()?;
            manager.cm.take(asked.handle);
            manager.news.insert(asked.handle, VecDeque::new());
            let connection =
                SimConnection { host: self.host.clone(), crashes: self.crashes, handle: asked.handle };
            Some((connection, asked.from, asked.peer))
        });
        taken.flatten()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.host.with_manager(Some(self.crashes), |manager, now| {
            manager.cm.stop_listening(self.id);
            let (_, asked) = manager.listeners.remove(&self.id).unwrap_or_default();
            asked.into_iter().for_each(|asked| manager.cm.destroy(now, asked.handle));
        });
    }
}

impl fmt::Debug for SimListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimListener({})", self.address())
    }
}

/// A connection of the communication manager. Its drop ends it at the peer too.
pub struct SimConnection {
    host: Host,
    /// As above.
    crashes: u32,
    handle: Handle,
}

impl SimConnection {
    fn with<R>(&self, f: impl FnOnce(&mut HostManager, Duration, Handle) -> R) -> Result<R, Error> {
        let handle = self.handle;
        let result = self.host.with_manager(Some(self.crashes), |manager, now| f(manager, now, handle));
        result.ok_or_else(|| dead("connect"))
    }

    /// What has happened, the oldest first.
    #[must_use]
    pub fn next(&self) -> Option<ManagerNews> {
        self.with(|manager, _, handle| manager.news.get_mut(&handle)?.pop_front()).ok().flatten()
    }

    /// Accepts the peer's request.
    ///
    /// # Errors
    /// The peer has given up meanwhile, or there is too much private data.
    pub fn accept(&self, qp: &ManagedQp, private_data: &[u8]) -> Result<(), Error> {
        let answer = Accept {
            ca_guid: guid(&self.host),
            qpn: qp.qpn,
            eecn: 0,
            srq: false,
            starting_psn: qp.starting_psn,
            responder_resources: qp.peer_reads,
            initiator_depth: qp.reads,
            flow_control: true,
            rnr_retry_count: qp.rnr_retries,
            target_ack_delay: 0,
            ece: Ece::default(),
            private_data,
        };
        self.with(|manager, now, handle| manager.cm.accept(now, handle, &answer))?.map_err(refused)
    }

    /// Rejects the peer's request.
    ///
    /// # Errors
    /// As [`SimConnection::accept`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let reject = |manager: &mut HostManager, _, handle| {
            manager.cm.reject(handle, RejectReason::CONSUMER, private_data)
        };
        self.with(reject)?.map_err(refused)
    }

    /// This side is ready, after the peer has accepted.
    ///
    /// # Errors
    /// The peer has gone meanwhile.
    pub fn establish(&self) -> Result<(), Error> {
        self.with(|manager, _, handle| manager.cm.establish(handle))?.map_err(refused)
    }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        let _ = self.with(|manager, now, handle| {
            manager.cm.destroy(now, handle);
            manager.news.remove(&handle);
        });
    }
}

impl fmt::Debug for SimConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimConnection({:#x})", self.handle.0)
    }
}
