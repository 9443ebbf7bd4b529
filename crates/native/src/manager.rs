//! Connections by address: the communication manager of the process.

use crate::device::NativeDomain;
use crate::library;
use ferroce_buffers::{Error, Kind, ManagedPeer, ManagedQp, ManagerNews};
use ferroce_connect::{
    Accept, Bind, CmEvent, Connect, Connection, ConnectionEvent, ConnectionQp, ConnectionRoute, Ece,
    IpHeader, PortSpace, RejectReason, Request, ServiceId, Sink, TransportService,
};
use ferroce_types::HostAddr;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Requests that may wait for the program.
const BACKLOG: u32 = 128;
/// Bytes of a request's private data that are the addresses of both sides.
const HEADER: usize = 36;
/// The default partition.
const PKEY: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;

/// What has come for a program, and the task that waits for it.
struct Mail<T> {
    inner: Mutex<Letters<T>>,
}

struct Letters<T> {
    news: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Mail<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Letters { news: VecDeque::new(), waker: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, Letters<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, news: T) {
        let mut inner = self.lock();
        inner.news.push_back(news);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The oldest, or `waker` is woken by the next.
    fn poll(&self, waker: &Waker) -> Option<T> {
        let mut inner = self.lock();
        let news = inner.news.pop_front();
        let before = if news.is_none() { inner.waker.replace(waker.clone()) } else { None };
        drop(inner);
        drop(before);
        news
    }
}

impl Sink for Mail<ManagerNews> {
    fn event(&self, event: CmEvent) {
        let CmEvent::Of(event) = event else { return };
        self.push(match event {
            ConnectionEvent::Reply(reply) => {
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
                // The address is that of the request.
                let private_data = reply.private_data.to_vec();
                ManagerNews::Accepted(ManagedPeer { gid: [0; 16], qp, private_data })
            }
            ConnectionEvent::Established => ManagerNews::Ready,
            ConnectionEvent::Rejected(reject) => {
                ManagerNews::Rejected { reason: reject.reason.0, private_data: reject.private_data.to_vec() }
            }
            ConnectionEvent::Unreachable => ManagerNews::Unreachable,
            ConnectionEvent::Disconnected { .. } => ManagerNews::Ended,
            ConnectionEvent::TimewaitExit | ConnectionEvent::Answer(_) => return,
        });
    }

    fn port_closed(&self, _peer: SocketAddr, _rest: Duration) {}
}

/// A peer's request that the program hasn't fetched.
type Asked = ferroce_connect::Incoming<Request>;

impl Sink for Mail<Asked> {
    fn event(&self, event: CmEvent) {
        if let CmEvent::Request(incoming) = event {
            self.push(incoming);
        }
    }

    fn port_closed(&self, _peer: SocketAddr, _rest: Duration) {}
}

impl NativeDomain {
    fn guid(&self) -> u64 {
        u64::from_be_bytes(self.context().device().info().node_guid)
    }

    /// The way to an address; a loopback address stands for this host.
    fn route(&self, to: IpAddr) -> Result<ConnectionRoute, Error> {
        let (index, gid) = self.gid()?;
        let gids = self.context().gids();
        let scope =
            gids.iter().find(|(at, _)| *at == usize::from(index)).map_or(0, |(_, entry)| entry.scope_id);
        let from = HostAddr::from_gid(gid, scope);
        let to = if to.is_loopback() || to.is_unspecified() { from.ip() } else { to.to_canonical() };
        if to.is_ipv4() != from.ip().is_ipv4() {
            let why = format!("{to} can't be reached from {}: they are of different families", from.ip());
            return Err(Error::new(Kind::Unreachable, "connect", why));
        }
        let to = HostAddr::new(to, scope);
        Ok(ConnectionRoute { from, to, traffic_class: 0, hop_limit: HOP_LIMIT, flow_label: 0, sl: 0 })
    }

    /// Listens at an address; port 0 has one chosen.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self, address: SocketAddr) -> Result<NativeListener, Error> {
        let _inside = library::enter("bind")?;
        let refused = |error| library::error("bind", &error);
        let bind = Bind { space: PortSpace::Tcp, address, reuse: false, v6_only: false, label: false };
        let port = ferroce_connect::bind(&bind).map_err(refused)?;
        let mail = Mail::new();
        port.listen(Some(TransportService::Rc), BACKLOG, mail.clone()).map_err(refused)?;
        Ok(NativeListener { port: Some(port), mail })
    }

    /// Asks for a connection.
    ///
    /// # Errors
    /// The address isn't of the device's family, or too much private data.
    pub fn ask(
        &self,
        to: SocketAddr,
        qp: &ManagedQp,
        private_data: &[u8],
    ) -> Result<NativeConnection, Error> {
        let _inside = library::enter("connect")?;
        let refused = |error| library::error("connect", &error);
        let route = self.route(to.ip())?;
        let source = SocketAddr::new(route.from.ip(), 0);
        // A port that is shown to the peer alone.
        let label =
            Bind { space: PortSpace::Tcp, address: source, reuse: false, v6_only: false, label: true };
        let source = ferroce_connect::bind(&label).map_err(refused)?.address();
        let connect = Connect {
            route,
            service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
            header: Some(IpHeader { source, destination: route.to.ip() }),
            ca_guid: self.guid(),
            qp: ConnectionQp {
                transport: TransportService::Rc,
                qpn: qp.qpn,
                srq: false,
                starting_psn: qp.starting_psn,
                pkey: PKEY,
                path_mtu: (qp.mtu.ilog2() - 7) as u8,
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
        let mail = Mail::new();
        let connection = ferroce_connect::connect(&connect, mail.clone()).map_err(refused)?;
        Ok(NativeConnection { connection: Some(connection), mail, gid: route.to.gid(), guid: self.guid() })
    }
}

/// A listener. It ends with its handle.
pub struct NativeListener {
    /// `None` while it is dropped.
    port: Option<ferroce_connect::BoundPort>,
    mail: Arc<Mail<Asked>>,
}

impl NativeListener {
    /// Its address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.as_ref().map_or_else(|| SocketAddr::from(([0; 4], 0)), ferroce_connect::BoundPort::address)
    }

    /// The oldest request: its connection, the requester's address, and its attributes. Without one, `waker` is woken by the next.
    #[must_use]
    pub fn poll(
        &self,
        domain: &NativeDomain,
        waker: &Waker,
    ) -> Option<(NativeConnection, SocketAddr, ManagedPeer)> {
        let Asked { connection, request, header, route } = self.mail.poll(waker)?;
        let _inside = library::enter("accept").ok()?;
        connection.take();
        let qp = ManagedQp {
            qpn: request.qpn,
            starting_psn: request.starting_psn,
            mtu: 128 << request.path_mtu.clamp(1, 5),
            reads: request.initiator_depth,
            peer_reads: request.responder_resources,
            timeout: request.primary.ack_timeout,
            retries: request.retry_count,
            rnr_retries: request.rnr_retry_count,
        };
        let gid = route.to.gid();
        let private_data = request.private_data[HEADER..].to_vec();
        let peer = ManagedPeer { gid, qp, private_data };
        let connection =
            NativeConnection { connection: Some(connection), mail: Mail::new(), gid, guid: domain.guid() };
        Some((connection, header.source, peer))
    }
}

impl Drop for NativeListener {
    fn drop(&mut self) {
        if let Ok(_inside) = library::enter("close") {
            drop(self.port.take());
            let asked = std::mem::take(&mut self.mail.lock().news);
            drop(asked);
        }
    }
}

impl fmt::Debug for NativeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeListener({})", self.address())
    }
}

/// A connection of the communication manager. Its drop ends it at the peer too.
pub struct NativeConnection {
    /// `None` while it is dropped.
    connection: Option<Connection>,
    mail: Arc<Mail<ManagerNews>>,
    gid: [u8; 16],
    guid: u64,
}

impl NativeConnection {
    /// What has happened, the oldest first. Without news, `waker` is woken by the next.
    #[must_use]
    pub fn poll(&self, waker: &Waker) -> Option<ManagerNews> {
        let mut news = self.mail.poll(waker)?;
        if let ManagerNews::Accepted(peer) = &mut news {
            peer.gid = self.gid;
        }
        Some(news)
    }

    fn with(
        &self,
        verb: &'static str,
        f: impl FnOnce(&Connection) -> ferroce_types::Result<()>,
    ) -> Result<(), Error> {
        let _inside = library::enter(verb)?;
        let Some(connection) = &self.connection else { return Ok(()) };
        f(connection).map_err(|error| library::error(verb, &error))
    }

    /// Accepts the peer's request.
    ///
    /// # Errors
    /// The peer has given up meanwhile, or there is too much private data.
    pub fn accept(&self, qp: &ManagedQp, private_data: &[u8]) -> Result<(), Error> {
        let answer = Accept {
            ca_guid: self.guid,
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
        self.with("accept", |connection| connection.accept(&answer, self.mail.clone()))
    }

    /// Rejects the peer's request.
    ///
    /// # Errors
    /// As [`NativeConnection::accept`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.with("reject", |connection| connection.reject(RejectReason::CONSUMER, private_data))
    }

    /// This side is ready, after the peer has accepted.
    ///
    /// # Errors
    /// The peer has gone meanwhile.
    pub fn establish(&self) -> Result<(), Error> {
        self.with("connect", Connection::establish)
    }
}

impl Drop for NativeConnection {
    fn drop(&mut self) {
        if let Ok(_inside) = library::enter("close") {
            drop(self.connection.take());
        }
    }
}

impl fmt::Debug for NativeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.connection.as_ref().map(Connection::comm_id);
        f.debug_tuple("NativeConnection").field(&id).finish()
    }
}
