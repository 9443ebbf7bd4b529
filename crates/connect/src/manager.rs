//! The communication manager of this process: its state, whose MADs it sends and whose events it hands out.

use crate::state::{CmEvent, Connection, Gsi, Incoming, Manager, ManagerState, Sink, now};
use ferroce_cm::{
    AddressedMad, AskedUser, Claim, Cm, Config, ConnectionEvent, ConnectionRoute, Listen, Status,
};
use ferroce_host::{Host, NameHolder};
use ferroce_network::gsi::{COMM_ID_BITS, CommunicationManager, slot_of_id};
use ferroce_nic::start;
use ferroce_os::clock;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys;
use ferroce_os::throttle::{OncePerSecond, RateLimiter};
use ferroce_types::{Error, HostAddr, Result, slot_of};
use ferroce_watch::{ConnectionAccount, ConnectionManager, ListenerAccount, TOLD};
use ferroce_wire::cm::PortSpace;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Connections and lookups that a process may have, those included that are over and not forgotten.
const MOST_CONNECTIONS: usize = 1 << 17;
/// Time between two MADs of other users of the host whose claims are checked, on average: a flood of them is lost.
const CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// Checks that may be made at once.
const CHECKS_AT_ONCE: u32 = 512;
/// How long the answer to a request may take before the network is asked for the cause.
pub(crate) const IN_DOUBT: Duration = Duration::from_secs(2);

static CURRENT: Mutex<class::ConnectManager, Option<&'static Manager>> = Mutex::new(None);

/// The one of this process; the first call makes it.
///
/// # Errors
/// What kept the adapter from being made.
pub(crate) fn manager() -> Result<&'static Manager> {
    if let Some(manager) = current() {
        return Ok(manager);
    }
    let gsi = Gsi::start(start()?, |gsi| {
        let slot = gsi.host().slots().first().copied().unwrap_or_default();
        let config = Config {
            id_prefix: u32::from(slot) << COMM_ID_BITS,
            id_bits: COMM_ID_BITS,
            first_id: sys::random() as u32,
            max_connections: MOST_CONNECTIONS,
        };
        let state = ManagerState {
            cm: Cm::new(config),
            sinks: BTreeMap::new(),
            listeners: BTreeMap::new(),
            asked: VecDeque::new(),
        };
        let manager: &'static Manager = Box::leak(Box::new(Manager {
            state: Mutex::new(state),
            gsi: OnceLock::new(),
            shown_ports: AtomicU32::new(sys::random() as u32),
        }));
        let _ = manager.gsi.set(gsi);
        *CURRENT.lock() = Some(manager);
        Arc::new(Worker(manager))
    })?;
    // A thread that has come first has made it.
    current()
        .filter(|_| gsi.is_current())
        .ok_or_else(|| Error::Dead("the communication manager is gone".into()))
}

/// The one of this process, if it has one that isn't of a process that this one was forked from.
fn current() -> Option<&'static Manager> {
    (*CURRENT.lock()).filter(|manager| manager.is_current())
}

/// Ends all connections and lookups of this process, and all listening. Peers get a DREQ or REJ, and requests that no program has fetched are
/// rejected.
pub fn end_all() {
    if let Some(manager) = current() {
        let _ = manager.with(|state| state.cm.destroy_all(now()));
    }
}

impl Manager {
    /// Reports requests that wait for hosts whose ICMP messages explain the silence.
    fn look_for_closed_ports(&self, gsi: Gsi) {
        loop {
            let mut state = self.state.lock();
            let now = now();
            let Some(&(at, handle)) = state.asked.front().filter(|(at, _)| *at <= now) else { return };
            state.asked.pop_front();
            let (route, unanswered) = (state.cm.route(handle), state.cm.unanswered(now, handle));
            let sink = state.sinks.get(&handle).cloned();
            drop(state);
            let (Some(route), Some((peer, rest)), Some(sink)) = (route, unanswered, sink) else { continue };
            let waited = IN_DOUBT + now.saturating_sub(at);
            if !gsi.is_of_this_host(route.to) && gsi.is_port_closed(&route, waited + IN_DOUBT) {
                sink.port_closed(peer, rest);
            }
        }
    }

    /// Takes a MAD that has come, if it comes from where it claims to, as far as this host is concerned. From the network, any user of this host
    /// can send from its addresses. Processes of one user send each other none that way, and those of another user have what they name.
    pub(crate) fn take(&self, gsi: Gsi, mad: &AddressedMad) {
        static CHECKS: RateLimiter = RateLimiter::new(CHECK_INTERVAL, CHECKS_AT_ONCE);
        let is_proven = mad.is_of_user || !gsi.host().knows_users() || !gsi.is_of_this_host(mad.from);
        let mut state = self.state.lock();
        if is_proven {
            return state.cm.handle_arrived(now(), mad);
        }
        let claim = state.cm.claim(&mad.mad.message);
        drop(state);
        let is_right = |claim| CHECKS.take(clock::now()).is_some() && has_what_it_claims(gsi.host(), claim);
        let believed = claim.is_none_or(is_right);
        let mut state = self.state.lock();
        // The connection may have another state since.
        if believed && state.cm.claim(&mad.mad.message) == claim {
            return state.cm.handle_arrived(now(), mad);
        }
        drop(state);
        static BRAKE: OncePerSecond = OncePerSecond::new();
        if BRAKE.allows_now() {
            let (message, from) = (mad.mad.message.name(), mad.from);
            tracing::debug!(message, %from, "a message of this host was sent by a user who hasn't what it names");
        }
    }

    /// Delivers the events.
    fn tell(&'static self, gsi: Gsi) {
        loop {
            let mut state = self.state.lock();
            let Some(event) = state.cm.poll_event() else { return };
            let peer = state.peer(&event);
            let told = state.event(self, event);
            drop(state);
            if let Some((address, comm_id)) = peer {
                gsi.follow(address, comm_id);
            }
            // Without a sink, the connection of a request ends here, where nothing is locked.
            if let (Some(sink), event) = told {
                sink.event(event);
            }
        }
    }
}

impl ManagerState {
    /// A peer whose first event this is, and its communication ID.
    fn peer(&self, event: &ferroce_cm::Event) -> Option<(HostAddr, u32)> {
        match event {
            ferroce_cm::Event::Request { request, route, .. } => Some((route.to, request.local_comm_id)),
            ferroce_cm::Event::Lookup { request, route, .. } => Some((route.to, request.request_id)),
            ferroce_cm::Event::Of(handle, ConnectionEvent::Reply(reply)) => {
                Some((self.cm.route(*handle)?.to, reply.local_comm_id))
            }
            _ => None,
        }
    }

    /// As [`CommunicationManager::gone`].
    fn gone(&mut self, gsi: Gsi, slot: Option<u16>) {
        let mut known = BTreeMap::new();
        let mut is_here =
            |route: &ConnectionRoute| *known.entry(route.to).or_insert_with(|| gsi.is_of_this_host(route.to));
        if let Some(slot) = slot {
            self.cm.peer_gone(now(), |id, route| slot_of_id(id) == slot && is_here(route));
        }
        self.cm.ask_again(now(), is_here);
    }

    /// An event of the communication manager, and its receiver.
    fn event(
        &mut self,
        manager: &'static Manager,
        event: ferroce_cm::Event,
    ) -> (Option<Arc<dyn Sink>>, CmEvent) {
        use ferroce_cm::Event as E;
        match event {
            E::Request { listener, handle, request, header, route } => {
                let connection = Connection { manager, handle };
                let incoming = Incoming { connection, request, header, route };
                (self.listeners.get(&listener).cloned(), CmEvent::Request(incoming))
            }
            E::Lookup { listener, handle, request, header, route } => {
                let connection = Connection { manager, handle };
                let incoming = Incoming { connection, request, header, route };
                (self.listeners.get(&listener).cloned(), CmEvent::Lookup(incoming))
            }
            E::Of(handle, event) => (self.sinks.get(&handle).cloned(), CmEvent::Of(event)),
        }
    }
}

/// Whether one other user of this host has all that a message claims.
fn has_what_it_claims(host: &Host, claim: Claim) -> bool {
    let of_id = |id| host.holder_of_slot(slot_of_id(id));
    let (holder, ids, qpn) = match claim {
        Claim::Sender { comm_id, qpn } => (of_id(comm_id), None, qpn),
        Claim::Peer(comm_id) => return matches!(of_id(comm_id), NameHolder::Other(_) | NameHolder::Nobody),
        Claim::Service { asked, service_id, comm_id, qpn } => {
            let holder = match (asked, service_id.port()) {
                // Its listener may be closed since.
                (AskedUser::Other(uid), _) => NameHolder::Other(uid),
                (AskedUser::Unknown, Some((space, port))) => host.holder_of_port(space.number(), port),
                (AskedUser::Own, _) | (AskedUser::Unknown, None) => return false,
            };
            (holder, comm_id, qpn)
        }
    };
    let has_qpn = |qpn| qpn == 0 || host.holder_of_slot(slot_of(qpn)) == holder;
    matches!(holder, NameHolder::Other(_))
        && ids.is_none_or(|id| of_id(id) == holder)
        && qpn.is_none_or(has_qpn)
}

/// A listener as it is shown.
fn listener((listen, waiting): (Listen, u32)) -> ListenerAccount {
    let Listen { space, port, address, backlog, .. } = listen;
    let port_space = match space {
        PortSpace::Tcp => "TCP",
        PortSpace::Udp => "UDP",
        PortSpace::Ib => "IB",
    };
    let address = SocketAddr::new(address, port).to_string();
    ListenerAccount { port_space: port_space.into(), address: address.as_str().into(), waiting, backlog }
}

/// A connection as it is shown.
fn connection(status: Status, now: Duration) -> ConnectionAccount {
    let Status { id, state, local, peer, qpn, since } = status;
    let waited = since.map(|since| now.saturating_sub(since).as_millis());
    ConnectionAccount {
        id,
        state: state.into(),
        local: local.to_string().as_str().into(),
        peer: peer.to_string().as_str().into(),
        queue_pair: qpn,
        waited: waited.map(|waited| u64::try_from(waited).unwrap_or(u64::MAX)),
    }
}

/// The receiver of MADs from [`Gsi`].
struct Worker(&'static Manager);

impl CommunicationManager for Worker {
    fn work(&self, mads: &mut dyn Iterator<Item = AddressedMad>) {
        let Self(manager) = *self;
        let Ok(gsi) = manager.gsi() else { return };
        mads.for_each(|mad| manager.take(gsi, &mad));
        manager.state.lock().cm.handle_timeout(now());
        manager.look_for_closed_ports(gsi);
        manager.send_all(gsi);
        manager.tell(gsi);
    }

    fn try_look(&self) -> Option<ConnectionManager> {
        let state = self.0.state.try_lock()?;
        let mut statuses = state.cm.statuses();
        let connections: Vec<_> = statuses.by_ref().take(TOLD).collect();
        let more_connections = statuses.count() as u64;
        let mut listening = state.cm.listeners();
        let listeners: Vec<_> = listening.by_ref().take(TOLD).collect();
        let more_listeners = listening.count() as u64;
        drop(state);
        let now = now();
        Some(ConnectionManager {
            busy: false,
            listeners: listeners.into_iter().map(listener).collect(),
            more_listeners,
            connections: connections.into_iter().map(|status| connection(status, now)).collect(),
            more_connections,
        })
    }

    fn gone(&self, slot: Option<u16>) {
        let Self(manager) = *self;
        if let Ok(gsi) = manager.gsi() {
            let _ = manager.with(|state| state.gone(gsi, slot));
        }
    }
}
